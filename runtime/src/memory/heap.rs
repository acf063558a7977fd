//! The symmetric heap's book-keeping: which offsets are taken. Kept by one rank for all, so that every rank gets
//! the same answer.

use std::collections::BTreeMap;

/// First-fit allocator over offsets, with neighbours joined on free.
#[derive(Debug)]
pub struct Heap {
    free: BTreeMap<usize, usize>,
    taken: BTreeMap<usize, usize>,
    limit: usize,
}

impl Heap {
    /// A heap of `limit` bytes, all free.
    pub fn new(limit: usize) -> Heap {
        Heap { free: BTreeMap::from([(0, limit)]), taken: BTreeMap::new(), limit }
    }

    /// Takes `bytes` at the lowest offset that holds them; all blocks are multiples of `align`.
    /// `None` if no free range is large enough.
    pub fn take(&mut self, bytes: usize, align: usize) -> Option<usize> {
        self.take_before(bytes, align, 0, align)
    }

    /// As [`Heap::take`], of blocks that are multiples of `unit`, such that the byte `head` behind the offset is a multiple
    /// of `align`. Both are multiples of `unit`.
    pub fn take_before(&mut self, bytes: usize, unit: usize, head: usize, align: usize) -> Option<usize> {
        let bytes = bytes.max(1).checked_next_multiple_of(unit)?;
        let skipped = |offset: usize| (offset + head).next_multiple_of(align) - head - offset;
        let fits = |(offset, len): &(&usize, &usize)| **len >= bytes && **len - bytes >= skipped(**offset);
        let (&before, &len) = self.free.iter().find(fits)?;
        let (skip, offset) = (skipped(before), before + skipped(before));
        self.free.remove(&before);
        if skip > 0 {
            self.free.insert(before, skip);
        }
        if len > skip + bytes {
            self.free.insert(offset + bytes, len - skip - bytes);
        }
        self.taken.insert(offset, bytes);
        Some(offset)
    }

    /// Gives back the block at `offset`. A block that is not taken is left alone.
    pub fn give_back(&mut self, offset: usize) {
        let Some(mut len) = self.taken.remove(&offset) else { return };
        let mut start = offset;
        if let Some((&before, &before_len)) = self.free.range(..offset).next_back()
            && before + before_len == offset
        {
            start = before;
            len += before_len;
        }
        if let Some(after_len) = self.free.remove(&(start + len)) {
            len += after_len;
        }
        self.free.insert(start, len);
    }

    /// The free ranges: start and length of each.
    pub fn free(&self) -> impl Iterator<Item = (usize, usize)> {
        self.free.iter().map(|(start, len)| (*start, *len))
    }

    /// Offsets of the blocks that are taken.
    pub fn taken(&self) -> impl Iterator<Item = usize> {
        self.taken.keys().copied()
    }

    /// Bytes of the largest free range.
    pub fn largest_free(&self) -> usize {
        self.free.values().copied().max().unwrap_or(0)
    }

    /// Bytes there are in all.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_neighbours_become_one_range_again() {
        let mut heap = Heap::new(1024);
        let blocks: Vec<_> = (0..4).map(|_| heap.take(200, 64).expect("fits")).collect();
        assert_eq!(blocks, [0, 256, 512, 768]);
        assert_eq!(heap.take(1, 64), None);
        for offset in [256, 768, 0, 512] {
            heap.give_back(offset);
        }
        assert_eq!(heap.largest_free(), 1024);
        heap.give_back(512);
        assert_eq!(heap.take(1024, 64), Some(0));
    }

    #[test]
    fn a_hole_is_used_before_the_end() {
        let mut heap = Heap::new(4096);
        let a = heap.take(64, 64).expect("fits");
        let _b = heap.take(64, 64).expect("fits");
        heap.give_back(a);
        assert_eq!(heap.take(65, 64), Some(128));
        assert_eq!(heap.take(64, 64), Some(a));
    }

    #[test]
    fn what_is_skipped_for_alignment_stays_free() {
        let mut heap = Heap::new(4096);
        assert_eq!(heap.take_before(64 + 1024, 64, 64, 1024), Some(1024 - 64));
        assert_eq!(heap.take_before(64 + 1024, 64, 64, 1024), Some(3072 - 64));
        assert_eq!(heap.take_before(64 + 1, 64, 64, 1024), None);
        assert_eq!(heap.take(1024 - 64, 64), Some(0));
        assert_eq!(heap.take(1024 - 64, 64), Some(2048));
        [0, 1024 - 64, 2048, 3072 - 64].into_iter().for_each(|offset| heap.give_back(offset));
        assert_eq!(heap.largest_free(), 4096);
    }
}
