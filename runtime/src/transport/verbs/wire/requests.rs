//! Requests: posted, reported, and what becomes of their buffers.

use std::mem::MaybeUninit;

use rdma_core_sys::*;

use super::rings::CLOSE;
use super::{Data, Done, FRAME, RECEIVED, SILENT, VerbsWire, request, status};
use crate::transport::error::{Error, Result};
use crate::transport::verbs::address::rank_of;
use crate::transport::verbs::connect::DEPTH;
use crate::transport::verbs::link::{Link, Record, Then};
use crate::transport::verbs::pool::Pool;

/// The number by which a request reports: the `index`-th to this peer.
pub(super) fn number(peer: u32, index: u64) -> u64 {
    u64::from(peer) << 32 | u64::from(index as u32)
}

impl VerbsWire {
    pub(super) fn tell(&self, ticket: u64, outcome: Result<()>, data: Data) {
        self.done.borrow_mut().push_back(Done { ticket, outcome, data });
    }

    /// What a read or atomic of one word has brought.
    #[inline(always)]
    pub(super) fn take_word(&self, link: &Link, small: u32) -> u64 {
        link.reads.set(link.reads.get().saturating_sub(1));
        // SAFETY: a buffer of ours that the device is done with.
        let word = unsafe { self.small.at(small).cast::<u64>().read() };
        self.small.give_back(small);
        word
    }

    /// A request is done.
    pub(super) fn finish(&self, link: &Link, then: Then, outcome: Result<()>) {
        match then {
            Then::Nothing | Then::Idle => {}
            Then::Small(buffer) => self.small.give_back(buffer),
            Then::Large(buffer) => self.large.give_back(buffer),
            Then::Ticket(ticket) => self.tell(ticket, outcome, Data::Word(0)),
            Then::Message { small, ticket } => {
                self.small.give_back(small);
                self.tell(ticket, outcome, Data::Word(0));
            }
            Then::Read(ticket) => {
                link.reads.set(link.reads.get().saturating_sub(1));
                self.tell(ticket, outcome, Data::Word(0));
            }
            Then::Fetched { large, len, ticket } => {
                link.reads.set(link.reads.get().saturating_sub(1));
                self.tell(ticket, outcome, Data::Large { buffer: large, len });
            }
            Then::Found { small, ticket } => {
                let word = self.take_word(link, small);
                if let Some(ticket) = ticket {
                    self.tell(ticket, outcome, Data::Word(word));
                }
            }
            Then::Awaited { small } => {
                let word = self.take_word(link, small);
                self.awaited.set(Some(outcome.map(|()| word)));
            }
            Then::Attempted { small, attempt } => {
                let word = self.take_word(link, small);
                if outcome.is_ok()
                    && let Some((ticket, found)) = self.attempts.found(attempt, word)
                {
                    link.attempts.set(link.attempts.get() - 1);
                    if let Some(ticket) = ticket {
                        self.tell(ticket, Ok(()), Data::Word(found));
                    }
                }
            }
        }
    }

    /// Takes what the device has to tell; gives how many requests it reported.
    #[inline]
    pub(super) fn look(&self) -> usize {
        let mut room = [MaybeUninit::uninit(); 16];
        let mut count = 0;
        self.looking.set(true);
        loop {
            let came = self.connector.board.done.poll(&mut room);
            count += came.iter().map(|wc| usize::from(self.take_completion(wc))).sum::<usize>();
            if came.len() < room.len() {
                break;
            }
        }
        self.looking.set(false);
        if !self.ending.borrow().is_empty() {
            self.end_lost();
        }
        count
    }

    /// Ends the connections to peers that were lost while completions were looked at.
    #[cold]
    fn end_lost(&self) {
        let peers = self.ending.take();
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
            self.offer(wc.wr_id);
        } else {
            if wc.status == IBV_WC_SUCCESS && self.frame(wc).first() == Some(&CLOSE) {
                self.leave_ring(wc.qp_num);
            }
            self.arrived.borrow_mut().push_back(*wc);
        }
        false
    }

    fn take_report(&self, wc: &ibv_wc) {
        let peer = (wc.wr_id >> 32) as u32;
        let Some(link) = self.link_or_none(peer) else { return };
        // Also the late report of a connection that was given up.
        if link.pair.borrow().as_ref().is_none_or(|pair| pair.number() != wc.qp_num) {
            return;
        }
        if wc.status == IBV_WC_SUCCESS {
            link.settle(wc.wr_id as u32, |then| self.finish(link, then, Ok(())));
        } else if self.connector.board.look(peer, |now| now.is_some_and(|now| now.pair.number() != wc.qp_num)) {
            // The peer gave this connection up and has asked for the next, which must not be lost by it.
            self.refresh(peer, link);
        } else {
            self.lose(peer, status(wc.status));
        }
    }

    /// Posts a request; there is room, as [`VerbsWire::ready`] found.
    #[inline(always)]
    pub(super) fn post(&self, peer: u32, link: &Link, wr: &mut ibv_send_wr, then: Then, reports: bool) -> Result<u64> {
        // A loss may have been found since there was room.
        let raw = link.state.get().raw();
        if raw.is_null() {
            return Err(link.state.get().error().unwrap_or(Error::NoResource));
        }
        wr.wr_id = number(peer, link.records.next());
        let silent = link.silent.get() + 1;
        if reports || silent >= SILENT {
            wr.send_flags |= IBV_SEND_SIGNALED;
            link.silent.set(0);
        } else {
            link.silent.set(silent);
        }
        let fence = link.fence.replace(false);
        if fence && link.reads.get() > 0 {
            wr.send_flags |= IBV_SEND_FENCE;
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair; the list is read before the call returns, and its buffers are kept until the
        // request is done.
        let failed = unsafe { ibv_post_send(raw, wr, &raw mut bad) };
        if failed != 0 {
            link.fence.set(fence);
            return Err(self.refused(peer, failed));
        }
        let issue = link.issued.get();
        link.issued.set(issue + 1);
        link.records.push(Record { issue, then });
        Ok(issue)
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
        let (pool, is_small) = if max <= FRAME { (&self.small, true) } else { (&self.large, false) };
        if max > pool.size() {
            return Err(Error::ExceedsLimit { what: "a packed put", length: max, limit: pool.size() });
        }
        if !is_small {
            // The buffer that came back last is still in the caches.
            self.look();
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
        link.note_put();
        if posted.is_err() {
            pool.give_back(buffer);
        }
        posted.map(|_| len)
    }

    #[cold]
    fn refused(&self, peer: u32, failed: i32) -> Error {
        if failed == libc::ENOMEM {
            return Error::NoResource;
        }
        tracing::error!(rank = rank_of(peer), error = %std::io::Error::from_raw_os_error(failed), "ibv_post_send");
        self.lose(peer, "posting a request");
        Error::ConnectionReset
    }

    /// A request that does nothing but report for those before it.
    pub(super) fn ask_for_report(&self, peer: u32, link: &Link) {
        if link.silent.get() > 0 && !link.state.get().raw().is_null() && link.records.len() < DEPTH {
            let mut wr = request(IBV_WR_RDMA_WRITE, &mut []);
            let _posted = self.post(peer, link, &mut wr, Then::Idle, true);
        }
    }

    /// Buffers come back with the next report, and a silent request never reports.
    #[cold]
    pub(super) fn ask_for_reports(&self) {
        self.links.iter().for_each(|(peer, link)| self.ask_for_report(peer, link));
        self.look();
    }

    pub(super) fn take(&self, pool: &Pool) -> Result<u32> {
        if let Some(buffer) = pool.take() {
            return Ok(buffer);
        }
        self.ask_for_reports();
        pool.take().ok_or(Error::NoResource)
    }
}
