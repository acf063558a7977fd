//! `nbody`: two star clusters pass each other.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use bellwether::World;
use bellwether_examples::job::{self, Failure};
use bellwether_examples::nbody::parallel::{self, Method, Motion, Plan};
use bellwether_examples::nbody::{UNIT, picture};
use bellwether_examples::output::Output;
use bellwether_examples::progress::{Progress, seconds};
use bellwether_examples::say;
use clap::{Parser, ValueEnum};

/// Two star clusters pass each other: gravity by direct summation.
#[derive(Debug, Parser)]
#[command(name = "nbody", version, after_help = HELP)]
struct Arguments {
    /// How many bodies
    #[arg(short, long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bodies: u32,

    /// How many time steps
    #[arg(short, long, value_name = "N", default_value_t = 60)]
    steps: u64,

    /// Length of a time step; the clusters meet at about time 2
    #[arg(short, long, value_name = "TIME", default_value_t = 0.02, value_parser = time_step)]
    time_step: f64,

    /// How positions are exchanged
    #[arg(short, long, value_enum, default_value_t = Choice::Both)]
    method: Choice,

    /// Fail if the relative change of the energy is larger
    #[arg(long, value_name = "X", default_value_t = 0.01)]
    most_drift: f64,

    /// Seed of the clusters
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Where to write the picture of the bodies at the end, an SVG file
    #[arg(short, long, value_name = "FILE", default_value = "nbody.svg")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Choice {
    /// All at once, by a collective call
    Allgather,
    /// Block after block round a ring, while ranks compute
    Ring,
    /// Both, one after the other, and compare them
    Both,
}

impl Choice {
    fn methods(self) -> &'static [Method] {
        match self {
            Choice::Allgather => &[Method::Allgather],
            Choice::Ring => &[Method::Ring],
            Choice::Both => &[Method::Allgather, Method::Ring],
        }
    }
}

const HELP: &str = "\
The mass of all bodies together is 1, and so is the constant of gravity; all bodies have the
same mass. Lengths and times have no other unit. Positions and speeds are the same, bit for
bit, for any number of ranks and both methods. The program checks the energy (--most-drift),
and that all forces together are exactly 0.

Examples:
  bellwether run -n 4 --example nbody
  bellwether run -n 4 --example nbody --bodies 10000 --steps 200 --method ring

Exit code: 0 success, 1 failure while running, 2 wrong arguments or output.";

fn main() -> ExitCode {
    job::main(run)
}

fn run(world: &World, arguments: Arguments) -> Result<(), Failure> {
    let mut output = job::on_root(world, || Output::claim(&arguments.output).map_err(Failure::Input))?;
    let Arguments { bodies, steps, time_step, seed, .. } = arguments;
    let plan = Plan { bodies: bodies as usize, steps, time_step, seed };
    let mut found = Vec::new();
    for method in arguments.method.methods() {
        let progress = Progress::new(world, steps, "{pos} of {len} steps, {eta} left");
        found.push((*method, parallel::run(world, &plan, *method, |step| progress.set(step))?));
        progress.finish();
    }
    job::on_root(world, || {
        let ranks = world.size();
        let plural = if ranks == 1 { "" } else { "s" };
        say!("bodies    {bodies}, {steps} steps of {time_step}, {ranks} rank{plural}");
        say!("{:>10}  {:>9}  {:>15}  {:>12}", "method", "time", "million pairs/s", "energy drift");
        found.iter().for_each(|(method, motion)| tell(&plan, *method, motion));
        check(&found, arguments.most_drift)?;
        let (_, motion) = &found[0];
        let [before, after] = motion.energy.map(|energy| energy as f64 * UNIT);
        say!("energy    {before:.9} at the beginning, {after:.9} at the end");
        say!(
            "verified  forces add up to exactly 0{}",
            if found.len() > 1 { "; both methods agree in every bit" } else { "" }
        );
        if let (Some(output), Some(places)) = (output.take(), &motion.places) {
            let path = output.place();
            let title = format!("{bodies} bodies after {steps} steps of {time_step}, seen along z");
            let drawn = picture::draw(&title, places);
            drawn.and_then(|svg| output.write(svg.as_bytes())).map_err(Failure::Running)?;
            say!("picture   {path}");
        }
        say!("answer    digest {:016x}", motion.digest);
        Ok(())
    })?;
    Ok(())
}

fn tell(plan: &Plan, method: Method, motion: &Motion) {
    let pairs = (plan.bodies as f64).powi(2) * (plan.steps + 1) as f64;
    let rate = pairs / motion.time.as_secs_f64() / 1e6;
    let name = format!("{method:?}").to_lowercase();
    say!("{name:>10}  {:>9}  {rate:>15.1}  {:>12.2e}", seconds(motion.time), motion.drift());
}

fn check(found: &[(Method, Motion)], most_drift: f64) -> Result<(), Failure> {
    let failed = |why: String| Err(Failure::Running(anyhow!("check failed: {why}")));
    let (_, first) = &found[0];
    for (method, motion) in found {
        if motion.pull != [0; 3] {
            return failed(format!("with {method:?} the forces add up to {:?} times 2^-42, not to 0", motion.pull));
        }
        if motion.digest != first.digest || motion.energy != first.energy {
            return failed("the two methods gave different places or speeds".into());
        }
    }
    let drift = first.drift();
    if drift.is_nan() || drift > most_drift {
        return failed(format!(
            "the energy changed by {drift:.2e} of itself (allowed {most_drift:.0e}); a shorter time step may help"
        ));
    }
    Ok(())
}

fn time_step(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value > 0.0 && value <= 1.0 { Ok(value) } else { Err("must be larger than 0 and at most 1".to_owned()) }
}
