//! Items sorted into buckets, in memory that other ranks map: an offset in the bucket's stretch, in 2 bytes where they suffice
//! and 4 elsewhere, and a value.

use bellwether_runtime::{Error, Pod, Result, Symmetric, World};

use super::buckets::{BUCKETS_MAX, Buckets};
use super::chains::Chunks;
use super::prefetch::{prefetch, prefetch_near};

/// How an offset is stored in a pool. The time of sorting and applying depends on the bytes that go through memory.
pub(super) trait Offset: Copy {
    /// The offset, if it fits.
    fn of(offset: u32) -> Self;
    fn get(self) -> usize;
}

impl Offset for u16 {
    #[inline(always)]
    fn of(offset: u32) -> u16 {
        offset as u16
    }

    #[inline(always)]
    fn get(self) -> usize {
        usize::from(self)
    }
}

impl Offset for u32 {
    #[inline(always)]
    fn of(offset: u32) -> u32 {
        offset
    }

    #[inline(always)]
    fn get(self) -> usize {
        self as usize
    }
}

/// Whether 2 bytes suffice for all offsets in these buckets.
pub(super) fn is_short<B: Buckets>(buckets: &B) -> bool {
    buckets.stretch() <= 1 << u16::BITS
}

/// One rank's items, and its view of the others'.
pub(super) struct Pool<T> {
    /// Room for the longer kind.
    offsets: Symmetric<u32>,
    values: Symmetric<T>,
    /// The chunk after each chunk.
    next: Symmetric<u32>,
    /// Where each bucket ends: number of its last entry plus one.
    ends: Symmetric<u32>,
    rank: usize,
    /// As the memory was parted at first, and as it is for the buckets of the last fill.
    parted: Chunks,
    chunks: Chunks,
    /// The ends as this rank works on them.
    cursors: Vec<u32>,
}

impl<T: Pod> Pool<T> {
    /// Items in about `budget` bytes at each rank. Collective.
    pub(super) fn new(world: &World, budget: usize) -> Result<Pool<T>> {
        let ranks = world.size();
        let chunks = Chunks::new(budget, size_of::<u32>() + size_of::<T>(), ranks);
        let ends = (chunks.count - 1).min(BUCKETS_MAX.max(ranks));
        let make = || -> Result<Pool<T>> {
            Ok(Pool {
                offsets: world.alloc_withheld(chunks.entries() + ENTRIES_AHEAD)?,
                values: world.alloc_withheld(chunks.entries())?,
                next: world.alloc_withheld(chunks.count)?,
                ends: world.alloc_withheld(ends)?,
                rank: world.rank(),
                parted: chunks,
                chunks,
                cursors: Vec::with_capacity(ends),
            })
        };
        make().map_err(|mut error| {
            // The size is the one that the setting or the options ask for, not the program's data.
            if let Error::OutOfMemory { setting, .. } = &mut error {
                *setting = "BELLWETHER_HEAP_LIMIT, or lower BELLWETHER_AGGREGATION_MEMORY or the memory of the aggregate::Options";
            }
            error
        })
    }

    /// Bytes at each rank.
    pub(super) fn memory(&self) -> usize {
        let words = self.offsets.len() + self.next.len() + 2 * self.ends.len();
        words * size_of::<u32>() + self.values.len() * size_of::<T>()
    }

    /// Most buckets, unless there are more ranks.
    pub(super) fn buckets(&self) -> usize {
        self.ends.len().min(self.parted.count / 4)
    }

    /// The pool of `rank`, which is mapped, with offsets of the kind that it was filled with.
    pub(super) fn of<O>(&self, rank: usize) -> View<O, T> {
        let mapped = "pools are made where all ranks are mapped";
        View {
            offsets: self.offsets.ptr(rank).expect(mapped).cast(),
            values: self.values.ptr(rank).expect(mapped),
            next: self.next.ptr(rank).expect(mapped),
            ends: self.ends.ptr(rank).expect(mapped),
            chunks: self.chunks,
        }
    }

    /// Sorts as many of the items as there is room for, from the first; without values only the indices. Returns how many
    /// items it took, or the number of the index that has no bucket.
    ///
    /// # Safety
    /// No other rank reads this rank's pool during the call.
    pub(super) unsafe fn fill<B: Buckets, const VALUES: bool>(
        &mut self,
        buckets: &B,
        indices: &[usize],
        values: &[T],
    ) -> Result<usize, usize> {
        // SAFETY: the caller guarantees it.
        unsafe {
            if is_short(buckets) {
                self.fill_with::<u16, B, VALUES>(buckets, indices, values)
            } else {
                self.fill_with::<u32, B, VALUES>(buckets, indices, values)
            }
        }
    }

    /// # Safety
    /// As [`Pool::fill`], with offsets that fit.
    unsafe fn fill_with<O: Offset, B: Buckets, const VALUES: bool>(
        &mut self,
        buckets: &B,
        indices: &[usize],
        values: &[T],
    ) -> Result<usize, usize> {
        assert!(buckets.count() <= self.ends.len() && (!VALUES || values.len() >= indices.len()));
        let own = self.of::<O>(self.rank);
        // Apart from the rest, which stays in registers.
        let next = own.next;
        self.chunks = self.parted.joined(buckets.count());
        let (chunks, mut used) = (self.chunks, buckets.count());
        chunks.restart(&mut self.cursors, used);
        let more = |full| {
            let fresh = used;
            if fresh == chunks.count {
                return None;
            }
            used += 1;
            // SAFETY: both are chunks of this pool.
            unsafe { next.add(full).write(fresh as u32) };
            Some(fresh)
        };
        let taken = chunks.sweep(buckets, &mut self.cursors, indices, more, |number, entry, offset| {
            // There are more chains than the hardware follows, though few enough for the first-level cache.
            prefetch(own.offsets.wrapping_add(entry + LINE / size_of::<O>()));
            if VALUES {
                prefetch(own.values.wrapping_add(entry + AHEAD / size_of::<T>()));
            }
            // SAFETY: an entry of this pool, and the caller guarantees that this thread holds it; as many values as indices.
            unsafe {
                own.offsets.add(entry).write(O::of(offset));
                if VALUES {
                    own.values.add(entry).write(*values.get_unchecked(number));
                }
            }
        });
        // SAFETY: there are as many ends as buckets at least.
        unsafe { own.ends.copy_from_nonoverlapping(self.cursors.as_ptr(), self.cursors.len()) };
        taken
    }

    /// Reads the values of the entries that [`Pool::fill`] made of these indices, in the order of the indices: each bucket
    /// is read from front to end, so no entry needs to remember whose it is.
    ///
    /// # Safety
    /// As [`Pool::fill`], which was called with these indices and as many of them as it took.
    pub(super) unsafe fn retrace<B: Buckets>(
        &mut self,
        buckets: &B,
        indices: &[usize],
        values: &mut [T],
    ) -> Result<(), usize> {
        assert!(values.len() >= indices.len());
        let own = self.of::<u32>(self.rank);
        self.chunks.restart(&mut self.cursors, buckets.count());
        // SAFETY: a chunk of this pool. `fill` has written the entry. If the layout gives other places the second time, the
        // entry may be left from an earlier call that had more chunks, hence the filter.
        let more = |full| Some(unsafe { own.next.add(full).read() } as usize).filter(|next| *next < own.chunks.count);
        let visit = |number: usize, entry: usize, _| {
            // As in `fill`.
            prefetch(own.values.wrapping_add(entry + AHEAD / size_of::<T>()));
            // SAFETY: an entry of this pool; as many values as indices.
            unsafe { *values.get_unchecked_mut(number) = own.values.add(entry).read() };
        };
        self.chunks.sweep(buckets, &mut self.cursors, indices, more, visit).map(drop)
    }
}

/// Prefetch distance of values, in bytes.
const AHEAD: usize = 128;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Prefetch distance of the table's elements, in entries.
pub(super) const ENTRIES_AHEAD: usize = 192;
/// Prefetch distance of a pool's entries, in bytes. It is long because the pool may be in the caches of another rank's core.
const POOL_AHEAD: usize = 1536;

/// A rank's pool as addresses in this process.
#[derive(Clone, Copy)]
pub(super) struct View<O, T> {
    pub(super) offsets: *mut O,
    pub(super) values: *mut T,
    next: *mut u32,
    ends: *mut u32,
    chunks: Chunks,
}

impl<O, T> View<O, T> {
    /// Calls `each` with the entries of `bucket`, a chunk at a time: the first entry, and how many.
    ///
    /// # Safety
    /// The pool was filled with a shape that has this bucket, and is not being changed.
    #[inline(always)]
    pub(super) unsafe fn walk(&self, bucket: usize, each: impl FnMut(usize, usize)) {
        // SAFETY: the caller guarantees it.
        let end = unsafe { self.ends.add(bucket).read() } as usize;
        // SAFETY: a full chunk before the last was linked to the one after it.
        let next = |chunk| unsafe { self.next.add(chunk).read() } as usize;
        self.chunks.walk(bucket, end, next, |entry| self.prefetch(entry), each);
    }

    /// Prefetches entries well after `entry`. After the end of the chunk this has no use.
    #[inline(always)]
    pub(super) fn ahead(&self, entry: usize) {
        prefetch_near(self.offsets.wrapping_add(entry + POOL_AHEAD / size_of::<O>()));
        prefetch_near(self.values.wrapping_add(entry + POOL_AHEAD / size_of::<T>()));
        prefetch_near(self.values.wrapping_add(entry + (POOL_AHEAD + LINE) / size_of::<T>()));
    }

    /// Prefetches the first lines of a chunk. The hardware prefetches the rest.
    #[inline(always)]
    fn prefetch(&self, entry: usize) {
        prefetch(self.offsets.wrapping_add(entry));
        prefetch(self.offsets.wrapping_add(entry + LINE / size_of::<O>()));
        prefetch(self.values.wrapping_add(entry));
        prefetch(self.values.wrapping_add(entry + LINE.div_ceil(size_of::<T>())));
    }
}
