//! The rows of Cheetah's table between contexts that are processes.

use std::time::Duration;

use bellwether_tests::process::{command, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_cheetah_rows");
const LIMIT: Duration = Duration::from_secs(150);

/// Contexts, options, environment.
type Surroundings = (usize, &'static [&'static str], &'static [(&'static str, &'static str)]);

fn row(name: &str) {
    const ALL_AT_ONCE: &[(&str, &str)] = &[
        ("BELLWETHER_CMA", "off"),
        ("BELLWETHER_MESSAGE_MEMORY", "16KiB"),
        ("BELLWETHER_LANE_DEPTH", "1"),
        ("BELLWETHER_BARRIER", "dissemination"),
    ];
    const CONTRACT: (&str, &str) = ("BELLWETHER_TRANSPORT", "shm-contract");
    let surroundings: [Surroundings; 6] = [
        (2, &["-full"], &[]),
        (3, &[], &[]),
        (2, &[], ALL_AT_ONCE),
        (5, &[], &[("BELLWETHER_BARRIER", "central"), ("BELLWETHER_SPIN", "0")]),
        (3, &[], &[CONTRACT]),
        (2, &[], &[CONTRACT, ("BELLWETHER_LANE_DEPTH", "1"), ("BELLWETHER_SPIN", "0")]),
    ];
    for (ranks, options, settings) in surroundings {
        let mut program = command(PROGRAM);
        program.env("BELLWETHER_RANKS", ranks.to_string()).envs(settings.iter().copied()).args(options).arg(name);
        let outcome = run(&mut program, LIMIT).expect_success();
        assert!(outcome.stderr.is_empty(), "{ranks} contexts, {settings:?}: {outcome:#?}");
        assert_eq!(outcome.stdout, format!("{name}: {ranks} contexts\n"));
    }
}

bellwether_tests::cheetah_row_tests!(row);

#[test]
fn c01_np_starts_that_many_contexts() {
    let outcome = run(command(PROGRAM).args(["-np", "3", "-shmem", "c04_contexts"]), LIMIT).expect_success();
    assert!(outcome.stderr.is_empty(), "{outcome:#?}");
    assert_eq!(outcome.stdout, "c04_contexts_are_numbered_from_zero: 3 contexts\n");
    let outcome = run(command(PROGRAM).args(["-np", "none", "c04"]), LIMIT).expect_failure();
    assert!(outcome.stderr.contains("-np none: a number above 0 expected"), "{outcome:#?}");
}

#[test]
fn c02_the_exit_status_is_that_of_the_program() {
    let outcome = run(command(PROGRAM).args(["-np", "2", "c99"]), LIMIT).expect_failure();
    assert!(outcome.stderr.contains("no row c99"), "{outcome:#?}");
}
