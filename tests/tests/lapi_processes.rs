//! The rows of LAPI's table between tasks that are processes.

use std::time::Duration;

use bellwether_tests::lapi::LIMIT;
use bellwether_tests::process::{command, has_time_and_memory, launched, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lapi_rows");

/// In each of some surroundings, which depend on the name.
fn row(name: &str) {
    const NARROW: &[(&str, &str)] =
        &[("BELLWETHER_CMA", "off"), ("BELLWETHER_MESSAGE_MEMORY", "16KiB"), ("BELLWETHER_LANE_DEPTH", "1")];
    const CONTRACT: &[(&str, &str)] = &[("BELLWETHER_TRANSPORT", "shm-contract")];
    const STATICS: &[(&str, &str)] = &[("BELLWETHER_STATIC_DATA", "on"), ("BELLWETHER_CMA", "off")];
    const REMOTE_STATICS: &[(&str, &str)] =
        &[("BELLWETHER_STATIC_DATA", "on"), ("BELLWETHER_TRANSPORT", "shm-contract")];
    let of_statics = name.starts_with("l38") || name.starts_with("l49_puts") || name.contains("static_data");
    let usual = [(2, &[][..]), (3, &[]), (2, NARROW), (3, CONTRACT)];
    let more = [(2, STATICS), (3, REMOTE_STATICS)].into_iter().filter(|_| of_statics);
    for (ranks, settings) in usual.into_iter().chain(more) {
        let mut program = command(PROGRAM);
        program.env("BELLWETHER_RANKS", ranks.to_string()).envs(settings.iter().copied()).arg(name);
        let outcome = run(&mut program, LIMIT).expect_success();
        assert_eq!(outcome.stdout, format!("{name}: {ranks} tasks\n"), "{outcome:#?}");
    }
}

bellwether_tests::lapi_row_tests!(row);

#[test]
fn owned_vectors_and_events_of_every_kind() {
    row("closures");
}

/// The random mix of all calls for a minute, of four tasks on however many cores: without `ROWS_FULL` at the lowest priority, on what the other
/// tests leave of them. `LAPI_MIX_SECONDS` and `LAPI_MIX_SEED` ask for another time and seed.
#[test]
fn lapi_mix_loses_and_duplicates_nothing() {
    let asked = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (seconds, seed) = (asked("LAPI_MIX_SECONDS", 60), asked("LAPI_MIX_SEED", 1));
    let mut program = command("nice");
    program.args(["-n", if bellwether_tests::is_full() { "0" } else { "19" }, PROGRAM]);
    program.env("BELLWETHER_RANKS", "4").args(["mix", &seed.to_string(), &seconds.to_string()]);
    let outcome = run(&mut program, Duration::from_secs(seconds + 140)).expect_success();
    let ended = outcome.stdout.lines().filter(|line| line.starts_with(&format!("mix {seed}: "))).count();
    assert_eq!(ended, 4, "{outcome:#?}");
}

/// Runs a program of its own, whose tasks print these lines in any order.
fn prints(name: &str, ranks: usize, settings: &[(&str, &str)], expected: &[&str]) {
    let outcome = run(launched(PROGRAM, ranks).envs(settings.iter().copied()).arg(name), LIMIT);
    let mut lines: Vec<_> = outcome.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, expected, "{outcome:#?}");
}

#[test]
fn a_task_without_memory_is_told_so() {
    for ranks in [1, 2] {
        prints("memory", ranks, &[], &[&format!("memory: {ranks} tasks")]);
    }
}

#[test]
fn a_task_that_ends_without_term_is_lost_to_the_others() {
    prints("lost", 3, &[], &["lost: task 0 was told", "lost: task 1 was told", "lost: task 2 ends"]);
}

#[test]
fn events_of_a_task_that_is_killed_end() {
    for settings in [&[][..], &[("BELLWETHER_CMA", "off")], &[("BELLWETHER_TRANSPORT", "tcp")]] {
        prints("losses", 3, settings, &["losses: task 0 was told", "losses: task 1 was told"]);
    }
}

#[test]
fn what_waits_for_a_task_that_left_ends() {
    for settings in [&[][..], &[("BELLWETHER_TRANSPORT", "tcp")]] {
        let lines = ["barrier: task 0 goes on", "barrier: task 1 goes on", "barrier: task 2 goes on"];
        prints("barrier", 4, settings, &lines);
        prints("owes", 3, settings, &["owes: task 1 goes on"]);
        prints("sent", 2, settings, &["sent: all has come"]);
        prints("behind", 3, settings, &["behind: task 0 has all"]);
        prints("named", 3, settings, &["named: task 0 was told"]);
    }
}

/// One byte more than 2 GiB, by a put and by a message.
#[test]
fn more_than_two_gibibytes_at_a_time() {
    if !has_time_and_memory(5) {
        return;
    }
    let mut program = command(PROGRAM);
    program.env("BELLWETHER_RANKS", "2").arg("huge");
    let outcome = run(&mut program, Duration::from_secs(300)).expect_success();
    assert_eq!(outcome.stdout, "huge: 2 tasks\n", "{outcome:#?}");
}
