//! Ranks that are processes and reach each other over TCP only.

use std::process::Command;
use std::time::Duration;

use bellwether_tests::process::{command, launched, run};

const RING: &str = env!("CARGO_BIN_EXE_ring");
const START: &str = env!("CARGO_BIN_EXE_start");
const CHEETAH: &str = env!("CARGO_BIN_EXE_cheetah_rows");
const LAPI: &str = env!("CARGO_BIN_EXE_lapi_rows");
const LIMIT: Duration = Duration::from_secs(100);

fn over_tcp(program: &str, ranks: usize, arguments: &[&str]) -> Command {
    let mut command = command(program);
    command.env("BELLWETHER_RANKS", ranks.to_string()).env("BELLWETHER_TRANSPORT", "tcp").args(arguments);
    command
}

#[test]
fn a_token_goes_round() {
    for (ranks, settings) in [
        (1, [].as_slice()),
        (2, &[]),
        (3, &[("BELLWETHER_TCP_INTERFACE", "lo")]),
        (3, &[("BELLWETHER_ENCRYPT", "on")]),
        (5, &[("BELLWETHER_SPIN", "0"), ("BELLWETHER_STATIC_DATA", "on")]),
    ] {
        let outcome = run(over_tcp(RING, ranks, &["200"]).envs(settings.iter().copied()), LIMIT).expect_success();
        assert!(outcome.stdout.starts_with(&format!("{ranks} ranks, 200 rounds")), "{outcome:#?}");
        assert_eq!(outcome.stderr, "", "{ranks} ranks, {settings:?}");
    }
}

#[test]
fn a_rank_that_goes_wrong_is_named_by_all() {
    for (way, cause) in [("kill", "signal 9 ended it"), ("exit", "it exited with code"), ("panic", "it panicked")] {
        let mut ring = launched(RING, 4);
        let outcome = run(ring.env("BELLWETHER_TRANSPORT", "tcp").args([way, "2"]), LIMIT).expect_failure();
        let mut errors = outcome.stderr.lines().filter(|line| line.starts_with("Error: ")).peekable();
        assert!(errors.peek().is_some(), "{way}: {outcome:#?}");
        assert!(errors.all(|error| error.contains(&format!("rank 2 is gone: {cause}"))), "{way}: {outcome:#?}");
        for other in [0, 1, 3] {
            assert!(outcome.stderr.contains(&format!("rank {other}: exit 1")), "rank {other}, {way}: {outcome:#?}");
        }
    }
}

/// The rank whose handler panicked neither polls nor ends before its caller has been told.
#[test]
fn a_call_whose_closure_panics_is_answered_while_its_target_lives() {
    let folder = tempfile::tempdir().expect("a folder");
    for encrypt in ["off", "on"] {
        let told = folder.path().join(encrypt);
        let mut ring = launched(RING, 3);
        ring.env("BELLWETHER_TRANSPORT", "tcp").env("BELLWETHER_ENCRYPT", encrypt);
        let outcome = run(ring.args(["told", "1"]).arg(&told), LIMIT).expect_success();
        assert!(outcome.stderr.contains("no 7 here") && told.exists(), "{outcome:#?}");
    }
}

#[test]
fn ranks_go_on_after_a_death() {
    for victim in ["0", "2"] {
        let mut job = launched(START, 4);
        job.env("BELLWETHER_TRANSPORT", "tcp").args(["survive", victim]);
        let outcome = run(&mut job, LIMIT).expect_success();
        assert_eq!(outcome.stdout.matches("goes on, one of 3").count(), 3, "{outcome:#?}");
        assert!(outcome.stderr.contains(&format!("bellwether: rank {victim} (pid ")), "{outcome:#?}");
    }
}

#[test]
fn cheetahs_rows_hold() {
    for (row, encrypt) in [
        ("shared", "off"),
        ("c01", "off"),
        ("c02", "off"),
        ("c17", "off"),
        ("c28", "off"),
        ("c02", "on"),
        ("c17", "on"),
    ] {
        run(over_tcp(CHEETAH, 2, &[row]).env("BELLWETHER_ENCRYPT", encrypt), LIMIT).expect_success();
    }
}

#[test]
fn lapis_mix_of_operations_is_exact() {
    let seconds = if bellwether_tests::is_full() { "10" } else { "3" };
    run(&mut over_tcp(LAPI, 3, &["mix", "1", seconds]), LIMIT).expect_success();
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let outcome = run(over_tcp(RING, 2, &[]).env("BELLWETHER_TCP_INTERFACE", "nonesuch0"), LIMIT).expect_failure();
    assert!(outcome.stderr.contains("nonesuch0") && outcome.stderr.contains("lo"), "{outcome:#?}");
}
