//! `heat2d`: heat spreads over a plate that was painted as a PNG.

#![forbid(unsafe_code)]

mod arguments;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use bellwether::World;
use bellwether_examples::heat::parallel::SharedPlate;
use bellwether_examples::heat::plate::Plate;
use bellwether_examples::heat::serial::Stop;
use bellwether_examples::heat::{given, picture};
use bellwether_examples::job::{self, Failure};
use bellwether_examples::output::Output;
use bellwether_examples::progress::Progress;
use bellwether_examples::say;

use arguments::Arguments;

fn main() -> ExitCode {
    job::main(run)
}

/// State of rank 0 only: the whole plate and the files to write.
struct Root {
    plate: Plate,
    output: Output,
    frames: Option<PathBuf>,
}

fn run(world: &World, arguments: Arguments) -> Result<(), Failure> {
    if let Some(path) = &arguments.save_plate {
        job::on_root(world, || save_plate(path, &arguments).map_err(Failure::Input))?;
        return Ok(());
    }
    let mut root = job::on_root(world, || prepare(&arguments).map_err(Failure::Input))?;
    let stop = Stop { steps: arguments.steps, until_change: arguments.until_change };
    let mut plate = SharedPlate::scatter(world, root.as_ref().map(|root| &root.plate), arguments.alpha)?;

    let progress = Progress::new(world, stop.steps, "{pos} of {len} steps, {eta} left");
    let every = arguments.frames.is_some().then(|| arguments.every.unwrap_or((stop.steps / 50).max(1)));
    if every.is_some() {
        write_frame(world, &plate, root.as_ref())?;
    }
    let start = Instant::now();
    plate.run(stop, every, |plate, step| -> Result<(), Failure> {
        progress.set(step);
        match every {
            Some(every) if step.is_multiple_of(every) => write_frame(world, plate, root.as_ref()),
            _ => Ok(()),
        }
    })?;
    // The time of the slowest rank, without what follows.
    world.barrier()?;
    let time = start.elapsed();
    let temperatures = plate.gather()?;
    progress.finish();

    let steps = plate.steps_done();
    job::on_root(world, || {
        // Rank 0 has both: it read the plate, and it has gathered the temperatures.
        let (Some(root), Some(temperatures)) = (root.take(), temperatures) else {
            return Ok(());
        };
        if arguments.check {
            report::check(&root.plate, &temperatures, arguments.alpha, stop, steps, time)?;
        }
        report::finish(world, root, &temperatures, steps, time).map_err(Failure::Running)
    })?;
    Ok(())
}

/// Reads the plate and makes sure, before anything is computed, that the results can be written.
fn prepare(arguments: &Arguments) -> anyhow::Result<Root> {
    let plate = given::plate(arguments.plate.as_deref(), arguments.size, arguments.open, arguments.hold)?;
    if let Some(folder) = &arguments.frames {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        Output::claim(&frame_path(folder, 0))?;
    }
    Ok(Root { plate, output: Output::claim(&arguments.output)?, frames: arguments.frames.clone() })
}

fn save_plate(path: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let [width, height] = arguments.size;
    Output::claim(path)?.write(&picture::encode_pixels(width, &given::pixels(arguments.size, arguments.open))?)?;
    say!("wrote {}: {width} x {height} pixels; white heats, black cools, blue insulates", path.display());
    Ok(())
}

fn frame_path(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("heat2d-{step:08}.png"))
}

/// Writes the plate as it is now into the folder of frames.
fn write_frame(world: &World, plate: &SharedPlate<'_>, root: Option<&Root>) -> Result<(), Failure> {
    let step = plate.steps_done();
    let temperatures = plate.gather()?;
    if let (Some(temperatures), Some(Root { plate, frames: Some(folder), .. })) = (temperatures, root) {
        let written = picture::draw(plate.width, &plate.cells, &temperatures)
            .and_then(|data| Output::claim(&frame_path(folder, step))?.write(&data));
        if let Err(error) = written {
            // The other ranks are computing and would wait for this one: the whole job ends here.
            world.abort(1, &format!("{error:#}"));
        }
    }
    Ok(())
}
