//! Operations with events of a rank's own stream. No call waits for them: each poll advances them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Engine;
use super::operation::{Due, Event, Events, Filled, Found, Operation, Ring, Step, Tracked, give_up, happened};
use crate::error::Result;

/// The operations with events of one stream.
#[derive(Debug, Default)]
pub(super) struct Tracking {
    pub(super) operations: Vec<Tracked>,
    /// Events that have happened where a program's functions must not run: inside a handler, or under a context's lock. A later
    /// poll runs their actions, in order.
    pub(super) due: VecDeque<Due>,
}

impl Tracking {
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.due.is_empty()
    }

    /// Whether a get or an atomic waits for room: nothing of it is in flight.
    pub(super) fn has_unposted(&self) -> bool {
        self.operations.iter().any(Tracked::is_unposted)
    }

    /// Whether a get fills this segment of the own rank.
    pub(super) fn fills(&self, segment: Filled) -> bool {
        self.operations.iter().any(|operation| operation.fills(segment))
    }

    /// Tells futures that their operations have not ended. As [`give_up`].
    #[must_use]
    pub(super) fn give_up(&mut self) -> Vec<Event> {
        let mut others = Vec::new();
        for (event, outcome) in self.due.drain(..) {
            match event {
                Event::End(member) => member.end(outcome),
                other => others.push(other),
            }
        }
        others.extend(give_up(self.operations.drain(..).flat_map(Tracked::give_up)));
        others
    }
}

impl Engine {
    /// Tracks the events of a put to `rank`. Its source was copied, so the source event happens at once.
    pub(crate) fn track_put(&self, rank: usize, doing: &'static str, events: Events) {
        let Events { mut source, mut effect, handled } = events;
        // No handler runs for a put: it is handled when it is in effect.
        effect.extend(handled);
        if self.routes.is_mapped(rank) {
            source.extend(effect);
            self.happened(source, Ok(()));
        } else {
            // The flush is posted with the put: later operations do not delay it.
            self.tasks.track(rank, doing, Step::Flush { effect: true }, effect);
            // First: an action may panic.
            self.begin_tracked();
            self.happened(source, Ok(()));
        }
    }

    /// As [`Engine::track_put`], of a put whose source may be read by the network until the source event.
    pub(crate) fn track_put_from(&self, rank: usize, doing: &'static str, mut events: Events) {
        if !self.routes.is_mapped(rank) {
            self.tasks.track(rank, doing, Step::Flush { effect: false }, std::mem::take(&mut events.source));
        }
        self.track_put(rank, doing, events);
    }

    /// Tracks the effect of a message to `rank` that was sent or queued.
    pub(crate) fn track_message(&self, rank: usize, effect: Vec<Event>) {
        self.tasks.track(rank, "sending a message", Step::Message, effect);
        if self.routes.all_mapped() && !self.outbox.keeps_for(rank) {
            self.begin_tracked();
        }
    }

    /// Posts the operation that was tracked last, if there is room. Does nothing inside a handler.
    pub(crate) fn begin_tracked(&self) {
        if self.interface.delivering() {
            return;
        }
        let Some(mut last) = self.tasks.take_last() else { return };
        match last.advance(&mut &*self) {
            None => self.tasks.put_back_last(last),
            Some(outcome) => {
                self.tasks.add_due(|due| last.end(outcome, due));
                self.happen_due();
            }
        }
    }

    /// Opens a receipt that `rank` has to send, and returns its number.
    ///
    /// # Errors
    /// As [`Receipts::open`](super::operation::Receipts::open).
    pub(crate) fn open_receipt(&self, rank: usize, events: Vec<Event>) -> Result<u64> {
        self.tasks.mark();
        self.contexts.receipts().open(rank, events)
    }

    /// As [`Engine::open_receipt`], of an atomic, whose result goes to `found`.
    ///
    /// # Errors
    /// As [`Receipts::open`](super::operation::Receipts::open).
    pub(crate) fn open_atomic(&self, rank: usize, found: Option<Arc<Found>>, events: Vec<Event>) -> Result<u64> {
        self.tasks.mark();
        self.contexts.receipts().open_with(rank, found, events)
    }

    /// Runs the actions of events that have happened: now, or, inside a handler, at a later poll.
    pub(crate) fn happened(&self, events: Vec<Event>, outcome: Result<()>) {
        if events.is_empty() {
            return;
        }
        self.tasks.add_due(|due| happened(events, outcome, due));
        if !self.interface.delivering() {
            self.happen_due();
        }
    }

    /// Runs the actions that are due, one by one: if one panics, the others run at the next poll. Returns how many there were.
    fn happen_due(&self) -> usize {
        let mut done = 0;
        loop {
            let Some(due) = self.tasks.next_due() else { return done };
            done += 1;
            self.happen(due);
        }
    }

    fn happen(&self, (event, outcome): Due) {
        let _happening = self.calls.happening();
        if let Err(error) = event.happen(outcome, |bell| self.ring_for_event(bell)) {
            self.faults.keep(error);
        }
    }

    fn ring_for_event(&self, Ring { rank, words: [mapped, remote], claim }: Ring) -> Result<()> {
        if claim.check(&self.blocks, "", rank).is_err() {
            return Ok(());
        }
        let Some(slot) = self.mapped_slot(rank) else {
            self.do_unasked(rank, Operation::Ring { offset: self.networks.to(rank).ring_word(remote) });
            return Ok(());
        };
        // SAFETY: an aligned word of a live bell in a mapped slot, as the claim says; only touched as this atomic.
        let word = unsafe { AtomicU64::from_ptr(slot.add(mapped).cast()) };
        // An atomic add, since contexts ring the same word. Release pairs with the Acquire load in `Words::count`.
        word.fetch_add(1, Ordering::Release);
        self.wake_if_asleep(rank);
        Ok(())
    }

    /// Whether events are still to happen.
    pub(super) fn has_tracked(&self) -> bool {
        self.segments.any_leaving() || self.tasks.any_tracked() || self.contexts.receipts().are_open()
    }

    /// Advances the tracked operations and runs the actions that are due. Returns how many operations and events.
    #[cold]
    pub(super) fn advance_tracked(&self) -> usize {
        let answered = if self.segments.any_leaving() { self.advance_leaving() } else { 0 };
        // Taken out: an action may start further operations, which are added to the list.
        let (mut operations, mut due) = self.tasks.take_tracked();
        let polling = self.failures.begin_polling();
        let done = Tracked::advance_all(&mut operations, &mut &*self, &mut due);
        drop(polling);
        self.tasks.add_tracked(operations, due);
        answered + done + self.happen_due()
    }

    /// Ends what waits for receipts of ranks that are gone. Call it when a poll has found nothing: a receipt may have come before
    /// its rank left. Returns how many events that were.
    #[cold]
    pub(super) fn end_lost_receipts(&self) -> usize {
        if !self.failures.any_gone() || self.interface.delivering() || !self.contexts.receipts().are_open() {
            return 0;
        }
        let mut due = VecDeque::new();
        let is_lost = |rank| self.failures.is_gone(rank);
        self.contexts.receipts().take_lost(is_lost, |rank| self.gone(rank, "a message"), &mut due);
        // A source event says that the data is held no longer, also where it ends with an error.
        if !due.is_empty()
            && let Some(handlers) = self.delivery.handlers()
        {
            handlers.forget_lost();
        }
        self.tasks.add_tracked(Vec::new(), due);
        self.happen_due()
    }
}
