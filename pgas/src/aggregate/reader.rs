//! Gathering where ranks map each other's memory: nobody but the reader has to do anything.
//!
//! Random loads from a large table wait for the TLB more than for the cache. So a window of indices is sorted by the stretch
//! of the table they lie in, each with its number in the window, and read stretch by stretch; values go straight to where
//! they are wanted, in a window that the second-level cache holds.

use bellwether_runtime::memory::copy;
use bellwether_runtime::{Pod, Symmetric};

use super::buckets::{BUCKETS_MAX, Buckets, Under};
use super::chains::Chunks;
use super::places::Places;

/// Indices of one window, sorted. An entry is the offset, and above it the number in the window.
pub(super) struct Reader<T> {
    offsets: Vec<u32>,
    found: Vec<T>,
    next: Vec<u32>,
    cursors: Vec<u32>,
    chunks: Chunks,
}

impl<T: Pod> Reader<T> {
    /// A window in about `budget` bytes.
    pub(super) fn new(budget: usize, ranks: usize) -> Reader<T> {
        let chunks = Chunks::new(budget, size_of::<u32>() + size_of::<T>(), ranks);
        let cursors = (chunks.count - 1).min(BUCKETS_MAX.max(ranks));
        Reader {
            offsets: vec![0; chunks.entries()],
            found: vec![T::zeroed(); chunks.entries()],
            next: vec![0; chunks.count],
            cursors: Vec::with_capacity(cursors),
            chunks,
        }
    }

    pub(super) fn memory(&self) -> usize {
        size_of_val(&self.offsets[..])
            + size_of_val(&self.found[..])
            + size_of_val(&self.next[..])
            + self.cursors.capacity() * size_of::<u32>()
    }

    /// Most buckets, unless there are more ranks.
    pub(super) fn buckets(&self) -> usize {
        self.cursors.capacity().min(self.chunks.count / 4)
    }

    /// Reads as many elements as a window holds, from the first. Tells how many it were, or the index that is nowhere.
    pub(super) fn read<P: Places, B: Buckets>(
        &mut self,
        table: &Symmetric<T>,
        places: &P,
        buckets: &B,
        indices: &[usize],
        values: &mut [T],
    ) -> Result<usize, usize> {
        let (chunks, mut used) = (self.chunks, buckets.count());
        let (offsets, found, next) = (&mut self.offsets[..], &mut self.found[..], &mut self.next[..]);
        chunks.restart(&mut self.cursors, used);
        let more = |full: usize| {
            let fresh = used;
            if fresh == chunks.count {
                return None;
            }
            used += 1;
            next[full] = fresh as u32;
            Some(fresh)
        };
        let taken = chunks.sweep(buckets, &mut self.cursors, indices, more, |_, entry, offset| {
            // SAFETY: chunks have no entries but these.
            unsafe { *offsets.get_unchecked_mut(entry) = offset };
        })?;
        for (bucket, end) in self.cursors.iter().enumerate() {
            let next = |chunk: usize| next[chunk] as usize;
            match buckets.under(bucket) {
                Under::Stretch { rank, start } => {
                    let part = table.ptr(rank).expect("readers are for ranks that are mapped");
                    // SAFETY: the start of a stretch of that rank's part.
                    let stretch = unsafe { part.add(start) };
                    chunks.walk(bucket, *end as usize, next, |first, count| {
                        for (offset, found) in
                            offsets[first..first + count].iter().zip(&mut found[first..first + count])
                        {
                            // SAFETY: the offset is inside the stretch: so it was made above.
                            *found = unsafe { copy::load(stretch.add(*offset as usize)) };
                        }
                    });
                }
                Under::Several { first: base } => {
                    let mut nowhere = None;
                    chunks.walk(bucket, *end as usize, next, |first, count| {
                        for (offset, found) in
                            offsets[first..first + count].iter().zip(&mut found[first..first + count])
                        {
                            let index = base + *offset as usize;
                            let (rank, local) = places.place(index);
                            match table.get(rank, local) {
                                Ok(value) => *found = value,
                                Err(_) => nowhere = Some(index),
                            }
                        }
                    });
                    if let Some(index) = nowhere {
                        return Err(index);
                    }
                }
            }
        }
        chunks.restart(&mut self.cursors, buckets.count());
        let (indices, values) = (&indices[..taken], &mut values[..taken]);
        let (found, next) = (&self.found[..], &self.next[..]);
        let more = |full: usize| Some(next[full] as usize);
        chunks.sweep(buckets, &mut self.cursors, indices, more, |number, entry, _| values[number] = found[entry])
    }
}
