//! The attribute `bellwether::test`: what it runs, and what it says when a test goes wrong.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bellwether::{GlobalArray, Layout, Result, Sum, Team, World};
use bellwether_tests::watchdog;

#[bellwether::test(ranks = [1, 2, 3, 7])]
fn everyone_counts(world: &World) -> Result<()> {
    let mut ranks = [1];
    Team::world(world)?.allreduce(&mut ranks, Sum)?;
    assert_eq!(ranks[0], world.size());
    Ok(())
}

#[bellwether::test(ranks = [1, 2, 3], launch = "processes", deadline = "40s")]
fn everyone_counts_in_processes(world: &World) -> Result<()> {
    let team = Team::world(world)?;
    assert_eq!(team.allgather(&[std::process::id()])?.len(), world.size());
    let half = team.split(Some(world.rank() as u64 % 2), 0)?.expect("a colour");
    let mut sum = [world.rank()];
    half.allreduce(&mut sum, Sum)?;
    assert_eq!(sum[0], half.world_ranks().sum());
    Ok(())
}

#[bellwether::test]
fn no_result_is_needed(world: &World) {
    assert!(world.size() <= 3);
}

/// Run by `a_failing_test_says_where_each_rank_is` alone.
#[bellwether::test(ranks = [3], deadline = "3s")]
#[ignore = "hangs on purpose: another test runs it and reads what its deadline says"]
fn one_rank_does_not_come(world: &World) -> Result<()> {
    let bell = world.bell()?;
    if world.rank() == 1 {
        bell.wait(1)?;
    }
    world.barrier()
}

#[bellwether::test(ranks = [2], launch = "processes", deadline = "8s")]
#[ignore = "hangs on purpose: another test runs it and reads what its deadline says"]
fn one_process_does_not_come(world: &World) -> Result<()> {
    let bell = world.bell()?;
    if world.rank() == 1 {
        bell.wait(1)?;
    }
    world.barrier()
}

#[bellwether::test(ranks = [2])]
#[should_panic(expected = "what it said")]
fn errors_fail_the_test(world: &World) -> std::result::Result<(), String> {
    if world.rank() == 1 { Err("what it said".into()) } else { Ok(()) }
}

#[bellwether::test(ranks = [2], launch = "processes")]
#[should_panic(expected = "rank 1: \"what it said\"\n")]
fn errors_of_processes_fail_the_test(world: &World) -> std::result::Result<(), &'static str> {
    if world.rank() == 1 { Err("what it said") } else { Ok(()) }
}

#[bellwether::test(ranks = [3], launch = "processes", deadline = "20s")]
#[ignore = "fails on purpose: another test runs it and reads what it says"]
fn a_process_that_panics(world: &World) -> Result<()> {
    println!("rank {} was here", world.rank());
    assert!(world.rank() != 1, "on purpose, with {} ranks", world.size());
    world.barrier()
}

/// Neither waits nor returns, so that only the end of the process ends it.
#[bellwether::test(ranks = [2], deadline = "3s")]
#[ignore = "hangs on purpose: another test runs it and reads what its deadline says"]
fn one_rank_hears_nothing(world: &World) -> Result<()> {
    while world.rank() == 1 {
        std::thread::sleep(Duration::from_millis(100));
    }
    GlobalArray::<u64, 1>::new(world, Layout::block([10], world.size())?)?.sum(world).map(drop)
}

/// Longest that one of these programs may take: far from what any does that ends.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs one of the tests of this program, also an ignored one: its status, and what it said. One that hangs is ended, and
/// fails the test.
fn run(name: &str) -> (ExitStatus, String) {
    let _guard = watchdog::guard(name, 2 * LIMIT);
    let program = std::env::current_exe().expect("a running test has a file");
    let mut program = Command::new(program)
        .args([name, "--exact", "--ignored", "--nocapture"])
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program starts");
    // Read to the end by threads, so that nothing it says makes it wait.
    let read = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).expect("a pipe");
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let err = read(Box::new(program.stderr.take().expect("piped")));
    let out = read(Box::new(program.stdout.take().expect("piped")));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = program.try_wait().expect("it is ours") {
            break status;
        }
        if start.elapsed() > LIMIT {
            program.kill().expect("it is ours");
            panic!("{name} has not ended after {LIMIT:?}: {:?}", err.join());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    (status, err.join().expect("reads") + &out.join().expect("reads"))
}

#[test]
fn a_failing_test_says_where_each_rank_is() {
    for name in ["one_rank_does_not_come::ranks_3", "one_process_does_not_come::ranks_2"] {
        let (status, said) = run(name);
        assert!(!status.success(), "{name}: {said}");
        assert!(said.contains("rank 0 waits: barrier (attribute.rs:"), "{name}: {said}");
        assert!(said.contains("rank 1 waits: waiting for a bell (attribute.rs:"), "{name}: {said}");
        // Ranks that are processes are ended by their launcher.
        assert!(name.contains("process") || said.contains("the job has passed its deadline"), "{name}: {said}");
    }
}

/// A deadline that nothing in the ranks can be told of ends the process, in time, and says which test and where ranks are.
#[test]
fn a_deadline_that_nobody_hears_ends_the_process() {
    const NAME: &str = "one_rank_hears_nothing::ranks_2";
    let (status, said) = run(NAME);
    assert_eq!(status.signal(), Some(6), "{status}, not an abort: {said}");
    let last = said.lines().find(|line| line.contains("this process is aborted")).unwrap_or_else(|| panic!("{said}"));
    assert!(last.starts_with(&format!("{NAME}: ")), "{said}");
    assert!(last.contains("deadline of 3s"), "{said}");
    assert!(
        last.contains("rank 0 waits: GlobalArray::new: barrier (attribute.rs:") && last.contains("; rank 1 computes"),
        "{said}"
    );
}

/// Each rank's own words, once, under its number; and nothing of the harness that each process has.
#[test]
fn processes_that_fail_are_told_of_once() {
    let (status, said) = run("a_process_that_panics::ranks_3");
    assert!(!status.success(), "{said}");
    let count = |words: &str| said.matches(words).count();
    assert_eq!(count("\nrank 1 panicked at pgas/tests/attribute.rs:"), 1, "{said}");
    assert_eq!(count("on purpose, with 3 ranks"), 1, "{said}");
    for rank in 0..3 {
        let here = count(&format!("\nrank {rank} was here\n"));
        let lost = count(&format!("\nrank {rank}: barrier: rank 1 is gone: it exited with code 101"));
        // One that does not come so far in the launcher's grace is ended.
        let ended = |line: &str| line.starts_with(&format!("  rank {rank}: ")) && line.contains("the launcher (SIG");
        match said.lines().any(ended) {
            true => assert!(rank != 1 && here <= 1 && lost <= 1, "{said}"),
            false => assert_eq!((here, lost), (1, usize::from(rank != 1)), "{said}"),
        }
    }
    // Of the one test that this program is asked for.
    for harness in ["running 1 test", "test result: FAILED", "a_process_that_panics::ranks_3 ... "] {
        assert_eq!(count(harness), 1, "{harness}: {said}");
    }
    assert_eq!(count("3 ranks as processes: exit status: 101"), 1, "{said}");
    assert!(said.lines().any(|line| line.contains("rank 1 (pid ") && line.contains("failed first")), "{said}");
}
