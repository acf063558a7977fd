//! Runs rows of LAPI's table between processes: `BELLWETHER_RANKS=2 lapi_rows l15`, or under `bellwether run -n 2` or mpirun. Several
//! names, or the beginnings of names, run those rows in one job, `all` every row, `closures` owned vectors and events, `mix SEED SECONDS` the
//! random mix of all calls, `losses`, under the launcher, a task that dies, `barrier`, `owes`, `sent`, `named` and `behind` one that leaves; the others
//! are of `APART`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use bellwether_runtime::vocabulary::lapi::Job;
use bellwether_runtime::{Builder, World};
use bellwether_tests::lapi::closures;
use bellwether_tests::lapi::departures::{self, Owes, Told};
use bellwether_tests::lapi::losses::{self, Death};
use bellwether_tests::lapi::mix::{self, Until};
use bellwether_tests::lapi::{APART, LIMIT, ROWS, Task, rows_of};
use bellwether_tests::watchdog;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some("mix") = arguments.get(1).map(String::as_str) {
        return mix(&arguments[2..]);
    }
    match arguments.get(1).map(String::as_str) {
        Some("losses") => losses(),
        Some("closures") => alone("closures", |builder| closures::programs(builder, say)),
        Some("barrier") => alone("barrier", |builder| departures::a_barrier_without_a_task(builder, None, say)),
        Some("owes") => {
            alone("owes", |builder| departures::what_a_task_owes(builder, Owes::Get, Told::Waiting, None, say))
        }
        Some("sent") => alone("sent", |builder| departures::what_a_task_sent_before_it_left(builder, false, say)),
        Some("behind") => alone("behind", |builder| departures::what_a_task_left_behind(builder, false, say)),
        Some("named") => alone("named", |builder| departures::a_counter_of_named_tasks(builder, false, say)),
        _ => {}
    }
    let all = arguments.get(1).is_some_and(|name| name == "all");
    let asked = match arguments.get(1) {
        Some(_) if all => ROWS.to_vec(),
        Some(name) => match APART.iter().find(|(apart, _)| apart == name) {
            Some(apart) => vec![*apart],
            None => rows_of(&arguments[1..]),
        },
        None => Vec::new(),
    };
    if asked.is_empty() {
        let names: Vec<_> = ROWS.iter().chain(APART).map(|(name, _)| *name).collect();
        eprintln!("usage: lapi_rows ROW...|all|mix; rows:\n{}", names.join("\n"));
        return ExitCode::FAILURE;
    }
    let job = match Job::start(World::builder()) {
        Ok(job) => job,
        Err(error) => {
            eprintln!("lapi_rows: {error}");
            return ExitCode::FAILURE;
        }
    };
    // After the start: static data can be made symmetric while there is one thread.
    let _guard = watchdog::guard(arguments.join(" "), Duration::from_secs(if asked.len() > 1 { 1000 } else { 300 }));
    let (me, n) = job.place();
    let is_set = |name: &str, value: &str| std::env::var(name).is_ok_and(|set| set == value);
    let maps = std::env::var_os("BELLWETHER_TRANSPORT").is_none();
    let (attaches, maps_statics) = (!is_set("BELLWETHER_CMA", "off"), is_set("BELLWETHER_STATIC_DATA", "on"));
    let (attaches, maps_statics) = (maps && attaches, maps && maps_statics);
    // Where the tests have RDMA, that is emulated.
    let task =
        Task { job, virtual_time: false, emulated: is_set("BELLWETHER_TRANSPORT", "verbs"), attaches, maps_statics };
    for (name, run) in asked {
        run(&task);
        if me == 0 {
            println!("{name}: {n} tasks");
        }
    }
    task.job.finish().expect("finishes");
    ExitCode::SUCCESS
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().expect("stdout is there");
}

/// A program that begins and ends its own job.
fn alone(name: &str, program: fn(Builder)) -> ! {
    let _guard = watchdog::guard(name, LIMIT);
    program(World::builder());
    std::process::exit(0)
}

/// A task dies.
fn losses() -> ! {
    let _guard = watchdog::guard("losses", LIMIT);
    let pid = |process: u64| i32::try_from(process).expect("a process");
    // SAFETY: kills a task of this job.
    let kill = |process| assert_eq!(unsafe { libc::kill(pid(process), libc::SIGKILL) }, 0);
    let by_pieces = std::env::var("BELLWETHER_CMA").is_ok_and(|set| set == "off");
    losses::events_of_a_lost_task(World::builder(), &Death { kill: &kill, virtual_time: false, by_pieces });
    std::process::exit(0)
}

fn mix(arguments: &[String]) -> ExitCode {
    let [Some(seed), Some(seconds)] = [0, 1].map(|i| arguments.get(i).and_then(|word| word.parse::<u64>().ok())) else {
        eprintln!("usage: lapi_rows mix SEED SECONDS");
        return ExitCode::FAILURE;
    };
    let _guard = watchdog::guard(format!("mix {seed} {seconds}"), Duration::from_secs(seconds + 120));
    let (rounds, messages) =
        mix::run(World::builder(), seed, Until::Time(Duration::from_secs(seconds)), usize::MAX, false);
    println!("mix {seed}: {rounds} rounds, {messages} messages");
    ExitCode::SUCCESS
}
