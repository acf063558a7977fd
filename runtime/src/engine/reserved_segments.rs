//! The reserved segments of every rank: number 0 is the symmetric heap, number 1 the symmetric static data.
//!
//! They are opened by no call and are never closed, so an access to them needs no look-up that a close could race with. What lies in
//! them belongs to typed handles and to the program's variables. So the calls that take a number refuse 0 and 1 until the program has
//! vouched for its accesses ([`MappedSegments::allow_reserved`]).

use std::sync::atomic::Ordering;

use super::mapped_segments::MappedSegments;
use super::segments::Found;

/// The number of the symmetric heap.
pub(crate) const HEAP: u32 = 0;
/// The number of the static data.
pub(crate) const STATICS: u32 = 1;

impl MappedSegments {
    /// From now on calls of this rank's world and contexts take the numbers 0 and 1.
    pub(crate) fn allow_reserved(&self) {
        // Relaxed: whoever passes a context to another thread orders it.
        self.reserved.store(true, Ordering::Relaxed);
    }

    /// Whether calls take the numbers 0 and 1.
    pub(crate) fn takes_reserved(&self) -> bool {
        self.reserved.load(Ordering::Relaxed)
    }

    /// The heap of `rank`: its first address there, and the bytes that are backed.
    pub(crate) fn heap(&self, rank: usize) -> Found {
        // Heaps grow together, so this rank's size stands for that of a rank on another host.
        let known = if self.job.is_here(rank) { rank } else { self.rank };
        // Acquire pairs with the Release in `World::back`: the bytes are backed.
        let len = self.node.status(known).heap_committed.load(Ordering::Acquire) as usize;
        let slot = self.job.base(rank).wrapping_add(rank << self.node.stride_log2());
        Found { start: slot.wrapping_add(self.layout.heap), len }
    }

    /// As [`MappedSegments::reach`], of a reserved segment of a rank that is mapped.
    #[cold]
    #[inline(never)]
    pub(crate) fn reach_reserved(&self, rank: usize, number: u32, offset: usize, len: usize) -> Option<*mut u8> {
        if !self.takes_reserved() {
            return None;
        }
        let (start, available) = match number {
            HEAP => (self.layout.heap, self.heap(rank).len),
            _ => (self.layout.statics, self.table(rank).find(STATICS as usize)?.len),
        };
        let is_inside = offset <= available && len <= available - offset;
        // SAFETY: inside the heap, or the part of the slot that the rank has laid under its static data, of a mapped rank.
        is_inside.then(|| unsafe { self.node.slot(rank).add(start + offset) })
    }
}
