//! The mapped heaps by their owners' addresses: the short way of a put of one word to an address.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;

use crate::engine::Engine;

const WORD: usize = size_of::<AtomicU64>();

/// The symmetric heaps that this rank reaches by a store. Nothing in it changes in place: only so the compiler keeps what a loop
/// of puts reads here in registers.
pub(super) struct Heaps {
    /// The first of the ranks, which follow one another.
    first: usize,
    /// Where the heap of each begins in that rank's own address space: a multiple of a cache line.
    starts: Box<[usize]>,
    /// Where the heap of the first rank begins here, and how far the next one's is.
    here: *mut u8,
    stride: usize,
    /// Whole words at the start of the heap that are backed by memory at every rank.
    words: Box<Cell<usize>>,
}

impl Heaps {
    /// Those of the ranks that have arrived: before that, none. Nothing is backed yet.
    pub(super) fn new(engine: &Engine) -> Heaps {
        let (ranks, heap) = (engine.routes.stores(), engine.layout.heap);
        // SAFETY: the heap begins inside the slot.
        let here = unsafe { engine.node.slot(ranks.start).add(heap) };
        Heaps {
            first: ranks.start,
            starts: ranks.map(|rank| engine.job.base(rank) + (rank << engine.node.stride_log2()) + heap).collect(),
            here,
            stride: 1 << engine.node.stride_log2(),
            words: Box::default(),
        }
    }

    /// The first `bytes` of every rank's heap are backed by memory, from now on.
    pub(super) fn backed(&self, bytes: usize) {
        self.words.set(self.words.get().max(bytes / WORD));
    }

    /// Where the word at address `to` of `rank` lies here, if it is an aligned word of that rank's own heap.
    #[inline(always)]
    pub(super) fn word(&self, rank: usize, to: usize) -> Option<&AtomicU64> {
        let place = rank.wrapping_sub(self.first);
        let start = *self.starts.get(place)?;
        // The number of the word. Of an address that is not aligned it is too large, as it is of one below the heap: the low bits
        // become the highest.
        let number = to.wrapping_sub(start).rotate_right(WORD.trailing_zeros());
        if number >= self.words.get() {
            return None;
        }
        // SAFETY: `number` is a word of the heap of an existing rank, backed by memory at every rank; slots lie a stride apart, so
        // that word is mapped here, aligned as heaps are, as long as the world is. Other accesses by ranks are atomic or copies
        // that the compiler cannot see into.
        Some(unsafe { AtomicU64::from_ptr(self.here.add(place * self.stride).cast::<u64>().add(number)) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use crate::RawBells;
    use crate::memory::layout::LINE;

    #[test]
    fn only_aligned_words_of_backed_heap_are_reached() {
        let outcome = crate::Threads::new(3).deadline(Duration::from_secs(20)).run(|world| {
            let engine = world.engine();
            let heap = |rank: usize| engine.job.base(rank) + (rank << engine.node.stride_log2()) + engine.layout.heap;
            assert!(world.heaps.word(1, heap(1)).is_none(), "no memory is backed before the first allocation");
            // Of a size that ends inside a word.
            let array = world.alloc::<u8>(1003)?;
            let end = array.offset() - engine.layout.heap + 1003;
            for rank in 0..3 {
                let word = |offset: usize| world.heaps.word(rank, heap(rank).wrapping_add(offset));
                let here = |offset: usize| engine.node.slot(rank).wrapping_add(engine.layout.heap + offset);
                for offset in [0, LINE, end / 8 * 8 - 8] {
                    assert_eq!(word(offset).map(|word| word.as_ptr().cast()), Some(here(offset)), "rank {rank}");
                }
                for offset in [1, 4, 7, end / 8 * 8, end / 8 * 8 + 8, 1 << 40, usize::MAX, usize::MAX - 7] {
                    assert!(word(offset).is_none(), "offset {offset} of rank {rank}");
                }
            }
            assert!(world.heaps.word(3, heap(2)).is_none() && world.heaps.word(usize::MAX, heap(0)).is_none());
            world.barrier()?;
            let larger = world.alloc::<u64>(100_000)?;
            let last = larger.offset() - engine.layout.heap + 8 * 99_999;
            let next = (world.rank() + 1) % 3;
            let value = 7 * world.rank() as u64 + 1;
            // SAFETY: the last element of the array at another rank.
            unsafe { world.put_address(next, heap(next) + last, &value.to_ne_bytes(), RawBells::default()) }?;
            world.barrier()?;
            assert_eq!(larger.load(99_999), 7 * ((world.rank() + 2) % 3) as u64 + 1);
            let found = world.heaps.word(world.rank(), heap(world.rank()) + last).expect("backed by now");
            assert_eq!(found.load(Ordering::Acquire), larger.load(99_999));
            world.barrier()
        });
        outcome.expect("runs").into_iter().for_each(|rank| rank.expect("works"));
    }
}
