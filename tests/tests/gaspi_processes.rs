//! The rows of GASPI's table between processes.

use std::time::Duration;

use bellwether_runtime::Settings;
use bellwether_runtime::bootstrap::OwnedJob;
use bellwether_runtime::bootstrap::launch::{JobSpec, Stdin};
use bellwether_tests::gaspi::LIMIT;
use bellwether_tests::process::{command, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gaspi_rows");

fn row(name: &str) {
    const NARROW: &[(&str, &str)] =
        &[("BELLWETHER_CMA", "off"), ("BELLWETHER_MESSAGE_MEMORY", "16KiB"), ("BELLWETHER_LANE_DEPTH", "1")];
    const CONTRACT: &[(&str, &str)] = &[("BELLWETHER_TRANSPORT", "shm-contract")];
    for (ranks, settings) in [(2, &[][..]), (3, &[]), (2, NARROW), (3, CONTRACT)] {
        let mut program = command(PROGRAM);
        program.env("BELLWETHER_RANKS", ranks.to_string()).envs(settings.iter().copied()).arg(name);
        let outcome = run(&mut program, LIMIT).expect_success();
        assert_eq!(outcome.stdout, format!("{name}: {ranks} processes\n"), "{outcome:#?}");
    }
}

bellwether_tests::gaspi_row_tests!(row);

#[test]
fn threads_for_progress_sleep_while_nothing_happens_and_messages_wake_them() {
    let mut program = command(PROGRAM);
    run(program.env("BELLWETHER_RANKS", "2").env("BELLWETHER_CMA", "off").arg("idle"), LIMIT).expect_success();
}

#[test]
fn g16_ten_thousand_queues_leave_nothing_behind() {
    run(command(PROGRAM).env("BELLWETHER_RANKS", "2").arg("queues"), LIMIT).expect_success();
}

/// Each queue has sockets of its own there.
#[test]
fn g16_queues_leave_nothing_behind_over_tcp() {
    let settings = [("BELLWETHER_RANKS", "2"), ("BELLWETHER_TRANSPORT", "tcp")];
    run(command(PROGRAM).envs(settings).arg("queues"), LIMIT).expect_success();
}

#[test]
fn g68_a_receiver_sleeps_until_a_message_comes() {
    // Polling before it sleeps would take processor time, too.
    let settings = [("BELLWETHER_RANKS", "2"), ("BELLWETHER_SPIN", "0")];
    run(command(PROGRAM).envs(settings).arg("receiver"), LIMIT).expect_success();
}

/// The others are given the time to go on.
#[test]
fn g25_g53_g70_g71_one_of_four_is_killed_and_the_others_go_on() {
    let settings = Settings::default();
    for name in ["auto", "shm-contract", "tcp"] {
        let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
        let arguments = ["killed".into(), folder.path().as_os_str().to_owned()];
        let mut spec = JobSpec::new(PROGRAM, arguments, 4);
        spec.stdin = Stdin::Null;
        (spec.timeout, spec.grace) = (Some(LIMIT), Duration::from_secs(120));
        spec.extra_env.push(("BELLWETHER_TRANSPORT".into(), name.into()));
        let mut job = OwnedJob::create(4, &settings).expect("makes the job");
        let outcome = job.supervise(spec).expect("starts");
        assert_eq!(outcome.status(), 128 + 9, "{name}: {outcome:#?}");
        let mut went_on: Vec<_> =
            std::fs::read_dir(&folder).expect("it is there").map(|file| file.expect("a file").file_name()).collect();
        went_on.sort();
        assert_eq!(went_on, ["0", "1", "3"], "{name}: {outcome:#?}");
    }
}

/// Over TCP a rank is known to have left before its interface has acknowledged what it took.
#[test]
fn g46_what_a_process_took_before_it_left_is_complete() {
    let settings = [("BELLWETHER_RANKS", "4"), ("BELLWETHER_TRANSPORT", "tcp")];
    run(command(PROGRAM).envs(settings).arg("leaving"), LIMIT).expect_success();
}

#[test]
fn g19_g71_calls_beside_a_stopped_process_end_within_their_limits() {
    let settings = [("BELLWETHER_RANKS", "2"), ("BELLWETHER_TRANSPORT", "tcp"), ("BELLWETHER_MESSAGE_MEMORY", "16KiB")];
    run(command(PROGRAM).envs(settings).arg("stopped"), LIMIT).expect_success();
}

/// Where the kernel allows no cross-memory attach, requests to memory that a process has bound are messages.
#[test]
fn g19_g71_calls_to_bound_memory_of_a_stopped_process_end_within_their_limits() {
    const NARROW: &[(&str, &str)] = &[("BELLWETHER_MESSAGE_MEMORY", "16KiB"), ("BELLWETHER_LANE_DEPTH", "1")];
    for settings in [&[][..], NARROW] {
        let mut program = command(PROGRAM);
        program.env("BELLWETHER_RANKS", "2").env("BELLWETHER_CMA", "off").envs(settings.iter().copied());
        run(program.arg("bound"), LIMIT).expect_success();
    }
}

#[test]
fn g41_a_read_of_bound_memory_that_is_gone_fails() {
    let settings = [("BELLWETHER_RANKS", "2"), ("BELLWETHER_CMA", "off"), ("BELLWETHER_MESSAGE_MEMORY", "16KiB")];
    run(command(PROGRAM).envs(settings).arg("gone"), LIMIT).expect_success();
}

#[test]
fn owned_g19_posts_beside_a_stopped_process_end_within_their_limits() {
    let settings = [("BELLWETHER_RANKS", "2"), ("BELLWETHER_TRANSPORT", "tcp")];
    run(command(PROGRAM).envs(settings).arg("owned"), LIMIT).expect_success();
}

#[test]
fn g19_g42_g71_other_calls_go_on_while_a_segment_or_a_phase_ends() {
    for name in ["auto", "tcp"] {
        let settings = [("BELLWETHER_RANKS", "2"), ("BELLWETHER_TRANSPORT", name)];
        run(command(PROGRAM).envs(settings).arg("ends"), LIMIT).expect_success();
    }
}
