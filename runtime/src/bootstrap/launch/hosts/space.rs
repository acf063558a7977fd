//! The PMI-1 service for the ranks of one host: keys with values, and a fence that spans all hosts. No sockets here.

use std::collections::HashMap;

use super::frame::Pairs;
use crate::bootstrap::pmi::{EXITED, KILLED, LOST, MISSED};

/// Most bytes of a value, with the zero at its end.
const LONGEST: usize = 1024;
/// Most bytes of a line: a value, its key, and words.
const LINE: usize = 4 * LONGEST;

/// The keys and values of one host: what its ranks have put since the last fence, and what all ranks of the job put before it.
#[derive(Debug)]
pub(super) struct Space {
    ranks: usize,
    values: HashMap<String, String>,
    /// What ranks of this host have put since the last fence.
    put: Pairs,
    entered: usize,
    /// What a rank that enters a fence is told if a rank of the job has ended.
    broken: Option<String>,
}

/// How to answer a line from a rank.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Send this line.
    Say(String),
    /// The rank has begun; send this.
    Joined(String),
    /// The rank has ended as it should; send this. With the rank that was missed first, as far as it knows.
    Left(String, Option<usize>),
    /// The rank waits for the fence: send nothing yet.
    Wait,
    /// The last rank of the host has entered the fence: pass these pairs on to the launcher.
    Fence(Pairs),
    /// The line is not PMI-1: read nothing more from this rank.
    Cut,
}

/// Takes the first whole line from the bytes that have come, if there is one.
pub(super) fn line(came: &mut Vec<u8>) -> Result<Option<String>, ()> {
    match came.iter().position(|byte| *byte == b'\n') {
        Some(end) => String::from_utf8(came.drain(..=end).collect()).map(Some).map_err(drop),
        None if came.len() > LINE => Err(()),
        None => Ok(None),
    }
}

impl Space {
    /// The space of a host with `ranks` ranks.
    pub(super) fn new(ranks: usize) -> Space {
        Space { ranks, values: HashMap::new(), put: Vec::new(), entered: 0, broken: None }
    }

    /// Handles a `line` that a rank has sent.
    pub(super) fn take(&mut self, line: &str) -> Reply {
        let fields: HashMap<&str, &str> = line.split_whitespace().filter_map(|field| field.split_once('=')).collect();
        let field = |name| fields.get(name).copied();
        let say = |words: &str| Reply::Say(format!("{words}\n"));
        match (field("cmd"), field("key"), field("value")) {
            (Some("init"), ..) => {
                Reply::Joined(format!("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0 {MISSED}=asked\n"))
            }
            (Some("get_maxes"), ..) => say(&format!("cmd=maxes kvsname_max=64 keylen_max=256 vallen_max={LONGEST}")),
            (Some("get_my_kvsname"), ..) => say("cmd=my_kvsname kvsname=job"),
            (Some("put"), Some(key), Some(value)) => {
                self.put.push((key.into(), value.into()));
                say("cmd=put_result rc=0 msg=success")
            }
            (Some("get"), Some(key), _) => match self.values.get(key) {
                Some(value) => say(&format!("cmd=get_result rc=0 msg=success value={value}")),
                None => say("cmd=get_result rc=-1 msg=key_not_found value=unknown"),
            },
            (Some("barrier_in"), ..) if let Some(told) = &self.broken => Reply::Say(told.clone()),
            (Some("barrier_in"), ..) => {
                self.entered += 1;
                if self.entered < self.ranks { Reply::Wait } else { Reply::Fence(std::mem::take(&mut self.put)) }
            }
            (Some("finalize"), ..) => {
                let missed = field(MISSED).and_then(|rank| rank.parse().ok());
                Reply::Left("cmd=finalize_ack rc=0\n".into(), missed)
            }
            _ => Reply::Cut,
        }
    }

    /// A rank of the job has ended, by a signal if it was killed, or else with an exit code. Returns the line to send to the ranks that wait for
    /// the fence; those that enter one later get it at once.
    pub(super) fn break_fence(&mut self, rank: usize, killed: bool, number: i32) -> String {
        let how = if killed { KILLED } else { EXITED };
        let told = format!("cmd=barrier_out rc=-1 msg=a_rank_has_ended {LOST}={rank} {how}={number}\n");
        self.broken.get_or_insert(told).clone()
    }

    /// All ranks of the job have entered the fence, and have put `all`. Returns the line to send to each rank of the host.
    pub(super) fn fence(&mut self, all: Pairs) -> &'static str {
        self.values.extend(all);
        self.entered = 0;
        "cmd=barrier_out rc=0\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_seen_after_the_fence() {
        let mut space = Space::new(2);
        assert!(matches!(space.take("cmd=init pmi_version=1 pmi_subversion=1\n"), Reply::Joined(_)));
        let said = |reply| match reply {
            Reply::Say(text) => text,
            other => panic!("{other:?}"),
        };
        assert!(said(space.take("cmd=put kvsname=job key=a value=1f\n")).contains("rc=0"));
        assert!(said(space.take("cmd=get kvsname=job key=a\n")).contains("rc=-1"));
        assert_eq!(space.take("cmd=barrier_in\n"), Reply::Wait);
        assert_eq!(space.take("cmd=barrier_in\n"), Reply::Fence(vec![("a".into(), "1f".into())]));
        space.fence(vec![("a".into(), "1f".into()), ("b".into(), "2".into())]);
        assert!(said(space.take("cmd=get kvsname=job key=b\n")).ends_with("value=2\n"));
        // The next fence has only what is new.
        assert_eq!(space.take("cmd=barrier_in\n"), Reply::Wait);
        assert_eq!(space.take("cmd=barrier_in\n"), Reply::Fence(Vec::new()));
        assert!(matches!(space.take("cmd=finalize\n"), Reply::Left(_, None)));
        assert!(matches!(space.take(&format!("cmd=finalize {MISSED}=1\n")), Reply::Left(_, Some(1))));
    }

    #[test]
    fn who_enters_a_fence_after_the_end_of_a_rank_is_told_at_once() {
        let mut space = Space::new(2);
        assert_eq!(space.take("cmd=barrier_in\n"), Reply::Wait);
        let told = space.break_fence(5, true, 9);
        assert!(told.contains(&format!("{LOST}=5 {KILLED}=9")), "{told}");
        assert_eq!(space.break_fence(6, false, 3), told, "the first one");
        assert_eq!(space.take("cmd=barrier_in\n"), Reply::Say(told));
    }

    #[test]
    fn what_is_not_the_protocol_is_cut_off() {
        let mut space = Space::new(1);
        for wrong in ["\n", "hello\n", "cmd=put key=a\n", "cmd=get\n", "cmd=spawn n=4\n"] {
            assert_eq!(space.take(wrong), Reply::Cut, "{wrong}");
        }
        assert_eq!(line(&mut b"cmd=in".to_vec()), Ok(None));
        assert_eq!(line(&mut vec![b'x'; LINE + 1]), Err(()));
        assert_eq!(line(&mut b"\xff\n".to_vec()), Err(()));
    }
}
