//! Memory for the segments that a rank makes of the library's memory: a part of its slot that the rank divides by itself, so that
//! the other ranks of its node have it mapped.
//!
//! Unlike the symmetric heap the other ranks need not agree: a segment is found by the table of its owner. Memory is backed before a segment
//! gets it, in whole granules. Backed memory of closed segments is kept for later ones up to 16 MiB, and goes back to the
//! system beyond that.

use super::heap::Heap;
use super::layout::SlotLayout;
use super::node::{HUGE_PAGE, NodeMemory, Pages};
use crate::error::Result;

/// Segments begin at a page: one page is then never pinned for two.
pub const PAGE: usize = 4096;
/// Bytes that stay backed while no segment has them. Chosen: a program that makes and closes small segments in a loop then needs no
/// system call for their memory.
const KEPT: usize = 16 << 20;
const WHAT: &str = "memory for a segment";
const SETTING: &str = "the memory of this machine";

/// The part of a rank's slot for its segments, as its owner divides it.
#[derive(Debug)]
pub struct OwnSegments {
    heap: Heap,
    /// Bytes that are backed at a time.
    granule: usize,
    /// Which granules are backed, up to the highest one that was asked for.
    backed: Vec<bool>,
    /// How many that are.
    granules: usize,
    /// One more than the highest one that ever was backed.
    reached: usize,
    /// Bytes of segments.
    taken: usize,
}

impl OwnSegments {
    /// All is free, and nothing is backed.
    pub fn new(node: &NodeMemory, layout: &SlotLayout) -> OwnSegments {
        let granule = if node.pages() == Pages::Reserved { HUGE_PAGE } else { node.granule(0) };
        OwnSegments {
            heap: Heap::new(layout.own_segments_len),
            granule,
            backed: Vec::new(),
            granules: 0,
            reached: 0,
            taken: 0,
        }
    }

    /// Takes `bytes` zeroed bytes of `slot`, which is this rank's. Returns their offset in the slot; `None` if there is no room. `sharers` ranks
    /// are about to do the same.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] if the machine has not so much.
    pub fn take(
        &mut self,
        node: &NodeMemory,
        layout: &SlotLayout,
        slot: usize,
        bytes: usize,
        sharers: usize,
    ) -> Result<Option<usize>> {
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let Some(start) = self.heap.take_before(bytes, PAGE, 0, align) else { return Ok(None) };
        let len = bytes.next_multiple_of(PAGE);
        let (first, end) = (start / self.granule, (start + len).div_ceil(self.granule));
        if self.backed.len() < end {
            self.backed.resize(end, false);
        }
        let mut at = first;
        while at < end {
            let run = self.backed[at..end].iter().take_while(|backed| **backed == self.backed[at]).count();
            let (from, to) = (at * self.granule, (at + run) * self.granule);
            if self.backed[at] {
                let (from, to) = (from.max(start), to.min(start + len));
                // SAFETY: backed memory of this rank's slot that no segment has.
                unsafe { libc::memset(node.slot(slot).add(layout.own_segments + from).cast(), 0, to - from) };
            } else {
                let (from, to) = (layout.own_segments + from, layout.own_segments + to);
                // Memory that was committed just now is zero.
                node.commit(slot, from, to, sharers, WHAT, SETTING).inspect_err(|_| self.heap.give_back(start))?;
                self.backed[at..at + run].fill(true);
                self.granules += run;
                self.reached = self.reached.max(at + run);
            }
            at += run;
        }
        self.taken += len;
        Ok(Some(layout.own_segments + start))
    }

    /// Takes back `bytes` bytes at `offset` of `slot`, which no rank accesses any more.
    pub fn give_back(&mut self, node: &NodeMemory, layout: &SlotLayout, slot: usize, offset: usize, bytes: usize) {
        self.heap.give_back(offset - layout.own_segments);
        self.taken -= bytes.next_multiple_of(PAGE);
        if self.backed_bytes().saturating_sub(self.taken) <= KEPT {
            return;
        }
        let (granule, backed) = (self.granule, &mut self.backed);
        for (start, len) in self.heap.free() {
            let end = (start + len) / granule;
            let mut at = start.div_ceil(granule);
            while at < end.min(backed.len()) {
                let run = backed[at..end.min(backed.len())].iter().take_while(|is| **is == backed[at]).count();
                let (from, to) = (layout.own_segments + at * granule, layout.own_segments + (at + run) * granule);
                if backed[at] && node.discard(slot, from, to) {
                    backed[at..at + run].fill(false);
                    self.granules -= run;
                }
                at += run;
            }
        }
    }

    /// Bytes that are backed.
    pub fn backed_bytes(&self) -> usize {
        self.granules * self.granule
    }

    /// Offset in a slot of the end of the memory that was ever backed.
    pub fn end(&self, layout: &SlotLayout) -> usize {
        layout.own_segments + self.reached * self.granule
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;
    use crate::membership::JobMemory;
    use crate::memory::node::Slots;
    use crate::settings::Settings;

    /// The slot of one rank.
    fn slot() -> (NodeMemory, SlotLayout, OwnSegments) {
        let settings = Settings { heap_limit: Some(1 << 20), ..Settings::default() };
        let job = JobMemory::create(1, &settings).expect("a job");
        let stride_log2 = job.stride_log2();
        let slots = Slots::of(&job, false);
        let node = NodeMemory::map(job.fd(), slots).expect("maps");
        let layout = SlotLayout::new(1, 1, 1 << stride_log2, Some(4));
        let own = OwnSegments::new(&node, &layout);
        (node, layout, own)
    }

    fn byte(node: &NodeMemory, offset: usize) -> &AtomicU8 {
        // SAFETY: a byte of a segment, which is backed.
        unsafe { AtomicU8::from_ptr(node.slot(0).add(offset)) }
    }

    #[test]
    fn memory_of_a_segment_is_zero_also_where_another_one_was() {
        let (node, layout, mut own) = slot();
        for bytes in [1, PAGE, PAGE + 1, 100_000, 3 << 20, 40 << 20] {
            let mut take = || own.take(&node, &layout, 0, bytes, 1).expect("memory").expect("room");
            let (first, second) = (take(), take());
            assert!(first + bytes <= second && second % PAGE == 0, "{bytes}: {first} {second}");
            for offset in
                [first, first + bytes - 1, second, second + bytes - 1].iter().step_by(1 + usize::from(bytes == 1))
            {
                assert_eq!(byte(&node, *offset).swap(7, Ordering::Relaxed), 0, "{bytes}: {offset}");
            }
            [first, second].into_iter().for_each(|offset| own.give_back(&node, &layout, 0, offset, bytes));
        }
        assert_eq!(own.taken, 0);
    }

    #[test]
    fn what_closed_segments_had_goes_back_to_the_system() {
        let (node, layout, mut own) = slot();
        let take = |own: &mut OwnSegments, bytes| own.take(&node, &layout, 0, bytes, 1).expect("memory").expect("room");
        let (before, large, after) = (take(&mut own, 100), take(&mut own, 64 << 20), take(&mut own, 100));
        byte(&node, before).store(5, Ordering::Relaxed);
        byte(&node, after).store(6, Ordering::Relaxed);
        own.give_back(&node, &layout, 0, large, 64 << 20);
        assert!(own.backed_bytes() <= KEPT, "{} bytes stay backed", own.backed_bytes());
        assert_eq!([before, after].map(|offset| byte(&node, offset).load(Ordering::Relaxed)), [5, 6]);
        // Small ones are kept, and used again.
        let backed = own.backed_bytes();
        for _ in 0..100 {
            let again = take(&mut own, 1 << 20);
            own.give_back(&node, &layout, 0, again, 1 << 20);
        }
        assert_eq!(own.backed_bytes(), backed + (1 << 20));
    }

    #[test]
    fn there_is_no_more_than_the_layout_has_room_for() {
        let (node, layout, mut own) = slot();
        assert_eq!(own.take(&node, &layout, 0, layout.own_segments_len + 1, 1).expect("is no error"), None);
        assert_eq!(own.take(&node, &layout, 0, usize::MAX, 1).expect("is no error"), None);
        // Each of very many would have nothing.
        let error = own.take(&node, &layout, 0, 1 << 20, usize::MAX).expect_err("no memory");
        assert!(matches!(error, crate::Error::OutOfMemory { asked, .. } if asked == 1 << 20), "{error}");
        assert_eq!((own.taken, own.backed_bytes()), (0, 0));
        let small = own.take(&node, &layout, 0, 1, 1).expect("memory").expect("room");
        assert_eq!((small, own.end(&layout)), (layout.own_segments, layout.own_segments + own.granule));
    }
}
