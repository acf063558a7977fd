//! `montecarlo`: particles through a slab that absorbs and scatters them.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use bellwether::World;
use bellwether_examples::job::{self, Failure};
use bellwether_examples::montecarlo::{self, Deviation, Slab, Tallies, plot};
use bellwether_examples::output::Output;
use bellwether_examples::progress::{Progress, seconds};
use bellwether_examples::random::digest;
use bellwether_examples::say;
use clap::Parser;

/// Particles through a slab that absorbs and scatters them.
#[derive(Debug, Parser)]
#[command(name = "montecarlo", version, after_help = HELP)]
struct Arguments {
    /// How many particles to follow
    #[arg(short = 'p', long, value_name = "N", default_value_t = 2_000_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    particles: u64,

    /// Thickness of the slab in cm
    #[arg(short, long, value_name = "CM", default_value_t = 5.0, value_parser = positive)]
    thickness: f64,

    /// Macroscopic absorption cross section in 1/cm
    #[arg(short, long, value_name = "X", default_value_t = 0.4, value_parser = not_negative)]
    absorption: f64,

    /// Macroscopic scattering cross section in 1/cm
    #[arg(short, long, value_name = "X", default_value_t = 0.8, value_parser = not_negative)]
    scattering: f64,

    /// Bins of depth that absorptions are counted in
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    bins: u32,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Go on when ranks die, and do their batches again: with `bellwether run --survive`
    #[arg(long)]
    survive: bool,

    /// Where to write the absorption profile
    #[arg(short, long, value_name = "FILE", default_value = "montecarlo.svg")]
    output: PathBuf,
}

const HELP: &str = "\
Particles enter at a right angle. Between collisions they fly straight, on average for one
cm over the sum of both cross sections; scattering sends them into any direction alike.
Tallies are always verified: every particle ended somewhere, and with --scattering 0 the
profile and the transmitted part are those of the exponential law, within 5 standard
deviations. They are the same integers for any number of ranks.

Examples:
  bellwether run -n 4 --example montecarlo
  bellwether run -n 4 --example montecarlo --scattering 0 --absorption 1
  bellwether run -n 4 --survive --example montecarlo -- --survive
  bellwether run -n 4 --example montecarlo --absorption 0.02 --scattering 2 --thickness 10

Exit code: 0 success, 1 failure while running, 2 wrong arguments or output.";

/// Thicker slabs scatter a particle so often that it would not end.
const MOST_PATHS: f64 = 1e4;

fn main() -> ExitCode {
    job::main_or(|arguments: &Arguments| arguments.survive.then(|| run_surviving(arguments)), run)
}

fn run(world: &World, arguments: Arguments) -> Result<(), Failure> {
    let Arguments { particles, thickness, absorption, scattering, bins, seed, .. } = arguments;
    let slab = Slab { thickness, absorption, scattering };
    let mut output = job::on_root(world, || {
        check_slab(&slab).map_err(Failure::Input)?;
        Output::claim(&arguments.output).map_err(Failure::Input)
    })?;
    let progress = Progress::new(world, particles, "of the particles, {eta} left");
    let start = Instant::now();
    let (tallies, followed) =
        montecarlo::run(world, &slab, particles, bins as usize, seed, |begun| progress.set(begun))?;
    let time = start.elapsed();
    progress.finish();
    job::on_root(world, || {
        say!("slab      {thickness} cm, absorption {absorption}/cm, scattering {scattering}/cm");
        tell(particles, &tallies, followed.len(), time);
        let (least, most) = (followed.iter().min().copied().unwrap_or(0), followed.iter().max().copied().unwrap_or(0));
        say!("ranks     took {least} to {most} particles each, as they found time");
        finish(&slab, particles, &tallies, output.take())
    })?;
    Ok(())
}

/// As [`run`], in a world of its own, which goes on when ranks die.
fn run_surviving(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { particles, thickness, absorption, scattering, bins, seed, .. } = *arguments;
    let slab = Slab { thickness, absorption, scattering };
    check_slab(&slab).map_err(Failure::Input)?;
    let world = World::builder().survive().start()?;
    if world.rank() == 0 {
        say!("started   {} ranks", world.size());
    }
    let start = Instant::now();
    let (mut team, tallies) = montecarlo::survive::run(&world, &slab, particles, bins as usize, seed, |_| ())?;
    let time = start.elapsed();
    loop {
        // The first rank that lives reports. If it dies, the next one does.
        if team.rank() == 0 {
            let output = Output::claim(&arguments.output).map_err(Failure::Input)?;
            say!("slab      {thickness} cm, absorption {absorption}/cm, scattering {scattering}/cm");
            tell(particles, &tallies, team.size(), time);
            say!("gone      ranks {:?}", world.gone());
            finish(&slab, particles, &tallies, Some(output))?;
        }
        // Rank 0 of the team reports. If it has died meanwhile, no rank leaves: all agree on whether it has reported, and on which rank
        // reports next.
        let teller = team.world_rank(0)?;
        team = world.survivors()?;
        if team.team_rank(teller).is_some() {
            return Ok(world.finish()?);
        }
    }
}

/// Checks the tallies, draws them, and prints their digest.
fn finish(slab: &Slab, particles: u64, tallies: &Tallies, output: Option<Output>) -> Result<(), Failure> {
    check(slab, particles, tallies)?;
    if let Some(output) = output {
        let Slab { thickness, absorption, scattering } = slab;
        let title =
            format!("{particles} particles on {thickness} cm: absorption {absorption}, scattering {scattering}");
        let path = output.place();
        plot::profile(&title, slab, tallies).and_then(|svg| output.write(svg.as_bytes())).map_err(Failure::Running)?;
        say!("plot      {path}");
    }
    say!("answer    digest {:016x}", digest((0..).zip(all(tallies))));
    Ok(())
}

fn check_slab(slab: &Slab) -> anyhow::Result<()> {
    let total = slab.absorption + slab.scattering;
    anyhow::ensure!(total > 0.0, "one of --absorption and --scattering must be larger than 0");
    let paths = slab.thickness * total;
    anyhow::ensure!(paths <= MOST_PATHS, "the slab is {paths:.0} mean free paths thick; at most {MOST_PATHS} will do");
    Ok(())
}

/// All tallies in a row.
fn all(tallies: &Tallies) -> impl Iterator<Item = u64> + '_ {
    let rest = [tallies.reflected, tallies.transmitted, tallies.scatterings];
    tallies.absorbed.iter().copied().chain(rest)
}

fn tell(particles: u64, tallies: &Tallies, ranks: usize, time: Duration) {
    let rate = particles as f64 / time.as_secs_f64() / 1e6;
    let plural = if ranks == 1 { "" } else { "s" };
    say!("particles {particles} in {}, {rate:.2} million per second, {ranks} rank{plural}", seconds(time));
    say!("{:>13}  {:>14}  {:>11}  {:>11}", "", "particles", "part", "error");
    let absorbed = tallies.absorbed.iter().sum::<u64>();
    for (name, count) in
        [("absorbed", absorbed), ("reflected", tallies.reflected), ("transmitted", tallies.transmitted)]
    {
        let part = count as f64 / particles as f64;
        let error = (part * (1.0 - part) / particles as f64).sqrt();
        say!("{name:>13}  {count:>14}  {:>9.4} %  {:>9.4} %", 100.0 * part, 100.0 * error);
    }
    say!("scattered {:.3} times on average", tallies.scatterings as f64 / particles as f64);
}

fn check(slab: &Slab, particles: u64, tallies: &Tallies) -> Result<(), Failure> {
    let failed = |why: String| Failure::Running(anyhow!("check failed: {why}"));
    if tallies.particles() != particles {
        return Err(failed(format!("{} of {particles} particles were counted", tallies.particles())));
    }
    say!("verified  every particle ended somewhere");
    if slab.scattering > 0.0 {
        return Ok(());
    }
    let found = montecarlo::deviation(slab, tallies);
    let Deviation { transmitted, chi_square, freedom } = found;
    let law = format!(
        "transmitted {transmitted:+.2} standard deviations off, chi square {chi_square:.1} of {freedom} bins (at most {:.1})",
        found.most()
    );
    if tallies.reflected > 0 || tallies.scatterings > 0 || !found.is_chance() {
        return Err(failed(format!("not the exponential law: {law}")));
    }
    say!("          the exponential law: {law}");
    Ok(())
}

fn not_negative(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err("expected a number from 0 up".to_owned()) }
}

fn positive(text: &str) -> Result<f64, String> {
    let value = not_negative(text)?;
    if value > 0.0 { Ok(value) } else { Err("must be larger than 0".to_owned()) }
}
