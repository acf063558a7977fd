//! The rows of GASPI's table between processes on a simulated network: late, out of order, in small pieces.

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::vocabulary::gaspi::Process;
use bellwether_runtime::{Settings, Simulated};
use bellwether_tests::gaspi::{LIMIT, Task, row};
use bellwether_tests::watchdog;

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
    check(name, 1, |seed| {
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
