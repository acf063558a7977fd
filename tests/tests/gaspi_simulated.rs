//! The rows of GASPI's table between processes on a simulated network: late, out of order, in small pieces.

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::vocabulary::gaspi::Process;
use bellwether_runtime::{Settings, Simulated};
use bellwether_tests::gaspi::killed::{self, End};
use bellwether_tests::gaspi::{LIMIT, Task, row};
use bellwether_tests::{is_full, watchdog};

fn networks(seed: u64) -> Vec<(&'static str, Config)> {
    let plain = |ranks| Config::new(ranks, seed);
    let mut narrow = plain(2).wild();
    (narrow.flow.slots, narrow.flow.credits, narrow.flow.fragment) = (1, 1, 64);
    vec![
        ("1 task", plain(1).wild()),
        ("in order", plain(2)),
        ("out of order", plain(3).wild()),
        ("one credit", narrow),
        ("direct puts", Config { memory: Memory::Direct, ..plain(2).wild() }),
        ("posted puts", Config { memory: Memory::Posted, ..plain(2).wild() }),
        ("shared nodes", plain(3).wild().shared_nodes(&[2])),
    ]
}

fn run(name: &str) {
    let _guard = watchdog::guard(name, LIMIT);
    let (name, row) = row(name).expect("a row of the table");
    // Rows about the order in which data, notifications and ends of waits are seen.
    let of_order = ["g15_", "g46_", "g49_", "g50_", "g58_"].iter().any(|row| name.starts_with(row));
    check(name, if of_order && is_full() { 3 } else { 1 }, |seed| {
        for (network, config) in networks(seed) {
            watchdog::at(format!("{name}: {network}, seed {seed}"));
            let mut settings = Settings::default();
            settings.message_memory = 32 << 10;
            let ran = Simulated::new(config).settings(settings).build(|builder| {
                let process = Process::start(builder).expect("starts");
                let task = Task { process, virtual_time: true, emulated: false };
                row(&task);
                task.process.finish().expect("finishes");
            });
            ran.unwrap_or_else(|error| panic!("{network}: {error}"));
        }
    });
}

bellwether_tests::gaspi_row_tests!(run);

#[test]
fn g70_g71_one_of_four_is_killed_and_the_others_go_on() {
    let name = "one of four is killed";
    let _guard = watchdog::guard(name, LIMIT);
    check(name, if is_full() { 3 } else { 1 }, |seed| {
        for (network, config) in [("in order", Config::new(4, seed)), ("out of order", Config::new(4, seed).wild())] {
            watchdog::at(format!("{network}, seed {seed}"));
            let job = Simulated::new(config);
            let ran = job.build(|builder| {
                let process = Process::start(builder).expect("starts");
                let kill = || job.network().kill(2);
                killed::one_of_four(Task { process, virtual_time: true, emulated: false }, End::By(&kill));
            });
            ran.unwrap_or_else(|error| panic!("{network}: {error}"));
        }
    });
}
