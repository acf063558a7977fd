//! Collective calls of the world inside collective calls of LAPI.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::domain::Domain;
use super::{arrive, codes};
use crate::error::Result;
use crate::world::World;

/// Makes polls let the panics of handlers through again when it is dropped.
struct Catches<'a>(&'a Domain);

impl Drop for Catches<'_> {
    fn drop(&mut self) {
        self.0.catch_panics(false);
    }
}

impl Domain {
    /// Makes a collective call of the world. All tasks must be in the same call of LAPI when it begins. This task could not repeat it after
    /// a panic, since the other tasks would not repeat it. So polls catch the panics of handlers meanwhile: the next call that makes
    /// progress returns the code.
    ///
    /// # Errors
    /// The code of the error of `call`.
    pub(super) fn exchange<R>(&self, call: impl FnOnce(&World) -> Result<R>) -> Result<R, i32> {
        self.catch_panics(true);
        let _catches = Catches(self);
        call(&self.world).map_err(|error| codes::of_error(&error))
    }

    fn catch_panics(&self, catches: bool) {
        self.catches.set(catches);
        if let Some(me) = self.me.upgrade() {
            if catches { arrive::install_catching(&me) } else { arrive::install(&me) }
        }
    }

    /// Runs `deliver`, which may run the program's code, for a message of task `from`. If it panics, records a failure and returns `None`.
    #[cold]
    pub(super) fn caught<R>(&self, from: usize, deliver: impl FnOnce() -> R) -> Option<R> {
        let delivered = catch_unwind(AssertUnwindSafe(deliver)).ok();
        if delivered.is_none() {
            self.panicked(from);
        }
        delivered
    }
}
