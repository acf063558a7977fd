//! Forked children of ranks: an error for them, and nothing at the rank.

use std::path::Path;
use std::time::Duration;

use bellwether_tests::process::{command, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forked");
const LIMIT: Duration = Duration::from_secs(60);

fn ranks_and_their_children(ranks: usize, settings: &[(&str, &str)]) {
    let mut program = command(PROGRAM);
    if ranks > 1 {
        program.env("BELLWETHER_RANKS", ranks.to_string());
    }
    let outcome = run(program.envs(settings.iter().copied()), LIMIT).expect_success();
    assert_eq!(outcome.stdout, format!("{ranks} ranks and their children\n"), "{outcome:#?}");
    assert_eq!(outcome.stderr, "", "{ranks} ranks, {settings:?}");
}

#[test]
fn a_forked_child_is_not_the_rank() {
    for ranks in [1, 2, 3] {
        ranks_and_their_children(ranks, &[]);
    }
}

#[test]
fn a_forked_child_is_not_the_rank_with_other_barriers() {
    for barrier in ["central", "dissemination"] {
        ranks_and_their_children(3, &[("BELLWETHER_BARRIER", barrier), ("BELLWETHER_LANE_DEPTH", "1")]);
    }
}

#[test]
fn a_forked_child_is_not_the_rank_over_the_contract() {
    for ranks in [1, 2, 3] {
        ranks_and_their_children(ranks, &[("BELLWETHER_TRANSPORT", "shm-contract")]);
    }
}

#[test]
fn a_forked_child_is_not_the_rank_over_tcp() {
    ranks_and_their_children(2, &[("BELLWETHER_TRANSPORT", "tcp")]);
}

/// Runs `forked part` with these ranks.
fn part(part: &str, ranks: usize, settings: &[(&str, &str)], says: &str) {
    let mut program = command(PROGRAM);
    program.arg(part).envs(settings.iter().copied());
    if ranks > 1 {
        program.env("BELLWETHER_RANKS", ranks.to_string());
    }
    let outcome = run(&mut program, LIMIT).expect_success();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), (says, ""), "{part}, {settings:?}");
}

#[test]
fn a_write_to_mapped_memory_ends_a_forked_child() {
    const TRANSPORT: &str = "BELLWETHER_TRANSPORT";
    for settings in [
        &[][..],
        &[(TRANSPORT, "shm-contract")],
        &[(TRANSPORT, "tcp")],
        &[("BELLWETHER_STATIC_DATA", "on"), ("BELLWETHER_CMA", "off")],
    ] {
        part("stores", 2, settings, "2 ranks as they were\n");
    }
    part("threads", 1, &[], "2 ranks as they were\n");
}

#[test]
fn other_faults_of_a_forked_child_go_to_the_handler_that_was_there() {
    part("handlers", 1, &[], "1 rank as it was\n");
}

/// A thread of the parent was inside when the process forked, and never leaves in the child.
#[test]
fn a_forked_child_waits_for_no_thread_of_its_parent() {
    for vocabulary in ["lapi", "gaspi"] {
        for transport in ["auto", "shm-contract"] {
            part(vocabulary, 2, &[("BELLWETHER_TRANSPORT", transport)], "2 ranks as they were\n");
        }
    }
}

/// Children that end in every way, of ranks of `bellwether run` and of a program that starts its own ranks.
#[test]
fn ranks_go_on_however_their_children_end() {
    const FORKING: &str = env!("CARGO_BIN_EXE_forking");
    let launcher = Path::new(FORKING).with_file_name("bellwether");
    assert!(launcher.exists(), "build the workspace first: there is no {}", launcher.display());
    let by_launcher = || {
        let mut launched = command(launcher.to_str().expect("plain text"));
        launched.args(["run", "-n", "3", FORKING]);
        launched
    };
    let by_itself = || {
        let mut program = command(FORKING);
        program.env("BELLWETHER_RANKS", "3");
        program
    };
    for how in ["exits", "calls", "returns", "panics", "aborts", "killed", "stays"] {
        for mut program in [by_launcher(), by_itself()] {
            let outcome = run(program.arg(how), LIMIT).expect_success();
            let mut went_on: Vec<&str> = outcome.stdout.lines().collect();
            went_on.sort_unstable();
            assert_eq!(went_on, ["rank 0 went on", "rank 1 went on", "rank 2 went on"], "{how}: {outcome:#?}");
            let said = outcome.stderr.matches("as it should").count();
            assert_eq!(said, if ["panics", "aborts"].contains(&how) { 3 } else { 0 }, "{how}: {outcome:#?}");
            assert!(!outcome.stderr.contains("failed first"), "{how}: {outcome:#?}");
            assert!(said > 0 || outcome.stderr.is_empty(), "{how}: {outcome:#?}");
        }
    }
}
