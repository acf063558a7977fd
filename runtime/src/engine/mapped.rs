//! Operations on ranks whose memory is mapped here: all ranks, or, where the others are reached over a network, those of this node
//! (see [`Routes`](super::Routes)).
//!
//! The processor writes and reads their memory, and messages to them go through lanes. Signals that this rank has sent to a
//! mapped rank over the network are in effect before a bell or a message that follows them there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Engine;
use super::networks::BriefWait;
use super::operation::Operation;
use super::remote_access::Pace;
use super::routes::Route;
use crate::error::Result;
use crate::sleep::Fences;
use crate::transport::Sent;

/// Longest sleep in virtual time while an operation waits for room: a receiver that drops a payload does not wake the sender.
const ROOM: Duration = Duration::from_millis(1);

impl Engine {
    /// Wakes `rank`, which is mapped, if it sleeps. The caller has stored what `rank` may wait for before.
    pub(crate) fn wake_if_asleep(&self, rank: usize) {
        self.interface.wake_if_asleep(rank);
        self.wake_sleepers();
    }

    /// A function with which other threads of this rank end its sleep. A sleep on a network ends by itself.
    pub(crate) fn waker(&self) -> impl Fn() + Send + Sync + use<> {
        let (job, rank) = (Arc::clone(&self.job), self.rank);
        move || job.wake(rank)
    }

    /// Wakes mapped ranks that were found asleep on the network.
    #[inline]
    pub(super) fn wake_sleepers(&self) {
        while let Some(rank) = self.interface.take_asleep() {
            self.wake_sleeper(rank);
        }
    }

    #[cold]
    fn wake_sleeper(&self, rank: usize) {
        if self.networks.is_empty() {
            return;
        }
        // The first to see it asleep wakes it, for all that write meanwhile.
        self.job.wake(rank);
        match self.networks.pace() {
            Some(pace) => pace.notify(rank),
            None if matches!(self.networks.to(rank).wake(rank), Ok(Sent::NoRoom)) => self.remote.owe_nudge(rank, true),
            None => {}
        }
    }

    /// Something was stored at a mapped rank. In virtual time that is an event; else a rank that waits for it alone polls again by
    /// itself.
    pub(crate) fn stored(&self, rank: usize) {
        if self.routes.has_lanes() && self.networks.pace().is_some() {
            self.wake_if_asleep(rank);
        }
    }

    /// Adds one to the word at `offset` of the slot of `rank`, which is mapped. No network adds to that word.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    pub(crate) fn ring_mapped(&self, rank: usize, offset: usize) -> Result<()> {
        self.do_or_keep(rank, Operation::MappedRing { offset })
    }

    /// One attempt at [`Engine::ring_mapped`].
    pub(super) fn try_ring_mapped(&self, rank: usize, offset: usize) -> Result<Sent> {
        if !self.is_clear(rank)? {
            return Ok(Sent::NoRoom);
        }
        // SAFETY: an aligned word of a mapped slot, in bounds, as the caller guarantees.
        let word = unsafe { AtomicU64::from_ptr(self.node.slot(rank).add(offset).cast()) };
        // Other mapped ranks add to it too. Release pairs with the Acquire load in `Words::count`.
        word.fetch_add(1, Ordering::Release);
        self.wake_if_asleep(rank);
        Ok(Sent::Done)
    }

    /// Whether all that the network was to do at `rank`, which is mapped, is in effect.
    pub(super) fn is_clear(&self, rank: usize) -> Result<bool> {
        if !self.remote.has_signalled() {
            return Ok(true);
        }
        self.networks.to(rank).settled(rank).map_err(|error| self.remote_error(error, rank, "ringing a bell"))
    }

    /// Waits briefly for a signal to be in effect at `rank`, if this rank could see before that it is not. Delivers no
    /// message, and does nothing inside a handler.
    pub(crate) fn settle_mapped(&self, rank: usize) {
        if self.routes.all_mapped() || self.routes.to(rank) != Route::Mapped || self.outbox.is_at_once() {
            return;
        }
        let brief = BriefWait::new(&self.networks);
        while !self.interface.delivering()
            && (self.outbox.keeps_write_for(rank) || matches!(self.is_clear(rank), Ok(false)))
            && brief.goes_on()
        {
            self.flush_pending();
        }
    }

    /// Sleeps in virtual time, to be woken by mapped ranks too. `false`: nothing can happen any more.
    pub(super) fn sleep_virtual(&self, pace: &dyn Pace, until: Option<Duration>) -> bool {
        if !self.routes.is_mixed() {
            return pace.block(until);
        }
        let room = self.outbox.any().then(|| pace.now() + ROOM);
        let word = self.job.sleep_word(self.rank);
        self.wakeup.disarm();
        // Virtual time passes only while every rank waits, so nothing has to be checked again.
        word.announce(Fences::Full, || false);
        let goes_on = pace.block(until.into_iter().chain(room).min());
        word.withdraw();
        goes_on
    }
}
