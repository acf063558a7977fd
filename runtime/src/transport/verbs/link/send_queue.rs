//! The send queue of one connection: the requests in flight, the flags of the next request, and the puts that are acknowledged.
//!
//! Most requests report nothing; one that does settles all earlier requests. Reads and atomics may be answered after later writes are
//! done, so a request after a fence waits for those in flight: in the device, or in this rank if the device's fence is broken.

use std::cell::Cell;

use crate::transport::verbs::connect::DEPTH;
use crate::transport::verbs::records::Records;

/// At least one of this many requests in a row reports. Chosen: half of those that a connection has in flight.
const SILENT: u32 = (DEPTH as u32).div_ceil(2);

/// The action when a request is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It had no buffer.
    Nothing,
    /// It had no buffer, and it may be lost if the peer gives the connection up.
    Idle,
    /// Its buffer returns to the small ones.
    Small(u32),
    /// Its buffer returns to the large ones.
    Large(u32),
    /// The buffer was the user's. The ticket completes.
    Ticket(u64),
    /// The header's buffer returns to the small ones. The rest was the user's. The ticket completes.
    Message { small: u32, ticket: u64 },
    /// The buffer to read into was the user's. The ticket completes.
    Read(u64),
    /// The large buffer holds what was read.
    Fetched { large: u32, len: u32, ticket: u64 },
    /// The small buffer holds the word that an atomic found. The ticket completes, if there is one.
    Found { small: u32, ticket: Option<u64> },
    /// The small buffer holds the word that an atomic found, and the caller still polls for the word.
    Awaited { small: u32 },
    /// The small buffer holds the word that one attempt of an atomic found.
    Attempted { small: u32, attempt: u32 },
}

/// A request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Its number among all that was asked of this peer.
    pub issue: u64,
    pub then: Then,
}

/// How to post the next request. Nothing changes until [`SendQueue::posted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The number of its record.
    pub number: u64,
    pub reports: bool,
    /// The request waits in the device for earlier reads and atomics.
    pub waits: bool,
}

/// Where a request after a fence waits for earlier reads and atomics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadFence {
    /// In the device's queue.
    #[default]
    ByDevice,
    /// In this rank, before it is posted: the device may never send a request that waits in its queue.
    ByWaiting,
}

/// The requests of one connection.
#[derive(Debug, Default)]
pub struct SendQueue {
    records: Records,
    fences: ReadFence,
    /// Requests since the last that reports.
    silent: Cell<u32>,
    /// Operations so far, with those that wait to be posted.
    issued: Cell<u64>,
    /// The next request comes after a fence.
    fence: Cell<bool>,
    /// Reads and atomics in flight.
    reads: Cell<u32>,
    /// Atomics in progress that take several requests.
    attempts: Cell<u32>,
    /// `issued` after the last request that writes the peer's memory and is no message.
    put: Cell<u64>,
}

impl SendQueue {
    pub fn new(fences: ReadFence) -> SendQueue {
        SendQueue { fences, ..SendQueue::default() }
    }

    /// Whether `requests` more may be posted.
    #[inline(always)]
    pub fn has_room(&self, requests: usize) -> bool {
        self.records.len() + requests <= DEPTH
    }

    #[inline(always)]
    pub fn plan(&self, reports: bool) -> Plan {
        Plan {
            number: self.records.next(),
            reports: reports || self.silent.get() + 1 >= SILENT,
            waits: self.fence.get() && self.reads.get() > 0 && self.fences == ReadFence::ByDevice,
        }
    }

    /// The device took the request that was planned last. Returns its number among all operations.
    #[inline(always)]
    pub fn posted(&self, plan: Plan, then: Then) -> u64 {
        self.silent.set(if plan.reports { 0 } else { self.silent.get() + 1 });
        // Probes and the next attempts of an atomic are posted also while others are held back, and end no fence.
        self.fence.set(self.is_held_back());
        let issue = self.issue();
        self.records.push(Record { issue, then });
        issue
    }

    /// Numbers an operation that is posted later, or with several requests.
    #[inline(always)]
    pub fn issue(&self) -> u64 {
        self.issued.replace(self.issued.get() + 1)
    }

    /// Operations so far.
    #[inline(always)]
    pub fn issued(&self) -> u64 {
        self.issued.get()
    }

    /// The number of the record that was pushed last.
    #[inline(always)]
    pub fn last(&self) -> u64 {
        self.records.next() - 1
    }

    /// The request posted last belongs to operation `issue`.
    pub fn last_belongs_to(&self, issue: u64) {
        self.records.update_last(|record| Record { issue, ..record });
    }

    /// The caller no longer polls for the atomic `issue`: its result completes `ticket`.
    pub fn stop_awaiting(&self, issue: u64, ticket: u64) {
        self.records.update(|record| match record.then {
            Then::Awaited { small } if record.issue == issue => {
                Record { then: Then::Found { small, ticket: Some(ticket) }, ..record }
            }
            _ => record,
        });
    }

    /// Removes the records up to number `upto`, and shows those that leave something to do.
    #[inline(always)]
    pub fn settle(&self, upto: u32, mut each: impl FnMut(Then)) {
        while let Some(then) = self.records.settle(upto) {
            each(then);
        }
    }

    /// Whether a request in flight is such a one.
    pub fn holds(&self, is_one: impl Fn(Then) -> bool) -> bool {
        self.records.iter().any(|record| is_one(record.then))
    }

    /// Whether a request of the first `count` operations is in flight.
    pub fn holds_before(&self, count: u64) -> bool {
        self.records.iter().any(|record| record.issue < count)
    }

    /// Whether requests in flight would never report.
    pub fn wants_report(&self) -> bool {
        self.silent.get() > 0
    }

    /// Makes the next call of [`SendQueue::wants_report`] true if nothing that is in flight reports: a probe is due.
    pub fn probe_if_silent(&self) -> bool {
        let is_silent = self.records.is_empty() || self.wants_report();
        if is_silent {
            self.silent.set(self.silent.get().max(1));
        }
        is_silent
    }

    /// The next request waits for the reads and atomics in flight, if there are any.
    pub fn fence(&self) {
        self.fence.set(self.reads.get() > 0 || self.has_attempts());
    }

    /// Whether the next request has to wait here: for an atomic that takes several requests, which no device can wait for, or
    /// because the device's fence is broken.
    #[inline(always)]
    pub fn is_held_back(&self) -> bool {
        self.fence.get() && (self.has_attempts() || self.reads.get() > 0 && self.fences == ReadFence::ByWaiting)
    }

    /// The request posted last is a read or an atomic.
    #[inline(always)]
    pub fn read_posted(&self) {
        self.reads.set(self.reads.get() + 1);
    }

    #[inline(always)]
    pub fn read_done(&self) {
        self.reads.set(self.reads.get().saturating_sub(1));
    }

    /// Numbers an atomic that takes several requests.
    pub fn attempt_begun(&self) {
        self.attempts.set(self.attempts.get() + 1);
        self.issue();
    }

    pub fn attempt_done(&self) {
        self.attempts.set(self.attempts.get() - 1);
    }

    pub fn has_attempts(&self) -> bool {
        self.attempts.get() > 0
    }

    /// The request posted last writes the peer's memory.
    #[inline(always)]
    pub fn note_put(&self) {
        self.put.set(self.issued.get());
    }

    /// Whether all puts to the peer are acknowledged, as far as reports have been read.
    #[inline(always)]
    pub fn puts_acknowledged(&self) -> bool {
        self.records.front().is_none_or(|record| record.issue >= self.put.get())
    }

    /// Removes all records.
    pub fn drain(&self) -> Vec<Record> {
        self.records.drain()
    }

    /// Begins anew on another queue pair. Numbers go on: the user may wait for one.
    pub fn restart(&self) {
        self.silent.set(0);
        self.fence.set(false);
        self.reads.set(0);
        self.attempts.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(queue: &SendQueue, then: Then, reports: bool) -> Plan {
        let plan = queue.plan(reports);
        queue.posted(plan, then);
        plan
    }

    #[test]
    fn one_of_a_row_of_silent_requests_reports() {
        let queue = SendQueue::default();
        assert!(!queue.wants_report());
        for row in 0..3 {
            let reports: Vec<_> = (0..SILENT).map(|_| post(&queue, Then::Nothing, false).reports).collect();
            assert_eq!(reports.iter().filter(|reports| **reports).count(), 1, "row {row}");
            assert!(reports[SILENT as usize - 1] && !queue.wants_report());
            queue.settle(queue.last() as u32, |_| {});
        }
        post(&queue, Then::Nothing, false);
        assert!(queue.wants_report());
        post(&queue, Then::Ticket(3), true);
        assert!(!queue.wants_report(), "it reports for the one before it");
    }

    #[test]
    fn a_request_that_the_device_refuses_changes_nothing() {
        let queue = SendQueue::default();
        post(&queue, Then::Read(1), true);
        queue.read_posted();
        queue.fence();
        let (refused, issued) = (queue.plan(true), queue.issued());
        assert_eq!(queue.plan(true), refused);
        assert_eq!((refused.waits, issued), (true, 1));
        assert_eq!(queue.posted(refused, Then::Nothing), 1);
        assert!(!queue.plan(false).waits, "only the first request after the fence waits");
    }

    #[test]
    fn a_fence_waits_for_reads_in_flight_only() {
        let queue = SendQueue::default();
        queue.fence();
        post(&queue, Then::Nothing, true);
        assert!(!queue.plan(true).waits);
        queue.read_posted();
        queue.fence();
        queue.read_done();
        assert!(!queue.plan(true).waits, "it was answered since");
    }

    #[test]
    fn a_fence_holds_until_the_last_attempt_of_an_atomic_is_done() {
        let queue = SendQueue::default();
        queue.attempt_begun();
        post(&queue, Then::Attempted { small: 0, attempt: 0 }, true);
        queue.read_posted();
        queue.fence();
        assert!(queue.is_held_back());
        // The word held something else: the next attempt is posted while others are held back.
        queue.read_done();
        post(&queue, Then::Attempted { small: 0, attempt: 0 }, true);
        queue.read_posted();
        assert!(queue.is_held_back(), "the next attempt has ended the fence");
        queue.attempt_done();
        assert!(!queue.is_held_back() && queue.plan(false).waits, "of the attempt in flight the device knows");
        post(&queue, Then::Nothing, false);
        assert!(!queue.plan(false).waits);
    }

    #[test]
    fn where_the_fence_of_the_device_is_broken_requests_wait_here() {
        let queue = SendQueue::new(ReadFence::ByWaiting);
        queue.fence();
        assert!(!queue.is_held_back(), "nothing is in flight");
        post(&queue, Then::Found { small: 0, ticket: None }, false);
        queue.read_posted();
        assert!(!queue.is_held_back());
        queue.fence();
        assert!(queue.is_held_back() && queue.wants_report(), "the atomic reports nothing by itself");
        let probe = post(&queue, Then::Idle, true);
        assert!(!probe.waits && queue.is_held_back(), "a probe ends no fence");
        queue.settle(probe.number as u32, |_| queue.read_done());
        assert!(!queue.is_held_back());
        assert!(!post(&queue, Then::Nothing, false).waits);
    }

    #[test]
    fn room_ends_with_the_depth_and_returns_with_a_report() {
        let queue = SendQueue::default();
        for _ in 0..DEPTH {
            assert!(queue.has_room(1));
            post(&queue, Then::Small(7), false);
        }
        assert!(!queue.has_room(1));
        let mut settled = 0;
        queue.settle(9, |then| {
            assert_eq!(then, Then::Small(7));
            settled += 1;
        });
        assert!(settled == 10 && queue.has_room(10) && !queue.has_room(11));
    }

    #[test]
    fn puts_are_acknowledged_when_nothing_as_old_is_in_flight() {
        let queue = SendQueue::default();
        assert!(queue.puts_acknowledged());
        post(&queue, Then::Nothing, false);
        queue.note_put();
        assert!(!queue.puts_acknowledged());
        post(&queue, Then::Nothing, true);
        queue.settle(0, |_| {});
        assert!(queue.puts_acknowledged(), "a message is in flight, no put");
    }

    #[test]
    fn operations_end_in_the_order_of_their_numbers() {
        let queue = SendQueue::default();
        post(&queue, Then::Nothing, false);
        // A message that waits for credits takes number 1, and is posted after another request.
        let waiting = queue.issue();
        post(&queue, Then::Nothing, false);
        post(&queue, Then::Nothing, true);
        queue.last_belongs_to(waiting);
        queue.settle(1, |_| {});
        assert!(!queue.holds_before(waiting) && queue.holds_before(waiting + 1));
        queue.settle(2, |_| {});
        assert!(!queue.holds_before(u64::MAX));
        assert_eq!(queue.issued(), 4);
    }

    #[test]
    fn an_atomic_that_nobody_polls_for_tells_its_ticket() {
        let queue = SendQueue::default();
        let issues = [0, 1].map(|small| queue.posted(queue.plan(true), Then::Awaited { small }));
        queue.stop_awaiting(issues[1], 5);
        let mut settled = Vec::new();
        queue.settle(queue.last() as u32, |then| settled.push(then));
        assert_eq!(settled, [Then::Awaited { small: 0 }, Then::Found { small: 1, ticket: Some(5) }]);
    }

    #[test]
    fn a_new_connection_keeps_the_numbers_only() {
        let queue = SendQueue::default();
        post(&queue, Then::Read(1), false);
        queue.read_posted();
        queue.attempt_begun();
        queue.fence();
        assert_eq!(queue.drain().len(), 1);
        queue.restart();
        assert!(!queue.plan(false).waits && !queue.is_held_back() && !queue.wants_report() && !queue.has_attempts());
        assert_eq!(queue.issued(), 2);
        assert!(queue.probe_if_silent() && queue.wants_report(), "an idle connection is probed");
    }
}
