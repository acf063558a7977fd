//! Locks that a panic does not poison, and whose order the thread sanitizer sees.
//!
//! Where std's locks wait they run precompiled code, which lacks the marks that the sanitizer looks for. So in its
//! builds (`--cfg bellwether_tsan`, see `ci/sanitize`) every lock leaves a mark of its own.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{MutexGuard, PoisonError, TryLockError};

/// A mutex. The protected value must be consistent whenever code under the lock could panic.
#[derive(Default)]
pub struct Mutex<T> {
    order: Order,
    inner: std::sync::Mutex<T>,
}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { order: Order::new(), inner: std::sync::Mutex::new(value) }
    }

    /// Takes the lock; blocks while another thread has it.
    pub fn lock(&self) -> Guard<'_, T> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.order.taken();
        Guard { held: Held(&self.order), inner }
    }

    /// Takes the lock if no thread has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.order.taken();
        Some(Guard { held: Held(&self.order), inner })
    }

    #[cfg(any(test, feature = "conformance"))]
    /// The protected value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Access to the value that a [`Mutex`] protects.
pub struct Guard<'a, T> {
    // Before the lock itself, since it is dropped first.
    held: Held<'a>,
    inner: MutexGuard<'a, T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A condition variable: a thread that holds a lock waits until another thread notifies it.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Releases the lock until notified. May also return without a notification.
    pub fn wait<'a, T>(&self, guard: Guard<'a, T>) -> Guard<'a, T> {
        let Guard { held, inner } = guard;
        held.0.left();
        let inner = self.0.wait(inner).unwrap_or_else(PoisonError::into_inner);
        held.0.taken();
        Guard { held, inner }
    }

    /// Wakes one thread, if one waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }
}

struct Held<'a>(&'a Order);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.left();
    }
}

/// The mark; nothing in other builds.
#[derive(Default)]
struct Order {
    #[cfg(bellwether_tsan)]
    mark: std::sync::atomic::AtomicU32,
}

impl Order {
    const fn new() -> Order {
        Order {
            #[cfg(bellwether_tsan)]
            mark: std::sync::atomic::AtomicU32::new(0),
        }
    }

    /// Pairs with the Release in `left`.
    #[inline(always)]
    fn taken(&self) {
        #[cfg(bellwether_tsan)]
        self.mark.load(std::sync::atomic::Ordering::Acquire);
    }

    /// Pairs with the Acquire in `taken`.
    #[inline(always)]
    fn left(&self) {
        #[cfg(bellwether_tsan)]
        self.mark.store(1, std::sync::atomic::Ordering::Release);
    }
}
