//! Forked children of ranks: an error for them, and nothing at the rank.

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
