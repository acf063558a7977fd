//! A matrix whose rows are split over the ranks by nonzeros.
//!
//! Rank 0 has the whole matrix and puts each rank's rows into its memory. A rank numbers its columns anew: first its own
//! rows' entries, then the fetched ones, in the order in which they are fetched.

use bellwether::{Result, Symmetric, World};

use super::csr::Csr;
use super::exchange::{Exchange, runs};
use super::solve::{Matrix, dot};
use crate::gather::Gather;
use crate::share::Shares;

/// This rank's rows of a matrix, and what it takes to multiply with them.
pub struct SharedMatrix<'w> {
    world: &'w World,
    shares: Shares,
    /// Rows of this rank, with columns in the new numbering.
    rows: Csr,
    exchange: Exchange,
    /// The vector in the new numbering: own entries, then fetched ones.
    vector: Vec<f64>,
    gather: Gather,
}

impl<'w> SharedMatrix<'w> {
    /// Splits the matrix that rank 0 has into blocks of rows with equal numbers of nonzeros. Collective.
    ///
    /// # Errors
    /// Out of memory, or a rank was lost.
    pub fn scatter(world: &'w World, matrix: Option<&Csr>) -> Result<SharedMatrix<'w>> {
        let shares = share_rows(world, matrix)?;
        let mut rows = scatter_rows(world, matrix, &shares)?;
        let (wanted, own) = (wanted(&rows, &shares, world.rank()), shares.of(world.rank()));
        let runs = runs(&wanted, &shares);
        // Where each run's entries come to lie in `vector`.
        let mut places = Vec::with_capacity(runs.len());
        let mut end = own.len();
        for run in &runs {
            places.push((shares.of(run.owner).start + run.start, end));
            end += run.len;
        }
        for column in &mut rows.columns {
            let entry = *column as usize;
            *column = if own.contains(&entry) {
                entry - own.start
            } else {
                let (start, place) = places[places.partition_point(|&(start, _)| start <= entry) - 1];
                place + entry - start
            } as u32;
        }
        Ok(SharedMatrix {
            world,
            rows,
            exchange: Exchange::new(world, &shares, runs)?,
            vector: vec![0.0; end],
            gather: Gather::new(world, &shares)?,
            shares,
        })
    }

    /// How many rows the calling rank has.
    pub fn rows(&self) -> usize {
        self.rows.rows()
    }

    /// How many nonzeros the calling rank has.
    pub fn nonzeros(&self) -> usize {
        self.rows.nonzeros()
    }

    /// Entries and gets that the calling rank needs for one multiplication.
    pub fn traffic(&self) -> [usize; 2] {
        [self.exchange.entries(), self.exchange.gets()]
    }

    /// Gives each rank its part of the vector that rank 0 has. Collective.
    ///
    /// # Errors
    /// Out of memory, or a rank was lost.
    pub fn scatter_vector(&self, vector: Option<&[f64]>) -> Result<Vec<f64>> {
        scatter(self.world, &self.shares, vector)
    }

    /// The whole vector on rank 0, of which each rank has a part; `None` on the others. Collective.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn gather_vector(&mut self, part: &[f64]) -> Result<Option<Vec<f64>>> {
        self.gather.collect(self.world, &self.shares, part)
    }
}

impl Matrix for SharedMatrix<'_> {
    fn multiply(&mut self, x: &[f64], y: &mut [f64]) -> Result<f64> {
        let (own, fetched) = self.vector.split_at_mut(x.len());
        own.copy_from_slice(x);
        self.exchange.round(x, fetched)?;
        self.rows.multiply(&self.vector, y);
        self.sum(dot(x, y))
    }

    fn sum(&mut self, value: f64) -> Result<f64> {
        let mut sum = [value];
        self.world.allreduce_sum(&mut sum)?;
        Ok(sum[0])
    }
}

/// Tells every rank where each rank's rows begin.
fn share_rows(world: &World, matrix: Option<&Csr>) -> Result<Shares> {
    let mut starts = vec![0_u64; world.size() + 1];
    if let Some(matrix) = matrix {
        let shares = Shares::weighted(&matrix.starts, world.size());
        starts = shares.starts().iter().map(|&start| start as u64).collect();
    }
    world.broadcast(0, &mut starts)?;
    Ok(Shares::from_starts(starts.into_iter().map(|start| start as usize).collect()))
}

/// Gives each rank its rows, with columns in the whole matrix' numbering.
fn scatter_rows(world: &World, matrix: Option<&Csr>, shares: &Shares) -> Result<Csr> {
    let lengths: Option<Vec<u64>> =
        matrix.map(|matrix| matrix.starts.windows(2).map(|s| (s[1] - s[0]) as u64).collect());
    let lengths = scatter(world, shares, lengths.as_deref())?;
    let mut starts = vec![0];
    for length in lengths {
        starts.push(starts[starts.len() - 1] + length as usize);
    }
    // The nonzeros are shared as the rows are.
    let mut ends = vec![0_u64; world.size() + 1];
    if let Some(matrix) = matrix {
        ends = shares.starts().iter().map(|&row| matrix.starts[row] as u64).collect();
    }
    world.broadcast(0, &mut ends)?;
    let nonzeros = Shares::from_starts(ends.into_iter().map(|end| end as usize).collect());
    let columns = scatter(world, &nonzeros, matrix.map(|matrix| matrix.columns.as_slice()))?;
    let values = scatter(world, &nonzeros, matrix.map(|matrix| matrix.values.as_slice()))?;
    Ok(Csr { starts, columns, values })
}

/// Rank 0 puts each rank's share of `items` into its memory; returns the calling rank's.
fn scatter<T: bellwether::Pod>(world: &World, shares: &Shares, items: Option<&[T]>) -> Result<Vec<T>> {
    let inbox: Symmetric<T> = world.alloc(shares.largest())?;
    let arrived = world.bell()?;
    if let Some(items) = items {
        for to in 0..world.size() {
            inbox.put_slice_bell(to, 0, &items[shares.of(to)], &arrived)?;
        }
    }
    arrived.wait(1)?;
    let mut mine = vec![T::zeroed(); shares.of(world.rank()).len()];
    inbox.read(0, &mut mine);
    Ok(mine)
}

/// The columns in `rows` that other ranks own, each once, rising.
fn wanted(rows: &Csr, shares: &Shares, rank: usize) -> Vec<usize> {
    let own = shares.of(rank);
    let mut wanted: Vec<usize> = rows.columns.iter().map(|&c| c as usize).filter(|c| !own.contains(c)).collect();
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}
