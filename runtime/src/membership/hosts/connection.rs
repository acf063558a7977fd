//! A TCP connection between two leaders. It carries messages, each after its length.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::sockopt;

use super::HostMessage;
use crate::error::{Error, Result};

/// Most bytes of a message. The largest have the handlers of one rank, or the waits of all ranks of a host.
const LONGEST: usize = 2 << 20;
/// Silence after which the kernel probes the other host, once a second, `PROBES` times: a host that answers none is lost. A kernel
/// also answers for a process that is stopped. Chosen: 10 s until a dead host is noticed.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(5);
const PROBES: u32 = 5;

/// A connection to another host's leader.
#[derive(Debug)]
pub struct Connection {
    /// The host at the other end.
    pub host: usize,
    stream: TcpStream,
    incoming: Vec<u8>,
    outgoing: VecDeque<u8>,
    is_closed: bool,
    /// Sends fail. What the other end sent before that may still wait here.
    is_send_closed: bool,
}

impl Connection {
    /// A connection to `host`.
    pub(super) fn new(host: usize, stream: TcpStream) -> Result<Connection> {
        let failed = |call| move |source| Error::Os { doing: "connecting the hosts", call, source };
        stream.set_nonblocking(true).map_err(failed("fcntl"))?;
        stream.set_nodelay(true).map_err(failed("setsockopt"))?;
        let watched = sockopt::set_socket_keepalive(&stream, true)
            .and_then(|()| sockopt::set_tcp_keepidle(&stream, SILENCE))
            .and_then(|()| sockopt::set_tcp_keepintvl(&stream, std::time::Duration::from_secs(1)))
            .and_then(|()| sockopt::set_tcp_keepcnt(&stream, PROBES))
            // The kernel does not probe while data is unacknowledged: such data is given up after the same time.
            .and_then(|()| sockopt::set_tcp_user_timeout(&stream, SILENCE.as_millis() as u32 + 1000 * PROBES));
        watched.map_err(|errno| Error::os("connecting the hosts", "setsockopt", errno))?;
        Ok(Connection {
            host,
            stream,
            incoming: Vec::new(),
            outgoing: VecDeque::new(),
            is_closed: false,
            is_send_closed: false,
        })
    }

    /// The socket, to wait on.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether the other end is gone, or has sent bytes that are no message.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether messages wait for room in the socket.
    pub fn is_full(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends a message, or keeps it until the socket has room.
    pub fn send(&mut self, message: &HostMessage) {
        if self.is_send_closed {
            return;
        }
        let bytes = postcard::to_stdvec(message).expect("messages are plain data");
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
                    self.is_send_closed = true;
                    self.outgoing.clear();
                }
            }
        }
    }

    /// Returns the messages that have arrived. All that arrived before the end are returned before [`Connection::is_closed`] holds.
    pub fn receive(&mut self) -> Vec<HostMessage> {
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
        let mut messages = Vec::new();
        let mut rest = &self.incoming[..];
        while let Some((length, after)) = rest.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > LONGEST {
                self.is_closed = true;
                break;
            }
            let Some((message, after)) = after.split_at_checked(length) else { break };
            match postcard::from_bytes(message) {
                Ok(message) => messages.push(message),
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
        messages
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

    /// Receives until there are so many, or the connection is closed.
    fn collect(line: &mut Connection, count: usize) -> Vec<HostMessage> {
        let (start, mut words) = (Instant::now(), Vec::new());
        while words.len() < count && !line.is_closed() && start.elapsed() < Duration::from_secs(20) {
            words.extend(line.receive());
        }
        words
    }

    #[test]
    fn messages_arrive_whole_and_in_order_and_before_the_end() {
        let (one, other) = pair();
        let (mut one, mut other) = (Connection::new(1, one).unwrap(), Connection::new(0, other).unwrap());
        // More than a socket holds.
        let words: Vec<HostMessage> =
            (0..600).map(|rank| HostMessage::Handlers(rank, vec![rank as u8; 100 * (rank % 200)])).collect();
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
        one.send(&HostMessage::Finished);
        drop(one);
        assert_eq!(collect(&mut other, 2), [HostMessage::Finished]);
        assert!(other.is_closed());
    }

    #[test]
    fn what_was_sent_before_the_end_arrives_though_our_sends_fail() {
        let (one, other) = pair();
        let (mut one, mut other) = (Connection::new(1, one).unwrap(), Connection::new(0, other).unwrap());
        other.send(&HostMessage::Leaving(3));
        one.send(&HostMessage::Finished);
        // With a message unread: the connection is reset.
        drop(one);
        let start = Instant::now();
        while !other.is_send_closed && start.elapsed() < Duration::from_secs(20) {
            other.send(&HostMessage::Leaving(4));
        }
        assert!(other.is_send_closed && !other.is_full());
        assert_eq!(collect(&mut other, 2), [HostMessage::Finished]);
        assert!(other.is_closed());
    }

    #[test]
    fn bytes_that_are_no_message_close_the_connection() {
        for nonsense in [&[0xff; 64][..], &[3, 0, 0, 0, 9, 9, 9]] {
            let (mut one, other) = pair();
            let mut other = Connection::new(0, other).unwrap();
            one.write_all(nonsense).unwrap();
            assert_eq!(collect(&mut other, 1), []);
            assert!(other.is_closed(), "{nonsense:?}");
        }
    }
}
