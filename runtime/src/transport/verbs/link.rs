//! The state of an interface for a peer: the state of its connection, the requests in flight, the flows of messages, and the
//! credits and rings of both directions.

mod notice_credits;
mod ring_ends;
mod send_queue;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

pub use self::notice_credits::{NOTICES, NoticeCredits};
#[cfg(test)]
pub use self::ring_ends::BUSY;
pub use self::ring_ends::{RingEnds, RingFrame};
pub use self::send_queue::{ReadFence, Record, SendQueue, Then};

use super::queue::Pair;
use crate::transport::error::Error;
use crate::transport::stream::{FlowLimits, Inflow, Outflow};
use crate::transport::wire::Channel;

/// A hash table by numbers that no peer can choose (peers, queue pairs), so a simple hash is safe.
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
    /// The connection is lost, and requests in flight on this queue pair have not ended yet.
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

/// The state of an interface for a peer. `README.md` has the states of the connection and the events between them.
#[derive(Debug)]
pub struct Link {
    state: Cell<State>,
    /// Set while the connection stands.
    pair: RefCell<Option<Arc<Pair>>>,
    pub requests: SendQueue,
    pub flows: RefCell<[Flow; 3]>,
    pub notices: NoticeCredits,
    pub rings: RingEnds,
}

// SAFETY:
// - The pointer in the state is that of `pair`, which lives as long as the state holds it.
// - libibverbs may be called from any thread.
unsafe impl Send for Link {}

fn flows(limits: &FlowLimits) -> [Flow; 3] {
    [Channel::Message, Channel::Request, Channel::Reply].map(|channel| Flow {
        out: Outflow::new(channel, limits),
        inward: Inflow::default(),
        waiting: VecDeque::new(),
    })
}

impl Link {
    pub fn new(limits: &FlowLimits, fences: ReadFence) -> Link {
        Link {
            state: Cell::new(State::Unconnected),
            pair: RefCell::default(),
            requests: SendQueue::new(fences),
            flows: RefCell::new(flows(limits)),
            notices: NoticeCredits::default(),
            rings: RingEnds::default(),
        }
    }

    #[inline(always)]
    pub fn state(&self) -> State {
        self.state.get()
    }

    /// The queue pair to post to; null if there is none.
    #[inline(always)]
    pub fn raw(&self) -> *mut rdma_core_sys::ibv_qp {
        self.state.get().raw()
    }

    /// Why the peer cannot be reached any more.
    #[inline(always)]
    pub fn error(&self) -> Option<Error> {
        self.state.get().error()
    }

    /// Whether the connection is that of queue pair `number`.
    pub fn is_over(&self, number: u32) -> bool {
        self.pair.borrow().as_ref().is_some_and(|pair| pair.number() == number)
    }

    /// Ends everything in flight: the device touches no memory of this side afterwards.
    pub fn break_off(&self) {
        if let Some(pair) = self.pair.borrow().as_ref() {
            pair.break_off();
        }
    }

    /// Called when the connection has failed. Requests in flight have not ended yet.
    pub fn fail(&self, error: Error) {
        self.state.set(match self.state.get() {
            State::Connected(raw) | State::Ending(raw, _) => State::Ending(raw, error),
            State::Unconnected | State::Lost(_) => State::Lost(error),
        });
    }

    /// Forgets a loss when nothing of the lost connection is left: another interface has the peer's number.
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
        self.requests.restart();
        self.notices.restart();
        self.rings.restart();
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::FLOW;
    use super::*;

    #[test]
    fn a_loss_ends_in_the_error_and_is_forgotten_only_when_nothing_is_left() {
        let link = Link::new(&FLOW, ReadFence::ByDevice);
        let pair = std::ptr::dangling_mut();
        assert_eq!((link.raw(), link.error()), (std::ptr::null_mut(), None));
        link.state.set(State::Connected(pair));
        link.forget_loss();
        assert_eq!(link.state(), State::Connected(pair));
        link.fail(Error::ConnectionReset);
        assert_eq!((link.state(), link.raw()), (State::Ending(pair, Error::ConnectionReset), pair));
        link.forget_loss();
        assert_eq!(link.error(), Some(Error::ConnectionReset), "completions of it are still being read");
        link.renew(None, &FLOW);
        assert_eq!((link.state(), link.raw()), (State::Lost(Error::ConnectionReset), std::ptr::null_mut()));
        link.fail(Error::Unreachable);
        assert_eq!(link.state(), State::Lost(Error::Unreachable));
        link.forget_loss();
        assert_eq!(link.state(), State::Unconnected);
        link.fail(Error::Unreachable);
        assert_eq!(link.state(), State::Lost(Error::Unreachable), "nobody answered");
    }

    #[test]
    fn a_new_connection_begins_with_all_credits() {
        let link = Link::new(&FLOW, ReadFence::ByDevice);
        let out = |link: &Link| link.flows.borrow()[0].out.can_pass();
        while out(&link) {
            link.flows.borrow_mut()[0].out.pass(0, 1, 0);
        }
        while link.notices.has_room() {
            link.notices.spend();
        }
        link.rings.frame_sent();
        link.requests.issue();
        link.renew(None, &FLOW);
        assert!(out(&link) && link.notices.has_room());
        assert_eq!((link.rings.frames_sent(), link.requests.issued()), (0, 1));
    }
}
