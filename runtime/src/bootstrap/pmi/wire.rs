//! The socket to a PMI server: bytes with a time limit, and the fields of an answer.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::{Kind, SILENT, wrong};
use crate::error::{Error, Result};

/// Most bytes of an answer. PMI-2's own limit; lines of PMI-1 are shorter.
pub(super) const LONGEST: usize = 64 << 10;

/// Takes a message from the socket; `None` if it is not whole by the deadline.
pub(super) type Read = fn(&mut Wire, Instant) -> Result<Option<Vec<u8>>>;
/// The fields of a message; `None` if it has none.
pub(super) type Parse = fn(&[u8]) -> Option<Answer>;

/// A socket to the launcher's server.
#[derive(Debug)]
pub(super) struct Wire {
    kind: Kind,
    socket: OwnedFd,
    /// Bytes that have come and were not taken.
    came: Vec<u8>,
    /// How long the server may take for an answer that waits for no other rank.
    pub(super) limit: Duration,
}

impl Wire {
    pub(super) fn new(kind: Kind, socket: OwnedFd, limit: Duration) -> Wire {
        Wire { kind, socket, came: Vec::new(), limit }
    }

    /// The socket whose number is in `PMI_FD`.
    ///
    /// # Errors
    /// [`Error::Start`] if it is none.
    pub(super) fn inherited(kind: Kind, limit: Duration) -> Result<Wire> {
        let text = std::env::var("PMI_FD").map_err(|_| wrong(kind, "PMI_FD is not set"))?;
        let number = text.parse::<i32>().ok().filter(|number| *number >= 0);
        let number = number.ok_or_else(|| wrong(kind, format!("PMI_FD={text:?} is no descriptor")))?;
        // SAFETY: only looks whether the number is an open descriptor, and of what.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        if socket_number(borrowed).is_none() {
            return Err(wrong(
                kind,
                format!(
                    "PMI_FD={number} is not an open socket: this process is a child of a rank, or a program between the launcher and \
                     this one closed it"
                ),
            ));
        }
        let socket = rustix::io::fcntl_dupfd_cloexec(borrowed, 3).map_err(|e| os("fcntl", e))?;
        // Children of this rank are no ranks.
        rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC).map_err(|e| os("fcntl", e))?;
        Ok(Wire::new(kind, socket, limit))
    }

    /// Sends all of `bytes`.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let deadline = Instant::now() + self.limit;
        let mut left = bytes;
        while !left.is_empty() {
            match rustix::net::send(&self.socket, left, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => left = &left[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !self.ready(PollFlags::OUT, deadline)? {
                        return Err(self.late(self.limit));
                    }
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(self.closed()),
                Err(error) => return Err(os("send", error)),
            }
        }
        Ok(())
    }

    /// A line without its end, of at most [`LONGEST`] bytes; `None` if it is not whole by `deadline`.
    pub(super) fn line(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let mut seen = 0;
        loop {
            if let Some(end) = self.came[seen..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.came.drain(..=seen + end).collect();
                line.pop();
                return Ok(Some(line));
            }
            if self.came.len() > LONGEST {
                return Err(self.wrong("an answer of the launcher has no end"));
            }
            seen = self.came.len();
            if !self.receive(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Exactly `length` bytes, which are left where they are unless `take`; `None` if they are not here by `deadline`.
    pub(super) fn bytes(&mut self, length: usize, take: bool, deadline: Instant) -> Result<Option<Vec<u8>>> {
        while self.came.len() < length {
            if !self.receive(deadline)? {
                return Ok(None);
            }
        }
        Ok(Some(if take { self.came.drain(..length).collect() } else { self.came[..length].to_vec() }))
    }

    /// Waits for the answer `expected`, which `read` takes from the socket and `parse` takes apart.
    pub(super) fn answer(&mut self, read: Read, parse: Parse, expected: &str) -> Result<Answer> {
        match read(self, self.deadline())? {
            Some(bytes) => self.check(&bytes, parse, expected),
            None => Err(self.late(self.limit)),
        }
    }

    /// Reads bytes as the answer `expected`.
    pub(super) fn check(&self, bytes: &[u8], parse: Parse, expected: &str) -> Result<Answer> {
        let shown = || shown(bytes);
        let answer = parse(bytes).ok_or_else(|| self.wrong(format!("the launcher answered {:?}", shown())))?;
        if answer.get("cmd") != Some(expected) {
            return Err(self.wrong(format!("the launcher answered {:?} instead of {expected}", shown())));
        }
        match answer.get("rc") {
            None | Some("0") => Ok(answer),
            Some(_) => Err(self.wrong(format!("the launcher refuses: {:?}", shown()))),
        }
    }

    /// Waits for bytes; false if none have come by `deadline`.
    fn receive(&mut self, deadline: Instant) -> Result<bool> {
        let mut space = [0u8; 4096];
        loop {
            match rustix::net::recv(&self.socket, &mut space[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return Err(self.closed()),
                Ok((_, came)) => {
                    self.came.extend_from_slice(&space[..came]);
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !self.ready(PollFlags::IN, deadline)? {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(os("recv", error)),
            }
        }
    }

    /// Waits until the socket can be read or written; false at `deadline`.
    fn ready(&self, what: PollFlags, deadline: Instant) -> Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&self.socket, what)], Some(&left)) {
            Ok(0) => Ok(false),
            // After EINTR the call is simply made again.
            Ok(_) | Err(Errno::INTR) => Ok(true),
            Err(error) => Err(os("poll", error)),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.limit
    }

    pub(super) fn wrong(&self, what: impl std::fmt::Display) -> Error {
        wrong(self.kind, what)
    }

    pub(super) fn late(&self, after: Duration) -> Error {
        Error::TimedOut { doing: SILENT.into(), after }
    }

    fn closed(&self) -> Error {
        self.wrong(
            "the launcher closed the connection: it is ending the job, or its own output says why, or another program of this task has used \
             the connection before, which can be done once",
        )
    }
}

/// The number of the socket that `fd` is; `None` if it is none.
fn socket_number(fd: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstat(fd).ok()?;
    (rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket).then_some(stat.st_ino)
}

/// The number of the socket that `fd`, a value of `PMI_FD`, names; `None` if it is closed, or none.
pub(in crate::bootstrap) fn inherited_socket(fd: &str) -> Option<u64> {
    let number = fd.parse::<i32>().ok().filter(|number| *number >= 0)?;
    // SAFETY: only looks whether the number is an open descriptor, and of what.
    socket_number(unsafe { BorrowedFd::borrow_raw(number) })
}

fn os(call: &'static str, error: Errno) -> Error {
    Error::os("talking to the launcher", call, error)
}

/// The beginning of an answer, as an error shows it: up to where a value begins, which may hold the secret of the job.
pub(super) fn shown(answer: &[u8]) -> String {
    const VALUE: &[u8] = b"value=";
    let value = answer.windows(VALUE.len()).position(|part| part == VALUE);
    let (end, dots) = value.map_or((answer.len(), ""), |begins| (begins + VALUE.len(), "..."));
    let dots = if end > 200 { "..." } else { dots };
    format!("{}{dots}", String::from_utf8_lossy(&answer[..end.min(200)]))
}

/// The fields of an answer, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer(pub(super) Vec<(String, String)>);

impl Answer {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The field as a number.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.get(name)?.trim().parse().ok()
    }
}
