//! The command `bellwether`: starts parallel jobs on this machine and tells what the machine offers.

mod bench;
mod example;
mod info;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Starts parallel programs on this machine.
///
/// A job is one program run several times at once; each copy is a rank, numbered from 0.
#[derive(Parser)]
#[command(name = "bellwether", version, max_term_width = 100)]
#[command(after_help = "Examples:
  bellwether run -n 4 ./my-program --its-own options
  bellwether run -n 4 --example heat2d
  bellwether info
  bellwether bench put am")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Info(info::Info),
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    let result = bench::rank::hidden().unwrap_or_else(|| match Cli::parse().command {
        Command::Run(run) => run.run(),
        Command::Info(info) => info.run(),
        Command::Bench(bench) => bench.run(),
    });
    result.unwrap_or_else(|error| {
        eprintln!("bellwether: {error:#}");
        ExitCode::from(run::status_of(&error))
    })
}
