//! How a rank falls asleep without missing what was sent meanwhile.
//!
//! The sleeper sets its word, passes a barrier, and looks once more for what it waits for. The sender stores, passes a
//! barrier, and looks at the word. So at least one of them sees the other (Dekker 1965). Where the kernel offers it the
//! sleeper's barrier is run on every core (membarrier), and the sender's is one for the compiler only.

use std::sync::atomic::{AtomicU32, Ordering};

/// The word a rank sleeps on: 1 while it sleeps or is about to.
pub trait SleepWord {
    /// Stores, at least as a release.
    fn set(&self, value: u32);
    /// Loads, relaxed.
    fn get(&self) -> u32;
}

impl SleepWord for AtomicU32 {
    #[inline(always)]
    fn set(&self, value: u32) {
        self.store(value, Ordering::SeqCst);
    }
    #[inline(always)]
    fn get(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }
}

/// Announces sleep. If something waits already the announcement is taken back, and the answer is false.
pub fn fall_asleep(word: &impl SleepWord, barrier: impl FnOnce(), waiting: impl FnOnce() -> bool) -> bool {
    word.set(1);
    barrier();
    let asleep = !waiting();
    if !asleep {
        word.set(0);
    }
    asleep
}

/// Whether a rank must be woken, asked after what it waits for was stored.
#[inline(always)]
pub fn must_wake(word: &impl SleepWord, barrier: impl FnOnce()) -> bool {
    barrier();
    word.get() != 0
}
