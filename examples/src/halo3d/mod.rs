//! Heat in a box: a 7-point stencil in three dimensions, whose ranks have blocks and exchange faces.
//!
//! The exchange is written twice: [`bells`] puts faces to symmetric memory and rings a bell, [`notifications`] writes them to a
//! GASPI segment, with a queue for each direction. Both overlap with the cells that need no face. This module knows neither.

pub mod bells;
pub mod notifications;
mod part;

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::random::digest;

pub use self::part::Part;

/// Two for each axis: `2 * axis` towards its begin, `2 * axis + 1` towards its end.
pub const DIRECTIONS: usize = 6;
/// Diffusivity times time step over the square of a cell's side. Below 1/6 it is stable.
const ALPHA: f64 = 0.15;
/// Exchanges before those without a step between them are timed: paths are made, and memory is touched.
const WARM: u64 = 4;
/// Fewest exchanges that are timed for the time that one takes alone.
const ALONE: u64 = 20;

/// The direction from the neighbour in this direction to here.
pub fn opposite(direction: usize) -> usize {
    direction ^ 1
}

/// How faces travel.
pub trait Exchange {
    /// The error of this exchange.
    type Error;

    /// Sends the faces of a block to the neighbours.
    ///
    /// # Errors
    /// A rank was lost.
    fn send(&mut self, field: &Field) -> Result<(), Self::Error>;

    /// Waits for the neighbours' faces, and puts them around the block.
    ///
    /// # Errors
    /// A rank was lost.
    fn receive(&mut self, field: &mut Field) -> Result<(), Self::Error>;

    /// Waits for all ranks. Collective.
    ///
    /// # Errors
    /// A rank was lost.
    fn barrier(&self) -> Result<(), Self::Error>;
}

/// How long it took on this rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// All steps.
    pub all: Duration,
    /// In the steps, what the exchanges took beside the computation.
    pub shown: Duration,
    /// As many exchanges without computation, each of the median time.
    pub alone: Duration,
}

/// Temperatures of a block, with a layer of cells around it, now and after the next step.
#[derive(Clone, Debug)]
pub struct Field {
    part: Part,
    now: Vec<f64>,
    next: Vec<f64>,
}

/// The temperature at the beginning; outside of the box it stays. Sides of the box are 1.
fn beginning(sides: [usize; 3], cell: [isize; 3]) -> f64 {
    let place = |axis: usize| (cell[axis] as f64 + 0.5) / sides[axis] as f64;
    let [x, y, z] = [place(0), place(1), place(2)];
    let squares = |x: f64, y: f64, z: f64| x * x + y * y + z * z;
    // A hot ball in the box, and a heater in the middle of one wall. The other walls are cold.
    let in_ball = x > 0.0 && squares(x - 0.65, y - 0.4, z - 0.5) < 0.04;
    let in_heater = x < 0.0 && squares(0.0, y - 0.6, z - 0.5) < 0.06;
    if in_ball || in_heater { 100.0 } else { 0.0 }
}

impl Field {
    /// The block of a rank at the beginning.
    pub fn new(part: Part) -> Field {
        let mut now = Vec::new();
        let around = |axis: usize| -1..part.len[axis] as isize + 1;
        for x in around(0) {
            for y in around(1) {
                for z in around(2) {
                    let cell = [x + part.from[0] as isize, y + part.from[1] as isize, z + part.from[2] as isize];
                    now.push(beginning(part.sides, cell));
                }
            }
        }
        Field { part, next: now.clone(), now }
    }

    /// The block that it is.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// The place of a cell, counted from the first that is around the block.
    fn at(&self, x: usize, y: usize, z: usize) -> usize {
        let [_, ly, lz] = self.part.len;
        (x * (ly + 2) + y) * (lz + 2) + z
    }

    /// The cells of a face of the block, or with `around` those beside it.
    fn face(&self, direction: usize, around: bool) -> [Range<usize>; 3] {
        let (axis, up) = (direction / 2, direction % 2 == 1);
        let len = self.part.len;
        let at = match (up, around) {
            (false, false) => 1,
            (false, true) => 0,
            (true, false) => len[axis],
            (true, true) => len[axis] + 1,
        };
        std::array::from_fn(|k| if k == axis { at..at + 1 } else { 1..len[k] + 1 })
    }

    /// The face of the block in a direction.
    pub fn pack(&self, direction: usize) -> Vec<f64> {
        let [xs, ys, zs] = self.face(direction, false);
        let mut face = Vec::with_capacity(self.part.face(direction));
        for x in xs {
            for y in ys.clone() {
                let row = self.at(x, y, 0);
                face.extend_from_slice(&self.now[row + zs.start..row + zs.end]);
            }
        }
        face
    }

    /// Puts the neighbour's face beside the block.
    pub fn unpack(&mut self, direction: usize, face: &[f64]) {
        let [xs, ys, zs] = self.face(direction, true);
        let mut rows = face.chunks_exact(zs.len());
        for x in xs {
            for y in ys.clone() {
                let row = self.at(x, y, 0);
                if let Some(cells) = rows.next() {
                    self.now[row + zs.start..row + zs.end].copy_from_slice(cells);
                }
            }
        }
    }

    /// Computes these cells of the next step, counted as in [`Field::at`].
    fn relax(&mut self, [xs, ys, zs]: [Range<usize>; 3]) {
        let (dx, dy) = (self.at(1, 0, 0), self.at(0, 1, 0));
        for x in xs {
            for y in ys.clone() {
                let row = self.at(x, y, 0);
                for at in row + zs.start..row + zs.end {
                    let now = &self.now;
                    let around = now[at - dx] + now[at + dx] + now[at - dy] + now[at + dy] + now[at - 1] + now[at + 1];
                    self.next[at] = now[at] + ALPHA * (around - 6.0 * now[at]);
                }
            }
        }
    }

    /// Cells that need no neighbour's face.
    fn relax_inner(&mut self) {
        self.relax(self.part.len.map(|len| 2..len.max(1)));
    }

    /// The others.
    fn relax_shell(&mut self) {
        let len = self.part.len;
        for axis in 0..3 {
            // Axes before this one have had their ends.
            let rest = |k: usize| if k < axis { 2..len[k].max(1) } else { 1..len[k] + 1 };
            let ends = if len[axis] > 1 { vec![1, len[axis]] } else { vec![1] };
            for end in ends {
                self.relax(std::array::from_fn(|k| if k == axis { end..end + 1 } else { rest(k) }));
            }
        }
        std::mem::swap(&mut self.now, &mut self.next);
    }

    /// This block's part of the digest of all temperatures.
    pub fn digest(&self) -> u64 {
        let Part { sides, from, len, .. } = self.part;
        let mut values = Vec::with_capacity(len.iter().product());
        for x in 0..len[0] {
            for y in 0..len[1] {
                for z in 0..len[2] {
                    let number = ((x + from[0]) * sides[1] + y + from[1]) * sides[2] + z + from[2];
                    values.push((number as u64, self.now[self.at(x + 1, y + 1, z + 1)].to_bits()));
                }
            }
        }
        digest(values)
    }

    /// The cells of this block in the slice through the middle of the last axis; none if it is elsewhere.
    pub fn slice(&self) -> Vec<f64> {
        let Part { len, .. } = self.part;
        let Some(z) = self.part.slice() else { return Vec::new() };
        let rows = (1..=len[0]).flat_map(|x| (1..=len[1]).map(move |y| (x, y)));
        rows.map(|(x, y)| self.now[self.at(x, y, z + 1)]).collect()
    }
}

/// Computes the steps. `progress` gets the number of steps that are done. Collective.
///
/// # Errors
/// A rank was lost.
pub fn run<E: Exchange>(
    exchange: &mut E,
    field: &mut Field,
    steps: u64,
    mut progress: impl FnMut(u64),
) -> Result<Times, E::Error> {
    exchange.barrier()?;
    let mut alone = Vec::new();
    // The faces are those of the beginning, each time: nothing changes.
    for n in 0..WARM + ALONE.max(steps / 10) {
        let begin = Instant::now();
        exchange.send(field)?;
        exchange.receive(field)?;
        if n >= WARM {
            alone.push(begin.elapsed());
        }
    }
    let alone = median(&mut alone).mul_f64(steps as f64);
    exchange.barrier()?;
    let (begin, mut shown) = (Instant::now(), Duration::ZERO);
    for step in 1..=steps {
        let start = Instant::now();
        exchange.send(field)?;
        shown += start.elapsed();
        field.relax_inner();
        let start = Instant::now();
        exchange.receive(field)?;
        shown += start.elapsed();
        field.relax_shell();
        progress(step);
    }
    Ok(Times { all: begin.elapsed(), shown, alone })
}

/// The middle one; no time for none.
fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The percentage of communication that steps hide; negative if the steps make it longer.
pub fn hidden(shown: Duration, alone: Duration) -> f64 {
    if alone.is_zero() { 0.0 } else { 100.0 * (1.0 - shown.as_secs_f64() / alone.as_secs_f64()) }
}

/// The digest after `steps` steps on one rank.
pub fn serial_digest(sides: [usize; 3], steps: u64) -> u64 {
    let mut field = Field::new(Part::whole(sides));
    for _ in 0..steps {
        field.relax_inner();
        field.relax_shell();
    }
    field.digest()
}

/// The whole slice, of those of all ranks.
pub fn join(sides: [usize; 3], parts: &[Part], slices: &[Vec<f64>]) -> Vec<f64> {
    let mut whole = vec![0.0; sides[0] * sides[1]];
    for (part, slice) in parts.iter().zip(slices).filter(|(part, _)| part.slice().is_some()) {
        for (x, row) in slice.chunks_exact(part.len[1]).take(part.len[0]).enumerate() {
            let start = (x + part.from[0]) * sides[1] + part.from[1];
            whole[start..start + row.len()].copy_from_slice(row);
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks in one process: faces are copied.
    fn blocks(sides: [usize; 3], ranks: usize, steps: u64) -> (u64, Vec<f64>) {
        let parts: Vec<Part> = (0..ranks).map(|rank| Part::new(sides, ranks, rank).unwrap()).collect();
        let mut fields: Vec<Field> = parts.iter().map(|part| Field::new(part.clone())).collect();
        for _ in 0..steps {
            for direction in 0..DIRECTIONS {
                for (here, part) in parts.iter().enumerate() {
                    if let Some(there) = part.neighbour(direction) {
                        let face = fields[there].pack(opposite(direction));
                        fields[here].unpack(direction, &face);
                    }
                }
            }
            for field in &mut fields {
                field.relax_inner();
                field.relax_shell();
            }
        }
        let slices: Vec<_> = fields.iter().map(Field::slice).collect();
        (fields.iter().fold(0, |sum, field| sum.wrapping_add(field.digest())), join(sides, &parts, &slices))
    }

    #[test]
    fn one_late_exchange_does_not_change_what_is_hidden() {
        let ms = Duration::from_millis;
        assert_eq!(median(&mut [ms(4), ms(900), ms(5), ms(3), ms(4)]), ms(4));
        assert_eq!(median(&mut []), Duration::ZERO);
        assert_eq!([hidden(ms(1), ms(4)), hidden(ms(6), ms(4)), hidden(ms(1), ms(0))], [75.0, -50.0, 0.0]);
    }

    #[test]
    fn blocks_have_the_bits_of_the_whole() {
        let sides = [9, 7, 12];
        let (alone, picture) = blocks(sides, 1, 6);
        assert_eq!(alone, serial_digest(sides, 6));
        assert!(picture.iter().any(|t| *t > 40.0) && picture.iter().all(|t| (0.0..=100.0).contains(t)));
        for ranks in [2, 3, 4, 7, 8, 12, 27] {
            assert_eq!(blocks(sides, ranks, 6), (alone, picture.clone()), "{ranks} ranks");
        }
    }
}
