//! The rows of UCP's wake-up between ranks that are threads, with the default and with awkward settings.

use std::time::Duration;

use bellwether_runtime::{Settings, Threads, Transport};
use bellwether_tests::ucp::{LIMIT, Task, ping_pong, row};
use bellwether_tests::watchdog;

fn surroundings() -> Vec<(usize, &'static str, Settings)> {
    let with = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    };
    let narrow = with(|settings| {
        settings.message_memory = 16 << 10;
        settings.lane_depth = Some(1);
        settings.spin = Some(0);
    });
    let contract = with(|settings| settings.transport = Transport::ShmContract);
    vec![
        (2, "the default", Settings::default()),
        (1, "the default", Settings::default()),
        (3, "all narrow", narrow),
        (2, "the transport contract", contract),
    ]
}

fn run(name: &str) {
    let (name, row) = row(name).expect("a row of the table");
    for (ranks, what, settings) in surroundings() {
        let _guard = watchdog::guard(format!("{name}: {ranks} ranks, {what}"), LIMIT);
        let mapped = settings.transport == Transport::Auto;
        let ran = Threads::new(ranks).settings(settings).deadline(LIMIT).run(|world| {
            let share = if mapped { 5 } else { 1 };
            row(&Task { world, virtual_time: false, mapped, posted: false, announced: true, processes: false, share });
        });
        ran.unwrap_or_else(|error| panic!("{ranks} ranks, {what}: {error}"));
    }
}

bellwether_tests::ucp_row_tests!(run);

#[test]
fn w06_a_million_ping_pongs_lose_nothing() {
    let rounds = if bellwether_tests::is_full() { 1_000_000 } else { 100_000 };
    const LIMIT: Duration = Duration::from_secs(1800);
    let _guard = watchdog::guard("a million ping-pongs", LIMIT);
    let ran = Threads::new(2).deadline(LIMIT).run(|world| {
        let (mapped, announced) = (true, true);
        let task = Task { world, virtual_time: false, mapped, posted: false, announced, processes: false, share: 1000 };
        ping_pong(&task, rounds);
    });
    ran.expect("runs");
}

/// The numbers of signals and of turns that the table has.
#[test]
fn w15_w24_signals_and_turns_as_often_as_in_the_table() {
    let share = if bellwether_tests::is_full() { 1000 } else { 50 };
    for name in ["w15_", "w24_"] {
        let (name, row) = row(name).expect("a row of the table");
        let _guard = watchdog::guard(name, 4 * LIMIT);
        let ran = Threads::new(2).deadline(4 * LIMIT).run(|world| {
            let (mapped, announced) = (true, true);
            row(&Task { world, virtual_time: false, mapped, posted: false, announced, processes: false, share });
        });
        ran.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
