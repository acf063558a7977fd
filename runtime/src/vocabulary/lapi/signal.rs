//! What happens at the events of a message with closures: counters move, bells ring, futures end.

use std::sync::Arc;

use super::domain::{Domain, LOC_ADDRTBL_SZ, enter_outside, wait};
use super::event::{Deferred, Event};
use super::face::{Code, Lapi};
use super::failure::{Failure, What};
use super::{Counter, codes};
use crate::error::{Error, Result};
use crate::world::{Completion, Event as Outcome};

/// A bell of a job: a count at every task, which events of any task ring. Made by [`Lapi::bell`], and there until the job ends.
///
/// Whoever sees a ring sees what the ringer had put there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bell {
    handle: u32,
    number: usize,
}

/// What happens when an event of a message comes: made from a reference to a [`Counter`] or a [`Completion`], which is a future, from a
/// [`Bell`], or from a function by [`Signal::call`].
///
/// If the event cannot come any more, because the target has refused the message or its handler has panicked, futures and functions get
/// an error; counters and bells stay as they are.
#[derive(Debug)]
pub struct Signal(Kind);

#[derive(Debug)]
enum Kind {
    Count(Arc<Counter>),
    Ring(Bell, usize),
    Once(Outcome),
}

impl Signal {
    /// Rings `bell` at task `task`.
    pub fn ring(bell: Bell, task: usize) -> Signal {
        Signal(Kind::Ring(bell, task))
    }

    /// Calls `function` with the outcome. It runs where the event comes: in a call that makes progress, on the thread of interrupt mode, or,
    /// for a target event, on the handler thread. It can neither send nor wait.
    pub fn call(function: impl FnOnce(Result<()>) + Send + 'static) -> Signal {
        Signal(Kind::Once(Outcome::call(function)))
    }

    /// # Errors
    /// [`codes::HNDL_INVALID`] for a bell of another job than that of `handle`.
    pub(super) fn check(&self, handle: u32) -> Result<(), Code> {
        match &self.0 {
            Kind::Ring(bell, _) if bell.handle != handle => Err(Code(codes::HNDL_INVALID)),
            _ => Ok(()),
        }
    }

    /// The event of the counter alone, which needs no list.
    pub(super) fn counter(&self) -> Option<&Arc<Counter>> {
        if let Kind::Count(counter) = &self.0 { Some(counter) } else { None }
    }

    /// For the next message, if this is for more than one.
    fn again(&self) -> Option<Signal> {
        match &self.0 {
            Kind::Count(counter) => Some(Signal(Kind::Count(Arc::clone(counter)))),
            Kind::Ring(bell, task) => Some(Signal(Kind::Ring(*bell, *task))),
            Kind::Once(_) => None,
        }
    }
}

/// Increments the counter.
impl From<&Arc<Counter>> for Signal {
    fn from(counter: &Arc<Counter>) -> Signal {
        Signal(Kind::Count(Arc::clone(counter)))
    }
}

/// Makes the future wait for this event too.
impl From<&Completion> for Signal {
    fn from(completion: &Completion) -> Signal {
        Signal(Kind::Once(completion.into()))
    }
}

impl Lapi {
    /// Makes a bell, with a count of 0 at every task. Collective.
    ///
    /// # Errors
    /// As [`Lapi::wait`]; [`codes::MEMORY_EXHAUSTED`] if the symmetric heap is full.
    pub fn bell(&self) -> Result<Bell, Code> {
        // The allocation holds the port: all tasks are in this call when it begins.
        super::domain::barrier(self.number()).map_err(Code)?;
        let domain = enter_outside(self.number()).map_err(Code)?;
        let bell = domain.world.bell().map_err(|error| Code(codes::of_error(&error)))?;
        let mut bells = domain.bells.borrow_mut();
        bells.push(bell);
        Ok(Bell { handle: self.number(), number: bells.len() - 1 })
    }

    /// Makes progress until the bell was rung at this task at least `rings` times in all, and tells how often.
    ///
    /// # Errors
    /// As [`Lapi::wait`]; [`codes::HNDL_INVALID`] for a bell of another job.
    pub fn wait_bell(&self, bell: Bell, rings: u64) -> Result<u64, Code> {
        let domain = enter_outside(self.number()).map_err(Code)?;
        if bell.handle != domain.handle {
            return Err(Code(codes::HNDL_INVALID));
        }
        let rung = |domain: &Domain| domain.bells.borrow().get(bell.number).map_or(0, |bell| bell.words.count());
        wait(domain, "waiting for a bell", |domain| Some(rung(domain)).filter(|rung| *rung >= rings)).map_err(Code)
    }

    /// Makes progress until the events of `completion` have come. In interrupt mode it can be awaited too, in any executor.
    ///
    /// # Errors
    /// As [`Lapi::wait`]. What `Completion` tells of its events, as its own error, is [`codes::RUNTIME`], with its text.
    pub fn wait_completion(&self, completion: &Completion) -> Result<(), Code> {
        let domain = enter_outside(self.number()).map_err(Code)?;
        let outcome = wait(domain, "waiting for a completion", |_| completion.outcome()).map_err(Code)?;
        outcome.map_err(|error| Code(codes::of_error(&error)))
    }

    /// Sets the target event with this index, 1 to 255, of this task: what happens here when a message that names it, by
    /// [`Message::target`](super::Message::target), has been handled. Counters and bells are for all messages; a future or a function is
    /// for the next one.
    ///
    /// # Errors
    /// [`codes::ADDR_HNDL_RANGE`]; [`codes::HNDL_INVALID`] for a bell of another job.
    pub fn target_event(&self, index: usize, signal: impl Into<Signal>) -> Result<(), Code> {
        let signal = signal.into();
        if !(1..LOC_ADDRTBL_SZ).contains(&index) {
            return Err(Code(codes::ADDR_HNDL_RANGE));
        }
        signal.check(self.number())?;
        let domain = enter_outside(self.number()).map_err(Code)?;
        let old = domain.targets.borrow_mut().insert(index, signal);
        drop((domain, old));
        Ok(())
    }
}

impl Domain {
    /// The event of a message for a signal.
    pub(super) fn event_of(&self, signal: Option<Signal>) -> Event {
        signal.map_or(Event::NONE, |signal| self.defer(Deferred::Signal(signal)))
    }

    /// Lets what a signal names happen, for a message of task `from`.
    #[cold]
    pub(super) fn signal(&self, signal: Signal, outcome: Result<(), i32>, from: usize) {
        match (signal.0, outcome) {
            (Kind::Count(counter), Ok(())) => {
                counter.increment();
                self.note_received(counter.address() as u64, from);
            }
            (Kind::Ring(bell, task), Ok(())) => {
                self.ring(bell.number, task);
            }
            (Kind::Count(_) | Kind::Ring(..), Err(_)) => {}
            (Kind::Once(event), outcome) => {
                let why = |code| Error::InvalidArgument { operation: "a LAPI message", why: Code(code).to_string() };
                let outcome = outcome.map_err(why);
                let name = || "the function of an event".to_owned();
                self.world.messages().run_told(from, name, || event.tell(outcome));
            }
        }
    }

    /// Rings a bell, now or at a later poll: a poll does not wait for room.
    fn ring(&self, bell: usize, task: usize) {
        let rung = self.bells.borrow().get(bell).map_or(Ok(()), |bell| bell.ring(task));
        match rung {
            Ok(()) => {}
            Err(Error::WouldBlock { .. }) => {
                self.rings.borrow_mut().push((bell, task));
                self.keep_going();
            }
            Err(error) => self.fail(Failure::of_error(&error)),
        }
    }

    /// Rings that found no room are tried again.
    #[inline]
    pub(super) fn ring_again(&self) {
        if !self.rings.borrow().is_empty() {
            self.rings.take().into_iter().for_each(|(bell, task)| self.ring(bell, task));
        }
    }

    /// A message of task `from` is done that names the target event with this index.
    #[cold]
    pub(super) fn target_event(&self, index: usize, from: usize) {
        let mut targets = self.targets.borrow_mut();
        let signal = targets.get(&index).and_then(Signal::again).or_else(|| targets.remove(&index));
        drop(targets);
        match signal {
            Some(signal) => self.signal(signal, Ok(()), from),
            None => {
                let text = format!("no target event is set at index {index}, which a message of task {from} names");
                self.fail(Failure { code: codes::CNTR_NULL, what: What::Message, task: Some(from), text });
            }
        }
    }
}
