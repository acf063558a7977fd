//! The collective call that the program has made, where it is made of others: what errors and the roll call name.

use std::cell::Cell;

use super::Engine;
use crate::error::Result;

/// Takes the name away again, also in a panic.
struct Entered<'a>(&'a Cell<Option<&'static str>>);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

impl Engine {
    /// Runs `body` as the call of this name. Within another call that one's name stays, which the program knows.
    ///
    /// # Errors
    /// Those of `body`, as errors of the call; [`crate::error::Error::Forked`].
    #[inline]
    pub fn within<R>(&self, call: &'static str, body: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.waiting.call.get().is_some() {
            return body();
        }
        self.check_own(call)?;
        self.waiting.call.set(Some(call));
        let _entered = Entered(&self.waiting.call);
        body().map_err(|error| error.within(call))
    }

    /// The name of the call under way, if it has one.
    pub(crate) fn call(&self) -> Option<&'static str> {
        self.waiting.call.get()
    }

    /// Says what this rank waits in.
    #[cold]
    pub(super) fn tell_doing(&self, step: &str) {
        match self.waiting.call.get() {
            Some(call) if call != step => self.job.set_doing(self.rank, &format!("{call}: {step}")),
            _ => self.job.set_doing(self.rank, step),
        }
    }
}
