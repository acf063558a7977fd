//! `halo3d`: heat in a box, a 7-point stencil with faces exchanged by bells or by GASPI notifications.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use bellwether::World;
use bellwether::gaspi::{Code, Config, Gaspi, Operation, Process};
use bellwether_examples::halo3d::bells::Bells;
use bellwether_examples::halo3d::notifications::{Notified, segment_bytes};
use bellwether_examples::halo3d::{self, Field, Part, Times};
use bellwether_examples::heat::{picture, plate};
use bellwether_examples::job::{self, Failure};
use bellwether_examples::output::Output;
use bellwether_examples::progress::{Progress, seconds};
use bellwether_examples::say;
use clap::Parser;

/// Heat spreads in a box: a 7-point stencil in three dimensions.
#[derive(Debug, Parser)]
#[command(name = "halo3d", version, after_help = HELP)]
struct Arguments {
    /// Cells of the box along each axis
    #[arg(long, value_name = "XxYxZ", default_value = "96x96x96", value_parser = sides)]
    size: [usize; 3],

    /// How many time steps
    #[arg(short, long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,

    /// Exchange faces by GASPI: write_notify, and a queue for each direction. Without it by put and bell
    #[arg(long)]
    notifications: bool,

    /// Compute the box again on one rank and compare
    #[arg(long)]
    check: bool,

    /// Where to write the picture of the slice through the middle of the last axis, a PNG file
    #[arg(short, long, value_name = "FILE", default_value = "halo3d.png")]
    output: PathBuf,
}

const HELP: &str = "\
A ball in the box is hot at the beginning, and a heater in the middle of one wall stays at 100
degrees; the other walls are cold. Each rank has a block. It sends its faces, computes the cells
that need no face of a neighbour, waits for the neighbours' faces, and computes the others. What
the exchange adds to a step is compared with the median time of exchanges alone: the rest is hidden.
Less than 0 % is hidden if a step makes the exchange longer. The digest is the same, bit for bit,
for any number of ranks and both exchanges.

Examples:
  bellwether run -n 4 --example halo3d
  bellwether run -n 4 --example halo3d --notifications --check
  bellwether run -n 2 --example halo3d --size 200x100x50 --steps 1000 --output slice.png

Exit code: 0 success, 1 failure while running, 2 wrong arguments or output.";

/// The largest box: 2 GiB for two arrays of temperatures.
const MOST: usize = 1 << 27;

fn sides(text: &str) -> Result<[usize; 3], String> {
    let why = || format!("expected three numbers of cells, as 96x96x96, with {MOST} cells at most");
    let sides: Vec<usize> = text.split('x').map(str::parse).collect::<Result<_, _>>().map_err(|_| why())?;
    let sides: [usize; 3] = sides.try_into().map_err(|_| why())?;
    let cells = sides.iter().try_fold(1usize, |cells, side| cells.checked_mul(*side));
    cells.filter(|cells| (1..=MOST).contains(cells)).map(|_| sides).ok_or_else(why)
}

fn main() -> ExitCode {
    let by_notifications = |arguments: &Arguments| arguments.notifications.then(|| run_by_notifications(arguments));
    job::main_or(by_notifications, run)
}

/// Results of all ranks, on rank 0.
struct Found {
    digest: u64,
    times: Vec<Times>,
    slices: Vec<Vec<f64>>,
}

/// # Errors
/// There are more ranks than the box has room for.
fn part(arguments: &Arguments, ranks: usize, rank: usize) -> Result<Part, Failure> {
    let [x, y, z] = arguments.size;
    Part::new(arguments.size, ranks, rank).ok_or_else(|| {
        Failure::Input(anyhow!("--size {x}x{y}x{z}: {ranks} ranks do not divide it into blocks; take a larger one"))
    })
}

/// Numbers that a rank gives to rank 0: its times, and its slice.
const HEAD: usize = 3;

fn given(times: Times, field: &Field) -> Vec<f64> {
    let mut given = [times.all, times.shown, times.alone].map(|time| time.as_secs_f64()).to_vec();
    given.extend(field.slice());
    given
}

fn taken(digest: u64, all: Vec<Vec<f64>>) -> Found {
    let time = |seconds: f64| std::time::Duration::from_secs_f64(seconds.max(0.0));
    let times = |given: &Vec<f64>| Times { all: time(given[0]), shown: time(given[1]), alone: time(given[2]) };
    Found {
        digest,
        times: all.iter().map(times).collect(),
        slices: all.into_iter().map(|mut given| given.split_off(HEAD)).collect(),
    }
}

fn run(world: &World, arguments: Arguments) -> Result<(), Failure> {
    // Each rank would say the same.
    job::on_root(world, || part(&arguments, world.size(), 0).map(drop))?;
    let part = part(&arguments, world.size(), world.rank())?;
    let mut output = job::on_root(world, || Output::claim(&arguments.output).map_err(Failure::Input))?;
    let most = HEAD + part.largest_face();
    let mut field = Field::new(part);
    let mut exchange = Bells::new(world, field.part())?;
    let progress = Progress::new(world, arguments.steps, "{pos} of {len} steps, {eta} left");
    let times = halo3d::run(&mut exchange, &mut field, arguments.steps, |step| progress.set(step))?;
    progress.finish();
    let mut digest = [field.digest()];
    world.allreduce(&mut digest, u64::wrapping_add)?;
    let found = taken(digest[0], exchange.gather(given(times, &field), most)?);
    job::on_root(world, || report(&arguments, world.size(), &found, output.take()))?;
    Ok(())
}

/// The second form, in a job of GASPI's.
fn run_by_notifications(arguments: &Arguments) -> Result<(), Failure> {
    let process = Process::start(World::builder())?;
    // If `work` fails, this process ends without `finish`, and the ranks that wait for it get an error.
    work(&process, arguments)?;
    Ok(process.finish()?)
}

fn work(process: &Process, arguments: &Arguments) -> Result<(), Failure> {
    let failed = |code: Code| Failure::Running(code.into());
    let gaspi = Gaspi::begin(process, Config::default()).block().map_err(failed)?;
    let (me, n) = (usize::from(gaspi.rank()), usize::from(gaspi.size()));
    // If a rank fails, all ranks end with its exit code. The rank prints the reason before any rank ends.
    let agree = |own: Result<(), &Failure>| {
        let code = own.err().map_or(0, |failure| {
            failure.tell();
            u32::from(failure.exit_code())
        });
        match gaspi.all().allreduce(&[code], Operation::Max).block().map_err(failed)?[..] {
            [code] if code != 0 => Err(Failure::Told(code as u8)),
            _ => Ok(()),
        }
    };
    let root = |work: &mut dyn FnMut() -> Result<(), Failure>| {
        let own = if me == 0 { work() } else { Ok(()) };
        agree(own.as_ref().copied())
    };
    let mut output = None;
    root(&mut || {
        part(arguments, n, 0)?;
        output = Some(Output::claim(&arguments.output).map_err(Failure::Input)?);
        Ok(())
    })?;
    let part = part(arguments, n, me)?;
    let most = HEAD + part.largest_face();
    let segment = gaspi.segment(segment_bytes(&part, n, most)).block().map_err(failed)?;
    let mut field = Field::new(part);
    let made = Notified::new(&gaspi, &segment, field.part()).map_err(failed);
    agree(made.as_ref().map(|_| ()))?;
    let mut exchange = made?;
    // From here on a call fails at all ranks that are left, since a rank was lost.
    let times = halo3d::run(&mut exchange, &mut field, arguments.steps, |_| {}).map_err(failed)?;
    let digest = gaspi.all().allreduce(&[field.digest()], Operation::Sum).block().map_err(failed)?[0];
    let all = exchange.gather(&given(times, &field), most).map_err(failed)?;
    root(&mut || {
        let Some(all) = &all else { return Ok(()) };
        report(arguments, n, &taken(digest, all.clone()), output.take())
    })?;
    drop(exchange);
    drop(segment);
    gaspi.finish().block().map_err(failed)
}

/// Checks the results, prints them, and writes the picture.
fn report(arguments: &Arguments, ranks: usize, found: &Found, output: Option<Output>) -> Result<(), Failure> {
    let Arguments { size, steps, notifications, check, .. } = *arguments;
    let [x, y, z] = size;
    let parts: Vec<Part> = (0..ranks).map(|rank| part(arguments, ranks, rank)).collect::<Result<_, _>>()?;
    if check && halo3d::serial_digest(size, steps) != found.digest {
        return Err(Failure::Running(anyhow!("check failed: the temperatures differ from those on one rank")));
    }
    let form = if notifications { "notifications, a queue for each direction" } else { "bells" };
    let [rx, ry, rz] = parts[0].ranks();
    say!("box       {x} x {y} x {z} cells, {ranks} rank{}: {rx} x {ry} x {rz}", if ranks == 1 { "" } else { "s" });
    say!("exchange  by {form}");
    let sum = |of: fn(&Times) -> std::time::Duration| found.times.iter().map(of).sum::<std::time::Duration>();
    let all = found.times.iter().map(|times| times.all).max().unwrap_or_default();
    let rate = size.iter().product::<usize>() as f64 * steps as f64 / all.as_secs_f64() / 1e6;
    say!("steps     {steps} in {}, {rate:.0} million cell updates per second", seconds(all));
    if ranks > 1 {
        let [shown, alone] = [sum(|times| times.shown), sum(|times| times.alone)].map(|time| time / ranks as u32);
        let hidden = halo3d::hidden(shown, alone);
        let [shown, alone] = [shown, alone].map(seconds);
        say!("hidden    {hidden:.0} % of communication: exchanges alone take {alone}, and add {shown} to the steps");
    }
    if check {
        say!("check     every bit equals the serial run");
    }
    let slice = halo3d::join(size, &parts, &found.slices);
    if let Some(output) = output {
        let path = output.place();
        let cells = vec![plate::free(0); slice.len()];
        let drawn = picture::draw(y, &cells, &slice);
        drawn.and_then(|png| output.write(&png)).map_err(Failure::Running)?;
        say!("picture   {path}");
    }
    say!("answer    digest {:016x}", found.digest);
    Ok(())
}
