//! A rank's place on the simulated network, and its wire.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use once_cell::sync::OnceCell;
use rustix::event::EventfdFlags;

use super::pins::{check_key, check_pieces};
use super::posted::{Blocks, MAX_PIECES, Post};
use super::{Config, Network};
use crate::memory::copy::copy;
use crate::transport::atomic::Atomic;
use crate::transport::attributes::{Capabilities, Events, Locality, Protection, Resource};
use crate::transport::error::{Error, Result};
use crate::transport::iov::Piece;
use crate::transport::key::RemoteKey;
use crate::transport::memory::Registry;
use crate::transport::message::Retained;
use crate::transport::port;
use crate::transport::wire::{Agent, Arrival, Channel, Completed, Direction, Facts, Memory, Straight, Wire};

const ADDRESS_MAGIC: u32 = u32::from_le_bytes(*b"bwsi");
/// Magic of an address on the network of an island.
const ISLAND_MAGIC: u32 = u32::from_le_bytes(*b"bwsl");
const ADDRESS_LEN: usize = 8;
/// Where its NICs serve memory by themselves.
const NATIVE: Capabilities = Capabilities::PUT_BCOPY.and(Capabilities::GET_BCOPY);
/// Messages taken in one turn.
const BURST: usize = 64;

/// The rank in an address; `None` for bytes that are none.
pub fn decode_address(bytes: &[u8], ranks: usize) -> Option<u32> {
    decode(bytes, ADDRESS_MAGIC, ranks)
}

fn decode(bytes: &[u8], expected: u32, ranks: usize) -> Option<u32> {
    let bytes: &[u8; ADDRESS_LEN] = bytes.try_into().ok()?;
    let (magic, rank) = bytes.split_first_chunk::<4>()?;
    let rank = u32::from_le_bytes(rank.try_into().ok()?);
    (u32::from_le_bytes(*magic) == expected && (rank as usize) < ranks).then_some(rank)
}

/// One rank of a simulated network, as a device.
#[derive(Debug, Clone)]
pub struct Node {
    network: Network,
    rank: u32,
    /// The NIC that peers send to.
    nic: u32,
    registry: Arc<Registry>,
    config: Arc<Config>,
}

impl Node {
    pub(super) fn new(network: Network, rank: u32, nic: u32, registry: Arc<Registry>, config: &Config) -> Node {
        Node { network, rank, nic, registry, config: Arc::new(config.clone()) }
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Whether it is on the network of an island.
    fn is_on_island(&self) -> bool {
        self.nic != self.rank
    }
}

impl port::Device for Node {
    type Wire = SimWire;

    fn resource(&self) -> Resource {
        let config = &self.config;
        let byte = config.picoseconds_per_byte.max(1) as f64 * 1e-12;
        Resource {
            transport: if self.is_on_island() { "sim-island" } else { "sim" },
            device: if self.is_on_island() { "sim1" } else { "sim0" }.into(),
            bandwidth: 1.0 / byte,
            latency: if self.is_on_island() { config.island_delays().0 } else { config.latency } as f64 * 1e-9,
            overhead: 1e-9,
            message_rate: 1.0 / (64.0 * byte),
            locality: Locality::Network,
            capabilities: match config.memory {
                Memory::Emulated => Capabilities::ATOMIC_CPU,
                Memory::Direct => NATIVE.and(Capabilities::ATOMIC_CPU),
                Memory::Posted if config.native_atomics => NATIVE.and(Capabilities::ATOMIC_DEVICE),
                Memory::Posted => NATIVE.and(Capabilities::ATOMIC_CPU),
            },
            protection: Protection::Host,
        }
    }

    fn owner(&self) -> u32 {
        self.rank
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    fn needs_region(&self) -> bool {
        self.config.needs_region
    }

    fn knows(&self, owner: u32) -> bool {
        (owner as usize) < self.config.ranks
    }

    fn open(&self) -> Result<SimWire> {
        let mut state = self.network.state();
        if std::mem::replace(&mut state.nics[self.nic as usize].open, true) {
            return Err(Error::Busy);
        }
        drop(state);
        Ok(SimWire { node: self.clone(), nic: self.nic, event: OnceCell::new() })
    }

    fn open_private(&self) -> Result<SimWire> {
        let nic = self.network.state().open_private(self.rank);
        Ok(SimWire { node: self.clone(), nic, event: OnceCell::new() })
    }
}

/// A rank's wire on a simulated network.
pub struct SimWire {
    node: Node,
    /// Its NIC: the rank's own, or one of its others.
    nic: u32,
    event: OnceCell<Arc<OwnedFd>>,
}

impl SimWire {
    fn post(&self, peer: u32, at: (&RemoteKey, u64), post: Post, ticket: Option<u64>) -> Result<()> {
        self.node.network.state().start((self.nic, peer), Some(at), post, ticket)
    }

    fn me(&self) -> usize {
        self.nic as usize
    }

    /// A NIC without atomics does none.
    fn check_atomics(&self) -> Result<()> {
        if self.node.config.native_atomics { Ok(()) } else { Err(Error::Unsupported("native atomics")) }
    }
}

impl Drop for SimWire {
    fn drop(&mut self) {
        let mut state = self.node.network.state();
        let nic = &mut state.nics[self.me()];
        (nic.open, nic.armed, nic.event) = (false, false, None);
        nic.posts.close();
    }
}

struct Bytes(Rc<Vec<u8>>);

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Wire for SimWire {
    fn facts(&self) -> Facts {
        let config = &self.node.config;
        Facts {
            max_short: config.flow.message.min(128),
            max_message: config.flow.message,
            memory: config.memory,
            atomics: match config.memory {
                _ if !config.native_atomics => None,
                Memory::Posted => Some(Agent::Device),
                _ => Some(Agent::Processor),
            },
            straight: match config.memory {
                Memory::Posted => Straight::Posted { bytes: config.flow.message, pieces: MAX_PIECES },
                _ => Straight::Never,
            },
            max_posted_short: 64,
            max_posted_packed: 16 << 10,
            max_pieces: MAX_PIECES,
            max_notified: (config.memory == Memory::Posted).then_some(64),
            atomics_on_allocated_only: false,
            served_asleep: config.served_asleep,
            needs_region: config.needs_region,
            endpoint_connect: true,
            inter_node: true,
            order: config.order,
            events: Events::RECEIVE.and(Events::SEND_COMPLETION).and(Events::DESCRIPTOR),
            address_len: ADDRESS_LEN,
            memory_per_peer: 0,
            max_interfaces: 1,
        }
    }

    fn address(&self) -> Vec<u8> {
        let (magic, number) = match self.node.is_on_island() {
            true => (ISLAND_MAGIC, self.node.rank),
            false => (ADDRESS_MAGIC, self.nic),
        };
        [magic.to_le_bytes(), number.to_le_bytes()].concat()
    }

    fn resolve(&self, address: &[u8]) -> Result<u32> {
        let config = &self.node.config;
        if !self.node.is_on_island() {
            return decode_address(address, config.ranks).ok_or(Error::Unreachable);
        }
        let island = |rank: u32| rank as usize / config.islands;
        let rank = decode(address, ISLAND_MAGIC, config.ranks).filter(|rank| island(*rank) == island(self.node.rank));
        rank.map(|rank| config.ranks as u32 + rank).ok_or(Error::Unreachable)
    }

    fn owner(&self, peer: u32) -> u32 {
        self.node.network.state().rank_of(peer)
    }

    fn has_room(&self, peer: u32, channel: Channel) -> bool {
        let mut state = self.node.network.state();
        state.nics[self.me()].posts.has_room() && state.has_room(self.nic, peer, channel)
    }

    fn send(
        &self,
        peer: u32,
        channel: Channel,
        id: u8,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize> {
        {
            let mut state = self.node.network.state();
            state.check(self.nic, peer)?;
            if !state.has_room(self.nic, peer, channel) {
                return Err(Error::NoResource);
            }
        }
        // The user's code runs without the lock.
        let mut bytes = vec![0; max];
        let len = fill(&mut bytes).min(max);
        bytes.truncate(len);
        self.node.network.state().send(self.nic, peer, channel, id, bytes);
        Ok(len)
    }

    fn receive(&self, sink: &mut dyn FnMut(Arrival<'_>)) -> usize {
        for done in 0..BURST {
            let arrived = {
                let mut state = self.node.network.state();
                if state.is_dead(self.nic) { None } else { state.nics[self.me()].inbox.pop_front() }
            };
            let Some(arrived) = arrived else { return done };
            let bytes = Rc::new(arrived.bytes);
            let keep = || Retained::new(Bytes(Rc::clone(&bytes)));
            let (from, channel, id) = (arrived.from, arrived.channel, arrived.id);
            sink(Arrival { from, channel, id, data: &bytes, keep: Some(&keep) });
            self.node.network.state().consumed(self.nic, from, channel);
        }
        BURST
    }

    fn has_arrivals(&self) -> bool {
        !self.node.network.state().nics[self.me()].inbox.is_empty()
    }

    fn fence(&self, peer: u32) {
        let mut state = self.node.network.state();
        let limits = state.config.flow;
        state.nics[self.me()].links.entry(peer).or_default().fence(&limits);
    }

    fn sent(&self, peer: u32) -> u64 {
        let state = self.node.network.state();
        let nic = &state.nics[self.me()];
        nic.links.get(&peer).map_or(0, |link| link.sent) << 32 | u64::from(nic.posts.posted())
    }

    fn arrived(&self, peer: u32, count: u64) -> bool {
        let state = self.node.network.state();
        let (count, posted) = (count >> 32, count as u32);
        let nic = &state.nics[self.me()];
        nic.posts.done(peer, posted)
            && nic.links.get(&peer).is_none_or(|link| link.flying.range(..count).next().is_none())
    }

    fn losses(&self) -> u64 {
        self.node.network.state().nics[self.me()].losses
    }

    fn loss(&self, peer: u32) -> Option<Error> {
        self.node.network.state().check(self.nic, peer).err()
    }

    fn event_descriptor(&self) -> Result<BorrowedFd<'_>> {
        let fd = self.event.get_or_try_init(|| {
            let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|_| Error::Io("no event descriptor to be had"))?;
            let fd = Arc::new(fd);
            self.node.network.state().nics[self.me()].event = Some(Arc::clone(&fd));
            Ok(fd)
        })?;
        Ok(fd.as_fd())
    }

    fn arm(&self, events: Events) -> Result<()> {
        let fd = self.event_descriptor()?;
        let mut count = [0; 8];
        // Empty or not, it is empty afterwards.
        let _ = rustix::io::read(fd, &mut count);
        let mut state = self.node.network.state();
        let nic = &mut state.nics[self.me()];
        if events.has(Events::SEND_COMPLETION) && nic.posts.has_ended()
            || events.has(Events::RECEIVE) && !(nic.inbox.is_empty() && nic.notices.is_empty())
        {
            return Err(Error::Busy);
        }
        nic.armed = true;
        Ok(())
    }

    unsafe fn put(&self, peer: u32, key: &RemoteKey, remote: u64, from: *const u8, len: usize) -> Result<()> {
        let mut state = self.node.network.state();
        state.check(self.nic, peer)?;
        check_key(key, peer)?;
        let to = state.nics[peer as usize].registry.resolve(key.id, remote, len)?;
        // SAFETY: registered memory of this process; the caller's bytes.
        unsafe { copy(to, from, len) };
        state.announce(peer);
        Ok(())
    }

    unsafe fn get(&self, peer: u32, key: &RemoteKey, remote: u64, to: *mut u8, len: usize) -> Result<()> {
        let state = self.node.network.state();
        state.check(self.nic, peer)?;
        check_key(key, peer)?;
        let from = state.nics[peer as usize].registry.resolve(key.id, remote, len)?;
        // SAFETY: registered memory of this process; the caller's room.
        unsafe { copy(to, from, len) };
        Ok(())
    }

    fn atomic(&self, peer: u32, key: &RemoteKey, remote: u64, atomic: Atomic) -> Result<u64> {
        self.check_atomics()?;
        let mut state = self.node.network.state();
        state.check(self.nic, peer)?;
        check_key(key, peer)?;
        let at = state.nics[peer as usize].registry.resolve(key.id, remote, atomic.width as usize)?;
        // SAFETY: registered memory of this process, aligned.
        let before = unsafe { atomic.perform(at) };
        state.announce(peer);
        Ok(before)
    }

    fn post_packed(
        &self,
        peer: u32,
        key: &RemoteKey,
        remote: u64,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize> {
        {
            let state = self.node.network.state();
            state.check(self.nic, peer)?;
            if !state.nics[self.me()].posts.has_room() {
                return Err(Error::NoResource);
            }
        }
        // The user's code runs without the lock.
        let mut bytes = vec![0; max];
        let len = fill(&mut bytes).min(max);
        bytes.truncate(len);
        self.post(peer, (key, remote), Post::Put(bytes), None).map(|()| len)
    }

    fn post_fetch(&self, peer: u32, key: &RemoteKey, remote: u64, len: usize, ticket: u64) -> Result<()> {
        self.post(peer, (key, remote), Post::Fetch(len), Some(ticket))
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
        // SAFETY: the caller keeps the registrations until the ticket comes back.
        unsafe { check_pieces(pieces) }?;
        self.post(peer, (key, remote), Post::Pieces(direction, Blocks(pieces.into())), Some(ticket))
    }

    unsafe fn post_message(&self, peer: u32, id: u8, header: &[u8], pieces: &[Piece], ticket: u64) -> Result<()> {
        let mut state = self.node.network.state();
        state.check(self.nic, peer)?;
        if !state.has_room(self.nic, peer, Channel::Message) {
            return Err(Error::NoResource);
        }
        // SAFETY: the caller keeps the registrations until the ticket comes back.
        unsafe { check_pieces(pieces) }?;
        let len = header.len() + pieces.iter().map(|piece| piece.len).sum::<usize>();
        state.start((self.nic, peer), None, Post::Message(len), Some(ticket))?;
        let mut bytes = header.to_vec();
        for piece in pieces {
            let at = bytes.len();
            bytes.resize(at + piece.len, 0);
            // SAFETY: the caller's memory, readable until the ticket comes back.
            unsafe { copy(bytes[at..].as_mut_ptr(), piece.pointer, piece.len) };
        }
        state.send(self.nic, peer, Channel::Message, id, bytes);
        Ok(())
    }

    fn post_notified(&self, peer: u32, key: &RemoteKey, remote: u64, bytes: &[u8], notice: u32) -> Result<()> {
        self.post(peer, (key, remote), Post::Notify(bytes.into(), notice), None)
    }

    fn notices(&self, sink: &mut dyn FnMut(u32)) -> usize {
        let notices = {
            let mut state = self.node.network.state();
            let nic = &mut state.nics[self.me()];
            let notices = std::mem::take(&mut nic.notices);
            nic.posts.notices_due -= notices.len();
            notices
        };
        let count = notices.len();
        notices.into_iter().for_each(sink);
        count
    }

    fn post_atomic(&self, peer: u32, key: &RemoteKey, remote: u64, atomic: Atomic, ticket: Option<u64>) -> Result<()> {
        self.check_atomics()?;
        self.post(peer, (key, remote), Post::Atomic(atomic), ticket)
    }

    fn completed(&self, sink: &mut dyn FnMut(Completed<'_>)) -> usize {
        let ended = self.node.network.state().nics[self.me()].posts.take_ended();
        ended.tell(sink)
    }

    fn abandon(&self, peer: u32, tickets: &[u64]) {
        self.node.network.state().abandon(self.nic, peer, tickets);
    }
}
