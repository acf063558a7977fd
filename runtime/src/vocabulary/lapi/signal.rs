//! Signals: what happens at the events of a message with closures. A counter moves, a bell rings, a future ends or a function runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::domain::{Domain, LOC_ADDRTBL_SZ, Running, enter_outside, wait};
use super::event::{Deferred, Event};
use super::face::{Code, Lapi};
use super::failure::{Failure, What};
use super::queue::Finish;
use super::traffic::Collective;
use super::{Counter, codes, kind, queue};
use crate::error::{Error, Result};
use crate::world::{Completion, Event as Outcome, World};

/// A bell of a job: a count at every task, which events of all tasks can increment. Made by [`Lapi::bell`]; it lives until the handle ends.
///
/// A task that sees a ring also sees what the ringing task had put there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bell {
    handle: u32,
    number: usize,
}

/// The action for an event of a message. It is made from a reference to a [`Counter`] or to a [`Completion`], which is a future, from a
/// [`Bell`] by [`Signal::ring`], or from a function by [`Signal::call`].
///
/// If the target refuses the message, its handler panics or one of the two tasks is lost, the event cannot come. Then futures and functions
/// get an error, which is [`Error::PeerLost`] for a lost task; counters do not move and bells do not ring. Each event comes or fails once.
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

    /// Calls `function` with the outcome. It runs on the thread where the event comes: in a call that makes progress, on the thread of
    /// interrupt mode, or, after a completion handler that was queued, on the handler thread. It can neither send nor wait: such calls are
    /// [`codes::IN_HANDLER`].
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

    /// The counter, if it is one: its event needs no entry in the domain's list.
    pub(super) fn counter(&self) -> Option<&Arc<Counter>> {
        if let Kind::Count(counter) = &self.0 { Some(counter) } else { None }
    }

    /// The same signal for the next message; `None` if it serves one message only.
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

/// Makes the future wait for this event, among others.
impl From<&Completion> for Signal {
    fn from(completion: &Completion) -> Signal {
        Signal(Kind::Once(completion.into()))
    }
}

impl Lapi {
    /// Makes a bell, with a count of 0 at every task. Collective.
    ///
    /// # Errors
    /// As [`Lapi::wait`]; [`codes::MEMORY_EXHAUSTED`] if the symmetric heap is full. After [`codes::TGT_PURGED`] make the call again: see
    /// [`Lapi::gfence`].
    pub fn bell(&self) -> Result<Bell, Code> {
        // The allocation holds the port while it waits, so it begins only when all tasks are in this call.
        queue::check_outside(self.number()).map_err(Code)?;
        super::domain::barrier(self.number(), Collective::Bell).map_err(Code)?;
        let domain = enter_outside(self.number()).map_err(Code)?;
        let bell = domain.exchange(World::bell).map_err(Code)?;
        let mut bells = domain.bells.all.borrow_mut();
        bells.push(bell);
        Ok(Bell { handle: self.number(), number: bells.len() - 1 })
    }

    /// Makes progress until the bell was rung at this task at least `rings` times in all. Returns how often it was rung.
    ///
    /// # Errors
    /// As [`Lapi::wait`]; [`codes::HNDL_INVALID`] for a bell of another job.
    pub fn wait_bell(&self, bell: Bell, rings: u64) -> Result<u64, Code> {
        queue::check_no_closure(self.number()).map_err(Code)?;
        let domain = enter_outside(self.number()).map_err(Code)?;
        if bell.handle != domain.handle {
            return Err(Code(codes::HNDL_INVALID));
        }
        let rung = |domain: &Domain| domain.bells.all.borrow().get(bell.number).map_or(0, |bell| bell.words.count());
        let purges = domain.purges.get();
        let waited = wait(domain, "waiting for a bell", |domain| match rung(domain) {
            rung if rung >= rings => Some(Ok(rung)),
            _ => domain.is_purged_since(purges),
        });
        waited.and_then(|outcome| outcome).map_err(Code)
    }

    /// Makes progress until the events of `completion` have come. In interrupt mode it can also be awaited, in any executor.
    ///
    /// # Errors
    /// As [`Lapi::wait`]. If an event of `completion` failed, [`codes::RUNTIME`]; [`Code::failure`] has the text.
    pub fn wait_completion(&self, completion: &Completion) -> Result<(), Code> {
        queue::check_no_closure(self.number()).map_err(Code)?;
        let domain = enter_outside(self.number()).map_err(Code)?;
        let purges = domain.purges.get();
        let waited = wait(domain, "waiting for a completion", |domain| match completion.outcome() {
            Some(outcome) => Some(outcome.map_err(|error| codes::of_error(&error))),
            None => domain.is_purged_since(purges),
        });
        waited.and_then(|outcome| outcome).map_err(Code)
    }

    /// Sets the target event of this task with this index, 1 to 255. It happens when a message that names the index by
    /// [`Message::target`](super::Message::target) has been handled here. A counter or a bell serves all messages, a future or a function
    /// the next one only. A message that names an index without an event is handled; the next call that makes progress here returns
    /// [`codes::CNTR_NULL`].
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
        let old = domain.entries.targets.borrow_mut().insert(index, signal);
        drop((domain, old));
        Ok(())
    }
}

impl Domain {
    /// Defers a signal, and returns its event, for a message that the caller sends next. Call [`Domain::arm`] when it is sent.
    pub(super) fn event_of(&self, signal: Option<Signal>) -> Event {
        signal.map_or(Event::NONE, |signal| self.defer(Deferred::Signal(signal)))
    }

    /// Performs a signal, for a message of task `from`, or one to it.
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
            (Kind::Count(_) | Kind::Ring(..), Err(codes::PEER_LOST)) => self.note_owing(from),
            (Kind::Count(_) | Kind::Ring(..), Err(_)) => {}
            (Kind::Once(event), outcome) => {
                let engine = self.world.engine();
                let why = |code| match code {
                    codes::PEER_LOST if engine.failures.is_gone(from) => engine.gone(from, "a LAPI message"),
                    code => Error::InvalidArgument { operation: "a LAPI message", why: Code(code).to_string() },
                };
                let outcome = outcome.map_err(why);
                let name = || "the function of an event".to_owned();
                let _running = self.runs(Running::Local);
                self.world.messages().run_told(from, name, || event.tell(outcome));
            }
        }
    }

    /// Rings a bell, now or in a later poll, since a poll must not wait for room.
    fn ring(&self, bell: usize, task: usize) {
        let rung = self.bells.all.borrow().get(bell).map_or(Ok(()), |bell| bell.ring(task));
        match rung {
            Ok(()) => {}
            Err(Error::WouldBlock { .. }) => {
                self.bells.rings.borrow_mut().push((bell, task));
                self.keep_going();
            }
            Err(error) => self.fail(Failure::of_error(&error)),
        }
    }

    /// Retries rings that found no room.
    #[inline]
    pub(super) fn ring_again(&self) {
        if !self.bells.rings.borrow().is_empty() {
            self.bells.rings.take().into_iter().for_each(|(bell, task)| self.ring(bell, task));
        }
    }

    /// The target event with this index cannot happen for a message of task `from`. A future or a function gets the error; a counter or a
    /// bell serves later messages.
    #[cold]
    fn fail_target(&self, index: usize, code: i32, from: usize) {
        let mut targets = self.entries.targets.borrow_mut();
        let is_once = targets.get(&index).is_some_and(|signal| signal.again().is_none());
        let failed = if is_once { targets.remove(&index) } else { None };
        drop(targets);
        let Some(signal) = failed else { return };
        // A function may panic, and this may run in a drop.
        if catch_unwind(AssertUnwindSafe(|| self.signal(signal, Err(code), from))).is_err() {
            self.panicked(from);
        }
    }

    /// The target event and the completion event of a message cannot happen. Functions and futures get the error; counters do not move and
    /// bells do not ring. The other task learns that its completion event cannot happen.
    #[cold]
    pub(super) fn fail_events(&self, finish: &Finish, code: i32) {
        if (1..LOC_ADDRTBL_SZ as u64).contains(&finish.target) {
            self.fail_target(finish.target as usize, code, finish.from);
        }
        if finish.completion != 0 {
            self.tell(finish.from, kind::FAILED, &[finish.completion, code as u64]);
        }
    }

    /// Whether `word`, the target event of a message, means this counter.
    pub(super) fn is_target(&self, word: u64, counter: &Counter) -> bool {
        let moves = |signal: &Signal| signal.counter().is_some_and(|own| std::ptr::eq(&**own, counter));
        word == counter.address() as u64 || self.entries.targets.borrow().get(&(word as usize)).is_some_and(moves)
    }

    /// Performs the target event with this index, for a message of task `from` that has been handled.
    #[cold]
    pub(super) fn target_event(&self, index: usize, from: usize) {
        let mut targets = self.entries.targets.borrow_mut();
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
