//! One time step of the heat equation on a band of rows: the explicit 5-point scheme.
//!
//! A free cell moves towards the mean of its four neighbours: `t + alpha * ((n + s) + (w + e) - 4 * t)`. Through
//! insulation and through the plate's edge no heat flows: such a neighbour counts as having the cell's own temperature.
//! The new temperature of a cell depends on five old ones in a fixed order, so it is the same, bit for bit, however the
//! plate is cut into bands.

use std::ops::Range;

use bellwether::cpu::{Kernel, Level};

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

/// Rows with the same runs that are computed together.
const TOGETHER: usize = 4;

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

/// The work in one row. Held and insulated cells appear in neither list and are never written.
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
    own + alpha * (((north + south) + (west + east)) - 4.0 * own)
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
        match Level::best() {
            Level::Base => Step { stencil: self, rows, now, next, add: Plain }.run(),
            level => level.run(Step { stencil: self, rows, now, next, add: Fused::new() }),
        }
    }

    /// Computes `steps` steps of rows that need fewer rows with each step: in step k, from 1, those of `rows` without k - 1 on either
    /// side. Odd steps are from `even` to `odd`, even ones back.
    ///
    /// All steps go down the band together, four rows at a time and each a row behind the one before, so that rows are read from memory
    /// once for all steps (time skewing: Wonnacott, 2000). A step writes rows of temperatures of two steps ago, which no cell needs
    /// any more.
    pub fn sweep(&self, rows: Range<usize>, steps: usize, even: &mut [f64], odd: &mut [f64]) {
        match Level::best() {
            Level::Base => Sweep { stencil: self, rows, steps, even, odd, add: Plain }.run(),
            level => level.run(Sweep { stencil: self, rows, steps, even, odd, add: Fused::new() }),
        }
    }

    /// Computes these rows, as many at a time as can be.
    #[inline(always)]
    fn relax_rows<A: Add>(&self, add: A, rows: Range<usize>, now: &[f64], next: &mut [f64]) {
        let mut row = rows.start;
        while row < rows.end {
            let alike = 1 + self.plan[row..rows.end].iter().take(TOGETHER - 1).take_while(|plan| plan.has_twin).count();
            let alike = alike.min(rows.end - row);
            if alike == TOGETHER {
                self.relax_together(add, row, now, next);
                row += TOGETHER;
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

    /// Computes a row and those below it that are its twins.
    #[inline(always)]
    fn relax_together<A: Add>(&self, add: A, row: usize, now: &[f64], next: &mut [f64]) {
        let width = self.width;
        let rows = &now[row * width..(row + TOGETHER + 2) * width];
        let out = &mut next[(row + 1) * width..(row + 1 + TOGETHER) * width];
        for run in &self.plan[row].runs {
            let (start, end) = (run.columns.start as usize, run.columns.end as usize);
            let five = |row: usize| {
                let cells =
                    |row: usize, shift: usize| &rows[row * width + start + shift - 1..row * width + end + shift - 1];
                let (north, south, west, east) = (cells(row - 1, 1), cells(row + 1, 1), cells(row, 0), cells(row, 2));
                Five { alpha: self.alpha, own: cells(row, 1), north, south, west, east }
            };
            if end - start < 2 * VECTOR {
                for (row, out) in out.chunks_exact_mut(width).enumerate() {
                    five(row + 1).relax(start, &mut out[start..end]);
                }
                continue;
            }
            // As in `Five::relax`: what is before and after the whole vectors is computed in vectors that overlap them.
            let vectors = whole_vectors(start, end - start);
            let whole = start + vectors.start..start + vectors.end;
            for columns in [start..start + VECTOR, whole, end - VECTOR..end] {
                let cells = |row: usize| &rows[row * width + columns.start - 1..row * width + columns.end + 1];
                let (first, rest) = out.split_at_mut(width);
                let (second, rest) = rest.split_at_mut(width);
                let (third, fourth) = rest.split_at_mut(width);
                relax_vectors_of_four(
                    (add, self.alpha),
                    cells(0),
                    cells(1),
                    cells(2),
                    cells(3),
                    cells(4),
                    cells(5),
                    &mut first[columns.clone()],
                    &mut second[columns.clone()],
                    &mut third[columns.clone()],
                    &mut fourth[columns.clone()],
                );
            }
        }
        (row..row + TOGETHER).for_each(|row| self.relax_edges(row, now, next));
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

// Each slice of these loops is an argument of its own: only then the compiler knows, without a check before each run, that the loop does
// not write memory that it reads.

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

/// As [`relax_vectors`], of four rows with all neighbours, between two more; these slices have one more cell on either side. Each cell
/// above or below is loaded once for all.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "as said above")]
fn relax_vectors_of_four<A: Add>(
    (add, alpha): (A, f64),
    north: &[f64],
    first: &[f64],
    second: &[f64],
    third: &[f64],
    fourth: &[f64],
    south: &[f64],
    next_first: &mut [f64],
    next_second: &mut [f64],
    next_third: &mut [f64],
    next_fourth: &mut [f64],
) {
    let len = next_first.len();
    let (next_second, next_third, next_fourth) =
        (&mut next_second[..len], &mut next_third[..len], &mut next_fourth[..len]);
    let (north, south) = (&north[1..len + 1], &south[1..len + 1]);
    let [a, b, c, d] = [first, second, third, fourth].map(|row| &row[1..len + 1]);
    let [west_a, west_b, west_c, west_d] = [first, second, third, fourth].map(|row| &row[..len]);
    let [east_a, east_b, east_c, east_d] = [first, second, third, fourth].map(|row| &row[2..len + 2]);
    for i in 0..len {
        let cell = |north: f64, own: f64, south: f64, west: f64, east: f64| {
            own + alpha * add.less_four(add.sum(north, south) + (west + east), own)
        };
        next_first[i] = cell(north[i], a[i], b[i], west_a[i], east_a[i]);
        next_second[i] = cell(a[i], b[i], c[i], west_b[i], east_b[i]);
        next_third[i] = cell(b[i], c[i], d[i], west_c[i], east_c[i]);
        next_fourth[i] = cell(c[i], d[i], south[i], west_d[i], east_d[i]);
    }
}

/// How some of the additions and subtractions are done. Every way gives the same bits.
trait Add: Copy {
    /// `a + b`
    fn sum(self, a: f64, b: f64) -> f64;
    /// `a - 4 * b`
    fn less_four(self, a: f64, b: f64) -> f64;
}

/// As such.
#[derive(Clone, Copy)]
struct Plain;

impl Add for Plain {
    #[inline(always)]
    fn sum(self, a: f64, b: f64) -> f64 {
        a + b
    }

    #[inline(always)]
    fn less_four(self, a: f64, b: f64) -> f64 {
        a - 4.0 * b
    }
}

/// As fused multiplications and additions with factors that are powers of two, whose products are exact: these round once, as an addition
/// does. The scheme is mostly additions, and some processors (Zen) multiply and fuse in other units than those that add: so all of them
/// have work. Only for processors that have such instructions: elsewhere each is a call.
#[derive(Clone, Copy)]
struct Fused {
    /// 1, hidden from the compiler, which would go back to additions.
    one: f64,
}

impl Fused {
    fn new() -> Fused {
        Fused { one: std::hint::black_box(1.0) }
    }
}

impl Add for Fused {
    #[inline(always)]
    fn sum(self, a: f64, b: f64) -> f64 {
        a.mul_add(self.one, b)
    }

    #[inline(always)]
    fn less_four(self, a: f64, b: f64) -> f64 {
        b.mul_add(-4.0, a)
    }
}

/// The part of `len` cells (at least [`VECTOR`], the first in column `column`) that consists of whole vectors whose columns are multiples
/// of the cells of a cache line. If the plate's width is such a multiple, few loads touch two lines.
#[inline(always)]
fn whole_vectors(column: usize, len: usize) -> Range<usize> {
    let start = VECTOR - column % VECTOR;
    start..start + (len - start) / VECTOR * VECTOR
}

/// [`Stencil::relax`], for the processor that it runs on.
struct Step<'a, A> {
    stencil: &'a Stencil,
    rows: Range<usize>,
    now: &'a [f64],
    next: &'a mut [f64],
    add: A,
}

impl<A: Add> Kernel for Step<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.stencil.relax_rows(self.add, self.rows, self.now, self.next);
    }
}

/// [`Stencil::sweep`], for the processor that it runs on.
struct Sweep<'a, A> {
    stencil: &'a Stencil,
    rows: Range<usize>,
    steps: usize,
    even: &'a mut [f64],
    odd: &'a mut [f64],
    add: A,
}

impl<A: Add> Kernel for Sweep<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Sweep { stencil, rows, steps, even, odd, add } = self;
        for first in rows.clone().step_by(TOGETHER) {
            for step in 0..steps {
                // The rows that the step before has just made possible, of those that this step computes.
                let (from, to) = (first.saturating_sub(step), (first + TOGETHER).saturating_sub(step));
                let (from, to) = (from.max(rows.start + step), to.min(rows.end.saturating_sub(step)));
                let (now, next) = if step % 2 == 0 { (&*even, &mut *odd) } else { (&*odd, &mut *even) };
                stencil.relax_rows(add, from..to, now, next);
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

    /// The temperatures of a row between two rows of insulation, after `steps` steps, and the last change.
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
        // The first rows are alike, so that several are computed together.
        let cells: Vec<Cell> = (0..width * (height + 2))
            .map(|i| match if i / width < 14 { i % width } else { i } {
                i if i * i * 7 % 31 == 0 => INSULATED,
                i if i * i * 7 % 31 == 1 => held(200),
                i => free((i * 8 % 256) as u8),
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
                // The rows of this step that the sweep has computed and that its next steps do not overwrite.
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
            let cells: Vec<Cell> = (0..width * 17)
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
            Stencil::new(width, 0.23, &cells).relax(0..15, &now, &mut next);
            for row in 1..16 {
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
