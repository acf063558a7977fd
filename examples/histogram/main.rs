//! `histogram`: every rank counts samples into bins that lie all over the job.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use bellwether::World;
use bellwether_examples::bale::{Kernel, chance, heading, row};
use bellwether_examples::job::{self, Failure};
use bellwether_examples::say;
use clap::Parser;

/// Counts random samples in the bins of a table that is distributed over all ranks, aggregated and one at a time.
#[derive(Debug, Parser)]
#[command(name = "histogram", version)]
struct Arguments {
    /// Bins of the whole table
    #[arg(short, long, value_name = "N", default_value_t = 1 << 21, value_parser = job::count)]
    bins: usize,

    /// Samples of all ranks together
    #[arg(short, long, value_name = "N", default_value_t = 1 << 22, value_parser = job::count)]
    samples: usize,

    /// Also count every N-th sample without aggregation, by one remote operation each, for comparison
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = job::count)]
    singly: usize,
}

fn main() -> ExitCode {
    job::main(run)
}

fn run(world: &World, arguments: Arguments) -> Result<(), Failure> {
    let mut kernel = Kernel::new(world, arguments.bins, arguments.samples)?;
    // A sample's weight: its own number and chance, so that what is lost or counted twice shows in the sum, which wraps.
    let weights: Vec<u64> = kernel.requests.clone().map(|sample| chance(sample, 2) >> 20).collect();
    let mut sum = [weights.iter().copied().fold(0, u64::wrapping_add)];
    world.allreduce(&mut sum, u64::wrapping_add)?;

    world.barrier()?;
    let start = Instant::now();
    kernel.add(&weights)?;
    let aggregated = start.elapsed().as_secs_f64();

    let mut found = [kernel.own().map(|(_, weight)| weight).fold(0, u64::wrapping_add)];
    world.allreduce(&mut found, u64::wrapping_add)?;
    let checksum = kernel.checksum()?;

    let few = (weights.len() / arguments.singly).max(1).min(weights.len());
    let start = Instant::now();
    kernel.add_singly(&weights, few)?;
    let singly = start.elapsed().as_secs_f64();

    let mine = weights.len();
    job::on_root(world, || {
        if found != sum {
            let message = format!("check failed: the bins hold {} of a weight of {}", found[0], sum[0]);
            return Err(Failure::Running(anyhow::anyhow!(message)));
        }
        say!("bins      {}, {} samples, {} ranks", arguments.bins, arguments.samples, world.size());
        say!("check     all weights are in the bins; checksum {checksum:016x}");
        say!("{}", heading());
        say!("{}", row("aggregated", mine, aggregated));
        say!("{}", row("one at a time", few, singly));
        Ok(())
    })?;
    Ok(())
}
