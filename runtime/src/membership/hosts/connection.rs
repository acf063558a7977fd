//! A TCP connection between two leaders. It carries frames:
//!
//! ```text
//! | body's length 4 | tag 16 | body: a message, encrypted | tag 16 |
//! ```
//!
//! Bodies are encrypted whatever `BELLWETHER_ENCRYPT` says: leaders do not know each other's setting yet, and those that differ must be
//! able to tell so. Tags are made with a key that nobody outside the job has, and count the frame's number in its direction. A frame
//! that was changed, left out, repeated or sent back does not fit, and ends the connection. The first tag is that of the length alone,
//! so that no end waits for bytes that the other never sends; the second is that of length and body. No two tags of a connection and
//! direction have the same record number: see [`crate::secret`].

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::sockopt;

use super::HostMessage;
use crate::error::{Error, Result};
use crate::secret::{SessionKeys, TAG, same};

/// Most bytes of a message. The largest have the handlers of one rank, or the waits of all ranks of a host.
const LONGEST: usize = 2 << 20;
/// Bytes of a length, and those before a message.
const LENGTH: usize = 4;
const HEAD: usize = LENGTH + TAG;
/// Bytes of the hub's first frame to a leader that it lets in. It has no body.
pub(super) const WELCOME: usize = HEAD + TAG;
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
    keys: SessionKeys,
    /// Frames that were sent, and that were received.
    sent: u64,
    received: u64,
    incoming: Vec<u8>,
    outgoing: VecDeque<u8>,
    is_closed: bool,
    /// Sends fail. Messages that the other end sent before that may still wait here.
    is_send_closed: bool,
}

impl Connection {
    /// A connection to `host`, whose leader has proved that it knows the job's secret.
    pub(super) fn new(host: usize, stream: TcpStream, keys: SessionKeys) -> Result<Connection> {
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
            keys,
            sent: 0,
            received: 0,
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

    /// Whether the other end is gone and has sent nothing that is still to be received.
    pub(super) fn has_ended(&self) -> bool {
        has_ended(&self.stream)
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
        self.send_frame(&bytes);
    }

    /// Sends the frame by which the hub lets a leader in.
    pub(super) fn welcome(&mut self) {
        self.send_frame(&[]);
    }

    /// Takes that frame. Returns whether it is the hub's.
    pub(super) fn take_welcome(&mut self, frame: &[u8; WELCOME]) -> bool {
        self.received += 1;
        let (head, tag) = frame.split_last_chunk::<TAG>().expect("a frame has two tags");
        let (length, head) = head.split_first_chunk::<LENGTH>().expect("a head begins with the length");
        let is_head = same(head, &self.keys.receive.tag(length_record(0), length, &[]));
        *length == [0; LENGTH] && is_head && self.keys.receive.open(body_record(0), length, &mut [], tag)
    }

    fn send_frame(&mut self, body: &[u8]) {
        let length = (body.len() as u32).to_le_bytes();
        let key = &self.keys.send;
        let mut frame = [&length[..], &key.tag(length_record(self.sent), &length, &[]), body].concat();
        let tag = key.seal(body_record(self.sent), &length, &mut frame[HEAD..]);
        frame.extend(tag);
        self.sent += 1;
        self.outgoing.extend(frame);
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
        let (mut buffer, mut messages) = ([0; 16 << 10], Vec::new());
        while !self.is_closed {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_closed = true,
                Ok(len) => {
                    self.incoming.extend_from_slice(&buffer[..len]);
                    self.take_frames(&mut messages);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_closed = true,
            }
        }
        messages
    }

    /// Takes the frames that have come whole.
    fn take_frames(&mut self, messages: &mut Vec<HostMessage>) {
        let mut used = 0;
        loop {
            match self.next_frame(used) {
                Ok(Some((message, len))) => {
                    messages.push(message);
                    used += len;
                }
                Ok(None) => break,
                Err(why) => {
                    tracing::warn!(host = self.host, why, "the connection to another host's leader is ended");
                    self.is_closed = true;
                    break;
                }
            }
        }
        self.incoming.drain(..used);
    }

    /// Opens the frame that begins at `from`, if it has come whole. Returns its message and its length.
    fn next_frame(&mut self, from: usize) -> Result<Option<(HostMessage, usize)>, &'static str> {
        const WRONG: &str = "a frame that is not from the other host's leader";
        let Some((head, after)) = self.incoming[from..].split_at_mut_checked(HEAD) else { return Ok(None) };
        let (length, tag) = head.split_first_chunk::<LENGTH>().expect("a head begins with the length");
        let (key, size) = (&self.keys.receive, u32::from_le_bytes(*length) as usize);
        if size > LONGEST || !same(tag, &key.tag(length_record(self.received), length, &[])) {
            return Err(WRONG);
        }
        let Some((body, behind)) = after.split_at_mut_checked(size) else { return Ok(None) };
        let Some(tag) = behind.first_chunk::<TAG>() else { return Ok(None) };
        if !key.open(body_record(self.received), length, body, tag) {
            return Err(WRONG);
        }
        self.received += 1;
        let message = postcard::from_bytes(body).map_err(|_| "an invalid message")?;
        Ok(Some((message, HEAD + size + TAG)))
    }
}

/// The record numbers of the two tags in the frame with this number. Each has one of its own.
fn length_record(number: u64) -> u64 {
    2 * number
}

fn body_record(number: u64) -> u64 {
    2 * number + 1
}

/// Whether the other end of a socket that does not block has closed it, and nothing from before is left to be read.
pub(super) fn has_ended(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(len) => len == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::secret::{End, JobKey, KEY};

    /// Two ends of one connection.
    pub fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// Two leaders that have met.
    fn leaders() -> (Connection, Connection) {
        let ((one, other), key) = (pair(), JobKey::new([7; KEY]));
        (
            Connection::new(1, one, key.session(End::Dialer, b"one")).unwrap(),
            Connection::new(0, other, key.session(End::Acceptor, b"one")).unwrap(),
        )
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
        let (mut one, mut other) = leaders();
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
        let (mut one, mut other) = leaders();
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
            let (mut one, mut other) = leaders();
            one.stream.write_all(nonsense).unwrap();
            one.stream.write_all(&[0; TAG]).unwrap();
            assert_eq!(collect(&mut other, 1), []);
            assert!(other.is_closed(), "{nonsense:?}");
        }
        // Also from a leader.
        let (mut one, mut other) = leaders();
        one.send_frame(&[99; 3]);
        assert_eq!(collect(&mut other, 1), []);
        assert!(other.is_closed());
    }

    #[test]
    fn a_frame_that_is_not_the_next_of_the_other_leader_closes_the_connection() {
        let (mut one, wire) = pair();
        let keys = || JobKey::new([7; KEY]).session(End::Dialer, b"one");
        let mut line = Connection::new(1, wire, keys()).unwrap();
        let words =
            [HostMessage::Leaving(1), HostMessage::Leaving(2), HostMessage::Gone(1, crate::Loss::Left, 3, Some(4))];
        let mut frames = words.iter().map(|word| {
            line.send(word);
            let mut frame = vec![0; HEAD + postcard::to_stdvec(word).unwrap().len() + TAG];
            one.read_exact(&mut frame).unwrap();
            frame
        });
        let [first, second, third] = [(); 3].map(|()| frames.next().unwrap());
        let good = [&first[..], &second, &third];
        let changed: Vec<Vec<u8>> = (0..second.len())
            .map(|at| {
                let mut bytes = second.clone();
                bytes[at] ^= 1;
                bytes
            })
            .collect();
        let wrong = changed.iter().map(|changed| [&first[..], changed, &third]).chain([
            [&first[..], &first, &second],
            [&first[..], &third, &second],
            [&first[..], &[0; WELCOME], &second],
        ]);
        for (frames, is_good) in std::iter::once((good, true)).chain(wrong.map(|frames| (frames, false))) {
            let (_, mut other) = leaders();
            let (mut sender, stream) = pair();
            other.stream = stream;
            other.stream.set_nonblocking(true).unwrap();
            sender.write_all(&frames.concat()).unwrap();
            // A frame that is wrong ends the connection before its sender does.
            let _sender = (!is_good).then_some(sender);
            let came = collect(&mut other, 4);
            assert!(other.is_closed());
            assert_eq!(came, words[..if is_good { 3 } else { 1 }], "{frames:?}");
        }
        // An end does not accept its own messages.
        let (mut sender, stream) = pair();
        let mut own = Connection::new(1, stream, keys()).unwrap();
        sender.write_all(&first).unwrap();
        assert_eq!(collect(&mut own, 1), []);
        assert!(own.is_closed());
    }

    #[test]
    fn messages_between_leaders_cannot_be_read_on_the_wire() {
        let (mut wire, stream) = pair();
        let mut one = Connection::new(1, stream, JobKey::new([7; KEY]).session(End::Dialer, b"one")).unwrap();
        let secret = *b"what only the two leaders may know";
        let message = HostMessage::Handlers(3, secret.to_vec());
        assert!(postcard::to_stdvec(&message).unwrap().windows(secret.len()).any(|some| some == secret));
        one.send(&message);
        one.send(&message);
        drop(one);
        let mut sent = Vec::new();
        wire.read_to_end(&mut sent).unwrap();
        let (first, second) = sent.split_at(sent.len() / 2);
        assert!(sent.windows(4).all(|some| !secret.windows(4).any(|of| of == some)));
        assert_eq!(first[..LENGTH], second[..LENGTH]);
        assert_ne!(first[HEAD..], second[HEAD..], "the same message is never the same bytes");
    }

    #[test]
    fn only_the_hub_lets_in() {
        let (mut one, mut other) = leaders();
        other.welcome();
        let mut frame = [0; WELCOME];
        one.stream.set_nonblocking(false).unwrap();
        one.stream.read_exact(&mut frame).unwrap();
        one.stream.set_nonblocking(true).unwrap();
        let mut changed = frame;
        changed[HEAD] ^= 1;
        assert!(!leaders().0.take_welcome(&changed) && !leaders().0.take_welcome(&[0; WELCOME]));
        assert!(one.take_welcome(&frame));
        other.send(&HostMessage::Finished);
        assert_eq!(collect(&mut one, 1), [HostMessage::Finished], "it counts as a frame");
    }
}
