//! Functions for the expansion of the attribute [`bellwether::test`](crate::test).

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::process::{Command, Stdio};
use std::time::Duration;

use bellwether_runtime::{Threads, World};

/// One test: a body and the number of ranks that run it.
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

/// Set in the environment of the ranks of a test and of the process that watches them.
const MARK: &str = "BELLWETHER_TEST";

/// A return type of a test's body.
pub trait Outcome {
    /// `Ok`, or the failure in words.
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
    as_rank(world, body);
}

/// Status of a rank that failed: that of a test program.
const FAILED: i32 = 101;

/// The body, in a process of its own. One that fails says so itself, under its rank's number, and ends here: the report is
/// that of the test which started it, so the harness of this process is not to make another.
fn as_rank(world: World, body: impl Fn(&World) -> Result<(), String>) {
    let rank = world.rank();
    std::panic::set_hook(Box::new(move |panic| tell_panic(rank, panic)));
    // The world is not left before the process ends: then the launcher is the first to know, and names this rank as the first.
    match catch_unwind(AssertUnwindSafe(|| body(&world))) {
        Ok(Ok(())) => {}
        Ok(Err(why)) => fail(rank, &why),
        Err(_) => std::process::exit(FAILED),
    }
    if let Err(error) = world.finish() {
        fail(rank, &error.to_string());
    }
}

fn fail(rank: usize, why: &str) -> ! {
    tell(&format!("rank {rank}: {why}"));
    std::process::exit(FAILED)
}

fn tell_panic(rank: usize, panic: &PanicHookInfo<'_>) {
    let what = panic.payload_as_str().unwrap_or("something that is no text");
    let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
    let mut text = format!("rank {rank} panicked{place}: {what}");
    // If it is asked for.
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        text += &format!("\n{trace}");
    }
    tell(&text);
}

/// In one piece, past the harness.
fn tell(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
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
    let failed =
        || format!("{} ranks as processes: {}\n{}{}", test.ranks, output.status, of_ranks(name, &out), once(&err));
    assert!(output.status.success(), "{}", failed());
    assert!(out.contains("1 passed"), "no test {name} in this program\n{out}{err}");
}

/// The output of the ranks, without the lines of the harness of each process.
fn of_ranks(name: &str, out: &str) -> String {
    let start = format!("test {name}");
    let mut text = String::new();
    for line in out.lines() {
        let own = line.strip_prefix(&start).and_then(|rest| rest.split_once("... ")).map_or(line, |(_, own)| own);
        let harness = matches!(own, "" | "ok" | "running 1 test") || own.starts_with("test result: ");
        if !harness {
            text += own;
            text += "\n";
        }
    }
    text
}

/// The text on standard error, without the lines that the launcher repeats.
fn once(err: &str) -> String {
    let (mut text, mut repeated) = (String::new(), false);
    for line in err.lines() {
        repeated = line.ends_with("the last lines of its standard error:") || repeated && line.starts_with("    ");
        if !repeated {
            text += line;
            text += "\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_wrote_is_told_from_their_harness() {
        let out = "\nrunning 1 test\ntest a::ranks_2 ... \nrunning 1 test\ntest a::ranks_2 ... first\nsecond\nok\n\n\
                   test result: ok. 1 passed; 0 failed\n\ntest a::ranks_2 - should panic ... third\ntest b ... fourth\n";
        assert_eq!(of_ranks("a::ranks_2", out), "first\nsecond\nthird\ntest b ... fourth\n");
        assert_eq!(of_ranks("a::ranks_2", ""), "");
        let err = "rank 1: no\nX: rank 1 failed first\nX: the last lines of its standard error:\n    rank 1: no\n  rank 0: exit 0\n";
        assert_eq!(once(err), "rank 1: no\nX: rank 1 failed first\n  rank 0: exit 0\n");
    }
}
