//! Gather in request order, with software prefetch.

use bellwether_runtime::memory::copy;
use bellwether_runtime::{Pod, Symmetric, World};

use super::buckets::{Buckets, Under};
use super::places::Places;
use super::prefetch::prefetch_near;

/// Prefetch distance in elements; more than the loads that a core keeps in flight.
const AHEAD: usize = 128;

/// Reads `table[indices[i]]` into `values[i]`. All parts are mapped. Fails with `i` for the first index outside the table.
pub(super) fn read<T: Pod, P: Places, B: Buckets>(
    world: &World,
    table: &Symmetric<T>,
    places: &P,
    buckets: &B,
    indices: &[usize],
    values: &mut [T],
) -> Result<(), usize> {
    let part = |rank| table.ptr(rank).expect("called only if all ranks are mapped").cast_const();
    let parts: Vec<*const T> = (0..world.size()).map(part).collect();
    // Null if a bucket covers more than one contiguous stretch.
    let base = |bucket| match buckets.under(bucket) {
        // SAFETY: the start of a stretch of that part.
        Under::Stretch { rank, start } => unsafe { parts[rank].add(start) },
        Under::Several { .. } => std::ptr::null(),
    };
    let bases: Vec<*const T> = (0..buckets.count()).map(base).collect();
    let of_place = |index| {
        let (rank, local) = places.place(index);
        let part = parts.get(rank).filter(|_| local < table.len())?;
        // SAFETY: an element of that part.
        Some(unsafe { part.add(local) })
    };
    let address = |index: usize| {
        let (bucket, offset) = buckets.locate(index)?;
        let base = *bases.get(bucket)?;
        // SAFETY: `locate` gives offsets inside the stretch.
        if base.is_null() { of_place(index) } else { Some(unsafe { base.add(offset as usize) }) }
    };
    let mut ring = [std::ptr::null(); AHEAD];
    for (number, (slot, index)) in ring.iter_mut().zip(indices).enumerate() {
        *slot = address(*index).ok_or(number)?;
        prefetch_near(*slot);
    }
    let (now, last) = values[..indices.len()].split_at_mut(indices.len().saturating_sub(AHEAD));
    for (number, (value, later)) in now.iter_mut().zip(indices.iter().skip(AHEAD)).enumerate() {
        let slot = &mut ring[number % AHEAD];
        // SAFETY: an element of the table, as `address` found it.
        *value = unsafe { copy::load(slot.cast_mut()) };
        *slot = address(*later).ok_or(number + AHEAD)?;
        prefetch_near(*slot);
    }
    for (number, value) in (now.len()..).zip(last) {
        // SAFETY: as above.
        *value = unsafe { copy::load(ring[number % AHEAD].cast_mut()) };
    }
    Ok(())
}
