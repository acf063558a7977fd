//! The rows of Cheetah's table between contexts that are threads, with the default and with awkward settings.

use std::time::Duration;

use bellwether_runtime::vocabulary::cheetah::Controller;
use bellwether_runtime::{Barrier, Settings, Threads};
use bellwether_tests::cheetah::{Load, ROWS, row};
use bellwether_tests::watchdog;

/// Contexts, what is set, and whether counts and sizes are those of the table.
fn surroundings() -> Vec<(usize, &'static str, bool, Settings)> {
    let with = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    };
    let by_message = |settings: &mut Settings| {
        settings.cross_memory_attach = false;
        settings.message_memory = 16 << 10;
    };
    let narrow = |settings: &mut Settings| {
        settings.lane_depth = Some(1);
        settings.spin = Some(0);
        settings.barrier = Barrier::Dissemination;
    };
    let all_at_once = |settings: &mut Settings| {
        settings.cross_memory_attach = false;
        settings.message_memory = 16 << 10;
        settings.lane_depth = Some(1);
        settings.barrier = Barrier::Central;
    };
    vec![
        (2, "the default", true, Settings::default()),
        (1, "the default", false, Settings::default()),
        (3, "the default", false, Settings::default()),
        (5, "the default", false, Settings::default()),
        (2, "memory by message", false, with(by_message)),
        (2, "lanes of one", false, with(narrow)),
        (3, "lanes of one", false, with(narrow)),
        (1, "all at once", false, with(all_at_once)),
        (3, "all at once", false, with(all_at_once)),
        (2, "the central barrier", false, with(|settings| settings.barrier = Barrier::Central)),
        (5, "the dissemination barrier", false, with(|settings| settings.barrier = Barrier::Dissemination)),
    ]
}

fn run(name: &str) {
    let _guard = watchdog::guard(name, Duration::from_secs(150));
    let (name, row) = row(name).expect("a row of the table");
    let timing = std::env::var_os("TIMING").is_some();
    for (ranks, what, full, settings) in surroundings() {
        let start = std::time::Instant::now();
        watchdog::at(format!("{name}: {ranks} contexts, {what}"));
        let load = Load::new(full, &settings);
        Threads::new(ranks)
            .settings(settings)
            .build(|builder| row(Controller::setup_with(builder).expect("set up"), &load))
            .unwrap_or_else(|error| panic!("{ranks} contexts, {what}: {error}"));
        if timing {
            eprintln!("{name}: {ranks} contexts, {what}: {:.2?}", start.elapsed());
        }
    }
}

macro_rules! rows {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*

        #[test]
        fn every_row_has_its_test() {
            let tests = [$(stringify!($name)),*];
            assert_eq!(ROWS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), tests);
            for (number, name) in tests.iter().enumerate() {
                assert!(name.starts_with(&format!("c{:02}_", number + 1)), "{name}");
            }
        }
    };
}

rows! {
    c01_finalize_waits_for_all
    c02_after_finalize_every_call_is_an_error
    c03_before_setup_every_call_is_an_error
    c04_contexts_are_numbered_from_zero
    c05_a_bell_counts_every_put
    c06_no_ring_is_lost
    c07_put_copies_and_rings_both_bells
    c08_remote_bell_rings_after_data
    c09_put_needs_no_matching_call
    c10_get_rings_remote_after_copy_out_and_local_after_copy_in
    c11_absent_bells_ring_nothing
    c12_zero_bytes_still_ring
    c13_ainvoke_passes_who_id_buffer_and_length
    c14_handler_buffers_are_freed
    c15_senders_buffer_is_free_on_return
    c16_functions_are_numbered_in_order_on_all_contexts
    c17_an_unregistered_number_is_an_error_at_the_target
    c18_nobody_leaves_a_barrier_before_all_have_entered
    c19_only_calls_move_messages
    c20_every_call_makes_progress
    c21_wait_compares_and_does_not_reset
    c22_no_thread_is_needed
    c23_calls_do_not_block_for_the_peer
    c24_handlers_may_call_and_do_not_nest
    c25_bells_are_the_only_order
    c26_a_context_can_reach_itself
    c27_any_memory_will_do
    c28_copies_share_and_the_last_one_finalises
    c29_sends_and_requests_meet_in_either_order
    c30_unmatched_requests_and_messages_are_counted
    c31_structures_and_vectors_travel
    c32_a_custom_serializer_is_used
}

#[test]
fn c01_setup_takes_its_options_out() {
    let mut arguments: Vec<String> = ["program", "-v", "-np", "1", "-shmem", "file"].map(Into::into).into();
    let controller = Controller::setup(&mut arguments).expect("one context alone");
    assert_eq!(arguments, ["program", "-v", "file"]);
    assert_eq!((controller.ncontexts().expect("valid"), controller.mycontext().expect("valid")), (1, 0));
    for (bad, word) in [(&["p", "-np", "0"][..], "-np 0"), (&["p", "-np"], "-np"), (&["p", "-ulm"], "-ulm")] {
        let mut arguments: Vec<String> = bad.iter().map(|argument| argument.to_string()).collect();
        let error = Controller::setup(&mut arguments).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
}
