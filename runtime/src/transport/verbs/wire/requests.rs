//! Requests: posted, reported, and what becomes of their buffers.

use std::mem::MaybeUninit;

use rdma_core_sys::*;

use super::buffers::{FRAME, RECEIVED};
use super::errors::status;
use super::outcomes::Data;
use super::{VerbsWire, request};
use crate::transport::error::{Error, Result};
use crate::transport::verbs::address::rank_of;
use crate::transport::verbs::link::{Link, RingFrame, Then};
use crate::transport::verbs::pool::Pool;

/// The number by which a request reports: the `index`-th to this peer.
pub(super) fn number(peer: u32, index: u64) -> u64 {
    u64::from(peer) << 32 | u64::from(index as u32)
}

impl VerbsWire {
    /// Takes the word that a read or an atomic has fetched.
    #[inline(always)]
    pub(super) fn take_word(&self, link: &Link, small: u32) -> u64 {
        link.requests.read_done();
        self.buffers.take_word(small)
    }

    /// A request is done.
    pub(super) fn finish(&self, link: &Link, then: Then, outcome: Result<()>) {
        match then {
            Then::Nothing | Then::Idle => {}
            Then::Small(buffer) => self.buffers.small.give_back(buffer),
            Then::Large(buffer) => self.buffers.large.give_back(buffer),
            Then::Ticket(ticket) => self.outcomes.push(ticket, outcome, Data::Word(0)),
            Then::Message { small, ticket } => {
                self.buffers.small.give_back(small);
                self.outcomes.push(ticket, outcome, Data::Word(0));
            }
            Then::Read(ticket) => {
                link.requests.read_done();
                self.outcomes.push(ticket, outcome, Data::Word(0));
            }
            Then::Fetched { large, len, ticket } => {
                link.requests.read_done();
                self.outcomes.push(ticket, outcome, Data::Large { buffer: large, len });
            }
            Then::Found { small, ticket } => {
                let word = self.take_word(link, small);
                if let Some(ticket) = ticket {
                    self.outcomes.push(ticket, outcome, Data::Word(word));
                }
            }
            Then::Awaited { small } => {
                let word = self.take_word(link, small);
                self.outcomes.set_awaited(outcome.map(|()| word));
            }
            Then::Attempted { small, attempt } => {
                let word = self.take_word(link, small);
                if outcome.is_ok()
                    && let Some((ticket, found)) = self.attempts.found(attempt, word)
                {
                    link.requests.attempt_done();
                    if let Some(ticket) = ticket {
                        self.outcomes.push(ticket, Ok(()), Data::Word(found));
                    }
                }
            }
        }
    }

    /// Takes the device's completions. Returns how many requests it reported.
    #[inline]
    pub(super) fn read_completions(&self) -> usize {
        let mut room = [MaybeUninit::uninit(); 16];
        let mut count = 0;
        self.losses.begin_reading();
        loop {
            let came = self.connector.board.done.poll(&mut room);
            count += came.iter().map(|wc| usize::from(self.take_completion(wc))).sum::<usize>();
            if came.len() < room.len() {
                break;
            }
        }
        if self.losses.end_reading() {
            self.end_lost();
        }
        count
    }

    /// Ends the connections to peers that were lost while completions were read.
    #[cold]
    fn end_lost(&self) {
        let peers = self.losses.take_ending();
        for peer in peers {
            self.end(peer, self.link(peer), Error::ConnectionReset);
        }
    }

    /// Takes one; whether it reports requests of this rank.
    #[inline]
    pub(super) fn take_completion(&self, wc: &ibv_wc) -> bool {
        if wc.wr_id & RECEIVED == 0 {
            self.take_report(wc);
            return true;
        }
        if wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            self.note(wc);
            self.offer(wc);
        } else {
            if wc.status == IBV_WC_SUCCESS && RingFrame::is_close(self.receives.frame(wc)) {
                self.leave_ring(wc.qp_num);
            }
            self.arrivals.add(*wc);
        }
        false
    }

    fn take_report(&self, wc: &ibv_wc) {
        let peer = (wc.wr_id >> 32) as u32;
        let Some(link) = self.link_or_none(peer) else { return };
        // Also the late report of a connection that was given up.
        if !link.is_over(wc.qp_num) {
            return;
        }
        if wc.status == IBV_WC_SUCCESS {
            link.requests.settle(wc.wr_id as u32, |then| self.finish(link, then, Ok(())));
            self.room.gain();
        } else if self
            .connector
            .board
            .with_connection(peer, |now| now.is_some_and(|now| now.pair.number() != wc.qp_num))
        {
            // The peer has given this connection up and has asked for the next one, which must not count as lost because of this error.
            self.refresh(peer, link);
        } else {
            self.lose(peer, status(wc.status));
        }
    }

    /// Whether `requests` more may be posted to this peer; if not, a sleep ends when there may be room.
    #[inline]
    pub(super) fn has_room_for(&self, link: &Link, requests: usize) -> bool {
        let has_room = link.requests.has_room(requests);
        if !has_room {
            self.room.refuse();
        }
        has_room
    }

    /// Posts a request; there is room, as [`VerbsWire::ready`] found.
    #[inline(always)]
    pub(super) fn post(&self, peer: u32, link: &Link, wr: &mut ibv_send_wr, then: Then, reports: bool) -> Result<u64> {
        // A loss may have been found since there was room.
        let raw = link.raw();
        if raw.is_null() {
            return Err(link.error().unwrap_or(Error::NoResource));
        }
        let plan = link.requests.plan(reports);
        wr.wr_id = number(peer, plan.number);
        if plan.reports {
            wr.send_flags |= IBV_SEND_SIGNALED;
        }
        if plan.waits {
            wr.send_flags |= IBV_SEND_FENCE;
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair; the list is read before the call returns, and its buffers are kept until the
        // request is done.
        let failed = unsafe { ibv_post_send(raw, wr, &raw mut bad) };
        if failed != 0 {
            return Err(self.refused(peer, failed));
        }
        Ok(link.requests.posted(plan, then))
    }

    /// Puts what `fill` writes into a buffer of the wire's, at the key and address given.
    #[inline(never)]
    pub(super) fn post_copied(
        &self,
        peer: u32,
        link: &Link,
        (rkey, remote_addr): (u32, u64),
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize> {
        let (pool, is_small) = (self.buffers.for_copy(max)?, max <= FRAME);
        if !is_small {
            // The buffer that came back last is still in the caches.
            self.read_completions();
        }
        let buffer = self.take(pool)?;
        let at = pool.at(buffer);
        // SAFETY: a buffer of ours with that much room.
        let len = fill(unsafe { std::slice::from_raw_parts_mut(at, max) }).min(max);
        let mut sge = ibv_sge { addr: at as u64, length: len as u32, lkey: pool.key() };
        let mut wr = request(IBV_WR_RDMA_WRITE, std::slice::from_mut(&mut sge));
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
        let then = if is_small { Then::Small(buffer) } else { Then::Large(buffer) };
        let posted = self.post(peer, link, &mut wr, then, !is_small);
        link.requests.note_put();
        if posted.is_err() {
            pool.give_back(buffer);
        }
        posted.map(|_| len)
    }

    #[cold]
    fn refused(&self, peer: u32, failed: i32) -> Error {
        if failed == libc::ENOMEM {
            self.room.refuse();
            return Error::NoResource;
        }
        tracing::error!(rank = rank_of(peer), error = %std::io::Error::from_raw_os_error(failed), "ibv_post_send");
        self.lose(peer, "posting a request");
        Error::ConnectionReset
    }

    /// Posts a request that does nothing but report for the earlier ones.
    pub(super) fn ask_for_report(&self, peer: u32, link: &Link) {
        if link.requests.wants_report() && !link.raw().is_null() && link.requests.has_room(1) {
            let mut wr = request(IBV_WR_RDMA_WRITE, &mut []);
            let _posted = self.post(peer, link, &mut wr, Then::Idle, true);
        }
    }

    /// Buffers come back with the next report, and a silent request never reports.
    #[cold]
    pub(super) fn ask_for_reports(&self) {
        self.peers.iter().for_each(|(peer, link)| self.ask_for_report(peer, link));
        self.read_completions();
    }

    pub(super) fn take(&self, pool: &Pool) -> Result<u32> {
        if let Some(buffer) = pool.take() {
            return Ok(buffer);
        }
        self.ask_for_reports();
        pool.take().ok_or_else(|| {
            self.room.refuse();
            Error::NoResource
        })
    }
}
