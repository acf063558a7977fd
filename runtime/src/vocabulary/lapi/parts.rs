//! The parts of the state behind a handle.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use super::arrive::Incoming;
use super::closures::Closure;
use super::domain::LOC_ADDRTBL_SZ;
use super::send::Outgoing;
use super::signal::Signal;
use super::traffic::Ticket;
use super::vectors::Group;

/// Seconds that [`Query::TIMEOUT`](super::raw::query::TIMEOUT) accepts.
pub(super) const TIMEOUTS: std::ops::RangeInclusive<i32> = 10..=86400;
/// Its initial value, in seconds.
const TIMEOUT: i32 = 900;
/// Values that [`Query::ACK_THRESHOLD`](super::raw::query::ACK_THRESHOLD) accepts, as IBM's LAPI does; the largest is the initial one.
pub(super) const ACK_THRESHOLDS: std::ops::RangeInclusive<i32> = 1..=30;

/// What messages of other tasks name by an index.
pub(super) struct Entries {
    /// Header handlers by index; 0 is none.
    pub(super) table: Box<[Cell<usize>; LOC_ADDRTBL_SZ]>,
    /// Header handlers that are closures, by index.
    pub(super) closures: RefCell<BTreeMap<usize, Closure>>,
    /// Target events, by index.
    pub(super) targets: RefCell<BTreeMap<usize, Signal>>,
}

impl Default for Entries {
    fn default() -> Entries {
        let table = Box::new([const { Cell::new(0) }; LOC_ADDRTBL_SZ]);
        Entries { table, closures: RefCell::default(), targets: RefCell::default() }
    }
}

/// Bells that events ring.
#[derive(Default)]
pub(super) struct Bells {
    /// Those of the program, which live as long as the handle.
    pub(super) all: RefCell<Vec<crate::world::Bell>>,
    /// Rings that found no room, as bell and task. Later polls retry them.
    pub(super) rings: RefCell<Vec<(usize, usize)>>,
}

/// What `Senv` sets.
pub(super) struct Options {
    pub(super) timeout: Cell<i32>,
    pub(super) error_check: Cell<bool>,
    pub(super) ack_threshold: Cell<i32>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            timeout: Cell::new(TIMEOUT),
            error_check: Cell::new(true),
            ack_threshold: Cell::new(*ACK_THRESHOLDS.end()),
        }
    }
}

/// How much has completed so far.
#[derive(Default)]
pub(super) struct Done {
    /// Sends and requests of this task.
    pub(super) sends: Cell<u64>,
    /// Messages of other tasks whose data has arrived in place.
    pub(super) receives: Cell<u64>,
}

/// Messages whose data the receiver fetches, or that are to be delivered again.
#[derive(Default)]
pub(super) struct Transfers {
    /// The number of the next announced message.
    pub(super) numbers: Cell<u64>,
    /// Announced messages by number: the target, and the data that it may fetch.
    pub(super) outgoing: RefCell<BTreeMap<u64, (usize, Outgoing)>>,
    pub(super) incoming: RefCell<VecDeque<Incoming>>,
    /// Transfers in parts, by the task that sends them and the number of the group.
    pub(super) groups: RefCell<BTreeMap<(usize, u64), Group>>,
    /// Messages that were dropped, to be delivered again.
    pub(super) dropped: RefCell<VecDeque<Dropped>>,
}

impl Transfers {
    /// Whether a message of this task has come that is not delivered: it is being fetched, or was dropped and will be delivered again.
    #[cold]
    pub(super) fn has_from(&self, task: usize) -> bool {
        self.dropped.borrow().iter().any(|dropped| dropped.from == task)
            || self.incoming.borrow().iter().any(|incoming| incoming.from() == task)
    }
}

/// A message that its header handler dropped. It is delivered again.
pub(super) struct Dropped {
    pub(super) from: usize,
    pub(super) is_announced: bool,
    pub(super) bytes: Box<[u8]>,
    pub(super) ticket: Ticket,
}
