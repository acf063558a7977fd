//! The rows of Cheetah's table between contexts on a simulated network: late, out of order, in small pieces.

use std::time::Duration;

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::vocabulary::cheetah::Controller;
use bellwether_runtime::{Settings, Simulated};
use bellwether_tests::cheetah::{Load, row};
use bellwether_tests::watchdog;

fn networks(seed: u64) -> Vec<(&'static str, Config)> {
    let plain = |ranks| Config::new(ranks, seed);
    let mut narrow = plain(2).wild();
    (narrow.flow.slots, narrow.flow.credits, narrow.flow.fragment) = (1, 1, 64);
    vec![
        ("1 context", plain(1).wild()),
        ("in order", plain(2)),
        ("out of order", plain(3).wild()),
        ("one credit", narrow),
        ("direct puts", Config { memory: Memory::Direct, ..plain(2).wild() }),
        ("posted puts", Config { memory: Memory::Posted, ..plain(2).wild() }),
        ("shared nodes", plain(3).wild().shared_nodes(&[2])),
    ]
}

fn run(name: &str) {
    let _guard = watchdog::guard(name, Duration::from_secs(150));
    let (name, row) = row(name).expect("a row of the table");
    check(name, 1, |seed| {
        for (network, config) in networks(seed) {
            watchdog::at(format!("{name}: {network}, seed {seed}"));
            let mut settings = Settings::default();
            settings.message_memory = 32 << 10;
            let load = Load { virtual_time: true, ..Load::new(false, &settings) };
            Simulated::new(config)
                .settings(settings)
                .build(|builder| row(Controller::setup_with(builder).expect("set up"), &load))
                .unwrap_or_else(|error| panic!("{network}: {error}"));
        }
    });
}

bellwether_tests::cheetah_row_tests!(run);
