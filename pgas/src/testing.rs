//! What the attribute [`bellwether::test`](crate::test) expands to.

use std::process::{Command, Stdio};
use std::time::Duration;

use bellwether_runtime::{Threads, World};

/// One test: a body on so many ranks.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    /// Its path, with the crate's name.
    pub name: &'static str,
    /// How many ranks.
    pub ranks: usize,
    /// They are processes, not threads.
    pub processes: bool,
    /// How long it may take.
    pub deadline: Duration,
}

/// Tells that this process is a rank of a test, or the one that watches them.
const MARK: &str = "BELLWETHER_TEST";

/// What a body may return.
pub trait Outcome {
    /// What went wrong, in words.
    ///
    /// # Errors
    /// These words.
    fn told(self) -> Result<(), String>;
}

impl Outcome for () {
    fn told(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: std::fmt::Debug> Outcome for Result<(), E> {
    fn told(self) -> Result<(), String> {
        self.map_err(|error| format!("{error:?}"))
    }
}

/// Runs `body` on every rank.
///
/// # Panics
/// If a rank panics or returns an error, or the deadline passes.
pub fn run(test: Test, body: impl Fn(&World) -> Result<(), String> + Sync) {
    if !test.processes {
        return on_threads(test, body);
    }
    if std::env::var_os(MARK).is_none() {
        return in_processes(test);
    }
    // In the first process this does not return: it starts the ranks, and watches them.
    let world = World::start().unwrap_or_else(|error| panic!("{error}"));
    let outcome = body(&world).and_then(|()| world.finish().map_err(|error| error.to_string()));
    outcome.unwrap_or_else(|why| panic!("{why}"));
}

fn on_threads(test: Test, body: impl Fn(&World) -> Result<(), String> + Sync) {
    let outcomes = Threads::new(test.ranks).deadline(test.deadline).run(body);
    let outcomes = outcomes.unwrap_or_else(|error| panic!("{} ranks as threads: {error}", test.ranks));
    let failed: Vec<String> = outcomes
        .into_iter()
        .enumerate()
        .filter_map(|(rank, outcome)| Some(format!("rank {rank}: {}", outcome.err()?)))
        .collect();
    assert!(failed.is_empty(), "{} of {} ranks failed\n{}", failed.len(), test.ranks, failed.join("\n"));
}

/// This test again, as a program of its own that starts its ranks.
fn in_processes(test: Test) {
    let program = std::env::current_exe().expect("a running test has a file");
    // As the test harness has it: without the crate.
    let name = test.name.split_once("::").map_or(test.name, |(_, name)| name);
    let mut command = Command::new(program);
    let of_a_job =
        |name: &str| ["BELLWETHER_JOB", "OMPI_", "PMI", "SLURM_"].iter().any(|start| name.starts_with(start));
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_a_job(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    let output = command
        .args([name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .env("BELLWETHER_RANKS", test.ranks.to_string())
        .env("BELLWETHER_DEADLINE", test.deadline.as_secs_f64().to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("starting {name} as a program: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{} ranks as processes: {}\n{out}{err}", test.ranks, output.status);
    assert!(out.contains("1 passed"), "no test {name} in this program\n{out}{err}");
}
