//! Programs on ranks that have mapped each other's memory, and on ranks that reach each other through the transport contract only.

mod programs;

/// A module of tests for one transport, with a test for each program.
macro_rules! tests {
    ($over:ident, $transport:ident: { $($program:ident,)* } $($module:ident { $($inner:ident,)* })*) => {
        mod $over {
            const TRANSPORT: bellwether_runtime::Transport = bellwether_runtime::Transport::$transport;
            $(#[test]
            fn $program() {
                crate::programs::over(TRANSPORT, crate::programs::$program);
            })*
            $(mod $module {
                $(#[test]
                fn $inner() {
                    crate::programs::over(super::TRANSPORT, crate::programs::$module::$inner);
                })*
            })*
        }
    };
}

/// Every program is listed: one that is missing is dead code, which the lints report.
macro_rules! each {
    ($over:ident, $transport:ident) => {
        tests! {
            $over, $transport:
            {
                a_bell_is_seen_after_the_data,
                what_lies_in_ones_own_part_is_put_from_there,
                a_bell_counts_the_rings_of_all,
                nobody_leaves_a_barrier_before_all_have_entered,
                pieces_come_from_and_go_to_many_ranks,
                ranges_are_checked,
                atomics_lose_nothing,
                collectives_agree_bit_for_bit,
                calls_run_there_and_answer_here,
                a_panic_is_told_to_all,
                a_rank_that_leaves_early_is_named_wherever_others_wait,
                a_rank_that_left_does_not_disturb_those_who_work,
                a_wait_ends_with_its_time,
                waiting_inside_a_handler_is_refused,
                worlds_in_one_process_do_not_meet,
                ranks_in_different_collectives_are_told,
                what_is_wrong_with_a_message_does_not_break_a_collective,
                a_rank_that_only_polls_hears_of_a_death,
                a_wait_for_something_outside_is_not_a_standstill,
                finishing_loses_no_reply,
                a_read_in_a_loop_sees_a_put,
                who_sleeps_is_woken,
                ranks_that_would_reach_each_other_in_different_ways_are_told,
                ranks_that_are_bound_to_a_core_each_are_not_crowded,
                two_functions_of_one_type_are_two_handlers,
            }
            deadlock {
                a_barrier_of_the_world_beside_one_of_a_team,
                collectives_of_the_world_beside_those_of_a_team,
                a_collective_that_was_begun_before,
                teams_in_opposite_order,
                calls_after_it_fail_too,
                who_computes_ends_the_waits_of_others,
                steps_of_a_long_reduction_are_seen,
                a_thread_with_a_context_may_end_a_wait,
                many_ranks_on_few_cores_go_on,
            }
            differ {
                a_segment_of_all_beside_another_call,
                a_bell_beside_another_call,
                every_rank_its_own_root,
                every_rank_another_root,
                one_rank_another_root,
                a_root_beside_a_reduction,
                a_root_that_is_late_and_elsewhere,
                different_elements,
                different_sizes_of_a_segment,
                different_operators,
                a_barrier_tells_of_different_operators,
                the_end_tells_of_different_operators,
                processes_print_at_the_end_that_operators_differ,
                a_barrier_beside_another_call_is_told_to_all,
                finish_tells_of_different_operators,
                finish_tells_of_different_roots,
                a_sum_beside_a_closure,
                different_results_of_one_call_are_the_programs_own,
                who_was_told_can_go_on,
                a_rank_inside_the_tree_is_elsewhere,
                a_root_may_be_late_and_leave,
                both_sides_are_told_with_their_places,
                a_wait_that_fails_is_told_with_its_place,
            }
            each_kind {
                every_rank_is_told_both_sides_of_a_call_of_the_world,
                every_member_is_told_both_sides_of_a_call_of_a_team,
            }
            memory {
                memory_is_zeroed_symmetric_and_used_again,
                more_than_there_is_is_an_error_on_all_and_the_next_is_granted,
                the_last_room_is_granted_again_and_again,
                a_refused_allocation_takes_no_room,
                ranks_that_ask_for_different_sizes_are_named,
                memory_is_aligned_as_asked_and_whole_pages_can_be_joined,
                memory_that_grows_in_small_steps_is_reached_everywhere,
                a_hundred_thousand_allocations_leave_nothing_behind,
            }
            panics {
                a_call_whose_closure_panics_is_answered_at_once,
                a_plain_call_whose_closure_panics_is_answered_at_once,
                a_closure_without_an_answer_that_panics_is_told_to_its_caller,
                a_handler_that_panics_is_told_to_its_caller,
                a_rank_that_ends_of_a_handlers_panic_has_answered_first,
                a_rank_that_a_panic_took_out_of_a_reduction_goes_on,
                a_rank_that_a_panic_took_out_of_a_barrier_overwrites_no_board,
                a_rank_that_lost_a_peer_in_a_barrier_overwrites_no_board,
            }
            segments {
                one_rank_alone_makes_a_segment_and_all_reach_it,
                all_make_a_segment_under_one_number,
                segments_come_and_go_while_others_put_to_them,
                many_segments_have_numbers_of_their_own_and_give_them_back,
                memory_of_each_kind_is_a_segment,
                more_than_four_gibibytes_go_in_one_call,
            }
            under_way {
                the_worlds_collectives_are_tested_limited_and_resumed,
                future_forms_that_differ_are_told_with_both_places,
                allocations_are_tested_limited_and_resumed,
                allocations_that_differ_are_told,
            }
        }
    };
}

each!(mapped, Auto);
each!(contract, ShmContract);

/// Every thread that is started from here on is to have a stack that no machine can give; but for tests on the thread of `main`.
const NO_STACK: (&str, &str) = ("RUST_MIN_STACK", "1000000000000000");

#[test]
fn ranks_that_get_no_thread_are_an_error() {
    use bellwether_runtime::{Error, Threads};
    use std::time::Duration;

    let start = |deadline: bool| {
        let ranks = Threads::new(2);
        let ranks = if deadline { ranks.deadline(Duration::from_secs(60)) } else { ranks };
        ranks.run(|world| world.rank())
    };
    if std::env::var_os(NO_STACK.0).is_some_and(|stack| stack == NO_STACK.1) {
        let told = |deadline, what: &str| match start(deadline) {
            Err(Error::Start(why)) => assert!(why.contains(what) && why.contains("no thread"), "{why}"),
            other => panic!("{other:?}"),
        };
        told(false, "rank 0 of 2");
        return told(true, "the deadline");
    }
    let again = ["--exact", "ranks_that_get_no_thread_are_an_error", "--test-threads", "1"];
    let mut test = std::process::Command::new(std::env::current_exe().expect("a running test has a file"));
    let outcome = test.args(again).env(NO_STACK.0, NO_STACK.1).output().expect("it starts");
    assert!(outcome.status.success(), "{outcome:?}");
}
