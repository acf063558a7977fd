//! Words in shared memory on which several may sleep; futex(2). Such a word counts or has states of its own: a sleeper reads it,
//! finds that it has to wait, and sleeps only if the word still has that value. So no wake-up is missed.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex;

/// Sleeps while `word` holds `value`, for at most `limit`.
pub fn wait(word: &AtomicU32, value: u32, limit: Option<Duration>) {
    let limit = limit.map(super::timespec);
    // EAGAIN, EINTR and a time-out all mean: read the word again.
    let _ = futex::wait(word, futex::Flags::empty(), value, limit.as_ref());
}

/// Wakes all that sleep on `word`.
pub fn wake_all(word: &AtomicU32) {
    #[cfg(test)]
    super::note_call();
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
