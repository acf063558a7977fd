//! Running a program on several ranks, with a deadline.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::fmt::Debug;
use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use bellwether::{Result, Simulated, World, sim};

/// Ranks that wait for each other for ever end the tests with a message, unless what it returns is dropped before.
fn deadline(message: String) -> Sender<()> {
    let (done, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(300)) == Err(RecvTimeoutError::Timeout) {
            // Past the test harness, which keeps what is printed until the test ends.
            let _ = writeln!(std::io::stderr(), "{message}");
            std::process::abort();
        }
    });
    done
}

/// Runs a program on ranks that are threads.
pub fn threads<R: Send>(ranks: usize, what: &str, program: impl Fn(&World) -> R + Sync) -> Vec<R> {
    let done = deadline(format!("{what} on {ranks} ranks: not done after a minute"));
    let outcomes = bellwether::threads(ranks, program).unwrap();
    drop(done);
    outcomes
}

/// Runs a program on a simulated network where everything comes late and out of order.
pub fn simulated<R: Send>(ranks: usize, seed: u64, what: &str, program: impl Fn(&World) -> R + Sync) -> Vec<R> {
    let done = deadline(format!("{what} on {ranks} simulated ranks, seed {seed}: not done after a minute"));
    let outcomes = Simulated::new(sim::Config::new(ranks, seed).wild()).run(program).unwrap();
    drop(done);
    outcomes
}

/// How the ranks reach each other.
#[derive(Clone, Copy, Debug)]
pub enum Over {
    /// They are threads.
    Memory,
    /// A simulated network.
    Network,
}

impl Over {
    pub const BOTH: [Over; 2] = [Over::Memory, Over::Network];

    /// Runs a program on `ranks` ranks.
    pub fn run<R: Send>(self, ranks: usize, what: &str, program: impl Fn(&World) -> R + Sync) -> Vec<R> {
        match self {
            Over::Memory => threads(ranks, what, program),
            Over::Network => simulated(ranks, ranks as u64, what, program),
        }
    }
}

/// Runs a program on one rank, and then on 2, 3, 7 and 11, as threads and over a simulated network: each time every rank
/// must return the same as the one rank alone.
pub fn same_everywhere<R: Send + PartialEq + Debug>(what: &str, program: impl Fn(&World) -> Result<R> + Sync) -> R {
    let finished = |world: &World| -> Result<R> {
        let answer = program(world)?;
        world.barrier()?;
        Ok(answer)
    };
    let alone = threads(1, what, finished).remove(0).unwrap();
    for ranks in [2, 3, 7, 11] {
        for answer in threads(ranks, what, finished) {
            assert_eq!(answer.unwrap(), alone, "{what} on {ranks} ranks");
        }
    }
    for (ranks, seed) in [(1, 1), (2, 2), (3, 3), (7, 4)] {
        for answer in simulated(ranks, seed, what, finished) {
            assert_eq!(answer.unwrap(), alone, "{what} on {ranks} simulated ranks, seed {seed}");
        }
    }
    alone
}
