//! The mapped heaps by their owners' addresses: the short way of a put of one word to an address.

use std::cell::Cell;
use std::rc::Rc;

use crate::engine::Engine;
use crate::memory::copy;

const WORD: usize = size_of::<u64>();

/// The symmetric heaps that this rank reaches by a store. Nothing in it changes in place: only so the compiler keeps the fields
/// that a loop of puts reads here in registers.
pub(super) struct Heaps {
    /// The first of the ranks, which follow one another.
    first: usize,
    /// Where the heap of each begins in that rank's own address space: a multiple of a cache line.
    starts: Box<[usize]>,
    /// Where the heap of the first rank begins here, and how far the next one's is.
    here: *mut u8,
    stride: usize,
    /// Offsets in the heap, from 0, at which a word is backed by memory at every rank.
    room: Rc<Cell<usize>>,
}

/// The heap of one rank.
pub(super) struct Heap<'a> {
    start: usize,
    here: *mut u8,
    room: &'a Cell<usize>,
}

impl Heaps {
    /// The heaps of the ranks that have arrived; none before that. They have no memory yet.
    pub(super) fn new(engine: &Engine) -> Heaps {
        let (ranks, heap) = (engine.routes.stores(), engine.layout.heap);
        // SAFETY: the heap begins inside the slot.
        let here = unsafe { engine.node.slot(ranks.start).add(heap) };
        Heaps {
            first: ranks.start,
            starts: ranks
                .map(|rank| engine.job.base(rank).wrapping_add(rank << engine.node.stride_log2()) + heap)
                .collect(),
            here,
            stride: 1 << engine.node.stride_log2(),
            room: Rc::default(),
        }
    }

    /// For allocations, which note with it that the first so many bytes of every rank's heap are backed by memory, from now on.
    pub(super) fn note_backed(&self) -> impl Fn(usize) + use<> {
        let room = Rc::clone(&self.room);
        move |bytes: usize| room.set(room.get().max((bytes + 1).saturating_sub(WORD)))
    }

    /// The heap of `rank`, if it is mapped here.
    #[inline(always)]
    pub(super) fn of(&self, rank: usize) -> Option<Heap<'_>> {
        let place = rank.wrapping_sub(self.first);
        let start = *self.starts.get(place)?;
        // SAFETY: slots lie a stride apart, and each existing rank has one.
        let here = unsafe { self.here.add(place * self.stride) };
        Some(Heap { start, here, room: &self.room })
    }
}

impl Heap<'_> {
    /// The offset of address `to` of its rank from the start of the heap. For an address before the start, the result is too large for any heap.
    #[inline(always)]
    pub(super) fn offset(&self, to: usize) -> usize {
        to.wrapping_sub(self.start)
    }

    /// The reverse of [`Heap::offset`].
    pub(super) fn address(&self, offset: usize) -> usize {
        self.start.wrapping_add(offset)
    }

    /// Stores a word at `offset`, after all that was put before. Returns whether it did: the word must lie in backed memory, and be
    /// aligned where [`copy::put_word`] asks for that.
    #[inline(always)]
    pub(super) fn put(&self, offset: usize, value: u64) -> bool {
        let reached = offset < self.room.get() && (copy::ANY_ALIGNMENT || offset.is_multiple_of(WORD));
        if reached {
            // SAFETY:
            // - the word lies in the heap of an existing rank, backed by memory at every rank, mapped here as long as the world is;
            // - heaps are aligned to a cache line, so the word is aligned as the offset is, which was checked where it matters;
            // - other accesses by ranks are atomic, or copies that the compiler cannot see into.
            unsafe { copy::put_word(self.here, offset, value) };
        }
        reached
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use crate::RawBells;
    use crate::memory::copy;
    use crate::memory::layout::LINE;

    #[test]
    fn only_words_of_backed_heap_are_reached() {
        let outcome = crate::Threads::new(3).deadline(Duration::from_secs(20)).run(|world| {
            let engine = world.engine();
            let heap = |rank: usize| engine.job.base(rank) + (rank << engine.node.stride_log2()) + engine.layout.heap;
            let put = |rank: usize, to: usize, value: u64| {
                world.heaps.of(rank).is_some_and(|heap| heap.put(heap.offset(to), value))
            };
            assert!(!put(1, heap(1), 1), "no memory is backed before the first allocation");
            // An array whose size ends inside a word.
            let array = world.alloc::<u8>(1003)?;
            let (begin, end) = (array.offset() - engine.layout.heap, array.offset() - engine.layout.heap + 1003);
            let to = (world.rank() + 1) % 3;
            let at = |offset: usize| heap(to).wrapping_add(offset);
            let mut places = vec![begin, begin + LINE, end / 8 * 8 - 8];
            if copy::ANY_ALIGNMENT {
                // Also across lines, and the last bytes.
                places.extend([begin + 9, begin + 2 * LINE - 3, end - 8]);
            } else {
                assert!(!put(to, at(begin + 1), 1));
            }
            for offset in &places {
                assert!(put(to, at(*offset), 0x0807_0605_0403_0201), "offset {offset}");
                let here = offset - begin;
                let mut bytes = [0; 8];
                array.get_slice(to, here, &mut bytes)?;
                assert_eq!(u64::from_ne_bytes(bytes), 0x0807_0605_0403_0201, "offset {offset}");
                array.put_slice(to, here, &[0; 8])?;
            }
            for offset in [end - 7, end, end / 8 * 8 + 8, 1 << 40, usize::MAX, usize::MAX - 7] {
                assert!(!put(to, at(offset), 1), "offset {offset}");
            }
            assert!(!put(3, heap(2) + begin, 1) && !put(usize::MAX, heap(0) + begin, 1));
            world.barrier()?;
            let larger = world.alloc::<u64>(100_000)?;
            let last = larger.offset() - engine.layout.heap + 8 * 99_999;
            let next = (world.rank() + 1) % 3;
            let value = 7 * world.rank() as u64 + 1;
            // SAFETY: the last element of the array at another rank.
            unsafe { world.put_address(next, heap(next) + last, &value.to_ne_bytes(), RawBells::default()) }?;
            world.barrier()?;
            assert_eq!(larger.load(99_999), 7 * ((world.rank() + 2) % 3) as u64 + 1);
            // Memory outside the heap is reached in another way: by the same address.
            let (outside, others) = (Box::new(AtomicU64::new(0)), world.alloc::<u64>(3)?);
            others.put(next, world.rank(), outside.as_ptr().addr() as u64)?;
            world.barrier()?;
            let before = (world.rank() + 2) % 3;
            let target = others.load(before) as usize;
            // SAFETY: a word of the rank before, which lives until the barrier below; this rank alone writes it.
            unsafe { world.put_address(before, target, &value.to_ne_bytes(), RawBells::default()) }?;
            world.wait_until(|| outside.load(Ordering::Acquire) == 7 * next as u64 + 1)?;
            world.barrier()
        });
        outcome.expect("runs").into_iter().for_each(|rank| rank.expect("works"));
    }
}
