//! Interrupt mode: a thread that makes progress while no other thread of the task does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::port;
use super::types::Handle;
use crate::vocabulary::interrupt::{Idle, Interrupts, burst};
use crate::world::{Doze, Dozer, World};

/// Interrupt mode, until this is dropped. The thread that drops it is in the port, and has ended the doze.
pub(super) struct Mode {
    #[cfg_attr(not(test), expect(dead_code, reason = "its drop ends the thread"))]
    interrupts: Interrupts,
    /// `None` without descriptors to be had: the thread polls.
    doze: Option<Doze>,
}

impl Mode {
    /// As [`Doze::end`].
    #[inline]
    pub(super) fn end_doze(&self, world: &World) {
        if let Some(doze) = &self.doze {
            doze.end(world.engine());
        }
    }

    /// As [`Doze::begin`].
    pub(super) fn begin_doze(&self, world: &World, look: Option<Duration>) -> bool {
        self.doze.as_ref().is_some_and(|doze| doze.begin(world.engine(), look))
    }
}

/// The thread of a handle that is in interrupt mode.
struct Idler {
    handle: Handle,
    dozer: Option<Dozer>,
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
        if is_over() {
            return false;
        }
        let panicked = || domain.panicked(domain.world.rank());
        if !burst(&domain.world, panicked) {
            return false;
        }
        // A function of an event may panic, as in a poll.
        if catch_unwind(AssertUnwindSafe(|| domain.look_for_lost())).is_err() {
            panicked();
        }
        // A handler may have ended it, and begun another.
        !is_over() && domain.begin_doze()
    }

    fn doze(&self) -> bool {
        self.dozer.as_ref().is_some_and(Dozer::sleep)
    }
}

/// # Errors
/// Those of the system.
pub(super) fn start(handle: Handle, world: &World) -> std::io::Result<Mode> {
    let made = world.engine().doze();
    let made = made.inspect_err(|error| tracing::warn!(%error, "the thread of interrupt mode cannot sleep: it polls"));
    let (doze, dozer) = made.ok().unzip();
    // The kernel keeps 15 bytes.
    let interrupts = Interrupts::start(format!("lapi poll {handle}"), Idler { handle, dozer })?;
    Ok(Mode { interrupts, doze })
}

#[cfg(all(test, not(loom)))]
mod tests;
