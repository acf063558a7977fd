//! Runs rows of Cheetah's table between processes: `BELLWETHER_RANKS=2 cheetah_rows -full c08`, or under
//! `bellwether run -n 2` or mpirun. A job sets up once. `shared` runs all rows that can share a job, each with a copy of the
//! controller.

use std::process::ExitCode;
use std::time::Duration;

use bellwether_runtime::vocabulary::cheetah::Controller;
use bellwether_runtime::{Settings, Transport};
use bellwether_tests::cheetah::{Load, ROWS, row};
use bellwether_tests::watchdog;

/// Rows that need a job of their own: they finalise it, or count the functions that are registered in it.
const ALONE: [&str; 4] = ["c01", "c02", "c17", "c28"];

fn main() -> ExitCode {
    let _guard = watchdog::guard(std::env::args().collect::<Vec<_>>().join(" "), Duration::from_secs(100));
    let mut arguments: Vec<String> = std::env::args().collect();
    let given = arguments.len();
    let controller = match Controller::setup(&mut arguments) {
        Ok(controller) => controller,
        Err(error) => {
            eprintln!("cheetah_rows: {error}");
            return ExitCode::FAILURE;
        }
    };
    let full = arguments.iter().any(|argument| argument == "-full");
    arguments.retain(|argument| argument != "-full");
    let [_, name] = arguments.as_slice() else {
        let names: Vec<_> = ROWS.iter().map(|(name, _)| *name).collect();
        eprintln!(
            "usage: cheetah_rows [-np N] [-full] ROW|shared, of {given} arguments given; rows:\n{}",
            names.join("\n")
        );
        return ExitCode::FAILURE;
    };
    let asked: Vec<_> = match name.as_str() {
        "shared" => {
            let shares = |name: &str| !ALONE.iter().any(|alone| name.starts_with(alone));
            ROWS.iter().filter(|(name, _)| shares(name)).copied().collect()
        }
        name => row(name).into_iter().collect(),
    };
    if asked.is_empty() {
        eprintln!("cheetah_rows: no row {name}");
        return ExitCode::FAILURE;
    }
    let settings = Settings::from_env().expect("setup has read them");
    // The watchdog and this thread, where no MPI brings its own, nor a network its own.
    let alone = std::env::var_os("BELLWETHER_JOB").is_some() && settings.transport == Transport::Auto;
    let tasks = alone.then_some(2);
    let load = Load { tasks, ..Load::new(full, &settings) };
    let (me, n) = (controller.mycontext(), controller.ncontexts());
    let told = |name: &str| {
        // Several jobs of one context each would pass too.
        if let (Ok(0), Ok(n)) = (&me, &n) {
            println!("{name}: {n} contexts");
        }
    };
    if let [(name, run)] = asked[..] {
        run(controller, &load);
        told(name);
        return ExitCode::SUCCESS;
    }
    for (name, run) in &asked {
        run(controller.clone(), &load);
        controller.barrier().unwrap_or_else(|error| panic!("the barrier after {name}: {error}"));
        told(name);
    }
    told(&format!("{} rows", asked.len()));
    ExitCode::SUCCESS
}
