//! The table of a rank's segments: memory of its own, outside the symmetric heap, that peers may reach.
//!
//! The table lies in the owner's slot, and only the owner writes it. Peers read it one-sided, mapped or by gets, so a
//! look-up needs no progress at the owner:
//!
//! ```text
//! head:      | changes, top | static data | version of each block of 64 entries |
//! words:     | one word for each rank, which that rank writes |
//! bytes:     | one byte for each rank: 1 once a context of it may hold a copy |
//! entries:   | generation, start, len, key, check |  one a segment, backed as far as they are used
//! ```
//!
//! `changes` counts every registration and every close. An entry's generation is the count at its registration; 0 means
//! that there is no segment with that number. Neither an RDMA read nor a copy of mapped memory is atomic, so an entry ends
//! with a check sum over the whole entry; a reader over a network that finds another sum reads again. Ranks that have the table mapped
//! compare generations instead ([`Table::find`]).
//!
//! The word of rank B in the slot of rank A says two things that B tells A: that B may hold a copy of entries of A
//! ([`HOLDS`]), and the count of B's changes, which lets A know without a round trip that its copy of B's table is
//! complete. How a segment is closed while peers hold copies of its entry: `engine/segments.rs`.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::layout::{LINE, SEGMENT_BLOCK, SEGMENT_BLOCKS, SEGMENT_LEN, SlotLayout};
use super::node::NodeMemory;
use crate::error::Result;

/// Bytes of the keys in an entry, one for each network.
pub const KEY_ROOM: usize = 96;
/// The bit of a word by which a rank says that it holds entries of the slot's owner.
pub const HOLDS: u64 = 1 << 63;
/// Words of an entry.
const WORDS: usize = SEGMENT_LEN / size_of::<u64>();

/// An entry of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Entry {
    /// The count of changes when the segment was registered; 0: there is none.
    pub generation: u64,
    /// Its first address, in its owner.
    pub start: u64,
    /// Its bytes.
    pub len: u64,
    /// The keys by which each network reaches the segment, one after the other; zeros where there is no network.
    pub key: [u8; KEY_ROOM],
    check: u64,
}

const _: () = assert!(size_of::<Entry>() == SEGMENT_LEN);

impl Entry {
    /// An entry whose check sum fits.
    pub fn new(generation: u64, start: usize, len: usize, key: [u8; KEY_ROOM]) -> Entry {
        let entry = Entry { generation, start: start as u64, len: len as u64, key, check: 0 };
        Entry { check: entry.sum(), ..entry }
    }

    /// Whether it was read in one piece. An entry that was never written is whole, and has no segment.
    pub fn is_whole(&self) -> bool {
        self.check == self.sum()
    }

    /// The end of its segment, if it has one and the owner can have meant it.
    pub fn end(&self) -> Option<usize> {
        (self.generation != 0 && self.len != 0)
            .then(|| self.start.checked_add(self.len))
            .flatten()
            .filter(|end| *end < 1 << 63)
            .map(|end| end as usize)
    }

    /// A check sum over its words that depends on their order; 0 for zeros.
    fn sum(&self) -> u64 {
        let words: &[u64; WORDS] = bytemuck::cast_ref(self);
        let add = |sum: u64, word: &u64| (sum ^ *word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        words[..WORDS - 1].iter().fold(0, add)
    }
}

/// The table in a rank's slot.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    node: &'a NodeMemory,
    layout: &'a SlotLayout,
    rank: usize,
}

/// The entry of a segment, as the table has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The count of changes when it was registered.
    pub generation: u64,
    /// Its first address, in its owner.
    pub start: usize,
    /// Its bytes.
    pub len: usize,
}

impl<'a> Table<'a> {
    /// The table of `rank`, whose slot is mapped here, and committed up to the end of the control area.
    #[inline]
    pub fn new(node: &'a NodeMemory, layout: &'a SlotLayout, rank: usize) -> Table<'a> {
        Table { node, layout, rank }
    }

    #[inline]
    fn at(&self, offset: usize) -> &'a AtomicU64 {
        // SAFETY: callers pass offsets of aligned words of the control area, or of entries that are backed. These words are
        // only touched as atomics here, and by the network.
        unsafe { AtomicU64::from_ptr(self.node.slot(self.rank).add(offset).cast()) }
    }

    /// The word of `writer`.
    pub fn word(&self, writer: usize) -> &'a AtomicU64 {
        self.at(word_offset(self.layout, writer))
    }

    /// Whether a context of `rank` may hold a copy of entries.
    pub fn is_held_by_context(&self, rank: usize) -> bool {
        // SAFETY: a byte of the control area, which every slot has; only touched as an atomic here, and by the network.
        let byte = unsafe { AtomicU8::from_ptr(self.node.slot(self.rank).add(context_offset(self.layout, rank))) };
        byte.load(Ordering::Acquire) != 0
    }

    /// Says where this rank's symmetric static data is, in its own addresses. Before it arrives.
    pub fn show_statics(&self, start: usize, len: usize) {
        self.at(self.layout.segments + LINE).store(start as u64, Ordering::Relaxed);
        self.at(self.layout.segments + LINE + 8).store(len as u64, Ordering::Relaxed);
    }

    /// Start and length of the symmetric static data; length 0 if there is none. Known once the rank has arrived.
    #[inline]
    pub fn statics(&self) -> (usize, usize) {
        let word = |offset| self.at(self.layout.segments + offset).load(Ordering::Relaxed) as usize;
        (word(LINE), word(LINE + 8))
    }

    /// No segment has this number or a higher one.
    pub fn top(&self) -> usize {
        // Acquire pairs with the Release store in `write`.
        self.at(self.layout.segments + 8).load(Ordering::Acquire) as usize
    }

    /// The generation of entry `number`, which is backed: that of a segment that was [found](Table::find) as long as it is open.
    #[inline]
    pub fn generation(&self, number: usize) -> &'a AtomicU64 {
        self.at(entry_offset(self.layout, number))
    }

    /// Segment `number`, if there is one. Generations tell whether all words that were read belong to one segment: the owner writes 0
    /// before it changes an entry, and never the same generation twice.
    #[inline]
    pub fn find(&self, number: usize) -> Option<Found> {
        // Acquire pairs with the Release store in `write`: the entry is backed.
        let top = self.at(self.layout.segments + 8).load(Ordering::Acquire);
        if number as u64 >= top || number >= SEGMENT_BLOCKS * SEGMENT_BLOCK {
            return None;
        }
        let from = entry_offset(self.layout, number);
        loop {
            // Acquire pairs with the Release store in `write`: start and length are at least as new.
            let generation = self.at(from).load(Ordering::Acquire);
            if generation == 0 {
                return None;
            }
            // Acquire: the generation is read again after these. If one of these loads finds a later write, the second read of the
            // generation finds the 0 that was written before that write, or a newer value.
            let start = self.at(from + 8).load(Ordering::Acquire) as usize;
            let len = self.at(from + 16).load(Ordering::Acquire) as usize;
            if self.at(from).load(Ordering::Relaxed) == generation {
                return Some(Found { generation, start, len });
            }
        }
    }

    /// Writes entry `number` of this rank's own table, which has changed for the `changes`th time.
    pub fn write(&self, number: usize, entry: &Entry, changes: u64) {
        let to = entry_offset(self.layout, number);
        let words: &[u64; WORDS] = bytemuck::cast_ref(entry);
        self.at(to).store(0, Ordering::Relaxed);
        // Release, each of them: pairs with the Acquire loads in `find`.
        words.iter().enumerate().rev().for_each(|(i, word)| self.at(to + 8 * i).store(*word, Ordering::Release));
        let top = self.at(self.layout.segments + 8);
        let reaches = top.load(Ordering::Relaxed).max(number as u64 + 1);
        // Release, in this order: a rank that reads the new count finds the new version, and one that reads the new version finds the entry.
        self.at(block_offset(self.layout, number / SEGMENT_BLOCK)).store(changes, Ordering::Release);
        top.store(reaches, Ordering::Release);
        self.at(self.layout.segments).store(changes, Ordering::Release);
    }

    /// Backs the entry `number` with memory. Returns the bytes of the slot that were backed, if any.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub fn back(&self, number: usize, backed: &mut usize) -> Result<Option<(usize, usize)>> {
        let end = (number + 1) * SEGMENT_LEN;
        if end <= *backed {
            return Ok(None);
        }
        // Twice as much each time: each part is registered by itself, and there is room for few.
        let most = self.layout.statics - self.layout.table;
        let to = end.max(2 * *backed).next_multiple_of(self.node.granule(0)).min(most);
        let (from, to) = (self.layout.table + *backed, self.layout.table + to);
        self.node.commit(self.rank, from, to, 1, "memory for the table of segments", "the number of segments")?;
        *backed = to - self.layout.table;
        Ok(Some((from, to)))
    }
}

/// Offset of the word of `writer` in every slot.
pub fn word_offset(layout: &SlotLayout, writer: usize) -> usize {
    layout.segments + super::layout::SEGMENTS_HEAD + writer * size_of::<u64>()
}

/// Offset of the byte of the contexts of `writer` in every slot.
pub fn context_offset(layout: &SlotLayout, writer: usize) -> usize {
    layout.context_holds + writer
}

/// Offset of an entry in every slot.
pub fn entry_offset(layout: &SlotLayout, number: usize) -> usize {
    assert!(number < SEGMENT_BLOCKS * SEGMENT_BLOCK);
    layout.table + number * SEGMENT_LEN
}

/// Offset of a block's version in every slot.
pub fn block_offset(layout: &SlotLayout, block: usize) -> usize {
    assert!(block < SEGMENT_BLOCKS);
    layout.segments + 2 * LINE + block * size_of::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_was_read_in_two_halves_is_not_whole() {
        let entry = Entry::new(7, 0x1000, 64, [3; KEY_ROOM]);
        let other = Entry::new(8, 0x2000, 64, [4; KEY_ROOM]);
        assert!(entry.is_whole() && other.is_whole());
        assert!(
            <Entry as bytemuck::Zeroable>::zeroed() == Entry::new(0, 0, 0, [0; KEY_ROOM]),
            "an empty table is whole"
        );
        let bytes = |entry: &Entry| bytemuck::bytes_of(entry).to_vec();
        for cut in (8..SEGMENT_LEN).step_by(8) {
            let torn = [&bytes(&entry)[..cut], &bytes(&other)[cut..]].concat();
            assert!(!bytemuck::pod_read_unaligned::<Entry>(&torn).is_whole(), "cut at {cut}");
        }
        assert_eq!((entry.end(), Entry::new(0, 1, 2, [0; KEY_ROOM]).end()), (Some(0x1040), None));
        assert_eq!(Entry::new(1, usize::MAX, 2, [0; KEY_ROOM]).end(), None);
    }
}
