//! The end of work on other threads, for a thread that sleeps meanwhile.

use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::AtomicBool;

#[cfg(loom)]
use loom::sync::atomic::AtomicBool;

use super::Fences;

/// Whether the work of other threads is over, and whether the thread that serves meanwhile sleeps, or is about to.
///
/// Short work ends while that thread polls, and then no signal is sent. Each side stores, then loads the word that the other stores, with
/// a full fence in between (Dekker): either [`Ending::end`] finds that the thread falls asleep, or [`Ending::falls_asleep`] finds that
/// the work is over.
#[derive(Debug, Default)]
pub struct Ending {
    over: AtomicBool,
    sleeps: AtomicBool,
}

impl Ending {
    /// The work is over. Returns whether the thread that serves has to be signalled.
    pub fn end(&self) -> bool {
        // Release: see `is_over`.
        self.over.store(true, Ordering::Release);
        Fences::Full.of_waker();
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Whether the work is over. If it is, its stores are visible.
    pub fn is_over(&self) -> bool {
        // Acquire: pairs with the Release in `end`.
        self.over.load(Ordering::Acquire)
    }

    /// From now on the end of the work is signalled. Returns whether the work still goes on.
    pub fn falls_asleep(&self) -> bool {
        self.sleeps.store(true, Ordering::Relaxed);
        Fences::Full.of_sleeper();
        !self.is_over()
    }

    /// Whether the thread that serves has slept, or was about to.
    pub fn has_slept(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed)
    }
}
