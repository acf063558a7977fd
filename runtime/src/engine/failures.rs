//! Failed peers, as this rank's own stream of operations sees them.

use std::cell::Cell;

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

impl Engine {
    pub(super) fn view(&self) -> View<'_> {
        let simulated = self.pace().map(|pace| pace as &dyn SimulatedPeers);
        View { job: &self.job, simulated, rank: self.rank, size: self.size }
    }

    /// The rank that died first, or to which the connection is lost.
    pub(super) fn first_lost(&self) -> Option<(usize, Loss)> {
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
