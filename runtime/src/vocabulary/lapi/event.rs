//! Events at the origin when a transfer has finished with its source, or when the requested data is here: a counter moves, or a
//! function of `Xfer` runs.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::domain::{Domain, LOC_ADDRTBL_SZ, Running};
use super::queue::{Finish, Work};
use super::signal::Signal;
use super::types::{CompletionHandler, Handle, SendHandler, SendInfo};
use super::{Counter, codes, port};

/// One word, which messages carry: 0 is no event, an even number the address of a counter, an odd one the number of a [`Deferred`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event(u64);

impl Event {
    pub(super) const NONE: Event = Event(0);

    pub(super) fn counter(counter: *const Counter) -> Event {
        Event(counter as u64)
    }

    fn deferred(number: u64) -> Event {
        Event(number << 1 | 1)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    /// An event of this task, which it gave with [`Event::word`].
    pub(super) fn from_word(word: u64) -> Event {
        Event(word)
    }

    /// Whether it is in the domain's list of deferred events.
    pub(super) fn is_deferred(self) -> bool {
        self.0 & 1 == 1
    }

    /// Whether it is a counter.
    #[inline(always)]
    pub(super) fn is_counter(self) -> bool {
        self.0 != 0 && self.0 & 1 == 0
    }

    fn number(self) -> Option<u64> {
        (self.0 & 1 == 1).then_some(self.0 >> 1)
    }
}

/// In place of a task: no task causes the event, so no lost task fails it.
pub(super) const NOBODY: usize = usize::MAX;

/// The meaning of a number of an [`Event`].
pub(super) enum Deferred {
    /// Runs when the source may be changed, or the transfer has failed. The last field is the target.
    Send(SendHandler, *mut c_void, usize),
    /// Runs as a completion handler when the requested data is here.
    Here(CompletionHandler, *mut c_void),
    /// Counts so many calls before its event happens. If one of the calls was a failure, the event fails then, with the first code.
    Last(u64, Event, Option<i32>),
    /// The signal of a message with closures.
    Signal(Signal),
}

impl Domain {
    /// Makes an event of an action. No lost task fails the event before [`Domain::arm`]: until then the call that causes it returns the
    /// error.
    pub(super) fn defer(&self, what: Deferred) -> Event {
        let event = Event::deferred(self.next_number());
        self.deferred.borrow_mut().insert(event.0, (NOBODY, what));
        event
    }

    /// From now on `event` depends on task `by`, since the call that caused it was made. Does nothing if the event is not deferred, or is
    /// over.
    pub(super) fn arm(&self, event: Event, by: usize) {
        if let Some((now, _)) = self.deferred.borrow_mut().get_mut(&event.0) {
            *now = by;
        }
    }

    /// Whether a deferred event has neither happened nor failed.
    #[cold]
    pub(super) fn is_to_come(&self, event: Event) -> bool {
        self.deferred.borrow().contains_key(&event.0)
    }

    /// Forgets events: they neither happen nor fail any more.
    pub(super) fn forget(&self, events: impl IntoIterator<Item = Event>) {
        let mut deferred = self.deferred.borrow_mut();
        let forgotten: Vec<_> = events.into_iter().filter_map(|event| deferred.remove(&event.0)).collect();
        // Dropped after the list is released, and after all are forgotten: the program's drop code may run, and panic. Each one apart, since a second
        // panic while a first one unwinds ends the process.
        drop(deferred);
        let panics = forgotten.into_iter().map(|event| catch_unwind(AssertUnwindSafe(|| drop(event))));
        if let Err(panic) = panics.fold(Ok(()), Result::and) {
            resume_unwind(panic);
        }
    }

    /// Fails an event, which cannot happen any more because of `code`. Functions and futures get the error, send completion handlers the
    /// code. Completion handlers have no argument for a code, and do not run.
    #[cold]
    pub(super) fn fail_event(&self, event: Event, code: i32, from: usize) {
        if event.is_counter() {
            // With any other code the task has answered, and the code is reported by itself.
            if code == codes::PEER_LOST {
                self.note_owing(from);
            }
            return;
        }
        let mut deferred = self.deferred.borrow_mut();
        if let Some((_, Deferred::Last(left, _, failed))) = deferred.get_mut(&event.0) {
            failed.get_or_insert(code);
            *left -= 1;
            // The source is read until the last call.
            if *left != 0 {
                return;
            }
        }
        let failed = deferred.remove(&event.0);
        drop(deferred);
        match failed {
            Some((_, Deferred::Signal(signal))) => self.signal(signal, Err(code), from),
            Some((_, Deferred::Send(handler, own, to))) => {
                let _running = self.runs(Running::Local);
                self.call_send_handler((handler, own), (to, code), from);
            }
            Some((_, Deferred::Last(_, then, failed))) => self.fail_event(then, failed.unwrap_or(code), from),
            Some((_, Deferred::Here(..))) | None => {}
        }
    }

    /// Fails the first event that depends on a task for which `is_lost` holds. Returns whether there was one.
    #[cold]
    pub(super) fn fail_lost(&self, is_lost: impl Fn(usize) -> bool) -> bool {
        let found = self.deferred.borrow().iter().find(|(_, (by, _))| is_lost(*by)).map(|(word, (by, _))| (*word, *by));
        let Some((word, by)) = found else { return false };
        self.fail_event(Event(word), codes::PEER_LOST, by);
        true
    }

    /// Runs a send completion handler for a transfer to task `to`, which ended with `reason`.
    fn call_send_handler(&self, (handler, own): (SendHandler, *mut c_void), (to, reason): (usize, i32), from: usize) {
        let mut handle: Handle = self.handle;
        let mut info = SendInfo { src: to as u32, reason: reason as u32, ..SendInfo::default() };
        let name = || "a send completion handler".to_owned();
        // SAFETY: the caller of `xfer` guarantees that the function may be called with its parameter, once.
        let call = || unsafe { self.calls.send(handler, &mut handle, own, &mut info) };
        self.world.messages().run_told(from, name, call);
    }

    /// Makes `event`, a [`Deferred::Last`], wait for one more call.
    pub(super) fn one_more(&self, event: Event) {
        if let Some((_, Deferred::Last(left, ..))) = self.deferred.borrow_mut().get_mut(&event.0) {
            *left += 1;
        }
    }

    /// Performs an event that a message of task `from` caused. Call it once for each message. A forgotten event does nothing.
    ///
    /// # Safety
    /// If it is a counter, that is valid.
    #[inline]
    pub(super) unsafe fn happen(&self, event: Event, from: usize) {
        if event.number().is_some() {
            return self.run_deferred(event, from);
        }
        // SAFETY: the caller guarantees it.
        unsafe { self.count(event.0, from) };
    }

    /// Moves the counter at an address, for a message of task `from`. An address below [`LOC_ADDRTBL_SZ`] is the index of a target event;
    /// for 0 nothing happens.
    ///
    /// # Safety
    /// The counter is valid.
    #[inline]
    pub(super) unsafe fn count(&self, address: u64, from: usize) {
        if address < LOC_ADDRTBL_SZ as u64 {
            if address != 0 {
                self.target_event(address as usize, from);
            }
            return;
        }
        // SAFETY: the caller guarantees that the counter is valid.
        unsafe { self.move_counter(address, from) };
    }

    /// Moves the counter at an address, for a message of task `from`.
    ///
    /// # Safety
    /// The counter is valid.
    #[inline(always)]
    pub(super) unsafe fn move_counter(&self, address: u64, from: usize) {
        // SAFETY: the caller guarantees it.
        unsafe { &*(address as *const Counter) }.increment();
        self.note_received(address, from);
    }

    #[cold]
    fn run_deferred(&self, event: Event, from: usize) {
        let mut deferred = self.deferred.borrow_mut();
        if let Some((_, Deferred::Last(left, ..))) = deferred.get_mut(&event.0) {
            *left -= 1;
            if *left != 0 {
                return;
            }
        }
        let what = deferred.remove(&event.0);
        drop(deferred);
        let running = self.runs(Running::Local);
        match what.map(|(_, what)| what) {
            None => {}
            Some(Deferred::Send(handler, own, to)) => {
                self.call_send_handler((handler, own), (to, codes::SUCCESS), from);
            }
            Some(Deferred::Here(handler, parameter)) => {
                let finish = Finish { from, target: 0, completion: 0, ticket: None };
                self.enqueue(Work { of: 0, handler, parameter, finish });
            }
            Some(Deferred::Signal(signal)) => self.signal(signal, Ok(()), from),
            Some(Deferred::Last(_, then, Some(code))) => {
                drop(running);
                self.fail_event(then, code, from);
            }
            Some(Deferred::Last(_, then, None)) => {
                drop(running);
                // SAFETY: the caller of the transfer guarantees it for the counter that it gave.
                unsafe { self.happen(then, from) };
            }
        }
    }
}

/// Performs an event before its call returns: the message to task `to` has its own copy of the source.
///
/// # Safety
/// If it is a counter, that is valid.
#[inline]
pub(super) unsafe fn happen_at_once(handle: Handle, event: Event, to: usize) {
    if event.number().is_some() {
        // In the port: calls that the function must not make are refused.
        if let Ok(domain) = port::enter(handle) {
            domain.run_deferred(event, to);
        }
        return;
    }
    // SAFETY: the caller guarantees that the counter is null or valid.
    if let Some(counter) = unsafe { (event.0 as *const Counter).as_ref() } {
        counter.increment();
    }
}
