//! Bells: counters at a rank that others ring, to say that data is there.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Result;

/// The words of a bell: at each rank one for every ringer, so that ringing is a plain store and never loses a
/// count. The bell's count is their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// Where they begin in every slot.
    pub offset: usize,
}

/// Bytes of the words of a bell of `ranks` ringers.
pub fn words_len(ranks: usize) -> usize {
    ranks * size_of::<u64>()
}

impl Words {
    /// Adds one at `rank`. Everything this rank has put there before is visible to who sees the count.
    #[inline(always)]
    pub fn ring(self, engine: &Engine, rank: usize) {
        // SAFETY: inside a live allocation of the target's slot; this rank alone writes this word.
        let word = unsafe {
            let slot = engine.node.slot(rank).add(self.offset).cast::<u64>();
            AtomicU64::from_ptr(slot.add(engine.rank))
        };
        // A single writer needs no locked add. Release pairs with the Acquire load in `count`.
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Release);
        engine.interface.wake_if_asleep(rank);
    }

    /// Rings so far at this rank. Looks once, and delivers nothing.
    #[inline(always)]
    pub fn count(self, engine: &Engine) -> u64 {
        // SAFETY: inside a live allocation of our own slot, one word a rank.
        unsafe {
            let words = engine.node.slot(engine.rank).add(self.offset).cast::<u64>();
            (0..engine.size).map(|ringer| AtomicU64::from_ptr(words.add(ringer)).load(Ordering::Acquire)).sum()
        }
    }

    /// Waits until the count is at least `target`, and tells what it is then.
    pub(crate) fn wait(self, engine: &Rc<Engine>, target: u64, limit: Option<Duration>) -> Result<u64> {
        let mut count = 0;
        engine.wait_until("waiting for a bell", limit, || {
            count = self.count(engine);
            count >= target
        })?;
        Ok(count)
    }
}
