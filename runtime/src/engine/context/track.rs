//! Operations of a context that no call waits for: their end is known only by their events.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

use super::super::operation::{Event, Events, HeapRange, Operation, Ring, Step, Tracked, Transfer};
use super::super::straight::Local;
use super::operations::Driving;
use super::wait::Ends;
use super::{Driven, Identity, Stream};
use crate::error::{Error, Result};
use crate::memory::copy;
use crate::transport::Sent;

impl Stream {
    pub(crate) fn identity(&self) -> Identity {
        self.home.shared.identity
    }

    /// Reads `len` bytes at `offset` of the slot of `rank` into the own slot at `own`, all in bounds. Then `events` happen.
    ///
    /// # Errors
    /// As [`Stream::get`], except that it never waits.
    pub(crate) fn get_into(
        &self,
        doing: &'static str,
        [rank, offset, own, len]: [usize; 4],
        events: Vec<Event>,
    ) -> Result<()> {
        self.check_own(doing)?;
        // SAFETY: in bounds of the own slot.
        let to = unsafe { self.node.slot(self.rank).add(own) };
        if let Some(slot) = self.mapped_slot(rank) {
            // SAFETY: in bounds of a mapped slot.
            let from = unsafe { slot.add(offset) };
            // SAFETY: both ranges are mapped, and only touched by copies and atomics.
            unsafe { copy::between(to, from, len) };
            self.announce(self.rank);
            self.happened(events);
            return Ok(());
        }
        self.check_reachable(rank, doing)?;
        // SAFETY: the slot is mapped as long as the context lives. A call that ends the phase or the allocation drains the context before.
        unsafe { self.track_get(doing, HeapRange { rank, offset, len }, to, events) };
        Ok(())
    }

    /// Begins a get of `remote`, from a rank that is reached over the network. The bytes are at `to` when `events` happen, and when nothing of
    /// this context is in flight.
    ///
    /// # Safety
    /// `to` is valid for writing so many bytes until then; only this, peers and copies of the runtime touch them.
    pub(super) unsafe fn track_get(&self, doing: &'static str, remote: HeapRange, to: *mut u8, events: Vec<Event>) {
        // SAFETY: the caller's.
        let region = unsafe { self.register(remote.rank, to, remote.len) };
        // SAFETY: the caller's.
        let transfer = unsafe { Transfer::new(remote, Local::Into(to), [None; 2], region, None) };
        self.track(remote.rank, doing, Step::Transfer(transfer), events);
    }

    /// Opens a receipt that `rank` has to send, and returns its number. The rank's own thread takes it.
    ///
    /// # Errors
    /// As [`Receipts::open`](super::super::operation::Receipts::open).
    pub(crate) fn open_receipt(&self, rank: usize, handled: Vec<Event>) -> Result<u64> {
        self.home.shared.receipts.open(rank, handled)
    }

    /// Removes the receipt of a message that was not sent, and returns its events.
    pub(crate) fn close_receipt(&self, rank: usize, number: u64) -> Vec<Event> {
        self.home.shared.receipts.close(number, rank).unwrap_or_default()
    }

    /// Removes the receipt of a message that was not sent, because of `error`.
    pub(crate) fn refuse_receipt(&self, rank: usize, number: u64, error: &Error) {
        self.home.shared.receipts.refuse(number, rank, error);
    }

    /// The events of a message to `rank` that was sent.
    pub(crate) fn track_message(&self, rank: usize, source: Vec<Event>, effect: Vec<Event>) {
        if self.network.is_none() || self.routes.has_lane(rank) {
            return self.happened(source.into_iter().chain(effect).collect());
        }
        // First: a function may panic.
        if !effect.is_empty() {
            self.track(rank, "sending a message", Step::Message, effect);
        }
        self.happened(source);
    }

    /// Runs the actions of `events` once `step` has ended at `rank`, which is reached over the network.
    pub(crate) fn track(&self, rank: usize, doing: &'static str, step: Step, events: Vec<Event>) {
        let mut driven = self.driven();
        driven.tracking.operations.push(Tracked::new(rank, doing, step, events));
        // Posted now, if there is room: later operations do not delay it.
        driven.at_once(|driven| driven.advance_tracked(self));
    }

    /// The events of a put to `rank` that this context has begun, whose source was copied.
    pub(crate) fn track_put(&self, rank: usize, doing: &'static str, events: Events) {
        let Events { source, mut effect, handled } = events;
        effect.extend(handled);
        if self.is_mapped(rank) {
            return self.happened(source.into_iter().chain(effect).collect());
        }
        // First: a function may panic.
        if !effect.is_empty() {
            self.track(rank, doing, Step::Flush { effect: true }, effect);
        }
        self.happened(source);
    }

    /// Runs the actions of events that have happened.
    pub(crate) fn happened(&self, events: Vec<Event>) {
        let mut panic = None;
        for event in events {
            // A function's panic keeps no other event from happening.
            if let Err(caught) = catch_unwind(AssertUnwindSafe(|| self.happen(event, Ok(())))) {
                panic.get_or_insert(caught);
            }
        }
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn happen(&self, event: Event, outcome: Result<()>) {
        let ring = |ring| self.ring_for_event(ring);
        if let Err(error) = event.happen(outcome, ring)
            && self.network.is_some()
        {
            self.driven().faults.push_back(error);
        }
    }

    /// Rings a bell of an event, unless the bell was dropped meanwhile: its memory may have been allocated again.
    fn ring_for_event(&self, Ring { rank, words: [mapped, remote], claim }: Ring) -> Result<()> {
        const DOING: &str = "ringing a bell";
        if self.is_mapped(rank) {
            if self.network.is_some() {
                // Operations of this context in flight over the network to `rank` must be in effect before the ring.
                self.wait(DOING, |driven| driven.is_settled(self, DOING, rank))?;
            }
            claim.hold(&self.changes, || self.ring_mapped(rank, mapped));
            return Ok(());
        }
        self.check_reachable(rank, DOING)?;
        self.wait(DOING, |driven| {
            if !driven.is_clear(self, rank)? {
                return Ok(false);
            }
            // Held while the ring is posted, not while it waits for room. The drop of the bell waits for rings in flight.
            let ring = &mut Operation::<&[u8]>::Ring { offset: driven.networks.to(rank).ring_word(remote) };
            match claim.hold(&self.changes, || ring.post(driven.networks.to(rank), rank)) {
                None => Ok(true),
                Some(Ok(sent)) => Ok(sent == Sent::Done),
                Some(Err(error)) => Err(self.failed(driven, error, rank, DOING)),
            }
        })?;
        self.nudge_after_ring(rank);
        Ok(())
    }

    /// Runs the actions that are due, without the lock, since they may use the context. Returns how many ran: a wait polls again before it
    /// sleeps if any did.
    pub(super) fn happen_due(&self) -> usize {
        let mut done = 0;
        loop {
            let next = self.driven().tracking.due.pop_front();
            let Some((event, outcome)) = next else { return done };
            self.happen(event, outcome);
            done += 1;
        }
    }

    /// Makes progress until `ready` holds. The end of operations of this context that are in flight makes `ready` hold; they end also when
    /// a rank is lost. If `ready` neither holds nor fails at once, an operation is in flight over a network.
    ///
    /// # Errors
    /// Of `ready`; [`Error::InvalidArgument`] if the world has ended and nothing of this context is in flight; as [`Stream::wait_unless`].
    pub(crate) fn wait_in_flight(&self, doing: &'static str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
        self.check_own(doing)?;
        if ready()? {
            return Ok(());
        }
        self.wait_unless(doing, Ends::Never, |driven| match ready()? {
            false if self.is_over() && driven.tracking.is_empty() => Err(Self::ended(doing)),
            outcome => Ok(outcome),
        })
    }

    /// Makes progress until `ready` holds. Events of this context make it hold.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died; that of an operation of this context that failed; [`Error::InvalidArgument`] if the world
    /// has ended and nothing of this context is in flight; [`Error::InsideHandler`]; as [`Stream::check_own`].
    pub(crate) fn wait_events(&self, doing: &'static str, mut ready: impl FnMut() -> bool) -> Result<()> {
        self.check_own(doing)?;
        if ready() {
            return Ok(());
        }
        if self.network.is_some() {
            // Else the error of an operation that was counted would wait for a flush, which does not come.
            let mut fault = None;
            self.wait_for(doing, || {
                ready() || {
                    let mut driven = self.driven();
                    fault = driven.next_fault();
                    if fault.is_none() && self.is_over() && driven.tracking.is_empty() {
                        fault = Some(Self::ended(doing));
                    }
                    fault.is_some()
                }
            })?;
            return fault.map_or(Ok(()), Err);
        }
        let home = self.home.engine();
        if let Some(engine) = &home {
            engine.check_outside_handler(doing)?;
        }
        while !ready() {
            if self.is_over() {
                return Err(Self::ended(doing));
            }
            // The engine also lets receipts end that a rank which has left still owes.
            let lost = home.as_ref().map_or_else(|| self.cuts.first_lost(&self.job), |engine| engine.first_lost());
            if let Some((rank, cause)) = lost {
                return Err(Error::PeerLost { rank, cause, doing: doing.into() });
            }
            if home.as_ref().is_none_or(|engine| engine.turn() == 0) {
                rustix::thread::sched_yield();
            }
        }
        Ok(())
    }

    /// Whether the engine, which took the receipts of messages, is gone.
    fn is_over(&self) -> bool {
        // Relaxed: the flag orders nothing. A caller that does not see it set yet asks again.
        self.home.shared.over.load(Ordering::Relaxed)
    }

    #[cold]
    fn ended(doing: &'static str) -> Error {
        let why =
            "the world of the context has ended, and nothing that the context has in flight can end this wait".into();
        Error::InvalidArgument { operation: doing, why }
    }
}

impl Driven {
    /// Advances the tracked operations. The events of those that end become due.
    pub(super) fn advance_tracked(&mut self, stream: &Stream) -> usize {
        if self.tracking.operations.is_empty() {
            return 0;
        }
        let (mut operations, mut due) = (std::mem::take(&mut self.tracking.operations), VecDeque::new());
        let done = Tracked::advance_all(&mut operations, &mut Driving { stream, driven: self }, &mut due);
        self.tracking.operations.append(&mut operations);
        self.tracking.due.append(&mut due);
        done
    }
}
