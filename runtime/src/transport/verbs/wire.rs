//! Verbs as a wire: puts and gets are RDMA writes and reads, atomics are the device's, messages are sends.
//!
//! A connection's requests are done in order by the target, but for reads and atomics, whose answers a later request
//! may overtake: a fence makes it wait. Most requests do not report; the next that does reports for them.

mod arrivals;
mod atomics;
mod backlog;
mod buffers;
mod care;
mod connections;
mod errors;
mod losses;
mod messages;
mod notices;
mod outcomes;
mod requests;
mod rings;
mod room;
mod sleep;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rdma_core_sys::*;

use self::arrivals::Arrivals;
use self::backlog::Backlog;
use self::buffers::{FRAME, LARGE_BYTES, ReceiveBuffers, SendBuffers};
use self::care::Care;
use self::errors::io;
use self::losses::Losses;
use self::outcomes::{Data, Done, Outcomes};
use self::room::Room;
use self::sleep::Sleep;

use super::Device;
use super::address::{self, Address};
use super::attempt::Attempts;
use super::connect::{self, Connector, PIECES};
use super::footprint;
#[cfg(test)]
use super::link::Link;
use super::link::{Flow, Then};
use super::nic::{lkey, rkey};
use super::peers::Peers;
use super::queue::{Completions, Events, Shared};
use super::ring::{self, Rings};
use crate::transport::atomic::Atomic;
use crate::transport::attributes::{Events as Reports, Order};
use crate::transport::error::{Error, Result};
use crate::transport::iov::Piece;
use crate::transport::key::RemoteKey;
use crate::transport::stream::{FRAME_HEADER, FlowLimits};
use crate::transport::wire::{Agent, Arrival, Channel, Completed, Direction, Facts, Memory, Straight, Wire};

/// Receive buffers for all peers together. If they run out, the sending device retries. Chosen: 4 MiB, the credits of 32 peers
/// on one channel.
const RECEIVES: usize = 1024;
/// Requests and messages that are done, and not looked at.
const COMPLETIONS: usize = 33 << 10;
/// Most bytes that are put inside a request, where the device takes so many.
const INSIDE: usize = 256;
/// The limits that a rank sets its peers. All ranks set the same.
pub(super) const FLOW: FlowLimits =
    FlowLimits { slots: 16, credits: 32, fragment: FRAME - FRAME_HEADER, message: 4 << 20 };
/// How long an endpoint that is dropped waits for its last operations: longer than the device asks a peer that is gone.
const PARTING: Duration = Duration::from_secs(3);
/// Most messages that one poll delivers, so that other work gets its turn. Chosen.
const BURST: usize = 64;
const _: () = assert!(FRAME_HEADER == ring::HEAD);

/// One interface's access to an RDMA device. Its peers are interfaces, numbered by rank and interface.
pub struct VerbsWire {
    flow: FlowLimits,
    // Queue pairs are dropped first, with the connector's references to them; then the objects that they use.
    peers: Peers,
    connector: Connector,
    receives: ReceiveBuffers,
    buffers: SendBuffers,
    /// Rings lent to busy peers.
    rings: Rings,
    /// Atomics that take several requests.
    attempts: Attempts,
    arrivals: Arrivals,
    outcomes: Outcomes,
    backlog: Backlog,
    /// Whether a caller waits for some.
    room: Room,
    losses: Losses,
    care: Care,
    sleep: Sleep,
}

// SAFETY:
// - libibverbs may be called from any thread.
// - Everything else that is not `Send` by itself is reached through this value alone.
unsafe impl Send for VerbsWire {}

impl VerbsWire {
    /// Peers must have the same `flow`.
    pub(super) fn open(device: &Device, flow: FlowLimits) -> Result<VerbsWire> {
        let told = |what: &'static str| {
            move |error: std::io::Error| {
                tracing::error!(%error, what, "the network device cannot be opened");
                io(error)
            }
        };
        let (nic, number) = (device.nic(), device.interfaces().take()?);
        let events = Events::new(nic).map_err(told("a completion channel"))?;
        let limit = nic.attributes.max_cqe.max(256) as usize;
        // One for all: a turn that finds nothing has looked at one.
        let done = Completions::new(nic, COMPLETIONS.min(limit), &events).map_err(told("a completion queue"))?;
        let count = RECEIVES.min(nic.attributes.max_srq_wr.max(64) as usize);
        let shared = Shared::new(nic, count).map_err(told("a shared receive queue"))?;
        let receives = ReceiveBuffers::new(nic, &shared, count)?;
        let connector = Connector::start(nic, device.rank(), number, done, shared).map_err(told("a queue pair"))?;
        let sleep = Sleep::new(events, connector.board.notice.as_fd())?;
        Ok(VerbsWire {
            flow,
            peers: Peers::default(),
            connector,
            receives,
            buffers: SendBuffers::new(nic)?,
            rings: Rings::default(),
            attempts: Attempts::default(),
            arrivals: Arrivals::default(),
            outcomes: Outcomes::default(),
            backlog: Backlog::default(),
            room: Room::default(),
            losses: Losses::default(),
            care: Care::new(Instant::now()),
            sleep,
        })
    }
}

#[cfg(test)]
impl VerbsWire {
    /// Number of peers that have state here.
    pub(super) fn peers_in_use(&self) -> usize {
        self.peers.used()
    }

    /// Messages written into the ring that this peer has lent, if it has.
    pub(super) fn written(&self, peer: u32) -> Option<u32> {
        self.link(peer).rings.remote().map(|ring| ring.written)
    }

    /// The state of this peer.
    pub(super) fn link_to(&self, peer: u32) -> &Link {
        self.link(peer)
    }

    /// Rings that are lent to others.
    pub(super) fn rings_lent(&self) -> usize {
        self.rings.borrowers().len()
    }

    /// As if a caller had been refused for lack of room: the emulated device is too fast for a queue that is full.
    pub(super) fn refuse(&self) {
        self.room.refuse();
    }

    /// The numbers of its queue pairs.
    pub(super) fn queue_pairs(&self) -> Vec<u32> {
        self.peers.pairs()
    }

    /// The number of its completion queue's and of its shared receive queue's handle.
    pub(super) fn queues(&self) -> (usize, usize) {
        (self.connector.board.done.raw as usize, self.connector.board.shared.raw as usize)
    }
}

/// A request with these buffers.
fn request(opcode: ibv_wr_opcode, pieces: &mut [ibv_sge]) -> ibv_send_wr {
    ibv_send_wr { sg_list: pieces.as_mut_ptr(), num_sge: pieces.len() as i32, opcode, ..Default::default() }
}

impl Drop for VerbsWire {
    fn drop(&mut self) {
        // Nothing may touch the buffers below after this.
        for (_, link) in self.peers.iter() {
            link.break_off();
        }
    }
}

impl Wire for VerbsWire {
    fn facts(&self) -> Facts {
        Facts {
            max_short: self.flow.fragment.min(256),
            max_message: self.flow.message,
            memory: Memory::Posted,
            atomics: self.connector.board.nic.offer.has_atomics().then_some(Agent::Device),
            // The frame's head takes a place in the list, too.
            straight: Straight::Posted { bytes: self.flow.fragment, pieces: PIECES - 1 },
            max_posted_short: self.connector.board.inline.max(64),
            max_posted_packed: LARGE_BYTES,
            max_pieces: PIECES,
            max_notified: Some(self.connector.board.inline.min(INSIDE)),
            atomics_on_allocated_only: false,
            served_asleep: false,
            needs_region: true,
            endpoint_connect: false,
            inter_node: true,
            order: Order::Posted,
            events: Reports::RECEIVE.and(Reports::SEND_COMPLETION).and(Reports::DESCRIPTOR),
            address_len: address::LEN,
            memory_per_peer: footprint::per_peer(self.connector.board.inline),
            max_interfaces: address::INTERFACES,
        }
    }

    fn address(&self) -> Vec<u8> {
        self.connector.board.address.encode().into()
    }

    fn resolve(&self, address: &[u8]) -> Result<u32> {
        let address = Address::decode(address)?;
        if address.link_layer != self.connector.board.address.link_layer {
            return Err(Error::Unreachable);
        }
        let peer = address.peer();
        if self.peers.know(peer, address)
            && let Some(link) = self.link_or_none(peer)
        {
            // Another interface with that number, after the one we knew.
            self.end(peer, link, Error::ConnectionReset);
            link.forget_loss();
        }
        Ok(peer)
    }

    #[inline(always)]
    fn owner(&self, peer: u32) -> u32 {
        address::rank_of(peer)
    }

    fn has_room(&self, peer: u32, channel: Channel) -> bool {
        match self.ready(peer, 1) {
            Ok(link) => link.flows.borrow()[channel as usize].out.can_pass(),
            // To find out why.
            Err(error) => error != Error::NoResource,
        }
    }

    fn send(
        &self,
        peer: u32,
        channel: Channel,
        id: u8,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize> {
        let link = self.ready(peer, 1)?;
        let inline = self.connector.board.inline.min(INSIDE);
        if self.ring_of(link, channel, 0).is_some() {
            // The peer may want it back.
            self.read_completions();
            link.error().map_or(Ok(()), Err)?;
        }
        // Only a message longer than a frame waits here. All others are with the device when they are taken, so that they arrive
        // even if the sender makes no progress.
        if !link.flows.borrow()[channel as usize].out.can_pass() {
            return Err(Error::NoResource);
        }
        if max <= self.flow.fragment {
            let mut frame = [0u8; INSIDE];
            let whole = FRAME_HEADER + max;
            // Bytes that travel inside the request need no buffer.
            let small = if whole <= inline { None } else { Some(self.take(&self.buffers.small)?) };
            let buffer: &mut [u8] = match small {
                None => &mut frame[..whole],
                // SAFETY: a buffer of ours with room for a frame.
                Some(small) => unsafe { std::slice::from_raw_parts_mut(self.buffers.small.at(small), whole) },
            };
            // No other code can take the turn: messages that `fill` sends find the queue as it is, or wait in it.
            let len = fill(&mut buffer[FRAME_HEADER..]).min(max);
            let (credits, head) = {
                let Flow { out, inward, .. } = &mut link.flows.borrow_mut()[channel as usize];
                (inward.due(), out.pass(id, len, inward.due()))
            };
            if let Some(head) = head {
                let frame = &mut buffer[..FRAME_HEADER + len];
                let ring = self.ring_of(link, channel, frame.len()).filter(|_| small.is_none());
                let posted = if let Some(ring) = ring {
                    ring::seal(frame, ring.written, ring::Head { id, credits, after: link.rings.frames_sent() });
                    self.write_to_ring(peer, link, ring, frame)
                } else {
                    frame[..FRAME_HEADER].copy_from_slice(&head);
                    self.post_frame(peer, link, frame, small, Then::Nothing)
                };
                let flow = &mut link.flows.borrow_mut()[channel as usize];
                match posted {
                    Ok(_) => flow.inward.gave(credits),
                    Err(Error::NoResource) => flow.out.unpass(),
                    Err(_) => {}
                }
                return posted.map(|_| len);
            }
            let bytes = buffer[FRAME_HEADER..FRAME_HEADER + len].to_vec();
            small.into_iter().for_each(|small| self.buffers.small.give_back(small));
            return self.queue(peer, link, channel, id, bytes);
        }
        let mut bytes = vec![0; max];
        let len = fill(&mut bytes).min(max);
        bytes.truncate(len);
        self.queue(peer, link, channel, id, bytes)
    }

    fn receive(&self, sink: &mut dyn FnMut(Arrival<'_>)) -> usize {
        if self.peers.have_changed(self.connector.board.changes()) {
            self.take_over_changes();
        }
        self.read_completions();
        let mut count = self.arrivals.deliver_kept(sink);
        for _ in 0..BURST {
            let Some(wc) = self.arrivals.first() else { break };
            let peer = if wc.status == IBV_WC_SUCCESS { self.peer_of(wc.qp_num) } else { None };
            if let Some(peer) = peer {
                // Ring messages that were written before this frame was sent are visible.
                count += self.take_from_ring(peer, self.link(peer), sink);
            }
            // If the peer was lost meanwhile it has been kept.
            if self.arrivals.remove(&wc) {
                if let Some(peer) = peer {
                    self.deliver(peer, self.link(peer), &wc, sink);
                    count += 1;
                }
                self.offer(&wc);
            }
        }
        count += self.receive_from_rings(sink);
        if self.care.polled(count) {
            self.look_after_peers();
        }
        count
    }

    fn has_arrivals(&self) -> bool {
        self.read_completions();
        !self.arrivals.is_empty() || self.rings_have_begun()
    }

    fn fence(&self, peer: u32) {
        if let Some(link) = self.link_or_none(peer) {
            link.requests.fence();
        }
    }

    #[inline(always)]
    fn sent(&self, peer: u32) -> u64 {
        self.peers.get(peer).map_or(0, |link| link.requests.issued())
    }

    fn arrived(&self, peer: u32, count: u64) -> bool {
        let Some(link) = self.link_or_none(peer) else { return true };
        let waits = link.flows.borrow().iter().any(|flow| flow.waiting.front().is_some_and(|issue| *issue < count));
        // Whether a lost peer has them is not known. Progress reports the loss, and ends the flushes that wait here.
        let lost = || link.error().is_some();
        if waits || link.requests.has_attempts() || lost() {
            return false;
        }
        let open = || link.requests.holds_before(count);
        if !open() {
            return true;
        }
        // Reports may not have been read yet, and requests that do not report need a further request that does.
        self.read_completions();
        if open() {
            self.ask_for_report(peer, link);
            self.read_completions();
        }
        !open() && !lost()
    }

    fn losses(&self) -> u64 {
        self.losses.count()
    }

    fn loss(&self, peer: u32) -> Option<Error> {
        self.link_or_none(peer).and_then(|link| link.error())
    }

    fn push(&self) -> usize {
        let mut done = if self.attempts.is_idle() { 0 } else { self.go_on_with_attempts() };
        if !self.backlog.is_empty() {
            for peer in self.backlog.take() {
                let before = self.sent(peer);
                if self.drain(peer) {
                    self.backlog.note(peer);
                }
                done += (self.sent(peer) - before) as usize;
            }
        }
        done
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.outcomes.is_empty() && self.backlog.is_empty() && self.attempts.is_idle()
    }

    fn event_descriptor(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.sleep.descriptor())
    }

    fn arm(&self, events: Reports) -> Result<()> {
        let (send, receive) = (events.has(Reports::SEND_COMPLETION), events.has(Reports::RECEIVE));
        self.look_after_peers();
        let board = &self.connector.board;
        self.sleep.drain();
        connect::quiet(&board.notice);
        let losses = self.losses.count();
        if receive && self.has_arrivals() {
            return Err(Error::Busy);
        }
        // Only messages come by rings.
        let nap = if receive { self.nap() } else { None };
        if send {
            // Requests that do not report would not be announced when they are done.
            self.peers.iter().for_each(|(peer, link)| self.ask_for_report(peer, link));
        }
        board.done.notify(!send);
        if self.peers.have_changed(board.changes()) {
            self.take_over_changes();
        }
        self.read_completions();
        // A report means room for posts that were refused, also if other code has read it. The room is reported once, to the caller that asks.
        let sent = send && (self.room.take() || !self.outcomes.is_empty());
        if receive && self.has_arrivals() || sent || losses != self.losses.count() {
            return Err(Error::Busy);
        }
        self.sleep.alarm.set(nap)
    }

    #[inline(always)]
    fn post_packed(
        &self,
        peer: u32,
        key: &RemoteKey,
        remote: u64,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize> {
        let link = self.ready(peer, 1)?;
        if max > self.connector.board.inline.min(INSIDE) {
            return self.post_copied(peer, link, (rkey(key), remote), max, fill);
        }
        // Most are a word, and no more is cleared than that needs.
        let (mut word, mut more);
        let inside: &mut [u8] = if max <= size_of::<u64>() {
            word = [0u8; size_of::<u64>()];
            &mut word[..max]
        } else {
            more = [0u8; INSIDE];
            &mut more[..max]
        };
        let len = fill(inside).min(max);
        let mut sge = ibv_sge { addr: inside.as_ptr() as u64, length: len as u32, lkey: 0 };
        let mut wr = request(IBV_WR_RDMA_WRITE, std::slice::from_mut(&mut sge));
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: remote, rkey: rkey(key) };
        wr.send_flags |= IBV_SEND_INLINE;
        let posted = self.post(peer, link, &mut wr, Then::Nothing, false);
        link.requests.note_put();
        posted.map(|_| len)
    }

    fn post_fetch(&self, peer: u32, key: &RemoteKey, remote: u64, len: usize, ticket: u64) -> Result<()> {
        let link = self.ready(peer, 1)?;
        let large = self.take(&self.buffers.large)?;
        let mut sge =
            ibv_sge { addr: self.buffers.large.at(large) as u64, length: len as u32, lkey: self.buffers.large.key() };
        let mut wr = request(IBV_WR_RDMA_READ, std::slice::from_mut(&mut sge));
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: remote, rkey: rkey(key) };
        if let Err(error) = self.post(peer, link, &mut wr, Then::Fetched { large, len: len as u32, ticket }, true) {
            self.buffers.large.give_back(large);
            return Err(error);
        }
        link.requests.read_posted();
        Ok(())
    }

    unsafe fn post_pieces(
        &self,
        peer: u32,
        key: &RemoteKey,
        remote: u64,
        pieces: &[Piece],
        direction: Direction,
        ticket: u64,
    ) -> Result<()> {
        let link = self.ready(peer, 1)?;
        let mut sges = [ibv_sge::default(); PIECES];
        for (sge, piece) in sges.iter_mut().zip(pieces) {
            *sge = ibv_sge { addr: piece.pointer as u64, length: piece.len as u32, lkey: lkey(piece.descriptor) };
        }
        let (opcode, then) = match direction {
            Direction::Put => (IBV_WR_RDMA_WRITE, Then::Ticket(ticket)),
            Direction::Get => (IBV_WR_RDMA_READ, Then::Read(ticket)),
        };
        let mut wr = request(opcode, &mut sges[..pieces.len()]);
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: remote, rkey: rkey(key) };
        self.post(peer, link, &mut wr, then, true)?;
        match direction {
            Direction::Put => link.requests.note_put(),
            Direction::Get => link.requests.read_posted(),
        }
        Ok(())
    }

    unsafe fn post_message(&self, peer: u32, id: u8, header: &[u8], pieces: &[Piece], ticket: u64) -> Result<()> {
        self.post_gathered(peer, id, header, pieces, ticket)
    }

    fn post_notified(&self, peer: u32, key: &RemoteKey, remote: u64, bytes: &[u8], notice: u32) -> Result<()> {
        let link = self.ready(peer, 1)?;
        if !link.notices.has_room() {
            self.room.refuse();
            return Err(Error::NoResource);
        }
        self.notify(peer, link, (rkey(key), remote, bytes), notice)?;
        link.requests.note_put();
        link.notices.spend();
        Ok(())
    }

    fn notices(&self, sink: &mut dyn FnMut(u32)) -> usize {
        self.arrivals.take_notices(sink)
    }

    fn post_atomic(&self, peer: u32, key: &RemoteKey, remote: u64, atomic: Atomic, ticket: Option<u64>) -> Result<()> {
        let link = self.ready(peer, 1)?;
        let Some(wr) = self.device_atomic(key, remote, atomic) else {
            self.attempts.start(peer, key, remote, atomic, ticket);
            link.requests.attempt_begun();
            self.go_on_with_attempts();
            return Ok(());
        };
        self.post_word(peer, link, wr, |small| Then::Found { small, ticket }, ticket.is_some()).map(drop)
    }

    fn atomic_now(
        &self,
        peer: u32,
        key: &RemoteKey,
        remote: u64,
        atomic: Atomic,
        ticket: impl FnOnce() -> u64,
    ) -> Result<Option<u64>> {
        match self.device_atomic(key, remote, atomic) {
            Some(wr) => self.await_word(peer, self.ready(peer, 1)?, wr, ticket),
            None => self.post_atomic(peer, key, remote, atomic, Some(ticket())).map(|()| None),
        }
    }

    fn completed(&self, sink: &mut dyn FnMut(Completed<'_>)) -> usize {
        let mut count = 0;
        loop {
            let Some(done) = self.outcomes.next() else { return count };
            count += 1;
            let Done { ticket, outcome, data } = done;
            match data {
                Data::Word(word) => sink(Completed { ticket, outcome, data: &word.to_le_bytes() }),
                Data::Large { buffer, len } => {
                    // SAFETY: a buffer of ours that the device is done with.
                    let bytes = unsafe { std::slice::from_raw_parts(self.buffers.large.at(buffer), len as usize) };
                    sink(Completed { ticket, outcome, data: bytes });
                    self.buffers.large.give_back(buffer);
                }
            }
        }
    }

    fn abandon(&self, peer: u32, tickets: &[u64]) {
        self.await_blocks(peer, tickets);
    }
}
