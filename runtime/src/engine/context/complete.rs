//! Whether the operations of a context are complete, and the known losses of their target ranks.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::{Driven, Stream};
use crate::error::{Error, Loss, Result};

impl Stream {
    /// Whether nothing of this context is in flight. Makes progress once.
    ///
    /// # Errors
    /// The error of an earlier put that failed, once; [`Error::PeerLost`].
    pub(crate) fn is_complete(&self, doing: &'static str) -> Result<bool> {
        fence(Ordering::SeqCst);
        self.check_own(doing)?;
        if self.network.is_none() {
            return Ok(true);
        }
        let mut driven = self.driven();
        driven.turn(self);
        drop(driven);
        self.happen_due();
        let mut driven = self.driven();
        if let Some(error) = driven.next_fault() {
            return Err(error);
        }
        driven.at_once(|driven| driven.is_quiet(self, doing))
    }

    /// How `rank` was lost, according to the roster; `None` if it is not lost.
    pub(crate) fn loss(&self, rank: usize) -> Option<Loss> {
        if self.job.any_gone() { self.job.loss(rank) } else { None }
    }

    /// A rank that was lost or left before all puts of this context to it are known to be in effect. Returns each such rank once.
    /// [`Stream::is_complete`] does not wait for a rank that left, since that rank needs no put. For a rank that was lost it returns an
    /// error, which may name another rank that was lost earlier.
    pub(crate) fn take_unmet(&self) -> Option<usize> {
        self.network.as_ref().and_then(|_| self.driven().unmet.pop_first())
    }

    /// Whether nothing of this context is in flight to or from `rank`, which may be lost, and all puts to it are in effect. Makes progress
    /// once.
    ///
    /// # Errors
    /// [`Error::PeerLost`], which may name another rank that was lost earlier.
    pub(crate) fn is_over_with(&self, doing: &'static str, rank: usize) -> Result<bool> {
        let mut driven = self.driven();
        driven.turn(self);
        let settled = driven.at_once(|driven| driven.is_settled(self, doing, rank))?;
        Ok(settled
            && !driven.unmet.contains(&rank)
            && !driven.tracking.operations.iter().any(|tracked| tracked.is_of(rank)))
    }

    /// Virtual time, on a simulated network.
    pub(crate) fn virtual_time(&self) -> Option<Duration> {
        self.network.as_ref().and_then(|_| self.driven().networks.pace().map(|pace| pace.now()))
    }

    /// Waits until nothing of this context is in flight, for at most `limit`.
    ///
    /// # Errors
    /// As [`Stream::flush_all`]; [`Error::TimedOut`].
    pub(crate) fn wait_complete(&self, doing: &'static str, limit: Duration) -> Result<()> {
        if self.is_complete(doing)? {
            return Ok(());
        }
        let started = Instant::now();
        let now = |driven: &Driven| driven.networks.pace().map_or_else(|| started.elapsed(), |pace| pace.now());
        let end = now(&self.driven()).saturating_add(limit);
        let mut is_late = false;
        self.wait(doing, |driven| {
            if let Some(error) = driven.next_fault() {
                return Err(error);
            }
            let quiet = driven.is_quiet(self, doing)?;
            is_late = !quiet && now(driven) >= end;
            Ok(quiet || is_late)
        })?;
        if is_late { Err(Error::TimedOut { doing: doing.into(), after: limit }) } else { Ok(()) }
    }
}
