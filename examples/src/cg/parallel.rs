//! A matrix whose rows are split over the ranks by nonzeros.
//!
//! Rank 0 has the whole matrix and deals it out. A rank numbers its columns anew: first its own rows' entries, then those
//! that it gets from the others' parts of the vector, in their order.

use std::ops::Range;

use bellwether::array::{Distribution, Shared};
use bellwether::{GlobalArray, Layout, Pod, Result, World};

use super::csr::Csr;
use super::solve::{Matrix, dot};

/// Two wanted pieces with at most this many unwanted entries between them are got as one.
const GAP: usize = 16;

/// This rank's rows of a matrix, and what it takes to multiply with them.
pub struct SharedMatrix<'w> {
    world: &'w World,
    /// How a vector is spread: as the rows are.
    layout: Layout<1>,
    /// Rows of this rank, with columns in the new numbering.
    rows: Csr,
    /// The vector that is multiplied, for all to read.
    shown: GlobalArray<f64, 1, Shared>,
    /// What this rank reads of the others' parts.
    pieces: Vec<Range<usize>>,
    /// The vector in the new numbering: own entries, then those of the pieces.
    vector: Vec<f64>,
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
        let mut columns = deal(world, &nonzeros, matrix.map(|matrix| matrix.columns.as_slice()))?;
        let values = deal(world, &nonzeros, matrix.map(|matrix| matrix.values.as_slice()))?;

        let own = own(world, &layout);
        let pieces = pieces(&columns, &own, &layout);
        // Where each piece's entries come to lie in `vector`.
        let mut places = Vec::with_capacity(pieces.len());
        let mut end = own.len();
        for piece in &pieces {
            places.push(end);
            end += piece.len();
        }
        for column in &mut columns {
            let entry = *column as usize;
            *column = if own.contains(&entry) {
                entry - own.start
            } else {
                let piece = pieces.partition_point(|piece| piece.start <= entry) - 1;
                places[piece] + entry - pieces[piece].start
            } as u32;
        }
        Ok(SharedMatrix {
            world,
            rows: Csr { starts, columns, values },
            shown: GlobalArray::new(world, layout.clone())?.share(world)?,
            layout,
            pieces,
            vector: vec![0.0; end],
        })
    }

    /// How many nonzeros the calling rank has.
    pub fn nonzeros(&self) -> usize {
        self.rows.nonzeros()
    }

    /// Entries and gets that the calling rank needs for one multiplication.
    pub fn traffic(&self) -> [usize; 2] {
        [self.pieces.iter().map(Range::len).sum(), self.pieces.len()]
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
        self.shown.put_patch(own(self.world, &self.layout), x)?;
        // All have shown their parts; and nobody shows the next before the sum below, so when all have read these.
        self.world.barrier()?;
        let (own, mut rest) = self.vector.split_at_mut(x.len());
        own.copy_from_slice(x);
        for piece in &self.pieces {
            let (entries, after) = rest.split_at_mut(piece.len());
            self.shown.get_patch_into(piece.clone(), entries)?;
            rest = after;
        }
        self.rows.multiply(&self.vector, y);
        self.sum(dot(x, y))
    }

    fn sum(&mut self, value: f64) -> Result<f64> {
        let mut sum = [value];
        self.world.allreduce_sum(&mut sum)?;
        Ok(sum[0])
    }
}

/// The calling rank's part of what rank 0 has.
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

/// The pieces of other ranks' parts that cover the columns that `own` does not have.
fn pieces(columns: &[u32], own: &Range<usize>, layout: &Layout<1>) -> Vec<Range<usize>> {
    let mut wanted: Vec<usize> = columns.iter().map(|column| *column as usize).filter(|c| !own.contains(c)).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut pieces: Vec<Range<usize>> = Vec::new();
    for entry in wanted {
        match pieces.last_mut() {
            Some(piece) if entry <= piece.end + GAP && layout.rank_of(entry) == layout.rank_of(piece.start) => {
                piece.end = entry + 1;
            }
            _ => pieces.push(entry..entry + 1),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_merge_over_gaps_but_not_over_owners() {
        let layout = Layout::block([300], 3).unwrap();
        let found = pieces(&[201, 36, 18, 150, 99, 200, 1, 2, 18], &(100..200), &layout);
        assert_eq!(found, [1..19, 36..37, 99..100, 200..202]);
        assert_eq!(pieces(&[199, 50, 100], &(50..300), &layout), []);
        assert_eq!(pieces(&[99, 100], &(0..0), &layout), [99..100, 100..101]);
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
