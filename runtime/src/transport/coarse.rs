//! One lock around a group of interfaces and endpoints, so that several threads can use them in turn.

use std::cell::UnsafeCell;

use super::lock::Mutex;

/// A value whose parts are shared among themselves without locks, but with nothing outside.
///
/// # Safety
/// All that is reachable from the value without atomics or a lock is reachable only through it, and none of it is
/// bound to the thread that made it. Callbacks in it must be sendable; the code that stores a callback guarantees that.
pub unsafe trait Confined {}

// SAFETY: both parts are, and they may be parts of each other, since they are used under one lock.
unsafe impl<A: Confined, B: Confined> Confined for (A, B) {}
// SAFETY: as its items.
unsafe impl<A: Confined> Confined for Vec<A> {}

/// A group used by one thread at a time: the coarse-grained one of UCT's three thread modes. The others are none (an
/// interface by itself) and independent (an interface for each thread).
#[derive(Debug)]
pub struct Coarse<G> {
    lock: Mutex<()>,
    group: UnsafeCell<G>,
}

// SAFETY: the group is confined, and touched only under the lock.
unsafe impl<G: Confined> Send for Coarse<G> {}
// SAFETY: as above.
unsafe impl<G: Confined> Sync for Coarse<G> {}

impl<G: Confined> Coarse<G> {
    /// Locks `group` up.
    ///
    /// # Safety
    /// Nothing else refers into the group any more: no other `Rc` of an interface, no endpoint kept apart; and every
    /// handler or callback that was set in it may run on any thread.
    pub unsafe fn new(group: G) -> Coarse<G> {
        Coarse { lock: Mutex::new(()), group: UnsafeCell::new(group) }
    }

    /// Uses the group, alone. Do not let parts of it out.
    pub fn with<R>(&self, use_it: impl FnOnce(&G) -> R) -> R {
        let _held = self.lock.lock();
        // SAFETY: the lock is held.
        use_it(unsafe { &*self.group.get() })
    }
}
