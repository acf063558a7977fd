//! Interrupt mode: a thread that makes progress while no other thread of the task does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use super::port;
use super::types::Handle;
use crate::vocabulary::interrupt::{Idle, Interrupts, burst};

/// A handle that is in interrupt mode.
struct Idler(Handle);

impl Idle for Idler {
    fn polls(&self) -> u64 {
        port::polls(self.0)
    }

    fn advance(&self, over: &AtomicBool) -> bool {
        // Another thread in the port makes progress, or gives it up soon.
        let Some(domain) = port::try_enter(self.0) else { return false };
        // It may have ended while this thread waited.
        if !over.load(Ordering::Acquire) {
            let panicked = || domain.panicked(domain.world.rank());
            if burst(&domain.world, panicked)
                // A function of an event may panic, as in a poll.
                && catch_unwind(AssertUnwindSafe(|| domain.look_for_lost())).is_err()
            {
                panicked();
            }
        }
        false
    }
}

/// # Errors
/// Those of the system.
pub(super) fn start(handle: Handle) -> std::io::Result<Interrupts> {
    // The kernel keeps 15 bytes.
    Interrupts::start(format!("lapi poll {handle}"), Idler(handle))
}
