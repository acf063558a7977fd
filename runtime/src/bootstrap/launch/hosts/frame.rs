//! The messages between the launcher and the launchers of its hosts. A frame is its length in four bytes, and the message in postcard's format.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The first bytes that a host's launcher sends. Bytes before them come from another program.
pub(super) const GREETING: &[u8] = b"\0bellwether-host\n";

/// Most bytes of a frame.
const LONGEST: usize = 256 << 20;

/// Keys with values.
pub(super) type Pairs = Vec<(String, String)>;

/// From the launcher to a host.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Down {
    /// Start these ranks.
    Job(Box<HostJob>),
    /// A signal for the host's ranks, and with `group` for their children, too.
    Signal { group: bool, signal: i32 },
    /// All ranks of the job have entered the fence; what they have put since the last one.
    Fence(Pairs),
    /// So many bytes of output have been taken.
    Taken(usize),
    /// Standard input of rank 0; no bytes: its end.
    Input(Vec<u8>),
    /// This rank has ended: no fence is whole any more.
    Broken { rank: usize, killed: bool, number: i32 },
}

/// The ranks of one host.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostJob {
    pub(super) folder: Vec<u8>,
    pub(super) env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) program: Vec<u8>,
    pub(super) args: Vec<Vec<u8>>,
    /// The host's first rank, and how many it has.
    pub(super) first: usize,
    pub(super) count: usize,
    /// Ranks that other launchers of the same host have, which come before these: with `bind`, they have the first CPUs.
    pub(super) seat: usize,
    /// Ranks of the job.
    pub(super) size: usize,
    /// Whether each rank is bound to one CPU.
    pub(super) bind: bool,
}

/// From a host to the launcher.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Up {
    Hello {
        version: String,
        cpus: usize,
    },
    Started {
        rank: usize,
        pid: i32,
    },
    /// The rank began to join the world.
    Joined(usize),
    /// It left in good order, and knows that this other rank was missed first, if one was.
    Left(usize, Option<usize>),
    /// All ranks of the host have entered the fence; what they have put.
    Fence(Pairs),
    /// Bytes of standard output, or with `error` of standard error.
    Output {
        rank: usize,
        error: bool,
        bytes: Vec<u8>,
    },
    /// The end of a stream.
    Closed {
        rank: usize,
        error: bool,
    },
    /// The rank's exit code, or the signal that killed it.
    Ended {
        rank: usize,
        killed: bool,
        number: i32,
    },
    /// So many bytes of input have been passed on.
    InputTaken(usize),
    /// The ranks could not be started; the exit status for that, and why.
    Cannot {
        status: i32,
        why: String,
    },
    /// All ranks have ended, and nothing of them is left.
    Bye,
}

/// Appends a frame.
pub(super) fn append(out: &mut Vec<u8>, frame: &impl Serialize) {
    let bytes = postcard::to_stdvec(frame).expect("memory and numbers can always be written");
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// Bytes that have come, as frames.
#[derive(Debug, Default)]
pub(super) struct Frames {
    came: Vec<u8>,
}

impl Frames {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.came.extend_from_slice(bytes);
    }

    /// Takes the greeting: `None` if more bytes are needed.
    ///
    /// # Errors
    /// What has come, if it is something else.
    pub(super) fn greeted(&mut self) -> Result<Option<()>, String> {
        let length = self.came.len().min(GREETING.len());
        if self.came[..length] != GREETING[..length] {
            let shown = &self.came[..self.came.len().min(200)];
            return Err(String::from_utf8_lossy(shown).into_owned());
        }
        Ok((length == GREETING.len()).then(|| drop(self.came.drain(..length))))
    }

    /// The next whole frame.
    ///
    /// # Errors
    /// Why the bytes are none.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, &'static str> {
        let Some(head) = self.came.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        if length > LONGEST {
            return Err("a frame is too long");
        }
        if self.came.len() < 4 + length {
            return Ok(None);
        }
        let frame = postcard::from_bytes(&self.came[4..4 + length]).map_err(|_| "a frame cannot be read")?;
        self.came.drain(..4 + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let sent = [Up::Joined(3), Up::Output { rank: 1, error: true, bytes: vec![7; 300] }, Up::Bye];
        let mut bytes = GREETING.to_vec();
        sent.iter().for_each(|frame| append(&mut bytes, frame));
        let (mut frames, mut came, mut greeted) = (Frames::default(), Vec::new(), false);
        for byte in bytes {
            frames.push(&[byte]);
            if !greeted {
                greeted = frames.greeted().expect("it begins with the greeting").is_some();
            } else if let Some(frame) = frames.next::<Up>().expect("frames") {
                came.push(frame);
            }
        }
        assert_eq!(came, sent);
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let mut frames = Frames::default();
        frames.push(b"Welcome to node7\n");
        assert_eq!(frames.greeted(), Err("Welcome to node7\n".into()));
        assert!(frames.next::<Up>().is_err(), "a length of text");
        let mut frames = Frames::default();
        frames.push(&[2, 0, 0, 0, 0xff, 0xff]);
        assert!(frames.next::<Up>().is_err());
    }
}
