//! Blocks of the symmetric heap, as futures see them, and blocks that were dropped.

use super::Engine;
use crate::error::{CalledAt, Error, Result};
use crate::memory::blocks::{Blocks, Changes};

/// A block of the symmetric heap, in the phase that it was in when a future was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    block: usize,
    changes: u64,
}

impl Claim {
    /// The block of this number, in its present phase.
    pub(crate) fn new(blocks: &Blocks, block: usize) -> Claim {
        Claim { block, changes: blocks.changes(block) }
    }

    /// # Errors
    /// [`Error::PhaseOver`] if the block is in another phase than when it was claimed, or is another one.
    pub(super) fn check(self, blocks: &Blocks, doing: &'static str, rank: usize) -> Result<()> {
        match blocks.changes(self.block) == self.changes {
            true => Ok(()),
            false => Err(Error::PhaseOver { operation: doing, rank, place: CalledAt::default() }),
        }
    }

    /// Runs `act` if the block is in the phase that was claimed; it stays there until `act` has returned. For any thread.
    pub(super) fn hold<R>(self, changes: &Changes, act: impl FnOnce() -> R) -> Option<R> {
        changes.while_at(self.block, self.changes, act)
    }
}

impl Engine {
    /// Tells rank 0 which blocks were dropped here. Operations on them may be in flight: the exchange that follows waits for these
    /// and for the rings, before rank 0 counts.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn hand_back(&self) -> Result<()> {
        self.quiet_contexts("allocation")?;
        self.blocks.take_released().into_iter().try_for_each(|offset| self.remote_ring(0, offset))
    }
}
