//! Ranks whose memory is mapped here: all of them, or, where the others are reached over a network, those of the own node.
//!
//! Near ranks are written to and read by the processor, and messages to them go through lanes. Atomics on a word that ranks
//! of other nodes may touch stay with the network, whose device and the processor are not atomic to each other. Signals that
//! this rank has sent to a near rank so are in effect before a bell or a message that follows them there.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Engine;
use super::far::{Far, Moment, Pace};
use super::operation::Operation;
use crate::bootstrap::nodes::Nodes;
use crate::error::Result;
use crate::transport::Sent;

/// Longest sleep in virtual time while something waits for room: who drops a payload tells nobody.
const ROOM: Duration = Duration::from_millis(1);

/// The ranks on the node of `rank`, itself among them.
pub(super) fn mates(nodes: &Nodes, rank: usize, size: usize) -> impl Iterator<Item = usize> {
    (0..size).filter(move |other| nodes.of(*other) == nodes.of(rank))
}

/// The ranks around `rank`, one after the other, that are on its node.
pub(super) fn around(nodes: &Nodes, rank: usize, size: usize) -> Range<usize> {
    let is_mate = |other: &usize| nodes.of(*other) == nodes.of(rank);
    let before = (0..rank).rev().take_while(is_mate).count();
    let after = (rank + 1..size).take_while(is_mate).count();
    rank - before..rank + 1 + after
}

impl Engine {
    /// Ranks whose memory is a pointer away, also to atomics: all of them, or none.
    pub fn reach(&self) -> usize {
        if self.far.is_some() { 0 } else { self.size }
    }

    /// Whether the memory of `rank` is mapped here.
    #[inline]
    pub fn is_near(&self, rank: usize) -> bool {
        self.far.is_none() || rank == self.rank || self.shares_with(rank)
    }

    /// Whether `rank` is near though others are reached over a network.
    #[inline]
    pub(super) fn shares_with(&self, rank: usize) -> bool {
        self.shares && self.nodes.of(rank) == self.nodes.of(self.rank)
    }

    /// Whether all of the ranks of the own node are near, and others are not.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Whether messages to `to` go through a lane though others go over a network. In virtual time a loop of messages to
    /// oneself would take none.
    pub(super) fn has_lane(&self, to: usize) -> bool {
        self.shares_with(to) && (to != self.rank || self.far().is_none_or(|far| far.pace().is_none()))
    }

    /// Ranks around this one, one after the other, that can be written to without a word to anybody.
    #[inline]
    pub fn near(&self) -> Range<usize> {
        self.near.clone()
    }

    /// Wakes `rank`, which is near, if it sleeps; call after what it waits for is stored.
    pub(crate) fn wake_if_asleep(&self, rank: usize) {
        self.interface.wake_if_asleep(rank);
        self.wake_mates();
    }

    /// Wakes near ranks that were found asleep on the network.
    #[inline]
    pub(super) fn wake_mates(&self) {
        while let Some(rank) = self.interface.take_asleep() {
            self.wake_mate(rank);
        }
    }

    #[cold]
    fn wake_mate(&self, rank: usize) {
        let Some(far) = self.far() else { return };
        // The first to see it asleep wakes it, for all that write meanwhile.
        self.job.wake(rank);
        match far.pace() {
            Some(pace) => pace.notify(rank),
            None if matches!(far.wake(rank), Ok(Sent::NoRoom)) => self.owe_nudge(rank, true),
            None => {}
        }
    }

    /// Something was put at a near rank. In virtual time that is an event; else who waits for it alone looks again by itself.
    pub(super) fn put_near(&self, rank: usize) {
        if self.shares && self.far().and_then(Far::pace).is_some() {
            self.wake_if_asleep(rank);
        }
    }

    /// Adds one to the word at `offset` of the slot of `rank`, which is near; this rank alone writes that word.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    pub(crate) fn ring_near(&self, rank: usize, offset: usize) -> Result<()> {
        self.do_or_keep(rank, Operation::Chime { offset })
    }

    /// One attempt at it.
    pub(super) fn chime(&self, rank: usize, offset: usize) -> Result<Sent> {
        if !self.is_clear(rank)? {
            return Ok(Sent::NoRoom);
        }
        // SAFETY: an aligned word of a mapped slot, in bounds by the caller's word.
        let word = unsafe { AtomicU64::from_ptr(self.node.slot(rank).add(offset).cast()) };
        // A single writer needs no locked add. Release pairs with the Acquire load of who counts.
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Release);
        self.wake_if_asleep(rank);
        Ok(Sent::Done)
    }

    /// Whether all that the network was to do at `rank`, which is near, is in effect.
    pub(super) fn is_clear(&self, rank: usize) -> Result<bool> {
        let Some(far) = self.far().filter(|_| self.signalled.get()) else { return Ok(true) };
        far.settled(rank).map_err(|error| self.far_error(error, rank, "ringing a bell"))
    }

    /// Waits a moment for a signal to be in effect at `rank`, if this rank could see before that it is not. Delivers no
    /// message, and does nothing inside a handler.
    pub(crate) fn settle_near(&self, rank: usize) {
        let Some(far) = self.far().filter(|_| rank != self.rank && self.shares_with(rank)) else { return };
        let moment = Moment::new(far);
        while !self.interface.delivering()
            && (self.keeps_write_for(rank) || matches!(self.is_clear(rank), Ok(false)))
            && moment.goes_on()
        {
            self.flush_pending();
        }
    }

    /// Sleeps in virtual time, to be woken by near ranks too. `false`: nothing can happen any more.
    pub(super) fn sleep_virtual(&self, pace: &dyn Pace, until: Option<Duration>) -> bool {
        if !self.shares {
            return pace.block(until);
        }
        let room = self.has_pending().then(|| pace.now() + ROOM);
        let word = self.job.sleep_word(self.rank);
        word.store(1, Ordering::SeqCst);
        let goes_on = pace.block(until.into_iter().chain(room).min());
        word.store(0, Ordering::SeqCst);
        goes_on
    }
}
