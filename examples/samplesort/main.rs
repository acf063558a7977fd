//! `samplesort`: sorts 32-bit keys that are spread over all ranks.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::anyhow;
use bellwether::World;
use bellwether::lapi::Lapi;
use bellwether_examples::job::{self, Failure};
use bellwether_examples::samplesort::{self, Keys, Sorted};
use bellwether_examples::say;
use clap::Parser;

/// Sorts random 32-bit keys that are distributed over all ranks.
#[derive(Debug, Parser)]
#[command(name = "samplesort", version, after_help = HELP)]
struct Arguments {
    /// How many keys, on all ranks together
    #[arg(short = 'k', long, value_name = "N", default_value_t = 4 << 20,
          value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    keys: u64,

    /// The distribution of the keys
    #[arg(short, long, value_enum, default_value_t = Keys::Uniform)]
    distribution: Keys,

    /// Seed of the keys
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// How often to sort the same keys
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,

    /// Sort all keys on one rank too and compare
    #[arg(long)]
    check: bool,

    /// Send the keys in active messages, whose place the receiving rank chooses, instead of puts to symmetric memory
    #[arg(long)]
    messages: bool,
}

const HELP: &str = "\
The result is always verified: keys are in order on each rank and from rank to rank, and
they are the keys that were there before (their number, sum, and sums of two hashes). The
digest depends on every key and its place, and not on the number of ranks.

Examples:
  bellwether run -n 4 --example samplesort
  bellwether run -n 4 --example samplesort --keys 20000000 --distribution skewed --check
  bellwether run -n 4 --example samplesort --messages

Exit code: 0 success, 1 failure while running, 2 wrong arguments.";

fn main() -> ExitCode {
    let by_messages = |arguments: &Arguments| arguments.messages.then(|| run_by_messages(arguments));
    job::main_or(by_messages, run)
}

fn run(world: &World, arguments: Arguments) -> Result<(), Failure> {
    let Arguments { keys, distribution, seed, rounds, .. } = arguments;
    let sorted = samplesort::run(world, distribution, keys as usize, seed, rounds.into())?;
    job::on_root(world, || report(&arguments, world.size(), &sorted))?;
    Ok(())
}

/// The second form, in a job of LAPI's.
fn run_by_messages(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { keys, distribution, seed, rounds, .. } = *arguments;
    let lapi = Lapi::start(World::builder())?;
    let sorted = samplesort::run_by_messages(&lapi, distribution, keys as usize, seed, rounds.into());
    let sorted = sorted.map_err(|code| Failure::Running(code.into()))?;
    // Every rank has the same sums, so each knows whether rank 0 reports an error; only rank 0 makes the comparison.
    let outcome = match lapi.rank() {
        0 => report(arguments, lapi.size(), &sorted),
        _ if sorted.disorder > 0 || !sorted.permutation => Err(Failure::Told(1)),
        _ => Ok(()),
    };
    lapi.finish()?;
    outcome
}

/// Prints the result of sorting.
fn report(arguments: &Arguments, ranks: usize, sorted: &Sorted) -> Result<(), Failure> {
    let Arguments { keys, distribution, seed, check, .. } = *arguments;
    let name = format!("{distribution:?}").to_lowercase();
    say!("keys      {keys} of 32 bits, {name}, {ranks} rank{}", if ranks == 1 { "" } else { "s" });
    tell(keys, sorted);
    if sorted.disorder > 0 {
        return Err(failed(format!("{} neighbouring keys are in the wrong order", sorted.disorder)));
    }
    if !sorted.permutation {
        return Err(failed("the sorted keys are not those that were there before".into()));
    }
    if check && samplesort::serial_digest(distribution, keys as usize, seed) != sorted.digest {
        return Err(failed("the keys differ from those sorted on one rank".into()));
    }
    say!("verified  in order, and the keys that were there before{}", if check { "; as on one rank" } else { "" });
    say!("answer    digest {:016x}", sorted.digest);
    Ok(())
}

fn failed(why: String) -> Failure {
    Failure::Running(anyhow!("check failed: {why}"))
}

/// A line for each round and each rank.
fn tell(keys: u64, sorted: &Sorted) {
    say!("{:>7}  {:>9}  {:>14}", "round", "time", "million keys/s");
    for (round, time) in (1..).zip(&sorted.times) {
        let rate = keys as f64 / time.as_secs_f64() / 1e6;
        say!("{round:>7}  {:>6.1} ms  {rate:>14.1}", time.as_secs_f64() * 1e3);
    }
    say!("{:>7}  {:>12}  {:>7}  {:>10}  {:>10}", "rank", "keys", "share", "smallest", "largest");
    for (rank, part) in sorted.parts.iter().enumerate() {
        let share = 100.0 * part.keys as f64 / keys as f64;
        let [low, high] = match part.range {
            Some((low, high)) => [low.to_string(), high.to_string()],
            None => ["-".into(), "-".into()],
        };
        say!("{rank:>7}  {:>12}  {share:>5.1} %  {low:>10}  {high:>10}", part.keys);
    }
}
