//! Puts of one word to an address of another rank, and to a segment by its number.

use bellwether_runtime::{RawBells, Result, Symmetric, World};

use super::memory::REACH;
use super::{address, further_on, in_quarters, opaque_index};
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// Words that the puts wander over.
const WORDS: usize = REACH / size_of::<u64>();

/// Where puts go: to this rank, and its memory as itself sees it.
struct Ours<'a> {
    world: &'a World,
    rank: usize,
    start: usize,
}

/// Puts to an address, beside bare stores and puts to an element of an array.
///
/// # Errors
/// Those of the runtime.
pub fn put(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let world = &session.world;
    let array = world.alloc::<u64>(WORDS)?;
    let starts = world.alloc::<u64>(world.size())?;
    starts.put(0, world.rank(), array.as_ptr_range().start.addr() as u64)?;
    world.barrier()?;
    let ours =
        Ours { world, rank: opaque_index(1), start: if world.rank() == 0 { starts.load(1) as usize } else { 0 } };
    let bare = if session.mapped { address(&array, 1, 0) } else { std::ptr::null_mut() };
    let active = world.rank() == 0;
    let count = |n| if active { n } else { 0 };
    let elements = |n| {
        in_quarters([element_puts::<0>, element_puts::<1>, element_puts::<2>, element_puts::<3>], &array, count(n))?;
        world.fence();
        Ok(())
    };
    let operations = session.stream(100_000, usize::MAX, size_of::<u64>());
    let mut measured = session.alternate_beside(
        operations,
        |n| {
            let quarter = |place| (count(n) + place) / 4;
            address_puts::<0>(&ours, quarter(0))?;
            address_puts::<1>(&ours, quarter(1))?;
            address_puts::<2>(&ours, quarter(2))?;
            address_puts::<3>(&ours, quarter(3))?;
            // Over a network a put is on its way when it returns, and done after this.
            world.fence();
            Ok(())
        },
        |n| in_quarters([stores::<0>, stores::<1>, stores::<2>, stores::<3>], &bare, count(n)),
        elements,
    )?;
    if measured.beside.is_empty() {
        measured.beside = session.alternate(operations, elements, |_| Ok(()))?.ours;
    }
    Ok(vec![measured])
}

/// Puts to a segment of the other rank by its number, beside bare stores.
///
/// # Errors
/// Those of the runtime.
pub fn put_segment(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let world = &session.world;
    let array = world.alloc::<u64>(WORDS)?;
    let segment = world.segment_all(REACH)?;
    let bare = if session.mapped { address(&array, 1, 0) } else { std::ptr::null_mut() };
    let active = world.rank() == 0;
    let count = |n| if active { n } else { 0 };
    let number = segment.number();
    let measured = session.alternate(
        session.stream(100_000, usize::MAX, size_of::<u64>()),
        |n| {
            let quarter = |place| (count(n) + place) / 4;
            segment_puts::<0>(world, number, quarter(0))?;
            segment_puts::<1>(world, number, quarter(1))?;
            segment_puts::<2>(world, number, quarter(2))?;
            segment_puts::<3>(world, number, quarter(3))?;
            world.fence();
            Ok(())
        },
        |n| in_quarters([stores::<0>, stores::<1>, stores::<2>, stores::<3>], &bare, count(n)),
    )?;
    // Over a network the last puts are on their way.
    world.barrier()?;
    segment.close()?;
    Ok(vec![measured])
}

/// `count` puts of 8 bytes to an address, in a world of one rank.
///
/// # Errors
/// Those of the runtime.
pub fn puts(world: &World, count: usize) -> Result<()> {
    let array = world.alloc::<u64>(WORDS)?;
    let ours = Ours { world, rank: opaque_index(0), start: array.as_ptr_range().start.addr() };
    address_puts::<0>(&ours, count)
}

// Functions of their own, as in `memory`.

#[inline(never)]
fn address_puts<const PLACE: usize>(ours: &Ours<'_>, count: usize) -> Result<()> {
    puts_by_address::<PLACE>(ours.world, ours.rank, ours.start, count)
}

#[inline(never)]
fn puts_by_address<const PLACE: usize>(world: &World, rank: usize, start: usize, count: usize) -> Result<()> {
    further_on::<PLACE>();
    (0..count).try_for_each(|i| {
        let to = start + opaque_index(i % WORDS) * size_of::<u64>();
        // SAFETY: an element of an array at that rank, which no other code accesses now.
        unsafe { world.put_address(rank, to, &(i as u64).to_ne_bytes(), RawBells::default()) }
    })
}

#[inline(never)]
fn segment_puts<const PLACE: usize>(world: &World, number: u32, count: usize) -> Result<()> {
    let target = opaque_index(1);
    further_on::<PLACE>();
    (0..count).try_for_each(|i| {
        world.put_segment(target, number, opaque_index(i % WORDS) * size_of::<u64>(), &(i as u64).to_ne_bytes())
    })
}

#[inline(never)]
fn element_puts<const PLACE: usize>(array: &Symmetric<u64>, count: usize) -> Result<()> {
    let target = opaque_index(1);
    further_on::<PLACE>();
    (0..count).try_for_each(|i| array.put(target, opaque_index(i % WORDS), i as u64))
}

#[inline(never)]
fn stores<const PLACE: usize>(to: &*mut u64, count: usize) -> Result<()> {
    let to = *to;
    further_on::<PLACE>();
    for i in 0..count {
        // SAFETY: an element of the array at rank 1, which no other code accesses now.
        unsafe { to.add(opaque_index(i % WORDS)).write_volatile(i as u64) };
    }
    Ok(())
}
