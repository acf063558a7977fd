//! The call that the program has made, and where: what errors, other ranks and the deadline report name.

use std::cell::Cell;
use std::panic::Location;

use super::Engine;
use crate::error::{Error, Result};
use crate::membership::DOING_LEN;

/// A call of the program that may wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// The name of a call that is composed of others. `None`: the waiting step has its own name.
    pub(crate) name: Option<&'static str>,
    /// The place in the user's source.
    pub(crate) place: &'static Location<'static>,
}

/// Puts the call before back, also in a panic.
struct Entered<'a>(&'a Cell<Option<Call>>, Option<Call>);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Lives while an event's action runs. The drop restores the former state, also in a panic.
pub(super) struct Happening<'a>(&'a Cell<bool>, bool);

impl Drop for Happening<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// A collective call that this rank is in, until it is dropped.
pub(crate) struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// The call that the program is in.
#[derive(Default)]
pub(crate) struct Calls {
    /// Errors name it, and its place.
    call: Cell<Option<Call>>,
    /// This rank is in a collective call.
    in_collective: Cell<bool>,
    /// An event's action runs inside a named call, which may be between two of the collective calls that it is composed of.
    between: Cell<bool>,
}

impl Calls {
    /// The call under way, if there is one.
    #[inline(always)]
    pub(crate) fn current(&self) -> Option<Call> {
        self.call.get()
    }

    /// Whether a named call is under way.
    #[inline(always)]
    fn is_named(&self) -> bool {
        self.call.get().is_some_and(|call| call.name.is_some())
    }

    #[inline(always)]
    fn enter(&self, call: Call) -> Entered<'_> {
        Entered(&self.call, self.call.replace(Some(call)))
    }

    /// An event's action begins. Until the value is dropped, collective calls are rejected if a named call is under way: the named call may
    /// be composed of several collective calls, and other ranks make no further one between them.
    pub(super) fn happening(&self) -> Happening<'_> {
        Happening(&self.between, self.between.replace(self.is_named()))
    }

    /// Marks this rank as in a collective call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is in one, or if an event's callback runs in a call that is composed of several.
    #[inline]
    fn begin_collective(&self, doing: &'static str) -> Result<Running<'_>> {
        if self.between.get() || self.in_collective.replace(true) {
            return Err(inside_collective(doing));
        }
        Ok(Running(&self.in_collective))
    }

    /// Whether this rank is in a collective call.
    pub(super) fn is_in_collective(&self) -> bool {
        self.in_collective.get()
    }

    /// Whether a collective call would be rejected.
    fn reject_collectives(&self) -> bool {
        self.in_collective.get() || self.between.get()
    }
}

/// The error for a collective call that is made inside another one.
#[cold]
pub(crate) fn inside_collective(doing: &'static str) -> Error {
    let why =
        "this rank is in another collective call; a function that runs inside one, of an event or an operator, can \
               make none"
            .into();
    Error::InvalidArgument { operation: doing, why }
}

impl Engine {
    /// Marks this rank as in a collective call. Rejects a collective made inside another one, by an operator or an event's
    /// callback: it would match the outer call on other ranks, and ranks would allocate different memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if this rank is in a collective call, or if an event's callback runs in a call that is composed of
    /// several; [`Error::InsideHandler`]; [`Error::Forked`].
    #[inline]
    pub(crate) fn begin_collective(&self, doing: &'static str) -> Result<Running<'_>> {
        self.check_outside_handler(doing)?;
        self.calls.begin_collective(doing)
    }

    /// Whether this rank is in a collective call, and in no handler.
    pub(crate) fn is_in_collective(&self) -> bool {
        self.calls.reject_collectives() && !self.interface.delivering()
    }

    /// Runs `body` as the call of this name, made by the caller. Within another call that one stays, which the program knows.
    ///
    /// # Errors
    /// Those of `body`, as errors of the call; [`crate::error::Error::Forked`].
    #[inline]
    #[track_caller]
    pub fn within<R>(&self, name: &'static str, body: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.calls.is_named() {
            return body();
        }
        self.check_own(name)?;
        self.enter_call(Call { name: Some(name), place: Location::caller() }, body)
    }

    /// As [`Engine::within`], for a call that is one step: its errors have that one's name already.
    ///
    /// # Errors
    /// Those of `body`, with the place of the call.
    #[inline]
    #[track_caller]
    pub(crate) fn at<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        // Within a future or a closure of the user's, the place is that of the call in there.
        if self.calls.is_named() {
            return body();
        }
        self.enter_call(Call { name: None, place: Location::caller() }, body)
    }

    #[inline]
    fn enter_call<R>(&self, call: Call, body: impl FnOnce() -> Result<R>) -> Result<R> {
        let _entered = self.calls.enter(call);
        body().map_err(|error| error.within(call.name, call.place, self.rank))
    }

    /// The line to report for an operation that the caller starts: that of the named call in progress, else the caller's. In a handler it
    /// is the caller's, since the call in progress is the wait that runs the handler. A closure of the program that a named call runs gets
    /// the line of that call.
    #[inline]
    #[track_caller]
    pub(crate) fn place(&self) -> &'static Location<'static> {
        let is_named = |call: &Call| call.name.is_some() && !self.interface.delivering();
        self.calls.current().filter(is_named).map_or(Location::caller(), |call| call.place)
    }

    /// `outcome`, whose error names [`Engine::place`] if it names none.
    #[inline]
    #[track_caller]
    pub(crate) fn placed<R>(&self, outcome: Result<R>) -> Result<R> {
        match outcome {
            Ok(value) => Ok(value),
            Err(error) => Err(error.at(self.place())),
        }
    }

    /// Publishes the call and the step in which this rank waits.
    #[cold]
    pub(super) fn tell_doing(&self, step: &str) {
        let name = |call: Call| {
            call.name.filter(|name| *name != step).map_or(step.to_owned(), |name| format!("{name}: {step}"))
        };
        match self.calls.current() {
            // The end of the path, since there is little room.
            Some(call) => {
                let file = call.place.file().rsplit('/').next().unwrap_or_default();
                let place = format!(" ({file}:{})", call.place.line());
                let name = name(call);
                let room = DOING_LEN.saturating_sub(place.len());
                self.job.set_doing(self.rank, &format!("{}{place}", &name[..name.floor_char_boundary(room)]));
            }
            None => self.job.set_doing(self.rank, step),
        }
    }
}
