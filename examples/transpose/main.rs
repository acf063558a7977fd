//! `transpose`: rows become columns of a matrix that is spread over all ranks.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use bellwether::World;
use bellwether_examples::job::{self, Failure};
use bellwether_examples::{say, transpose};
use clap::Parser;

/// Transposes a matrix of 64-bit numbers that is distributed over all ranks by rows.
#[derive(Debug, Parser)]
#[command(name = "transpose", version, after_help = HELP)]
struct Arguments {
    /// Rows of the matrix
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    rows: u32,

    /// Columns of the matrix
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    columns: u32,

    /// How often to transpose it
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

const HELP: &str = "\
Every element is verified in every round. Beside each round stands what it takes the ranks
to copy the same matrix, each its own part in its own memory, all at the same time. A byte
that is read and written counts twice in both.

Examples:
  bellwether run -n 4 --example transpose
  bellwether run -n 4 --example transpose --rows 4096 --columns 1000

Exit code: 0 success, 1 failure while running, 2 wrong arguments.";

fn main() -> ExitCode {
    job::main(run)
}

fn run(world: &World, Arguments { rows, columns, rounds }: Arguments) -> Result<(), Failure> {
    let found = transpose::run(world, [rows as usize, columns as usize], rounds.into())?;
    job::on_root(world, || {
        let bytes = 8.0 * f64::from(rows) * f64::from(columns);
        let ranks = world.size();
        let plural = if ranks == 1 { "" } else { "s" };
        say!("matrix    {rows} x {columns} of 64 bits, {:.1} MB, {ranks} rank{plural}", bytes / 1e6);
        let rate = |time: &Duration| 2.0 * bytes / time.as_secs_f64() / 1e9;
        say!("{:>7}  {:>10}  {:>10}  {:>10}  {:>6}", "round", "time", "transpose", "local copy", "ratio");
        for (round, (time, copy)) in (1..).zip(found.times.iter().zip(&found.copies)) {
            let (here, there) = (rate(time), rate(copy));
            let ms = time.as_secs_f64() * 1e3;
            say!("{round:>7}  {ms:>7.2} ms  {here:>5.2} GB/s  {there:>5.2} GB/s  {:>6.2}", here / there);
        }
        if found.wrong > 0 {
            return Err(Failure::Running(anyhow!("check failed: {} elements are wrong", found.wrong)));
        }
        say!("verified  every element, in every round");
        say!("answer    digest {:016x}", found.digest);
        Ok(())
    })?;
    Ok(())
}
