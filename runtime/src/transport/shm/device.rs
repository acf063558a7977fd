//! Shared memory as a device of the transport contract: one rank's slot, and the part of the slot from which the rank may allocate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::ContextArenas;
use super::wire::ShmWire;
use crate::membership::JobMemory;
use crate::memory::heap::Heap;
use crate::memory::layout::{LINE, SlotLayout};
use crate::memory::node::NodeMemory;
use crate::transport::attributes::{Capabilities, Locality, Protection, Resource};
use crate::transport::error::{Error, Result};
use crate::transport::key::{self, RemoteKey};
use crate::transport::lock::{Guard, Mutex};
use crate::transport::memory::{Allocation, Method, Registry};
use crate::transport::port;

/// A rank's place in a job on this node.
#[derive(Debug, Clone)]
pub struct NodeRank {
    /// The rank.
    pub rank: usize,
    /// The roster.
    pub job: Arc<JobMemory>,
    /// The mapped slots.
    pub node: Arc<NodeMemory>,
    /// Where things lie in a slot.
    pub layout: SlotLayout,
    /// Most bytes of larger messages in flight.
    pub message_memory: usize,
    /// Reach memory outside slots by cross-memory attach.
    pub cross_memory_attach: bool,
}

impl NodeRank {
    /// The slot offset of `address`, an address in its owner's process, if all `len` bytes there are in the owner's slot: in the heap, its
    /// own segments, the control area, the table of segments or the static data.
    pub(super) fn slot_offset(&self, owner: usize, address: u64, len: usize) -> Option<usize> {
        let slot = self.job.base(owner).wrapping_add(owner << self.node.stride_log2());
        let offset = (address as usize).checked_sub(slot)?;
        // Its own segments, then the heap.
        let given = self.layout.own_segments..self.layout.heap + self.layout.heap_len;
        let parts = [0..self.layout.control_len, self.layout.table..self.layout.arena, given];
        let end = offset.checked_add(len)?;
        parts.iter().any(|part| part.contains(&offset) && end <= part.end).then_some(offset)
    }

    /// Where this process has those bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub(super) fn translate(&self, key: &RemoteKey, remote: u64, len: usize) -> Result<*mut u8> {
        let owner = key.owner as usize;
        let offset = self.slot_offset(owner, remote, len).ok_or(Error::OutOfRange)?;
        // SAFETY: inside the owner's slot.
        Ok(unsafe { self.node.slot(owner).add(offset) })
    }
}

/// The figures of shared memory: estimates for a present-day server.
pub(super) fn resource() -> Resource {
    Resource {
        transport: "shm",
        device: "memory".into(),
        bandwidth: 8e9,
        latency: 120e-9,
        overhead: 10e-9,
        message_rate: 50e6,
        locality: Locality::Node,
        capabilities: Capabilities::PUT_BCOPY
            .and(Capabilities::PUT_ZCOPY)
            .and(Capabilities::GET_BCOPY)
            .and(Capabilities::GET_ZCOPY)
            .and(Capabilities::ATOMIC_CPU),
        protection: Protection::Host,
    }
}

/// Shared memory between the ranks of a job on one node.
#[derive(Debug, Clone)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    place: NodeRank,
    registry: Arc<Registry>,
    heap: Mutex<HeapPart>,
    /// Message memory of private interfaces.
    arenas: Arc<ContextArenas>,
    open: AtomicBool,
}

/// The part of the slot's heap that the domain gives out.
#[derive(Debug)]
struct HeapPart {
    start: usize,
    committed: usize,
    heap: Heap,
}

impl Device {
    /// The device of a rank that has arrived in the roster. The domain allocates from bytes `heap` of its slot, which
    /// no other code uses; an empty range leaves [`Method::Domain`] unsupported.
    pub fn new(place: NodeRank, heap: std::ops::Range<usize>) -> Device {
        let part = HeapPart { start: heap.start, committed: 0, heap: Heap::new(heap.len() / LINE * LINE) };
        Device(Arc::new(Inner {
            place,
            registry: Arc::default(),
            heap: Mutex::new(part),
            arenas: Arc::default(),
            open: AtomicBool::new(false),
        }))
    }

    fn heap(&self) -> Guard<'_, HeapPart> {
        self.0.heap.lock()
    }
}

impl port::Device for Device {
    type Wire = ShmWire;

    fn resource(&self) -> Resource {
        resource()
    }

    fn owner(&self) -> u32 {
        self.0.place.rank as u32
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    fn has_key_pointer(&self) -> bool {
        true
    }

    fn max_alloc(&self) -> usize {
        self.heap().heap.limit()
    }

    fn allocate(&self, len: usize) -> Result<Allocation> {
        let place = &self.0.place;
        let mut part = self.heap();
        if part.heap.limit() == 0 {
            return Err(Error::Unsupported("memory of the domain's own: none of the slot was given to it"));
        }
        let offset = part.heap.take(len, LINE).ok_or(Error::NoMemory)?;
        let end = offset + len;
        if end > part.committed {
            let granule = place.node.granule(end - part.committed).max(64 << 10);
            let (from, to) = (part.start + part.committed, part.start + end.next_multiple_of(granule));
            let to = to.min(place.layout.heap + place.layout.heap_len);
            if place.node.commit(place.rank, from, to, place.job.ranks_here(), "transport memory", "").is_err() {
                part.heap.give_back(offset);
                return Err(Error::NoMemory);
            }
            part.committed = to - part.start;
        }
        // SAFETY: inside this rank's slot, just committed.
        let address = unsafe { place.node.slot(place.rank).add(part.start + offset) };
        // SAFETY: taken from the heap, so nobody else's; memory used before must read as zero again.
        unsafe { std::ptr::write_bytes(address, 0, len) };
        drop(part);
        // SAFETY: ours until given back, which happens after the region is gone; the mapping lives as long as `self`.
        let region = unsafe { self.0.registry.register(self.owner(), key::MemoryKind::Allocated, address, len) }?;
        let device = self.clone();
        Ok(Allocation::new(region, Method::Domain, move || device.heap().heap.give_back(offset)))
    }

    fn knows(&self, owner: u32) -> bool {
        (owner as usize) < self.0.place.job.ranks()
    }

    fn key_pointer(&self, key: &RemoteKey, remote: u64) -> Result<*mut u8> {
        match key.memory {
            key::MemoryKind::Allocated if self.knows(key.owner) => self.0.place.translate(key, remote, 1),
            _ => Err(Error::Unsupported("a pointer to memory outside segments")),
        }
    }

    fn open(&self) -> Result<ShmWire> {
        // Lanes have one writer and one reader.
        if self.0.open.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy);
        }
        Ok(ShmWire::new(self.0.place.clone(), Release(Arc::clone(&self.0)), None))
    }

    /// With lanes of a context: the one writer of a rank's own lanes is the rank's own wire.
    fn open_private(&self) -> Result<ShmWire> {
        Ok(ShmWire::new(self.0.place.clone(), Release(Arc::clone(&self.0)), Some(Arc::clone(&self.0.arenas))))
    }
}

/// Lets the next interface open when the wire is gone. Lanes go on where they are, so there is none after the first.
#[derive(Debug)]
pub(super) struct Release(#[expect(dead_code, reason = "keeps the slot's owner alive")] Arc<Inner>);
