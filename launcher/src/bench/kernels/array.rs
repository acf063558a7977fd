//! Arrays: elements of another rank, the local part, ghost layers, the transposed array.

use bellwether::array::{Ghosts, GlobalArray, Layout, Local, Shared};
use std::sync::atomic::Ordering;

use bellwether_runtime::{Error, Result, Symmetric};

use super::barrier::Flags;
use super::memory::REACH;
use super::{LINE, address, further_on, in_quarters, opaque, opaque_index, spin_until, word};
use crate::bench::session::Session;
use crate::bench::task::Measured;

const WORD: usize = size_of::<u64>();
/// Elements at each rank that small operations wander over.
const PLACES: usize = REACH / WORD;
/// One element put to rank 1 by its index in the array, beside bare stores at addresses, each index checked.
///
/// # Errors
/// Of the runtime.
pub fn put(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let (array, bare) = places(session)?;
    let active = session.world.rank() == 0;
    let count = |n| if active { n } else { 0 };
    let measured = session.alternate(
        session.operations(100_000, usize::MAX, WORD),
        |n| {
            in_quarters(
                [puts_by_index::<0>, puts_by_index::<1>, puts_by_index::<2>, puts_by_index::<3>],
                &array,
                count(n),
            )
        },
        |n| in_quarters([stores::<0>, stores::<1>, stores::<2>, stores::<3>], &bare, count(n)),
    )?;
    Ok(vec![measured])
}

/// One element got from rank 1 by its index in the array, beside bare loads at addresses, each index checked.
///
/// # Errors
/// Of the runtime.
pub fn get(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let (array, bare) = places(session)?;
    let active = session.world.rank() == 0;
    let count = |n| if active { n } else { 0 };
    let measured = session.alternate(
        session.operations(100_000, usize::MAX, WORD),
        |n| {
            in_quarters(
                [gets_by_index::<0>, gets_by_index::<1>, gets_by_index::<2>, gets_by_index::<3>],
                &array,
                count(n),
            )
        },
        |n| in_quarters([loads::<0>, loads::<1>, loads::<2>, loads::<3>], &bare, count(n)),
    )?;
    Ok(vec![measured])
}

/// Elements of rank 1 as memory and a length: the least that is left of an array whose indices are checked.
struct Bare {
    first: *mut u64,
    len: usize,
    /// What `first` points into.
    _memory: Symmetric<u64>,
}

fn places(session: &Session) -> Result<(GlobalArray<u64, 1, Shared>, Bare)> {
    let world = &session.world;
    let array = GlobalArray::new(world, Layout::block([world.size() * PLACES], world.size())?)?.share(world)?;
    let memory = world.alloc::<u64>(PLACES)?;
    let first = if session.mapped { address(&memory, 1, 0) } else { std::ptr::null_mut() };
    Ok((array, Bare { first, len: PLACES, _memory: memory }))
}

// Functions of their own, as in `memory`; all walk alike.

#[inline(never)]
fn puts_by_index<const PLACE: usize>(array: &GlobalArray<u64, 1, Shared>, count: usize) -> Result<()> {
    further_on::<PLACE>();
    wander(PLACES, count, |i| array.put(i, i as u64))
}

#[inline(never)]
fn gets_by_index<const PLACE: usize>(array: &GlobalArray<u64, 1, Shared>, count: usize) -> Result<()> {
    further_on::<PLACE>();
    wander(PLACES, count, |i| array.get(i).map(|value| _ = opaque(value)))
}

#[inline(never)]
fn stores<const PLACE: usize>(bare: &Bare, count: usize) -> Result<()> {
    let (first, len) = (bare.first, bare.len);
    further_on::<PLACE>();
    wander(0, count, |i| {
        if i < len {
            // SAFETY: in range, as just checked; nobody else touches it meanwhile.
            unsafe { first.add(i).write_volatile(i as u64) };
            return Ok(());
        }
        outside()
    })
}

#[inline(never)]
fn loads<const PLACE: usize>(bare: &Bare, count: usize) -> Result<()> {
    let (first, len) = (bare.first, bare.len);
    further_on::<PLACE>();
    wander(0, count, |i| {
        if i < len {
            // SAFETY: as in `stores`.
            opaque(unsafe { first.add(i).read_volatile() });
            return Ok(());
        }
        outside()
    })
}

#[cold]
#[inline(never)]
fn outside() -> Result<()> {
    Err(Error::InvalidArgument { operation: "bench", why: "an index outside".into() })
}

/// Calls `each` so often with the indices from `first` on, round and round. Between two calls nothing but counting.
#[inline(always)]
fn wander(first: usize, count: usize, mut each: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let mut left = count;
    while left > 0 {
        let round = left.min(PLACES);
        let end = opaque_index(first + round);
        (first..end).try_for_each(|i| each(opaque_index(i)))?;
        left -= round;
    }
    Ok(())
}

/// The sum of what is here, on every rank at the same time, beside that of private memory.
///
/// # Errors
/// Of the runtime.
pub fn local_sum(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let (world, words) = (&session.world, size / WORD);
    let layout = Layout::block([world.size() * words], world.size())?;
    let array = GlobalArray::from_fn(world, layout, |[i]| i as u64)?;
    let private: Vec<u64> = array.local().to_vec();
    let measured = session.alternate(
        session.operations(1000, 64 << 20, size),
        |n| {
            (0..n).for_each(|_| _ = opaque(sum(array.local())));
            Ok(())
        },
        |n| {
            (0..n).for_each(|_| _ = opaque(sum(&private)));
            Ok(())
        },
    )?;
    Ok(vec![measured])
}

#[inline(never)]
fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word))
}

/// The exchange of the ghost rows of a square array of `f64`, beside memcpy of the border into memory of the neighbour's, a
/// flag there, and rows that are read where they landed. Either reads a word of each line that came, as a stencil would.
///
/// # Errors
/// Of the runtime.
pub fn exchange(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let (world, side) = (&session.world, size / WORD);
    let (rank, ranks) = (world.rank(), world.size());
    let mut array = GlobalArray::<f64, 2>::with_ghosts(world, Layout::rows([side, side], ranks)?, Ghosts::new([1, 0]))?;
    array.local_mut().fill(1.0);
    let border: Vec<f64> = vec![1.0; side];
    // Two halves in turn, so that a neighbour may be one exchange ahead: in each a row from above and one from below, and
    // their flags.
    let row = side.next_multiple_of(LINE);
    let rows = world.alloc::<u64>(4 * row)?;
    let flags = world.alloc::<u64>(4 * LINE)?;
    let mut turn = 0;
    let measured = session.alternate(
        session.operations(1000, 32 << 20, size),
        |n| {
            for _ in 0..n {
                array.exchange()?;
                let (local, rows) = (array.local(), array.local_extents()[0]);
                read_row(&local[..side]);
                read_row(&local[(rows - 1) * side..]);
            }
            Ok(())
        },
        |n| {
            for _ in 0..n {
                turn += 1;
                let place = |below: usize| (turn % 2) as usize * 2 + below;
                // Seen from above, this rank lies below.
                let above = (rank > 0).then(|| (rank - 1, place(1), place(0)));
                let below = (rank + 1 < ranks).then(|| (rank + 1, place(0), place(1)));
                let neighbours = [above, below];
                for (neighbour, there, _) in neighbours.into_iter().flatten() {
                    // SAFETY: a row there, which its owner reads after it has seen the flag.
                    unsafe {
                        libc::memcpy(address(&rows, neighbour, there * row).cast(), border.as_ptr().cast(), side * WORD)
                    };
                    // Pairs with the Acquire load below.
                    word(&flags, neighbour, there * LINE).store(turn, Ordering::Release);
                }
                for (_, _, here) in neighbours.into_iter().flatten() {
                    let flag = word(&flags, rank, here * LINE);
                    spin_until(|| flag.load(Ordering::Acquire) == turn);
                    // SAFETY: a row of ours, which its neighbour writes again when it has heard from this rank once more.
                    read_row(unsafe { std::slice::from_raw_parts(address(&rows, rank, here * row).cast(), side) });
                }
            }
            Ok(())
        },
    )?;
    Ok(vec![measured])
}

fn read_row(row: &[f64]) {
    row.iter().step_by(LINE).for_each(|word| _ = opaque(word.to_bits()));
}

/// A square array of `f64` transposed into another. Limit: as much private memory copied by all ranks at the same time.
/// Beside: as many elements of private memory transposed by tiles, by all ranks at the same time. Values are GB/s, read and
/// written, of all ranks.
///
/// # Errors
/// Of the runtime.
pub fn transpose(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let (world, side) = (&session.world, (size / WORD).isqrt());
    let layout = Layout::rows([side, side], world.size())?;
    let array = GlobalArray::from_fn(world, layout.clone(), |[i, j]| (i * side + j) as f64)?;
    let mut target = Some(GlobalArray::<f64, 2, Local>::new(world, layout)?);
    let [rows, columns] = array.own_extents();
    let source = array.local().to_vec();
    let (mut private, mut copy) = (vec![0.0; rows * columns], vec![0.0; rows * columns]);
    // The slowest rank tells how long it took.
    let (mut copied, mut transposed) = (Flags::new(world)?, Flags::new(world)?);
    let measured = session.alternate_beside(
        1,
        |_| {
            let to = target.take().expect("given back by the transpose before");
            target = Some(array.transpose_into(world, to)?);
            Ok(())
        },
        |_| {
            copy.copy_from_slice(&source);
            opaque(copy[rows * columns / 2].to_bits());
            copied.meet();
            Ok(())
        },
        |_| {
            transpose_tiles(&source, &mut private, rows, columns);
            transposed.meet();
            Ok(())
        },
    )?;
    let bytes = (2 * side * side * WORD) as f64;
    Ok(vec![measured.map(|nanoseconds| bytes / nanoseconds)])
}

#[inline(never)]
fn transpose_tiles(from: &[f64], to: &mut [f64], rows: usize, columns: usize) {
    const TILE: usize = 32;
    for top in (0..rows).step_by(TILE) {
        for left in (0..columns).step_by(TILE) {
            for row in top..rows.min(top + TILE) {
                let line = &from[row * columns..][left..columns.min(left + TILE)];
                line.iter().enumerate().for_each(|(n, word)| to[(left + n) * rows + row] = *word);
            }
        }
    }
}
