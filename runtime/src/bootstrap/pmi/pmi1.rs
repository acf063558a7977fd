//! PMI-1: lines of `name=value` fields, separated by spaces, over a socket. Spoken by MPICH's hydra, Slurm's plug-in `pmi2`, Flux.
//!
//! Source: RFC 13 of the Flux project, which documents the protocol, and MPICH's hydra as a peer. A server may instead listen at
//! a port (`PMI_PORT`), where a client first tells its number (`PMI_ID`) and is told its place.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::wire::{Answer, Wire};
use super::{EXITED, Exchange, JOINING, KILLED, Kind, LOST, MISSED, wrong};
use crate::error::{Error, Loss, Result};

const KIND: Kind = Kind::Pmi1;

/// A connection to a PMI-1 server.
#[derive(Debug)]
pub(super) struct Pmi1 {
    wire: Wire,
    rank: usize,
    size: usize,
    /// The name of the job's key space.
    space: String,
    longest: usize,
    /// The server asks for the rank that was missed first.
    asks_missed: bool,
    missed: Option<usize>,
}

impl Pmi1 {
    /// Connects as the environment says.
    pub(super) fn from_env(limit: Duration) -> Result<Pmi1> {
        match std::env::var("PMI_PORT") {
            Ok(port) if std::env::var_os("PMI_FD").is_none() => Pmi1::at_port(&port, limit),
            _ => {
                let place = |name: &str| std::env::var(name).ok()?.parse().ok();
                let (Some(rank), Some(size)) = (place("PMI_RANK"), place("PMI_SIZE")) else {
                    return Err(wrong(KIND, "PMI_RANK and PMI_SIZE are not both numbers"));
                };
                Pmi1::begin(Wire::inherited(KIND, limit)?, rank, size)
            }
        }
    }

    /// Connects to `host:port`, and is told its place there.
    fn at_port(port: &str, limit: Duration) -> Result<Pmi1> {
        let failed = |error: std::io::Error| wrong(KIND, format!("PMI_PORT={port}: {error}"));
        let id = std::env::var("PMI_ID").map_err(|_| wrong(KIND, "PMI_PORT is set, and PMI_ID is not"))?;
        if id.parse::<u32>().is_err() {
            return Err(wrong(KIND, format!("PMI_ID={id:?} is no number")));
        }
        let mut last = std::io::ErrorKind::AddrNotAvailable.into();
        for address in port.to_socket_addrs().map_err(failed)? {
            match TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => return Pmi1::called(Wire::new(KIND, stream.into(), limit), &id),
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    /// Begins on a connection that we have made, as the process `id` of the server.
    pub(super) fn called(mut wire: Wire, id: &str) -> Result<Pmi1> {
        wire.send(format!("cmd=initack pmiid={id}\n").as_bytes())?;
        wire.answer(Wire::line, parse, "initack")?;
        let (mut rank, mut size) = (None, None);
        // Each in a line of its own; whether to debug comes last.
        for _ in 0..3 {
            let told = wire.answer(Wire::line, parse, "set")?;
            rank = rank.or(told.number("rank"));
            size = size.or(told.number("size"));
        }
        match (rank, size) {
            (Some(rank), Some(size)) => Pmi1::begin(wire, rank, size),
            _ => Err(wire.wrong("the launcher does not tell rank and size")),
        }
    }

    /// Begins as rank `rank` of `size`.
    pub(super) fn begin(mut wire: Wire, rank: usize, size: usize) -> Result<Pmi1> {
        if rank >= size || size > u32::MAX as usize {
            return Err(wire.wrong(format!("rank {rank} of {size} is no place in a job")));
        }
        let begun = ask(&mut wire, "cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        if begun.get("pmi_version") != Some("1") {
            let version = begun.get("pmi_version").unwrap_or("none").to_string();
            return Err(wire.wrong(format!("the launcher speaks version {version} of PMI instead of 1")));
        }
        let asks_missed = begun.get(MISSED).is_some();
        let maxes = ask(&mut wire, "cmd=get_maxes", "maxes")?;
        let longest = maxes.number("vallen_max").filter(|most| *most >= 64);
        let Some(longest) = longest else {
            return Err(wire.wrong("the launcher does not say how long a value may be, or less than 64 bytes"));
        };
        let named = ask(&mut wire, "cmd=get_my_kvsname", "my_kvsname")?;
        let Some(space) = named.get("kvsname").filter(|name| !name.is_empty()).map(String::from) else {
            return Err(wire.wrong("the launcher does not name its key space"));
        };
        // The zero at the end counts.
        Ok(Pmi1 { wire, rank, size, space, longest: longest - 1, asks_missed, missed: None })
    }
}

/// Sends a command, and waits for its answer.
fn ask(wire: &mut Wire, command: &str, expected: &str) -> Result<Answer> {
    wire.send(format!("{command}\n").as_bytes())?;
    wire.answer(Wire::line, parse, expected)
}

/// The error in a line that Bellwether's own server sends in place of the end of a fence; `None` for any other line.
fn lost(line: &[u8]) -> Option<Error> {
    let answer = parse(line)?;
    let rank = answer.number(LOST)?;
    let number = |field| answer.get(field)?.parse().ok();
    let cause = number(KILLED).map(Loss::Signaled).or(number(EXITED).map(Loss::Exited)).unwrap_or(Loss::Unknown);
    Some(Error::PeerLost { rank, cause, doing: JOINING.into() })
}

/// The fields of a line. A word without `=` belongs to the text before it.
pub(super) fn parse(line: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(line).ok()?;
    let mut fields: Vec<(String, String)> = Vec::new();
    for word in text.split([' ', '\r']).filter(|word| !word.is_empty()) {
        match (word.split_once('='), fields.last_mut()) {
            (Some((name, value)), _) => fields.push((name.into(), value.into())),
            (None, Some((_, value))) => {
                value.push(' ');
                value.push_str(word);
            }
            (None, None) => return None,
        }
    }
    (!fields.is_empty()).then_some(Answer(fields))
}

impl Exchange for Pmi1 {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn longest(&self) -> usize {
        self.longest
    }

    fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let command = format!("cmd=put kvsname={} key={key} value={value}", self.space);
        ask(&mut self.wire, &command, "put_result").map(drop)
    }

    fn begin_fence(&mut self) -> Result<()> {
        self.wire.send(b"cmd=barrier_in\n")
    }

    fn fence_is_done(&mut self, wait: Duration) -> Result<bool> {
        match self.wire.line(Instant::now() + wait)? {
            Some(line) => match lost(&line) {
                Some(error) => Err(error),
                None => self.wire.check(&line, parse, "barrier_out").map(|_| true),
            },
            None => Ok(false),
        }
    }

    fn get(&mut self, from: usize, key: &str) -> Result<String> {
        let command = format!("cmd=get kvsname={} key={key}", self.space);
        let answer = ask(&mut self.wire, &command, "get_result")?;
        let value = answer.get("value").map(String::from);
        value.ok_or_else(|| self.wire.wrong(format!("the launcher has no value of rank {from} for {key}")))
    }

    fn asks_missed(&self) -> bool {
        self.asks_missed
    }

    fn note_missed(&mut self, rank: usize) {
        self.missed = Some(rank);
    }

    fn leave(&mut self, limit: Duration) -> Result<()> {
        self.wire.limit = limit;
        let missed = self.missed.filter(|_| self.asks_missed).map_or(String::new(), |rank| format!(" {MISSED}={rank}"));
        ask(&mut self.wire, &format!("cmd=finalize{missed}"), "finalize_ack").map(drop)
    }
}
