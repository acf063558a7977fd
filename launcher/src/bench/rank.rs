//! The code that runs in a rank: hidden commands with which the launcher starts copies of itself.

use std::cell::Cell;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Context;
use bellwether_runtime::{Result, World};

use super::kernels;
use super::session::Session;
use super::task::{Measured, Task, write_report};

/// Runs a task in one rank of a job: task, file for the report.
pub const RANK: &str = "bench-rank";
/// Starts a world and leaves it.
pub const EMPTY: &str = "bench-empty-rank";
/// A rank of a job in which one dies: file for the report.
pub const DEATH: &str = "bench-death";
/// Does nothing at all.
pub const NOTHING: &str = "bench-nothing";
/// Puts to itself, as many times as the argument says: for counting instructions.
pub const PUTS: &str = "bench-puts";
/// The same to an address.
pub const ADDRESS_PUTS: &str = "bench-address-puts";
/// Sends messages to itself, as many as the argument says: for counting instructions.
pub const MESSAGES: &str = "bench-messages";
/// Compares ways of copying.
const COPIES: &str = "bench-copies";

/// Runs a hidden command, if the arguments name one. Looked at before the command line is parsed, so that an empty
/// rank is an empty program.
pub fn hidden() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next()?;
    let outcome = match command.to_str()? {
        NOTHING => Ok(()),
        EMPTY => World::start().and_then(World::finish).context("starting an empty rank"),
        RANK => rank(arguments.collect()),
        DEATH => {
            arguments.next().context("a file for the report").and_then(|file| super::death::rank(Path::new(&file)))
        }
        PUTS => puts(kernels::memory::puts, arguments.next()),
        ADDRESS_PUTS => puts(kernels::address::puts, arguments.next()),
        MESSAGES => messages(arguments.next()),
        COPIES => super::copies::print(),
        _ => return None,
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Begins so that the launcher shows it once for all ranks.
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    })
}

fn rank(arguments: Vec<OsString>) -> anyhow::Result<()> {
    let [task, report] = &arguments[..] else { anyhow::bail!("{RANK} is for `bellwether bench` to start") };
    let task = task.to_str().and_then(Task::from_text).context("a task that this version does not know")?;
    // Rank 0's report is there before any rank has left.
    let tell = |rank: usize, measured: &[Measured]| {
        let written = if rank == 0 { write_report(Path::new(report), measured) } else { Ok(()) };
        written.with_context(|| format!("writing {}", Path::new(report).display()))
    };
    if task.kind.is_vocabulary() {
        return kernels::vocabulary(task, tell);
    }
    let session = Session::start(task)?;
    let measured = kernels::run(&session)?;
    tell(session.world.rank(), &measured)?;
    session.finish()?;
    Ok(())
}

fn puts(way: fn(&World, usize) -> Result<()>, count: Option<OsString>) -> anyhow::Result<()> {
    let count = count.and_then(|count| count.to_str()?.parse().ok()).context("how many puts?")?;
    let world = World::start()?;
    way(&world, count)?;
    Ok(())
}

fn messages(count: Option<OsString>) -> anyhow::Result<()> {
    let count: u64 = count.and_then(|count| count.to_str()?.parse().ok()).context("how many messages?")?;
    let mut builder = World::builder();
    let seen = Rc::new(Cell::new(0));
    let counter = Rc::clone(&seen);
    let handler = builder.handler("count", move |_, _| counter.set(counter.get() + 1));
    let world = builder.start()?;
    for number in 1..=count {
        world.send(0, handler, &number.to_ne_bytes())?;
        world.wait_until(|| seen.get() >= number)?;
    }
    Ok(())
}
