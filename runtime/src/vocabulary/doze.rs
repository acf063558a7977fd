//! The doze of a thread that makes progress for a rank, beside threads that call.
//!
//! The thread sleeps on its rank's word and leaves the rank to others meanwhile. A call that enters ends the doze first: it may announce a
//! sleep of its own in that word, whose end wakes nobody, or leave something to do that wakes nobody. `sleep/README.md` tells the race,
//! `lapi/models.rs` runs this code under loom.

use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::AtomicBool;

#[cfg(loom)]
use loom::sync::atomic::AtomicBool;

/// Whether a doze is announced and no thread has entered since. Used by threads that are inside, whose lock orders the accesses.
#[derive(Default)]
pub(super) struct Doze {
    stands: AtomicBool,
}

impl Doze {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Doze {
        Doze { stands: AtomicBool::new(false) }
    }

    /// Notes the outcome of `announce`, which tells whether the calling thread may doze once it is outside.
    pub(super) fn begin(&self, announce: impl FnOnce() -> bool) -> bool {
        let dozes = announce();
        self.stands.store(dozes, Ordering::Relaxed);
        dozes
    }

    /// Ends the doze, if one stands: `wake` takes its announcement back. The calling thread has entered, and has done nothing yet.
    #[inline(always)]
    pub(super) fn end(&self, wake: impl FnOnce()) {
        if self.stands.load(Ordering::Relaxed) {
            self.end_standing(wake);
        }
    }

    /// For tests, on any thread.
    #[cfg(all(test, not(loom)))]
    pub(super) fn stands(&self) -> bool {
        self.stands.load(Ordering::Relaxed)
    }

    #[cold]
    fn end_standing(&self, wake: impl FnOnce()) {
        self.stands.store(false, Ordering::Relaxed);
        wake();
    }
}
