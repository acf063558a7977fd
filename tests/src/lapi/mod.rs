//! The rows of LAPI's table, each a program that every task runs.

mod basics;
pub mod closures;
pub mod departures;
pub mod ends;
mod fences;
mod flow;
mod handlers;
pub mod losses;
mod messages;
pub mod mix;
mod one_sided;
mod panics;
mod polls;
mod shortage;
mod transfers;
mod vectors;

use std::time::Duration;

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, Info};
use bellwether_runtime::vocabulary::lapi::{Counter, Job, codes};

use crate::watchdog;

/// A task that runs a row.
#[derive(Debug)]
pub struct Task {
    /// Its place in the job.
    pub job: Job,
    /// Time passes only while all tasks wait, and calls are for one thread.
    pub virtual_time: bool,
    /// The machine is emulated, or a sanitizer watches, and all takes twenty times as long.
    pub emulated: bool,
    /// Tasks reach each other's private memory by cross-memory attach.
    pub attaches: bool,
    /// Tasks have each other's static data mapped.
    pub maps_statics: bool,
}

/// A row: the program of one task.
pub type Row = fn(&Task);

/// All rows, by name.
pub const ROWS: &[(&str, Row)] = &[
    ("l01_counters_are_target_origin_completion", messages::l01),
    ("l02_amsend_returns_before_delivery", messages::l02),
    ("l03_the_header_handler_gets_what_was_sent", messages::l03),
    ("l04_handlers_run_one_at_a_time", messages::l04),
    ("l05_the_header_handler_runs_once", flow::l05),
    ("l06_the_target_names_the_place", messages::l06),
    ("l07_a_short_message_is_consumed_where_it_is", messages::l07),
    ("l08_return_information_names_the_source_and_starts_fresh", messages::l08),
    ("l09_messages_are_buried_or_dropped", messages::l09),
    ("l10_the_completion_handler_sees_all_data", messages::l10),
    ("l11_queued_completion_handlers_may_send_and_wait", messages::l11),
    ("l12_inline_completion_handlers_run_at_once", messages::l12),
    ("l13_the_user_header_outlives_an_inline_handler", flow::l13),
    ("l14_the_origin_counter_frees_header_and_data", messages::l14),
    ("l15_the_target_counter_moves_after_the_completion_handler", messages::l15),
    ("l16_the_completion_counter_means_that_the_handler_has_run", messages::l16),
    ("l17_any_counter_may_be_null", messages::l17),
    ("l18_local_state_does_not_communicate_and_counters_move", messages::l18),
    ("l19_an_index_is_looked_up_at_the_target", messages::l19),
    ("l20_user_headers_have_their_rules", messages::l20),
    ("l21_user_headers_are_multiples_of_four", messages::l21),
    ("l22_data_has_its_rules", messages::l22),
    ("l23_a_message_without_data_moves_every_counter", messages::l23),
    ("l24_targets_are_tasks_of_the_job", messages::l24),
    ("l25_bad_handles_and_handlers_are_refused", messages::l25),
    ("l26_what_is_refused_moves_nothing", flow::l26),
    ("l27_a_fence_orders_messages", fences::l27),
    ("l28_the_references_example_runs", messages::l28),
    ("l29_a_function_may_stand_for_the_origin_counter", transfers::l29),
    ("l31_waitcntr_subtracts_and_tells_what_is_left", basics::l31),
    ("l32_waits_make_progress", polls::l32),
    ("l33_getcntr_reads_and_does_not_decrement", basics::l33),
    ("l34_setcntr_sets", basics::l34),
    ("l35_counters_and_results_must_be_there", basics::l35),
    ("l36_no_increment_is_lost", messages::l36),
    ("l37_setcntr_wstatus_knows_each_task", polls::l37_status),
    ("l37_nopoll_wait_is_woken_by_the_increment", polls::l37_wait),
    ("l38_put_moves_three_counters", one_sided::l38),
    ("l38_transfers_of_static_data_move_counters_too", one_sided::l38_statics),
    ("l38_long_transfers_need_no_progress_at_the_target", one_sided::l38_attached),
    ("l39_get_brings_data_and_frees_the_targets_memory", one_sided::l39),
    ("l40_no_data_still_moves_counters", one_sided::l40),
    ("l41_transfers_have_their_rules", one_sided::l41),
    ("l42_atomic_operations_lose_nothing", one_sided::l42),
    ("l42_atomic_operations_on_static_data_lose_nothing", one_sided::l42_statics),
    ("l43_atomic_operations_return_the_old_value_or_whether_it_was_equal", one_sided::l43),
    ("l44_atomic_operations_have_their_rules", one_sided::l44),
    ("l45_atomic_operations_of_the_own_task_are_atomic_too", one_sided::l45),
    ("l46_putv_and_getv_move_places", vectors::l46_put_get),
    ("l46_parts_of_several_transfers_do_not_mix", vectors::l46_order),
    ("l46_amsendv_lets_the_target_name_the_places", vectors::l46_amsendv),
    ("l46_vectors_have_their_rules", vectors::l46_rules),
    ("l46_an_answer_that_does_not_suit_is_an_error_at_both_ends", vectors::l46_refused),
    ("l47_xfer_does_what_direct_calls_do", transfers::l47),
    ("l48_lightweight_messages_have_a_limit", transfers::l48),
    ("l49_a_fence_waits_for_data_and_not_for_handlers", fences::l49),
    ("l49_later_messages_do_not_stand_in_for_earlier_ones", fences::later_messages),
    ("l49_puts_and_gets_are_done_after_a_fence", one_sided::l49),
    ("l49_a_fence_between_two_puts_orders_them", fences::order_of_puts),
    ("l51_gfence_is_a_fence_and_a_barrier", fences::l51),
    ("l52_address_init_gives_all_values_to_all", basics::l52),
    ("l53_indexes_of_the_address_table_have_a_range", basics::l53),
    ("l54_an_index_that_is_not_set_is_an_error_at_both_ends", messages::l54),
    ("l55_init_refuses_bad_information", basics::l55),
    ("l56_term_ends_the_handle_and_init_makes_another", basics::l56),
    ("l56_term_waits_for_handlers_of_handlers_messages", flow::l56),
    ("l57_qenv_and_senv_know_what_they_name", basics::l57),
    ("l58_error_chk_reads_back", basics::l58),
    ("l59_interrupt_mode_needs_no_calls", messages::l59),
    ("l60_probe_makes_progress", basics::l60),
    ("l61_msgpoll_tells_what_is_done", polls::l61),
    ("l62_header_handlers_may_not_call", messages::l62),
    ("l63_purged_tasks_get_nothing_until_they_are_resumed", messages::l63),
    ("l64_msg_string_knows_every_code", basics::l64),
    ("l65_calls_may_come_from_several_threads", basics::l65),
    ("floods_from_every_task_and_from_handlers_end", flow::flood),
    ("floods_that_handlers_spread_end", flow::spread),
    ("lengths_around_what_travels_in_one_piece", flow::lengths),
    ("a_panic_of_a_header_handler_is_told_at_both_ends", panics::a_panic),
    ("a_panic_of_a_completion_handler_is_told_with_its_place", panics::a_late_panic),
    ("a_place_outside_memory_is_an_error_at_both_ends", shortage::outside),
];

/// Rows that run by themselves: they need much memory, or end or limit their process.
pub const APART: &[(&str, Row)] = &[("huge", flow::huge), ("memory", shortage::memory), ("lost", shortage::lost)];

/// Makes a test of each row, which calls the given function with its name.
#[macro_export]
macro_rules! lapi_row_tests {
    ($run:ident) => {
        $crate::lapi_row_tests! { $run
            l01_counters_are_target_origin_completion
            l02_amsend_returns_before_delivery
            l03_the_header_handler_gets_what_was_sent
            l04_handlers_run_one_at_a_time
            l05_the_header_handler_runs_once
            l06_the_target_names_the_place
            l07_a_short_message_is_consumed_where_it_is
            l08_return_information_names_the_source_and_starts_fresh
            l09_messages_are_buried_or_dropped
            l10_the_completion_handler_sees_all_data
            l11_queued_completion_handlers_may_send_and_wait
            l12_inline_completion_handlers_run_at_once
            l13_the_user_header_outlives_an_inline_handler
            l14_the_origin_counter_frees_header_and_data
            l15_the_target_counter_moves_after_the_completion_handler
            l16_the_completion_counter_means_that_the_handler_has_run
            l17_any_counter_may_be_null
            l18_local_state_does_not_communicate_and_counters_move
            l19_an_index_is_looked_up_at_the_target
            l20_user_headers_have_their_rules
            l21_user_headers_are_multiples_of_four
            l22_data_has_its_rules
            l23_a_message_without_data_moves_every_counter
            l24_targets_are_tasks_of_the_job
            l25_bad_handles_and_handlers_are_refused
            l26_what_is_refused_moves_nothing
            l27_a_fence_orders_messages
            l28_the_references_example_runs
            l29_a_function_may_stand_for_the_origin_counter
            l31_waitcntr_subtracts_and_tells_what_is_left
            l32_waits_make_progress
            l33_getcntr_reads_and_does_not_decrement
            l34_setcntr_sets
            l35_counters_and_results_must_be_there
            l36_no_increment_is_lost
            l37_setcntr_wstatus_knows_each_task
            l37_nopoll_wait_is_woken_by_the_increment
            l38_put_moves_three_counters
            l38_transfers_of_static_data_move_counters_too
            l38_long_transfers_need_no_progress_at_the_target
            l39_get_brings_data_and_frees_the_targets_memory
            l40_no_data_still_moves_counters
            l41_transfers_have_their_rules
            l42_atomic_operations_lose_nothing
            l42_atomic_operations_on_static_data_lose_nothing
            l43_atomic_operations_return_the_old_value_or_whether_it_was_equal
            l44_atomic_operations_have_their_rules
            l45_atomic_operations_of_the_own_task_are_atomic_too
            l46_putv_and_getv_move_places
            l46_parts_of_several_transfers_do_not_mix
            l46_amsendv_lets_the_target_name_the_places
            l46_vectors_have_their_rules
            l46_an_answer_that_does_not_suit_is_an_error_at_both_ends
            l47_xfer_does_what_direct_calls_do
            l48_lightweight_messages_have_a_limit
            l49_a_fence_waits_for_data_and_not_for_handlers
            l49_later_messages_do_not_stand_in_for_earlier_ones
            l49_puts_and_gets_are_done_after_a_fence
            l49_a_fence_between_two_puts_orders_them
            l51_gfence_is_a_fence_and_a_barrier
            l52_address_init_gives_all_values_to_all
            l53_indexes_of_the_address_table_have_a_range
            l54_an_index_that_is_not_set_is_an_error_at_both_ends
            l55_init_refuses_bad_information
            l56_term_ends_the_handle_and_init_makes_another
            l56_term_waits_for_handlers_of_handlers_messages
            l57_qenv_and_senv_know_what_they_name
            l58_error_chk_reads_back
            l59_interrupt_mode_needs_no_calls
            l60_probe_makes_progress
            l61_msgpoll_tells_what_is_done
            l62_header_handlers_may_not_call
            l63_purged_tasks_get_nothing_until_they_are_resumed
            l64_msg_string_knows_every_code
            l65_calls_may_come_from_several_threads
            floods_from_every_task_and_from_handlers_end
            floods_that_handlers_spread_end
            lengths_around_what_travels_in_one_piece
            a_panic_of_a_header_handler_is_told_at_both_ends
            a_panic_of_a_completion_handler_is_told_with_its_place
            a_place_outside_memory_is_an_error_at_both_ends
        }
    };
    ($run:ident $($name:ident)+) => {
        $(#[test]
        fn $name() {
            $run(stringify!($name));
        })+

        #[test]
        fn every_row_has_its_test() {
            let tests = [$(stringify!($name)),+];
            let rows: Vec<_> = $crate::lapi::ROWS.iter().map(|(name, _)| *name).collect();
            assert_eq!(rows, tests);
        }
    };
}

/// The row whose name begins with `name`.
pub fn row(name: &str) -> Option<(&'static str, Row)> {
    ROWS.iter().copied().find(|(full, _)| full.starts_with(name))
}

/// The rows whose names begin with one of `names`, in the order of the table; none if one of `names` begins no row.
pub fn rows_of(names: &[String]) -> Vec<(&'static str, Row)> {
    if names.iter().any(|name| row(name).is_none()) {
        return Vec::new();
    }
    let is_asked = |full: &str| names.iter().any(|name| full.starts_with(name.as_str()));
    ROWS.iter().copied().filter(|(full, _)| is_asked(full)).collect()
}

/// Longest time of a row in one surrounding.
pub const LIMIT: Duration = Duration::from_secs(150);

impl Task {
    /// How often something is tried: the first where each time takes long, and where not all is asked for.
    fn times<T>(&self, few: T, many: T) -> T {
        if self.virtual_time || self.emulated || !crate::is_full() { few } else { many }
    }

    /// A handle on the job. Collective.
    fn init(&self) -> Handle {
        let mut handle = 0;
        // SAFETY: both are valid.
        ok(unsafe { raw::init(&self.job, &mut handle, &Info::default()) }, "init");
        // SAFETY: a header handler.
        ok(unsafe { raw::addr_set(handle, handlers::take as *const () as usize, 1) }, "addr_set");
        handle
    }

    /// Ends the handle.
    fn term(&self, handle: Handle) {
        watchdog::at("term");
        ok(raw::term(handle), "term");
    }
}

/// Says what this task does now, and checks the code.
#[track_caller]
fn ok(code: i32, what: &str) {
    assert_eq!(code, codes::SUCCESS, "{what}: {}", codes::text(code).unwrap_or("no code"));
}

/// This task's number and how many there are.
fn place(handle: Handle) -> (usize, usize) {
    (query(handle, raw::query::TASK_ID) as usize, query(handle, raw::query::NUM_TASKS) as usize)
}

fn query(handle: Handle, what: i32) -> i32 {
    let mut value = -1;
    // SAFETY: a valid place.
    ok(unsafe { raw::qenv(handle, what, &mut value) }, "qenv");
    value
}

/// Waits with `LAPI_Waitcntr`, and returns the value that it leaves.
fn wait(handle: Handle, counter: &Counter, value: i32, what: &str) -> i32 {
    watchdog::at(format!("{what}: waiting for {value}"));
    let mut left = -1;
    // SAFETY: both are valid.
    ok(unsafe { raw::waitcntr(handle, counter, value, &mut left) }, what);
    left
}

fn get(handle: Handle, counter: &Counter) -> i32 {
    let mut value = -1;
    // SAFETY: both are valid.
    ok(unsafe { raw::getcntr(handle, counter, &mut value) }, "getcntr");
    value
}

fn gfence(handle: Handle) {
    watchdog::at("gfence");
    ok(raw::gfence(handle), "gfence");
}

/// Everyone's value of something.
fn all(handle: Handle, mine: u64) -> Vec<u64> {
    watchdog::at("address_init");
    let mut table = vec![0; place(handle).1];
    // SAFETY: room for a value of each task.
    ok(unsafe { raw::address_init(handle, mine, table.as_mut_ptr()) }, "address_init");
    table
}
