//! PMI-2: messages of `name=value;` fields over a socket, each behind its length in six digits. Spoken by Slurm's plug-in `pmi2`.
//!
//! Source: the wire protocol that MPICH's client and Slurm's plug-in agree on. The first exchange is a line of PMI-1. Slurm's
//! fence waits for all ranks; hydra serves PMI-2 too, with a fence that waits for none, and is therefore joined by PMI-1.

use std::time::{Duration, Instant};

use super::pmi1;
use super::wire::{Answer, LONGEST, Wire, shown};
use super::{Exchange, Kind};
use crate::error::Result;

/// Digits in front of a message, filled with spaces.
const HEADER: usize = 6;
/// Most bytes of a value: PMI-2's `PMI2_MAX_VALLEN`, where the zero at the end counts.
const VALUE: usize = 1023;

/// A connection to a PMI-2 server.
#[derive(Debug)]
pub(super) struct Pmi2 {
    wire: Wire,
    rank: usize,
    size: usize,
    job: String,
}

impl Pmi2 {
    /// Connects as the environment says.
    pub(super) fn from_env(limit: Duration) -> Result<Pmi2> {
        Pmi2::begin(Wire::inherited(Kind::Pmi2, limit)?, |name| std::env::var(name).ok())
    }

    /// Begins, with the place that the environment gives.
    pub(super) fn begin(mut wire: Wire, env: impl Fn(&str) -> Option<String>) -> Result<Pmi2> {
        wire.send(b"cmd=init pmi_version=2 pmi_subversion=0\n")?;
        let deadline = wire.deadline();
        let Some(line) = wire.line(deadline)? else { return Err(wire.late(wire.limit)) };
        let begun = pmi1::parse(&line).filter(|begun| begun.get("cmd") == Some("response_to_init"));
        if begun.is_none_or(|begun| begun.get("rc") != Some("0") || begun.get("pmi_version") != Some("2")) {
            let line = shown(&line);
            return Err(wire.wrong(format!("the launcher does not speak version 2 of PMI: {line:?}")));
        }
        let mut command = String::from("cmd=fullinit;");
        // A server that started us knows these, and other clients tell them too.
        for (field, name) in [("pmijobid", "PMI_JOBID"), ("pmirank", "PMI_RANK")] {
            if let Some(value) = env(name) {
                command += &format!("{field}={};", value.replace(';', ";;"));
            }
        }
        let place = ask(&mut wire, &(command + "threaded=FALSE;"), "fullinit-response")?;
        let (rank, size) = (place.number("rank"), place.number("size"));
        let (Some(rank), Some(size)) = (rank, size) else {
            return Err(wire.wrong("the launcher does not tell rank and size"));
        };
        if rank >= size || size > u32::MAX as usize {
            return Err(wire.wrong(format!("rank {rank} of {size} is no place in a job")));
        }
        let job = ask(&mut wire, "cmd=job-getid;", "job-getid-response")?;
        let Some(job) = job.get("jobid").map(String::from) else {
            return Err(wire.wrong("the launcher does not name the job"));
        };
        Ok(Pmi2 { wire, rank, size, job })
    }
}

/// Sends a command, and waits for its answer.
fn ask(wire: &mut Wire, command: &str, expected: &str) -> Result<Answer> {
    send(wire, command)?;
    wire.answer(message, parse, expected)
}

fn send(wire: &mut Wire, command: &str) -> Result<()> {
    wire.send(format!("{:HEADER$}{command}", command.len()).as_bytes())
}

/// A message; `None` if it is not whole by `deadline`.
fn message(wire: &mut Wire, deadline: Instant) -> Result<Option<Vec<u8>>> {
    let Some(header) = wire.bytes(HEADER, false, deadline)? else { return Ok(None) };
    let length = std::str::from_utf8(&header).ok().and_then(|text| text.trim().parse::<usize>().ok());
    let Some(length) = length.filter(|length| *length <= LONGEST) else {
        let header = String::from_utf8_lossy(&header).into_owned();
        return Err(wire.wrong(format!("the launcher's message begins with {header:?} instead of its length")));
    };
    let message = wire.bytes(HEADER + length, true, deadline)?;
    Ok(message.map(|message| message[HEADER..].to_vec()))
}

/// The fields of a message. A semicolon in a value is written twice.
pub(super) fn parse(message: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(message).ok()?;
    let mut fields = Vec::new();
    let mut rest = text.trim_end_matches(['\0', '\n']);
    while !rest.is_empty() {
        let (name, behind) = rest.split_once('=')?;
        let mut value = String::new();
        rest = behind;
        loop {
            let end = rest.find(';').unwrap_or(rest.len());
            value.push_str(&rest[..end]);
            rest = rest.get(end + 1..).unwrap_or("");
            match rest.strip_prefix(';') {
                Some(behind) => {
                    value.push(';');
                    rest = behind;
                }
                None => break,
            }
        }
        fields.push((name.into(), value));
    }
    (!fields.is_empty()).then_some(Answer(fields))
}

impl Exchange for Pmi2 {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn longest(&self) -> usize {
        VALUE
    }

    fn put(&mut self, key: &str, value: &str) -> Result<()> {
        ask(&mut self.wire, &format!("cmd=kvs-put;key={key};value={value};"), "kvs-put-response").map(drop)
    }

    fn begin_fence(&mut self) -> Result<()> {
        send(&mut self.wire, "cmd=kvs-fence;")
    }

    fn fence_is_done(&mut self, wait: Duration) -> Result<bool> {
        match message(&mut self.wire, Instant::now() + wait)? {
            Some(message) => self.wire.check(&message, parse, "kvs-fence-response").map(|_| true),
            None => Ok(false),
        }
    }

    fn get(&mut self, from: usize, key: &str) -> Result<String> {
        // The number of the rank that put it may help the server to find it.
        let command = format!("cmd=kvs-get;jobid={};srcid={from};key={key};", self.job);
        let answer = ask(&mut self.wire, &command, "kvs-get-response")?;
        let found = answer.get("value").filter(|_| answer.get("found").or(answer.get("flag")) == Some("TRUE"));
        let value = found.map(String::from);
        value.ok_or_else(|| self.wire.wrong(format!("the launcher has no value of rank {from} for {key}")))
    }

    fn leave(&mut self, limit: Duration) -> Result<()> {
        self.wire.limit = limit;
        ask(&mut self.wire, "cmd=finalize;", "finalize-response").map(drop)
    }
}
