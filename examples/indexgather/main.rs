//! `indexgather`: every rank reads elements that lie all over the job, in an order of its own.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use bellwether::World;
use bellwether_examples::bale::{Kernel, chance, heading, row};
use bellwether_examples::job::{self, Failure};
use bellwether_examples::say;
use clap::Parser;

/// Reads random elements of a table that is distributed over all ranks, aggregated and one at a time.
#[derive(Debug, Parser)]
#[command(name = "indexgather", version)]
struct Arguments {
    /// Elements of the whole table
    #[arg(short, long, value_name = "N", default_value_t = 1 << 21, value_parser = job::count)]
    elements: usize,

    /// Reads of all ranks together
    #[arg(short, long, value_name = "N", default_value_t = 1 << 22, value_parser = job::count)]
    reads: usize,

    /// Also read every N-th element without aggregation, by one remote operation each, for comparison
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = job::count)]
    singly: usize,
}

fn main() -> ExitCode {
    job::main(run)
}

fn run(world: &World, arguments: Arguments) -> Result<(), Failure> {
    let mut kernel = Kernel::new(world, arguments.elements, arguments.reads)?;
    let element = |index: usize| chance(index, 3);
    kernel.set(element)?;
    let mut values = vec![0; kernel.indices.len()];

    world.barrier()?;
    let start = Instant::now();
    kernel.read(&mut values)?;
    let aggregated = start.elapsed().as_secs_f64();

    let is_wrong = |(index, value): &(&usize, &u64)| element(**index) != **value;
    let mut facts = [kernel.indices.iter().zip(&values).filter(is_wrong).count() as u64, 0];
    facts[1] = values.iter().fold(0, |sum, value| sum.wrapping_add(*value));
    world.allreduce(&mut facts, u64::wrapping_add)?;

    let few = (values.len() / arguments.singly).max(1).min(values.len());
    let start = Instant::now();
    kernel.read_singly(&mut values, few)?;
    let singly = start.elapsed().as_secs_f64();

    let mine = values.len();
    job::on_root(world, || {
        let [wrong, checksum] = facts;
        if wrong > 0 {
            let message = format!("check failed: {wrong} of {} values are not what was asked for", arguments.reads);
            return Err(Failure::Running(anyhow::anyhow!(message)));
        }
        say!("elements  {}, {} reads, {} ranks", arguments.elements, arguments.reads, world.size());
        say!("check     every value is the one asked for; checksum {checksum:016x}");
        say!("{}", heading());
        say!("{}", row("aggregated", mine, aggregated));
        say!("{}", row("one at a time", few, singly));
        Ok(())
    })?;
    Ok(())
}
