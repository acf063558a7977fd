//! Failed peers, as this rank's own stream of operations sees them.

use super::Engine;
use crate::error::{Error, Loss, Result};
use crate::membership::liveness::{SimulatedPeers, View};
use crate::transport;

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

    /// The error of an operation of this rank's own stream on `rank`.
    pub(super) fn remote_error(&self, error: transport::Error, rank: usize, doing: &'static str) -> Error {
        self.losses.borrow_mut().error(&self.view(), error.at(doing, rank), rank, doing)
    }
}
