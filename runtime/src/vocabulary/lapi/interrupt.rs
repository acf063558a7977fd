//! Interrupt mode: a thread that makes progress while no other thread of the task does.

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
            burst(&domain.world, || domain.panicked(domain.world.rank()));
        }
        false
    }
}

/// # Errors
/// Those of the system.
pub(super) fn start(handle: Handle) -> std::io::Result<Interrupts> {
    Interrupts::start(format!("lapi progress {handle}"), Idler(handle))
}
