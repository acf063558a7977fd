//! Functions that are registered at any time, each rank at its own pace, for vocabularies that allow it.
//!
//! A call carries 32 bits of the function's digest beside its number. The called rank compares them. It keeps the call of
//! a function that the caller has registered and itself not yet, and runs it once it has. What ranks had registered
//! when each sent its first message they compare as a closed table, as far as both go.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

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

impl Messages {
    /// Lets functions be registered at any time. Before the first is.
    pub fn open(&self) {
        self.table.open.is_open.set(true);
        self.set_handler(id::FUNCTION, |messages, message| messages.handle_function(message.from, message.data()));
    }

    /// Enters a function under the next number of an open table.
    pub(super) fn enter(&self, name: &str, digest: u64, handler: HandlerFn) -> Result<()> {
        let open = &self.table.open;
        let number = open.functions.borrow().len();
        open.functions.borrow_mut().push(Function { name: name.into(), digest: short(digest), handler });
        if open.early.borrow().iter().any(|early| early.number as usize == number) {
            self.engine.send_or_keep(self.engine.rank, id::FUNCTION, REGISTERED, &[])?;
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
            return self.engine.set_fault(error);
        }
        let (number, digest) = (header as u32, (header >> 32) as u32);
        if number as usize >= self.handlers() && digest != 0 {
            tracing::warn!(
                from,
                number,
                "a call of a function that this rank has not registered yet; kept until it has"
            );
            let early = Early { from, number, digest, payload: payload.into() };
            return self.table.open.early.borrow_mut().push_back(early);
        }
        self.run_function(from, number, digest, payload);
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
            return self.engine.set_fault(Error::UnknownHandler { from, rank, id: number.into(), known });
        };
        let name = || self.table.open.functions.borrow()[number as usize].name.clone();
        if digest != 0 && digest != ours {
            return self.engine.set_fault(Error::RanksDiffer {
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

    /// Calls a function of an open table at rank `to`. Never waits for room: what finds none is kept and sent later, as far as
    /// there is message memory.
    ///
    /// # Errors
    /// As [`Messages::send_to_handler`].
    pub fn post_to_function(&self, to: usize, function: HandlerId, payload: &[u8]) -> Result<()> {
        self.engine.check_rank(to, "sending a message")?;
        self.ready_for(to)?;
        self.engine.send_or_keep(to, id::FUNCTION, self.header(function), payload)
    }

    /// As [`Messages::post_to_function`], if there is room on the way there. Whether there was: nothing is kept.
    ///
    /// # Errors
    /// As [`Messages::send_to_handler`].
    pub fn try_post_to_function(&self, to: usize, function: HandlerId, payload: &[u8]) -> Result<bool> {
        self.engine.check_rank(to, "sending a message")?;
        self.ready_for(to)?;
        Ok(self.engine.send(to, id::FUNCTION, self.header(function), payload)? == Sent::Done)
    }
}

/// 32 bits of a digest, not 0.
fn short(digest: u64) -> u32 {
    ((digest >> 32) as u32 ^ digest as u32).max(1)
}
