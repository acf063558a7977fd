//! One time step of the heat equation on a band of rows: the explicit 5-point scheme.
//!
//! A free cell moves towards its four neighbours: `t + alpha * ((n - t) + (s - t) + (w - t) + (e - t))`. Through
//! insulation and through the plate's edge no heat flows: such a neighbour counts as having the cell's own temperature.
//! The new temperature of a cell depends on five old ones in a fixed order, so it is the same, bit for bit, however the
//! plate is cut into bands.

use std::ops::Range;

use super::plate::{Cell, conducts, is_free};

/// The largest stable `alpha` (time step times diffusivity over cell area) in two dimensions.
pub const MAX_ALPHA: f64 = 0.25;

/// A neighbour that takes part, as bits of an [`Edge`].
const NORTH: u8 = 1;
const SOUTH: u8 = 2;
const WEST: u8 = 4;
const EAST: u8 = 8;
const ALL: u8 = NORTH | SOUTH | WEST | EAST;

/// A free cell next to insulation or to the edge of the plate.
#[derive(Clone, Copy, Debug)]
struct Edge {
    column: u32,
    neighbours: u8,
}

/// What to do in one row. Held and insulated cells appear in neither list and are never written.
#[derive(Clone, Debug, Default)]
struct RowPlan {
    /// Free cells whose four neighbours all conduct: the inner loop that the compiler vectorises.
    plain: Vec<Range<u32>>,
    edges: Vec<Edge>,
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
        let plan = (1..=rows).map(|row| plan_row(width, &cells[(row - 1) * width..(row + 2) * width])).collect();
        Stencil { width, alpha, plan }
    }

    /// How many rows the band has.
    pub fn rows(&self) -> usize {
        self.plan.len()
    }

    /// Computes the band's rows in `rows`, counted from 0: from all temperatures now those after the step.
    pub fn relax(&self, rows: Range<usize>, now: &[f64], next: &mut [f64]) {
        for row in rows {
            let three_rows = &now[row * self.width..(row + 3) * self.width];
            self.relax_row(&self.plan[row], three_rows, &mut next[(row + 1) * self.width..(row + 2) * self.width]);
        }
    }

    fn relax_row(&self, plan: &RowPlan, three_rows: &[f64], next: &mut [f64]) {
        let alpha = self.alpha;
        let (above, rest) = three_rows.split_at(self.width);
        let (own, below) = rest.split_at(self.width);
        for run in &plan.plain {
            let (start, end) = (run.start as usize, run.end as usize);
            // Five slices of one length: no bounds check is left in the loop.
            let (north, south) = (&above[start..end], &below[start..end]);
            let (west, middle, east) = (&own[start - 1..end - 1], &own[start..end], &own[start + 1..end + 1]);
            for (i, cell) in next[start..end].iter_mut().enumerate() {
                *cell = relax(alpha, middle[i], north[i], south[i], west[i], east[i]);
            }
        }
        for edge in &plan.edges {
            let column = edge.column as usize;
            let t = own[column];
            let pick = |side: u8, row: &[f64], column: usize| {
                if edge.neighbours & side == 0 { t } else { row[column] }
            };
            let (north, south) = (pick(NORTH, above, column), pick(SOUTH, below, column));
            let (west, east) = (pick(WEST, own, column.wrapping_sub(1)), pick(EAST, own, column + 1));
            next[column] = relax(alpha, t, north, south, west, east);
        }
    }

    /// The largest change of any cell of the band.
    pub fn change(&self, now: &[f64], next: &[f64]) -> f64 {
        let band = self.width..(self.rows() + 1) * self.width;
        let pairs = now[band.clone()].iter().zip(&next[band]);
        pairs.map(|(now, next)| (now - next).abs()).fold(0.0, f64::max)
    }
}

/// Sorts the cells of the middle one of three rows.
fn plan_row(width: usize, three_rows: &[Cell]) -> RowPlan {
    let (above, rest) = three_rows.split_at(width);
    let (own, below) = rest.split_at(width);
    let mut plan = RowPlan::default();
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
        match plan.plain.last_mut() {
            _ if neighbours != ALL => plan.edges.push(Edge { column, neighbours }),
            Some(run) if run.end == column => run.end += 1,
            _ => plan.plain.push(column..column + 1),
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::super::plate::{INSULATED, free, held, temperature};
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
        (now[width..2 * width].to_vec(), stencil.change(&now, &next))
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
}
