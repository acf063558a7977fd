//! Counters: an `int` that operations increment.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::sleep::futex;

/// Threads that sleep until a counter moves, in the whole process.
static SLEEPERS: AtomicUsize = AtomicUsize::new(0);
/// Longest sleep between two checks for events that do not wake a sleeper: failed peers, faulty messages.
const BEAT: Duration = Duration::from_secs(1);

/// A counter that the events of operations increment by one each.
///
/// It may lie anywhere in the rank's memory: on the stack, in a static, on the heap. Other tasks name it by its address. It is one
/// `int` in C; any number of threads may use it at a time.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicI32);

impl Counter {
    /// A counter at 0.
    pub const fn new() -> Counter {
        Counter(AtomicI32::new(0))
    }

    /// Its value, without progress.
    pub fn value(&self) -> i32 {
        // Pairs with the SeqCst in `increment`.
        self.0.load(Ordering::Acquire)
    }

    /// Sets the value. An increment at the same time may be lost.
    pub fn set(&self, value: i32) {
        self.0.store(value, Ordering::SeqCst);
        self.wake_sleeper();
    }

    /// Its address, by which other tasks name it.
    pub fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Adds one. A thread that sees the new value sees everything that this thread wrote before.
    pub fn increment(&self) {
        // Pairs with the Acquire in `value` and `take`, and with `sleep_until`.
        self.0.fetch_add(1, Ordering::SeqCst);
        self.wake_sleeper();
    }

    #[inline(always)]
    fn wake_sleeper(&self) {
        // This load comes after the change, and a sleeper counts itself before it reads the counter: one of the two sees the other.
        if SLEEPERS.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    /// The counter as a futex word.
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the same size and alignment, and both are atomics.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().cast()) }
    }

    /// Ends the sleep of the thread that waits for this counter.
    #[cold]
    pub(super) fn wake(&self) {
        futex::wake_all(self.word());
    }

    /// Sleeps until the counter is at least `value`, subtracts `value`, and returns the rest. Calls `check` before each sleep, and
    /// ends with its error. `check` is told whether a [`BEAT`] is over.
    pub(super) fn sleep_until(&self, value: i32, mut check: impl FnMut(bool) -> Result<(), i32>) -> Result<i32, i32> {
        struct Counted;
        impl Drop for Counted {
            fn drop(&mut self) {
                SLEEPERS.fetch_sub(1, Ordering::SeqCst);
            }
        }
        SLEEPERS.fetch_add(1, Ordering::SeqCst);
        let _counted = Counted;
        let mut beat = Instant::now();
        loop {
            let now = self.0.load(Ordering::SeqCst);
            if now >= value {
                match self.take(value) {
                    Some(left) => return Ok(left),
                    None => continue,
                }
            }
            let is_over = beat.elapsed() >= BEAT;
            if is_over {
                beat = Instant::now();
            }
            check(is_over)?;
            futex::wait(self.word(), now as u32, Some(BEAT));
        }
    }

    /// If the value is at least `value`, subtracts `value` and returns what is left.
    pub(super) fn take(&self, value: i32) -> Option<i32> {
        let left = |now: i32| (now >= value).then(|| now.wrapping_sub(value));
        // Pairs with the SeqCst in `increment`.
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, left).ok().map(|before| before.wrapping_sub(value))
    }
}
