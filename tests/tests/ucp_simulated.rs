//! The rows of UCP's wake-up between ranks of a simulated network, where time is virtual.

use bellwether_runtime::Simulated;
use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_tests::ucp::{LIMIT, Task, row};
use bellwether_tests::watchdog;

fn networks(seed: u64) -> Vec<(&'static str, Config)> {
    let plain = |ranks| Config::new(ranks, seed);
    let mut narrow = plain(2).wild();
    (narrow.flow.slots, narrow.flow.credits, narrow.flow.fragment) = (1, 1, 64);
    vec![
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
            let posted = config.memory == Memory::Posted;
            let ran = Simulated::new(config).run(|world| {
                let (mapped, announced) = (false, true);
                row(&Task { world, virtual_time: true, mapped, posted, announced, processes: false, share: 1 });
            });
            ran.unwrap_or_else(|error| panic!("{network}: {error}"));
        }
    });
}

bellwether_tests::ucp_row_tests!(run);
