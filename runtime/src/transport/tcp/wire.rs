//! TCP as a wire: puts, gets and atomics are frames that the peer's thread serves; messages are frames, too.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::address::{self, Address};
use super::core::{Arrived, Awaits, Bytes, Done};
use super::frame::{Body, NO_TOKEN};
use super::interfaces::Number;
use super::peer::{NOTICES, Tuning};
use super::shared::{Shared, serve};
use super::state::State;
use crate::transport::atomic::Atomic;
use crate::transport::attributes::{Events, Order};
use crate::transport::error::{Error, Result};
use crate::transport::iov::{Piece, Pieces};
use crate::transport::key::RemoteKey;
use crate::transport::message::Retained;
use crate::transport::wire::{Agent, Arrival, Channel, Completed, Direction, Facts, Memory, Straight, Wire};

/// Most bytes of a message with an immediate header, of a short put, of a put with a notice.
const SHORT: usize = 256;
/// Most bytes of a packed put or get: two segments.
const PACKED: usize = 64 << 10;
/// Most blocks of one put or get.
const PIECES: usize = 64;
/// Messages that one poll delivers, so that other work gets its turn.
const BURST: usize = 64;
/// The longest time that a closing interface waits until its farewells have reached the hosts of its peers. Chosen: far above a round trip,
/// and still short if a peer is stopped with its socket full.
const LINGER: Duration = Duration::from_secs(1);

/// A rank's interface on TCP.
pub struct TcpWire {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    tuning: Tuning,
    address: Address,
    number: u32,
    _open: Number,
    /// Messages that are being delivered.
    inbox: RefCell<VecDeque<Arrived>>,
    /// The last turn has left something to do.
    is_busy: Cell<bool>,
    /// The last turn has found notices.
    has_notices: Cell<bool>,
    losses: Cell<u64>,
    /// Changes that the program has had the opportunity to see.
    changes: Cell<u64>,
}

struct Kept(Rc<Bytes>);

impl std::ops::Deref for Kept {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl TcpWire {
    pub(super) fn open(state: State, number: Number) -> std::io::Result<TcpWire> {
        let (tuning, own) = (state.core.tuning, state.own);
        let shared = Arc::new(Shared::new(state)?);
        let serves = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("bellwether-tcp".into()).spawn(move || serve(&serves))?;
        Ok(TcpWire {
            shared,
            thread: Some(thread),
            tuning,
            address: own.address,
            number: own.number,
            _open: number,
            inbox: RefCell::default(),
            is_busy: Cell::new(false),
            has_notices: Cell::new(false),
            losses: Cell::new(0),
            changes: Cell::new(0),
        })
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Posts what `push` makes, if there is room.
    fn post<T>(&self, to: u32, push: impl FnOnce(&mut State) -> T) -> Result<T> {
        let mut state = self.shared.lock();
        if !state.core.alive(to)?.link.has_room() {
            self.is_busy.set(true);
            return Err(Error::NoResource);
        }
        let pushed = push(&mut state);
        self.shared.pushed(&mut state, to);
        self.is_busy.set(true);
        Ok(pushed)
    }
}

impl Drop for TcpWire {
    fn drop(&mut self) {
        // Waits until the peers have all frames before the sockets close: a socket that closes with bytes unread drops the bytes that it
        // has yet to send. The thread makes connections that are missing.
        let start = Instant::now();
        loop {
            let mut state = self.shared.lock();
            state.read_all();
            if state.is_silent || !state.is_owed() || start.elapsed() >= self.tuning.times.limit {
                break;
            }
            self.shared.wake_for_calls(&mut state);
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported where it happened.
            let _ = thread.join();
        }
        let start = Instant::now();
        self.shared.lock().bid_farewell();
        while self.shared.lock().lingers() && start.elapsed() < LINGER {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.shared.lock().silence();
    }
}

impl Wire for TcpWire {
    fn facts(&self) -> Facts {
        Facts {
            max_short: self.tuning.flow.fragment.min(SHORT),
            max_message: self.tuning.flow.message,
            memory: Memory::Posted,
            atomics: Some(Agent::Processor),
            straight: Straight::Never,
            max_posted_short: SHORT,
            max_posted_packed: PACKED,
            max_pieces: PIECES,
            max_notified: Some(SHORT),
            atomics_on_allocated_only: false,
            served_asleep: false,
            needs_region: false,
            endpoint_connect: false,
            inter_node: true,
            order: Order::Posted,
            events: Events::RECEIVE.and(Events::SEND_COMPLETION).and(Events::DESCRIPTOR),
            address_len: address::LEN,
            memory_per_peer: super::bytes_per_peer(),
            max_interfaces: address::INTERFACES,
        }
    }

    fn address(&self) -> Vec<u8> {
        self.address.encode().into()
    }

    fn resolve(&self, address: &[u8]) -> Result<u32> {
        let address = Address::decode(address)?;
        let number = address.peer();
        if number != self.number && address.targets(self.address.stack).is_empty() {
            return Err(Error::Unreachable);
        }
        self.shared.lock().know(address);
        Ok(number)
    }

    #[inline(always)]
    fn owner(&self, peer: u32) -> u32 {
        address::rank_of(peer)
    }

    fn has_room(&self, peer: u32, channel: Channel) -> bool {
        // If the peer is lost, to find out why.
        self.shared.lock().core.alive(peer).map_or(true, |peer| peer.can_send(channel))
    }

    fn send(
        &self,
        peer: u32,
        channel: Channel,
        id: u8,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize> {
        if !self.shared.lock().core.alive(peer)?.can_send(channel) {
            self.is_busy.set(true);
            return Err(Error::NoResource);
        }
        // The user's code runs without the lock. No other thread sends, so room that was there stays.
        let mut bytes = Bytes::from_elem(0, max);
        let len = fill(&mut bytes).min(max);
        bytes.truncate(len);
        let mut state = self.shared.lock();
        let flow = self.tuning.flow;
        let to = state.core.alive(peer)?;
        if len <= flow.fragment && to.can_send(channel) {
            to.send_short(channel, id, &bytes);
        } else {
            // Messages that `fill` has sent may have taken the room: then this message waits behind them.
            to.send_long(channel, id, bytes.into_vec(), &flow);
        }
        self.shared.pushed(&mut state, peer);
        self.is_busy.set(true);
        Ok(len)
    }

    fn receive(&self, sink: &mut dyn FnMut(Arrival<'_>)) -> usize {
        {
            let mut state = self.shared.lock();
            self.shared.poll(&mut state);
            self.losses.set(state.core.losses);
            self.changes.set(state.core.changes);
            let mut inbox = self.inbox.borrow_mut();
            let room = BURST.saturating_sub(inbox.len()).min(state.core.arrivals.len());
            inbox.extend(state.core.arrivals.drain(..room));
            self.is_busy.set(state.has_work());
            self.has_notices.set(!state.core.notices.is_empty());
            if inbox.is_empty() {
                return 0;
            }
        }
        let mut count = 0;
        let mut delivered: smallvec::SmallVec<[(u32, Channel); BURST]> = smallvec::SmallVec::new();
        loop {
            let Some(Arrived { from, channel, id, bytes }) = self.inbox.borrow_mut().pop_front() else { break };
            let bytes = Rc::new(bytes);
            let keep = || Retained::new(Kept(Rc::clone(&bytes)));
            sink(Arrival { from, channel, id, data: &bytes, keep: Some(&keep) });
            delivered.push((from, channel));
            count += 1;
        }
        let mut state = self.shared.lock();
        for (from, channel) in delivered {
            let Ok(peer) = state.core.alive(from) else { continue };
            peer.give_credit(channel, true, &self.tuning.flow);
            if peer.link.has_unframed() {
                self.shared.pushed(&mut state, from);
                self.is_busy.set(true);
            }
        }
        count
    }

    fn has_arrivals(&self) -> bool {
        !self.inbox.borrow().is_empty() || !self.shared.lock().core.arrivals.is_empty()
    }

    fn sent(&self, peer: u32) -> u64 {
        self.shared.lock().core.peer(peer).posts
    }

    fn arrived(&self, peer: u32, count: u64) -> bool {
        let mut state = self.shared.lock();
        // Whether a lost peer has them is not known. Progress reports the loss, and ends the flushes that wait here.
        let Ok(to) = state.core.alive(peer) else { return false };
        if to.is_settled_below(count) {
            return true;
        }
        to.link.ask();
        state.flush(peer);
        self.shared.wake_for_calls(&mut state);
        false
    }

    fn had_arrived(&self, peer: u32, count: u64) -> bool {
        let mut state = self.shared.lock();
        let of = state.core.peer(peer);
        of.lost.is_some() && count <= of.settled
    }

    fn losses(&self) -> u64 {
        self.losses.get()
    }

    fn loss(&self, peer: u32) -> Option<Error> {
        self.shared.lock().core.peer(peer).lost
    }

    fn push(&self) -> usize {
        if !self.is_busy.get() {
            return 0;
        }
        let mut state = self.shared.lock();
        self.losses.set(state.core.losses);
        let sent = state.end_bursts();
        self.shared.wake_for_calls(&mut state);
        sent
    }

    #[inline]
    fn is_idle(&self) -> bool {
        !self.is_busy.get()
    }

    fn event_descriptor(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.shared.bell.as_fd())
    }

    fn announces_room(&self) -> bool {
        true
    }

    fn arm(&self, events: Events) -> Result<()> {
        let mut state = self.shared.lock();
        let losses = self.losses.get();
        self.shared.poll(&mut state);
        // The event that a flush or a refused post waits for may have come.
        if self.changes.replace(state.core.changes) != state.core.changes {
            return Err(Error::Busy);
        }
        let (send, receive) = (events.has(Events::SEND_COMPLETION), events.has(Events::RECEIVE));
        let came = !(self.inbox.borrow().is_empty() && state.core.arrivals.is_empty() && state.core.notices.is_empty());
        if send && !state.core.done.is_empty() || receive && came || losses != state.core.losses {
            return Err(Error::Busy);
        }
        self.shared.arm();
        Ok(())
    }

    fn post_packed(
        &self,
        peer: u32,
        key: &RemoteKey,
        remote: u64,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize> {
        if !self.shared.lock().core.alive(peer)?.link.has_room() {
            self.is_busy.set(true);
            return Err(Error::NoResource);
        }
        // The user's code runs without the lock.
        let mut bytes = Bytes::from_elem(0, max);
        let len = fill(&mut bytes).min(max);
        let mut state = self.shared.lock();
        let to = state.core.alive(peer)?;
        let post = to.post();
        let mut sent = 0;
        while sent < len || len == 0 {
            let part = (len - sent).min(super::frame::SEGMENT);
            let (address, bytes) = (remote + sent as u64, &bytes[sent..sent + part]);
            to.link.push(&Body::Put { key: key.id, address, token: NO_TOKEN, notice: None, bytes }, None, post);
            sent += part;
            if len == 0 {
                break;
            }
        }
        self.shared.pushed(&mut state, peer);
        self.is_busy.set(true);
        Ok(len)
    }

    fn post_fetch(&self, peer: u32, key: &RemoteKey, remote: u64, len: usize, ticket: u64) -> Result<()> {
        self.post(peer, |state| {
            let token = state.core.book(peer, ticket, Awaits::Fetch(Bytes::from_elem(0, len)), len);
            let to = state.core.peer(peer);
            let post = to.post();
            to.link.push_get(key.id, remote, len, token, post);
        })
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
        let len = pieces.iter().map(|piece| piece.len).sum();
        let pieces = Pieces::of(pieces.to_vec());
        self.post(peer, |state| match direction {
            Direction::Put => {
                let token = state.core.book(peer, ticket, Awaits::Put(Ok(())), 0);
                let to = state.core.peer(peer);
                let post = to.post();
                // SAFETY: the caller guarantees it until the ticket comes back.
                unsafe { to.link.push_put(key.id, remote, pieces, len, token, post) };
            }
            Direction::Get => {
                let token = state.core.book(peer, ticket, Awaits::Blocks(pieces), len);
                let to = state.core.peer(peer);
                let post = to.post();
                to.link.push_get(key.id, remote, len, token, post);
            }
        })
    }

    fn post_notified(&self, peer: u32, key: &RemoteKey, remote: u64, bytes: &[u8], notice: u32) -> Result<()> {
        let mut state = self.shared.lock();
        let to = state.core.alive(peer)?;
        if to.notices_sent >= NOTICES || !to.link.has_room() {
            self.is_busy.set(true);
            return Err(Error::NoResource);
        }
        to.notices_sent += 1;
        let post = to.post();
        let body = Body::Put { key: key.id, address: remote, token: NO_TOKEN, notice: Some(notice), bytes };
        to.link.push(&body, None, post);
        self.shared.pushed(&mut state, peer);
        self.is_busy.set(true);
        Ok(())
    }

    fn notices(&self, sink: &mut dyn FnMut(u32)) -> usize {
        if !self.has_notices.replace(false) {
            return 0;
        }
        let notices = {
            let mut state = self.shared.lock();
            let notices = std::mem::take(&mut state.core.notices);
            for (from, _) in &notices {
                let Ok(peer) = state.core.alive(*from) else { continue };
                if let Some(count) = peer.take_notice() {
                    peer.link.push(&Body::Taken(count), None, super::link::NO_POST);
                    self.shared.pushed(&mut state, *from);
                    self.is_busy.set(true);
                }
            }
            notices
        };
        notices.iter().for_each(|(_, notice)| sink(*notice));
        notices.len()
    }

    fn post_atomic(&self, peer: u32, key: &RemoteKey, remote: u64, atomic: Atomic, ticket: Option<u64>) -> Result<()> {
        self.post(peer, |state| {
            let book = |ticket| state.core.book(peer, ticket, Awaits::Word, 0);
            let token = ticket.map_or(NO_TOKEN, book);
            let to = state.core.peer(peer);
            let post = to.post();
            to.link.push(&Body::Atomic { key: key.id, address: remote, token, atomic }, None, post);
        })
    }

    fn completed(&self, sink: &mut dyn FnMut(Completed<'_>)) -> usize {
        if !self.is_busy.get() {
            return 0;
        }
        let done = std::mem::take(&mut self.shared.lock().core.done);
        let count = done.len();
        for Done { ticket, outcome, data } in done {
            sink(Completed { ticket, outcome, data: &data });
        }
        count
    }

    fn abandon(&self, peer: u32, tickets: &[u64]) {
        self.shared.lock().core.abandon(peer, tickets);
    }
}
