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
    /// This ringer's word in the slot of rank 0.
    mine: *mut u64,
    /// All words in this rank's own slot.
    here: *mut u64,
    stride: usize,
    /// Ranks whose words are a pointer away.
    reach: usize,
    /// Where this ringer's word lies in every slot.
    offset: usize,
}

/// Bytes of the words of a bell of `ranks` ringers.
pub fn words_len(ranks: usize) -> usize {
    ranks * size_of::<u64>()
}

impl Words {
    /// The words at `offset` of every slot.
    ///
    /// # Safety
    /// They are zeroed symmetric memory of [`words_len`] bytes that lives as long as the value and is used for nothing
    /// else.
    pub unsafe fn new(engine: &Engine, offset: usize) -> Words {
        // SAFETY: the caller's word.
        let (mine, here) = unsafe {
            let mine = engine.node.slot(0).add(offset).cast::<u64>().add(engine.rank);
            (mine, engine.node.slot(engine.rank).add(offset).cast())
        };
        let offset = offset + engine.rank * size_of::<u64>();
        Words { mine, here, stride: 1 << engine.node.stride_log2(), reach: engine.reach(), offset }
    }

    /// Adds one at `rank`. Everything this rank has put there before is visible to who sees the count.
    ///
    /// # Errors
    /// [`crate::Error::RankOutOfRange`]; over a network [`crate::Error::PeerLost`].
    #[inline(always)]
    pub fn ring(self, engine: &Engine, rank: usize) -> Result<()> {
        if rank >= self.reach {
            return self.ring_far(engine, rank);
        }
        // SAFETY: a live word, by the word given to `new`; this rank alone writes it.
        let word = unsafe { AtomicU64::from_ptr(self.mine.byte_add(rank * self.stride)) };
        // A single writer needs no locked add. Release pairs with the Acquire load in `count`.
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Release);
        engine.interface.wake_if_asleep(rank);
        Ok(())
    }

    #[cold]
    fn ring_far(self, engine: &Engine, rank: usize) -> Result<()> {
        engine.check_rank(rank, "ring")?;
        if rank != engine.rank {
            return engine.far_ring(rank, self.offset);
        }
        // SAFETY: as in `ring`; in our own slot.
        let word = unsafe { AtomicU64::from_ptr(self.mine.byte_add(rank * self.stride)) };
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Release);
        Ok(())
    }

    /// Rings so far at this rank. Looks once, and delivers nothing.
    #[inline(always)]
    pub fn count(self, engine: &Engine) -> u64 {
        // SAFETY: live words, one a rank, by the word given to `new`.
        let word = |ringer| unsafe { AtomicU64::from_ptr(self.here.add(ringer)) };
        (0..engine.size).map(|ringer| word(ringer).load(Ordering::Acquire)).sum()
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
