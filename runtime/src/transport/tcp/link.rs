//! One link: what two interfaces send each other, over one TCP connection after another. Bytes in, bytes out; no socket, no
//! clock. `README.md` in this folder has the states and races.
//!
//! A frame is kept until the peer has acknowledged it, which the peer does when what it asks for is in effect. After a connection
//! broke, the ends tell each other how many frames they have received, and the rest is sent again. Frames that had arrived before are
//! recognized by their number and dropped.

use std::collections::VecDeque;

use super::frame::{Body, Fields, HEAD, Head, NO_TOKEN, SEGMENT, WANT_ACK, kind, parts};
use super::handshake::{Established, Position};
use super::outbox::{self, ENTRIES_KEPT, Outbox, trim};
use super::secret::{SessionKeys, TAG, same};
use crate::memory::copy::copy;
use crate::transport::iov::{Piece, Pieces};

/// The post number of frames that no flush waits for.
pub const NO_POST: u64 = u64::MAX;
/// Sealed bytes that wait for the socket, about. Chosen: four segments, so that a socket always finds more.
const OUT: usize = 4 * SEGMENT;

/// Bytes for which a connection keeps room when no part of a frame waits, at most.
const PARTIAL_KEPT: usize = 4 << 10;

/// Most bytes on the heap of a link that has nothing to do, with the keys of its connection.
pub const IDLE: usize = ENTRIES_KEPT
    * (size_of::<Sent>() + 2 * size_of::<Item>() + size_of::<(u64, u32)>() + size_of::<(u64, u64)>())
    + outbox::IDLE
    + PARTIAL_KEPT
    + 2 * super::secret::FRAME_KEY;

/// How much a link holds.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Frames that are not acknowledged.
    pub frames: usize,
    /// Bytes of them.
    pub bytes: usize,
    /// Operations that wait to become frames.
    pub depth: usize,
    /// Frames received before an acknowledgement is sent by itself. A quarter of `bytes` has the same effect.
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
    /// The ticket to release with the frame.
    ticket: Option<u64>,
    post: u64,
    /// It refuses a received frame.
    refuses: bool,
    /// Where it ends among the bytes of the connection that it was sealed for last.
    end: u64,
}

struct Connection {
    keys: SessionKeys,
    sent: u64,
    received: u64,
    /// Bytes sealed.
    bytes: u64,
    out: Outbox,
    /// The start of a frame that has not come whole.
    partial: Vec<u8>,
}

/// One end of a link.
pub struct Link {
    limits: Limits,
    /// The last connection that both ends are known to have.
    confirmed: u64,
    /// The last connection.
    epoch: u64,
    connection: Option<Connection>,
    queue: VecDeque<Item>,
    queued: usize,
    /// Answers that wait to become frames. They take turns with the queue, so that a get that waits never holds up an answer.
    answers: VecDeque<Item>,
    is_answers_turn: bool,
    /// Framed gets that are not answered, with their lengths: tokens may repeat.
    gets: VecDeque<(u64, u32)>,
    /// Bytes of these gets. Bounded, since the peer has to keep as many bytes of answers.
    getting: usize,
    unacked: VecDeque<Sent>,
    in_flight: usize,
    /// Number of unacknowledged frames that were sealed for this connection.
    sealed: usize,
    /// Frames acknowledged by the peer.
    acked: u64,
    /// Frames received in order.
    received: u64,
    /// Number of these that were acknowledged to the peer.
    told: u64,
    /// Bytes of frames received since the peer was told last.
    untold: usize,
    ack_now: bool,
    /// No frame has been acknowledged since the last connect, so it is not known whether frames get through. Until then every new
    /// frame asks for an acknowledgement.
    is_unproven: bool,
    /// Frames framed when the peer was asked last to acknowledge at once.
    asked: u64,
    /// Numbers of received frames that were refused, with the numbers of the frames that refuse them, until the peer has received
    /// those. A refused frame is not acknowledged before its refusal is sealed for the connection.
    refusals: VecDeque<(u64, u64)>,
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
            answers: VecDeque::new(),
            is_answers_turn: false,
            gets: VecDeque::new(),
            getting: 0,
            unacked: VecDeque::new(),
            in_flight: 0,
            sealed: 0,
            acked: 0,
            received: 0,
            told: 0,
            untold: 0,
            ack_now: false,
            is_unproven: false,
            asked: 0,
            refusals: VecDeque::new(),
            released: Vec::new(),
        }
    }

    /// Where it is, for a handshake.
    pub fn position(&self) -> Position {
        let received = self.refusals.front().map_or(self.received, |(refused, _)| refused - 1);
        Position { epoch: self.confirmed, received }
    }

    /// The number of the last connection.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether a frame of the peer has come over the last connection.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed == self.epoch
    }

    /// Frames that the peer has acknowledged.
    #[inline]
    pub fn acknowledged(&self) -> u64 {
        self.acked
    }

    /// Grows with every new frame that arrives at either end.
    pub fn progress(&self) -> u64 {
        self.acked + self.received
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
        self.disconnect();
        // May be fewer than are acknowledged, if the peer's handshake began before it read the last frames. It drops frames that come twice.
        self.acknowledge_up_to(received);
        self.epoch = self.epoch.max(epoch);
        (self.sealed, self.told, self.asked) = (0, 0, 0);
        let (out, partial) = (Outbox::default(), Vec::new());
        self.connection = Some(Connection { keys, sent: 0, received: 0, bytes: 0, out, partial });
        // Confirms the connection to the dialer, and the frames that came before the break.
        self.ack_now = true;
        self.is_unproven = true;
        // Of the frames that are sent again, the acknowledgement of the first shows that frames get through, that of the last that all have.
        for end in [0, self.unacked.len().saturating_sub(1)] {
            if let Some(sent) = self.unacked.get_mut(end) {
                sent.flags |= WANT_ACK;
            }
        }
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
        !self.queue.is_empty() || !self.answers.is_empty()
    }

    /// Whether an operation can be taken.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.queue.len() < self.limits.depth && self.queued < self.limits.bytes
    }

    /// Whether everything is acknowledged.
    #[inline]
    pub fn is_settled(&self) -> bool {
        !self.has_unframed() && self.unacked.is_empty()
    }

    /// Whether all posts below `count` are acknowledged.
    pub fn is_settled_below(&self, count: u64) -> bool {
        let waits = self.queue.iter().any(|item| item.post < count);
        !waits && !self.unacked.iter().any(|sent| sent.post < count)
    }

    /// The first post that is not acknowledged; [`NO_POST`] if there is none.
    pub fn first_unsettled(&self) -> u64 {
        let posts = self.queue.iter().map(|item| item.post).chain(self.unacked.iter().map(|sent| sent.post));
        posts.min().unwrap_or(NO_POST)
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
        self.queue.push_back(Item { what: What::Own { kind, body, ticket }, post });
    }

    /// Takes the answer to a get or an atomic of the peer. The peer bounds how many it asks for.
    pub fn answer(&mut self, body: &Body<'_>) {
        let (kind, mut fields, data) = body.encode();
        fields.extend_from_slice(data);
        self.answers.push_back(Item { what: What::Own { kind, body: fields, ticket: None }, post: NO_POST });
    }

    /// An answer to a get has come: `len` bytes, or a refusal.
    pub fn answered(&mut self, token: u64, len: Option<usize>) {
        let fits = |get: &&(u64, u32)| get.0 == token && len.is_none_or(|len| len == get.1 as usize);
        let Some(at) = self.gets.iter().position(|get| fits(&get)) else { return };
        let (_, len) = self.gets.remove(at).expect("just found");
        self.getting -= len as usize;
        trim(&mut self.gets);
    }

    /// Refuses the frame that was received last.
    pub fn refuse(&mut self, token: u64, code: i8) {
        let (kind, own, _) = Body::Refused { token, code }.encode();
        self.in_flight += own.len();
        // Beyond the limits: if both windows are full, acknowledgements wait for refusals. The peer's window bounds how many there are.
        let (ticket, post) = (None, NO_POST);
        let sent =
            Sent { kind, flags: WANT_ACK, own, user: Vec::new(), user_len: 0, ticket, post, refuses: true, end: 0 };
        self.unacked.push_back(sent);
        self.refusals.push_back((self.received, self.acked + self.unacked.len() as u64));
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
            // A ticket that belongs to no operation: the frame that carries it asks for an acknowledgement.
            ticket.get_or_insert(NO_TOKEN);
        }
    }

    /// Tells the peer that no connection follows.
    pub fn bid_farewell(&mut self) {
        self.seal_uncounted(kind::BYE, 0);
    }

    /// Tickets of the operations that are in effect at the peer.
    pub fn take_released(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.released)
    }

    /// Touches no memory of the poster's after this. Puts with these tickets that are not in frames are forgotten.
    pub fn abandon(&mut self, tickets: &[u64]) {
        self.queue.retain(|item| !matches!(&item.what, What::Put { ticket, .. } if tickets.contains(ticket)));
        trim(&mut self.queue);
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
        while self.sealed < self.unacked.len() {
            let acknowledged = self.acknowledgeable();
            let Some(connection) = self.connection.as_mut().filter(|connection| connection.out.len() < OUT) else {
                break;
            };
            let sent = &mut self.unacked[self.sealed];
            connection.seal(sent, self.acked + self.sealed as u64 + 1, acknowledged);
            self.told = self.told.max(acknowledged);
            self.untold = 0;
            // From here on the operation that this frame refuses may be acknowledged.
            self.ack_now |= sent.refuses;
            self.sealed += 1;
        }
        let due = self.acknowledgeable().saturating_sub(self.told);
        // By a quarter of the window, so that the peer never waits at a window that is full.
        let is_due = due >= self.limits.silent || due > 0 && self.untold >= self.limits.bytes / 4;
        if self.is_connected() && (self.ack_now || is_due) {
            self.ack_now = false;
            self.seal_uncounted(kind::ACK, 0);
        }
    }

    /// Received frames that may be acknowledged over this connection.
    fn acknowledgeable(&self) -> u64 {
        let sealed = self.acked + self.sealed as u64;
        let waits = self.refusals.iter().find(|(_, frame)| *frame > sealed);
        waits.map_or(self.received, |(refused, _)| refused - 1)
    }

    fn seal_uncounted(&mut self, kind: u8, flags: u8) {
        let acknowledged = self.acknowledgeable();
        let Some(connection) = &mut self.connection else { return };
        let (own, user) = (Fields::new(), Vec::new());
        let (ticket, post, refuses, end) = (None, NO_POST, false, 0);
        let mut sent = Sent { kind, flags, own, user, user_len: 0, ticket, post, refuses, end };
        connection.seal(&mut sent, 0, acknowledged);
        self.told = self.told.max(acknowledged);
        self.untold = 0;
    }

    /// Makes the next frame of the first operation that waits. Returns whether there was one.
    fn frame_next(&mut self) -> bool {
        let has_window = self.gets.len() < self.limits.frames && self.getting < self.limits.bytes;
        let can_go = |item: &Item| has_window || !matches!(item.what, What::Get { .. });
        let is_answer = match (self.queue.front().is_some_and(can_go), self.answers.is_empty()) {
            (true, true) => false,
            (true, false) => self.is_answers_turn,
            (false, false) => true,
            (false, true) => return false,
        };
        self.is_answers_turn = !is_answer;
        let queue = if is_answer { &mut self.answers } else { &mut self.queue };
        let Some(item) = queue.front_mut() else { return false };
        let (mut flags, mut ticket, mut user, mut user_len) = (0, None, Vec::new(), 0);
        let (kind, own, is_last) = match &mut item.what {
            What::Own { kind, body, ticket: waits } => {
                ticket = *waits;
                self.queued -= if is_answer { 0 } else { body.len() };
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
                self.gets.push_back((*token, part as u32));
                self.getting += part;
                let (kind, fields, _) = body.encode();
                (kind, fields, *asked == *len)
            }
        };
        // The last frame that has room asks for more.
        let is_full =
            self.unacked.len() + 1 >= self.limits.frames || self.in_flight + own.len() + user_len >= self.limits.bytes;
        if ticket.is_some() || is_full || self.is_unproven {
            flags |= WANT_ACK;
        }
        let post = item.post;
        if is_last {
            queue.pop_front();
            trim(queue);
        }
        self.in_flight += own.len() + user_len;
        let (refuses, end) = (false, 0);
        self.unacked.push_back(Sent { kind, flags, own, user, user_len, ticket, post, refuses, end });
        true
    }

    /// The peer has received so many frames.
    fn acknowledge_up_to(&mut self, count: u64) {
        while self.acked < count {
            let Some(sent) = self.unacked.pop_front() else { return };
            if let Some(connection) = self.connection.as_mut().filter(|_| self.sealed > 0 && !sent.user.is_empty()) {
                // Sent again, and acknowledged for the first time: the rest must leave, and the user's memory is about to change.
                if sent.end > connection.bytes - connection.out.len() as u64 {
                    connection.out.own_all();
                }
            }
            self.acked += 1;
            self.refusals.pop_front_if(|(_, frame)| *frame <= self.acked);
            self.sealed = self.sealed.saturating_sub(1);
            self.in_flight -= sent.own.len() + sent.user_len;
            self.released.extend(sent.ticket.filter(|ticket| *ticket != NO_TOKEN));
        }
        trim(&mut self.unacked);
        trim(&mut self.refusals);
    }

    /// The sealed bytes, for the socket.
    pub fn out(&self) -> Option<&Outbox> {
        self.connection.as_ref().map(|connection| &connection.out).filter(|out| out.len() > 0)
    }

    /// The socket has taken so many of them.
    pub fn sent(&mut self, count: usize) {
        self.connection.iter_mut().for_each(|connection| connection.out.consume(count));
    }

    /// The first bytes of a frame that has not arrived whole. Bytes that arrive now belong behind these.
    pub fn partial(&self) -> &[u8] {
        self.connection.as_ref().map_or(&[], |connection| &connection.partial)
    }

    /// Keeps `rest`, which is no whole frame.
    pub fn keep(&mut self, rest: &[u8]) {
        let Some(connection) = &mut self.connection else { return };
        if rest.is_empty() && connection.partial.capacity() > PARTIAL_KEPT {
            connection.partial = Vec::new();
        }
        connection.partial.clear();
        connection.partial.extend_from_slice(rest);
    }

    /// Takes the next whole frame that is new from the start of `rest`. The caller does what the frame asks for before it calls any other
    /// function of this link, since later frames acknowledge the frame. An encrypted frame is decrypted in place.
    ///
    /// # Errors
    /// [`Broken`] for bytes that the peer has not sent in this order over this connection.
    pub fn next<'a>(&mut self, rest: &mut &'a mut [u8]) -> Result<Option<Body<'a>>, Broken> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(None) };
            let Some(bytes) = rest.first_chunk::<HEAD>() else { return Ok(None) };
            let head = Head::decode(bytes).ok_or(Broken("bytes that are no frame"))?;
            let whole = HEAD + head.len as usize;
            if rest.len() < whole + TAG {
                return Ok(None);
            }
            let (frame, after) = std::mem::take(rest).split_at_mut(whole);
            let (tag, after) = after.split_first_chunk_mut::<TAG>().expect("just asked for");
            let (key, record) = (&connection.keys.receive, connection.received);
            let is_whole = if connection.keys.encrypts {
                let (head, body) = frame.split_at_mut(HEAD);
                key.open(record, head, body, tag)
            } else {
                let (first, data) = parts(head.kind, frame);
                same(&key.tag(record, first, data), tag)
            };
            let frame: &'a [u8] = frame;
            if !is_whole || head.record != record {
                return Err(Broken("a frame that the peer has not sent"));
            }
            connection.received += 1;
            self.confirmed = self.epoch;
            *rest = after;
            if head.acknowledged > self.acked + self.unacked.len() as u64 {
                return Err(Broken("an acknowledgement of what was not sent"));
            }
            self.is_unproven &= head.acknowledged <= self.acked;
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
            self.untold += head.len as usize;
            return Ok(Some(body));
        }
    }
}

impl Connection {
    /// Seals a frame: from here on it is this connection's next.
    fn seal(&mut self, sent: &mut Sent, number: u64, acknowledged: u64) {
        let Sent { kind, flags, .. } = *sent;
        let len = (sent.own.len() + sent.user_len) as u32;
        let head = Head { kind, flags, len, record: self.sent, number, acknowledged };
        let before = self.out.len();
        self.out.frame(&self.keys, self.sent, &head.encode(), &sent.own, &sent.user);
        self.sent += 1;
        self.bytes += (self.out.len() - before) as u64;
        sent.end = self.bytes;
    }
}

#[cfg(test)]
mod tests;
