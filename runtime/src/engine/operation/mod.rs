//! Operations: puts, gets, atomics and messages, from the call to their end. The rank's own stream ([`Engine`](super::Engine)) and
//! its contexts carry the same type.

mod atomic;
mod event;
mod get;
mod transfer;

use std::sync::Arc;

pub(crate) use self::atomic::Atomic;
pub(super) use self::event::{Due, Tracked, drop_all, give_up, happened};
pub(crate) use self::event::{Event, Events, Found, Group, Member, RECEIPT, Receipts, Ring, Step, refuse};
pub(crate) use self::get::{Get, HeapRange};
pub(crate) use self::transfer::{Filled, Transfer};

use super::claim::Claim;
use super::remote_access::{Answer, RemoteAccess};
use crate::error::Result;
use crate::transport::Sent;
use crate::transport::{self, AtomicOp, Width};

/// The stream that an operation goes through: a rank's own one, or a context.
pub(crate) trait Issuer {
    /// Most bytes of one request of a get, from whichever rank.
    fn largest_get(&self) -> usize;
    /// The slot of `rank`, if it is mapped here.
    fn mapped(&self, rank: usize) -> Option<*mut u8>;
    /// # Errors
    /// [`crate::Error::PhaseOver`] if the memory is in another phase than when it was claimed.
    fn check_claim(&self, claim: Option<Claim>, doing: &'static str, rank: usize) -> Result<()>;
    /// One attempt to post an operation that gives an answer, after all earlier puts there. `None` is backpressure.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    fn request(&mut self, doing: &'static str, rank: usize, post: Post<'_>) -> Result<Option<Arc<Answer>>>;
    /// Whether an answer of `rank` has come.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`], if it never will.
    fn is_answered(&mut self, doing: &'static str, rank: usize, answer: &Answer) -> Result<bool>;
    /// Whether a message to `rank` may wait in a queue of this stream.
    fn keeps(&self, rank: usize) -> bool;
    /// Whether messages to `rank` go through mapped memory.
    fn has_lane(&self, rank: usize) -> bool;
}

/// Posts an operation that gives an answer.
pub(crate) type Post<'a> = &'a dyn Fn(&dyn RemoteAccess) -> transport::Result<Option<Arc<Answer>>>;

/// A change of one word, to be done at its home.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub(crate) op: AtomicOp,
    pub(crate) width: Width,
    pub(crate) value: u64,
    /// The value that the word must have, for compare-and-swap.
    pub(crate) compare: u64,
}

/// An operation on another rank, not all of which is in flight. `B` holds the bytes: a slice as long as the call lasts, a box in the
/// queue of an operation that met backpressure.
#[derive(Debug)]
pub(crate) enum Operation<B> {
    /// An active message. `ordered`: delivered after every message sent there before. Lanes always keep this order.
    Message { id: u8, ordered: bool, header: u64, payload: B },
    /// Writes `bytes` to the target's slot; the first `done` are in flight. `after`: they take effect
    /// after everything put there before. `tell`: the target may wait for them, so it is woken if
    /// it sleeps.
    Put { offset: usize, bytes: B, done: usize, after: bool, tell: bool },
    /// Adds one to a word of the target's slot, by the network.
    Ring { offset: usize },
    /// Adds one to a word of a mapped slot on the same node, by the processor.
    MappedRing { offset: usize },
    /// An atomic on a word of the target's slot, whose result is not fetched.
    Change { offset: usize, change: Change },
}

impl<B: AsRef<[u8]>> Operation<B> {
    /// A copy that owns its bytes.
    pub(super) fn keep(&self) -> Operation<Box<[u8]>> {
        match *self {
            Operation::Message { id, ordered, header, ref payload } => {
                Operation::Message { id, ordered, header, payload: payload.as_ref().into() }
            }
            Operation::Put { offset, ref bytes, done, after, tell } => {
                Operation::Put { offset: offset + done, bytes: bytes.as_ref()[done..].into(), done: 0, after, tell }
            }
            Operation::Ring { offset } => Operation::Ring { offset },
            Operation::MappedRing { offset } => Operation::MappedRing { offset },
            Operation::Change { offset, change } => Operation::Change { offset, change },
        }
    }

    /// For errors: what this rank is doing.
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Operation::Message { .. } => "sending a message",
            Operation::Put { .. } => "put",
            Operation::Ring { .. } | Operation::MappedRing { .. } => "ringing a bell",
            Operation::Change { .. } => "an atomic",
        }
    }

    /// Approximate bytes of memory that this operation takes in a queue. The posted part of a put counts until the whole put is posted.
    pub(super) fn len(&self) -> usize {
        8 + match self {
            Operation::Message { payload, .. } => payload.as_ref().len(),
            Operation::Put { bytes, .. } => bytes.as_ref().len(),
            Operation::Ring { .. } | Operation::MappedRing { .. } => 0,
            Operation::Change { .. } => size_of::<Change>(),
        }
    }
}

impl<B: AsRef<[u8]>> Operation<B> {
    /// Posts as much of it as there is room for.
    ///
    /// # Errors
    /// Those of the network.
    pub(super) fn post(&mut self, network: &dyn RemoteAccess, to: usize) -> transport::Result<Sent> {
        match self {
            Operation::Message { id, ordered, header, payload } => {
                network.send(to, *id, *ordered, *header, payload.as_ref())
            }
            Operation::Put { offset, bytes, done, after, .. } => {
                let bytes = bytes.as_ref();
                while *done < bytes.len() {
                    let end = bytes.len().min(*done + network.largest_put());
                    let (at, bytes) = (*offset + *done, &bytes[*done..end]);
                    let posted = if *after { network.put_after(to, at, bytes) } else { network.put(to, at, bytes) };
                    match posted? {
                        0 => return Ok(Sent::NoRoom),
                        posted => *done += posted,
                    }
                }
                Ok(Sent::Done)
            }
            Operation::Ring { offset } => network.ring(to, *offset),
            Operation::MappedRing { .. } => unreachable!("only for ranks whose memory is mapped"),
            Operation::Change { offset, change } => {
                let answer = network.atomic(to, *offset, *change)?;
                Ok(if answer.is_some() { Sent::Done } else { Sent::NoRoom })
            }
        }
    }
}

impl<B> Operation<B> {
    /// Whether it writes to the target's memory.
    pub(super) fn writes(&self) -> bool {
        !matches!(self, Operation::Message { .. })
    }

    /// Whether it is a message whose id is set in `kinds`, one bit for each id below 64.
    pub(super) fn is_one_of(&self, kinds: u64) -> bool {
        matches!(self, Operation::Message { id, .. } if *id < 64 && kinds >> id & 1 != 0)
    }
}
