//! The rows of GASPI's table between processes that are threads, with the default and with awkward settings.

use bellwether_runtime::vocabulary::gaspi::Process;
use bellwether_runtime::{Settings, Threads, Transport};
use bellwether_tests::gaspi::killed::{self, End};
use bellwether_tests::gaspi::{LIMIT, Task, row};
use bellwether_tests::watchdog;

/// Processes, and what is set.
fn surroundings() -> Vec<(usize, &'static str, Settings)> {
    let with = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    };
    let narrow = |settings: &mut Settings| {
        settings.cross_memory_attach = false;
        settings.message_memory = 16 << 10;
        settings.lane_depth = Some(1);
        settings.spin = Some(0);
    };
    vec![
        (2, "the default", Settings::default()),
        (1, "the default", Settings::default()),
        (3, "the default", Settings::default()),
        (2, "all narrow", with(narrow)),
        (5, "no spins", with(|settings| settings.spin = Some(0))),
    ]
}

fn run(name: &str) {
    let (name, row) = row(name).expect("a row of the table");
    for (ranks, what, settings) in surroundings() {
        let _guard = watchdog::guard(format!("{name}: {ranks} processes, {what}"), LIMIT);
        let ran = Threads::new(ranks).settings(settings).build(|builder| {
            let process = Process::start(builder).expect("starts");
            let task = Task { process, virtual_time: false, emulated: cfg!(bellwether_tsan) };
            row(&task);
            task.process.finish().expect("finishes");
        });
        ran.unwrap_or_else(|error| panic!("{ranks} processes, {what}: {error}"));
    }
}

bellwether_tests::gaspi_row_tests!(run);

#[test]
fn g70_g71_one_of_four_leaves_and_the_others_go_on() {
    let _guard = watchdog::guard("one of four leaves", LIMIT);
    for (what, settings) in [("the default", Settings::default()), ("over the contract", over_the_contract())] {
        watchdog::at(what);
        let ran = Threads::new(4).settings(settings).build(|builder| {
            let process = Process::start(builder).expect("starts");
            killed::one_of_four(Task { process, virtual_time: false, emulated: cfg!(bellwether_tsan) }, End::Leaves);
        });
        ran.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

fn over_the_contract() -> Settings {
    let mut settings = Settings::default();
    settings.transport = Transport::ShmContract;
    settings
}
