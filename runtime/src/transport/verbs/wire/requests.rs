//! Requests: posted, reported, and what becomes of their buffers.

use std::mem::MaybeUninit;
use std::rc::Rc;

use rdma_core_sys::*;

use super::{Data, Done, RECEIVED, SILENT, VerbsWire, request, status};
use crate::transport::error::{Error, Result};
use crate::transport::key::RemoteKey;
use crate::transport::verbs::connect::DEPTH;
use crate::transport::verbs::link::{Link, Record, Then};
use crate::transport::verbs::pool::Pool;

impl VerbsWire {
    pub(super) fn tell(&self, ticket: u64, outcome: Result<()>, data: Data) {
        self.done.borrow_mut().push_back(Done { ticket, outcome, data });
    }

    /// A request is done.
    pub(super) fn finish(&self, link: &Link, then: Then, outcome: Result<()>) {
        match then {
            Then::Nothing | Then::Idle => {}
            Then::Small(buffer) => self.small.give_back(buffer),
            Then::Large(buffer) => self.large.give_back(buffer),
            Then::Ticket(ticket) => self.tell(ticket, outcome, Data::Word(0)),
            Then::Read(ticket) => {
                link.reads.set(link.reads.get().saturating_sub(1));
                self.tell(ticket, outcome, Data::Word(0));
            }
            Then::Fetched { large, len, ticket } => {
                link.reads.set(link.reads.get().saturating_sub(1));
                self.tell(ticket, outcome, Data::Large { buffer: large, len });
            }
            Then::Found { small, ticket } => {
                link.reads.set(link.reads.get().saturating_sub(1));
                // SAFETY: a buffer of ours that the device is done with.
                let word = unsafe { self.small.at(small).cast::<u64>().read() };
                self.small.give_back(small);
                if let Some(ticket) = ticket {
                    self.tell(ticket, outcome, Data::Word(word));
                }
            }
            Then::Attempted { small, attempt } => {
                link.reads.set(link.reads.get().saturating_sub(1));
                // SAFETY: as above.
                let word = unsafe { self.small.at(small).cast::<u64>().read() };
                self.small.give_back(small);
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
        loop {
            let came = self.connector.board.done.poll(&mut room);
            for wc in came {
                if wc.wr_id & RECEIVED != 0 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
                    self.note(wc);
                    self.offer(wc.wr_id);
                } else if wc.wr_id & RECEIVED != 0 {
                    self.arrived.borrow_mut().push_back(*wc);
                } else {
                    count += 1;
                    self.take_report(wc);
                }
            }
            if came.len() < room.len() {
                return count;
            }
        }
    }

    fn take_report(&self, wc: &ibv_wc) {
        let peer = (wc.wr_id >> 32) as u32;
        let Some(link) = self.link_or_none(peer) else { return };
        // Also the late report of a connection that was given up.
        if link.pair.borrow().as_ref().is_none_or(|pair| pair.number() != wc.qp_num) {
            return;
        }
        if wc.status == IBV_WC_SUCCESS {
            link.settle(wc.wr_id as u32, |record| self.finish(&link, record.then, Ok(())));
        } else {
            self.lose(peer, status(wc.status));
        }
    }

    /// Posts a request; there is room, as [`VerbsWire::ready`] found.
    #[inline]
    pub(super) fn post(&self, peer: u32, link: &Link, wr: &mut ibv_send_wr, then: Then, reports: bool) -> Result<u64> {
        let mut records = link.records.borrow_mut();
        let index = link.first.get() + records.len() as u64;
        wr.wr_id = u64::from(peer) << 32 | u64::from(index as u32);
        let silent = link.silent.get() + 1;
        if reports || silent >= SILENT {
            wr.send_flags |= IBV_SEND_SIGNALED;
            link.silent.set(0);
        } else {
            link.silent.set(silent);
        }
        if link.fence.get() {
            link.fence.set(false);
            if link.reads.get() > 0 {
                wr.send_flags |= IBV_SEND_FENCE;
            }
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair; the list is read before the call returns, and its buffers are kept until the
        // request is done.
        let failed = unsafe { ibv_post_send(link.raw.get(), wr, &raw mut bad) };
        if failed != 0 {
            drop(records);
            if failed == libc::ENOMEM {
                return Err(Error::NoResource);
            }
            tracing::error!(rank = peer, error = %std::io::Error::from_raw_os_error(failed), "ibv_post_send");
            self.lose(peer, "posting a request");
            return Err(Error::ConnectionReset);
        }
        let issue = link.issued.get();
        link.issued.set(issue + 1);
        records.push_back(Record { issue, then });
        Ok(issue)
    }

    /// A request that does nothing but report for those before it.
    pub(super) fn ask_for_report(&self, peer: u32, link: &Link) {
        if link.silent.get() > 0 && !link.raw.get().is_null() && link.records.borrow().len() < DEPTH {
            let mut wr = request(IBV_WR_RDMA_WRITE, &mut []);
            let _posted = self.post(peer, link, &mut wr, Then::Idle, true);
        }
    }

    /// Buffers come back with the next report, and a silent request never reports.
    #[cold]
    pub(super) fn ask_for_reports(&self) {
        let links: Vec<_> = self.links.borrow().iter().map(|(peer, link)| (*peer, Rc::clone(link))).collect();
        links.iter().for_each(|(peer, link)| self.ask_for_report(*peer, link));
        self.look();
    }

    pub(super) fn take(&self, pool: &Pool) -> Result<u32> {
        if let Some(buffer) = pool.take() {
            return Ok(buffer);
        }
        self.ask_for_reports();
        pool.take().ok_or(Error::NoResource)
    }

    pub(super) fn atomic_request(&self, key: &RemoteKey, remote: u64, compare: Option<u64>, value: u64) -> ibv_send_wr {
        let mut wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &mut []);
        let mut atomic = ibv_send_wr_atomic { remote_addr: remote, compare_add: value, swap: 0, rkey: key.device };
        if let Some(compare) = compare {
            wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
            (atomic.compare_add, atomic.swap) = (compare, value);
        }
        wr.wr.atomic = atomic;
        wr
    }

    pub(super) fn post_word(
        &self,
        peer: u32,
        link: &Link,
        mut wr: ibv_send_wr,
        then: impl FnOnce(u32) -> Then,
        reports: bool,
    ) -> Result<()> {
        let small = self.take(&self.small)?;
        let mut sge = ibv_sge { addr: self.small.at(small) as u64, length: 8, lkey: self.small.key() };
        (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
        if let Err(error) = self.post(peer, link, &mut wr, then(small), reports) {
            self.small.give_back(small);
            return Err(error);
        }
        link.reads.set(link.reads.get() + 1);
        Ok(())
    }

    /// Sends the next attempts of atomics that the device does not know.
    pub(super) fn go_on_with_attempts(&self) -> usize {
        self.attempts.go_on(|peer, key, remote, guess, value, attempt| {
            let Ok(link) = self.ready_for_attempt(peer) else { return false };
            let wr = self.atomic_request(key, remote, Some(guess), value);
            self.post_word(peer, &link, wr, |small| Then::Attempted { small, attempt }, true).is_ok()
        })
    }

    pub(super) fn ready_for_attempt(&self, peer: u32) -> Result<Rc<Link>> {
        let link = self.link(peer);
        let full = link.records.borrow().len() >= DEPTH;
        if link.raw.get().is_null() || full { Err(Error::NoResource) } else { Ok(link) }
    }
}
