//! Interrupt mode: a thread that makes progress while no other thread of the task does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::types::Handle;
use super::{codes, port};
use crate::vocabulary::interrupt::{Idle, Interrupts, LONGEST_DOZE, burst};

/// A handle that is in interrupt mode.
struct Idler {
    handle: Handle,
    doze: Box<dyn Fn(Duration) + Send>,
}

impl Idle for Idler {
    fn polls(&self) -> u64 {
        port::polls(self.handle)
    }

    fn advance(&self, over: &AtomicBool) -> bool {
        // Another thread in the port makes progress, or gives it up soon.
        let Some(domain) = port::try_enter(self.handle) else { return false };
        let is_over = || over.load(Ordering::Acquire);
        // It may have ended while this thread waited.
        if !is_over() {
            burst(&domain.world, || domain.fault(codes::HANDLER_PANICKED, domain.world.rank()));
        }
        // A handler may have ended it, and may have started the next such thread, whose doze this one would take for its own.
        !is_over() && port::begin_doze(&domain)
    }

    fn doze(&self) {
        (self.doze)(LONGEST_DOZE);
    }
}

/// Starts the thread. `doze` sleeps as the engine's `dozer` does.
///
/// # Errors
/// Those of the system.
pub(super) fn start(handle: Handle, doze: impl Fn(Duration) + Send + 'static) -> std::io::Result<Interrupts> {
    Interrupts::start(format!("lapi progress {handle}"), Idler { handle, doze: Box::new(doze) })
}
