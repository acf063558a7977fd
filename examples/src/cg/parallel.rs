//! A matrix whose rows are split over the ranks by nonzeros.
//!
//! Rank 0 has the whole matrix and deals it out. A rank splits its rows in two: columns whose entries it has itself, and columns whose
//! entries other ranks have. A gather plan, made once, fetches these entries in each multiplication while the rank multiplies with
//! the first part.

use std::ops::Range;

use bellwether::array::{Distribution, GatherPlan};
use bellwether::{GlobalArray, Layout, Pod, Result, World};

use super::csr::Csr;
use super::rows::Rows;
use super::solve::Matrix;

/// This rank's rows of a matrix, and what it takes to multiply with them.
pub struct SharedMatrix<'w> {
    world: &'w World,
    /// How a vector is spread: as the rows are.
    layout: Layout<1>,
    /// All rows of this rank, without remote columns; columns are numbered from the first own one.
    inner: Rows,
    /// The rest of the rows that have remote columns; columns are numbered in the order of `remote`.
    border: Csr,
    /// Which rows these are.
    border_rows: Vec<u32>,
    /// Fetches the remote entries of the vector that is multiplied.
    plan: GatherPlan<f64>,
    remote: Vec<f64>,
}

impl<'w> SharedMatrix<'w> {
    /// Splits the matrix that rank 0 has into blocks of rows with equal numbers of nonzeros. Collective.
    ///
    /// # Errors
    /// Out of memory, or a rank was lost.
    pub fn scatter(world: &'w World, matrix: Option<&Csr>) -> Result<SharedMatrix<'w>> {
        // How many rows each rank has, then how many nonzeros.
        let mut sizes = matrix.map_or(vec![0; 2 * world.size()], |matrix| shares(matrix, world.size()));
        world.broadcast(0, &mut sizes)?;
        let layout = |sizes: &[u64]| {
            let sizes: Vec<usize> = sizes.iter().map(|size| *size as usize).collect();
            Layout::new([sizes.iter().sum()], [Distribution::Sizes(sizes)], world.size())
        };
        let (by_row, by_nonzero) = sizes.split_at(world.size());
        let (layout, nonzeros) = (layout(by_row)?, layout(by_nonzero)?);
        let lengths: Option<Vec<u64>> =
            matrix.map(|matrix| matrix.starts.windows(2).map(|row| (row[1] - row[0]) as u64).collect());
        let mut starts = vec![0];
        for length in deal(world, &layout, lengths.as_deref())? {
            starts.push(starts[starts.len() - 1] + length as usize);
        }
        let columns = deal(world, &nonzeros, matrix.map(|matrix| matrix.columns.as_slice()))?;
        let values = deal(world, &nonzeros, matrix.map(|matrix| matrix.values.as_slice()))?;

        let own = own(world, &layout);
        let mut ghosts: Vec<usize> =
            columns.iter().map(|column| *column as usize).filter(|c| !own.contains(c)).collect();
        ghosts.sort_unstable();
        ghosts.dedup();
        let (inner, border, border_rows) = split(&Csr { starts, columns, values }, &own, &ghosts);
        Ok(SharedMatrix {
            world,
            inner: inner.into(),
            border,
            border_rows,
            plan: GatherPlan::new(world, &layout, &ghosts)?,
            layout,
            remote: vec![0.0; ghosts.len()],
        })
    }

    /// How many nonzeros the calling rank has.
    pub fn nonzeros(&self) -> usize {
        self.inner.nonzeros() + self.border.nonzeros()
    }

    /// Remote entries that the calling rank needs for one multiplication, and ranks that they come from.
    pub fn traffic(&self) -> [usize; 2] {
        [self.plan.remote_len(), self.plan.sources().len()]
    }

    /// Gives each rank its part of the vector that rank 0 has. Collective.
    ///
    /// # Errors
    /// Out of memory, or a rank was lost.
    pub fn scatter_vector(&self, vector: Option<&[f64]>) -> Result<Vec<f64>> {
        deal(self.world, &self.layout, vector)
    }

    /// The whole vector on rank 0, of which each rank has a part; `None` on the others. Collective.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn gather_vector(&self, part: &[f64]) -> Result<Option<Vec<f64>>> {
        let mut whole = GlobalArray::new(self.world, self.layout.clone())?;
        whole.local_mut().copy_from_slice(part);
        whole.to_root(self.world, 0)
    }
}

impl Matrix for SharedMatrix<'_> {
    fn multiply(&mut self, x: &[f64], y: &mut [f64]) -> Result<f64> {
        let gathering = self.plan.start(x)?;
        let mut product = self.inner.multiply(x, y);
        gathering.finish(&mut self.remote)?;
        for (number, row) in self.border_rows.iter().enumerate() {
            let row = *row as usize;
            let more = self.border.row(number).map(|(column, value)| value * self.remote[column as usize]).sum::<f64>();
            y[row] += more;
            product += x[row] * more;
        }
        self.sum(product)
    }

    fn sum(&mut self, value: f64) -> Result<f64> {
        let mut sum = [value];
        self.world.allreduce_sum(&mut sum)?;
        Ok(sum[0])
    }
}

/// The calling rank's part of the items of rank 0.
fn deal<T: Pod>(world: &World, layout: &Layout<1>, items: Option<&[T]>) -> Result<Vec<T>> {
    Ok(GlobalArray::from_root(world, layout.clone(), 0, items)?.local().to_vec())
}

/// The entries of a vector that the calling rank has.
fn own(world: &World, layout: &Layout<1>) -> Range<usize> {
    layout.box_at(world.rank()).expect("entries of one rank are neighbours").range(0)
}

/// How many rows each rank gets, and then how many nonzeros: equal numbers of these, as far as whole rows allow.
fn shares(matrix: &Csr, ranks: usize) -> Vec<u64> {
    let starts = &matrix.starts;
    let cut = |rank: usize| {
        let goal = matrix.nonzeros() as u128 * rank as u128 / ranks as u128;
        // The row that begins nearest to the goal: the last one before it or the first one after it.
        let after = starts.partition_point(|&start| (start as u128) < goal).min(matrix.rows());
        match after.checked_sub(1) {
            _ if rank == ranks => matrix.rows(),
            Some(low) if goal - (starts[low] as u128) < (starts[after] as u128).saturating_sub(goal) => low,
            _ => after,
        }
    };
    let rows = (0..ranks).map(|rank| cut(rank + 1) - cut(rank));
    let nonzeros = (0..ranks).map(|rank| starts[cut(rank + 1)] - starts[cut(rank)]);
    rows.chain(nonzeros).map(|size| size as u64).collect()
}

/// Own columns of all rows, remote columns of the rows that have some, and which rows these are. `ghosts` are the remote columns, in
/// order.
fn split(rows: &Csr, own: &Range<usize>, ghosts: &[usize]) -> (Csr, Csr, Vec<u32>) {
    let empty = || Csr { starts: vec![0], ..Csr::default() };
    let (mut inner, mut border, mut border_rows) = (empty(), empty(), Vec::new());
    for row in 0..rows.rows() {
        for (column, value) in rows.row(row) {
            let (part, column) = match (column as usize).checked_sub(own.start).filter(|column| *column < own.len()) {
                Some(column) => (&mut inner, column),
                None => (&mut border, ghosts.partition_point(|ghost| *ghost < column as usize)),
            };
            part.columns.push(column as u32);
            part.values.push(value);
        }
        inner.starts.push(inner.columns.len());
        if border.columns.len() > border.starts[border.starts.len() - 1] {
            border.starts.push(border.columns.len());
            border_rows.push(row as u32);
        }
    }
    (inner, border, border_rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_split_by_who_has_the_column() {
        let entries = [(0, 0, 1.0), (0, 4, 2.0), (1, 5, 3.0), (2, 3, 4.0), (2, 4, 5.0), (2, 9, 6.0)];
        let rows = Csr::from_entries(3, &entries).unwrap();
        let (inner, border, border_rows) = split(&rows, &(4..6), &[0, 3, 9]);
        assert_eq!(inner, Csr { starts: vec![0, 1, 2, 3], columns: vec![0, 1, 0], values: vec![2.0, 3.0, 5.0] });
        assert_eq!(border, Csr { starts: vec![0, 1, 3], columns: vec![0, 1, 2], values: vec![1.0, 4.0, 6.0] });
        assert_eq!(border_rows, [0, 2]);
    }

    #[test]
    fn shares_cover_every_row_and_stay_near_the_mean() {
        let mut state = 1_u64;
        for rows in [1, 2, 5, 40, 1000] {
            let mut starts = vec![0];
            for _ in 0..rows {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                starts.push(starts[starts.len() - 1] + (state >> 60) as usize);
            }
            let nonzeros = starts[rows];
            let matrix = Csr { starts, columns: vec![0; nonzeros], values: vec![0.0; nonzeros] };
            for ranks in 1..=9 {
                let shares = shares(&matrix, ranks);
                let (by_row, by_nonzero) = shares.split_at(ranks);
                assert_eq!(by_row.iter().sum::<u64>(), rows as u64);
                assert_eq!(by_nonzero.iter().sum::<u64>(), nonzeros as u64);
                // Each end is off by at most half a row of at most 15.
                assert!(by_nonzero.iter().all(|share| *share <= (nonzeros / ranks + 16) as u64), "{shares:?}");
            }
        }
    }
}
