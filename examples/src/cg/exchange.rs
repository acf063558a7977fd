//! Which entries of other ranks' vector parts a rank needs, and how it gets them.

use bellwether::{Bell, Result, Symmetric, World};

use crate::share::Shares;

/// Two wanted pieces with at most this many unwanted entries between them are fetched as one.
const GAP: usize = 16;

/// A piece of another rank's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Who has it.
    pub owner: usize,
    /// Where it begins in the owner's part.
    pub start: usize,
    /// How many entries it has.
    pub len: usize,
}

/// The pieces that cover `wanted`, which are global entry numbers that rise and that other ranks own.
pub fn runs(wanted: &[usize], shares: &Shares) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &entry in wanted {
        let owner = shares.owner(entry);
        let place = entry - shares.of(owner).start;
        match runs.last_mut() {
            Some(run) if run.owner == owner && place <= run.start + run.len + GAP => run.len = place + 1 - run.start,
            _ => runs.push(Run { owner, start: place, len: 1 }),
        }
    }
    runs
}

/// A vector of which each rank has a part and fetches pieces of others' parts, one-sided.
pub struct Exchange {
    part: Symmetric<f64>,
    /// Rung by each supplier when its part is ready to be read.
    ready: Bell,
    runs: Vec<Run>,
    /// How many ranks this one fetches from.
    suppliers: u64,
    /// The ranks that fetch from this one.
    consumers: Vec<usize>,
    rounds: u64,
}

impl Exchange {
    /// Agrees with the other ranks on who fetches from whom. Collective.
    ///
    /// # Errors
    /// Out of memory, or a rank was lost.
    pub fn new(world: &World, shares: &Shares, runs: Vec<Run>) -> Result<Exchange> {
        let part = world.alloc(shares.largest())?;
        // Each rank leaves a mark at those it will fetch from.
        let marks: Symmetric<u8> = world.alloc(world.size())?;
        let mut owners: Vec<usize> = runs.iter().map(|run| run.owner).collect();
        owners.dedup();
        for &owner in &owners {
            marks.put_slice(owner, world.rank(), &[1])?;
        }
        world.barrier()?;
        let mut mine = vec![0; world.size()];
        marks.read(0, &mut mine);
        let consumers = (0..world.size()).filter(|&rank| mine[rank] != 0).collect();
        Ok(Exchange { part, ready: world.bell()?, runs, suppliers: owners.len() as u64, consumers, rounds: 0 })
    }

    /// How many entries one round fetches.
    pub fn entries(&self) -> usize {
        self.runs.iter().map(|run| run.len).sum()
    }

    /// How many gets one round takes.
    pub fn gets(&self) -> usize {
        self.runs.len()
    }

    /// Shows `own` to the ranks that need it, and fetches this rank's runs, one after the other, into `fetched`.
    ///
    /// Between two rounds there must be a reduction over all ranks: it keeps a rank from overwriting its part while
    /// another still reads it, and from ringing for the next round while another still counts this one.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn round(&mut self, own: &[f64], fetched: &mut [f64]) -> Result<()> {
        self.rounds += 1;
        self.part.write(0, own);
        for &consumer in &self.consumers {
            self.ready.ring(consumer)?;
        }
        self.ready.wait(self.rounds * self.suppliers)?;
        let mut rest = fetched;
        for run in &self.runs {
            let (piece, after) = rest.split_at_mut(run.len);
            self.part.get_slice(run.owner, run.start, piece)?;
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_over_gaps_but_not_over_owners() {
        let shares = Shares::from_starts(vec![0, 100, 200, 300]);
        let found = runs(&[1, 2, 18, 36, 99, 200, 201], &shares);
        let run = |owner, start, len| Run { owner, start, len };
        assert_eq!(found, [run(0, 1, 18), run(0, 36, 1), run(0, 99, 1), run(2, 0, 2)]);
        assert_eq!(runs(&[], &shares), []);
    }
}
