//! Ranks that are processes and reach each other through the transport contract only.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use bellwether_tests::process::{Outcome, command, end, launched, run, wait};

const RING: &str = env!("CARGO_BIN_EXE_ring");
const LIMIT: Duration = Duration::from_secs(60);
/// Sooner than any wait of these programs ends by itself.
const SOON: Duration = Duration::from_secs(20);

fn ring(ranks: usize, arguments: &[&str]) -> Command {
    let mut ring = command(RING);
    ring.env("BELLWETHER_RANKS", ranks.to_string()).env("BELLWETHER_TRANSPORT", "shm-contract").args(arguments);
    ring
}

/// As [`ring`], where each rank ends by itself, however long it takes.
fn patient_ring(arguments: &[&str]) -> Command {
    let mut ring = launched(RING, 4);
    ring.env("BELLWETHER_TRANSPORT", "shm-contract").args(arguments);
    ring
}

#[test]
fn a_token_goes_round() {
    // As many ranks as cores, and far more.
    for (ranks, settings) in [
        (1, [].as_slice()),
        (2, &[]),
        (4, &[("BELLWETHER_SPIN", "0")]),
        (5, &[("BELLWETHER_LANE_DEPTH", "1"), ("BELLWETHER_MESSAGE_MEMORY", "16KiB")]),
        (16, &[]),
    ] {
        let mut ring = ring(ranks, &[]);
        let outcome = run(ring.envs(settings.iter().copied()), LIMIT).expect_success();
        assert!(outcome.stdout.starts_with(&format!("{ranks} ranks, 1000 rounds")), "{outcome:#?}");
        assert_eq!(outcome.stderr, "", "{ranks} ranks, {settings:?}");
    }
}

/// Each rank but `rank` failed, and every error holds `cause`. Equal errors are shown once; a rank that was late has another
/// call in its error.
fn named_by_all_but(rank: &str, cause: &str, outcome: &Outcome, case: &str) {
    let mut errors = outcome.stderr.lines().filter(|line| line.starts_with("Error: ")).peekable();
    assert!(errors.peek().is_some(), "{case}, {rank}: {outcome:#?}");
    assert!(errors.all(|error| error.contains(cause)), "{case}, {rank}: {outcome:#?}");
    for other in (0..4).filter(|other| other.to_string() != rank) {
        let failed = outcome.stderr.contains(&format!("rank {other}: exit 1"));
        assert!(failed, "rank {other} was not told; {case}, {rank}: {outcome:#?}");
    }
}

#[test]
fn a_rank_that_goes_wrong_is_named_by_all() {
    for (way, cause) in
        [("kill", "signal 9 ended it"), ("exit", "it exited with code"), ("panic", "it panicked"), ("leave", "it left")]
    {
        for rank in ["0", "2"] {
            let outcome = run(&mut patient_ring(&[way, rank]), LIMIT).expect_failure();
            let cause = format!("rank {rank} is gone: {cause}");
            named_by_all_but(rank, &cause, &outcome, way);
        }
    }
}

#[test]
fn a_rank_killed_in_its_last_barrier_or_in_finish_is_named_by_all() {
    for transport in ["auto", "shm-contract"] {
        for (call, rank) in [("barrier", "0"), ("barrier", "2"), ("finish", "0"), ("finish", "2")] {
            let mut ring = patient_ring(&[call, rank]);
            let outcome = run(ring.env("BELLWETHER_TRANSPORT", transport), LIMIT).expect_failure();
            // The late rank may find the barrier done, and be told in finish.
            let cause = format!("rank {rank} is gone: signal 9 ended it");
            named_by_all_but(rank, &cause, &outcome, &format!("{transport}, {call}"));
        }
    }
}

#[test]
fn the_error_that_main_returns_on_every_rank_is_shown_once() {
    for ranks in [2, 5] {
        // A rank that takes a quarter of a second from its error to its end is shown by itself: then again.
        let once = || run(launched(env!("CARGO_BIN_EXE_start"), ranks).args(["fail", "all"]), LIMIT).expect_failure();
        let is_shown_once = |outcome: &Outcome| {
            outcome.stderr.matches("as all were asked").count() == 1
                && outcome.stderr.contains("the error above came on all ranks")
        };
        let outcomes: Vec<Outcome> = (0..5).map(|_| once()).collect();
        assert!(outcomes.iter().any(is_shown_once), "{outcomes:#?}");
    }
}

#[test]
fn killing_one_rank_from_outside_ends_all() {
    let mut job = ring(4, &["hold"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut lines = BufReader::new(job.stdout.take().expect("piped")).lines();
    let pids: Vec<String> = (0..4)
        .map(|_| {
            let line = lines.next().expect("four lines").expect("text");
            line.rsplit(' ').next().expect("a line has words").to_string()
        })
        .collect();
    // By now the others sleep.
    std::thread::sleep(Duration::from_millis(100));
    assert!(Command::new("kill").args(["-9", &pids[2]]).status().expect("kill is there").success());
    let status = wait(&mut job, SOON);
    if status.is_none() {
        end(&mut job);
    }
    assert!(!status.expect("ended within the limit").success());
}

#[test]
fn a_transport_that_is_not_there_is_an_error_that_names_the_setting() {
    let outcome = run(ring(2, &[]).env("BELLWETHER_TRANSPORT", "smoke"), LIMIT).expect_failure();
    assert!(outcome.stderr.contains("BELLWETHER_TRANSPORT") && outcome.stderr.contains("shm-contract"), "{outcome:#?}");
}
