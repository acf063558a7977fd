//! Operations with events of a rank's own stream. No call waits for them: each poll advances them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Engine;
use super::operation::{Due, Event, Events, Operation, Receipts, Ring, Step, Tracked, happened};
use crate::error::Result;

/// The operations with events of one stream.
#[derive(Debug, Default)]
pub(super) struct Tracking {
    pub(super) operations: Vec<Tracked>,
    /// Events that have happened where a program's functions must not run: inside a handler, or under a context's lock. A later
    /// poll runs their actions.
    pub(super) due: Vec<Due>,
}

impl Tracking {
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.due.is_empty()
    }
}

impl Engine {
    /// The receipts that peers still have to send to this rank.
    pub(crate) fn receipts(&self) -> &Receipts {
        self.contexts.receipts()
    }

    /// Tracks `step`, which concerns `rank`. When it ends, `events` happen.
    pub(crate) fn track(&self, rank: usize, doing: &'static str, step: Step, events: Vec<Event>) {
        if !events.is_empty() || !matches!(step, Step::Flush { .. } | Step::Message) {
            self.tracking.borrow_mut().operations.push(Tracked::new(rank, doing, step, events));
            self.tasks.any.set(true);
        }
    }

    /// Tracks the events of a put to `rank`. Its source was copied, so the source event happens at once.
    pub(crate) fn track_put(&self, rank: usize, doing: &'static str, events: Events) {
        let Events { source, mut effect, handled } = events;
        self.happened(source, Ok(()));
        // No handler runs for a put: it is handled when it is in effect.
        effect.extend(handled);
        if self.routes.is_mapped(rank) {
            self.happened(effect, Ok(()));
        } else {
            self.track(rank, doing, Step::Flush { effect: true }, effect);
        }
    }

    /// Tracks the effect of a message to `rank` that was sent or queued.
    pub(crate) fn track_message(&self, rank: usize, effect: Vec<Event>) {
        self.track(rank, "sending a message", Step::Message, effect);
        if self.routes.all_mapped() && !self.keeps_for(rank) {
            self.begin_tracked();
        }
    }

    /// Posts tracked operations, as far as there is room. Does nothing inside a handler.
    pub(crate) fn begin_tracked(&self) {
        if !self.interface.delivering() {
            self.advance_tracked();
        }
    }

    /// Opens a receipt that `rank` has to send, and returns its number.
    pub(crate) fn open_receipt(&self, rank: usize, events: Vec<Event>) -> u64 {
        self.tasks.any.set(true);
        self.receipts().open(rank, events)
    }

    /// Runs the actions of events that have happened: now, or, inside a handler, at a later poll.
    pub(crate) fn happened(&self, events: Vec<Event>, outcome: Result<()>) {
        if events.is_empty() {
            return;
        }
        let mut due = Vec::new();
        happened(events, outcome, &mut due);
        if self.interface.delivering() {
            self.tracking.borrow_mut().due.append(&mut due);
            self.tasks.any.set(true);
        } else {
            due.into_iter().for_each(|due| self.happen(due));
        }
    }

    fn happen(&self, (event, outcome): Due) {
        if let Err(error) = event.happen(outcome, |bell| self.ring_for_event(bell)) {
            self.set_fault(error);
        }
    }

    fn ring_for_event(&self, Ring { rank, words: [mapped, remote], claim }: Ring) -> Result<()> {
        if self.check_claim(Some(claim), "", rank).is_err() {
            return Ok(());
        }
        if !self.routes.is_mapped(rank) {
            self.do_unasked(rank, Operation::Ring { offset: remote });
            return Ok(());
        }
        // SAFETY: an aligned word of a live bell in a mapped slot, as the claim says; only touched as this atomic.
        let word = unsafe { AtomicU64::from_ptr(self.node.slot(rank).add(mapped).cast()) };
        // An atomic add, since contexts ring the same word. Release pairs with the Acquire load in `Words::count`.
        word.fetch_add(1, Ordering::Release);
        self.wake_if_asleep(rank);
        Ok(())
    }

    /// Whether events are still to happen.
    pub(super) fn has_tracked(&self) -> bool {
        !self.tracking.borrow().is_empty() || self.receipts().are_open()
    }

    /// Advances the tracked operations and runs the actions that are due. Returns how many operations and events.
    #[cold]
    pub(super) fn advance_tracked(&self) -> usize {
        // Taken out: an action may start further operations, which are added to the list.
        let Tracking { mut operations, mut due } = self.tracking.take();
        let done = Tracked::advance_all(&mut operations, &mut &*self, &mut due);
        if self.job.any_lost() || self.job.any_left() {
            self.receipts().take_lost(|rank| self.check_alive(rank, "a message").err(), &mut due);
        }
        self.tracking.borrow_mut().operations.append(&mut operations);
        let done = done + due.len();
        due.into_iter().for_each(|due| self.happen(due));
        done
    }
}
