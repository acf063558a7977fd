//! Bells: counters at a rank that others ring, to say that data is there.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Result;

/// The words of a bell: at each rank one for every ringer, so that ringing is a plain store and never loses a
/// count. The bell's count is their sum. Where a network has notices a word comes first that the rank itself counts them
/// in: what the device adds to and what the processor adds to are not atomic to each other. The last word is that of the contexts
/// of all ranks that have the bell mapped: several threads add to it, atomically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// This ringer's word in the slot of rank 0.
    mine: *mut u64,
    /// All words in this rank's own slot.
    here: *mut u64,
    stride: usize,
    /// Ranks whose words are a pointer away.
    reach: usize,
    /// Where the bell lies in every slot: at the start of a line.
    offset: usize,
    /// Words before those of the ringers: one, or none.
    own: usize,
}

/// Bytes of the words of a bell.
pub fn words_len(engine: &Engine) -> usize {
    (own_words(engine) + engine.size + 1) * size_of::<u64>()
}

fn own_words(engine: &Engine) -> usize {
    usize::from(engine.rings_by_notice())
}

impl Words {
    /// The words at `offset` of every slot.
    ///
    /// # Safety
    /// They are zeroed symmetric memory of [`words_len`] bytes, at the start of a line, that lives as long as the value and
    /// is used for nothing else.
    pub unsafe fn new(engine: &Engine, offset: usize) -> Words {
        let own = own_words(engine);
        // SAFETY: the caller's word.
        let (mine, here) = unsafe {
            let mine = engine.node.slot(0).add(offset).cast::<u64>().add(own + engine.rank);
            (mine, engine.node.slot(engine.rank).add(offset).cast())
        };
        Words {
            mine,
            here,
            stride: 1 << engine.node.stride_log2(),
            reach: engine.routes.processor_atomics(),
            offset,
            own,
        }
    }

    /// Adds one at `rank`. Everything this rank has put there before is visible to who sees the count.
    ///
    /// # Errors
    /// [`crate::Error::RankOutOfRange`]; over a network [`crate::Error::PeerLost`].
    #[inline(always)]
    pub fn ring(self, engine: &Engine, rank: usize) -> Result<()> {
        if rank >= self.reach {
            return self.put_ring_far(engine, rank, self.offset, &[]);
        }
        // SAFETY: a live word, by the word given to `new`; this rank alone writes it.
        let word = unsafe { AtomicU64::from_ptr(self.mine.byte_add(rank * self.stride)) };
        // A single writer needs no locked add. Release pairs with the Acquire load in `count`.
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Release);
        engine.interface.wake_if_asleep(rank);
        Ok(())
    }

    /// Writes `bytes`, if any, at `offset` of the slot of `rank`, in bounds, and then rings, over the network.
    ///
    /// # Errors
    /// As [`Words::ring`].
    pub(crate) fn put_ring_far(self, engine: &Engine, rank: usize, offset: usize, bytes: &[u8]) -> Result<()> {
        engine.check_rank(rank, "ring")?;
        let word = self.offset + (self.own + engine.rank) * size_of::<u64>();
        if !engine.routes.is_mapped(rank) {
            return engine.far_put_ring(rank, offset, bytes, [self.offset, word]);
        }
        engine.far_put(rank, offset, bytes)?;
        engine.ring_mapped(rank, word)
    }

    /// Offsets, in every slot, of the words that contexts of this rank add to: by the processor, and over a network.
    pub(crate) fn for_contexts(self, engine: &Engine) -> [usize; 2] {
        [engine.size, engine.rank].map(|number| self.offset + (self.own + number) * size_of::<u64>())
    }

    /// Rings so far at this rank. Looks once, and delivers nothing.
    #[inline(always)]
    pub fn count(self, engine: &Engine) -> u64 {
        // SAFETY: live words, so many, by the word given to `new`.
        let word = |number| unsafe { AtomicU64::from_ptr(self.here.add(number)) };
        (0..self.own + engine.size + 1).map(|number| word(number).load(Ordering::Acquire)).sum()
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
