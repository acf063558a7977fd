//! Transposing a matrix that is spread over ranks by rows.

use std::time::Duration;

use bellwether::{GlobalArray, Layout, Result, World};

use crate::random::digest;

/// The result of transposing.
#[derive(Clone, Debug)]
pub struct Transposed {
    /// How long each round took.
    pub times: Vec<Duration>,
    /// How long it took all ranks to copy their parts, each in its own memory, in each round.
    pub copies: Vec<Duration>,
    /// Elements that are not what they should be.
    pub wrong: u64,
    /// The digest of the transposed matrix.
    pub digest: u64,
}

/// The element in a row and a column of a matrix: different everywhere, and exact.
fn element([row, column]: [usize; 2], columns: usize) -> f64 {
    (row * columns + column) as f64
}

/// Transposes a matrix `rounds` times, and looks at every element each time. Collective.
///
/// # Errors
/// Out of memory, or a rank was lost.
pub fn run(world: &World, [rows, columns]: [usize; 2], rounds: usize) -> Result<Transposed> {
    let ranks = world.size();
    let from = GlobalArray::from_fn(world, Layout::rows([rows, columns], ranks)?, |index| element(index, columns))?;
    let mut to = GlobalArray::new(world, Layout::rows([columns, rows], ranks)?)?;
    // Ones, so that the memory is there before it is timed.
    let mut copy = vec![1.0; from.local().len()];
    let (mut times, mut copies) = (Vec::new(), Vec::new());
    let mut wrong = 0;
    for _ in 0..rounds {
        copies.push(timed(world, || {
            copy.copy_from_slice(from.local());
            // Makes the compiler keep the copy, which nothing reads.
            std::hint::black_box(&mut copy);
            Ok(())
        })?);
        to.fill(-1.0);
        let mut done = None;
        times.push(timed(world, || {
            done = Some(from.transpose_into(world, to)?);
            Ok(())
        })?);
        to = done.expect("it was timed without an error");
        wrong += to.iter().filter(|([row, column], value)| **value != element([*column, *row], columns)).count() as u64;
    }
    let places = to.iter().map(|([row, column], value)| ((row * rows + column) as u64, value.to_bits()));
    let mut totals = [wrong, digest(places)];
    world.allreduce(&mut totals, u64::wrapping_add)?;
    Ok(Transposed { times, copies, wrong: totals[0], digest: totals[1] })
}

/// How long `work` takes when all ranks begin at once, until the last is done.
fn timed(world: &World, work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    world.barrier()?;
    let start = world.elapsed();
    work()?;
    world.barrier()?;
    Ok(world.elapsed() - start)
}
