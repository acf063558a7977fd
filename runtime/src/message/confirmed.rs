//! Limits the calls of functions that the called rank may not have registered yet (`open.rs`).
//!
//! The called rank keeps such a call in memory until the function is registered. So the caller counts the bytes of calls whose
//! functions the called rank has not confirmed, and blocks beyond the limit on queued messages (`BELLWETHER_MESSAGE_MEMORY`).
//! The first such calls ask for a confirmation. A confirmation carries the number of functions that the called rank has
//! registered, so one confirmation serves for all of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Approximate bytes that a waiting call takes in addition to its payload.
const CALL: usize = 64;

/// The confirmations of one rank, given and received. Only peers that called this rank, or that it called, have entries.
#[derive(Default)]
pub(super) struct Confirmed {
    /// How many functions a peer has confirmed.
    functions: RefCell<BTreeMap<usize, u32>>,
    /// How many functions this rank has confirmed to a peer.
    told: RefCell<BTreeMap<usize, u32>>,
    /// Bytes of calls that are not confirmed, by peer and function.
    calls: RefCell<BTreeMap<(usize, u32), usize>>,
    bytes: Cell<usize>,
}

impl Confirmed {
    /// Whether `peer` has confirmed this function.
    pub(super) fn has(&self, peer: usize, function: u32) -> bool {
        self.functions.borrow().get(&peer).is_some_and(|functions| function < *functions)
    }

    /// Whether a call of `len` bytes may be sent: no more than `limit` bytes are then unconfirmed, or it is the only such call.
    pub(super) fn has_room(&self, len: usize, limit: usize) -> bool {
        self.bytes.get() == 0 || self.bytes.get() + CALL + len <= limit
    }

    /// Counts a call of a function that is not confirmed.
    pub(super) fn called(&self, peer: usize, function: u32, len: usize) {
        *self.calls.borrow_mut().entry((peer, function)).or_default() += CALL + len;
        self.bytes.set(self.bytes.get() + CALL + len);
    }

    /// Notes that `peer` has registered this many functions, and stops counting the calls of these.
    pub(super) fn confirm(&self, peer: usize, functions: u32) {
        let mut all = self.functions.borrow_mut();
        let known = all.entry(peer).or_default();
        *known = functions.max(*known);
        let mut calls = self.calls.borrow_mut();
        let over: Vec<_> = calls.range((peer, 0)..(peer, *known)).map(|(call, _)| *call).collect();
        for call in over {
            let bytes = calls.remove(&call).unwrap_or_default();
            self.bytes.set(self.bytes.get() - bytes);
        }
    }

    /// Gives up calls in flight to peers that are gone: they confirm nothing any more.
    pub(super) fn forget(&self, is_gone: impl Fn(usize) -> bool) {
        let mut left = self.bytes.get();
        self.calls.borrow_mut().retain(|(peer, _), bytes| {
            let gone = is_gone(*peer);
            left -= if gone { *bytes } else { 0 };
            !gone
        });
        self.bytes.set(left);
    }

    /// Whether to tell `peer` that this rank has this many functions now: it was told fewer. Notes that it is told.
    pub(super) fn must_tell(&self, peer: usize, functions: u32) -> bool {
        let mut told = self.told.borrow_mut();
        let before = told.entry(peer).or_default();
        let news = *before < functions;
        *before = functions.max(*before);
        news
    }
}
