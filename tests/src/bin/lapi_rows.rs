//! Runs a row of LAPI's table between processes: `BELLWETHER_RANKS=2 lapi_rows l15`, or under `bellwether run -n 2` or mpirun.

use std::process::ExitCode;
use std::time::Duration;

use bellwether_runtime::World;
use bellwether_runtime::vocabulary::lapi::Job;
use bellwether_tests::lapi::{ROWS, Task, row};
use bellwether_tests::watchdog;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let Some((name, run)) = arguments.get(1).and_then(|name| row(name)) else {
        let names: Vec<_> = ROWS.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: lapi_rows ROW; rows:\n{}", names.join("\n"));
        return ExitCode::FAILURE;
    };
    let job = match Job::start(World::builder()) {
        Ok(job) => job,
        Err(error) => {
            eprintln!("lapi_rows: {error}");
            return ExitCode::FAILURE;
        }
    };
    // After the start: static data can be made symmetric while there is one thread.
    let _guard = watchdog::guard(arguments.join(" "), Duration::from_secs(100));
    let (me, n) = job.place();
    let is_set = |name: &str, value: &str| std::env::var(name).is_ok_and(|set| set == value);
    let maps = std::env::var_os("BELLWETHER_TRANSPORT").is_none();
    let (attaches, maps_statics) = (!is_set("BELLWETHER_CMA", "off"), is_set("BELLWETHER_STATIC_DATA", "on"));
    let task = Task { job, virtual_time: false, attaches: maps && attaches, maps_statics: maps && maps_statics };
    run(&task);
    if me == 0 {
        println!("{name}: {n} tasks");
    }
    task.job.finish().expect("finishes");
    ExitCode::SUCCESS
}
