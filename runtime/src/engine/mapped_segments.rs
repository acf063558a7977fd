//! The segments of ranks whose memory is mapped here: a put to one that lies in its owner's slot is a look-up in the owner's table, a
//! bounds check and a store.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use super::routes::Routes;
use crate::error::{Error, Loss, Result};
use crate::membership::JobMemory;
use crate::membership::liveness::{Cuts, SUPERVISED_GRACE};
use crate::membership::nodes::Nodes;
use crate::memory::layout::{LINE, SEGMENTS_FIRST, SlotLayout};
use crate::memory::node::NodeMemory;
use crate::memory::outside::{self, Direction, Refused};
use crate::memory::segments::{Found, HOLDS, Table};

const BITS: usize = u64::BITS as usize;

/// How a rank finds segments of mapped ranks, its own included.
pub(crate) struct MappedSegments {
    pub(super) rank: usize,
    pub(super) job: Arc<JobMemory>,
    pub(super) node: Arc<NodeMemory>,
    pub(super) layout: SlotLayout,
    routes: Routes,
    nodes: Nodes,
    cuts: Arc<Cuts>,
    /// A bit for each rank that was told that this one uses its segments.
    told: Box<[AtomicU64]>,
    attaches: AtomicBool,
    /// A put to a segment of a rank of this node went by message.
    by_message: AtomicBool,
}

impl std::fmt::Debug for MappedSegments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MappedSegments(rank {})", self.rank)
    }
}

/// A segment of a mapped rank that was found, so that the next look-up loads only its generation.
#[derive(Debug)]
pub(crate) struct Memo {
    /// The generation in the owner's table; null for no segment.
    entry: *const AtomicU64,
    rank: usize,
    number: u32,
    generation: u64,
    /// Here.
    start: *mut u8,
    len: usize,
}

// SAFETY: an address of the mapping of all ranks, which every thread of the process has.
unsafe impl Send for Memo {}

impl Default for Memo {
    fn default() -> Memo {
        Memo { entry: ptr::null(), rank: 0, number: 0, generation: 0, start: ptr::null_mut(), len: 0 }
    }
}

impl Memo {
    /// As [`MappedSegments::reach`], if this is the segment and it is still open.
    ///
    /// # Safety
    /// The slots of the ranks that it was made for are mapped.
    #[inline(always)]
    pub(crate) unsafe fn reach(&self, rank: usize, number: u32, offset: usize, len: usize) -> Option<*mut u8> {
        if self.entry.is_null() || self.rank != rank || self.number != number {
            return None;
        }
        // SAFETY: a word of a table in a mapped slot, which is only touched as this atomic. Acquire as in `Table::find`.
        let generation = unsafe { (*self.entry).load(Ordering::Acquire) };
        let fits = offset <= self.len && len <= self.len - offset;
        (generation == self.generation && fits).then(|| self.start.wrapping_add(offset))
    }
}

/// The outcome of a copy by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attached {
    Done,
    /// The kernel allows none, or the program wants none.
    NotAllowed,
}

impl MappedSegments {
    pub(super) fn new(
        rank: usize,
        job: &Arc<JobMemory>,
        node: &Arc<NodeMemory>,
        layout: SlotLayout,
        (routes, nodes): (&Routes, &Nodes),
        cuts: Arc<Cuts>,
    ) -> MappedSegments {
        let words = if routes.has_lanes() { job.ranks().div_ceil(BITS) } else { 0 };
        let told = (0..words).map(|_| AtomicU64::new(0)).collect();
        let (job, node, routes, nodes) = (Arc::clone(job), Arc::clone(node), routes.clone(), nodes.clone());
        MappedSegments {
            rank,
            job,
            node,
            layout,
            routes,
            nodes,
            cuts,
            told,
            attaches: AtomicBool::new(true),
            by_message: AtomicBool::default(),
        }
    }

    /// Whether the memory of `rank` is mapped here.
    pub(super) fn is_mapped(&self, rank: usize) -> bool {
        self.routes.is_mapped(rank)
    }

    /// The table of `rank`, which is mapped.
    #[inline]
    pub(super) fn table(&self, rank: usize) -> Table<'_> {
        Table::new(&self.node, &self.layout, rank)
    }

    /// Segment `number` of `rank`, which is mapped. It stays open until this rank has answered a `REVOKE`.
    #[inline]
    pub(crate) fn find(&self, rank: usize, number: u32) -> Option<Found> {
        // Acquire pairs with the Release in `tell`.
        if rank != self.rank && self.told[rank / BITS].load(Ordering::Acquire) & 1 << (rank % BITS) == 0 {
            self.tell(rank);
        }
        self.table(rank).find(number as usize)
    }

    /// Tells `rank` that this one uses its segments.
    #[cold]
    fn tell(&self, rank: usize) {
        self.table(rank).word(self.rank).fetch_or(HOLDS, Ordering::SeqCst);
        // Pairs with the fence in `begin_close`. Other threads of this rank also read the table after this fence.
        fence(Ordering::SeqCst);
        self.told[rank / BITS].fetch_or(1 << (rank % BITS), Ordering::Release);
    }

    /// Where `len` bytes from `offset` of a segment are, if a plain store or load reaches them. `None` says nothing more: there may be no
    /// such segment, or rank.
    #[inline]
    pub(crate) fn reach(&self, rank: usize, number: u32, offset: usize, len: usize) -> Option<*mut u8> {
        if !self.routes.stores().contains(&rank) {
            return None;
        }
        // The reserved segments are reached by other calls.
        if (number as usize) < SEGMENTS_FIRST {
            return None;
        }
        let found = self.find(rank, number)?;
        if offset > found.len || len > found.len - offset {
            return None;
        }
        self.place(rank, found.start.wrapping_add(offset), len)
    }

    /// As [`MappedSegments::reach`], and remembers the segment.
    #[cold]
    #[inline(never)]
    pub(crate) fn remember(
        &self,
        memo: &mut Memo,
        rank: usize,
        number: u32,
        offset: usize,
        len: usize,
    ) -> Option<*mut u8> {
        let at = self.reach(rank, number, offset, len)?;
        if let Some(found) = self.find(rank, number)
            && let Some(start) = self.place(rank, found.start, found.len)
        {
            let entry = self.table(rank).generation(number as usize);
            *memo = Memo { entry, rank, number, generation: found.generation, start, len: found.len };
        }
        Some(at)
    }

    /// Where `len` bytes at an address of `rank`, which is mapped, are here, if they are its own or lie in the part of its slot for
    /// segments.
    #[inline]
    pub(crate) fn place(&self, rank: usize, address: usize, len: usize) -> Option<*mut u8> {
        if rank == self.rank {
            return Some(address as *mut u8);
        }
        let offset = self.offset(rank, address, len)?;
        // SAFETY: inside the slot of a rank that is mapped.
        Some(unsafe { self.node.slot(rank).add(offset) })
    }

    /// Whether the kernel copies between this rank and others.
    pub(crate) fn attaches(&self) -> bool {
        self.attaches.load(Ordering::Relaxed)
    }

    /// Whether a put to a segment of a rank of this node may wait in a message.
    pub(crate) fn are_by_message(&self) -> bool {
        self.by_message.load(Ordering::Relaxed)
    }

    /// Says that one may.
    pub(crate) fn note_message(&self) {
        self.by_message.store(true, Ordering::Relaxed);
    }

    /// Says whether it may.
    pub(crate) fn set_attaches(&self, attaches: bool) {
        self.attaches.store(attaches, Ordering::Relaxed);
    }

    /// The rank in whose slot `address` of `rank` lies, and where in it, backed or not.
    pub(crate) fn slot_of(&self, rank: usize, address: usize) -> Option<(usize, usize)> {
        // Where rank 0 has no slot there, its place may lie before all addresses.
        let distance = address.wrapping_sub(self.job.base(rank));
        let slot = distance >> self.node.stride_log2();
        // A rank has mapped the slots of its own host.
        let is_there = slot < self.job.ranks()
            && self.job.is_here(slot) == self.job.is_here(rank)
            && (self.job.is_here(rank) || self.nodes.of(slot) == self.nodes.of(rank));
        is_there.then(|| (slot, distance - (slot << self.node.stride_log2())))
    }

    /// Moves bytes by cross-memory attach. If the process of `rank` has ended, and it `may_wait`, this waits until the roster tells why.
    ///
    /// # Safety
    /// As [`outside::transfer`].
    ///
    /// # Errors
    /// [`Error::BadAddress`], also for memory in slots; [`Error::PeerLost`].
    pub(crate) unsafe fn attach(
        &self,
        operation: &'static str,
        direction: Direction,
        rank: usize,
        here: *mut u8,
        (address, length): (usize, usize),
        may_wait: impl Fn() -> bool,
    ) -> Result<Attached> {
        // In a forked child, the kernel would copy all the same.
        self.node.check_own(operation, self.rank)?;
        if self.slot_of(rank, address).is_some() {
            return Err(Error::BadAddress { operation, rank, address, length });
        }
        if !self.attaches() {
            return Ok(Attached::NotAllowed);
        }
        // SAFETY: the caller guarantees it.
        match unsafe { outside::transfer(direction, self.job.pid(rank), here, address, length) } {
            Ok(()) => Ok(Attached::Done),
            Err(Refused::BadAddress) => Err(Error::BadAddress { operation, rank, address, length }),
            Err(Refused::Gone) => {
                let (rank, cause) = self.loss_of(rank, may_wait());
                let error = Error::PeerLost { rank, cause, doing: operation.into() };
                self.cuts.note_told(&self.job, &error);
                Err(error)
            }
            Err(Refused::NotPermitted) => {
                tracing::info!(rank, "no cross-memory attach here: memory outside segments goes by message");
                self.set_attaches(false);
                Ok(Attached::NotAllowed)
            }
        }
    }

    /// The loss of `rank`, whose process the kernel does not find any more, or the one that it may have given up because of, unless this
    /// rank goes on without that one. If it `may_wait`, this waits until the supervisor, if there is one, has entered the loss: else this
    /// rank would be the first of which the others hear.
    #[cold]
    pub(super) fn loss_of(&self, rank: usize, may_wait: bool) -> (usize, Loss) {
        let (start, waits) = (Instant::now(), may_wait && self.job.supervised());
        while waits && self.job.loss(rank).is_none() && start.elapsed() < SUPERVISED_GRACE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let first = self.cuts.first_lost(&self.job).filter(|_| self.job.gave_up(rank));
        first.unwrap_or_else(|| (rank, self.job.loss(rank).unwrap_or(Loss::Unknown)))
    }

    /// Where `len` bytes at `address` of `rank`, which is mapped, are in its slot, if they are symmetric static data.
    #[inline]
    pub(crate) fn in_statics(&self, rank: usize, address: usize, len: usize) -> Option<*mut u8> {
        let slot = self.node.slot(rank);
        // SAFETY: two words of the control area, which every slot has, written before the rank arrived.
        let word = |i: usize| unsafe {
            AtomicU64::from_ptr(slot.add(self.layout.segments + LINE + 8 * i).cast()).load(Ordering::Relaxed)
        };
        let (start, bytes) = (word(0) as usize, word(1) as usize);
        let offset = address.checked_sub(start)?;
        // SAFETY: inside the part of the slot that the rank has laid under its static data.
        (offset <= bytes && len <= bytes - offset).then(|| unsafe { slot.add(self.layout.statics + offset) })
    }

    /// The offset in the slot of `rank` of `len` bytes at an address there, if they lie in the part for its segments.
    #[inline]
    pub(crate) fn offset(&self, rank: usize, address: usize, len: usize) -> Option<usize> {
        let slot = self.job.base(rank).wrapping_add(rank << self.node.stride_log2());
        let at = address.wrapping_sub(slot).wrapping_sub(self.layout.own_segments);
        let room = self.layout.own_segments_len;
        (at <= room && len <= room - at).then_some(self.layout.own_segments + at)
    }
}
