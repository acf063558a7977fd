//! Errors that are found when a rank leaves, which no call of that rank can return.

use std::io::Write;
use std::sync::{Mutex, OnceLock, TryLockError};

use super::JobMemory;
use crate::error::Error;

/// Where they go: empty where they are printed.
#[derive(Debug, Default)]
pub(super) struct AtEnd(OnceLock<Mutex<Option<Error>>>);

const LOCKED: &str = "nothing panics while it is locked";

impl JobMemory {
    /// Keeps the first of them for [`JobMemory::error_at_end`], where ranks are threads that the caller joins.
    pub fn keep_error_at_end(&self) {
        self.at_end.0.get_or_init(Mutex::default);
    }

    /// Tells of an error that `rank` has found.
    #[cold]
    pub fn tell_at_end(&self, rank: usize, error: Error) {
        match self.at_end.0.get() {
            Some(first) => match first.try_lock() {
                Ok(mut first) => drop(first.get_or_insert(error)),
                // Another rank is storing its error, which is the first one then.
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Poisoned(_)) => unreachable!("{LOCKED}"),
            },
            // The reader may be gone.
            None => _ = writeln!(std::io::stderr(), "rank {rank}: {error}"),
        }
    }

    /// The first that was kept.
    pub fn error_at_end(&self) -> Option<Error> {
        self.at_end.0.get()?.lock().expect(LOCKED).take()
    }
}
