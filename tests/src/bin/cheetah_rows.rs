//! Runs rows of Cheetah's table between processes: `BELLWETHER_RANKS=2 cheetah_rows -full c08`, or under
//! `bellwether run -n 2` or mpirun. One row a job, since a job sets up once.

use std::process::ExitCode;
use std::time::Duration;

use bellwether_runtime::vocabulary::cheetah::Controller;
use bellwether_runtime::{Settings, Transport};
use bellwether_tests::cheetah::{Load, ROWS, row};
use bellwether_tests::watchdog;

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
        eprintln!("usage: cheetah_rows [-np N] [-full] ROW, of {given} arguments given; rows:\n{}", names.join("\n"));
        return ExitCode::FAILURE;
    };
    let Some((name, run)) = row(name) else {
        eprintln!("cheetah_rows: no row {name}");
        return ExitCode::FAILURE;
    };
    let settings = Settings::from_env().expect("setup has read them");
    // The watchdog and this thread, where no MPI brings its own, nor a network its own.
    let alone = std::env::var_os("BELLWETHER_JOB").is_some() && settings.transport == Transport::Auto;
    let tasks = alone.then_some(2);
    let load = Load { tasks, ..Load::new(full, &settings) };
    let (me, n) = (controller.mycontext(), controller.ncontexts());
    run(controller, &load);
    // Several jobs of one context each would pass too.
    if let (Ok(0), Ok(n)) = (me, n) {
        println!("{name}: {n} contexts");
    }
    ExitCode::SUCCESS
}
