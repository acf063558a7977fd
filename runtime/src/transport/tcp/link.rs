//! One link: what two interfaces send each other, over one TCP connection after another. Bytes in, bytes out; no socket, no
//! clock. `README.md` in this folder has the states and races.
//!
//! A frame is kept until the peer has acknowledged it, which the peer does when what it asks for is in effect. After a connection
//! broke, the ends tell each other how many frames they have received, and the rest is sent again. What had arrived before is
//! dropped by its number.

use std::collections::VecDeque;

use super::frame::{Body, Fields, HEAD, Head, NO_TOKEN, SEGMENT, WANT_ACK, kind};
use super::handshake::{Established, Position};
use super::outbox::Outbox;
use super::secret::{SessionKeys, TAG, same};
use crate::memory::copy::copy;
use crate::transport::iov::{Piece, Pieces};

/// The post number of what no flush waits for.
pub const NO_POST: u64 = u64::MAX;
/// Sealed bytes that wait for the socket, about. Chosen: four segments, so that a socket always finds more.
const OUT: usize = 4 * SEGMENT;

/// How much a link holds.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Frames that are not acknowledged.
    pub frames: usize,
    /// Bytes of them.
    pub bytes: usize,
    /// Operations that wait to become frames.
    pub depth: usize,
    /// Frames received before an acknowledgement is sent by itself.
    pub silent: u64,
}

/// The bytes that came are not those of the peer's link: end the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken(pub &'static str);

enum What {
    /// A body whose bytes are the link's own.
    Own {
        kind: u8,
        body: Fields,
        ticket: Option<u64>,
        refuses: Option<u64>,
    },
    /// Blocks of the user's memory.
    Put {
        key: u64,
        address: u64,
        pieces: Pieces,
        len: usize,
        sent: usize,
        ticket: u64,
    },
    Get {
        key: u64,
        address: u64,
        len: usize,
        asked: usize,
        token: u64,
    },
}

/// An operation that is not all in frames yet.
struct Item {
    what: What,
    post: u64,
}

/// A frame that is not acknowledged.
struct Sent {
    kind: u8,
    flags: u8,
    own: Fields,
    user: Vec<Piece>,
    user_len: usize,
    /// What to release with it.
    ticket: Option<u64>,
    post: u64,
    /// What it acknowledges.
    acknowledged: u64,
}

struct Connection {
    keys: SessionKeys,
    sent: u64,
    received: u64,
    out: Outbox,
    /// The start of a frame that has not come whole.
    partial: Vec<u8>,
}

/// One end of a link.
pub struct Link {
    limits: Limits,
    /// The last connection of which the peer knows, too.
    confirmed: u64,
    /// The last connection.
    epoch: u64,
    connection: Option<Connection>,
    queue: VecDeque<Item>,
    queued: usize,
    unacked: VecDeque<Sent>,
    in_flight: usize,
    /// Of the unacknowledged, those that were sealed for this connection.
    sealed: usize,
    /// Frames acknowledged by the peer.
    acked: u64,
    /// Frames received in order.
    received: u64,
    /// Of these, those that the peer was told of.
    told: u64,
    ack_now: bool,
    /// Frames framed when the peer was asked last to acknowledge at once.
    asked: u64,
    /// Numbers of received frames that were refused, and the refusal is not in a frame: they are not acknowledged before.
    refusals: VecDeque<u64>,
    released: Vec<u64>,
}

// SAFETY: pieces are addresses of the poster's memory, which stays readable until the ticket is released or `abandon`; only
// the holder of the link touches it.
unsafe impl Send for Link {}

impl Link {
    /// A link that was never connected.
    pub fn new(limits: Limits) -> Link {
        Link {
            limits,
            confirmed: 0,
            epoch: 0,
            connection: None,
            queue: VecDeque::new(),
            queued: 0,
            unacked: VecDeque::new(),
            in_flight: 0,
            sealed: 0,
            acked: 0,
            received: 0,
            told: 0,
            ack_now: false,
            asked: 0,
            refusals: VecDeque::new(),
            released: Vec::new(),
        }
    }

    /// Where it is, for a handshake.
    pub fn position(&self) -> Position {
        Position { epoch: self.confirmed, received: self.received }
    }

    /// The number of the last connection.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Goes on over a new connection. The peer's first frame confirms it.
    ///
    /// # Errors
    /// [`Broken`] if the peer has received frames that were never sent, or has forgotten some: it is another link.
    pub fn connect(&mut self, established: Established) -> Result<(), Broken> {
        let Established { epoch, received, keys } = established;
        if received > self.acked + self.unacked.len() as u64 {
            return Err(Broken("the peer has received what was not sent"));
        }
        // Fewer than are acknowledged: its handshake began before it read the last of them. It drops what comes twice.
        self.acknowledge_up_to(received);
        self.epoch = self.epoch.max(epoch);
        (self.sealed, self.told, self.asked) = (0, 0, 0);
        let (out, partial) = (Outbox::default(), Vec::new());
        self.connection = Some(Connection { keys, sent: 0, received: 0, out, partial });
        // Confirms the connection to the dialer, and what came before it broke.
        self.ack_now = true;
        Ok(())
    }

    /// The connection is gone.
    pub fn disconnect(&mut self) {
        self.connection = None;
        self.sealed = 0;
    }

    /// Whether it has a connection.
    #[inline]
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether operations wait to become frames.
    #[inline]
    pub fn has_unframed(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether an operation can be taken.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.queue.len() < self.limits.depth && self.queued < self.limits.bytes
    }

    /// Whether everything is acknowledged.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.queue.is_empty() && self.unacked.is_empty()
    }

    /// Whether all posts below `count` are acknowledged.
    pub fn is_settled_below(&self, count: u64) -> bool {
        let waits = self.queue.iter().any(|item| item.post < count);
        !waits && !self.unacked.iter().any(|sent| sent.post < count)
    }

    /// Takes a body. `ticket` is released when it is in effect; the peer is asked to say so at once.
    pub fn push(&mut self, body: &Body<'_>, ticket: Option<u64>, post: u64) {
        let (kind, mut fields, data) = body.encode();
        fields.extend_from_slice(data);
        self.push_fields(kind, fields, ticket, post);
    }

    /// As [`Link::push`], of a body that is encoded.
    pub fn push_fields(&mut self, kind: u8, body: Fields, ticket: Option<u64>, post: u64) {
        self.queued += body.len();
        self.queue.push_back(Item { what: What::Own { kind, body, ticket, refuses: None }, post });
    }

    /// Refuses the frame that was received last.
    pub fn refuse(&mut self, token: u64, code: i8) {
        let (kind, body, _) = Body::Refused { token, code }.encode();
        self.queued += body.len();
        self.refusals.push_back(self.received);
        let what = What::Own { kind, body, ticket: None, refuses: Some(self.received) };
        self.queue.push_back(Item { what, post: NO_POST });
    }

    /// Takes a put of blocks, `len` bytes in all.
    ///
    /// # Safety
    /// The blocks are readable and unchanged until `ticket` is released, or [`Link::abandon`] is called.
    pub unsafe fn push_put(&mut self, key: u64, address: u64, pieces: Pieces, len: usize, ticket: u64, post: u64) {
        self.queue.push_back(Item { what: What::Put { key, address, pieces, len, sent: 0, ticket }, post });
    }

    /// Takes a get of `len` bytes.
    pub fn push_get(&mut self, key: u64, address: u64, len: usize, token: u64, post: u64) {
        self.queue.push_back(Item { what: What::Get { key, address, len, asked: 0, token }, post });
    }

    /// Asks the peer to acknowledge at once, if something is not acknowledged.
    pub fn ask(&mut self) {
        let framed = self.acked + self.unacked.len() as u64;
        if self.queue.is_empty() && !self.unacked.is_empty() {
            if self.asked != framed && self.sealed == self.unacked.len() && self.is_connected() {
                self.asked = framed;
                self.seal_uncounted(kind::ACK, WANT_ACK);
            }
        } else if let Some(Item { what: What::Own { ticket, .. }, .. }) = self.queue.back_mut() {
            // A ticket that nobody has: with it goes the wish.
            ticket.get_or_insert(NO_TOKEN);
        }
    }

    /// Tells the peer that no connection follows.
    pub fn bid_farewell(&mut self) {
        self.seal_uncounted(kind::BYE, 0);
    }

    /// Tickets of what is in effect at the peer.
    pub fn take_released(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.released)
    }

    /// Whether [`Link::take_released`] has some.
    #[inline]
    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Touches no memory of the poster's after this. Puts with these tickets that are not in frames are forgotten.
    pub fn abandon(&mut self, tickets: &[u64]) {
        self.queue.retain(|item| !matches!(&item.what, What::Put { ticket, .. } if tickets.contains(ticket)));
        for sent in &mut self.unacked {
            let mut own = std::mem::take(&mut sent.own);
            for piece in sent.user.drain(..) {
                let at = own.len();
                own.resize(at + piece.len, 0);
                // SAFETY: the poster's memory, readable until this call returns.
                unsafe { copy(own[at..].as_mut_ptr(), piece.pointer, piece.len) };
            }
            (sent.own, sent.user_len) = (own, 0);
        }
        self.connection.iter_mut().for_each(|connection| connection.out.own_all());
    }

    /// Frames what there is room for, seals it for the connection, and adds an acknowledgement that is due.
    pub fn fill(&mut self) {
        while self.unacked.len() < self.limits.frames && self.in_flight < self.limits.bytes && self.frame_next() {}
        let Some(connection) = &mut self.connection else { return };
        while self.sealed < self.unacked.len() && connection.out.len() < OUT {
            let sent = &self.unacked[self.sealed];
            let number = self.acked + self.sealed as u64 + 1;
            connection.seal(sent, number);
            self.told = self.told.max(sent.acknowledged);
            self.sealed += 1;
        }
        let due = self.received_and_told() - self.told.min(self.received_and_told());
        if self.ack_now || due >= self.limits.silent {
            self.ack_now = false;
            self.seal_uncounted(kind::ACK, 0);
        }
    }

    /// Frames that may be acknowledged.
    fn received_and_told(&self) -> u64 {
        self.refusals.front().map_or(self.received, |refused| refused - 1)
    }

    fn seal_uncounted(&mut self, kind: u8, flags: u8) {
        let acknowledged = self.received_and_told();
        let Some(connection) = &mut self.connection else { return };
        let (own, user) = (Fields::new(), Vec::new());
        connection.seal(&Sent { kind, flags, own, user, user_len: 0, ticket: None, post: NO_POST, acknowledged }, 0);
        self.told = self.told.max(acknowledged);
    }

    /// Makes the next frame of the first operation that waits. Returns whether there was one.
    fn frame_next(&mut self) -> bool {
        let Some(item) = self.queue.front_mut() else { return false };
        let (mut flags, mut ticket, mut user, mut user_len) = (0, None, Vec::new(), 0);
        let (kind, own, is_last) = match &mut item.what {
            What::Own { kind, body, ticket: waits, refuses } => {
                ticket = *waits;
                if refuses.is_some() {
                    self.refusals.pop_front();
                }
                self.queued -= body.len();
                (*kind, std::mem::take(body), true)
            }
            What::Put { key, address, pieces, len, sent, ticket: waits } => {
                user_len = SEGMENT.min(*len - *sent);
                pieces.range(*sent, user_len, |piece, _| user.push(piece));
                let address = *address + *sent as u64;
                let body = Body::Put { key: *key, address, token: *waits, notice: None, bytes: &[] };
                *sent += user_len;
                let is_last = *sent == *len;
                ticket = is_last.then_some(*waits);
                let (kind, fields, _) = body.encode();
                (kind, fields, is_last)
            }
            What::Get { key, address, len, asked, token } => {
                let part = SEGMENT.min(*len - *asked);
                let (offset, at) = (*asked as u64, *address + *asked as u64);
                let body = Body::Get { key: *key, address: at, token: *token, offset, len: part as u32 };
                *asked += part;
                let (kind, fields, _) = body.encode();
                (kind, fields, *asked == *len)
            }
        };
        // The last frame that has room asks for more.
        let is_full =
            self.unacked.len() + 1 >= self.limits.frames || self.in_flight + own.len() + user_len >= self.limits.bytes;
        if ticket.is_some() || is_full {
            flags |= WANT_ACK;
        }
        let post = item.post;
        if is_last {
            self.queue.pop_front();
        }
        self.in_flight += own.len() + user_len;
        let acknowledged = self.received_and_told();
        self.unacked.push_back(Sent { kind, flags, own, user, user_len, ticket, post, acknowledged });
        true
    }

    /// The peer has received so many frames.
    fn acknowledge_up_to(&mut self, count: u64) {
        while self.acked < count {
            let Some(sent) = self.unacked.pop_front() else { return };
            self.acked += 1;
            self.sealed = self.sealed.saturating_sub(1);
            self.in_flight -= sent.own.len() + sent.user_len;
            self.released.extend(sent.ticket.filter(|ticket| *ticket != NO_TOKEN));
        }
    }

    /// The sealed bytes, for the socket.
    pub fn out(&self) -> Option<&Outbox> {
        self.connection.as_ref().map(|connection| &connection.out).filter(|out| out.len() > 0)
    }

    /// The socket has taken so many of them.
    pub fn sent(&mut self, count: usize) {
        self.connection.iter_mut().for_each(|connection| connection.out.consume(count));
    }

    /// What came before of a frame that was not whole. What comes now belongs behind it.
    pub fn partial(&self) -> &[u8] {
        self.connection.as_ref().map_or(&[], |connection| &connection.partial)
    }

    /// Keeps `rest`, which is no whole frame.
    pub fn keep(&mut self, rest: &[u8]) {
        let Some(connection) = &mut self.connection else { return };
        connection.partial.clear();
        connection.partial.extend_from_slice(rest);
    }

    /// Takes the next whole frame that is new from the start of `rest`. What it asks for is done before anything else is called
    /// here: later frames acknowledge it.
    ///
    /// # Errors
    /// [`Broken`] for bytes that the peer has not sent in this order over this connection.
    pub fn next<'a>(&mut self, rest: &mut &'a [u8]) -> Result<Option<Body<'a>>, Broken> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(None) };
            let Some(bytes) = rest.first_chunk::<HEAD>() else { return Ok(None) };
            let head = Head::decode(bytes).ok_or(Broken("bytes that are no frame"))?;
            let whole = HEAD + head.len as usize;
            let Some((frame, after)) = rest.split_at_checked(whole + TAG) else { return Ok(None) };
            let (frame, tag) = frame.split_at(whole);
            if !same(&connection.keys.receive.tag(frame), tag) || head.record != connection.received {
                return Err(Broken("a frame that the peer has not sent"));
            }
            connection.received += 1;
            self.confirmed = self.epoch;
            *rest = after;
            if head.acknowledged > self.acked + self.unacked.len() as u64 {
                return Err(Broken("an acknowledgement of what was not sent"));
            }
            self.acknowledge_up_to(head.acknowledged);
            self.ack_now |= head.flags & WANT_ACK != 0;
            let body = Body::decode(head.kind, &frame[HEAD..]).ok_or(Broken("a frame of no kind"))?;
            if !Body::is_counted(head.kind) {
                match body {
                    Body::Ack => continue,
                    _ => return Ok(Some(body)),
                }
            }
            if head.number <= self.received {
                // Sent again, since the acknowledgement was lost.
                self.ack_now = true;
                continue;
            }
            if head.number != self.received + 1 {
                return Err(Broken("a frame is missing"));
            }
            self.received += 1;
            return Ok(Some(body));
        }
    }
}

impl Connection {
    /// Seals a frame: from here on it is this connection's next.
    fn seal(&mut self, sent: &Sent, number: u64) {
        let Sent { kind, flags, acknowledged, .. } = *sent;
        let len = (sent.own.len() + sent.user_len) as u32;
        let head = Head { kind, flags, len, record: self.sent, number, acknowledged };
        self.sent += 1;
        self.out.frame(&self.keys.send, &head.encode(), &sent.own, &sent.user);
    }
}

#[cfg(test)]
mod tests;
