//! Shared memory as a wire: messages through lanes, puts, gets and atomics by plain loads and stores.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use once_cell::unsync::OnceCell;

use super::device::{NodeRank, Release};
use super::event::EventThread;
use super::{ContextArenas, ContextLanes, Interface, SHORT_MAX};
use crate::error::Loss;
use crate::memory::copy;
use crate::memory::layout::LINE;
use crate::memory::outside::{self, Direction, Refused};
use crate::sleep;
use crate::transport::atomic::Atomic;
use crate::transport::attributes::{Events, Order};
use crate::transport::error::{Error, Result};
use crate::transport::key::{self, RemoteKey};
use crate::transport::wire::{Agent, Arrival, Channel, Facts, Memory, Straight, Wire};
use crate::transport::{MESSAGE_IDS, Message, Retained, Sent};

const ADDRESS_MAGIC: u32 = u32::from_le_bytes(*b"bwsm");
/// Bytes of an address: magic, rank, where the rank has the slots (which tells one job from another).
const ADDRESS_LEN: usize = 8;

/// The rank in an address; `None` for bytes that are none.
pub fn decode_address(bytes: &[u8], ranks: usize) -> Option<u32> {
    let bytes: &[u8; ADDRESS_LEN] = bytes.try_into().ok()?;
    let (magic, rank) = bytes.split_first_chunk::<4>()?;
    let rank = u32::from_le_bytes(rank.try_into().ok()?);
    (u32::from_le_bytes(*magic) == ADDRESS_MAGIC && (rank as usize) < ranks).then_some(rank)
}

/// One rank's lanes and the mapped slots of its ranks of the node.
pub struct ShmWire {
    place: NodeRank,
    /// The lanes of a private interface. `None` for the rank's own wire, which is the only writer of the rank's own lanes.
    private: Option<RefCell<ContextLanes>>,
    interface: Interface,
    max_message: usize,
    /// Losses are looked at anew at most this often.
    losses: Cell<u64>,
    events: OnceCell<EventThread>,
    _release: Release,
}

// SAFETY: the raw pointers in it lead into mappings that its own `Arc`s keep, valid from every thread.
unsafe impl Send for ShmWire {}

impl ShmWire {
    /// With the rank's own lanes; or a private one, with lanes of a context and these arenas.
    pub(super) fn new(place: NodeRank, release: Release, private: Option<Arc<ContextArenas>>) -> ShmWire {
        if !sleep::register_process() {
            place.job.require_full_fence();
        }
        let senders = if private.is_none() { place.job.slots() } else { 0..0 };
        let interface = Interface::new(place.clone(), senders, true);
        let private = private.map(|arenas| ContextLanes::new(place.clone(), arenas));
        let largest = private.as_ref().map_or_else(|| interface.largest_message(), ContextLanes::largest_message);
        // Two of the largest fit at a time, so that one can be on its way while the next is packed.
        let max_message = (largest / 2 / LINE * LINE).saturating_sub(LINE);
        let (losses, events, private) = (Cell::new(0), OnceCell::new(), private.map(RefCell::new));
        ShmWire { place, private, interface, max_message, losses, events, _release: release }
    }

    /// The thread that serves the descriptor; a start that failed is tried again by the next call.
    fn events(&self) -> Result<&EventThread> {
        self.events.get_or_try_init(|| EventThread::start(&self.place.job, self.place.rank))
    }

    /// Messages come to the rank's own wire.
    fn check_own(&self) -> Result<()> {
        match self.private {
            None => Ok(()),
            Some(_) => Err(Error::Unsupported("events of a private interface, to which no message comes")),
        }
    }

    #[cold]
    fn send_private(&self, lanes: &RefCell<ContextLanes>, to: usize, id: u8, bytes: &[u8]) -> Result<()> {
        sent(lanes.borrow_mut().send_bytes(to, id, bytes))?;
        self.interface.wake_if_asleep(to);
        Ok(())
    }

    fn id(channel: Channel, id: u8) -> u8 {
        match channel {
            Channel::Message => id,
            Channel::Request => MESSAGE_IDS as u8,
            Channel::Reply => MESSAGE_IDS as u8 + 1,
        }
    }

    fn outside(&self, direction: Direction, key: &RemoteKey, here: *mut u8, remote: u64, len: usize) -> Result<()> {
        let pid = self.place.job.pid(key.owner as usize);
        // SAFETY: the caller of `put` or `get` answers for `here`; the key's owner registered what is there.
        match unsafe { outside::transfer(direction, pid, here, remote as usize, len) } {
            Ok(()) => Ok(()),
            Err(Refused::BadAddress) => Err(Error::OutOfRange),
            Err(Refused::Gone) => Err(Error::ConnectionReset),
            Err(Refused::NotPermitted) => {
                Err(Error::Unsupported("cross-memory attach (kernel.yama.ptrace_scope, or a container, forbids it)"))
            }
        }
    }
}

fn alive(job: &crate::membership::JobMemory, peer: u32) -> Result<()> {
    if (job.any_lost() || job.any_left()) && job.loss(peer as usize).is_some() {
        return Err(Error::ConnectionReset);
    }
    Ok(())
}

fn sent(outcome: crate::error::Result<Sent>) -> Result<()> {
    match outcome {
        Ok(Sent::Done) => Ok(()),
        Ok(Sent::NoRoom) => Err(Error::NoResource),
        Err(_) => Err(Error::NoMemory),
    }
}

impl Wire for ShmWire {
    fn facts(&self) -> Facts {
        Facts {
            max_short: SHORT_MAX,
            max_message: self.max_message,
            memory: Memory::Direct,
            atomics: Some(Agent::Processor),
            straight: Straight::Copied,
            max_posted_short: 0,
            max_posted_packed: 0,
            max_pieces: 0,
            max_notified: None,
            atomics_on_allocated_only: true,
            served_asleep: false,
            needs_region: false,
            endpoint_connect: false,
            inter_node: false,
            order: Order::Posted,
            events: Events::RECEIVE.and(Events::DESCRIPTOR),
            address_len: ADDRESS_LEN,
            memory_per_peer: (self.place.layout.lane_depth + 1) * LINE,
            max_interfaces: 1,
        }
    }

    fn address(&self) -> Vec<u8> {
        [ADDRESS_MAGIC.to_le_bytes(), (self.place.rank as u32).to_le_bytes()].concat()
    }

    fn resolve(&self, address: &[u8]) -> Result<u32> {
        decode_address(address, self.place.job.ranks()).ok_or(Error::Unreachable)
    }

    fn has_room(&self, peer: u32, _channel: Channel) -> bool {
        match &self.private {
            None => self.interface.has_room(peer as usize),
            // If the lane is broken, the attempt to send reports it.
            Some(lanes) => lanes.borrow_mut().may_have_room(peer as usize).unwrap_or(true),
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
        alive(&self.place.job, peer)?;
        let (to, id) = (peer as usize, ShmWire::id(channel, id));
        let mut len = 0;
        if let Some(lanes) = &self.private {
            if !self.has_room(peer, channel) {
                return Err(Error::NoResource);
            }
            let mut bytes = vec![0; max];
            len = fill(&mut bytes).min(max);
            self.send_private(lanes, to, id, &bytes[..len])?;
            return Ok(len);
        }
        if max <= SHORT_MAX {
            // In the line itself. The body is filled aside, since its length comes first in the line's head.
            if !self.interface.has_room(to) {
                return Err(Error::NoResource);
            }
            let mut body = [0; SHORT_MAX];
            len = fill(&mut body[..max]).min(max);
            sent(Ok(self.interface.send_inline(to, id, &body[..len])))?;
            return Ok(len);
        }
        sent(self.interface.send_packed(to, id, max, |at| {
            // SAFETY: a block of at least `max` bytes, ours until it is sent, made of initialised shared memory.
            len = fill(unsafe { std::slice::from_raw_parts_mut(at, max) }).min(max);
            len
        }))?;
        Ok(len)
    }

    #[inline]
    fn send_short(&self, peer: u32, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        alive(&self.place.job, peer)?;
        if let Some(lanes) = &self.private {
            return self.send_private(lanes, peer as usize, id, &[&header.to_ne_bytes(), payload].concat());
        }
        sent(Ok(self.interface.send_short(peer as usize, id, header, payload)))
    }

    fn receive(&self, sink: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let Some(first) = self.interface.first_waiting() else { return 0 };
        self.interface.receive(first, |from, id, message: &Message<'_>| {
            let (channel, id) = match (id as usize).checked_sub(MESSAGE_IDS) {
                None => (Channel::Message, id),
                Some(0) => (Channel::Request, 0),
                Some(1) => (Channel::Reply, 0),
                // Bytes that no sender of ours writes.
                Some(_) => return,
            };
            let keep = || message.retain().expect("kept once, and only where that is possible");
            let keep = message.retainable().then_some(&keep as &dyn Fn() -> Retained);
            sink(Arrival { from: from as u32, channel, id, data: message.data(), keep });
        })
    }

    fn has_arrivals(&self) -> bool {
        // A handler does not see what waits behind its own message.
        self.interface.delivering() || self.interface.any_waiting()
    }

    fn losses(&self) -> u64 {
        let job = &self.place.job;
        if !job.any_lost() && !job.any_left() {
            return 0;
        }
        // Some rank is gone. There is no count of such ranks, so the losses are checked again now and then.
        self.losses.set(self.losses.get() + 1);
        self.losses.get() / 64 + 1
    }

    fn loss(&self, peer: u32) -> Option<Error> {
        self.place.job.loss(peer as usize).map(|_: Loss| Error::ConnectionReset)
    }

    fn event_descriptor(&self) -> Result<BorrowedFd<'_>> {
        // The rank's sleep is its own wire's.
        self.check_own()?;
        self.events().map(EventThread::descriptor)
    }

    fn arm(&self, _events: Events) -> Result<()> {
        self.check_own()?;
        // A message is all that can be announced.
        self.events()?.arm(|| self.has_arrivals())
    }

    fn reaches(&self, key: &RemoteKey) -> bool {
        key.memory == key::MemoryKind::Allocated || self.place.cross_memory_attach
    }

    unsafe fn put(&self, peer: u32, key: &RemoteKey, remote: u64, from: *const u8, len: usize) -> Result<()> {
        alive(&self.place.job, peer)?;
        match key.memory {
            _ if len == 0 => Ok(()),
            key::MemoryKind::Allocated => {
                let to = self.place.translate(key, remote, len)?;
                // SAFETY: the owner's registered memory; the caller's bytes.
                unsafe { copy::put(to, from, len) };
                Ok(())
            }
            key::MemoryKind::Outside => self.outside(Direction::Put, key, from.cast_mut(), remote, len),
        }
    }

    unsafe fn get(&self, peer: u32, key: &RemoteKey, remote: u64, to: *mut u8, len: usize) -> Result<()> {
        alive(&self.place.job, peer)?;
        match key.memory {
            _ if len == 0 => Ok(()),
            key::MemoryKind::Allocated => {
                let from = self.place.translate(key, remote, len)?;
                // SAFETY: the owner's registered memory; the caller's room.
                unsafe { copy::get(to, from, len) };
                Ok(())
            }
            key::MemoryKind::Outside => self.outside(Direction::Get, key, to, remote, len),
        }
    }

    fn atomic(&self, peer: u32, key: &RemoteKey, remote: u64, atomic: Atomic) -> Result<u64> {
        alive(&self.place.job, peer)?;
        if key.memory == key::MemoryKind::Outside {
            return Err(Error::Unsupported("atomics on memory that the domain did not allocate"));
        }
        let at = self.place.translate(key, remote, atomic.width as usize)?;
        // SAFETY: the owner's registered memory, aligned in every mapping alike.
        Ok(unsafe { atomic.perform(at) })
    }

    fn fence_memory(&self) {
        fence(Ordering::SeqCst);
    }
}
