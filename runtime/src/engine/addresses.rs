//! Memory of a rank by its address there, in place of the number of a segment and an offset.
//!
//! The symmetric heap, symmetric static data and segments of ranks whose memory is mapped are found by arithmetic; over a network the copy
//! of the rank's table says whether an address is registered.

use std::sync::atomic::Ordering;

use super::Engine;
use super::mapped_segments::MappedSegments;
use crate::error::{Error, Result};

/// In place of the number of a segment: the offset is an address. No segment has this number.
pub(crate) const BY_ADDRESS: u32 = u32::MAX;

impl MappedSegments {
    /// The rank whose slot has `len` bytes at `address` of `rank`, and where in it they are, if they are backed heap memory there.
    pub(crate) fn in_heaps(&self, rank: usize, address: usize, len: usize) -> Option<(usize, usize)> {
        let (slot, offset) = self.slot_of(rank, address)?;
        let start = offset.checked_sub(self.layout.heap)?;
        // Heaps grow by the same allocations, and what all ranks have lies below every end; those of other hosts tell no sizes here.
        let known = if self.job.is_here(slot) { slot } else { self.rank };
        let committed = self.node.status(known).heap_committed.load(Ordering::Acquire) as usize;
        (start.checked_add(len)? <= committed).then_some((slot, offset))
    }

    /// Where `len` bytes at `address` of `rank` are here, if the rank is mapped and has given them to segments of its slot.
    pub(crate) fn in_own_segments(&self, rank: usize, address: usize, len: usize) -> Option<*mut u8> {
        let offset = self.offset(rank, address, len).filter(|_| self.is_mapped(rank))?;
        // Acquire pairs with the Release in `Segments::take_memory`.
        let end = self.node.status(rank).own_segments_end.load(Ordering::Acquire) as usize;
        // SAFETY: inside the slot of a mapped rank.
        (offset + len <= end).then(|| unsafe { self.node.slot(rank).add(offset) })
    }

    /// Where `len` bytes at `address` of `rank` are here, if they lie in its symmetric heap, its symmetric static data or a segment of its
    /// slot, and the rank is mapped.
    pub(crate) fn at_address(&self, rank: usize, address: usize, len: usize) -> Option<*mut u8> {
        if !self.is_mapped(rank) {
            return None;
        }
        let in_heap = || {
            let (slot, offset) = self.in_heaps(rank, address, len)?;
            // SAFETY: an offset inside the slot.
            self.node.has_slot(slot).then(|| unsafe { self.node.slot(slot).add(offset) })
        };
        let in_segments = || self.in_own_segments(rank, address, len);
        self.in_statics(rank, address, len).or_else(in_segments).or_else(in_heap)
    }

    /// Whether `address` of `rank` lies in a slot, but `len` bytes there are neither of a heap nor of the part for segments.
    pub(crate) fn is_closed_to_peers(&self, rank: usize, address: usize, len: usize) -> bool {
        self.slot_of(rank, address).is_some()
            && self.offset(rank, address, len).is_none()
            && self.in_heaps(rank, address, len).is_none()
    }

    /// Whether `len` bytes at an address of this rank lie in one of its open segments, or in its symmetric static data. Looks at all of
    /// them.
    pub(crate) fn owns(&self, address: usize, len: usize) -> bool {
        let table = self.table(self.rank);
        (0..table.top()).filter_map(|number| table.find(number)).any(|found| {
            let offset = address.checked_sub(found.start);
            offset.is_some_and(|offset| offset <= found.len && len <= found.len - offset)
        })
    }
}

impl Engine {
    /// Whether all `len` bytes at `address` of `rank` lie in its segments or static data, as the network for it knows them. Copies the
    /// rank's table if they are not known.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::InsideHandler`] where the table has to be copied.
    pub(crate) fn find_address(&self, doing: &'static str, rank: usize, address: usize, len: usize) -> Result<bool> {
        self.check_own(doing)?;
        let network = self.networks.to(rank);
        if network.covers(rank, address, len) {
            return Ok(true);
        }
        self.check_outside_handler(doing)?;
        self.copy_table(doing, rank)?;
        Ok(network.covers(rank, address, len))
    }
}

/// That bytes at an address of `rank` are in nothing that `instead` does not need.
pub(crate) fn not_registered(operation: &'static str, rank: usize, address: usize, instead: &str) -> Error {
    let why = format!(
        "the memory at {address:#x} of rank {rank} lies in no segment, nor in the symmetric heap or symmetric static data of that rank: {instead}"
    );
    Error::InvalidArgument { operation, why }
}
