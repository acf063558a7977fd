//! One connection between two leaders: words, each with its length before it.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::sockopt;

use super::Word;
use crate::error::{Error, Result};

/// Most bytes of a word: the largest has the handlers of one rank, or the waits of all of a host.
const LONGEST: usize = 2 << 20;
/// A host that does not answer for so long is gone: looked at after as many seconds of silence, then so many times, each
/// second. The kernel answers also for a process that is stopped.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(5);
const LOOKS: u32 = 5;

/// A connection to another host's leader.
#[derive(Debug)]
pub struct Line {
    /// The host at the other end.
    pub host: usize,
    stream: TcpStream,
    incoming: Vec<u8>,
    outgoing: VecDeque<u8>,
    is_closed: bool,
    /// The other end hears no more; what it said before that may still wait here.
    is_deaf: bool,
}

impl Line {
    /// A line to `host`.
    pub(super) fn new(host: usize, stream: TcpStream) -> Result<Line> {
        let failed = |call| move |source| Error::Os { doing: "connecting the hosts", call, source };
        stream.set_nonblocking(true).map_err(failed("fcntl"))?;
        stream.set_nodelay(true).map_err(failed("setsockopt"))?;
        let watched = sockopt::set_socket_keepalive(&stream, true)
            .and_then(|()| sockopt::set_tcp_keepidle(&stream, SILENCE))
            .and_then(|()| sockopt::set_tcp_keepintvl(&stream, std::time::Duration::from_secs(1)))
            .and_then(|()| sockopt::set_tcp_keepcnt(&stream, LOOKS))
            // While words are on their way nothing is looked at: they are given up after as long.
            .and_then(|()| sockopt::set_tcp_user_timeout(&stream, SILENCE.as_millis() as u32 + 1000 * LOOKS));
        watched.map_err(|errno| Error::os("connecting the hosts", "setsockopt", errno))?;
        Ok(Line { host, stream, incoming: Vec::new(), outgoing: VecDeque::new(), is_closed: false, is_deaf: false })
    }

    /// The socket, to wait on.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether the other end is gone, or has said what nobody says.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether words wait for room in the socket.
    pub fn is_full(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends a word, now or with the next one.
    pub fn send(&mut self, word: &Word) {
        if self.is_deaf {
            return;
        }
        let bytes = postcard::to_stdvec(word).expect("words are plain data");
        self.outgoing.extend((bytes.len() as u32).to_le_bytes());
        self.outgoing.extend(bytes);
        self.flush();
    }

    /// Sends what waits for room.
    pub fn flush(&mut self) {
        while !self.outgoing.is_empty() && !self.is_closed {
            match self.stream.write(self.outgoing.as_slices().0) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.is_deaf = true;
                    self.outgoing.clear();
                }
            }
        }
    }

    /// The words that have come. What came before the end is told before [`Line::is_closed`].
    pub fn receive(&mut self) -> Vec<Word> {
        let mut buffer = [0; 16 << 10];
        while !self.is_closed {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_closed = true,
                Ok(len) => self.incoming.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_closed = true,
            }
        }
        let mut words = Vec::new();
        let mut rest = &self.incoming[..];
        while let Some((length, after)) = rest.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > LONGEST {
                self.is_closed = true;
                break;
            }
            let Some((word, after)) = after.split_at_checked(length) else { break };
            match postcard::from_bytes(word) {
                Ok(word) => words.push(word),
                Err(error) => {
                    tracing::warn!(host = self.host, %error, "an invalid message from another host");
                    self.is_closed = true;
                    break;
                }
            }
            rest = after;
        }
        let used = self.incoming.len() - rest.len();
        self.incoming.drain(..used);
        words
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::{Duration, Instant};

    use super::*;

    /// Two ends of one connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// Receives until there are so many, or the line is closed.
    fn collect(line: &mut Line, count: usize) -> Vec<Word> {
        let (start, mut words) = (Instant::now(), Vec::new());
        while words.len() < count && !line.is_closed() && start.elapsed() < Duration::from_secs(20) {
            words.extend(line.receive());
        }
        words
    }

    #[test]
    fn words_arrive_whole_and_in_order_and_before_the_end() {
        let (one, other) = pair();
        let (mut one, mut other) = (Line::new(1, one).unwrap(), Line::new(0, other).unwrap());
        // More than a socket holds.
        let words: Vec<Word> = (0..600).map(|rank| Word::Table(rank, vec![rank as u8; 100 * (rank % 200)])).collect();
        let mut came = Vec::new();
        for word in &words {
            one.send(word);
        }
        assert!(one.is_full());
        while came.len() < words.len() {
            one.flush();
            came.extend(other.receive());
        }
        assert!(came == words);
        one.send(&Word::Bye);
        drop(one);
        assert_eq!(collect(&mut other, 2), [Word::Bye]);
        assert!(other.is_closed());
    }

    #[test]
    fn what_was_said_before_the_end_is_heard_though_nobody_hears_us() {
        let (one, other) = pair();
        let (mut one, mut other) = (Line::new(1, one).unwrap(), Line::new(0, other).unwrap());
        other.send(&Word::Leaving(3));
        one.send(&Word::Bye);
        // With a word unread: the connection is reset.
        drop(one);
        let start = Instant::now();
        while !other.is_deaf && start.elapsed() < Duration::from_secs(20) {
            other.send(&Word::Leaving(4));
        }
        assert!(other.is_deaf && !other.is_full());
        assert_eq!(collect(&mut other, 2), [Word::Bye]);
        assert!(other.is_closed());
    }

    #[test]
    fn what_no_host_says_closes_the_line() {
        for nonsense in [&[0xff; 64][..], &[3, 0, 0, 0, 9, 9, 9]] {
            let (mut one, other) = pair();
            let mut other = Line::new(0, other).unwrap();
            one.write_all(nonsense).unwrap();
            assert_eq!(collect(&mut other, 1), []);
            assert!(other.is_closed(), "{nonsense:?}");
        }
    }
}
