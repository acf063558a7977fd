//! Collecting what the ranks have on rank 0, without holding the others up.

use bellwether::{Bell, Result, Symmetric, World};

use crate::share::Shares;

/// Where each rank lays its share out for rank 0 to fetch.
///
/// The others do not wait for rank 0, unless it has not yet fetched what they laid out the time before. No rank has room
/// for more than its own share, except rank 0 for the result.
pub struct Gather {
    part: Symmetric<f64>,
    /// At rank 0: shares laid out, by all other ranks together.
    laid_out: Bell,
    /// At the others: times that rank 0 has fetched.
    fetched: Bell,
    collections: u64,
}

impl Gather {
    /// Room for the largest share. Collective.
    ///
    /// # Errors
    /// Out of memory, or a rank was lost.
    pub fn new(world: &World, shares: &Shares) -> Result<Gather> {
        let part = world.alloc(shares.largest())?;
        Ok(Gather { part, laid_out: world.bell()?, fetched: world.bell()?, collections: 0 })
    }

    /// All shares in rank order on rank 0, `None` on the others. `own` is the calling rank's share. Every rank calls it
    /// equally often.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn collect(&mut self, world: &World, shares: &Shares, own: &[f64]) -> Result<Option<Vec<f64>>> {
        let before = self.collections;
        self.collections += 1;
        if world.rank() > 0 {
            self.fetched.wait(before)?;
            self.part.write(0, own);
            self.laid_out.ring(0)?;
            return Ok(None);
        }
        // A rank rings again only after `fetched`, so the count cannot mix two collections.
        self.laid_out.wait(self.collections * (world.size() as u64 - 1))?;
        let mut all = own.to_vec();
        all.resize(shares.starts()[world.size()], 0.0);
        for from in 1..world.size() {
            self.part.get_slice(from, 0, &mut all[shares.of(from)])?;
            self.fetched.ring(from)?;
        }
        Ok(Some(all))
    }
}
