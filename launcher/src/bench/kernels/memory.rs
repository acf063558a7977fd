//! Puts, gets, atomic additions and bulk copies: rank 0 works on the memory of rank 1, which waits.

use std::sync::atomic::Ordering;

use bellwether_runtime::{Result, Symmetric, World};

use super::{address, opaque, opaque_index, word};
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// Bytes of the target that small operations wander over.
pub const REACH: usize = 4096;
const SMALL: usize = size_of::<u64>();
/// Most operations of a batch.
const MOST: usize = 100_000;
/// Atomics of a batch.
const ATOMICS: usize = 2000;
/// Most bytes of a batch.
const BYTES: usize = 4 << 20;

/// `count` puts of 8 bytes, in a world of one rank.
///
/// # Errors
/// Those of the runtime.
pub fn puts(world: &World, count: usize) -> Result<()> {
    let array = world.alloc::<u64>(REACH / SMALL)?;
    small_puts(&array, opaque_index(0), count)
}

/// Blocking puts beside bare stores, or beside memcpy when larger than a word.
///
/// # Errors
/// Those of the runtime.
pub fn put(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let (words, places) = shape(size);
    let array = session.world.alloc::<u64>(words * places)?;
    let source = vec![7u64; words];
    let active = session.world.rank() == 0;
    let operations = session.stream(MOST, 4 * BYTES, size);
    let measured = session.alternate(
        operations,
        |n| {
            let target = opaque_index(1);
            let count = if active { n } else { 0 };
            if size == SMALL {
                small_puts(&array, opaque_index(1), count)?;
            } else {
                for i in 0..count {
                    array.put_slice(target, opaque_index(i % places) * words, &source)?;
                }
            }
            // Over a network a put is on its way when it returns, and done after this.
            session.world.fence();
            Ok(())
        },
        |n| {
            let bare = address(&array, 1, 0);
            let count = if active { n } else { 0 };
            // SAFETY: inside the array at rank 1, which no other code accesses now.
            unsafe {
                if size == SMALL {
                    small_stores(bare, count);
                } else {
                    for i in 0..count {
                        let at = bare.add(opaque_index(i % places) * words);
                        libc::memcpy(at.cast(), source.as_ptr().cast(), size);
                    }
                }
            }
            Ok(())
        },
    )?;
    Ok(vec![measured])
}

/// Blocking gets beside bare loads, or beside memcpy when larger than a word.
///
/// # Errors
/// Those of the runtime.
pub fn get(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let (words, places) = shape(size);
    let array = session.world.alloc::<u64>(words * places)?;
    let (mut ours, mut theirs) = (vec![7u64; words], vec![7u64; words]);
    let active = session.world.rank() == 0;
    let operations = session.operations(MOST, 4 * BYTES, size);
    let measured = session.alternate(
        operations,
        |n| {
            let target = opaque_index(1);
            let count = if active { n } else { 0 };
            if size == SMALL {
                return small_gets(&array, opaque_index(1), count);
            }
            for i in 0..count {
                array.get_slice(target, opaque_index(i % places) * words, &mut ours)?;
                opaque(ours[0]);
            }
            Ok(())
        },
        |n| {
            let bare = address(&array, 1, 0);
            let count = if active { n } else { 0 };
            // SAFETY: inside the array at rank 1, which no other code accesses now.
            unsafe {
                if size == SMALL {
                    small_loads(bare, count);
                    return Ok(());
                }
                for i in 0..count {
                    let at = bare.add(opaque_index(i % places) * words);
                    libc::memcpy(theirs.as_mut_ptr().cast(), at.cast(), size);
                    opaque(theirs[0]);
                }
            }
            Ok(())
        },
    )?;
    Ok(vec![measured])
}

/// Words of an operation, and places it is done at in turn: a power of two.
fn shape(size: usize) -> (usize, usize) {
    (size / SMALL, (REACH / size).max(1).next_power_of_two())
}

/// Fetch-and-add on a word of rank 1, beside bare locked adds: by rank 0 alone, and by both ranks at once.
///
/// # Errors
/// Those of the runtime.
pub fn atomic(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let array = session.world.alloc::<u64>(REACH / SMALL)?;
    let mut report = Vec::new();
    for (name, ranks) in [("", 1), ("atomic-contended", 2)] {
        let active = session.world.rank() < ranks;
        let operations = session.operations(ATOMICS, usize::MAX, SMALL);
        let ours = |n| {
            let target = opaque_index(1);
            for _ in 0..if active { n } else { 0 } {
                opaque(array.fetch_add(target, opaque_index(0), 1)?);
            }
            Ok(())
        };
        let bare = |n| {
            let bare = word(&array, 1, 0);
            for _ in 0..if active { n } else { 0 } {
                opaque(bare.fetch_add(1, Ordering::AcqRel));
            }
            Ok(())
        };
        // Ranks that contend begin each batch together.
        let measured = match ranks {
            1 => session.latency(operations, SMALL, ours, bare)?,
            _ => session.alternate(operations, ours, bare)?,
        };
        report.push(Measured { name: name.into(), ..measured });
    }
    Ok(report)
}

/// Puts of many bytes, beside memcpy between the same buffers. Values are GB/s. Over a network from symmetric memory, as
/// peers put from memory that the device knows; and, as a figure of its own, from private memory, which is copied first.
///
/// # Errors
/// Those of the runtime.
pub fn bandwidth(session: &Session, size: usize) -> Result<Vec<Measured>> {
    /// A larger buffer covers all places at once.
    const PLACED: usize = 256 << 10;
    let measure = || bandwidth_here(session, size);
    let copied = if size <= PLACED { session.in_places(measure)? } else { measure()? };
    if session.mapped {
        return Ok(vec![copied]);
    }
    let straight = bandwidth_straight(session, size)?;
    Ok(vec![straight, Measured { name: "bandwidth-private".into(), ..copied }])
}

fn bandwidth_straight(session: &Session, size: usize) -> Result<Measured> {
    let words = size / SMALL;
    let [source, target] = [session.world.alloc::<u64>(words)?, session.world.alloc::<u64>(words)?];
    let active = session.world.rank() == 0;
    let ours = |n| {
        if active {
            (0..n).try_for_each(|_| target.put_from(opaque_index(1), 0, &source, 0..words))?;
            session.world.fence();
        }
        Ok(())
    };
    let operations = session.stream(2000, BYTES, size);
    let measured = match &session.socket {
        Some(socket) => session.beside_socket(operations, ours, |n| socket.stream(n, size))?,
        None => session.alone(operations, ours)?,
    };
    Ok(rates(measured, size))
}

/// GB/s in place of nanoseconds.
pub(super) fn rates(measured: Measured, size: usize) -> Measured {
    measured.map(|nanoseconds| size as f64 / nanoseconds)
}

fn bandwidth_here(session: &Session, size: usize) -> Result<Measured> {
    let words = size / SMALL;
    let array = session.world.alloc::<u64>(words)?;
    // Half a page away from the target, at the start of a cache line. Otherwise accesses that cross a line, and loads that alias a
    // preceding store, would be measured by chance.
    const PAGE: usize = 4096;
    let room: Vec<u64> = (0..(words + PAGE / SMALL) as u64).collect();
    let target = array.ptr(1).map_or(0, <*mut u64>::addr) + PAGE / 2;
    let skip = target.wrapping_sub(room.as_ptr().addr()) % PAGE / SMALL;
    let source = &room[skip..skip + words];
    let active = session.world.rank() == 0;
    let measured = session.alternate(
        session.stream(2000, BYTES, size),
        |n| {
            if active {
                puts_of(&array, source, n)?;
                session.world.fence();
            }
            Ok(())
        },
        |n| {
            if active {
                // SAFETY: the array at rank 1 is as long as the source, and no other code accesses it now.
                unsafe { copies_of(address(&array, 1, 0), source, n) };
            }
            Ok(())
        },
    )?;
    Ok(rates(measured, size))
}

// Functions of their own: a loop that is inlined into a larger function spills registers to the stack, and that would be measured
// too, most of all where both buffers of 16 KiB fill the first-level cache.

/// # Errors
/// Those of the runtime.
#[inline(never)]
fn small_puts(array: &Symmetric<u64>, target: usize, count: usize) -> Result<()> {
    (0..count).try_for_each(|i| array.put(target, opaque_index(i % (REACH / SMALL)), i as u64))
}

/// # Safety
/// `to` is valid for writing [`REACH`] bytes.
#[inline(never)]
unsafe fn small_stores(to: *mut u64, count: usize) {
    for i in 0..count {
        // SAFETY: the caller guarantees it.
        unsafe { to.add(opaque_index(i % (REACH / SMALL))).write_volatile(i as u64) };
    }
}

/// # Errors
/// Those of the runtime.
#[inline(never)]
fn small_gets(array: &Symmetric<u64>, target: usize, count: usize) -> Result<()> {
    (0..count).try_for_each(|i| array.get(target, opaque_index(i % (REACH / SMALL))).map(|value| _ = opaque(value)))
}

/// # Safety
/// `from` is valid for reading [`REACH`] bytes.
#[inline(never)]
unsafe fn small_loads(from: *const u64, count: usize) {
    for i in 0..count {
        // SAFETY: the caller guarantees it.
        opaque(unsafe { from.add(opaque_index(i % (REACH / SMALL))).read_volatile() });
    }
}

#[inline(never)]
fn puts_of(array: &Symmetric<u64>, source: &[u64], count: usize) -> Result<()> {
    let target = opaque_index(1);
    (0..count).try_for_each(|_| array.put_slice(target, opaque_index(0), source))
}

/// # Safety
/// `to` is valid for writing as many words as `source` has.
#[inline(never)]
pub(super) unsafe fn copies_of(to: *mut u64, source: &[u64], count: usize) {
    for _ in 0..count {
        // SAFETY: the caller guarantees it.
        unsafe { libc::memcpy(to.cast(), source.as_ptr().cast(), opaque_index(size_of_val(source))) };
    }
}
