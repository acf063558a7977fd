//! Runs rows of GASPI's table between processes: `BELLWETHER_RANKS=2 gaspi_rows g15`, or under `bellwether run -n 2` or mpirun. Several
//! names, or the beginnings of names, run those rows in one job, `all` every row.

use std::process::ExitCode;
use std::time::Duration;

use bellwether_runtime::World;
use bellwether_runtime::vocabulary::gaspi::Process;
use bellwether_tests::gaspi::{ROWS, Task, bound, killed, rows_of};
use bellwether_tests::watchdog;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let all = arguments.get(1).is_some_and(|name| name == "all");
    // `killed FOLDER`: four processes, one of which is killed; each other one writes a file when its rows have held.
    let folder = arguments.get(2).filter(|_| arguments[1] == "killed").cloned();
    // `stopped`, `bound` and `owned`: two processes, one of which is stopped for a while.
    // `gone`: two processes, the second of which takes memory away that it has bound.
    // `leaving`: every process but the first leaves as soon as it is told to.
    // `idle`, `queues` and `receiver`: two processes that measure themselves.
    let measured: Option<fn(&Task)> = match arguments.get(1).map(String::as_str) {
        Some("idle") => Some(bellwether_tests::gaspi::idle::two),
        Some("queues") => Some(bellwether_tests::gaspi::idle::queues_come_and_go),
        Some("stopped") => Some(killed::one_is_stopped),
        Some("bound") => Some(bound::its_process_is_stopped),
        Some("gone") => Some(bound::its_memory_is_gone),
        Some("owned") => Some(bound::owned_posts_have_a_limit),
        Some("ends") => Some(killed::others_go_on_beside_an_end),
        Some("receiver") => Some(bellwether_tests::gaspi::idle::a_receiver_sleeps),
        _ => None,
    };
    let asked = match arguments.get(1) {
        Some(_) if all => ROWS.to_vec(),
        _ => rows_of(&arguments[1..]),
    };
    let leaves = arguments.get(1).is_some_and(|name| name == "leaving");
    if asked.is_empty() && folder.is_none() && measured.is_none() && !leaves {
        let names: Vec<_> = ROWS.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: gaspi_rows ROW...|all; rows:\n{}", names.join("\n"));
        return ExitCode::FAILURE;
    }
    let process = match Process::start(World::builder()) {
        Ok(process) => process,
        Err(error) => {
            eprintln!("gaspi_rows: {error}");
            return ExitCode::FAILURE;
        }
    };
    let _guard = watchdog::guard(arguments.join(" "), Duration::from_secs(if asked.len() > 1 { 1000 } else { 300 }));
    // Where the tests have RDMA, that is emulated.
    let transport = std::env::var("BELLWETHER_TRANSPORT").unwrap_or_default();
    let emulated = transport == "verbs";
    let task = Task { process, virtual_time: false, emulated };
    let (me, n) = task.process.place();
    if leaves {
        killed::each_leaves(task);
        return ExitCode::SUCCESS;
    }
    if let Some(folder) = folder {
        let in_flight = ["tcp", "verbs"].contains(&&*transport);
        killed::one_of_four(task, killed::End::Killed { in_flight });
        std::fs::write(std::path::Path::new(&folder).join(me.to_string()), "well").expect("a folder of the test");
        // Leave without `finish`, which would wait for the process that is gone.
        return ExitCode::SUCCESS;
    }
    if let Some(program) = measured {
        program(&task);
        task.process.finish().expect("finishes");
        return ExitCode::SUCCESS;
    }
    for (name, run) in asked {
        run(&task);
        if me == 0 {
            println!("{name}: {n} processes");
        }
    }
    task.process.finish().expect("finishes");
    ExitCode::SUCCESS
}
