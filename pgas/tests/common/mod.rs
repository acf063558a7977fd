//! Jobs that the tests run: threads, and a simulated network where everything comes late and out of order.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::time::Duration;

use bellwether::{Result, Simulated, World, sim, threads};
use bellwether_tests::watchdog;

/// Longest a test may take.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Runs `program` on threads, on 1, 2, 3, 5, 7 and 16 ranks.
pub fn on_threads(name: &str, program: impl Fn(&World) -> Result<()> + Sync) {
    for ranks in [1, 2, 3, 5, 7, 16] {
        let _guard = watchdog::guard(format!("{name} on {ranks} threads"), LIMIT);
        let ends = threads(ranks, &program).expect("the job starts");
        all_good(name, ranks, ends);
    }
}

/// Whether all sizes and seeds are asked for (`ROWS_FULL`, which `ci/test full` sets), or some of each kind.
pub fn is_full() -> bool {
    std::env::var_os("ROWS_FULL").is_some()
}

/// Runs `program` on simulated networks: an unordered one, and one that in addition has one credit and fragments of a byte.
pub fn on_networks(name: &str, program: impl Fn(&World) -> Result<()> + Sync) {
    sim::check(name, if is_full() { 2 } else { 1 }, |seed| {
        for ranks in [1, 2, 3, 5, 7] {
            let wild = sim::Config::new(ranks, seed).wild();
            let _guard = watchdog::guard(format!("{name} on {ranks} simulated ranks"), LIMIT);
            all_good(name, ranks, Simulated::new(wild.clone()).run(&program).expect("the job starts"));
            if ranks > 2 {
                let shared = wild.clone().shared_nodes(&[2]);
                all_good(name, ranks, Simulated::new(shared).run(&program).expect("the job starts"));
            }
            // A fragment of a byte is slow: by turns.
            if ranks <= 3 && (ranks as u64 + seed).is_multiple_of(2) {
                all_good(name, ranks, Simulated::new(wild.tiny()).run(&program).expect("the job starts"));
            }
        }
    });
}

/// Both.
pub fn everywhere(name: &str, program: impl Fn(&World) -> Result<()> + Sync) {
    on_threads(name, &program);
    on_networks(name, program);
}

fn all_good(name: &str, ranks: usize, ends: Vec<Result<()>>) {
    for (rank, end) in ends.into_iter().enumerate() {
        if let Err(error) = end {
            panic!("{name}: rank {rank} of {ranks}: {error}");
        }
    }
}

/// Numbers that look like chance, the same each time (xorshift, Marsaglia 2003).
pub struct Chance(u64);

impl Chance {
    /// A sequence of its own for each rank and purpose.
    pub fn new(rank: usize, purpose: u64) -> Chance {
        Chance(0x9e37_79b9_7f4a_7c15 ^ ((rank as u64 + 1) << 20) ^ (purpose + 1))
    }

    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next one below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
