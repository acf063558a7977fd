//! Atomics: the device's two, and those that are made of them.

use std::mem::MaybeUninit;

use rdma_core_sys::*;

use super::requests::number;
use super::{VerbsWire, request, rkey};
use crate::transport::atomic::{Atomic, AtomicOp, Width};
use crate::transport::error::{Error, Result};
use crate::transport::key::RemoteKey;
use crate::transport::verbs::link::{Link, Then};

/// Polls for the result of an atomic before the call waits as for any other answer. Chosen: about
/// one round trip.
const POLLS: u32 = 500;

impl VerbsWire {
    /// The request for an atomic that the device knows.
    #[inline(always)]
    pub(super) fn device_atomic(&self, key: &RemoteKey, remote: u64, atomic: Atomic) -> Option<ibv_send_wr> {
        let compare = match (atomic.op, atomic.width) {
            (AtomicOp::Add, Width::Eight) => None,
            (AtomicOp::CompareSwap, Width::Eight) => Some(atomic.compare),
            _ => return None,
        };
        Some(self.atomic_request(key, remote, compare, atomic.value))
    }

    #[inline(always)]
    fn atomic_request(&self, key: &RemoteKey, remote: u64, compare: Option<u64>, value: u64) -> ibv_send_wr {
        let mut wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &mut []);
        let mut atomic = ibv_send_wr_atomic { remote_addr: remote, compare_add: value, swap: 0, rkey: rkey(key) };
        if let Some(compare) = compare {
            wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
            (atomic.compare_add, atomic.swap) = (compare, value);
        }
        wr.wr.atomic = atomic;
        wr
    }

    /// Does an atomic by the device for a caller that waits for the result. Returns the former value of the word if it comes in a moment.
    #[inline(always)]
    pub(super) fn await_word(
        &self,
        peer: u32,
        link: &Link,
        wr: ibv_send_wr,
        ticket: impl FnOnce() -> u64,
    ) -> Result<Option<u64>> {
        let issue = self.post_word(peer, link, wr, |small| Then::Awaited { small }, true)?;
        let last = link.requests.last();
        let mut room = [MaybeUninit::uninit(); 1];
        for _ in 0..POLLS {
            for wc in self.connector.board.done.poll(&mut room) {
                if wc.status == IBV_WC_SUCCESS && wc.wr_id == number(peer, last) {
                    link.requests.settle(wc.wr_id as u32, |then| match then {
                        Then::Awaited { small } => self.outcomes.set_awaited(Ok(self.take_word(link, small))),
                        then => self.finish(link, then, Ok(())),
                    });
                } else {
                    self.take_completion(wc);
                }
            }
            if let Some(found) = self.outcomes.take_awaited() {
                return found.map(Some);
            }
        }
        link.requests.stop_awaiting(issue, ticket());
        Ok(None)
    }

    #[inline(always)]
    pub(super) fn post_word(
        &self,
        peer: u32,
        link: &Link,
        mut wr: ibv_send_wr,
        then: impl FnOnce(u32) -> Then,
        reports: bool,
    ) -> Result<u64> {
        let small = self.take(&self.buffers.small)?;
        let mut sge = ibv_sge { addr: self.buffers.small.at(small) as u64, length: 8, lkey: self.buffers.small.key() };
        (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
        let posted = self.post(peer, link, &mut wr, then(small), reports);
        match posted {
            Ok(_) => {
                link.requests.read_posted();
                link.requests.note_put();
            }
            Err(_) => self.buffers.small.give_back(small),
        }
        posted
    }

    /// Sends the next attempts of atomics that the device does not know.
    pub(super) fn go_on_with_attempts(&self) -> usize {
        self.attempts.go_on(|peer, key, remote, guess, value, attempt| {
            let Ok(link) = self.ready_for_attempt(peer) else { return false };
            let wr = self.atomic_request(key, remote, Some(guess), value);
            self.post_word(peer, link, wr, |small| Then::Attempted { small, attempt }, true).is_ok()
        })
    }

    pub(super) fn ready_for_attempt(&self, peer: u32) -> Result<&Link> {
        let link = self.link(peer);
        let is_full = !self.has_room_for(link, 1);
        if link.raw().is_null() || is_full { Err(Error::NoResource) } else { Ok(link) }
    }
}
