//! The claim of a context's lane: one context writes the lane at a time, and hands it on with the count of messages written to it.

use std::sync::atomic::Ordering;

use super::atomics::AtomicU64;

/// The owner of a lane. Zeroed memory is a free lane without messages.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Claim {
    /// The rank of the context that writes the lane, plus one; 0: none does.
    owner: AtomicU64,
    /// Messages written, as of when the lane was given back last.
    written: AtomicU64,
}

impl Claim {
    /// A claim equal to zeroed memory.
    #[cfg(all(test, loom))]
    pub fn fresh() -> Claim {
        Claim { owner: AtomicU64::new(0), written: AtomicU64::new(0) }
    }

    /// Claims the lane for a context of `rank`. Returns how many messages were written to the lane. `None`: another context has it.
    #[inline]
    pub fn take(&self, rank: usize) -> Option<u64> {
        // Most claims of a lane that is in use fail: they only read.
        if self.owner.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // Acquire pairs with the Release store in `give_back`: the writer before has stored its last line and its count.
        self.owner.compare_exchange(0, rank as u64 + 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(self.written.load(Ordering::Relaxed))
    }

    /// Gives the lane back, in which `written` messages were written. Only its owner calls this.
    #[inline]
    pub fn give_back(&self, written: u64) {
        self.written.store(written, Ordering::Relaxed);
        // Pairs with the Acquire exchange in `take`.
        self.owner.store(0, Ordering::Release);
    }
}
