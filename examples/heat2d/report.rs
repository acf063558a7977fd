//! The output of `heat2d` at the end: lines and files.

use std::time::{Duration, Instant};

use bellwether::World;
use bellwether_examples::heat::picture;
use bellwether_examples::heat::plate::{Plate, conducts};
use bellwether_examples::heat::serial::{self, Stop};
use bellwether_examples::job::Failure;
use bellwether_examples::progress::seconds;
use bellwether_examples::say;

use crate::Root;

/// Compares with a run on one rank.
pub fn check(plate: &Plate, found: &[f64], alpha: f64, stop: Stop, steps: u64, time: Duration) -> Result<(), Failure> {
    let start = Instant::now();
    let (expected, serial_steps) = serial::run(plate, alpha, stop);
    let serial_time = start.elapsed();
    let differ = found.iter().zip(&expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    if differ > 0 || serial_steps != steps {
        let message = format!("check failed: {differ} of {} cells differ from the serial run", found.len());
        return Err(Failure::Running(anyhow::anyhow!("{message} ({serial_steps} steps there, {steps} here)")));
    }
    let gain = serial_time.as_secs_f64() / time.as_secs_f64();
    say!("check     every bit equals the serial run, which took {} ({gain:.2} times as long)", seconds(serial_time));
    Ok(())
}

/// Writes the picture, and prints the results.
pub fn finish(world: &World, root: Root, temperatures: &[f64], steps: u64, time: Duration) -> anyhow::Result<()> {
    let Plate { width, height, ref cells } = root.plate;
    let path = root.output.place();
    root.output.write(&picture::draw(width, cells, temperatures)?)?;

    let conducting = || cells.iter().zip(temperatures).filter(|(cell, _)| conducts(**cell)).map(|(_, t)| *t);
    let (low, high) = conducting().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), t| (low.min(t), high.max(t)));
    let mean = conducting().sum::<f64>() / conducting().count() as f64;
    let free = root.plate.free_cells();
    let rate = free as f64 * steps as f64 / time.as_secs_f64() / 1e6;
    let ranks = world.size();
    say!("plate     {width} x {height}, {free} cells that change, {ranks} rank{}", if ranks == 1 { "" } else { "s" });
    say!("steps     {steps} in {}, {rate:.0} million cell updates per second", seconds(time));
    say!("degrees   lowest {low:.2}, highest {high:.2}, mean {mean:.6}");
    if let Some(folder) = &root.frames {
        say!("frames    {}", folder.display());
    }
    say!("picture   {path}");
    Ok(())
}
