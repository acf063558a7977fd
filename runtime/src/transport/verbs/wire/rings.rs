//! Messages from busy peers: RDMA writes into a ring that this rank polls, instead of sends.
//!
//! A rank lends a ring to a peer that sent many small messages since this rank last slept. The peer writes messages that
//! fit into the ring and sends the others. A write raises no completion at the receiver, so it wakes nobody: before a rank
//! sleeps it asks for its rings back.
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
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};

use super::{VerbsWire, io, request};
use crate::transport::error::{Error, Result};
use crate::transport::message::Retained;
use crate::transport::verbs::connect::DEPTH;
use crate::transport::verbs::link::{Lent, Link, Then};
use crate::transport::verbs::ring::{self, Remote};
use crate::transport::wire::{Arrival, Channel};

/// Messages from one peer between two sleeps after which we lend it a ring. Lower in tests, which send few.
/// Chosen: lending costs one message and a registration.
pub const BUSY: u32 = if cfg!(test) { 4 } else { 64 };
/// Length of the first sleep while a ring is not back; it doubles up to 12.8 ms. Chosen: a few writes over
/// soft-RoCE, 20 to 80 us each.
const NAP: Duration = Duration::from_micros(200);
/// Each further nap is twice as long; this is how many times the length doubles.
const DOUBLED: u32 = 6;
/// Each ring in a row that came back unused doubles [`BUSY`] for that peer, at most this many times.
const UNUSED: u32 = 10;

/// Kinds of frames, in addition to those of [`crate::transport::stream::Frame`].
const OFFER: u8 = 3;
pub(super) const CLOSE: u8 = 4;
const CLOSED: u8 = 5;
/// Bytes of such a frame: kind at 0, key at 4, address at 8.
const TOLD: usize = 16;

/// Frames about rings that are still to be sent to a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToSay {
    offer: Option<Remote>,
    close: bool,
    closed: bool,
}

fn frame(kind: u8, ring: Option<Remote>) -> [u8; TOLD] {
    let mut frame = [0; TOLD];
    frame[0] = kind;
    if let Some(ring) = ring {
        frame[4..8].copy_from_slice(&ring.key.to_le_bytes());
        frame[8..].copy_from_slice(&ring.address.to_le_bytes());
    }
    frame
}

impl VerbsWire {
    /// The ring that the peer has lent to this rank, if a message of `bytes` bytes, head included, may be written there now.
    #[inline(always)]
    pub(super) fn ring_of(&self, link: &Link, channel: Channel, bytes: usize) -> Option<Remote> {
        link.ring.get().filter(|_| channel == Channel::Message && ring::fits(bytes) && link.puts_acknowledged())
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
        link.ring.set(Some(Remote { written: to.written.wrapping_add(1), ..to }));
        Ok(posted)
    }

    /// Counts a small message that this peer sent, and lends it a ring when it becomes busy.
    #[inline]
    pub(super) fn count_towards_ring(&self, peer: u32, link: &Link) {
        let count = link.small_messages.get() + 1;
        link.small_messages.set(count);
        if count == BUSY << link.unused.get() {
            self.lend_ring(peer, link);
        }
    }

    #[cold]
    fn lend_ring(&self, peer: u32, link: &Link) {
        link.small_messages.set(0);
        if link.lent.get().is_some() || self.flow.credits > ring::SLOTS {
            return;
        }
        let (number, offer) = match self.rings.lend(&self.connector.board.card) {
            Ok(Some(ring)) => ring,
            Ok(None) => return self.reclaim_one(),
            // No memory for a ring: the peer goes on with sends, and this is tried again after many more.
            Err(_) => return link.unused.set(UNUSED),
        };
        link.lent.set(Some(Lent { ring: number, taken: 0, wanted_back: false, used: true }));
        self.lent.borrow_mut().push(peer);
        link.to_say.set(ToSay { offer: Some(offer), ..link.to_say.get() });
        self.note_backlog(peer);
    }

    /// All rings are lent: asks one back that got no message since this function was called last.
    fn reclaim_one(&self) {
        let mut found = false;
        for peer in self.lent.borrow().iter() {
            let link = self.link(*peer);
            let Some(lent) = link.lent.get().filter(|lent| !lent.wanted_back) else { continue };
            if found || lent.used {
                link.lent.set(Some(Lent { used: false, ..lent }));
            } else {
                found = true;
                self.want_back(*peer, link, lent);
            }
        }
    }

    fn want_back(&self, peer: u32, link: &Link, lent: Lent) {
        link.lent.set(Some(Lent { wanted_back: true, ..lent }));
        link.to_say.set(ToSay { close: true, ..link.to_say.get() });
        self.note_backlog(peer);
    }

    /// Before a sleep: asks all rings back. Returns how long this rank may sleep meanwhile; `None`, no limit, if none is
    /// lent.
    pub(super) fn nap(&self) -> Option<Duration> {
        self.links.iter().for_each(|(_, link)| link.small_messages.set(0));
        let lent = self.lent.borrow().clone();
        if lent.is_empty() {
            self.naps.set(0);
            return None;
        }
        for peer in lent {
            let link = self.link(peer);
            if let Some(lent) = link.lent.get().filter(|lent| !lent.wanted_back) {
                self.want_back(peer, link, lent);
                self.drain(peer);
            }
        }
        Some(NAP * (1 << self.naps.get()))
    }

    /// Sets the timer that ends the next sleep after `nap`, or disarms it.
    pub(super) fn set_alarm(&self, nap: Option<Duration>) -> Result<()> {
        if self.alarmed.replace(nap.is_some()) || nap.is_some() {
            // Setting the timer also clears an earlier expiry. A time of zero disarms it.
            let value = Timespec { tv_sec: 0, tv_nsec: nap.unwrap_or_default().subsec_nanos().into() };
            let setting = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &setting).map_err(|error| io(error.into()))?;
            self.naps.set((self.naps.get() + 1).min(DOUBLED));
        }
        Ok(())
    }

    /// Sends the frames about rings that are due.
    pub(super) fn say_of_rings(&self, peer: u32, link: &Link) -> Result<()> {
        loop {
            let say = link.to_say.get();
            let (frame, then) = match say {
                ToSay { offer: Some(ring), .. } => (frame(OFFER, Some(ring)), ToSay { offer: None, ..say }),
                ToSay { close: true, .. } => (frame(CLOSE, None), ToSay { close: false, ..say }),
                ToSay { closed: true, .. } => (frame(CLOSED, None), ToSay { closed: false, ..say }),
                _ => return Ok(()),
            };
            if link.records.len() >= DEPTH {
                return Err(Error::NoResource);
            }
            self.send_frame(peer, link, &frame, None, None)?;
            link.to_say.set(then);
        }
    }

    /// A CLOSE of this peer was received: stops writing at once, before earlier frames are handled.
    #[cold]
    pub(super) fn leave_ring(&self, pair: u32) {
        if let Some(link) = self.peer_of(pair).and_then(|peer| self.link_or_none(peer)) {
            link.ring.set(None);
        }
    }

    /// Handles `frame` if it is about rings, and returns whether it is.
    pub(super) fn hear_of_rings(&self, peer: u32, link: &Link, frame: &[u8]) -> bool {
        let Ok(frame) = <&[u8; TOLD]>::try_from(frame) else { return false };
        let [kind, _, _, _, a, b, c, d, address @ ..] = *frame;
        match kind {
            OFFER => {
                let (key, address) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(address));
                link.ring.set(Some(Remote { address, key, written: 0 }));
            }
            CLOSE => {
                link.ring.set(None);
                link.to_say.set(ToSay { closed: true, ..link.to_say.get() });
                self.note_backlog(peer);
            }
            CLOSED => {
                if link.lent.get().is_some_and(|lent| self.rings.has_begun(lent.ring, lent.taken)) {
                    self.lose(peer, "a ring that it gave back with something in it that is no message");
                }
                self.take_back(peer, link);
            }
            _ => return false,
        }
        true
    }

    /// Takes back the peer's ring; the peer no longer writes into it.
    pub(super) fn take_back(&self, peer: u32, link: &Link) {
        let Some(lent) = link.lent.take() else { return };
        self.lent.borrow_mut().retain(|to| *to != peer);
        self.rings.give_back(lent.ring);
        link.small_messages.set(0);
        // A peer that puts before each message cannot use a ring: its puts are not acknowledged in time.
        link.unused.set(if lent.taken == 0 { (link.unused.get() + 1).min(UNUSED) } else { 0 });
    }

    /// Whether a message has begun to arrive in a ring.
    pub(super) fn rings_have_begun(&self) -> bool {
        let lent = self.lent.borrow();
        lent.iter()
            .any(|peer| self.link(*peer).lent.get().is_some_and(|lent| self.rings.has_begun(lent.ring, lent.taken)))
    }

    /// Handles the messages in all rings. Returns how many.
    #[inline]
    pub(super) fn receive_from_rings(&self, sink: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let mut count = 0;
        for place in 0.. {
            // Not borrowed while the sink runs: it may find that a peer failed, which takes its ring back.
            let Some(peer) = self.lent.borrow().get(place).copied() else { return count };
            count += self.take_from_ring(peer, self.link(peer), sink);
        }
        count
    }

    /// Handles the messages in this peer's ring, up to the first that follows a frame not yet handled.
    pub(super) fn take_from_ring(&self, peer: u32, link: &Link, sink: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let mut count = 0;
        // No more were in flight when this loop began; later ones are left to the next poll.
        while let Some(lent) = link.lent.get().filter(|_| count < ring::SLOTS as usize) {
            let Some(message) = self.rings.look(lent.ring, lent.taken) else { return count };
            if (link.came.get().wrapping_sub(message.head.after) as i32) < 0 {
                return count;
            }
            self.rings.clear(lent.ring, lent.taken);
            link.lent.set(Some(Lent { taken: lent.taken.wrapping_add(1), used: true, ..lent }));
            self.naps.set(0);
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
