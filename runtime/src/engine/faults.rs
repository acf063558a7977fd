//! Errors that a rank meets while it delivers messages: the program hears of them from its next polls.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::Engine;
use crate::error::{Error, Result};

/// Most errors that are kept for later polls. Chosen: of a flood the first ones tell the cause.
pub(super) const MOST: usize = 64;

/// Errors that wait to be told.
#[derive(Default)]
pub(super) struct Faults {
    queue: RefCell<VecDeque<Error>>,
    /// Whether there is one: every poll reads this.
    pub(super) any: Cell<bool>,
}

impl Engine {
    /// Returns the oldest error that was kept, if there is one.
    ///
    /// # Errors
    /// That error.
    pub fn take_fault(&self) -> Result<()> {
        if !self.faults.any.get() {
            return Ok(());
        }
        let mut queue = self.faults.queue.borrow_mut();
        let first = queue.pop_front();
        self.faults.any.set(!queue.is_empty());
        first.map_or(Ok(()), Err)
    }

    /// Drops the errors that are one of `which`.
    #[cold]
    pub(super) fn forget_faults(&self, which: impl Fn(&Error) -> bool) {
        let mut queue = self.faults.queue.borrow_mut();
        queue.retain(|error| !which(error));
        self.faults.any.set(!queue.is_empty());
    }

    /// Keeps an error of a handler for the next [`Engine::poll`]. If there are too many, the first ones are kept. That a rank is gone
    /// which this one goes on without is no news.
    #[cold]
    pub fn set_fault(&self, error: Error) {
        if self.any_accepted()
            && let Error::PeerLost { rank, .. } = &error
            && self.first_accepted([*rank]).is_some()
        {
            return;
        }
        let mut queue = self.faults.queue.borrow_mut();
        if queue.len() < MOST {
            queue.push_back(error);
        }
        self.faults.any.set(true);
    }
}
