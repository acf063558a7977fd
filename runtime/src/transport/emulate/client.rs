//! The requester's side: operations become requests, answers become completions.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use super::codec::{REPLY_HEADER, REQUEST_HEADER, Reply, ReplyKind, RequestHead, RequestKind};
use crate::memory::copy::copy;
use crate::transport::GetSink;
use crate::transport::atomic::Atomic;
use crate::transport::completion::Completion;
use crate::transport::error::{Error, Result};
use crate::transport::iov::Pieces;

/// Where a put's bytes come from.
#[derive(Debug)]
pub enum Source {
    /// Bytes that the operation owns.
    Own(Vec<u8>),
    /// The user's memory.
    User(Pieces),
}

/// A callback that takes the bytes of a get.
pub type Unpack = Box<dyn FnOnce(&[u8])>;

/// Where an answer goes.
pub enum Sink {
    /// The user's memory.
    User(Pieces),
    /// A buffer, and then this callback.
    Unpack(Vec<u8>, Unpack),
    /// This takes each part as it comes.
    Taker(Arc<dyn GetSink>),
}

/// An operation on memory of a peer.
pub enum Operation {
    /// Write.
    Put(Source),
    /// Read.
    Get(Sink),
    /// Atomic; the old value goes to this address, unless it is null, as the atomic's width says.
    Atomic(Atomic, *mut u8),
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Put(_) => "put",
            Operation::Get(_) => "get",
            Operation::Atomic(..) => "atomic",
        })
    }
}

/// Something for the user that came of an answer. Run it when the client is not borrowed.
pub enum Event {
    /// Count this completion down.
    Complete(Completion, Result<()>),
    /// Hand over the bytes that were read.
    Unpack(Unpack, Vec<u8>),
    /// An operation that no caller waits for any more has failed.
    Failed {
        /// Its endpoint.
        endpoint: u32,
        /// Why.
        error: Error,
    },
}

#[derive(Debug)]
struct Op {
    endpoint: u32,
    peer: u32,
    operation: Operation,
    key: u64,
    remote: u64,
    len: usize,
    /// Bytes for which requests went out; atomics count as one byte.
    sent: usize,
    /// Requests without answer.
    unanswered: u32,
    fenced: bool,
    error: Option<Error>,
    completion: Option<Completion>,
    /// The user was told that the buffer is free, or was never owed an answer.
    released: bool,
}

impl Op {
    fn all_sent(&self) -> bool {
        self.sent >= self.len
    }
}

/// Operations in flight at one interface.
#[derive(Debug)]
pub struct Client {
    ops: BTreeMap<u64, Op>,
    /// Operations with requests still to send, oldest first.
    unsent: VecDeque<u64>,
    per_endpoint: HashMap<u32, usize>,
    next: u64,
    max_message: usize,
    window: usize,
    strays: u64,
}

impl Client {
    /// A client whose requests and replies have at most `max_message` bytes, with at most `window` operations under
    /// way for each endpoint.
    pub fn new(max_message: usize, window: usize) -> Client {
        assert!(max_message > REQUEST_HEADER, "a request must carry at least a byte");
        Client {
            ops: BTreeMap::new(),
            unsent: VecDeque::new(),
            per_endpoint: HashMap::new(),
            next: 0,
            max_message,
            window,
            strays: 0,
        }
    }

    /// Whether another operation may start on `endpoint`.
    pub fn has_room(&self, endpoint: u32) -> bool {
        self.outstanding(endpoint) < self.window
    }

    /// Operations of `endpoint` without answer.
    pub fn outstanding(&self, endpoint: u32) -> usize {
        self.per_endpoint.get(&endpoint).copied().unwrap_or(0)
    }

    /// The number that the next operation gets.
    pub fn next_token(&self) -> u64 {
        self.next
    }

    /// A fence of `endpoint` has to wait for operations with numbers below the result. 0: for none.
    pub fn fence(&self, endpoint: u32) -> u64 {
        if self.outstanding(endpoint) > 0 { self.next } else { 0 }
    }

    /// Whether an operation of `endpoint` with a number below `before` is in flight: unanswered, or, if not `remote`,
    /// still using the user's memory.
    pub fn busy(&self, endpoint: u32, before: u64, remote: bool) -> bool {
        self.outstanding(endpoint) > 0
            && self.ops.range(..before).any(|(_, op)| op.endpoint == endpoint && (remote || !op.released))
    }

    /// Whether requests of an operation are still to be sent.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether any operation still uses the user's memory.
    pub fn uses_memory(&self) -> bool {
        self.ops.values().any(|op| !op.released)
    }

    /// Starts an operation of `len` bytes (1 for an atomic). `fenced`: its requests wait for a fence on the wire.
    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    pub fn start(
        &mut self,
        endpoint: u32,
        peer: u32,
        operation: Operation,
        key: u64,
        remote: u64,
        len: usize,
        fenced: bool,
    ) -> u64 {
        let token = self.next;
        self.next += 1;
        let released = match &operation {
            Operation::Put(Source::Own(_)) => true,
            Operation::Atomic(_, result) => result.is_null(),
            _ => false,
        };
        let (unanswered, error, completion) = (0, None, None);
        let op = Op {
            endpoint,
            peer,
            operation,
            key,
            remote,
            len,
            sent: 0,
            unanswered,
            fenced,
            error,
            completion,
            released,
        };
        self.ops.insert(token, op);
        self.unsent.push_back(token);
        *self.per_endpoint.entry(endpoint).or_default() += 1;
        token
    }

    /// Whether the operation still uses the user's memory; if so, `completion` is counted down when it does not.
    pub fn await_release(&mut self, token: u64, completion: Option<&Completion>) -> bool {
        match self.ops.get_mut(&token) {
            Some(op) if !op.released => {
                op.completion = completion.cloned();
                true
            }
            _ => false,
        }
    }

    /// Sends requests as far as possible: `send` gets the peer, whether a fence comes first, the length, and a function that writes the
    /// bytes. Returns how many requests were sent.
    pub fn poll(
        &mut self,
        mut send: impl FnMut(u32, bool, usize, &mut dyn FnMut(&mut [u8])) -> bool,
        events: &mut Vec<Event>,
    ) -> usize {
        if self.unsent.is_empty() {
            return 0;
        }
        let (mut went, mut blocked) = (0, Vec::new());
        let ops = &mut self.ops;
        let mut sent_off = Vec::new();
        let max_message = self.max_message;
        self.unsent.retain(|token| {
            let Some(op) = ops.get_mut(token) else { return false };
            if blocked.contains(&op.peer) {
                return true;
            }
            while !op.all_sent() {
                if !send_next(op, *token, max_message, &mut send) {
                    blocked.push(op.peer);
                    return true;
                }
                went += 1;
            }
            sent_off.push(*token);
            false
        });
        for token in sent_off {
            let Some(op) = self.ops.get_mut(&token) else { continue };
            if matches!(op.operation, Operation::Put(_)) && !op.released {
                op.released = true;
                let outcome = op.error.map_or(Ok(()), Err);
                events.extend(op.completion.take().map(|completion| Event::Complete(completion, outcome)));
            }
        }
        went
    }

    /// Takes an answer from `peer`. Answers to nothing are counted and dropped.
    pub fn answer(&mut self, peer: u32, bytes: &[u8], events: &mut Vec<Event>) {
        let Some((reply, payload)) = Reply::decode(bytes) else {
            self.strays += 1;
            return;
        };
        let Some(op) = self.ops.get_mut(&reply.token).filter(|op| op.peer == peer && op.unanswered > 0) else {
            // Also the late answer to an operation that was cancelled.
            self.strays += 1;
            return;
        };
        op.unanswered -= 1;
        if let Err(error) = take(op, &reply, payload) {
            op.error.get_or_insert(error);
        }
        if op.unanswered == 0 && op.all_sent() {
            self.finish(reply.token, events);
        }
    }

    fn finish(&mut self, token: u64, events: &mut Vec<Event>) {
        let Some(op) = self.remove(token) else { return };
        let outcome = op.error.map_or(Ok(()), Err);
        if let (Operation::Get(Sink::Unpack(buffer, unpack)), Ok(())) = (op.operation, outcome) {
            events.push(Event::Unpack(unpack, buffer));
        }
        match (op.completion, outcome) {
            (Some(completion), outcome) => events.push(Event::Complete(completion, outcome)),
            (None, Err(error)) => events.push(Event::Failed { endpoint: op.endpoint, error }),
            (None, Ok(())) => {}
        }
    }

    fn remove(&mut self, token: u64) -> Option<Op> {
        let op = self.ops.remove(&token)?;
        if let Some(count) = self.per_endpoint.get_mut(&op.endpoint) {
            *count -= 1;
            if *count == 0 {
                self.per_endpoint.remove(&op.endpoint);
            }
        }
        Some(op)
    }

    /// Ends every operation of `endpoint` with `error`. Answers that still come are dropped.
    pub fn fail(&mut self, endpoint: u32, error: Error, events: &mut Vec<Event>) {
        for op in self.take_all(endpoint) {
            events.extend(op.completion.map(|completion| Event::Complete(completion, Err(error))));
        }
    }

    /// Forgets every operation of an endpoint that is being destroyed, without a call to its completions.
    pub fn forget(&mut self, endpoint: u32) {
        self.take_all(endpoint);
    }

    fn take_all(&mut self, endpoint: u32) -> Vec<Op> {
        if self.outstanding(endpoint) == 0 {
            return Vec::new();
        }
        let tokens: Vec<u64> =
            self.ops.iter().filter(|(_, op)| op.endpoint == endpoint).map(|(token, _)| *token).collect();
        self.unsent.retain(|token| !tokens.contains(token));
        tokens.into_iter().filter_map(|token| self.remove(token)).collect()
    }
}

/// Sends the next request of `op`; false if there was no room.
fn send_next(
    op: &mut Op,
    token: u64,
    max_message: usize,
    send: &mut impl FnMut(u32, bool, usize, &mut dyn FnMut(&mut [u8])) -> bool,
) -> bool {
    let left = op.len - op.sent;
    let (kind, step, carried) = match &op.operation {
        Operation::Put(_) => {
            let step = left.min(max_message - REQUEST_HEADER);
            (RequestKind::Put, step, step)
        }
        Operation::Get(_) => {
            let step = left.min(max_message - REPLY_HEADER);
            (RequestKind::Get { len: step as u64, offset: op.sent as u64 }, step, 0)
        }
        Operation::Atomic(atomic, _) => (RequestKind::Atomic(*atomic), left, 0),
    };
    let address = op.remote.wrapping_add(if matches!(kind, RequestKind::Atomic(_)) { 0 } else { op.sent as u64 });
    let head = RequestHead { kind, token, key: op.key, address }.encode();
    let mut fill = |buffer: &mut [u8]| {
        buffer[..REQUEST_HEADER].copy_from_slice(&head);
        let body = &mut buffer[REQUEST_HEADER..];
        match &op.operation {
            Operation::Put(Source::Own(bytes)) => body.copy_from_slice(&bytes[op.sent..op.sent + step]),
            Operation::Put(Source::User(pieces)) => pieces.range(op.sent, step, |piece, at| {
                let to = &mut body[at..at + piece.len];
                // SAFETY: the user's memory, readable until the operation releases it.
                unsafe { copy(to.as_mut_ptr(), piece.pointer, piece.len) };
            }),
            _ => {}
        }
    };
    let went = send(op.peer, op.fenced, REQUEST_HEADER + carried, &mut fill);
    if went {
        op.fenced = false;
        op.sent += step;
        op.unanswered += 1;
    }
    went
}

/// Puts an answer where it belongs.
fn take(op: &mut Op, reply: &Reply, payload: &[u8]) -> Result<()> {
    const WRONG: Error = Error::Io("an answer that does not fit its request");
    match (&mut op.operation, reply.kind) {
        (_, ReplyKind::Failed(code)) => Err(Error::from_code(code)),
        (Operation::Put(_), ReplyKind::Done) => Ok(()),
        (Operation::Get(sink), ReplyKind::Data { offset }) => {
            let offset = usize::try_from(offset).map_err(|_| WRONG)?;
            if offset.checked_add(payload.len()).is_none_or(|end| end > op.sent) {
                return Err(WRONG);
            }
            match sink {
                Sink::Unpack(buffer, _) => buffer[offset..offset + payload.len()].copy_from_slice(payload),
                Sink::Taker(sink) => sink.take(offset, payload),
                Sink::User(pieces) => pieces.range(offset, payload.len(), |piece, at| {
                    // SAFETY: the user's memory, ours to write until the operation completes.
                    unsafe { copy(piece.pointer, payload[at..].as_ptr(), piece.len) };
                }),
            }
            Ok(())
        }
        (Operation::Atomic(atomic, result), ReplyKind::Value(value)) => {
            if !result.is_null() {
                // SAFETY: the user's variable of this width, valid until the operation completes.
                unsafe { copy(*result, value.to_le_bytes().as_ptr(), atomic.width as usize) };
            }
            Ok(())
        }
        _ => Err(WRONG),
    }
}
