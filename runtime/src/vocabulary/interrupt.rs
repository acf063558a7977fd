//! A thread that makes progress for a rank while no other thread of it does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::world::World;

/// The thread makes progress when no other thread has done so for this long. Chosen: below what a user notices, and 1,000 wake-ups a
/// second cost a core less than a percent. It wakes so often only while calls of the program make progress, or something is in flight.
const QUIET: Duration = Duration::from_millis(1);
/// Polls after each other, at most, before the thread lets others in. Chosen.
const BURST: usize = 64;

/// The thread, until this is dropped.
pub(super) struct Interrupts {
    over: Arc<AtomicBool>,
    /// `None`: it was waited for.
    thread: Option<JoinHandle<()>>,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests count turns"))]
    turns: Turns,
}

/// Counts, for tests, how often the thread goes through its loop.
#[derive(Clone, Default)]
struct Turns(#[cfg(test)] Arc<std::sync::atomic::AtomicU64>);

impl Turns {
    fn count(&self) {
        #[cfg(test)]
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The rank for which the thread makes progress.
pub(super) trait Idle: Send + 'static {
    /// Counts the calls of other threads that made progress.
    fn polls(&self) -> u64;
    /// Calls [`burst`] if no other thread is inside, unless it is over. Whether the thread may [`doze`](Idle::doze).
    fn advance(&self, over: &AtomicBool) -> bool;
    /// Sleeps until there may be something to do, or until another thread goes inside. Holds nothing that others need. Whether no other
    /// thread has gone inside.
    fn doze(&self) -> bool;
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.signal();
    }
}

impl Interrupts {
    /// As the drop, but waits until the thread has ended. `wake` waits until the thread is outside, and ends its [`doze`](Idle::doze).
    pub(super) fn end(self, wake: impl FnOnce()) {
        self.signal();
        // The thread has begun its doze before, or sees that all is over.
        wake();
        let mut ended = self;
        if let Some(thread) = ended.thread.take() {
            // A panic of it was told.
            let _ = thread.join();
        }
    }

    fn signal(&self) {
        // It sees this before it enters, where this thread is now.
        self.over.store(true, Ordering::Release);
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }

    /// # Errors
    /// Those of the system.
    pub(super) fn start(name: String, idle: impl Idle) -> std::io::Result<Interrupts> {
        let (over, turns) = (Arc::new(AtomicBool::new(false)), Turns::default());
        let (ends, counts) = (Arc::clone(&over), turns.clone());
        let thread = crate::thread::start(name, move || make_progress(&idle, &ends, &counts))?;
        Ok(Interrupts { over, thread: Some(thread), turns })
    }

    /// How often the thread has gone through its loop.
    #[cfg(test)]
    pub(super) fn turns(&self) -> Arc<std::sync::atomic::AtomicU64> {
        Arc::clone(&self.turns.0)
    }

    /// Whether the thread has ended. Holds when the result, which outlives this, is called.
    #[cfg(test)]
    pub(super) fn has_ended(&self) -> impl Fn() -> bool + use<> {
        let turns = Arc::downgrade(&self.turns.0);
        // This and the thread have it.
        move || turns.strong_count() == 0
    }
}

fn make_progress(idle: &impl Idle, over: &AtomicBool, turns: &Turns) {
    let (mut before, mut at_once) = (None, false);
    loop {
        if !at_once {
            thread::park_timeout(QUIET);
        }
        if over.load(Ordering::Acquire) {
            return;
        }
        turns.count();
        // Before it enters, which would take the place away from a thread that calls all the time.
        let polls = idle.polls();
        // Where a call has ended the doze, the thread would stand in the way of the next calls.
        at_once = before.replace(polls) == Some(polls) && idle.advance(over) && idle.doze();
    }
}

/// Polls a few times, until a poll finds nothing. The next call that makes progress reports errors of messages. Returns whether the
/// last poll has found nothing.
pub(super) fn burst(world: &World, panicked: impl Fn()) -> bool {
    for _ in 0..BURST {
        match catch_unwind(AssertUnwindSafe(|| world.engine().turn())) {
            Ok(0) => return true,
            Ok(_) => {}
            // The message's origin has been told.
            Err(_) => panicked(),
        }
    }
    false
}
