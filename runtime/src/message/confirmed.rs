//! Which functions of an open table each peer has registered, as far as it said so, and how much may be under way to functions that
//! a peer may not have.
//!
//! A call of a function that is not registered where it arrives stays there in memory until it is. So a caller counts the calls for
//! which the called rank has not confirmed the function, and has at most so many bytes of them as it may keep of messages that find
//! no room. The first calls ask for the confirmation. It says how many functions the called rank has, so that one
//! confirmation serves for all of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Bytes that a waiting call takes beside its payload, about.
const CALL: usize = 64;

/// Entries are made for peers that were called, or have called.
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

    /// Whether a call with `len` bytes leaves no more than `limit` bytes unconfirmed, or is the only one.
    pub(super) fn has_room(&self, len: usize, limit: usize) -> bool {
        self.bytes.get() == 0 || self.bytes.get() + CALL + len <= limit
    }

    /// Notes a call that asks for a confirmation.
    pub(super) fn called(&self, peer: usize, function: u32, len: usize) {
        *self.calls.borrow_mut().entry((peer, function)).or_default() += CALL + len;
        self.bytes.set(self.bytes.get() + CALL + len);
    }

    /// Notes that `peer` has registered so many functions.
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

    /// Whether `peer` is to be told that this rank has so many functions now. Notes that it is.
    pub(super) fn must_tell(&self, peer: usize, functions: u32) -> bool {
        let mut told = self.told.borrow_mut();
        let before = told.entry(peer).or_default();
        let news = *before < functions;
        *before = functions.max(*before);
        news
    }
}
