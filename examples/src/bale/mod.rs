//! The kernels `histo` and `ig` of bale (Maley and DeVinney, 2019): many small accesses all over a distributed table.
//!
//! Each request depends on its number and not on the number of ranks: the requests are divided among the ranks like the
//! iterations of a loop, so the same job on any number of ranks gives the same table.

use bellwether::aggregate::{Aggregator, Blocks, Options, Places};
use bellwether::{Result, Symmetric, World};

use crate::job::share;

/// A number for each request that looks like chance (the finalizer of MurmurHash3).
pub fn chance(request: usize, purpose: u64) -> u64 {
    let mut word = (request as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ purpose.wrapping_mul(0xd1b5_4a32_d192_ed03);
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        word = (word ^ (word >> 33)).wrapping_mul(factor);
    }
    word ^ (word >> 33)
}

/// A table of words over all ranks, and the requests of this one.
pub struct Kernel<'w> {
    world: &'w World,
    /// Where the elements of the table lie.
    pub places: Blocks,
    /// This rank's part of the table.
    pub table: Symmetric<u64>,
    /// The numbers of this rank's requests.
    pub requests: std::ops::Range<usize>,
    /// Which element each of them is about.
    pub indices: Vec<usize>,
    aggregator: Aggregator<'w, u64>,
}

impl<'w> Kernel<'w> {
    /// A table of `extent` zeros, and `requests` requests in all. Collective.
    ///
    /// # Errors
    /// Too little memory, or a lost rank.
    pub fn new(world: &'w World, extent: usize, requests: usize) -> Result<Kernel<'w>> {
        let places = Blocks::new(extent, world.size());
        let requests = share(world, requests)?;
        Ok(Kernel {
            world,
            places,
            table: world.alloc(places.block())?,
            indices: requests.clone().map(|request| (chance(request, 1) % extent as u64) as usize).collect(),
            requests,
            aggregator: Aggregator::new(world, &Options::new(world))?,
        })
    }

    /// Adds `values` to the elements that the requests are about. Collective.
    ///
    /// # Errors
    /// A lost rank.
    pub fn add(&mut self, values: &[u64]) -> Result<()> {
        self.aggregator.scatter_add(&mut self.table, &self.places, &self.indices, values)
    }

    /// Reads the elements that the requests are about. Collective.
    ///
    /// # Errors
    /// A lost rank.
    pub fn read(&mut self, values: &mut [u64]) -> Result<()> {
        self.aggregator.gather_into(&self.table, &self.places, &self.indices, values)
    }

    /// The first `count` requests of this rank one after the other: adds.
    ///
    /// # Errors
    /// A lost rank.
    pub fn add_singly(&mut self, values: &[u64], count: usize) -> Result<()> {
        for (index, value) in self.indices.iter().zip(values).take(count) {
            let (rank, local) = self.places.place(*index);
            self.table.fetch_add(rank, local, *value)?;
        }
        self.world.barrier()
    }

    /// The first `count` requests of this rank one after the other: loads.
    ///
    /// # Errors
    /// A lost rank.
    pub fn read_singly(&self, values: &mut [u64], count: usize) -> Result<()> {
        for (index, value) in self.indices.iter().zip(values).take(count) {
            let (rank, local) = self.places.place(*index);
            *value = self.table.get(rank, local)?;
        }
        self.world.barrier()
    }

    /// This rank's elements of the table, and their values.
    pub fn own(&self) -> impl Iterator<Item = (usize, u64)> {
        let first = self.world.rank() * self.places.block();
        let count = self.places.extent().saturating_sub(first).min(self.places.block());
        (0..count).map(move |local| (first + local, self.table.load(local)))
    }

    /// Sets this rank's elements of the table. Collective.
    ///
    /// # Errors
    /// A lost rank.
    pub fn set(&mut self, value: impl Fn(usize) -> u64) -> Result<()> {
        let first = self.world.rank() * self.places.block();
        (0..self.table.len()).for_each(|local| self.table.store(local, value(first + local)));
        self.world.barrier()
    }

    /// One number for the whole table, the same on any number of ranks. Collective.
    ///
    /// # Errors
    /// A lost rank.
    pub fn checksum(&self) -> Result<u64> {
        let own = self.own().map(|(index, value)| chance(index, value));
        let mut sum = [own.fold(0u64, u64::wrapping_add)];
        self.world.allreduce(&mut sum, u64::wrapping_add)?;
        Ok(sum[0])
    }
}

/// One line of a table of rates: the name of the way, and the rate and time of one rank's requests.
pub fn row(what: &str, requests: usize, seconds: f64) -> String {
    let (rate, each) = (requests as f64 / seconds / 1e6, seconds / requests.max(1) as f64 * 1e9);
    format!("{what:<16} {rate:>10.2} {each:>12.1}")
}

/// The heading of such a table.
pub fn heading() -> String {
    format!("{:<16} {:>10} {:>12}", "", "M/s a rank", "ns each")
}
