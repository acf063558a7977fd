//! Failed peers, as this rank's own stream of operations sees them.

use std::cell::Cell;
use std::sync::Arc;

use super::Engine;
use crate::error::{Error, Loss, Result};
use crate::membership::liveness::{SimulatedPeers, View};
use crate::transport;

/// See [`Engine::begin_polling`].
pub(super) struct Polling<'a> {
    flag: &'a Cell<bool>,
    before: bool,
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.flag.set(self.before);
    }
}

/// See [`Engine::ignore_losses`].
pub(crate) struct Ignoring<'a>(&'a Engine);

impl Drop for Ignoring<'_> {
    fn drop(&mut self) {
        self.0.ignores_losses.set(false);
    }
}

impl Engine {
    pub(super) fn view(&self) -> View<'_> {
        let simulated = self.pace().map(|pace| pace as &dyn SimulatedPeers);
        View { job: &self.job, simulated, rank: self.rank, size: self.size }
    }

    /// The rank that died first, or to which the connection is lost, but for those that this rank goes on without. `None` also while
    /// this rank [agrees](Engine::ignore_losses) on who is gone.
    pub(super) fn first_lost(&self) -> Option<(usize, Loss)> {
        if self.ignores_losses.get() {
            return None;
        }
        let lost = self.losses.borrow().first(&self.job);
        if (lost.is_some() || self.job.any_left()) && self.receipts().are_open() {
            // A context opens receipts without this mark. The next polls end those that will never come.
            self.tasks.any.set(true);
        }
        lost
    }

    /// # Errors
    /// [`Error::PeerLost`] if a rank died, or a connection to one is lost.
    pub(crate) fn check_none_lost(&self, doing: &'static str) -> Result<()> {
        match self.first_lost() {
            Some((rank, cause)) => Err(Error::PeerLost { rank, cause, doing: doing.into() }),
            None => Ok(()),
        }
    }

    /// Marks ranks of this host whose process has ended.
    pub(super) fn check_for_dead(&self) {
        self.losses.borrow_mut().check_for_dead(&self.view());
    }

    /// The error of an operation of this rank's own stream on `rank`. Outside polls and handlers this waits for what the roster knows
    /// of a peer that cannot be reached.
    pub(super) fn remote_error(&self, error: transport::Error, rank: usize, doing: &'static str) -> Error {
        let (mut losses, error) = (self.losses.borrow_mut(), error.at(doing, rank));
        match self.may_wait() {
            true => losses.error(&self.view(), error, rank, doing),
            false => losses.error_at_once(&self.view(), error, rank, doing),
        }
    }

    /// Whether a rank is lost that a wait of this rank has to tell of.
    #[inline]
    pub(super) fn any_new_loss(&self) -> bool {
        !self.ignores_losses.get() && self.job.any_lost() && self.losses.borrow().cuts().is_any_new(&self.job)
    }

    /// As long as the result lives, no wait ends because a rank has failed.
    pub(crate) fn ignore_losses(&self) -> Ignoring<'_> {
        self.ignores_losses.set(true);
        Ignoring(self)
    }

    /// From now on this rank goes on without `rank`: no wait ends because of it, and operations on it fail.
    pub(crate) fn accept_loss(&self, rank: usize) {
        if self.losses.borrow().cuts().accept(rank) {
            self.accepted.set(self.accepted.get() + 1);
        }
        self.forget_faults(|error| matches!(error, Error::PeerLost { rank: lost, .. } if *lost == rank));
    }

    /// Whether any rank has ended, in any way, or cannot be reached any more.
    pub(crate) fn any_gone(&self) -> bool {
        self.job.any_gone() || !self.losses.borrow().cuts().is_empty()
    }

    /// Whether `rank` has ended, in any way, or cannot be reached any more. Nothing will come from it but what is on the way.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        self.job.loss(rank).is_some() || self.losses.borrow().cuts().contains(rank)
    }

    /// The error of what waits for `rank`, which [is gone](Engine::is_gone).
    #[cold]
    pub(crate) fn gone(&self, rank: usize, doing: &'static str) -> Error {
        let cut = || Error::PeerLost { rank, cause: Loss::Disconnected, doing: doing.into() };
        self.check_alive(rank, doing).err().unwrap_or_else(cut)
    }

    /// Looks for peers whose process has ended, where nobody else does. For a thread that does not wait in this engine; not often, since
    /// it makes a system call for each peer of this host.
    #[cold]
    pub(crate) fn look_for_dead_peers(&self) {
        if !self.job.supervised() && self.pace().is_none() {
            self.check_for_dead();
        }
    }

    /// Whether this rank goes on without some rank.
    #[inline(always)]
    pub(crate) fn any_accepted(&self) -> bool {
        self.accepted.get() != 0
    }

    /// How many ranks this rank goes on without. Changes only upwards. Read in every poll of a collective.
    #[inline(always)]
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.get()
    }

    /// Of these ranks the first that this one goes on without.
    pub(crate) fn first_accepted(&self, ranks: impl IntoIterator<Item = usize>) -> Option<(usize, Loss)> {
        let cuts = Arc::clone(self.losses.borrow().cuts());
        let rank = ranks.into_iter().find(|rank| cuts.is_accepted(*rank))?;
        Some((rank, self.job.loss(rank).unwrap_or(Loss::Unknown)))
    }

    /// Enters lost ranks in the roster that nobody else enters: ranks to which this one has lost its connection, ranks whose process has
    /// ended without a supervisor, and ranks that a simulated network has lost.
    pub(crate) fn enter_losses(&self) {
        if self.job.loss(self.rank).is_some() {
            // The others go on without this rank, so it enters nothing about them.
            return;
        }
        let cuts = Arc::clone(self.losses.borrow().cuts());
        if !cuts.is_empty() {
            cuts.ranks().into_iter().for_each(|rank| self.enter_loss(rank, Loss::Disconnected));
        }
        if let Some(peers) = self.view().simulated {
            (0..self.size).filter(|rank| peers.is_dead(*rank)).for_each(|rank| self.enter_loss(rank, Loss::Unknown));
        } else if !self.job.supervised() {
            self.check_for_dead();
        }
    }

    /// Whether all puts of this rank to living ranks are in effect, and no message waits for room. Ignores losses of ranks: the network
    /// reports each once.
    ///
    /// # Errors
    /// Those of operations on ranks that live.
    pub(crate) fn is_quiet_but_for_lost(&self, doing: &'static str) -> Result<bool> {
        if self.has_pending() || self.has_unposted() {
            return Ok(false);
        }
        match self.try_quiet(doing) {
            Err(Error::PeerLost { .. }) => Ok(false),
            outcome => outcome,
        }
    }

    /// Waits until [`Engine::is_quiet_but_for_lost`], and `also` holds, or `unless` does.
    ///
    /// # Errors
    /// As [`Engine::wait_together`]; those of operations on ranks that live.
    pub(crate) fn quiet_but_for_lost(
        &self,
        doing: &'static str,
        also: impl Fn() -> bool,
        unless: impl Fn() -> bool,
    ) -> Result<()> {
        let mut outcome = Ok(());
        self.wait_together(doing, || {
            self.enter_losses();
            unless()
                || match self.is_quiet_but_for_lost(doing) {
                    Ok(quiet) => quiet && also(),
                    Err(error) => {
                        outcome = Err(error);
                        true
                    }
                }
        })?;
        outcome
    }

    fn enter_loss(&self, rank: usize, cause: Loss) {
        if self.job.loss(rank).is_none() {
            self.job.mark_lost(rank, cause);
            self.notify_all();
        }
    }

    fn may_wait(&self) -> bool {
        !(self.polling.get() || self.interface.delivering())
    }

    /// Inside polls and handlers: whether `rank` cannot be reached, and the roster may still tell why. What was to be done there is
    /// not refused yet: a later poll does it, or knows the error.
    pub(super) fn is_undecided(&self, rank: usize) -> bool {
        !self.may_wait() && self.losses.borrow().is_doubted(rank)
    }

    /// As long as the result lives, operations of this rank run inside a poll: no error waits for the roster.
    pub(super) fn begin_polling(&self) -> Polling<'_> {
        Polling { flag: &self.polling, before: self.polling.replace(true) }
    }
}
