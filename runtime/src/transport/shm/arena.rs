//! Blocks for messages larger than a line. The sender fills a block of its own slot, the receiver reads it in
//! place and marks it free; the sender takes it again when it needs one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{CalledAt, Error, Result};
use crate::memory::heap::Heap;
use crate::memory::layout::{LINE, SlotLayout};
use crate::memory::node::{HUGE_PAGE, NodeMemory};

/// Blocks up to this size are kept in lists by size and never joined again.
const SMALL_MAX: usize = 16 << 10;
const SMALL_MIN: usize = 256;
const CLASSES: usize = (SMALL_MAX / SMALL_MIN).ilog2() as usize + 1;
/// Busy blocks looked at, when none is known to be free.
const GLANCE: usize = 4;
/// Busy blocks of each size looked at when there is no memory left for another size.
const SEARCH: usize = 64;
/// Least bytes by which an arena grows.
const STEP: usize = 64 << 10;
const SETTING: &str = "BELLWETHER_MESSAGE_MEMORY";

const IN_USE: u64 = 1;
const RELEASED: u64 = 0;

/// Arenas that the contexts of a rank have together. Contexts beyond that share one with another context. Chosen: as many as lanes
/// of contexts at one receiver.
pub const CONTEXT_ARENAS: usize = crate::memory::layout::CONTEXT_LANES;

/// Bytes of a rank's own arena.
fn own_limit(layout: &SlotLayout, limit: usize) -> usize {
    limit.clamp(SMALL_MAX, layout.arena_len) / LINE * LINE
}

/// A block: where in the sender's slot its payload begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Offset of the payload in the sender's slot; the state line is the line before.
    pub offset: usize,
}

/// The sender's side of its arena.
#[derive(Debug)]
pub struct Arena {
    node: Arc<NodeMemory>,
    slot: usize,
    /// Ranks of this host, among which its free memory is divided.
    pub(super) sharers: usize,
    start: usize,
    committed: usize,
    heap: Heap,
    free: [Vec<usize>; CLASSES],
    busy: [VecDeque<usize>; CLASSES],
    large: VecDeque<usize>,
}

impl Arena {
    /// An arena in `slot` of at most `limit` bytes; `sharers` ranks of the node have one each.
    pub fn new(node: Arc<NodeMemory>, layout: &SlotLayout, slot: usize, limit: usize, sharers: usize) -> Arena {
        Arena::at(node, slot, layout.arena, own_limit(layout, limit), sharers)
    }

    /// One of [`CONTEXT_ARENAS`] arenas for contexts, which share the part of the slot's arena memory that the [rank's own](Arena::new)
    /// leaves. `None` if that is too little.
    pub fn of_context(
        node: Arc<NodeMemory>,
        layout: &SlotLayout,
        slot: usize,
        own: usize,
        sharers: usize,
        number: usize,
    ) -> Option<Arena> {
        let each = Arena::of_context_len(layout, own);
        let first = own_limit(layout, own).next_multiple_of(HUGE_PAGE);
        let start = layout.arena + first + number * each;
        (each > 0).then(|| Arena::at(node, slot, start, each, sharers))
    }

    /// Bytes of an arena of contexts; 0 if there is too little room.
    pub fn of_context_len(layout: &SlotLayout, own: usize) -> usize {
        let first = own_limit(layout, own).next_multiple_of(HUGE_PAGE);
        let most = (layout.arena_len.saturating_sub(first) / CONTEXT_ARENAS).min(own.next_multiple_of(STEP));
        if most >= HUGE_PAGE { most / HUGE_PAGE * HUGE_PAGE } else { most / STEP * STEP }
    }

    fn at(node: Arc<NodeMemory>, slot: usize, start: usize, limit: usize, sharers: usize) -> Arena {
        Arena {
            node,
            slot,
            sharers,
            start,
            committed: 0,
            heap: Heap::new(limit),
            free: Default::default(),
            busy: Default::default(),
            large: VecDeque::new(),
        }
    }

    /// A block for `len` bytes, or `None` if all memory is in messages that are still in flight.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it can never fit, or the machine has no more memory.
    pub fn take(&mut self, len: usize) -> Result<Option<Block>> {
        let too_large = Error::OutOfMemory {
            what: "message memory",
            asked: len,
            free: self.heap.limit() - LINE,
            limit: self.heap.limit(),
            setting: SETTING,
            place: CalledAt::default(),
        };
        let Some(bytes) = len.checked_add(LINE).filter(|bytes| *bytes <= self.heap.limit()) else {
            return Err(too_large);
        };
        let offset = if bytes <= SMALL_MAX { self.take_small(bytes)? } else { self.take_large(bytes)? };
        Ok(offset.map(|offset| {
            self.state(offset).store(IN_USE, Ordering::Relaxed);
            Block { offset: self.start + offset + LINE }
        }))
    }

    /// Most bytes of a message.
    pub fn largest(&self) -> usize {
        self.heap.limit() - LINE
    }

    /// Address of a block's payload.
    pub fn payload(&self, block: Block) -> *mut u8 {
        // SAFETY: a block lies in this rank's slot.
        unsafe { self.node.slot(self.slot).add(block.offset) }
    }

    fn take_small(&mut self, bytes: usize) -> Result<Option<usize>> {
        let class = bytes.div_ceil(SMALL_MIN).next_power_of_two().ilog2() as usize;
        // Each look is a line that comes from the receiver's core.
        let looks = if self.free[class].is_empty() { GLANCE } else { 0 };
        for _ in 0..looks {
            let Some(offset) = self.busy[class].pop_front() else { break };
            if self.released(offset) {
                self.free[class].push(offset);
                break;
            }
            self.busy[class].push_back(offset);
        }
        let offset = match self.free[class].pop() {
            Some(offset) => Some(offset),
            None => match self.fresh(SMALL_MIN << class)? {
                None => {
                    self.return_small(SEARCH);
                    self.return_large(SEARCH);
                    self.fresh(SMALL_MIN << class)?
                }
                some => some,
            },
        };
        if let Some(offset) = offset {
            self.busy[class].push_back(offset);
        }
        Ok(offset)
    }

    fn take_large(&mut self, bytes: usize) -> Result<Option<usize>> {
        self.return_large(usize::MAX);
        let offset = match self.fresh(bytes)? {
            None => {
                self.return_small(usize::MAX);
                self.fresh(bytes)?
            }
            some => some,
        };
        if let Some(offset) = offset {
            self.large.push_back(offset);
        }
        Ok(offset)
    }

    /// Gives unused large blocks back. Looks at most at `most`, in turn.
    fn return_large(&mut self, most: usize) {
        for _ in 0..self.large.len().min(most) {
            let Some(offset) = self.large.pop_front() else { break };
            if self.released(offset) {
                self.heap.give_back(offset);
            } else {
                self.large.push_back(offset);
            }
        }
    }

    /// Gives unused small blocks back, so that they can be joined and used for another size. Looks at most at `most`
    /// busy ones of each size, in turn, so that asking again and again finds them all.
    #[cold]
    fn return_small(&mut self, most: usize) {
        for class in 0..CLASSES {
            for offset in std::mem::take(&mut self.free[class]) {
                self.heap.give_back(offset);
            }
            for _ in 0..self.busy[class].len().min(most) {
                let Some(offset) = self.busy[class].pop_front() else { break };
                if self.released(offset) {
                    self.heap.give_back(offset);
                } else {
                    self.busy[class].push_back(offset);
                }
            }
        }
    }

    fn fresh(&mut self, bytes: usize) -> Result<Option<usize>> {
        let Some(offset) = self.heap.take(bytes, LINE) else { return Ok(None) };
        let end = offset + bytes;
        if end > self.committed {
            let granule = self.node.granule(end - self.committed).max(STEP);
            let to = end.next_multiple_of(granule);
            let (from, to) = (self.start + self.committed, self.start + to);
            if let Err(error) = self.node.commit(self.slot, from, to, self.sharers, "message memory", SETTING) {
                self.heap.give_back(offset);
                return Err(error);
            }
            self.committed = to - self.start;
        }
        Ok(Some(offset))
    }

    fn state(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: committed memory of our own slot, line-aligned, only ever touched as this atomic.
        unsafe { AtomicU64::from_ptr(self.node.slot(self.slot).add(self.start + offset).cast()) }
    }

    fn released(&self, offset: usize) -> bool {
        // Pairs with the Release store in `release`: the receiver has read all before we write again.
        self.state(offset).load(Ordering::Acquire) == RELEASED
    }
}

/// Gives a block back to its sender.
///
/// # Safety
/// `payload` is the payload of a block that this receiver was given and has not released.
pub unsafe fn release(payload: *const u8) {
    // SAFETY: the state line lies before the payload. Pairs with the Acquire load in `Arena::released`.
    unsafe { AtomicU64::from_ptr(payload.cast_mut().sub(LINE).cast()).store(RELEASED, Ordering::Release) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::membership::JobMemory;
    use crate::memory::node::Slots;
    use crate::settings::Settings;

    #[test]
    fn contexts_have_message_memory_whatever_the_limits() {
        for message_memory in [1 << 20, 100 << 20, 511 << 20, 512 << 20, 513 << 20, 1 << 30, 2 << 30] {
            for heap_limit in [1 << 20, 1 << 30, 3 << 30] {
                let settings = Settings { heap_limit: Some(heap_limit), message_memory, ..Settings::default() };
                let job = JobMemory::create(1, &settings).expect("a job");
                let layout = SlotLayout::new(1, 1, 1 << job.stride_log2(), None);
                let len = Arena::of_context_len(&layout, message_memory);
                assert!(len >= STEP, "{len} bytes, of {heap_limit} and {message_memory}");
            }
        }
    }

    /// Memory that is free again serves blocks of any size.
    #[test]
    fn memory_of_one_size_comes_back_for_another() {
        const LIMIT: usize = 64 << 10;
        let settings = Settings { heap_limit: Some(1 << 20), ..Settings::default() };
        let job = JobMemory::create(1, &settings).expect("a job");
        let stride_log2 = job.stride_log2();
        let slots = Slots::of(&job, false);
        let node = Arc::new(NodeMemory::map(job.fd(), slots).expect("mapped"));
        let mut arena = Arena::new(node, &SlotLayout::new(1, 1, 1 << stride_log2, Some(1)), 0, LIMIT, 1);
        let sizes = [SMALL_MAX + 1, 1000, 20 << 10, 12 << 10, 100, LIMIT - LINE, 8];
        for len in sizes.into_iter().chain(sizes.into_iter().rev()) {
            // One look may not find all that is free; looks in turn do.
            let mut taken: Vec<_> = (0..10).find_map(|_| arena.take(len).expect("it fits alone")).into_iter().collect();
            while let Some(block) = arena.take(len).expect("it fits alone") {
                taken.push(block);
            }
            assert!(!taken.is_empty(), "no room for {len} bytes, though nothing is on its way");
            // SAFETY: each was just given to us, and is released once.
            taken.into_iter().for_each(|block| unsafe { release(arena.payload(block)) });
        }
    }
}
