//! Small all-to-all exchanges: each rank shows up to [`EXCHANGE_LEN`] bytes, and sees what all others show.

use std::cell::Cell;

use super::barrier::Barrier;
use crate::engine::Engine;
use crate::error::Result;
use crate::memory::copy;
use crate::memory::layout::EXCHANGE_LEN;

/// This rank's part in all exchanges of its world.
///
/// Two boards are used in turn. A rank writes board b again only after the barrier of the exchange in between,
/// which everyone enters when done reading b.
#[derive(Debug, Default)]
pub struct Exchange {
    turn: Cell<bool>,
}

impl Exchange {
    /// Shows `bytes` to all and calls `see` with each rank's number and board. Collective.
    ///
    /// # Errors
    /// As the barrier.
    ///
    /// # Panics
    /// If `bytes` is longer than [`EXCHANGE_LEN`].
    pub fn all(
        &self,
        engine: &Engine,
        barrier: &Barrier,
        bytes: &[u8],
        mut see: impl FnMut(usize, &[u8; EXCHANGE_LEN]),
    ) -> Result<()> {
        assert!(bytes.len() <= EXCHANGE_LEN, "{} bytes in one exchange", bytes.len());
        let board = engine.layout.exchange + usize::from(self.turn.replace(!self.turn.get())) * EXCHANGE_LEN;
        // SAFETY: our own board; readers of its last use have entered a barrier since.
        unsafe { copy::copy(engine.node.slot(engine.rank).add(board), bytes.as_ptr(), bytes.len()) };
        barrier.enter(engine)?;
        let mut buffer = [0; EXCHANGE_LEN];
        for rank in 0..engine.size {
            // SAFETY: a committed board, not written again before this rank enters the next barrier.
            unsafe { copy::copy(buffer.as_mut_ptr(), engine.node.slot(rank).add(board), bytes.len()) };
            see(rank, &buffer);
        }
        Ok(())
    }
}
