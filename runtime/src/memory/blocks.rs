//! The blocks of the symmetric heap that this rank holds. By them a live global pointer is told from an old one.

use std::cell::{RefCell, UnsafeCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A block as this rank knows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// Which use of this place in the table it is; 0 while no pointer reaches it.
    pub generation: u64,
    /// Offset of its first byte in every slot.
    pub offset: usize,
    /// Its length.
    pub bytes: usize,
}

/// The blocks that a rank holds, by number. The numbers are the same on all ranks, and are used again.
///
/// In private memory, not in the blocks' headers: a pointer may be any bits, and must not find a header that a program
/// wrote.
#[derive(Debug, Default)]
pub struct Blocks {
    /// No method returns a reference to the content.
    rows: UnsafeCell<Vec<Row>>,
    changes: Arc<Changes>,
    /// Words at rank 0 that count the ranks that dropped a block, of blocks that were dropped here.
    released: RefCell<Vec<usize>>,
}

/// How often each block was shown or hidden: another number, another phase or another block. For all threads of the rank; its own
/// thread changes it.
#[derive(Debug, Default)]
pub struct Changes {
    /// Counts of one block, of the next two, of the next four and so on: a count stays where it is.
    parts: [OnceLock<Box<[AtomicU64]>>; 32],
    /// Held while a count changes, and while another thread relies on one.
    held: Mutex<()>,
}

impl Changes {
    /// The part that has the count of `block`, and its place there.
    fn place(block: usize) -> (usize, usize) {
        let number = block.saturating_add(1);
        let part = number.ilog2() as usize;
        (part, number - (1 << part))
    }

    /// The count of this block; 0 if it was never shown.
    fn of(&self, block: usize) -> u64 {
        let (part, at) = Changes::place(block);
        // Relaxed: the own thread wrote it, or the caller holds the lock.
        self.parts.get(part).and_then(OnceLock::get).map_or(0, |counts| counts[at].load(Ordering::Relaxed))
    }

    /// Runs `act` if the block was changed so often and not since. It does not change before `act` has returned.
    pub fn while_at<R>(&self, block: usize, changes: u64, act: impl FnOnce() -> R) -> Option<R> {
        let _held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        (self.of(block) == changes).then(act)
    }

    fn add(&self, block: usize) {
        let (part, at) = Changes::place(block);
        let counts = self.parts[part].get_or_init(|| (0..1 << part).map(|_| AtomicU64::new(0)).collect());
        let _held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        counts[at].fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Row {
    entry: Entry,
    /// How often a block of this number was shown.
    shown: u32,
}

impl Blocks {
    /// The block of this number; a default one if there is none.
    #[inline(always)]
    pub fn get(&self, block: usize) -> Entry {
        // SAFETY: one thread has the table, and no reference to its inside lives outside of this function and `change`.
        unsafe { &*self.rows.get() }.get(block).map_or_else(Entry::default, |row| row.entry)
    }

    /// How often a block of this number was shown or hidden. Never less than before.
    pub fn changes(&self, block: usize) -> u64 {
        self.changes.of(block)
    }

    /// The counts of [`Blocks::changes`], for other threads of the rank.
    pub fn counts(&self) -> Arc<Changes> {
        Arc::clone(&self.changes)
    }

    /// Assigns a block to this number: `bytes` at `offset`, given out as number `allocation` of the allocations. Each
    /// call begins a new generation, which all ranks count alike.
    pub fn show(&self, block: usize, allocation: u64, offset: usize, bytes: usize) {
        self.change(block, |row| {
            row.shown = row.shown.wrapping_add(1);
            row.entry = Entry { generation: allocation << 32 | u64::from(row.shown), offset, bytes };
        });
    }

    /// Lets no pointer reach this number.
    pub fn hide(&self, block: usize) {
        self.change(block, |row| row.entry = Entry::default());
    }

    /// Queues the release of a block: a drop neither blocks nor fails, and a ring over a network may do both. `offset` is the word in rank 0's
    /// slot that counts the ranks that dropped the block.
    pub fn release(&self, offset: usize) {
        self.released.borrow_mut().push(offset);
    }

    /// The words of the blocks that were released since the last call.
    pub fn take_released(&self) -> Vec<usize> {
        self.released.take()
    }

    fn change(&self, block: usize, change: impl FnOnce(&mut Row)) {
        // SAFETY: as in `get`.
        let rows = unsafe { &mut *self.rows.get() };
        if rows.len() <= block {
            rows.resize(block + 1, Row::default());
        }
        change(&mut rows[block]);
        self.changes.add(block);
    }
}

/// Gives out numbers of blocks, the lowest free one first. Kept by one rank for all.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Where the block of each number begins.
    starts: Vec<Option<usize>>,
    given: u64,
}

impl Numbers {
    /// A number for the block at `start`, and how many were given before it or with it.
    pub fn give(&mut self, start: usize) -> (usize, u64) {
        self.given += 1;
        let number = self.starts.iter().position(Option::is_none).unwrap_or(self.starts.len());
        if number == self.starts.len() {
            self.starts.push(None);
        }
        self.starts[number] = Some(start);
        (number, self.given)
    }

    /// Takes back the number of the block at `start`.
    pub fn take_back(&mut self, start: usize) {
        self.starts.iter_mut().filter(|place| **place == Some(start)).for_each(|place| *place = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_generations_are_not() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.give(0), (0, 1));
        assert_eq!(numbers.give(64), (1, 2));
        numbers.take_back(0);
        assert_eq!(numbers.give(128), (0, 3));
        assert_eq!(numbers.give(256), (2, 4));
    }

    #[test]
    fn an_unknown_block_is_an_empty_one() {
        let blocks = Blocks::default();
        assert_eq!(blocks.get(usize::MAX), Entry::default());
        blocks.show(3, 7, 64, 8);
        let entry = Entry { generation: 7 << 32 | 1, offset: 64, bytes: 8 };
        assert_eq!((blocks.get(3), blocks.get(2), blocks.get(4)), (entry, Entry::default(), Entry::default()));
        blocks.hide(3);
        assert_eq!(blocks.get(3), Entry::default());
        blocks.show(3, 7, 64, 8);
        assert_eq!(blocks.get(3).generation, 7 << 32 | 2);
        assert_eq!((blocks.changes(3), blocks.changes(2), blocks.changes(4)), (3, 0, 0));
        for block in 100..1100 {
            blocks.show(block, 1, 0, 8);
            (0..block % 3).for_each(|_| blocks.hide(block));
        }
        assert!((100..1100).all(|block| blocks.changes(block) == 1 + block as u64 % 3));
        assert_eq!((blocks.changes(3), blocks.changes(99), blocks.changes(usize::MAX)), (3, 0, 0));
        assert_eq!(blocks.counts().while_at(1099, 2, || 5), Some(5));
        assert_eq!(blocks.counts().while_at(1099, 1, || 5), None);
    }
}
