//! What the wire keeps of a peer: the requests under way on its queue pair, and its flows of messages.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use super::queue::Pair;
use super::records::Records;
use super::ring::Remote;
use super::wire::ToSay;
use crate::transport::error::Error;
use crate::transport::stream::{FlowLimits, Inflow, Outflow};
use crate::transport::wire::Channel;

/// A table by numbers that are nobody's to choose: peers, queue pairs.
pub type Numbered<T> = std::collections::HashMap<u32, T, std::hash::BuildHasherDefault<Spread>>;

/// Spreads a number over the table: Knuth's multiplicative hashing, with the golden ratio of 2^64.
#[derive(Debug, Default)]
pub struct Spread(u64);

impl std::hash::Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Notices of a peer that may wait to be taken. Each holds a receive buffer, which all peers share.
/// Chosen: the 1024 buffers suffice for 32 peers.
pub const NOTICES: u32 = 32;

/// What becomes of a request's buffer when it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It had none.
    Nothing,
    /// It had none, and nobody misses it.
    Idle,
    /// Goes back to the small ones.
    Small(u32),
    /// Goes back to the large ones.
    Large(u32),
    /// It was the user's; the ticket says so.
    Ticket(u64),
    /// Its head goes back to the small ones. The rest was the user's; the ticket says so.
    Message { small: u32, ticket: u64 },
    /// It was the user's, to read into; the ticket says so.
    Read(u64),
    /// Holds what was read.
    Fetched { large: u32, len: u32, ticket: u64 },
    /// Holds the word that an atomic found, for the ticket if there is one.
    Found { small: u32, ticket: Option<u64> },
    /// Holds the word that an atomic found, for who waits in [`super::wire::VerbsWire`] itself.
    Awaited { small: u32 },
    /// Holds the word that one attempt of an atomic found.
    Attempted { small: u32, attempt: u32 },
}

/// A request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Its number among all that was asked of this peer.
    pub issue: u64,
    pub then: Then,
}

/// One direction each of a channel.
#[derive(Debug)]
pub struct Flow {
    pub out: Outflow,
    pub inward: Inflow,
    /// Numbers of the messages that wait in `out`, and how many fragments of each are to come.
    pub waiting: VecDeque<u64>,
}

/// Whether a peer is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No connection was asked for, or none was made yet.
    Unconnected,
    /// By this queue pair, which is that of [`Link::pair`].
    Connected(*mut rdma_core_sys::ibv_qp),
    /// The connection is lost, and what was under way on this queue pair has not ended yet.
    Ending(*mut rdma_core_sys::ibv_qp, Error),
    /// The connection is lost.
    Lost(Error),
}

impl State {
    /// The queue pair to post to; null if there is none.
    #[inline(always)]
    pub fn raw(self) -> *mut rdma_core_sys::ibv_qp {
        match self {
            State::Connected(raw) | State::Ending(raw, _) => raw,
            State::Unconnected | State::Lost(_) => std::ptr::null_mut(),
        }
    }

    /// Why the peer cannot be reached any more.
    #[inline(always)]
    pub fn error(self) -> Option<Error> {
        match self {
            State::Ending(_, error) | State::Lost(error) => Some(error),
            State::Unconnected | State::Connected(_) => None,
        }
    }
}

/// A peer. `README.md` has its states and what leads from one to another.
#[derive(Debug)]
pub struct Link {
    pub state: Cell<State>,
    /// Set while the connection stands.
    pub pair: RefCell<Option<Arc<Pair>>>,
    pub records: Records,
    /// Requests since the last that reports.
    pub silent: Cell<u32>,
    /// What was asked so far.
    pub issued: Cell<u64>,
    /// The next request waits for reads and atomics before it.
    pub fence: Cell<bool>,
    /// Reads and atomics under way.
    pub reads: Cell<u32>,
    /// Atomics that take several requests.
    pub attempts: Cell<u32>,
    pub flows: RefCell<[Flow; 3]>,
    /// Notices that the peer has room for.
    pub notices: Cell<u32>,
    /// Notices taken of the peer since it was told of that.
    pub noticed: Cell<u32>,
    /// What was asked up to the last request that writes at the peer and is no message.
    pub put: Cell<u64>,
    /// The peer's ring, lent to this rank.
    pub ring: Cell<Option<Remote>>,
    /// This rank's ring, lent to the peer.
    pub lent: Cell<Option<Lent>>,
    /// What the peer is to be told about either.
    pub to_say: Cell<ToSay>,
    /// Frames sent to the peer, and frames of it that were handled.
    pub went: Cell<u32>,
    pub came: Cell<u32>,
    /// Small messages of the peer since this rank slept.
    pub small_messages: Cell<u32>,
    /// Rings in a row that came back as they went.
    pub unused: Cell<u32>,
}

/// A ring that the peer writes into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Which of this rank's rings.
    pub ring: u32,
    /// Messages taken out of it.
    pub taken: u32,
    pub wanted_back: bool,
    /// Something came since all rings were lent and one was looked for.
    pub used: bool,
}

// SAFETY: the pointer in the state is that of `pair`, and verbs may be called from any thread.
unsafe impl Send for Link {}

fn flows(limits: &FlowLimits) -> [Flow; 3] {
    [Channel::Message, Channel::Request, Channel::Reply].map(|channel| Flow {
        out: Outflow::new(channel, limits),
        inward: Inflow::default(),
        waiting: VecDeque::new(),
    })
}

impl Link {
    pub fn new(limits: &FlowLimits) -> Link {
        Link {
            state: Cell::new(State::Unconnected),
            pair: RefCell::default(),
            records: Records::default(),
            silent: Cell::default(),
            issued: Cell::default(),
            fence: Cell::default(),
            reads: Cell::default(),
            attempts: Cell::default(),
            flows: RefCell::new(flows(limits)),
            notices: Cell::new(NOTICES),
            noticed: Cell::default(),
            put: Cell::default(),
            ring: Cell::default(),
            lent: Cell::default(),
            to_say: Cell::default(),
            went: Cell::default(),
            came: Cell::default(),
            small_messages: Cell::default(),
            unused: Cell::default(),
        }
    }

    /// The connection is lost; what is under way has not ended yet.
    pub fn fail(&self, error: Error) {
        self.state.set(match self.state.get() {
            State::Connected(raw) | State::Ending(raw, _) => State::Ending(raw, error),
            State::Unconnected | State::Lost(_) => State::Lost(error),
        });
    }

    /// Forgets that a connection was lost, of which nothing is left: another interface has the peer's number.
    pub fn forget_loss(&self) {
        if let State::Lost(_) = self.state.get() {
            self.state.set(State::Unconnected);
        }
    }

    /// Begins anew on another queue pair, or on none yet. A ring that was lent has been taken back.
    pub fn renew(&self, pair: Option<Arc<Pair>>, limits: &FlowLimits) {
        self.state.set(match (&pair, self.state.get().error()) {
            (Some(pair), _) => State::Connected(pair.raw),
            (None, Some(error)) => State::Lost(error),
            (None, None) => State::Unconnected,
        });
        *self.pair.borrow_mut() = pair;
        *self.flows.borrow_mut() = flows(limits);
        self.silent.set(0);
        self.fence.set(false);
        self.reads.set(0);
        self.attempts.set(0);
        self.notices.set(NOTICES);
        self.noticed.set(0);
        self.ring.set(None);
        self.to_say.take();
        self.went.set(0);
        self.came.set(0);
        self.small_messages.set(0);
        self.unused.set(0);
    }

    /// Whether all that was put at the peer is acknowledged, as far as is known here.
    #[inline(always)]
    pub fn puts_acknowledged(&self) -> bool {
        self.records.front().is_none_or(|record| record.issue >= self.put.get())
    }

    /// What was posted last writes at the peer.
    #[inline(always)]
    pub fn note_put(&self) {
        self.put.set(self.issued.get());
    }

    /// Takes the records up to number `upto`, and shows those that leave something to do.
    #[inline(always)]
    pub fn settle(&self, upto: u32, mut each: impl FnMut(Then)) {
        while let Some(then) = self.records.settle(upto) {
            each(then);
        }
    }
}
