//! Our own standard output and error, written to without ever waiting for the reader: while no process reads our
//! output, the ranks must still be supervised.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;

/// More than this waiting to be written, and the ranks' pipes are not read any further.
pub(super) const FULL: usize = 1 << 20;

/// One of our output streams and what waits to be written to it.
pub(super) struct Sink {
    fd: OwnedFd,
    socket: bool,
    waiting: Vec<u8>,
    /// How much of `waiting` has been written.
    written: usize,
    /// Why nothing more can be written.
    fault: Option<Errno>,
}

impl Sink {
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Sink> {
        let kind = fstat(fd).map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
        let fd = match kind {
            // Opened anew, so that it does not block for us while it goes on blocking for those we
            // share the old one with.
            FileType::Fifo | FileType::CharacterDevice => {
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
                match open(path, flags, Mode::empty()) {
                    Ok(fd) => fd,
                    Err(_) => fd.try_clone_to_owned()?,
                }
            }
            _ => fd.try_clone_to_owned()?,
        };
        let socket = kind == FileType::Socket;
        Ok(Sink { fd, socket, waiting: Vec::new(), written: 0, fault: None })
    }

    /// Where to append what shall be written by the next `flush`.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.waiting
    }

    /// How many bytes wait.
    pub(super) fn backlog(&self) -> usize {
        self.waiting.len() - self.written
    }

    /// Why nothing more can be written, if so: EPIPE when the reader has gone.
    pub(super) fn fault(&self) -> Option<Errno> {
        self.fault
    }

    /// From now on everything is dropped.
    pub(super) fn close(&mut self, fault: Errno) {
        self.fault = Some(fault);
        self.waiting.clear();
        self.written = 0;
    }

    /// Writes what it can without waiting.
    pub(super) fn flush(&mut self) {
        while self.fault.is_none() && self.backlog() > 0 {
            match self.write() {
                Ok(n) => self.written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(fault) => self.close(fault),
            }
        }
        if self.fault.is_some() || self.backlog() == 0 {
            self.waiting.clear();
            self.written = 0;
        } else if self.written > FULL {
            self.waiting.drain(..self.written);
            self.written = 0;
        }
    }

    fn write(&self) -> rustix::io::Result<usize> {
        let bytes = &self.waiting[self.written..];
        if self.socket {
            use rustix::net::SendFlags;
            return rustix::net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        rustix::io::write(&self.fd, bytes)
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, pipe};

    #[test]
    fn a_full_pipe_keeps_the_rest_waiting() {
        let (mut reader, writer) = pipe().expect("descriptors are left");
        let mut sink = Sink::new(writer.as_fd()).expect("descriptors are left");
        drop(writer);
        let text: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
        sink.buffer().extend_from_slice(&text);
        sink.flush();
        assert!(sink.backlog() > 0 && sink.fault().is_none());
        let mut got = Vec::new();
        let mut piece = vec![0; 10_000];
        while sink.backlog() > 0 {
            let n = reader.read(&mut piece).expect("there is something to read");
            got.extend_from_slice(&piece[..n]);
            sink.flush();
        }
        drop(sink);
        reader.read_to_end(&mut got).expect("the writer has gone");
        assert_eq!(got, text);
    }

    #[test]
    fn a_reader_that_has_gone_closes_it() {
        let (reader, writer) = pipe().expect("descriptors are left");
        let mut sink = Sink::new(writer.as_fd()).expect("descriptors are left");
        drop((reader, writer));
        sink.buffer().extend_from_slice(b"lost");
        sink.flush();
        assert_eq!(sink.fault(), Some(Errno::PIPE));
        assert_eq!(sink.backlog(), 0);
    }
}
