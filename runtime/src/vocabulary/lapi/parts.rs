//! The state behind a handle ([`Domain`](super::domain::Domain)), grouped by purpose. A *task* is LAPI's word for a rank.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use super::arrive::Incoming;
use super::closures::Closure;
use super::domain::LOC_ADDRTBL_SZ;
use super::send::Outgoing;
use super::signal::Signal;
use super::traffic::Ticket;
use super::vectors::Group;

/// Seconds that [`Query::TIMEOUT`](super::raw::query::TIMEOUT) accepts. `Qenv` reads the value back; it has no effect, since the runtime
/// detects failed peers by its own means.
pub(super) const TIMEOUTS: std::ops::RangeInclusive<i32> = 10..=86400;
/// Its initial value, in seconds.
const TIMEOUT: i32 = 900;
/// Packets for each acknowledgment that [`Query::ACK_THRESHOLD`](super::raw::query::ACK_THRESHOLD) accepts, in the range of IBM's LAPI; the
/// largest is the initial value. `Qenv` reads the value back; it has no effect, since no packets are acknowledged.
pub(super) const ACK_THRESHOLDS: std::ops::RangeInclusive<i32> = 1..=30;

/// Objects of this task that messages of other tasks name by an index.
pub(super) struct Entries {
    /// Addresses of header handlers, by the index of `Addr_set`; 0 is none, [`CLOSURE`](super::closures::CLOSURE) a closure.
    pub(super) table: Box<[Cell<usize>; LOC_ADDRTBL_SZ]>,
    /// Header handlers that are closures, by the same index.
    pub(super) closures: RefCell<BTreeMap<usize, Closure>>,
    /// Target events, by the index of [`Lapi::target_event`](super::Lapi::target_event).
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
    /// The bells of the program. They live as long as the handle.
    pub(super) all: RefCell<Vec<crate::world::Bell>>,
    /// Rings that found no room, as index in `all` and task. Later polls retry them.
    pub(super) rings: RefCell<Vec<(usize, usize)>>,
}

/// The values that `Senv` sets and `Qenv` reads back.
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
    /// Sends and requests of this task that have completed.
    pub(super) sends: Cell<u64>,
    /// Messages of other tasks whose data has arrived in place.
    pub(super) receives: Cell<u64>,
}

/// Messages in transfer: their data is to be fetched, or they are to be delivered again.
#[derive(Default)]
pub(super) struct Transfers {
    /// The next number for an announced message, a group of parts or a deferred event.
    pub(super) numbers: Cell<u64>,
    /// Announced messages of this task, by number: the target, and the data that it may fetch.
    pub(super) outgoing: RefCell<BTreeMap<u64, (usize, Outgoing)>>,
    /// Messages of other tasks whose data this task fetches.
    pub(super) incoming: RefCell<VecDeque<Incoming>>,
    /// Vector transfers, by the task that sends the parts and the number of the group.
    pub(super) groups: RefCell<BTreeMap<(usize, u64), Group>>,
    /// Messages to deliver again.
    pub(super) dropped: RefCell<VecDeque<Dropped>>,
}

impl Transfers {
    /// Whether a message of `task` has arrived that is not delivered yet: its data is being fetched, or it is to be delivered again.
    #[cold]
    pub(super) fn has_from(&self, task: usize) -> bool {
        self.dropped.borrow().iter().any(|dropped| dropped.from == task)
            || self.incoming.borrow().iter().any(|incoming| incoming.from() == task)
    }
}

/// A message whose header handler returned `DROP_PKT`. A later poll delivers it again.
pub(super) struct Dropped {
    pub(super) from: usize,
    pub(super) is_announced: bool,
    pub(super) bytes: Box<[u8]>,
    pub(super) ticket: Ticket,
}
