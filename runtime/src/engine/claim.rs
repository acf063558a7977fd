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
    /// Tells rank 0 which blocks were dropped here, when nothing of this rank is in flight to them: rank 0 may give their memory to an
    /// allocation that is under way.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn hand_back(&self) -> Result<()> {
        let dropped = self.take_dropped()?;
        if !dropped.is_empty() {
            self.quiet("allocation")?;
        }
        self.tell_dropped(dropped)
    }

    /// The blocks that were dropped here, of which rank 0 has to be told. Contexts have nothing in flight to them; this rank's own
    /// operations may be.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn take_dropped(&self) -> Result<Vec<usize>> {
        self.quiet_contexts("allocation")?;
        Ok(self.blocks.take_released())
    }

    /// Tells rank 0 of them. The rings may be in flight afterwards.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn tell_dropped(&self, dropped: Vec<usize>) -> Result<()> {
        dropped.into_iter().try_for_each(|offset| self.remote_ring(0, offset))
    }
}
