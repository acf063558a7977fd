//! The command `bellwether`: starts parallel jobs and shows what a machine offers.

mod bench;
mod cc;
mod columns;
mod doctor;
mod example;
mod hosts;
mod info;
mod manual;
mod print;
mod run;
mod shell;
mod slurm;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Starts parallel programs, on this machine or on several.
///
/// A job is one program run several times at once; each copy is a rank, numbered from 0.
#[derive(Parser)]
#[command(name = "bellwether", version, max_term_width = 100)]
#[command(after_help = "Examples:
  bellwether run -n 4 ./my-program --its-own options
  bellwether run --hosts node1,node2 -n 8 ./my-program
  bellwether run -n 4 --example heat2d
  bellwether batch -N 4 -n 128 --time 1:00:00 -- ./my-program | sbatch
  bellwether info
  bellwether doctor --hosts node1,node2 ./my-program
  bellwether bench put am
  bellwether cc -o hello hello.c
  bellwether man | man -l -")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Batch(slurm::Batch),
    Info(info::Info),
    Doctor(doctor::Doctor),
    Bench(bench::Bench),
    Cc(cc::Cc),
    #[command(name = "c++")]
    Cxx(cc::Cxx),
    Completions(manual::Completions),
    Man(manual::Manual),
}

fn main() -> ExitCode {
    if let Some(status) = hosts::hidden() {
        return ExitCode::from(status);
    }
    if let Some(status) = doctor::hidden() {
        return status;
    }
    if let Some(status) = bench::rank::hidden() {
        return status;
    }
    let result = match Cli::parse().command {
        Command::Run(run) => run.run(),
        Command::Batch(batch) => batch.run(),
        Command::Info(info) => info.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Bench(bench) => bench.run(),
        Command::Cc(cc) => cc.run(),
        Command::Cxx(cxx) => cxx.run(),
        Command::Completions(completions) => completions.run(Cli::command()),
        Command::Man(manual) => manual.run(Cli::command()),
    };
    result.unwrap_or_else(|error| run::tell(&error))
}
