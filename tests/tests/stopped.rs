//! Puts that need nothing of their target: into segments, and into static data that is symmetric.

use std::time::Duration;

use bellwether_tests::process::{command, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_stopped");
const LIMIT: Duration = Duration::from_secs(60);
const STATICS: (&str, &str) = ("BELLWETHER_STATIC_DATA", "on");
const CONTRACT: (&str, &str) = ("BELLWETHER_TRANSPORT", "shm-contract");

fn stopped(settings: &[(&str, &str)], arguments: &[&str], told: &str) {
    let mut program = command(PROGRAM);
    program.env("BELLWETHER_RANKS", "2").envs(settings.iter().copied()).args(arguments);
    let outcome = run(&mut program, LIMIT).expect_success();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), (told, ""), "{settings:?}");
}

#[test]
fn a_stopped_rank_receives_puts_in_its_static_data_and_its_segments() {
    for settings in [[STATICS].as_slice(), &[STATICS, CONTRACT], &[], &[CONTRACT]] {
        stopped(settings, &[], "a stopped rank received\n");
    }
}

#[test]
fn a_forked_child_has_static_data_of_its_own() {
    for settings in [[STATICS].as_slice(), &[STATICS, CONTRACT], &[]] {
        stopped(settings, &["fork"], "children have copies\n");
    }
}

#[test]
fn a_program_asks_for_symmetric_static_data() {
    stopped(&[], &["builder"], "the program asked\n");
}

#[test]
fn symmetric_static_data_where_it_cannot_be_is_an_error() {
    use bellwether_runtime::{Error, Settings, Threads};
    let mut settings = Settings::default();
    settings.static_data = true;
    let ranks = Threads::new(2).settings(settings).run(|world| world.rank());
    assert!(matches!(&ranks, Err(Error::InvalidArgument { why, .. }) if why.contains("processes")), "{ranks:?}");
    // A rank that has a thread already.
    let mut program = command(env!("CARGO_BIN_EXE_cheetah_rows"));
    let outcome = run(program.env("BELLWETHER_RANKS", "2").envs([STATICS]).arg("c04"), LIMIT).expect_failure();
    assert!(outcome.stderr.contains("2 threads") && outcome.stderr.contains("BELLWETHER_STATIC_DATA"), "{outcome:#?}");
}
