//! One time step of the heat equation on a band of rows: the explicit 5-point scheme.
//!
//! A free cell moves towards its four neighbours: `t + alpha * ((n - t) + (s - t) + (w - t) + (e - t))`. Through
//! insulation and through the plate's edge no heat flows: such a neighbour counts as having the cell's own temperature.
//! The new temperature of a cell depends on five old ones in a fixed order, so it is the same, bit for bit, however the
//! plate is cut into bands.

use std::ops::Range;

use bellwether::cpu::{self, Kernel};

use super::plate::{Cell, conducts, is_free};

/// The largest stable `alpha` (time step times diffusivity over cell area) in two dimensions.
pub const MAX_ALPHA: f64 = 0.25;

/// A neighbour that takes part, as bits of an [`Edge`].
const NORTH: u8 = 1;
const SOUTH: u8 = 2;
const WEST: u8 = 4;
const EAST: u8 = 8;

/// From this length on, neighbouring cells with the same neighbours are computed as a run.
const LONG: usize = 4;

/// Cells that are computed at once in longer runs: the widest vector, and a cache line.
const VECTOR: usize = 8;

/// Free cells side by side, at least [`LONG`], with the same neighbours: the loop that the compiler vectorises. A neighbour that takes
/// no part is replaced by the cell itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    columns: Range<u32>,
    neighbours: u8,
}

/// Any other free cell and its neighbours (north, south, west, east): indices into three rows one after the other, the row above, its own and
/// the row below. A neighbour that takes no part is the cell itself.
#[derive(Clone, Copy, Debug)]
struct Edge {
    own: u32,
    neighbours: [u32; 4],
}

/// What to do in one row. Held and insulated cells appear in neither list and are never written.
#[derive(Clone, Debug, Default)]
struct RowPlan {
    runs: Vec<Run>,
    edges: Vec<Edge>,
    /// Whether the row below has the same runs. All of their cells then have all neighbours.
    has_twin: bool,
}

/// How the rows of a band change in a step. The temperatures that it works on have one more row on each side of the
/// band: the neighbours' nearest ones.
#[derive(Clone, Debug)]
pub struct Stencil {
    width: usize,
    alpha: f64,
    plan: Vec<RowPlan>,
}

/// The new temperature of a cell from its own and its neighbours'.
#[inline(always)]
fn relax(alpha: f64, own: f64, north: f64, south: f64, west: f64, east: f64) -> f64 {
    own + alpha * (((north - own) + (south - own)) + ((west - own) + (east - own)))
}

impl Stencil {
    /// For a band of these cells, with one more row above and below; outside the plate that row is insulation.
    ///
    /// # Panics
    /// If `cells` is not a whole number of rows, or fewer than two.
    pub fn new(width: usize, alpha: f64, cells: &[Cell]) -> Stencil {
        assert!(width > 0 && cells.len().is_multiple_of(width) && cells.len() >= 2 * width, "two more rows at least");
        let rows = cells.len() / width - 2;
        let mut plan: Vec<RowPlan> =
            (1..=rows).map(|row| plan_row(width, &cells[(row - 1) * width..(row + 2) * width])).collect();
        for row in 1..rows {
            plan[row - 1].has_twin = plan[row - 1].runs == plan[row].runs;
        }
        Stencil { width, alpha, plan }
    }

    /// How many rows the band has.
    pub fn rows(&self) -> usize {
        self.plan.len()
    }

    /// Computes the band's rows in `rows`, counted from 0: from all temperatures now those after the step.
    pub fn relax(&self, rows: Range<usize>, now: &[f64], next: &mut [f64]) {
        cpu::run(Step { stencil: self, rows, now, next });
    }

    /// Computes `steps` steps of rows that need fewer rows with each step: in step k, from 1, those of `rows` without k - 1 on either
    /// side. Odd steps are from `even` to `odd`, even ones back.
    ///
    /// All steps go down the band together, two rows at a time and each a row behind the one before, so that rows are read from memory
    /// once for all steps (time skewing: Wonnacott, 2000). A step writes rows of temperatures of two steps ago, which no cell needs
    /// any more.
    pub fn sweep(&self, rows: Range<usize>, steps: usize, even: &mut [f64], odd: &mut [f64]) {
        cpu::run(Sweep { stencil: self, rows, steps, even, odd });
    }

    /// Computes these rows, two at a time where that can be.
    #[inline(always)]
    fn relax_rows(&self, rows: Range<usize>, now: &[f64], next: &mut [f64]) {
        let mut row = rows.start;
        while row < rows.end {
            if row + 1 < rows.end && self.plan[row].has_twin {
                self.relax_twins(row, now, next);
                row += 2;
            } else {
                self.relax_row(row, now, next);
                row += 1;
            }
        }
    }

    #[inline(always)]
    fn relax_row(&self, row: usize, now: &[f64], next: &mut [f64]) {
        let (alpha, plan) = (self.alpha, &self.plan[row]);
        let three_rows = &now[row * self.width..(row + 3) * self.width];
        let (above, rest) = three_rows.split_at(self.width);
        let (own, below) = rest.split_at(self.width);
        let out = &mut next[(row + 1) * self.width..(row + 2) * self.width];
        for run in &plan.runs {
            let (start, end) = (run.columns.start as usize, run.columns.end as usize);
            let row_of = |side: u8, row| if run.neighbours & side == 0 { own } else { row };
            let (north, south) = (&row_of(NORTH, above)[start..end], &row_of(SOUTH, below)[start..end]);
            let (west, east) = (&own[start - 1..end - 1], &own[start + 1..end + 1]);
            let five = Five { alpha, own: &own[start..end], north, south, west, east };
            five.relax(start, &mut out[start..end]);
        }
        self.relax_edges(row, now, next);
    }

    /// Computes a row and its twin below.
    #[inline(always)]
    fn relax_twins(&self, row: usize, now: &[f64], next: &mut [f64]) {
        let width = self.width;
        let four_rows = &now[row * width..(row + 4) * width];
        let (out, out_below) = next[(row + 1) * width..(row + 3) * width].split_at_mut(width);
        for run in &self.plan[row].runs {
            let (start, end) = (run.columns.start as usize, run.columns.end as usize);
            let cells =
                |row: usize, shift: usize| &four_rows[row * width + start + shift - 1..row * width + end + shift - 1];
            let five = |row: usize| {
                let (north, south, west, east) = (cells(row - 1, 1), cells(row + 1, 1), cells(row, 0), cells(row, 2));
                Five { alpha: self.alpha, own: cells(row, 1), north, south, west, east }
            };
            Five::relax_both([five(1), five(2)], start, &mut out[start..end], &mut out_below[start..end]);
        }
        self.relax_edges(row, now, next);
        self.relax_edges(row + 1, now, next);
    }

    #[inline(always)]
    fn relax_edges(&self, row: usize, now: &[f64], next: &mut [f64]) {
        let three_rows = &now[row * self.width..(row + 3) * self.width];
        let next = &mut next[(row + 1) * self.width..(row + 2) * self.width];
        for edge in &self.plan[row].edges {
            let at = |index: u32| three_rows[index as usize];
            let [north, south, west, east] = edge.neighbours;
            let cell = relax(self.alpha, at(edge.own), at(north), at(south), at(west), at(east));
            next[edge.own as usize - self.width] = cell;
        }
    }

    /// The largest change of any cell in these rows of the band.
    pub fn change(&self, rows: Range<usize>, now: &[f64], next: &[f64]) -> f64 {
        let cells = (rows.start + 1) * self.width..(rows.end + 1) * self.width;
        let pairs = now[cells.clone()].iter().zip(&next[cells]);
        pairs.map(|(now, next)| (now - next).abs()).fold(0.0, f64::max)
    }
}

/// Cells side by side and their neighbours: slices of one length, at least [`LONG`].
struct Five<'a> {
    alpha: f64,
    own: &'a [f64],
    north: &'a [f64],
    south: &'a [f64],
    west: &'a [f64],
    east: &'a [f64],
}

impl Five<'_> {
    /// Computes all cells, the first of which is in this column. No cell is computed alone: the cells before the first whole vector and
    /// after the last one are computed together with neighbours, which are then computed twice, to the same bits.
    #[inline(always)]
    fn relax(&self, column: usize, next: &mut [f64]) {
        let len = next.len();
        if len < VECTOR {
            self.chunk::<LONG>(0, next);
            self.chunk::<LONG>(len - LONG, next);
            return;
        }
        self.chunk::<VECTOR>(0, next);
        let vectors = whole_vectors(column, len);
        let cells = [self.own, self.north, self.south, self.west, self.east].map(|row| &row[vectors.clone()]);
        let [own, north, south, west, east] = cells;
        relax_vectors(self.alpha, own, north, south, west, east, &mut next[vectors]);
        self.chunk::<VECTOR>(len - VECTOR, next);
    }

    /// As [`Five::relax`], for cells with all neighbours and those below them: each is the other's neighbour.
    #[inline(always)]
    fn relax_both([upper, lower]: [Five<'_>; 2], column: usize, next: &mut [f64], next_below: &mut [f64]) {
        let len = next.len();
        if len < 2 * VECTOR {
            upper.relax(column, next);
            lower.relax(column, next_below);
            return;
        }
        upper.chunk::<VECTOR>(0, next);
        lower.chunk::<VECTOR>(0, next_below);
        let vectors = whole_vectors(column, len);
        let vertical = [upper.north, upper.own, lower.own, lower.south].map(|row| &row[vectors.clone()]);
        let horizontal = [upper.west, upper.east, lower.west, lower.east].map(|row| &row[vectors.clone()]);
        let ([north, own, own_below, south], [west, east, west_below, east_below]) = (vertical, horizontal);
        let (cells, cells_below) = (&mut next[vectors.clone()], &mut next_below[vectors]);
        relax_vectors_of_both(
            upper.alpha,
            north,
            own,
            own_below,
            south,
            west,
            east,
            west_below,
            east_below,
            cells,
            cells_below,
        );
        upper.chunk::<VECTOR>(len - VECTOR, next);
        lower.chunk::<VECTOR>(len - VECTOR, next_below);
    }

    /// Computes `N` cells, from `at` on.
    #[inline(always)]
    fn chunk<const N: usize>(&self, at: usize, next: &mut [f64]) {
        let (own, north, south) = (&self.own[at..at + N], &self.north[at..at + N], &self.south[at..at + N]);
        let (west, east) = (&self.west[at..at + N], &self.east[at..at + N]);
        let mut cells = [0.0; N];
        for i in 0..N {
            cells[i] = relax(self.alpha, own[i], north[i], south[i], west[i], east[i]);
        }
        next[at..at + N].copy_from_slice(&cells);
    }
}

// The slices of these loops are arguments, each by itself: only so the compiler knows, without a check before each run, that what is
// written is none of what is read.

/// Computes cells side by side in a loop over single ones: the form that the compiler vectorises. From an outer loop over chunks of a
/// fixed length it makes gathers, which take four times as long.
#[inline(always)]
fn relax_vectors(alpha: f64, own: &[f64], north: &[f64], south: &[f64], west: &[f64], east: &[f64], next: &mut [f64]) {
    let len = next.len();
    let (own, north, south, west, east) = (&own[..len], &north[..len], &south[..len], &west[..len], &east[..len]);
    for i in 0..len {
        next[i] = relax(alpha, own[i], north[i], south[i], west[i], east[i]);
    }
}

/// As [`relax_vectors`], of two rows. Each cell is loaded once for both, and the difference between the two is taken once: with the
/// other sign it has the same bits, and its sum with another has the bits of that one's difference with it.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "as said above")]
fn relax_vectors_of_both(
    alpha: f64,
    north: &[f64],
    own: &[f64],
    own_below: &[f64],
    south: &[f64],
    west: &[f64],
    east: &[f64],
    west_below: &[f64],
    east_below: &[f64],
    next: &mut [f64],
    next_below: &mut [f64],
) {
    let len = next.len();
    let (north, own, own_below, south) = (&north[..len], &own[..len], &own_below[..len], &south[..len]);
    let (west, east, west_below, east_below) = (&west[..len], &east[..len], &west_below[..len], &east_below[..len]);
    let next_below = &mut next_below[..len];
    for i in 0..len {
        let between = own_below[i] - own[i];
        let vertical = (north[i] - own[i]) + between;
        let vertical_below = (south[i] - own_below[i]) - between;
        let horizontal = (west[i] - own[i]) + (east[i] - own[i]);
        let horizontal_below = (west_below[i] - own_below[i]) + (east_below[i] - own_below[i]);
        next[i] = own[i] + alpha * (vertical + horizontal);
        next_below[i] = own_below[i] + alpha * (vertical_below + horizontal_below);
    }
}

/// Of `len` cells, at least [`VECTOR`], the first of which is in this column: those in whole vectors that start in columns which are
/// multiples of a cache line's. In a plate of such a width few loads touch two lines.
#[inline(always)]
fn whole_vectors(column: usize, len: usize) -> Range<usize> {
    let start = VECTOR - column % VECTOR;
    start..start + (len - start) / VECTOR * VECTOR
}

/// [`Stencil::relax`], for the processor that it runs on.
struct Step<'a> {
    stencil: &'a Stencil,
    rows: Range<usize>,
    now: &'a [f64],
    next: &'a mut [f64],
}

impl Kernel for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.stencil.relax_rows(self.rows, self.now, self.next);
    }
}

/// [`Stencil::sweep`], for the processor that it runs on.
struct Sweep<'a> {
    stencil: &'a Stencil,
    rows: Range<usize>,
    steps: usize,
    even: &'a mut [f64],
    odd: &'a mut [f64],
}

impl Kernel for Sweep<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Sweep { stencil, rows, steps, even, odd } = self;
        for first in rows.clone().step_by(2) {
            for step in 0..steps {
                // The rows that the step before has just made possible, of those that this step computes.
                let (from, to) = (first.saturating_sub(step), (first + 2).saturating_sub(step));
                let (from, to) = (from.max(rows.start + step), to.min(rows.end.saturating_sub(step)));
                let (now, next) = if step % 2 == 0 { (&*even, &mut *odd) } else { (&*odd, &mut *even) };
                stencil.relax_rows(from..to, now, next);
            }
        }
    }
}

/// Sorts the cells of the middle one of three rows.
fn plan_row(width: usize, three_rows: &[Cell]) -> RowPlan {
    let (above, rest) = three_rows.split_at(width);
    let (own, below) = rest.split_at(width);
    let mut runs: Vec<Run> = Vec::new();
    for column in (0..width).filter(|&column| is_free(own[column])) {
        let mut neighbours = 0;
        for (side, present) in [
            (NORTH, conducts(above[column])),
            (SOUTH, conducts(below[column])),
            (WEST, column > 0 && conducts(own[column - 1])),
            (EAST, column + 1 < width && conducts(own[column + 1])),
        ] {
            neighbours |= if present { side } else { 0 };
        }
        let column = column as u32;
        match runs.last_mut() {
            Some(run) if run.columns.end == column && run.neighbours == neighbours => run.columns.end += 1,
            _ => runs.push(Run { columns: column..column + 1, neighbours }),
        }
    }
    // In a run the cells to the left and right take part.
    let is_long = |run: &Run| run.columns.len() >= LONG && run.neighbours & (WEST | EAST) == WEST | EAST;
    let (runs, short): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(is_long);
    let edge = |column: u32, neighbours: u8| {
        let (own, width) = (column + width as u32, width as u32);
        let at = |side: u8, there: u32| if neighbours & side == 0 { own } else { there };
        let there = [at(NORTH, own - width), at(SOUTH, own + width), at(WEST, own - 1), at(EAST, own + 1)];
        Edge { own, neighbours: there }
    };
    let edges =
        short.into_iter().flat_map(|Run { columns, neighbours }| columns.map(move |column| edge(column, neighbours)));
    RowPlan { runs, edges: edges.collect(), has_twin: false }
}

#[cfg(test)]
mod tests {
    use super::super::plate::{INSULATED, conducts, free, held, is_free, temperature};
    use super::*;

    /// The temperatures of a row between two rows of insulation, after so many steps, and the last change.
    fn one_row(cells: &[Cell], steps: usize) -> (Vec<f64>, f64) {
        let (wall, width) = (vec![INSULATED; cells.len()], cells.len());
        let cells = [&wall, cells, &wall].concat();
        let stencil = Stencil::new(width, 0.25, &cells);
        let mut now: Vec<f64> = cells.iter().map(|&cell| temperature(cell)).collect();
        let mut next = now.clone();
        for _ in 0..steps {
            stencil.relax(0..1, &now, &mut next);
            std::mem::swap(&mut now, &mut next);
        }
        (now[width..2 * width].to_vec(), stencil.change(0..1, &now, &next))
    }

    #[test]
    fn a_rod_between_two_held_ends_reaches_a_straight_line() {
        let (row, _) = one_row(&[held(0), free(9), free(90), free(200), held(255)], 400);
        for (found, expected) in row.iter().zip([0.0, 25.0, 50.0, 75.0, 100.0]) {
            assert!((found - expected).abs() < 1e-9, "{row:?}");
        }
    }

    #[test]
    fn no_heat_is_lost_or_passes_insulation() {
        let (row, _) = one_row(&[free(255), free(0), free(255), INSULATED, free(51)], 400);
        assert!(row[..3].iter().all(|t| (t - 200.0 / 3.0).abs() < 1e-9), "{row:?}");
        assert_eq!(row[4], 20.0);
    }

    #[test]
    fn change_is_the_largest_change() {
        assert_eq!(one_row(&[held(255), free(0), free(0)], 1).1, 25.0);
    }

    #[test]
    fn a_sweep_of_several_steps_gives_the_bits_of_single_steps() {
        let (width, height) = (37, 23);
        let cells: Vec<Cell> = (0..width * (height + 2))
            .map(|i| match i * i * 7 % 31 {
                0 => INSULATED,
                1 => held(200),
                rest => free(8 * rest as u8),
            })
            .collect();
        let stencil = Stencil::new(width, 0.24, &cells);
        let start: Vec<f64> = cells.iter().map(|&cell| temperature(cell)).collect();
        for (rows, steps) in [(0..23, 1), (0..23, 2), (3..20, 5), (0..23, 8), (4..9, 8), (7..7, 3), (2..3, 4)] {
            let (mut now, mut next) = (start.clone(), start.clone());
            let (mut even, mut odd) = (start.clone(), start.clone());
            stencil.sweep(rows.clone(), steps, &mut even, &mut odd);
            for step in 0..steps {
                let range = rows.start + step..rows.end.saturating_sub(step).max(rows.start + step);
                stencil.relax(range.clone(), &now, &mut next);
                std::mem::swap(&mut now, &mut next);
                // What the sweep has of this step and the next does not overwrite.
                let swept = if step % 2 == 0 { &odd } else { &even };
                let later = if step + 2 < steps { range.start + 2..range.end.saturating_sub(2) } else { 0..0 };
                for row in range.filter(|row| !later.contains(row)) {
                    let row = (row + 1) * width..(row + 2) * width;
                    assert!(swept[row.clone()].iter().zip(&now[row]).all(|(a, b)| a.to_bits() == b.to_bits()));
                }
            }
        }
    }

    #[test]
    fn every_cell_is_what_the_formula_says_bit_for_bit() {
        // Stretches of every length between walls, and neighbours of every kind.
        for width in (1..70).chain([131]) {
            let cells: Vec<Cell> = (0..width * 12)
                // The last rows are alike, with longer stretches.
                .map(|i| if i / width < 7 { i * i * 13 % (7 + i / width * 5) } else { i % width * 11 % 43 })
                .enumerate()
                .map(|(i, kind)| match kind {
                    // A wall along a row too.
                    _ if i / width == 5 && i % width < width / 2 => INSULATED,
                    0 if width > 3 => INSULATED,
                    1 if width > 3 => held(250),
                    rest => free((7 * rest % 256) as u8),
                })
                .collect();
            let now: Vec<f64> = cells.iter().enumerate().map(|(i, &c)| temperature(c) + 1.0 / (i + 3) as f64).collect();
            let mut next = vec![-1.0; now.len()];
            Stencil::new(width, 0.23, &cells).relax(0..10, &now, &mut next);
            for row in 1..11 {
                for column in 0..width {
                    let at = row * width + column;
                    if !is_free(cells[at]) {
                        assert_eq!(next[at], -1.0);
                        continue;
                    }
                    let neighbour = |inside: bool, other: usize| {
                        if inside && conducts(cells[other]) { now[other] } else { now[at] }
                    };
                    let (north, south) = (neighbour(true, at - width), neighbour(true, at + width));
                    let west = neighbour(column > 0, at.wrapping_sub(1));
                    let east = neighbour(column + 1 < width, at + 1);
                    let expected = relax(0.23, now[at], north, south, west, east);
                    assert_eq!(next[at].to_bits(), expected.to_bits(), "width {width}, row {row}, column {column}");
                }
            }
        }
    }
}
