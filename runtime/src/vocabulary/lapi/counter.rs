//! Counters: an `int` that operations increment.

use std::sync::atomic::{AtomicI32, Ordering};

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
        // Pairs with the Release in `increment`.
        self.0.load(Ordering::Acquire)
    }

    /// Sets the value. An increment at the same time may be lost.
    pub fn set(&self, value: i32) {
        self.0.store(value, Ordering::Release);
    }

    /// Its address, by which other tasks name it.
    pub fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Adds one. Whoever sees it sees what this thread wrote before.
    pub fn increment(&self) {
        // Pairs with the Acquire in `value` and `take`.
        self.0.fetch_add(1, Ordering::Release);
    }

    /// If the value is at least `value`, subtracts `value` and returns what is left.
    pub(super) fn take(&self, value: i32) -> Option<i32> {
        let left = |now: i32| (now >= value).then(|| now.wrapping_sub(value));
        // Pairs with the Release in `increment`.
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, left).ok().map(|before| before.wrapping_sub(value))
    }
}
