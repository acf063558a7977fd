//! Blocks of the symmetric heap, as futures see them, and blocks that were dropped.

use super::Engine;
use crate::error::{CalledAt, Error, Result};
use crate::memory::blocks::Changes;

/// A block of the symmetric heap, in the phase that it was in when a future was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    block: usize,
    changes: u64,
}

impl Claim {
    /// Runs `act` if the block is in the phase that was claimed; it stays there until `act` has returned. For any thread.
    pub(super) fn hold<R>(self, changes: &Changes, act: impl FnOnce() -> R) -> Option<R> {
        changes.while_at(self.block, self.changes, act)
    }
}

impl Engine {
    /// The block of this number, in its present phase.
    pub(crate) fn claim(&self, block: usize) -> Claim {
        Claim { block, changes: self.blocks.changes(block) }
    }

    /// # Errors
    /// [`Error::PhaseOver`] if the block is in another phase than when it was claimed, or is another one.
    pub(super) fn check_claim(&self, claim: Option<Claim>, doing: &'static str, rank: usize) -> Result<()> {
        match claim {
            Some(Claim { block, changes }) if self.blocks.changes(block) != changes => {
                Err(Error::PhaseOver { operation: doing, rank, place: CalledAt::default() })
            }
            _ => Ok(()),
        }
    }

    /// Queues the release of a block for the next [`Engine::hand_back`]: a drop neither blocks nor fails, and a ring over a network
    /// may do both. `offset` is the word in rank 0's slot that counts the ranks that dropped the block.
    pub(crate) fn release(&self, offset: usize) {
        self.releases.borrow_mut().push(offset);
    }

    /// Tells rank 0 which blocks were dropped here. Operations on them may be in flight: the exchange that follows waits for these
    /// and for the rings, before rank 0 counts.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn hand_back(&self) -> Result<()> {
        self.quiet_contexts("allocation")?;
        let releases = self.releases.take();
        releases.into_iter().try_for_each(|offset| self.remote_ring(0, offset))
    }
}
