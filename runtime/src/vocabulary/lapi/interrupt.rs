//! Interrupt mode: a thread that makes progress while no other thread of the task does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::types::Handle;
use super::{codes, port};

/// The thread makes progress when nobody has for this long. Chosen: below what a user notices, and 1,000 wake-ups a second cost a core
/// less than a percent.
const QUIET: Duration = Duration::from_millis(1);
/// Polls after each other, at most, before the thread lets others in. Chosen.
const BURST: usize = 64;

/// The thread of a handle, until this is dropped.
pub(super) struct Interrupts {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // It sees this before it enters the port, which this thread is in.
        self.over.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }
}

impl Interrupts {
    /// # Errors
    /// Those of the system.
    pub(super) fn start(handle: Handle) -> std::io::Result<Interrupts> {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let name = format!("lapi progress {handle}");
        let thread = thread::Builder::new().name(name).spawn(move || make_progress(handle, &ends))?;
        Ok(Interrupts { over, thread })
    }
}

fn make_progress(handle: Handle, over: &AtomicBool) {
    let mut before = None;
    loop {
        thread::park_timeout(QUIET);
        if over.load(Ordering::Acquire) {
            return;
        }
        // Before it enters, which would take the port away from a thread that calls all the time.
        let polls = port::polls(handle);
        if before.replace(polls) != Some(polls) {
            continue;
        }
        // Another thread in the port makes progress, or gives it up soon.
        let Some(domain) = port::try_enter(handle) else { continue };
        // It may have ended while this thread waited.
        if over.load(Ordering::Acquire) {
            return;
        }
        for _ in 0..BURST {
            // What is wrong with a message is told by the next call that makes progress.
            match catch_unwind(AssertUnwindSafe(|| domain.world.engine().turn())) {
                Ok(0) => break,
                Ok(_) => {}
                // The message's origin has been told.
                Err(_) => domain.fault(codes::HANDLER_PANICKED, domain.world.rank()),
            }
        }
    }
}
