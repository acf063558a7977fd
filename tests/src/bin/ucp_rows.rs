//! Runs a row of UCP's wake-up between processes: `BELLWETHER_RANKS=2 ucp_rows w04`, or under `bellwether run -n 2` or mpirun. `all` runs
//! every row in one job.

use std::process::ExitCode;
use std::time::Duration;

use bellwether_runtime::{Transport, World};
use bellwether_tests::ucp::{ROWS, Task, row};
use bellwether_tests::watchdog;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let all = arguments.get(1).is_some_and(|name| name == "all");
    let asked = match arguments.get(1) {
        Some(_) if all => ROWS.to_vec(),
        Some(name) => row(name).into_iter().collect(),
        None => Vec::new(),
    };
    if asked.is_empty() {
        let names: Vec<_> = ROWS.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: ucp_rows ROW|all; rows:\n{}", names.join("\n"));
        return ExitCode::FAILURE;
    }
    let world = match World::start() {
        Ok(world) => world,
        Err(error) => {
            eprintln!("ucp_rows: {error}");
            return ExitCode::FAILURE;
        }
    };
    let _guard = watchdog::guard(arguments.join(" "), Duration::from_secs(if all { 500 } else { 140 }));
    let mapped = world.settings().transport == Transport::Auto && world.nodes() == 1;
    // A device may write into memory and announce nothing.
    let announced = mapped || world.settings().transport == Transport::ShmContract;
    let share = if mapped { 10 } else { 1 };
    for (name, run) in asked {
        watchdog::at(name);
        run(&Task { world: &world, virtual_time: false, mapped, posted: false, announced, processes: true, share });
        if world.rank() == 0 {
            println!("{name}: {} processes", world.size());
        }
    }
    world.finish().expect("finishes");
    ExitCode::SUCCESS
}
