//! Errors that a rank finds while it delivers messages: the program's next polls return them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::membership::JobMemory;
use crate::membership::liveness::Cuts;

/// Most errors that are kept for later polls. Chosen: of a flood the first ones tell the cause.
pub(super) const MOST: usize = 64;

/// Errors of delivered messages that wait to be told. Each poll returns one.
pub(crate) struct Faults {
    queue: RefCell<VecDeque<Error>>,
    /// Whether there is one: every poll reads this.
    any: Cell<bool>,
    /// Ranks that this rank goes on without: that they are gone is no news.
    cuts: Arc<Cuts>,
    job: Arc<JobMemory>,
}

impl Faults {
    /// None yet. `cuts` knows which ranks this rank goes on without.
    pub(super) fn new(cuts: Arc<Cuts>, job: &Arc<JobMemory>) -> Faults {
        Faults { queue: RefCell::default(), any: Cell::new(false), cuts, job: Arc::clone(job) }
    }

    /// Whether there is one.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        self.any.get()
    }

    /// Tells the program the oldest error, if there is one.
    ///
    /// # Errors
    /// That error.
    #[inline]
    pub(crate) fn take(&self) -> Result<()> {
        self.next().map_or(Ok(()), |error| {
            self.cuts.note_told(&self.job, &error);
            Err(error)
        })
    }

    /// Removes the oldest error, if there is one.
    #[inline]
    pub(super) fn next(&self) -> Option<Error> {
        if !self.any.get() {
            return None;
        }
        let mut queue = self.queue.borrow_mut();
        let first = queue.pop_front();
        self.any.set(!queue.is_empty());
        first
    }

    /// Keeps an error for the next [`Engine::poll`](super::Engine::poll). If there are too many, the first ones are kept.
    #[cold]
    pub(crate) fn keep(&self, error: Error) {
        if let Error::PeerLost { rank, .. } = &error
            && self.cuts.is_accepted(*rank)
        {
            return;
        }
        let mut queue = self.queue.borrow_mut();
        if queue.len() < MOST {
            queue.push_back(error);
        }
        self.any.set(true);
    }

    /// Drops the errors that are one of `which`.
    #[cold]
    pub(super) fn forget(&self, which: impl Fn(&Error) -> bool) {
        let mut queue = self.queue.borrow_mut();
        queue.retain(|error| !which(error));
        self.any.set(!queue.is_empty());
    }
}
