//! The locks of calls that every thread may make.

use std::sync::{Mutex, MutexGuard};

/// Locks. Where std's locks wait they run precompiled code, without the marks that the thread sanitizer looks for: in its builds this
/// tries until it has the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(bellwether_tsan)]
    loop {
        match mutex.try_lock() {
            Ok(lock) => return lock,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    #[cfg(not(bellwether_tsan))]
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
