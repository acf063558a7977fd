//! Running a test body on several worlds.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::time::Duration;

use bellwether::{Result, Settings, Simulated, Threads, World, sim};
use bellwether_tests::watchdog;

/// Far from what any of these takes.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Whether all sizes and seeds are asked for (`ROWS_FULL`, which `ci/test full` sets), or some of each kind.
pub fn is_full() -> bool {
    std::env::var_os("ROWS_FULL").is_some()
}

/// Runs `body` on threads, on each of these numbers of ranks.
pub fn on_threads(settings: &Settings, ranks: &[usize], body: impl Fn(&World) -> Result<()> + Sync) {
    for &ranks in ranks {
        let _guard = watchdog::guard(format!("{ranks} threads"), LIMIT);
        let outcomes = Threads::new(ranks).settings(settings.clone()).run(&body).expect("threads start");
        expect_all(outcomes, &format!("{ranks} threads"));
    }
}

/// Runs `body` on a simulated network that delays and reorders, on each of these numbers of ranks, with so many seeds; with one unless
/// all are asked for.
pub fn simulated(settings: &Settings, ranks: &[usize], seeds: u64, body: impl Fn(&World) -> Result<()> + Sync) {
    for &ranks in ranks {
        sim::check("teams", if is_full() { seeds } else { 1 }, |seed| {
            let _guard = watchdog::guard(format!("{ranks} simulated ranks, seed {seed}"), LIMIT);
            let job = Simulated::new(sim::Config::new(ranks, seed).wild()).settings(settings.clone());
            expect_all(job.run(&body).expect("the job starts"), &format!("{ranks} simulated ranks, seed {seed}"));
        });
    }
}

/// The same with ranks on nodes of these sizes.
pub fn on_nodes(settings: &Settings, layouts: &[(usize, &[usize])], body: impl Fn(&World) -> Result<()> + Sync) {
    for &(ranks, sizes) in layouts {
        sim::check("nodes", 1, |seed| {
            for (memory, config) in [
                ("apart", sim::Config::new(ranks, seed).nodes(sizes)),
                ("shared", sim::Config::new(ranks, seed).shared_nodes(sizes)),
            ] {
                let what = format!("{ranks} simulated ranks on nodes of {sizes:?}, memory {memory}, seed {seed}");
                let _guard = watchdog::guard(what.clone(), LIMIT);
                let job = Simulated::new(config.wild()).settings(settings.clone());
                expect_all(job.run(&body).expect("the job starts"), &what);
            }
        });
    }
}

/// Both, on the usual numbers of ranks.
pub fn everywhere(body: impl Fn(&World) -> Result<()> + Sync) {
    let settings = Settings::default();
    on_threads(&settings, &[1, 2, 3, 5, 7], &body);
    simulated(&settings, &[1, 2, 3, 5, 7], 3, &body);
}

/// All ranks, or the errors of all.
pub fn expect_all(outcomes: Vec<Result<()>>, what: &str) {
    let failed: Vec<String> = outcomes
        .iter()
        .enumerate()
        .filter_map(|(rank, outcome)| Some(format!("rank {rank}: {}", outcome.as_ref().err()?)))
        .collect();
    assert!(failed.is_empty(), "{what}: {failed:#?}");
}
