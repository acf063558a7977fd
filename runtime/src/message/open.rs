//! Functions that are registered at any time, each rank at its own pace, for vocabularies that allow it.
//!
//! A call carries 32 bits of the function's digest beside its number. The called rank compares them. If the caller has
//! registered the function and the called rank has not yet, the called rank keeps the call, and runs it once it has
//! registered the function; the caller limits the memory of such calls (`confirmed.rs`). The functions that two ranks had
//! registered when each sent its first message are compared as a closed table, up to the length of the shorter one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::confirmed::Confirmed;
use super::panic::Caller;
use super::table::SAME_ORDER;
use super::{HandlerFn, HandlerId, Messages, id, words};
use crate::error::{Error, Result};
use crate::transport::Sent;

/// The functions of a rank whose table stays open.
#[derive(Default)]
pub(super) struct OpenTable {
    pub(super) is_open: Cell<bool>,
    pub(super) functions: RefCell<Vec<Function>>,
    /// Calls of functions that are registered where they came from, and not here yet.
    early: RefCell<VecDeque<Early>>,
    confirmed: Confirmed,
}

pub(super) struct Function {
    name: String,
    digest: u32,
    pub(super) handler: HandlerFn,
}

/// A call that came before its function was registered.
struct Early {
    from: usize,
    number: u32,
    digest: u32,
    payload: Box<[u8]>,
}

/// Message to oneself: functions were registered that calls wait for. No call has this header: a number that its sender has
/// not registered goes without a digest.
const REGISTERED: u64 = u64::MAX;

/// Beside a function's number: the caller asks how many functions the called rank has.
const ASKS: u32 = 1 << 31;

/// For errors and the deadline report: what a caller waits for.
const WAITING: &str = "waiting for a rank to register the function that is called there";

impl Messages {
    /// Lets functions be registered at any time. Before the first is.
    pub fn open(&self) {
        self.table.open.is_open.set(true);
        self.set_handler(id::FUNCTION, |messages, message| messages.handle_function(message.from, message.data()));
        self.set_handler(id::CONFIRMED, |messages, message| match words(message.data()) {
            Some(([functions], _)) => messages.table.open.confirmed.confirm(message.from, functions as u32),
            None => messages.fault(message.from, "a confirmation without a number of functions"),
        });
    }

    /// Enters a function under the next number of an open table. After an error it is not there.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(super) fn enter(&self, name: &str, digest: u64, handler: HandlerFn) -> Result<()> {
        let open = &self.table.open;
        self.engine.check_own("registering a function")?;
        let number = open.functions.borrow().len();
        open.functions.borrow_mut().push(Function { name: name.into(), digest: short(digest), handler });
        if open.early.borrow().iter().any(|early| early.number as usize == number) {
            // Cannot fail: the function has its number.
            self.engine.send_unasked(self.engine.rank, id::FUNCTION, REGISTERED, &[]);
        }
        Ok(())
    }

    fn handle_function(&self, from: usize, data: &[u8]) {
        let Some(([header], payload)) = words(data) else {
            return self.fault(from, "a call without a function's number");
        };
        if header == REGISTERED && from == self.engine.rank {
            return self.run_early();
        }
        if let Err(error) = self.ready_for(from) {
            return self.engine.faults.keep(error);
        }
        // A number that its sender has not registered may be any, and does not ask.
        let digest = (header >> 32) as u32;
        let (number, asks) = match digest {
            0 => (header as u32, false),
            _ => (header as u32 & !ASKS, header as u32 & ASKS != 0),
        };
        if number as usize >= self.handlers() && digest != 0 {
            tracing::warn!(
                from,
                number,
                "a call of a function that this rank has not registered yet; kept until it has"
            );
            let early = Early { from, number, digest, payload: payload.into() };
            return self.table.open.early.borrow_mut().push_back(early);
        }
        if asks {
            self.confirm_to(from);
        }
        // Calls that came before go first. Some are left if one of them has panicked.
        if !self.table.open.early.borrow().is_empty() {
            self.run_early();
        }
        self.run_function(from, number, digest, payload);
    }

    /// Tells a caller how many functions there are, unless it knows.
    fn confirm_to(&self, caller: usize) {
        let functions = self.handlers() as u32;
        if self.table.open.confirmed.must_tell(caller, functions) {
            self.engine.answer(caller, || self.engine.send_or_keep(caller, id::CONFIRMED, u64::from(functions), &[]));
        }
    }

    fn run_function(&self, from: usize, number: u32, digest: u32, payload: &[u8]) {
        // Not borrowed while it runs: it may register others.
        let known = self.handlers();
        let found = {
            let functions = self.table.open.functions.borrow();
            functions.get(number as usize).map(|function| (std::rc::Rc::clone(&function.handler), function.digest))
        };
        let Some((handler, ours)) = found else {
            let rank = self.engine.rank;
            return self.engine.faults.keep(Error::UnknownHandler { from, rank, id: number.into(), known });
        };
        let name = || self.table.open.functions.borrow()[number as usize].name.clone();
        if digest != 0 && digest != ours {
            return self.engine.faults.keep(Error::RanksDiffer {
                what: "the handler table",
                rank: from,
                reference: self.engine.rank,
                theirs: format!("another function as handler {number}"),
                ours: format!("`{}`", name()),
                advice: SAME_ORDER,
            });
        }
        self.run_for(from, Caller::Nothing, name, || handler(&self.context(from), payload));
    }

    /// Runs the calls that came before their function was registered, in their order.
    fn run_early(&self) {
        loop {
            // Not borrowed while they run.
            let next = {
                let (mut early, known) = (self.table.open.early.borrow_mut(), self.handlers());
                let at = early.iter().position(|early| (early.number as usize) < known);
                at.and_then(|at| early.remove(at))
            };
            let Some(Early { from, number, digest, payload }) = next else { return };
            self.confirm_to(from);
            self.run_function(from, number, digest, &payload);
        }
    }

    /// Whether no call waits for a function that this rank has not registered.
    ///
    /// # Errors
    /// [`Error::UnknownHandler`] of the first that does.
    pub fn check_none_early(&self) -> Result<()> {
        let early = self.table.open.early.borrow();
        early.front().map_or(Ok(()), |early| {
            let (from, id) = (early.from, early.number.into());
            Err(Error::UnknownHandler { from, rank: self.engine.rank, id, known: self.handlers() })
        })
    }

    /// The number, and what tells its function from another: 0 for one that is not registered here.
    fn header(&self, function: HandlerId) -> u64 {
        let functions = self.table.open.functions.borrow();
        let digest = functions.get(function.0 as usize).map_or(0, |function| function.digest);
        u64::from(digest) << 32 | u64::from(function.0)
    }

    /// Whether a call of this function may go to `to` now: it is registered there, or there is room for calls that may have to wait
    /// for that.
    fn may_call(&self, to: usize, function: HandlerId, payload: &[u8]) -> bool {
        let (confirmed, limit) = (&self.table.open.confirmed, self.engine.settings.message_memory);
        if self.is_confirmed(to, function) || confirmed.has_room(payload.len(), limit) {
            return true;
        }
        let job = &self.engine.job;
        if job.any_lost() || job.any_left() {
            confirmed.forget(|peer| job.loss(peer).is_some());
        }
        confirmed.has_room(payload.len(), limit)
    }

    fn is_confirmed(&self, to: usize, function: HandlerId) -> bool {
        let is_own = to == self.engine.rank && (function.0 as usize) < self.handlers();
        is_own || self.table.open.confirmed.has(to, function.0)
    }

    /// Sends a call with `send`, which gets the header and tells whether the message was taken.
    fn call_function(
        &self,
        to: usize,
        function: HandlerId,
        payload: &[u8],
        send: impl FnOnce(u64) -> Result<Sent>,
    ) -> Result<Sent> {
        let header = self.header(function);
        // The target rejects a number that this rank has not registered either. Such a call needs no confirmation.
        if header >> 32 == 0 || self.is_confirmed(to, function) {
            return send(header);
        }
        let sent = send(header | u64::from(ASKS))?;
        // The confirmation may have come while the call waited for room.
        if sent == Sent::Done && !self.is_confirmed(to, function) {
            self.table.open.confirmed.called(to, function.0, payload.len());
        }
        Ok(sent)
    }

    /// Calls a function of an open table at rank `to`. If there is no room, the call is kept and sent later, as long as there
    /// is message memory. Blocks while that many bytes of calls are in flight to functions that the target may not have
    /// registered; inside a handler it never blocks.
    ///
    /// # Errors
    /// As [`Messages::send_to_handler`].
    pub fn post_to_function(&self, to: usize, function: HandlerId, payload: &[u8]) -> Result<()> {
        self.engine.check_rank(to, "sending a message")?;
        self.ready_for(to)?;
        if !self.may_call(to, function, payload) && !self.engine.interface.delivering() {
            self.engine.wait_until(WAITING, None, || self.may_call(to, function, payload))?;
        }
        let send = |header| self.engine.send_or_keep(to, id::FUNCTION, header, payload).map(|()| Sent::Done);
        self.call_function(to, function, payload, send).map(drop)
    }

    /// As [`Messages::post_to_function`], if there is room on the way there. Whether there was: nothing is kept.
    ///
    /// # Errors
    /// As [`Messages::send_to_handler`].
    pub fn try_post_to_function(&self, to: usize, function: HandlerId, payload: &[u8]) -> Result<bool> {
        self.engine.check_rank(to, "sending a message")?;
        self.ready_for(to)?;
        if !self.may_call(to, function, payload) {
            return Ok(false);
        }
        let sent =
            self.call_function(to, function, payload, |header| self.engine.send(to, id::FUNCTION, header, payload))?;
        Ok(sent == Sent::Done)
    }
}

/// 32 bits of a digest, not 0.
fn short(digest: u64) -> u32 {
    ((digest >> 32) as u32 ^ digest as u32).max(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::{Settings, Threads};

    const LEN: usize = 1000;
    const MEMORY: usize = 64 << 10;
    const CALLS: usize = 200;

    #[test]
    fn calls_of_a_function_that_is_not_registered_wait_at_the_caller() {
        let job = Threads::new(2).deadline(Duration::from_secs(60));
        let job = job.settings(Settings { message_memory: MEMORY, ..Settings::default() });
        let sent = job.build(|builder| {
            let world = builder.open_table().start().expect("starts");
            let (messages, ran) = (world.messages(), Rc::new(Cell::new(0)));
            let count = Rc::clone(&ran);
            let register = || {
                messages.register(
                    "count",
                    calls_of_a_function_that_is_not_registered_wait_at_the_caller as *const () as usize,
                    Rc::new(move |_, payload| count.set(count.get() + usize::from(payload == [7; LEN]))),
                )
            };
            let told = world.alloc::<u64>(1).expect("it fits");
            world.barrier().expect("all are here");
            let mut sent = 0;
            if world.rank() == 0 {
                let function = register().expect("is open");
                // The other one takes what comes all the time.
                for _ in 0..20_000 {
                    if sent < CALLS && messages.try_post_to_function(1, function, &[7; LEN]).expect("alive") {
                        sent += 1;
                    }
                    world.poll().expect("polls");
                    std::thread::yield_now();
                }
                told.put(1, 0, 1).expect("in range");
                for _ in sent..CALLS {
                    messages.post_to_function(1, function, &[7; LEN]).expect("alive");
                }
            } else {
                world.wait_until(|| told.load(0) == 1).expect("comes");
                assert_eq!(ran.get(), 0, "it is not registered");
                register().expect("is open");
                world.wait_until(|| ran.get() == CALLS).expect("all come");
            }
            world.finish().expect("finishes");
            sent
        });
        let sent = sent.expect("runs")[0];
        assert!(sent > 1 && sent * LEN <= MEMORY, "{sent} calls of {LEN} bytes wait at a rank that may keep {MEMORY}");
    }

    /// A forked child has none of its parent's messages: registering fails there. It must not leave a number that has no function.
    #[test]
    fn registering_that_fails_gives_no_number() {
        let ended = Threads::new(1).deadline(Duration::from_secs(60)).build(|builder| {
            let world = builder.open_table().start().expect("starts");
            let messages = world.messages();
            let code = registering_that_fails_gives_no_number as *const () as usize;
            let register = |name| messages.register(name, code, Rc::new(|_, _| ()));
            register("first").expect("is open");
            let early = Early { from: 0, number: 1, digest: 1, payload: Box::default() };
            messages.table.open.early.borrow_mut().push_back(early);
            // SAFETY: the child calls what takes no lock of another thread, and ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let refused = matches!(register("second"), Err(Error::Forked { .. }));
                let wrong = i32::from(!refused) + 2 * i32::from(messages.handlers() != 1);
                // SAFETY: ends this process without running anything of the parent's.
                unsafe { libc::_exit(wrong) };
            }
            let mut status = -1;
            // SAFETY: our own child, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status >> 8, 0, "in the child: 1 no error, 2 another number of functions");
            messages.table.open.early.borrow_mut().clear();
            world.finish().expect("finishes");
        });
        ended.expect("runs");
    }
}
