//! Progress of a rank whose program computes on another thread meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use super::Engine;
use super::faults::MOST;
use super::wait::Shown;
use super::wakeup::Wakeup;
use crate::error::{Error, Result};
use crate::settings::ProgressThread;
use crate::sleep::Ending;

/// Sleep after a failed poll(2), for example without memory in the kernel. Chosen.
const RETRY: Duration = Duration::from_millis(1);

/// Polls without result, with a yield after each, before it sleeps. Chosen: short work ends before that, and needs no signal.
const YIELDS: u32 = 32;

/// Errors of messages that were delivered meanwhile. The program's next polls report them.
struct KeptErrors<'a> {
    engine: &'a Engine,
    errors: Vec<Error>,
}

impl KeptErrors<'_> {
    fn take(&mut self) {
        while let Some(error) = self.engine.faults.next() {
            // No more than the engine keeps: a peer can send errors for as long as this rank computes.
            if self.errors.len() < MOST {
                self.errors.push(error);
            }
        }
    }
}

impl Drop for KeptErrors<'_> {
    fn drop(&mut self) {
        self.errors.drain(..).for_each(|error| self.engine.faults.keep(error));
    }
}

impl Engine {
    /// Whether this rank makes progress while its program computes in [`World::serve_while`](crate::World::serve_while).
    pub(crate) fn serves(&self) -> bool {
        match self.settings.progress_thread {
            ProgressThread::On => true,
            ProgressThread::Off => false,
            // The owner does atomics on a segment that neither a network nor the processor of the peer reaches.
            ProgressThread::Auto => {
                self.size > 1
                    && (!self.networks.all_reach_idle()
                        || !self.networks.change_segments() && self.segments.any_is_unmapped())
            }
        }
    }

    /// Makes progress, and sleeps in the descriptor when nothing is left, until the work of other threads is over. A signal announces that
    /// end if the [`Ending`] asks for a signal. Does not check for failed peers, and returns early if the memory of the job is lost: the
    /// next call reports both. In virtual time it polls. In a forked child, which has no other threads, it returns at once.
    ///
    /// # Panics
    /// With the first panic of a handler, when the work is over: the work may need progress until then.
    pub(crate) fn serve_until(&self, doing: &'static str, wakeup: &Wakeup, ending: &Ending) {
        let mut shown = Shown::new(self);
        shown.tell(doing);
        let (mut kept, mut panic, mut idle) = (KeptErrors { engine: self, errors: Vec::new() }, None, 0);
        while self.is_own() && !ending.is_over() {
            match catch_unwind(AssertUnwindSafe(|| self.serve_once(wakeup, ending, &mut kept, &mut idle))) {
                Ok(Ok(())) => {}
                Ok(Err(Error::MemoryLost { .. })) => break,
                // A handler that waits for work of other threads delivers no message, and cannot arm.
                Ok(Err(Error::InsideHandler { .. })) => std::thread::sleep(RETRY),
                Ok(Err(error)) => {
                    tracing::debug!(rank = self.rank, %error, "cannot sleep while serving");
                    std::thread::sleep(RETRY);
                }
                Err(first) => {
                    panic.get_or_insert(first);
                }
            }
        }
        drop(kept);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Makes progress. If nothing is left it yields its core, and sleeps after some `idle` polls in a row.
    fn serve_once(&self, wakeup: &Wakeup, ending: &Ending, kept: &mut KeptErrors<'_>, idle: &mut u32) -> Result<()> {
        let done = self.turn();
        // One that waits would keep the descriptor from being armed.
        kept.take();
        if done > 0 {
            *idle = 0;
            return Ok(());
        }
        if self.networks.pace().is_some() || *idle < YIELDS {
            *idle += 1;
            self.idle_poll();
            rustix::thread::sched_yield();
            return Ok(());
        }
        // A signal before the arming keeps the descriptor from being armed; a later one makes it readable.
        if ending.falls_asleep() && self.arm(wakeup)? {
            self.poll_descriptor(wakeup, None)?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{KeptErrors, MOST};
    use crate::error::Error;

    #[test]
    fn a_flood_of_errors_is_not_kept_whole() {
        let ranks = crate::threads(1, |world| {
            let engine = world.engine();
            let mut kept = KeptErrors { engine, errors: Vec::new() };
            for _ in 0..3 * MOST {
                engine.faults.keep(Error::MemoryLost { doing: "a test".into() });
                kept.take();
            }
            assert_eq!(kept.errors.len(), MOST);
            drop(kept);
            (0..MOST).for_each(|_| assert!(engine.faults.take().is_err()));
            engine.faults.take()
        });
        ranks.expect("starts").into_iter().for_each(|rank| rank.expect("no error is left"));
    }
}
