//! Which bucket an index belongs to, and which part of a table lies under a bucket.
//!
//! A bucket is a stretch of a table that fits a core's second-level cache, and few enough pages for its TLB.

use super::places::Places;
use super::shape::{Kind, Print, Shape};

/// Most buckets. The first-level cache holds as many ends of chains beside the other data.
pub(super) const BUCKETS_MAX: usize = 512;
/// Bits of an offset in a bucket's stretch.
const OFFSET_BITS: u32 = 32;

/// An index with a place that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nowhere {
    pub(super) index: usize,
    pub(super) rank: usize,
    pub(super) local: usize,
}

/// A table as buckets see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) ranks: usize,
    /// Elements at each rank.
    pub(super) len: usize,
    /// Bytes of an element.
    pub(super) size: usize,
    /// Desired bytes of a bucket's stretch.
    pub(super) stretch: usize,
    /// Most buckets, unless there are more ranks.
    pub(super) most: usize,
}

impl Table {
    /// Binary logarithm of the elements of a stretch, so that `groups` times `len` elements make few enough buckets. `None` if
    /// offsets would then not fit.
    fn shift(&self, groups: usize, len: usize) -> Option<u32> {
        let most = self.most.min(BUCKETS_MAX).max(self.ranks);
        let mut shift = (self.stretch / self.size).max(1).ilog2().min(OFFSET_BITS);
        while groups * len.div_ceil(1 << shift) > most {
            if shift == OFFSET_BITS {
                return None;
            }
            shift += 1;
        }
        Some(shift)
    }
}

/// What lies under a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Under {
    /// Elements of one rank, one after the other, from this one on: the offset is the distance to it.
    Stretch { rank: usize, start: usize },
    /// Several stretches: the element's index is the first index of the bucket plus the offset.
    Several { first: usize },
}

/// A way to make buckets.
///
/// # Safety
/// [`Buckets::locate`] names buckets below the count, and offsets inside the stretch.
pub(super) unsafe trait Buckets {
    /// How many.
    fn count(&self) -> usize;
    /// Bucket of an index, and offset in it. `None` if there is no such element.
    fn locate(&self, index: usize) -> Option<(usize, u32)>;
    /// Whether every index below the extent is known to have a place.
    fn has_all(&self) -> bool;
    /// What lies under a bucket.
    fn under(&self, bucket: usize) -> Under;
    /// Elements of a whole stretch.
    fn stretch(&self) -> usize;
    /// The shape of a layout and of these buckets. If another rank's shape is equal, its buckets with these numbers belong to the
    /// same ranks, and their offsets lie inside the stretches that are under the buckets here.
    fn shape(&self, layout: Shape) -> Shape;
    /// Buckets with elements of `rank`.
    fn of_rank(&self, rank: usize) -> impl Iterator<Item = usize>;
}

/// Buckets of consecutive indices: for layouts in which these mostly lie beside each other. An index needs a shift.
pub(super) struct ByIndex {
    extent: usize,
    shift: u32,
    under: Vec<Under>,
    /// The hash of all runs.
    print: Print,
    /// For each rank, the buckets that have elements of this rank.
    of_rank: Vec<Vec<u32>>,
}

impl ByIndex {
    /// Such buckets, if most of them have one stretch.
    ///
    /// # Errors
    /// If the layout puts an index where the table has nothing.
    pub(super) fn new<P: Places>(table: Table, places: &P) -> Result<Option<ByIndex>, Nowhere> {
        let extent = places.extent();
        let Some(shift) = table.shift(1, extent) else { return Ok(None) };
        let count = extent.div_ceil(1 << shift).max(1);
        let (under, of_rank) = (Vec::with_capacity(count), vec![Vec::new(); table.ranks]);
        let mut buckets = ByIndex { extent, shift, under, print: Print::default(), of_rank };
        let mut torn = 0;
        for bucket in 0..count {
            let first = bucket << shift;
            let end = extent.min(first + (1 << shift));
            let mut index = first;
            let mut under = Under::Several { first };
            while index < end {
                let (rank, local) = places.place(index);
                let run = places.run(index).clamp(1, end - index);
                if rank >= table.ranks || local >= table.len || run > table.len - local {
                    let last = run - 1;
                    return Err(Nowhere { index: index + last, rank, local: local.saturating_add(last) });
                }
                if run == end - first {
                    under = Under::Stretch { rank, start: local };
                } else if index == first {
                    torn += 1;
                    // Too many buckets with several stretches: they do not pay, nor does looking through them.
                    if torn > 2 * table.ranks || run < (end - first) / (2 * table.ranks) {
                        return Ok(None);
                    }
                }
                if buckets.of_rank[rank].last() != Some(&(bucket as u32)) {
                    buckets.of_rank[rank].push(bucket as u32);
                }
                buckets.print.see(index, (rank, local));
                index += run;
            }
            buckets.under.push(under);
        }
        Ok(Some(buckets))
    }
}

// SAFETY: indices below the extent only, of which the buckets are made.
unsafe impl Buckets for ByIndex {
    fn count(&self) -> usize {
        self.under.len()
    }

    #[inline(always)]
    fn locate(&self, index: usize) -> Option<(usize, u32)> {
        (index < self.extent).then_some((index >> self.shift, (index & ((1 << self.shift) - 1)) as u32))
    }

    fn has_all(&self) -> bool {
        true
    }

    #[inline(always)]
    fn under(&self, bucket: usize) -> Under {
        self.under[bucket]
    }

    fn stretch(&self) -> usize {
        1 << self.shift
    }

    fn shape(&self, mut layout: Shape) -> Shape {
        layout.print.join(self.print);
        Shape { kind: Kind::Index, count: self.count(), stretch: self.stretch(), ..layout }
    }

    fn of_rank(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.of_rank[rank].iter().map(|bucket| *bucket as usize)
    }
}

/// Buckets of elements beside each other at one rank: for any layout. An index needs its place.
pub(super) struct ByPlace<'a, P> {
    places: &'a P,
    table: Table,
    shift: u32,
    /// Buckets of one rank.
    per_rank: usize,
}

impl<'a, P: Places> ByPlace<'a, P> {
    /// Such buckets. `None` if the table needs more buckets than are possible.
    pub(super) fn new(table: Table, places: &'a P) -> Option<ByPlace<'a, P>> {
        let shift = table.shift(table.ranks, table.len)?;
        Some(ByPlace { places, table, shift, per_rank: table.len.div_ceil(1 << shift).max(1) })
    }
}

// SAFETY: `locate` gives only ranks and elements that the table has, whatever the layout says.
unsafe impl<P: Places> Buckets for ByPlace<'_, P> {
    fn count(&self) -> usize {
        self.table.ranks * self.per_rank
    }

    #[inline(always)]
    fn locate(&self, index: usize) -> Option<(usize, u32)> {
        if index >= self.places.extent() {
            return None;
        }
        let (rank, local) = self.places.place(index);
        let is_there = rank < self.table.ranks && local < self.table.len;
        let offset = (local & ((1 << self.shift) - 1)) as u32;
        is_there.then_some((rank * self.per_rank + (local >> self.shift), offset))
    }

    fn has_all(&self) -> bool {
        false
    }

    #[inline(always)]
    fn under(&self, bucket: usize) -> Under {
        let (rank, block) = (bucket / self.per_rank, bucket % self.per_rank);
        Under::Stretch { rank, start: block << self.shift }
    }

    fn stretch(&self) -> usize {
        1 << self.shift
    }

    /// Does not depend on the layout: these buckets follow from the number of ranks and the table's length, and `locate` makes
    /// no offset for an element beyond that length.
    fn shape(&self, layout: Shape) -> Shape {
        Shape { kind: Kind::Place, count: self.count(), stretch: self.stretch(), ..layout }
    }

    fn of_rank(&self, rank: usize) -> impl Iterator<Item = usize> {
        rank * self.per_rank..(rank + 1) * self.per_rank
    }
}
