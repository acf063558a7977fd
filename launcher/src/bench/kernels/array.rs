//! Arrays: elements of another rank, the local part, ghost layers, the transposed array.

use bellwether::array::{Ghosts, GlobalArray, Layout, Local, Shared};
use bellwether_runtime::{Bell, Result, Symmetric, World};

use super::memory::REACH;
use super::{opaque, opaque_index};
use crate::bench::rank::Session;
use crate::bench::task::Measured;

const WORD: usize = size_of::<u64>();
/// Elements at each rank that small operations wander over.
const PLACES: usize = REACH / WORD;
/// Words of a cache line.
const LINE: usize = 8;

/// One element put to rank 1 by its index in the array, beside the put of symmetric memory.
///
/// # Errors
/// Of the runtime.
pub fn put(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let (array, memory) = places(session)?;
    let active = session.world.rank() == 0;
    let measured = session.alternate(
        session.operations(100_000, usize::MAX, WORD),
        |n| {
            in_quarters(
                [puts_by_index::<0>, puts_by_index::<1>, puts_by_index::<2>, puts_by_index::<3>],
                &array,
                if active { n } else { 0 },
            )
        },
        |n| {
            in_quarters(
                [puts_by_rank::<0>, puts_by_rank::<1>, puts_by_rank::<2>, puts_by_rank::<3>],
                &memory,
                if active { n } else { 0 },
            )
        },
    )?;
    Ok(vec![measured])
}

/// One element got from rank 1 by its index in the array, beside the get of symmetric memory.
///
/// # Errors
/// Of the runtime.
pub fn get(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let (array, memory) = places(session)?;
    let active = session.world.rank() == 0;
    let measured = session.alternate(
        session.operations(100_000, usize::MAX, WORD),
        |n| {
            in_quarters(
                [gets_by_index::<0>, gets_by_index::<1>, gets_by_index::<2>, gets_by_index::<3>],
                &array,
                if active { n } else { 0 },
            )
        },
        |n| {
            in_quarters(
                [gets_by_rank::<0>, gets_by_rank::<1>, gets_by_rank::<2>, gets_by_rank::<3>],
                &memory,
                if active { n } else { 0 },
            )
        },
    )?;
    Ok(vec![measured])
}

fn places(session: &Session) -> Result<(GlobalArray<u64, 1, Shared>, Symmetric<u64>)> {
    let world = &session.world;
    let array = GlobalArray::new(world, Layout::block([world.size() * PLACES], world.size())?)?.share(world)?;
    Ok((array, world.alloc(PLACES)?))
}

// Functions of their own, as in `memory`; all walk alike. Each is there four times, each time a quarter of 64 bytes further
// on: a loop of so few instructions was seen to take twice as long where it lies across such a boundary, and where it lies
// is chance.

#[inline(never)]
fn puts_by_index<const PLACE: usize>(array: &GlobalArray<u64, 1, Shared>, count: usize) -> Result<()> {
    further_on::<PLACE>();
    wander(PLACES, count, |i| array.put(i, i as u64))
}

#[inline(never)]
fn puts_by_rank<const PLACE: usize>(memory: &Symmetric<u64>, count: usize) -> Result<()> {
    further_on::<PLACE>();
    let rank = opaque_index(1);
    wander(0, count, |i| memory.put(rank, i, i as u64))
}

#[inline(never)]
fn gets_by_index<const PLACE: usize>(array: &GlobalArray<u64, 1, Shared>, count: usize) -> Result<()> {
    further_on::<PLACE>();
    wander(PLACES, count, |i| array.get(i).map(|value| _ = opaque(value)))
}

#[inline(never)]
fn gets_by_rank<const PLACE: usize>(memory: &Symmetric<u64>, count: usize) -> Result<()> {
    further_on::<PLACE>();
    let rank = opaque_index(1);
    wander(0, count, |i| memory.get(rank, i).map(|value| _ = opaque(value)))
}

/// A quarter of the rounds with each.
fn in_quarters<M>(loops: [fn(&M, usize) -> Result<()>; 4], memory: &M, count: usize) -> Result<()> {
    (0..4).try_for_each(|n| loops[n](memory, (count + n) / 4))
}

/// The code behind it begins so many times 16 bytes behind a boundary of 64.
#[inline(always)]
fn further_on<const PLACE: usize>() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: instructions that do nothing.
    unsafe {
        std::arch::asm!(".p2align 6", ".rept {}", "nop", ".endr", const 16 * PLACE, options(nomem, nostack, preserves_flags));
    }
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

/// The exchange of the ghost rows of a square array of `f64`, beside the puts and bells it consists of, into memory that is
/// read where it lies. Either reads a word of each line that came, as a stencil would.
///
/// # Errors
/// Of the runtime.
pub fn exchange(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let (world, side) = (&session.world, size / WORD);
    let (rank, ranks) = (world.rank(), world.size());
    let mut array = GlobalArray::<f64, 2>::with_ghosts(world, Layout::rows([side, side], ranks)?, Ghosts::new([1, 0]))?;
    array.local_mut().fill(1.0);
    let border: Vec<f64> = vec![1.0; side];
    // Two halves in turn, a row from above and one from below in each.
    let rows = world.alloc::<f64>(4 * side)?;
    let bells: [Bell; 2] = [world.bell()?, world.bell()?];
    let neighbours = u64::from(rank > 0) + u64::from(rank + 1 < ranks);
    let mut turns = 0;
    let measured = session.alternate(
        session.operations(1000, 32 << 20, size),
        |n| {
            for _ in 0..n {
                array.exchange()?;
                let (local, rows) = (array.local(), array.local_extents()[0]);
                look(&local[..side]);
                look(&local[(rows - 1) * side..]);
            }
            Ok(())
        },
        |n| {
            for _ in 0..n {
                let (half, bell) = (turns % 2 * 2 * side, &bells[turns % 2]);
                if rank > 0 {
                    rows.put_slice_bell(rank - 1, half + side, &border, bell)?;
                }
                if rank + 1 < ranks {
                    rows.put_slice_bell(rank + 1, half, &border, bell)?;
                }
                turns += 1;
                bell.wait(turns.div_ceil(2) as u64 * neighbours)?;
                for place in (half..half + 2 * side).step_by(LINE) {
                    opaque(rows.load(place).to_bits());
                }
            }
            Ok(())
        },
    )?;
    Ok(vec![measured])
}

fn look(row: &[f64]) {
    row.iter().step_by(LINE).for_each(|word| _ = opaque(word.to_bits()));
}

/// A square array of `f64` transposed into another, beside what the ranks do at the same time with as many elements in
/// private memory, by tiles. Values are GB/s, read and written, of all ranks.
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
    let mut private = vec![0.0; rows * columns];
    let measured = session.alternate(
        1,
        |_| {
            let to = target.take().expect("given back by the transpose before");
            target = Some(array.transpose_into(world, to)?);
            Ok(())
        },
        |_| {
            transpose_tiles(&source, &mut private, rows, columns);
            world_is_done(world)
        },
    )?;
    let bytes = (2 * side * side * WORD) as f64;
    let rate = |nanoseconds: Vec<f64>| nanoseconds.into_iter().map(|ns| bytes / ns).collect();
    Ok(vec![Measured { ours: rate(measured.ours), limit: rate(measured.limit), ..measured }])
}

/// The slowest rank tells how long it took.
fn world_is_done(world: &World) -> Result<()> {
    world.barrier()
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
