//! Puts to random ranks and indices.

use std::ptr;
use std::rc::Rc;

use bellwether_runtime::{Error, Result, Symmetric};

use super::memory::REACH;
use super::{further_on, in_quarters, opaque_index};
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// Elements at each rank. They fit in the first-level cache, so that the path to the element is measured, not memory.
const PLACES: usize = REACH / size_of::<u64>();
/// Ranks and indices, gone through round and round.
const TARGETS: usize = 1024;

/// The target of one put: rank and index.
type Target = (u32, u32);

struct Ours {
    array: Symmetric<u64>,
    /// Shared with [`Bare`]: with two tables, whose addresses modulo 4 KiB differ, the ratio varied from process to process. Presumably loads
    /// of one then wait for stores of the loop with the same low bits.
    targets: Rc<[Target]>,
}

/// The table that a hand-written program would use: an address for each rank, and the length.
struct Bare {
    parts: Vec<*mut u64>,
    len: usize,
    targets: Rc<[Target]>,
}

/// One element put to a random rank and index, this rank's own too, beside bare stores that check both.
///
/// # Errors
/// Those of the runtime.
pub fn put(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let world = &session.world;
    let array = world.alloc::<u64>(PLACES)?;
    // Xorshift (Marsaglia 2003).
    let mut state = 88_172_645_463_325_252u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as u32
    };
    let targets: Rc<[Target]> = (0..TARGETS).map(|_| (next(world.size()), next(PLACES))).collect();
    let parts = (0..world.size()).filter_map(|rank| array.ptr(rank)).collect();
    let bare = Bare { parts, len: array.len(), targets: Rc::clone(&targets) };
    let ours = Ours { array, targets };
    let active = session.world.rank() == 0;
    let count = |n| if active { n } else { 0 };
    let measured = session.alternate(
        session.stream(100_000, usize::MAX, size_of::<u64>()),
        |n| {
            in_quarters([puts::<0>, puts::<1>, puts::<2>, puts::<3>], &ours, count(n))?;
            // Over a network a put is on its way when it returns, and done after this.
            world.fence();
            Ok(())
        },
        |n| in_quarters([stores::<0>, stores::<1>, stores::<2>, stores::<3>], &bare, count(n)),
    )?;
    Ok(vec![measured])
}

// Functions of their own, as in `memory`.

#[inline(never)]
fn puts<const PLACE: usize>(ours: &Ours, count: usize) -> Result<()> {
    further_on::<PLACE>();
    rounds(&ours.targets, count, |rank, index, value| ours.array.put(rank, index, value))
}

#[inline(never)]
fn stores<const PLACE: usize>(bare: &Bare, count: usize) -> Result<()> {
    let (parts, len) = (&bare.parts[..], bare.len);
    further_on::<PLACE>();
    rounds(&bare.targets, count, |rank, index, value| {
        if rank < parts.len() && index < len {
            // SAFETY: an element of that rank's part, as just checked; no other code accesses it now.
            unsafe { ptr::write_volatile(parts.get_unchecked(rank).add(index), value) };
            return Ok(());
        }
        outside()
    })
}

/// Calls `each` a number of times, with a target and a value.
#[inline(always)]
fn rounds(targets: &[Target], count: usize, mut each: impl FnMut(usize, usize, u64) -> Result<()>) -> Result<()> {
    let mut left = count;
    while left > 0 {
        let round = opaque_index(left.min(targets.len()));
        for (rank, index) in &targets[..round] {
            each(*rank as usize, *index as usize, left as u64)?;
        }
        left -= round;
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn outside() -> Result<()> {
    Err(Error::InvalidArgument { operation: "bench", why: "a target outside".into() })
}
