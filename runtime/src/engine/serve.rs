//! Progress of a rank whose program computes on another thread meanwhile.

use super::Engine;
use super::wait::Shown;
use super::wakeup::Wakeup;
use crate::error::Error;
use crate::settings::ProgressThread;

/// Errors of messages that were delivered meanwhile. The program's next polls report them.
struct Kept<'a> {
    engine: &'a Engine,
    errors: Vec<Error>,
}

impl Kept<'_> {
    fn take(&mut self) {
        while let Err(error) = self.engine.take_fault() {
            self.errors.push(error);
        }
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.errors.drain(..).for_each(|error| self.engine.set_fault(error));
    }
}

impl Engine {
    /// Whether this rank makes progress while its program computes in [`World::serve_while`](crate::World::serve_while).
    pub(crate) fn serves(&self) -> bool {
        match self.settings.progress_thread {
            ProgressThread::On => true,
            ProgressThread::Off => false,
            // On mapped memory atomics on segments are messages to the owner.
            ProgressThread::Auto => self.networks.emulates() || (self.networks.is_empty() && self.has_own_segments()),
        }
    }

    /// Makes progress, and sleeps in the descriptor when nothing is left, until `is_over` holds, which a signal announces. Does not check
    /// for failed peers, and ends early where the memory of the job is lost: the next call reports both. In virtual time it polls.
    ///
    /// # Panics
    /// With a panic of a handler.
    pub(crate) fn serve_until(&self, doing: &'static str, wakeup: &Wakeup, is_over: impl Fn() -> bool) {
        let mut shown = Shown::new(self);
        shown.tell(doing);
        let mut kept = Kept { engine: self, errors: Vec::new() };
        while !is_over() {
            let done = self.turn();
            // One that waits would keep the descriptor from being armed.
            kept.take();
            if done > 0 {
                continue;
            }
            if self.pace().is_some() {
                self.idle_poll();
                rustix::thread::sched_yield();
                continue;
            }
            // A signal before the arming keeps the descriptor from being armed; a later one makes it readable.
            let waited = match self.arm(wakeup) {
                Ok(true) => self.poll_descriptor(wakeup, None).map(drop),
                armed => armed.map(drop),
            };
            if waited.is_err() {
                break;
            }
        }
    }
}
