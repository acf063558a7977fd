//! The rows of GASPI's table between processes that are threads, with the default and with awkward settings.

use bellwether_runtime::vocabulary::gaspi::Process;
use bellwether_runtime::{Settings, Threads};
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
    let _guard = watchdog::guard(name, LIMIT);
    let (name, row) = row(name).expect("a row of the table");
    for (ranks, what, settings) in surroundings() {
        watchdog::at(format!("{name}: {ranks} processes, {what}"));
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
