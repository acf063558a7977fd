//! The reserved segments of every rank: number 0 is the symmetric heap, number 1 the symmetric static data.
//!
//! They are opened by no call and are never closed, so an access to them needs no look-up that a close could race with. Their memory
//! belongs to typed handles and to the program's variables. So the safe calls that take a number refuse 0 and 1.

use std::sync::atomic::Ordering;

use super::mapped_segments::MappedSegments;
use super::segments::Found;

/// The number of the symmetric heap.
pub(crate) const HEAP: u32 = 0;
/// The number of the static data.
pub(crate) const STATICS: u32 = 1;

impl MappedSegments {
    /// The heap of `rank`: its first address there, and the bytes that are backed.
    pub(crate) fn heap(&self, rank: usize) -> Found {
        // Heaps grow by the same allocations, so this rank's size stands for that of a rank on another host.
        let known = if self.job.is_here(rank) { rank } else { self.rank };
        // Acquire pairs with the Release in `Allocator::back`: the bytes are backed.
        let len = self.node.status(known).heap_committed.load(Ordering::Acquire) as usize;
        let slot = self.job.base(rank).wrapping_add(rank << self.node.stride_log2());
        Found { start: slot.wrapping_add(self.layout.heap), len }
    }
}
