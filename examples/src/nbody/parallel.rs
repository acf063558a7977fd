//! Bodies on several ranks, and two ways to bring all positions to each rank.
//!
//! *Allgather*: a collective call gives every rank all positions, then each computes. Every rank has room for all.
//!
//! *Ring*: each rank has a block of positions, and computes with it while the same block is already on its way to the next
//! rank. After as many hops as there are ranks, every block has been everywhere. No rank holds more than three
//! blocks, and each rank waits for its neighbours only.

use std::time::Duration;

use bellwether::{Bell, Layout, Result, Symmetric, World};
use clap::ValueEnum;

use super::{Bodies, Sums, UNIT, Vectors, attract};
use crate::job::share;

/// How positions travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// All at once, by a collective call
    Allgather,
    /// Block after block, round a ring, while ranks compute
    Ring,
}

/// The computation to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many bodies.
    pub bodies: usize,
    /// How many steps.
    pub steps: u64,
    /// How long a step is.
    pub time_step: f64,
    /// The seed of the random bodies.
    pub seed: u64,
}

/// The result of a computation.
#[derive(Clone, Debug)]
pub struct Motion {
    /// How long it took, without making the bodies.
    pub time: Duration,
    /// All places, body after body, on rank 0.
    pub places: Option<Vec<[f64; 3]>>,
    /// The digest of all places and speeds.
    pub digest: u64,
    /// Energy at the beginning and at the end, in multiples of [`UNIT`].
    pub energy: [i64; 2],
    /// The sum of all accelerations at the end, in multiples of [`UNIT`]. Bodies of equal mass attract each other alike,
    /// to the last bit, so each axis is 0 unless a body has not been everywhere.
    pub pull: [i64; 3],
}

impl Motion {
    /// The relative change of the energy.
    pub fn drift(&self) -> f64 {
        let [before, after] = self.energy.map(|energy| energy as f64 * UNIT);
        if before == after { 0.0 } else { ((after - before) / before).abs() }
    }
}

/// Moves the bodies. `progress` gets the number of steps done. Collective.
///
/// # Errors
/// Out of memory, or a rank was lost.
pub fn run(world: &World, plan: &Plan, method: Method, mut progress: impl FnMut(u64)) -> Result<Motion> {
    let layout = Layout::block([plan.bodies], world.size())?;
    let mut bodies = Bodies::new(plan.bodies, share(world, plan.bodies)?, plan.seed);
    let mut ring = Ring::new(world, &layout)?;
    let mut forces = |bodies: &Bodies| match method {
        Method::Allgather => allgather(world, &layout, bodies),
        Method::Ring => ring.pass(bodies),
    };
    world.barrier()?;
    let start = world.elapsed();
    let mut sums = forces(&bodies)?;
    let before = total(world, &bodies, &sums)?;
    for step in 1..=plan.steps {
        bodies.kick(&sums, plan.time_step / 2.0);
        bodies.drift(plan.time_step);
        sums = forces(&bodies)?;
        bodies.kick(&sums, plan.time_step / 2.0);
        progress(step);
    }
    let after = total(world, &bodies, &sums)?;
    let time = world.elapsed() - start;
    let mut digest = [bodies.digest()];
    world.allreduce(&mut digest, u64::wrapping_add)?;
    let all = everyone(world, &layout, &bodies.places)?;
    let body = |block: &Vectors, i: usize| block.axes().map(|axis| axis[i]);
    let places = (world.rank() == 0)
        .then(|| all.iter().flat_map(|block| (0..block.len()).map(move |i| body(block, i))).collect());
    let energy = [before, after].map(|totals| totals[0].wrapping_add(totals[1]));
    Ok(Motion { time, places, digest: digest[0], energy, pull: [after[2], after[3], after[4]] })
}

fn total(world: &World, bodies: &Bodies, sums: &Sums) -> Result<[i64; 5]> {
    let mut totals = bodies.totals(sums);
    world.allreduce(&mut totals, i64::wrapping_add)?;
    Ok(totals)
}

/// How many bodies the largest block has: the first.
fn largest(layout: &Layout<1>) -> usize {
    layout.extents_at(0)[0]
}

/// The blocks of all ranks. Collective.
fn everyone(world: &World, layout: &Layout<1>, mine: &Vectors) -> Result<Vec<Vectors>> {
    // All show the same length, that of the largest block.
    let length = 3 * largest(layout);
    let mut shown = mine.0.clone();
    shown.resize(length, 0.0);
    let all = world.allgather(&shown)?;
    Ok((0..world.size()).map(|rank| Vectors(all[rank * length..][..3 * layout.extents_at(rank)[0]].to_vec())).collect())
}

fn allgather(world: &World, layout: &Layout<1>, bodies: &Bodies) -> Result<Sums> {
    let mut sums = vec![[0; 4]; bodies.places.len()];
    for block in everyone(world, layout, &bodies.places)? {
        attract(&bodies.places, &block, bodies.mass, &mut sums);
    }
    Ok(sums)
}

/// Where blocks arrive from the rank before, and what neighbours tell each other about them.
struct Ring<'w> {
    world: &'w World,
    layout: Layout<1>,
    /// Two blocks, used in turn.
    inbox: Symmetric<f64>,
    /// Rung by the rank before: another block is here.
    arrived: Bell,
    /// Rung by the rank after: it has taken another block out of its inbox.
    taken: Bell,
    /// Blocks sent so far, which is as many as have arrived.
    passed: u64,
}

impl<'w> Ring<'w> {
    fn new(world: &'w World, layout: &Layout<1>) -> Result<Ring<'w>> {
        let inbox = world.alloc(2 * 3 * largest(layout))?;
        Ok(Ring { world, layout: layout.clone(), inbox, arrived: world.bell()?, taken: world.bell()?, passed: 0 })
    }

    /// The forces on `bodies`, with which every other rank's bodies come past.
    fn pass(&mut self, bodies: &Bodies) -> Result<Sums> {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let mut sums = vec![[0; 4]; bodies.places.len()];
        let mut block = bodies.places.clone();
        for hop in 1..=ranks {
            if hop < ranks {
                self.send((rank + 1) % ranks, &block)?;
            }
            attract(&bodies.places, &block, bodies.mass, &mut sums);
            if hop < ranks {
                // The block that the previous rank had until now started at the rank `hop` places before this one.
                let length = 3 * self.layout.extents_at((rank + ranks - hop) % ranks)[0];
                block = self.receive((rank + ranks - 1) % ranks, length)?;
            }
        }
        Ok(sums)
    }

    fn send(&self, next: usize, block: &Vectors) -> Result<()> {
        // The block before the last one in this half of the inbox must have been taken out.
        self.taken.wait((self.passed + 1).saturating_sub(2))?;
        self.inbox.put_slice_bell(next, self.half(), &block.0, &self.arrived)
    }

    fn receive(&mut self, before: usize, length: usize) -> Result<Vectors> {
        self.arrived.wait(self.passed + 1)?;
        let mut block = vec![0.0; length];
        self.inbox.read(self.half(), &mut block);
        self.passed += 1;
        self.taken.ring(before)?;
        Ok(Vectors(block))
    }

    /// Where the next block begins in an inbox.
    fn half(&self) -> usize {
        (self.passed % 2) as usize * 3 * largest(&self.layout)
    }
}
