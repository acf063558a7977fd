//! Arrays: elements of another rank, the local part, ghost layers, the transposed array.

use bellwether::array::{Ghosts, GlobalArray, Layout, Local, Shared};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use bellwether_runtime::{Error, Result, Symmetric, World};

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
/// Those of the runtime.
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
/// Those of the runtime.
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

/// Elements of rank 1 as an address and a length: the least that an array with checked indices needs.
struct Bare {
    first: *mut u64,
    len: usize,
    /// The memory that `first` points into.
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
            // SAFETY: in range, as just checked; no other code accesses it now.
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

/// Calls `each` `count` times with the indices from `first` on, round and round. Between two calls it only counts.
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

/// The sum of each rank's own elements, on all ranks at the same time, beside the sum of private memory.
///
/// # Errors
/// Those of the runtime.
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

/// The exchange of the ghost rows of a square array of `f64`, beside the quicker of two programs by hand: memcpy of the border into
/// memory of the neighbour's and a flag there, where rows are read where they landed; or a flag, memcpy of the neighbour's border, and a
/// flag back. Each writes a word of each line of its two borders before, and reads one of each line that came, as a stencil would.
///
/// # Errors
/// Those of the runtime.
pub fn exchange(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let (world, side) = (&session.world, size / WORD);
    let mut array =
        GlobalArray::<f64, 2>::with_ghosts(world, Layout::rows([side, side], world.size())?, Ghosts::new([1, 0]))?;
    array.local_mut().fill(1.0);
    let bare = Borders::new(world, side)?;
    let operations = session.operations(1000, 32 << 20, size);
    let by_put = |n| {
        bare.put(n);
        Ok(())
    };
    let by_get = |n| {
        bare.get(n);
        Ok(())
    };
    let best = if session.mapped { session.quickest(operations, [&mut { by_put }, &mut { by_get }])? } else { 0 };
    let measured = session.alternate(
        operations,
        |n| {
            for _ in 0..n {
                let rows = array.local_extents()[0];
                let local = array.local_mut();
                for row in [1, rows - 2] {
                    write_row(&mut local[row * side..][..side]);
                }
                array.exchange()?;
                for (_, below) in bare.neighbours() {
                    // From a rank that has this one below comes the upper row.
                    let row = [rows - 1, 0][below];
                    read_row(&array.local()[row * side..][..side]);
                }
            }
            Ok(())
        },
        |n| if best == 0 { by_put(n) } else { by_get(n) },
    )?;
    Ok(vec![measured])
}

/// Ghost rows by hand, of a row to each neighbour.
struct Borders<'a> {
    world: &'a World,
    side: usize,
    /// Two halves in turn, so that a neighbour may be one exchange ahead: in each a row from above and one from below, and their
    /// flags. Behind them this rank's border, above and below; then flags of borders that were copied.
    rows: Symmetric<u64>,
    flags: Symmetric<u64>,
    turn: Cell<u64>,
}

impl<'a> Borders<'a> {
    const ROWS: usize = 6;

    fn new(world: &'a World, side: usize) -> Result<Borders<'a>> {
        let rows = world.alloc::<u64>(Self::ROWS * side.next_multiple_of(LINE))?;
        Ok(Borders { world, side, rows, flags: world.alloc::<u64>(Self::ROWS * LINE)?, turn: Cell::new(0) })
    }

    fn row(&self, rank: usize, place: usize) -> *mut f64 {
        address(&self.rows, rank, place * self.side.next_multiple_of(LINE)).cast()
    }

    fn flag(&self, rank: usize, place: usize) -> &AtomicU64 {
        word(&self.flags, rank, place * LINE)
    }

    /// The ranks above and below, and on which side of theirs this rank lies: 1 is below.
    fn neighbours(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let above = (rank > 0).then(|| (rank - 1, 1));
        above.into_iter().chain((rank + 1 < ranks).then(|| (rank + 1, 0)))
    }

    fn write_border(&self) {
        for side in 0..2 {
            // SAFETY: a row of ours, which no rank reads between two exchanges.
            write_row(unsafe { std::slice::from_raw_parts_mut(self.row(self.world.rank(), 4 + side), self.side) });
        }
    }

    /// By memcpy into the neighbours' memory.
    fn put(&self, n: usize) {
        let rank = self.world.rank();
        for _ in 0..n {
            let turn = self.turn.replace(self.turn.get() + 1) + 1;
            let half = (turn % 2) as usize * 2;
            self.write_border();
            for (neighbour, below) in self.neighbours() {
                // SAFETY: a row there, which its owner reads after it has seen the flag.
                unsafe {
                    libc::memcpy(
                        self.row(neighbour, half + below).cast(),
                        self.row(rank, 5 - below).cast(),
                        self.side * WORD,
                    )
                };
                // Pairs with the Acquire load below.
                self.flag(neighbour, half + below).store(turn, Ordering::Release);
            }
            for (_, below) in self.neighbours() {
                let here = half + 1 - below;
                spin_until(|| self.flag(rank, here).load(Ordering::Acquire) == turn);
                // SAFETY: a row of ours, which its neighbour writes again when it has heard from this rank once more.
                read_row(unsafe { std::slice::from_raw_parts(self.row(rank, here), self.side) });
            }
        }
    }

    /// By memcpy from the neighbours' memory.
    fn get(&self, n: usize) {
        let rank = self.world.rank();
        for _ in 0..n {
            let turn = self.turn.replace(self.turn.get() + 1) + 1;
            self.write_border();
            // Pairs with the Acquire load below.
            self.neighbours().for_each(|(rank, below)| self.flag(rank, below).store(turn, Ordering::Release));
            for (neighbour, below) in self.neighbours() {
                let here = 1 - below;
                spin_until(|| self.flag(rank, here).load(Ordering::Acquire) == turn);
                let row = self.row(rank, here);
                // SAFETY: a row of ours that no other code uses here, and a border that its owner does not change until it has seen the flag.
                unsafe { libc::memcpy(row.cast(), self.row(neighbour, 4 + below).cast(), self.side * WORD) };
                // Pairs with the Acquire load below.
                self.flag(neighbour, 4 + below).store(turn, Ordering::Release);
                // SAFETY: as above.
                read_row(unsafe { std::slice::from_raw_parts(row, self.side) });
            }
            for (_, below) in self.neighbours() {
                spin_until(|| self.flag(rank, 4 + 1 - below).load(Ordering::Acquire) == turn);
            }
        }
    }
}

/// Writes a word of each line.
fn write_row(row: &mut [f64]) {
    row.iter_mut().step_by(LINE).for_each(|word| *word = opaque(word.to_bits()) as f64);
}

fn read_row(row: &[f64]) {
    row.iter().step_by(LINE).for_each(|word| _ = opaque(word.to_bits()));
}

/// A square array of `f64` transposed into another. Limit: as much private memory copied by all ranks at the same time.
/// Beside: as many elements of private memory transposed by tiles, by all ranks at the same time. Values are GB/s, read and
/// written, of all ranks.
///
/// # Errors
/// Those of the runtime.
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
