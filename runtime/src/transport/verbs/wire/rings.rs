//! Messages from busy peers: RDMA writes into a ring that this rank polls, instead of sends.
//!
//! A rank lends a ring to a peer that sent many small messages since this rank last slept. The peer writes messages that
//! fit into the ring and sends the others. A write raises no completion at the receiver, so it does not wake the receiver: before a
//! rank sleeps it asks for its rings back.
//!
//! ```text
//! receiver                              sender
//! many messages came ── OFFER ──▶       writes what fits into the ring
//! wants to sleep     ── CLOSE ──▶       sends
//! has its ring back  ◀── CLOSED ──
//! ```
//!
//! Until all rings are back, their owner sleeps for short naps only. The sender checks for CLOSE before each write, even if
//! the program makes no progress. So only a write that crosses CLOSE on the wire has to wait for the end of a nap.
//!
//! A received send implies that all earlier writes are visible; a polled write implies nothing about earlier ones. So a
//! message goes into the ring only if all earlier puts to that peer are acknowledged.
//!
//! Messages stay in order over both paths. A message in the ring says how many frames were sent before it, and is handled
//! after them. Before a frame is handled, the ring is emptied: writes posted before that send are visible. Both paths share
//! their credits. There are at most as many credits as slots, and messages are handled in order, so whenever there is a
//! credit the next slot is free.

use std::time::Duration;

use rdma_core_sys::*;

use super::{VerbsWire, request};
use crate::transport::error::{Error, Result};
use crate::transport::message::Retained;
use crate::transport::verbs::link::{Link, RingFrame, Then};
use crate::transport::verbs::ring::{self, Remote};
use crate::transport::wire::{Arrival, Channel};

impl VerbsWire {
    /// The ring that the peer has lent to this rank, if a message of `bytes` bytes, head included, may be written there now.
    #[inline(always)]
    pub(super) fn ring_of(&self, link: &Link, channel: Channel, bytes: usize) -> Option<Remote> {
        link.rings
            .remote()
            .filter(|_| channel == Channel::Message && ring::fits(bytes) && link.requests.puts_acknowledged())
    }

    /// Writes a sealed message into the peer's ring.
    pub(in crate::transport::verbs) fn write_to_ring(
        &self,
        peer: u32,
        link: &Link,
        to: Remote,
        slot: &[u8],
    ) -> Result<u64> {
        let mut sge = ibv_sge { addr: slot.as_ptr() as u64, length: slot.len() as u32, lkey: 0 };
        let mut wr = request(IBV_WR_RDMA_WRITE, std::slice::from_mut(&mut sge));
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: to.next(), rkey: to.key };
        wr.send_flags |= IBV_SEND_INLINE;
        let posted = self.post(peer, link, &mut wr, Then::Nothing, false)?;
        link.rings.wrote(to);
        Ok(posted)
    }

    /// Counts a small message that this peer sent, and lends it a ring when it becomes busy.
    #[inline]
    pub(super) fn count_towards_ring(&self, peer: u32, link: &Link) {
        if link.rings.count_small_message() {
            self.lend_ring(peer, link);
        }
    }

    #[cold]
    fn lend_ring(&self, peer: u32, link: &Link) {
        if link.rings.lent().is_some() || self.flow.credits > ring::SLOTS {
            return;
        }
        match self.rings.lend(&self.connector.board.nic, peer) {
            Ok(Some((number, remote))) => {
                link.rings.lend(number, remote);
                self.backlog.note(peer);
            }
            Ok(None) => self.reclaim_one(),
            // No memory for a ring: the peer goes on with sends, and this is tried again after many more.
            Err(_) => link.rings.lend_later(),
        }
    }

    /// All rings are lent: asks one back that got no message since this function was called last.
    fn reclaim_one(&self) {
        let mut found = false;
        for (peer, link) in self.borrowers() {
            // All are asked, so that each begins a new count.
            if link.rings.is_idle() && !found {
                found = link.rings.want_back();
                self.backlog.note(peer);
            }
        }
    }

    /// The peers that have a ring of this rank, also those that get one meanwhile. A handler may give one back.
    fn borrowers(&self) -> impl Iterator<Item = (u32, &Link)> {
        (0..).map_while(|place| self.rings.borrower(place)).map(|peer| (peer, self.link(peer)))
    }

    /// Before a sleep: asks all rings back. Returns how long this rank may sleep meanwhile; `None`, no limit, if none is
    /// lent.
    pub(super) fn nap(&self) -> Option<Duration> {
        self.peers.iter().for_each(|(_, link)| link.rings.forget_small_messages());
        let borrowers = self.rings.borrowers();
        if borrowers.is_empty() {
            self.sleep.alarm.begin_anew();
            return None;
        }
        for peer in borrowers {
            if self.link(peer).rings.want_back() {
                self.backlog.note(peer);
                self.drain(peer);
            }
        }
        Some(self.sleep.alarm.nap())
    }

    /// Sends the frames about rings that are due.
    pub(super) fn say_of_rings(&self, peer: u32, link: &Link) -> Result<()> {
        while let Some(frame) = link.rings.to_say() {
            if !self.has_room_for(link, 1) {
                return Err(Error::NoResource);
            }
            self.send_frame(peer, link, &frame.encode(), None, None)?;
            link.rings.said(frame);
        }
        Ok(())
    }

    /// A CLOSE of this peer was received: stops writing at once, before earlier frames are handled.
    #[cold]
    pub(super) fn leave_ring(&self, pair: u32) {
        if let Some(link) = self.peer_of(pair).and_then(|peer| self.link_or_none(peer)) {
            link.rings.stop_writing();
        }
    }

    /// Handles a frame about rings.
    pub(super) fn hear_of_rings(&self, peer: u32, link: &Link, frame: RingFrame) {
        link.rings.hear(frame);
        match frame {
            RingFrame::Offer(_) => {}
            // The answer is due.
            RingFrame::Close => self.backlog.note(peer),
            RingFrame::Closed => {
                if link.rings.lent().is_some_and(|lent| self.rings.has_begun(lent.ring, lent.taken)) {
                    self.lose(peer, "a ring that it gave back with something in it that is no message");
                }
                self.take_back(peer, link);
            }
        }
    }

    /// Takes back the peer's ring; the peer no longer writes into it.
    pub(super) fn take_back(&self, peer: u32, link: &Link) {
        if let Some(ring) = link.rings.take_back() {
            self.rings.give_back(ring, peer);
        }
    }

    /// Whether a message has begun to arrive in a ring.
    pub(super) fn rings_have_begun(&self) -> bool {
        self.borrowers()
            .any(|(_, link)| link.rings.lent().is_some_and(|lent| self.rings.has_begun(lent.ring, lent.taken)))
    }

    /// Handles the messages in all rings. Returns how many.
    #[inline]
    pub(super) fn receive_from_rings(&self, sink: &mut dyn FnMut(Arrival<'_>)) -> usize {
        self.borrowers().map(|(peer, link)| self.take_from_ring(peer, link, sink)).sum()
    }

    /// Handles the messages in this peer's ring, up to the first that follows a frame not yet handled.
    pub(super) fn take_from_ring(&self, peer: u32, link: &Link, sink: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let mut count = 0;
        // No more were in flight when this loop began; later ones are left to the next poll.
        while let Some(lent) = link.rings.lent().filter(|_| count < ring::SLOTS as usize) {
            let Some(message) = self.rings.peek(lent.ring, lent.taken) else { return count };
            if !link.rings.may_handle_after(message.head.after) {
                return count;
            }
            self.rings.clear(lent.ring, lent.taken);
            link.rings.took(lent);
            self.sleep.alarm.begin_anew();
            let data = message.bytes();
            self.granted(peer, link, Channel::Message, message.head.credits);
            let keep = || Retained::new(Box::<[u8]>::from(data));
            sink(Arrival { from: peer, channel: Channel::Message, id: message.head.id, data, keep: Some(&keep) });
            self.consumed(peer, link, Channel::Message);
            count += 1;
        }
        count
    }
}
