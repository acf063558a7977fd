//! Operations of a context: puts, gets, atomics, rings and flushes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use super::super::claim::Claim;
use super::super::operation::{Atomic, Change, Get, HeapRange, Issuer, Operation, Post};
use super::super::remote_access::{Answer, Fetched};
use super::super::straight::Local;
use super::wait::Ends;
use super::{Driven, Engine, Stream};
use crate::error::{Error, Result};
use crate::memory::copy;
use crate::thread::token;
use crate::transport::Sent;

/// A context and its locked network state, as the [`Issuer`] of its operations.
pub(super) struct Driving<'a> {
    pub(super) stream: &'a Stream,
    pub(super) driven: &'a mut Driven,
}

impl Issuer for Driving<'_> {
    fn largest_get(&self) -> usize {
        self.driven.networks.largest_get()
    }

    fn mapped(&self, rank: usize) -> Option<*mut u8> {
        self.stream.mapped_slot(rank)
    }

    /// Nothing to check: a phase of the memory ends only after the contexts' operations on that memory have ended.
    fn check_claim(&self, _: Option<Claim>, _: &'static str, _: usize) -> Result<()> {
        Ok(())
    }

    fn request(&mut self, doing: &'static str, rank: usize, post: Post<'_>) -> Result<Option<Arc<Answer>>> {
        if !self.driven.is_clear(self.stream, rank)? {
            return Ok(None);
        }
        post(self.driven.networks.to(rank)).or_else(|error| {
            let error = self.stream.failed(self.driven, error, rank, doing);
            self.driven.unless_undecided(rank, error, None)
        })
    }

    fn is_answered(&mut self, doing: &'static str, rank: usize, answer: &Answer) -> Result<bool> {
        let answered = self.stream.answered(self.driven, doing, rank, answer);
        answered.or_else(|error| self.driven.unless_undecided(rank, error, false))
    }

    fn keeps(&self, _: usize) -> bool {
        false
    }

    fn has_lane(&self, _: usize) -> bool {
        false
    }
}

impl Stream {
    /// Writes `bytes` at `offset` of the slot of `rank`, in bounds. The caller may change `bytes` when this returns.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn put(&self, doing: &'static str, rank: usize, offset: usize, bytes: &[u8]) -> Result<()> {
        if let Some(slot) = self.mapped_slot(rank) {
            // SAFETY: a mapped slot; the caller guarantees that the range is inside.
            unsafe { copy::put(slot.add(offset), bytes.as_ptr(), bytes.len()) };
            self.announce(rank);
            return Ok(());
        }
        self.check_reachable(rank, doing)?;
        // SAFETY: the bytes are borrowed until this function returns.
        if unsafe { self.straight(doing, rank, offset, Local::From(bytes.as_ptr()), bytes.len()) }? {
            return Ok(());
        }
        self.perform(doing, rank, Operation::Put { offset, bytes, done: 0, after: false, tell: false })
    }

    /// Posts all of an operation. Blocks while there is no room.
    pub(super) fn perform(&self, doing: &'static str, rank: usize, mut operation: Operation<&[u8]>) -> Result<()> {
        self.wait_unless(doing, Ends::Of(rank), |driven| {
            if !driven.is_clear(self, rank)? {
                return Ok(false);
            }
            let posted = driven.post(self, doing, rank, &mut operation).map_err(|error| self.told(error));
            Ok(posted? == Sent::Done)
        })
    }

    /// In virtual time, tells the simulator that this rank has stored to the memory of `rank`: the simulator sees no stores, and `rank` may
    /// wait for this one.
    pub(super) fn announce(&self, rank: usize) {
        if self.network.as_ref().is_some_and(|network| network.paced)
            && let Some(pace) = self.driven().networks.pace()
        {
            pace.notify(rank);
        }
    }

    /// Called after a put to memory of `rank`. If the put was a store, wakes `rank` if it sleeps.
    #[inline]
    pub(crate) fn tell_stored(&self, rank: usize) {
        if self.is_mapped(rank) {
            self.stored(rank);
        }
    }

    /// Called after a store to memory of `rank`, which is mapped: wakes `rank` if it sleeps.
    #[inline]
    pub(crate) fn stored(&self, rank: usize) {
        if self.sleeps(rank) {
            self.wake(rank);
        }
        self.announce(rank);
    }

    /// Reads bytes at `offset` of the slot of `rank`, in bounds.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn get(&self, doing: &'static str, rank: usize, offset: usize, into: &mut [u8]) -> Result<()> {
        if let Some(slot) = self.mapped_slot(rank) {
            // SAFETY: a mapped slot; the caller guarantees that the range is inside.
            unsafe { copy::get(into.as_mut_ptr(), slot.add(offset), into.len()) };
            return Ok(());
        }
        self.check_reachable(rank, doing)?;
        // SAFETY: the bytes are borrowed until this function returns.
        if unsafe { self.straight(doing, rank, offset, Local::Into(into.as_mut_ptr()), into.len()) }? {
            return Ok(());
        }
        if into.len() <= self.driven().networks.largest_get() {
            return self.get_short(doing, rank, offset, into);
        }
        let (remote, local) = (HeapRange { rank, offset, len: into.len() }, Local::Into(into.as_mut_ptr()));
        // SAFETY: the bytes are borrowed until this function returns.
        unsafe { self.transfer(doing, remote, local, None) }
    }

    /// A get of `len` bytes at `offset` of the slot of `rank`, in bounds. `rank` is reached over the network. Nothing is posted yet.
    pub(crate) fn begin_get(&self, rank: usize, offset: usize, len: usize) -> Get {
        Get::new(self.driven().networks.largest_get(), None, [HeapRange { rank, offset, len }])
    }

    /// Advances `get` as far as possible without waiting, and writes what has arrived to `into`. Returns whether the get is complete.
    ///
    /// # Errors
    /// As [`Stream::get`], except that it never waits.
    pub(crate) fn go_on(&self, doing: &'static str, get: &mut Get, into: &mut [u8]) -> Result<bool> {
        self.check_own(doing)?;
        let mut driven = self.driven();
        driven.turn(self);
        let done = driven.at_once(|driven| get.advance(&mut Driving { stream: self, driven }, doing, into))?;
        if !done {
            self.check_none_lost(&driven, doing)?
        }
        Ok(done)
    }

    /// # Errors
    /// [`Error::PeerLost`] if a rank failed.
    fn check_none_lost(&self, driven: &Driven, doing: &'static str) -> Result<()> {
        match self.first_lost(driven) {
            Some((rank, cause)) => Err(Error::PeerLost { rank, cause, doing: doing.into() }),
            None => Ok(()),
        }
    }

    /// Does an atomic over the network at `offset` of the slot of `rank`, in bounds. Returns the former value.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn atomic(&self, doing: &'static str, rank: usize, offset: usize, change: Change) -> Result<u64> {
        match self.insist(doing, rank, |network| network.atomic_now(rank, offset, change))? {
            Fetched::Now(word) => Ok(word),
            Fetched::Later(answer) => {
                self.wait_unless(doing, Ends::Of(rank), |driven| self.answered(driven, doing, rank, &answer))?;
                Ok(answer.word.load(Ordering::Relaxed))
            }
        }
    }

    /// Posts an atomic. Blocks while there is no room.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn post_atomic(
        &self,
        doing: &'static str,
        rank: usize,
        offset: usize,
        change: Change,
    ) -> Result<Atomic> {
        let answer = self.insist(doing, rank, |network| network.atomic(rank, offset, change))?;
        Ok(Atomic::posted(rank, offset, change, answer))
    }

    /// Makes progress once. Returns the former value that `atomic` fetched, if it has arrived.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn found(&self, doing: &'static str, atomic: &mut Atomic) -> Result<Option<u64>> {
        self.check_own(doing)?;
        let mut driven = self.driven();
        driven.turn(self);
        match driven.at_once(|driven| atomic.advance(&mut Driving { stream: self, driven }, doing))? {
            None => self.check_none_lost(&driven, doing).map(|()| None),
            found => Ok(found),
        }
    }

    pub(super) fn answered(
        &self,
        driven: &mut Driven,
        doing: &'static str,
        rank: usize,
        answer: &Answer,
    ) -> Result<bool> {
        match answer.outcome() {
            None => Ok(false),
            Some(outcome) => outcome.map(|()| true).map_err(|error| self.failed(driven, error, rank, doing)),
        }
    }

    /// Rings a bell of `rank`, after everything that this context has put there: adds one to the word at offset `mapped` of the slot with
    /// the processor if the slot is mapped, else to the word at offset `remote` over the network.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    #[inline]
    pub(crate) fn ring(&self, doing: &'static str, rank: usize, mapped: usize, remote: usize) -> Result<()> {
        if self.network.is_some() {
            return self.ring_network(doing, rank, mapped, remote);
        }
        self.ring_mapped(rank, mapped);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn ring_mapped(&self, rank: usize, offset: usize) {
        // SAFETY: an aligned word of a mapped slot, which the caller guarantees to be inside; only touched as this atomic.
        let word = unsafe { AtomicU64::from_ptr(self.node.slot(rank).add(offset).cast()) };
        // Atomic, since other contexts add to the word too. Release pairs with the Acquire load of the rank that waits on the bell.
        word.fetch_add(1, Ordering::Release);
        if self.sleeps(rank) {
            self.wake(rank);
        }
    }

    #[cold]
    fn ring_network(&self, doing: &'static str, rank: usize, mapped: usize, remote: usize) -> Result<()> {
        if self.is_mapped(rank) {
            // Puts of this context to `rank` that are in flight over the network must be in effect before the ring.
            self.wait(doing, |driven| driven.is_settled(self, doing, rank))?;
            self.ring_mapped(rank, mapped);
            return Ok(());
        }
        self.check_reachable(rank, doing)?;
        let offset = self.driven().networks.to(rank).ring_word(remote);
        self.perform(doing, rank, Operation::Ring { offset })?;
        self.nudge_after_ring(rank);
        Ok(())
    }

    /// Wakes `rank` after a ring over the network, if the network does not wake it.
    pub(super) fn nudge_after_ring(&self, rank: usize) {
        self.driven().nudge_after_ring(self, rank);
    }

    /// Whether `rank` sleeps or is about to. The caller has stored what `rank` may wait for before this call.
    #[inline(always)]
    pub(super) fn sleeps(&self, rank: usize) -> bool {
        self.job.sleep_word(rank).must_wake(self.fences)
    }

    #[cold]
    pub(super) fn wake(&self, rank: usize) {
        self.job.wake(rank);
        if self.network.is_some() {
            let mut driven = self.driven();
            if let Some(pace) = driven.networks.pace() {
                return pace.notify(rank);
            }
            driven.nudges.push((rank, true));
            driven.nudge(self);
        }
    }

    /// Waits until all puts and rings of this context at `rank` are in effect there.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn flush(&self, doing: &'static str, rank: usize) -> Result<()> {
        fence(Ordering::SeqCst);
        if self.network.is_none() || rank == self.rank {
            return self.check_own(doing);
        }
        self.wait(doing, |driven| match driven.next_fault() {
            Some(error) => Err(error),
            None => driven.is_settled(self, doing, rank),
        })
    }

    /// Whether all puts and rings of this context at `rank` are in effect there. Makes progress once.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn is_flushed(&self, doing: &'static str, rank: usize) -> Result<bool> {
        self.check_own(doing)?;
        if self.network.is_none() || rank == self.rank {
            return Ok(true);
        }
        let mut driven = self.driven();
        driven.turn(self);
        if let Some(error) = driven.next_fault() {
            return Err(error);
        }
        let done = driven.at_once(|driven| driven.is_settled(self, doing, rank))?;
        if !done {
            self.check_none_lost(&driven, doing)?
        }
        Ok(done)
    }

    /// Waits until nothing of this context is in flight.
    ///
    /// # Errors
    /// As [`Stream::wait`]; errors of earlier puts, each once.
    pub(crate) fn flush_all(&self, doing: &'static str) -> Result<()> {
        fence(Ordering::SeqCst);
        if self.network.is_none() {
            return self.check_own(doing);
        }
        self.wait(doing, |driven| match driven.next_fault() {
            Some(error) => Err(error),
            None => driven.is_quiet(self, doing),
        })
    }

    /// Orders puts: at each rank, puts of this context before this call are in effect before its later puts.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn order(&self, doing: &'static str) -> Result<()> {
        fence(Ordering::SeqCst);
        self.check_own(doing)?;
        if self.network.is_some() {
            let driven = self.driven();
            // The next flush returns the error for a rank that cannot be reached any more.
            let _ = driven.networks.order();
        }
        Ok(())
    }

    /// As [`Stream::flush_all`], called by the thread that uses the rank's engine. Errors of operations are kept for the context's next flush.
    pub(super) fn drain(&self, doing: &'static str, engine: &Engine, ends: Ends) -> Result<()> {
        let Some(network) = &self.network else { return Ok(()) };
        let _draining = Draining::new(&network.draining);
        self.check_own(doing)?;
        let mut is_quiet = |driven: &mut Driven| match driven.is_quiet(self, doing) {
            Ok(quiet) => Ok(quiet),
            Err(error) => {
                driven.faults.push_back(error);
                Ok(false)
            }
        };
        if is_quiet(&mut self.driven())? {
            return Ok(());
        }
        self.wait_long(doing, Some(engine), ends, &mut is_quiet)
    }
}

/// Keeps other threads off the context while this thread drains it. The drop lets them in again, also if a handler panics.
struct Draining<'a>(&'a AtomicUsize);

impl<'a> Draining<'a> {
    fn new(drainer: &'a AtomicUsize) -> Draining<'a> {
        // Relaxed: the lock orders the state that it guards. This value only keeps other threads from taking the lock.
        drainer.store(token(), Ordering::Relaxed);
        Draining(drainer)
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
