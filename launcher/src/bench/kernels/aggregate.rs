//! Aggregated adds and loads all over a table, by all ranks at once: the kernels `histogram` and `indexgather` of bale, with
//! tables of 1 Mi words a rank. Their limit is memory bandwidth: what has to be read and written at least, in order. Beside
//! them bare locked adds and bare loads of the same elements on the same mapping, and, as figures of their own with these as
//! limit, the runtime's operations one at a time; over a network those stand beside.

use std::sync::atomic::{AtomicU64, Ordering};

use bellwether::aggregate::{Aggregator, Blocks, Options};
use bellwether_runtime::{Result, Symmetric};

use super::opaque;
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// Words of the table at each rank.
const BINS: usize = 1 << 20;
/// Items of a batch.
const ITEMS: usize = 1 << 20;
/// One at a time takes longer.
const FEWER: usize = 16;

/// A table, and what is done to it.
struct Work {
    table: Symmetric<u64>,
    places: Blocks,
    indices: Vec<usize>,
    values: Vec<u64>,
}

impl Work {
    fn new(session: &Session, items: usize) -> Result<Work> {
        let world = &session.world;
        // As elsewhere: xorshift (Marsaglia 2003).
        let mut state = 88_172_645_463_325_252 ^ ((world.rank() as u64 + 1) << 32);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let bins = BINS * world.size();
        Ok(Work {
            table: world.alloc(BINS)?,
            places: Blocks::new(bins, world.size()),
            indices: (0..items).map(|_| (next() % bins as u64) as usize).collect(),
            values: (0..items).map(|_| next()).collect(),
        })
    }

    /// The parts of the table, where they are mapped.
    fn parts(&self, session: &Session) -> Vec<*mut u64> {
        (0..session.world.size()).filter_map(|rank| self.table.ptr(rank)).collect()
    }
}

/// Adds random words to random bins.
///
/// # Errors
/// Those of the runtime.
pub fn histogram(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let items = session.operations(ITEMS, usize::MAX, 8);
    let work = Work::new(session, items)?;
    let bare = work.parts(session);
    let Work { mut table, places, indices, values } = work;
    let mut aggregator = Aggregator::new(&session.world, &Options::new(&session.world))?;
    let mut sums = vec![0u64; BINS];
    let measured = session.alternate_beside(
        items,
        |_| aggregator.scatter_add(&mut table, &places, &indices, &values),
        |n| {
            adds_in_order(&mut sums, &indices[..n], &values);
            Ok(())
        },
        |n| {
            // SAFETY: the parts of the table, of which all are mapped when the limit is measured.
            unsafe { bare_adds(&bare, &indices[..n], &values) };
            Ok(())
        },
    )?;
    let single = session.alternate(
        items.div_ceil(FEWER),
        |n| {
            for (index, value) in indices[..n].iter().zip(&values) {
                opaque(table.fetch_add(index / BINS, index % BINS, *value)?);
            }
            Ok(())
        },
        |n| {
            // SAFETY: as above.
            unsafe { bare_adds(&bare, &indices[..n], &values) };
            Ok(())
        },
    )?;
    Ok(beside(measured, Measured { name: "histogram-single".into(), ..single }))
}

/// Reads random elements, in the order in which they were asked for.
///
/// # Errors
/// Those of the runtime.
pub fn indexgather(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let items = session.operations(ITEMS, usize::MAX, 8);
    let work = Work::new(session, items)?;
    let bare = work.parts(session);
    let Work { table, places, indices, values: mut ours } = work;
    let (mut theirs, mut least) = (ours.clone(), ours.clone());
    let elements = vec![1u64; BINS];
    let mut aggregator = Aggregator::new(&session.world, &Options::new(&session.world))?;
    let measured = session.alternate_beside(
        items,
        |_| aggregator.gather_into(&table, &places, &indices, &mut ours),
        |n| {
            loads_in_order(&elements, &indices[..n], &mut least);
            Ok(())
        },
        |n| {
            // SAFETY: as in `histogram`.
            unsafe { bare_loads(&bare, &indices[..n], &mut theirs) };
            Ok(())
        },
    )?;
    let single = session.alternate(
        items.div_ceil(FEWER),
        |n| {
            for (index, value) in indices[..n].iter().zip(&mut ours) {
                *value = table.get(index / BINS, index % BINS)?;
            }
            Ok(())
        },
        |n| {
            // SAFETY: as above.
            unsafe { bare_loads(&bare, &indices[..n], &mut theirs) };
            Ok(())
        },
    )?;
    Ok(beside(measured, Measured { name: "indexgather-single".into(), ..single }))
}

/// Both figures. Where nothing is mapped there are no bare loads and adds: what is gained over one at a time counts.
fn beside(mut aggregated: Measured, single: Measured) -> Vec<Measured> {
    if aggregated.beside.is_empty() {
        aggregated.beside.clone_from(&single.ours);
    }
    vec![aggregated, single]
}

/// Reads every item, and reads and writes as many elements of a table, one after the other.
#[inline(never)]
fn adds_in_order(table: &mut [u64], indices: &[usize], values: &[u64]) {
    for (indices, values) in indices.chunks(table.len()).zip(values.chunks(table.len())) {
        for ((element, index), value) in table.iter_mut().zip(indices).zip(values) {
            *element = element.wrapping_add(*value ^ *index as u64);
        }
    }
    opaque(table[0]);
}

/// Reads every index and as many elements of a table, one after the other, and writes a result for each.
#[inline(never)]
fn loads_in_order(table: &[u64], indices: &[usize], results: &mut [u64]) {
    for (indices, results) in indices.chunks(table.len()).zip(results.chunks_mut(table.len())) {
        for ((result, index), element) in results.iter_mut().zip(indices).zip(table) {
            *result = *element ^ *index as u64;
        }
    }
    opaque(results[0]);
}

/// # Safety
/// There is a part of [`BINS`] words for each index.
#[inline(never)]
unsafe fn bare_adds(parts: &[*mut u64], indices: &[usize], values: &[u64]) {
    for (index, value) in indices.iter().zip(values) {
        // SAFETY: the caller guarantees it; only atomics access it meanwhile.
        unsafe { AtomicU64::from_ptr(parts[index / BINS].add(index % BINS)) }.fetch_add(*value, Ordering::Relaxed);
    }
}

/// # Safety
/// As [`bare_adds`].
#[inline(never)]
unsafe fn bare_loads(parts: &[*mut u64], indices: &[usize], values: &mut [u64]) {
    for (index, value) in indices.iter().zip(values) {
        // SAFETY: the caller guarantees it.
        *value = unsafe { parts[index / BINS].add(index % BINS).read_volatile() };
    }
}
