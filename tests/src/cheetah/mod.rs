//! The rows of Cheetah's table, each a program that every context runs.

mod calls;
mod life;
mod matching;
mod memory;
mod progress;
mod transfers;

use std::time::{Duration, Instant};

use bellwether_runtime::Settings;
use bellwether_runtime::vocabulary::cheetah::{Bell, Controller};

pub use self::memory::Memory;
use crate::watchdog;

/// How much of a row to run, and what it may expect.
#[derive(Debug, Clone)]
pub struct Load {
    /// Counts and sizes as the table has them; else about a hundredth, or a thousandth in virtual time.
    pub full: bool,
    /// Bytes of larger messages a context may have under way.
    pub message_memory: usize,
    /// Threads that this process must have while a row runs, if nothing else runs in it.
    pub tasks: Option<usize>,
    /// Time passes only while all contexts wait.
    pub virtual_time: bool,
}

impl Load {
    /// For contexts that run with `settings`.
    pub fn new(full: bool, settings: &Settings) -> Load {
        Load { full, message_memory: settings.message_memory.max(16 << 10), tasks: None, virtual_time: false }
    }

    /// `count`, or fewer.
    pub fn times(&self, count: usize) -> usize {
        match (self.full, self.virtual_time) {
            (true, _) => count,
            (false, false) => (count / 100).max(2),
            // Each message costs a simulated network a few changes of thread.
            (false, true) => (count / 1000).max(2),
        }
    }

    /// The largest transfer.
    fn large(&self) -> usize {
        // The thread sanitizer looks at every byte.
        let little = if cfg!(bellwether_tsan) { 128 << 10 } else { 1 << 20 };
        if self.full { 64 << 20 } else { little }
    }

    /// Bytes to move: around words, around what fits in a line of a message (48), around pages and pieces.
    fn sizes(&self) -> Vec<usize> {
        let mut sizes =
            vec![0, 1, 7, 8, 9, 39, 40, 41, 47, 48, 49, 255, 4095, 4096, 4097, (16 << 10) - 63, self.large()];
        if self.full {
            sizes.extend([1 << 20, (1 << 20) + 1]);
        }
        sizes
    }

    /// As [`Load::sizes`], as far as they fit in one message.
    fn message_sizes(&self) -> Vec<usize> {
        self.sizes().into_iter().filter(|size| size + 128 <= self.message_memory).collect()
    }
}

/// A row: the program of one context, which owns the controller.
pub type Row = fn(Controller, &Load);

/// All rows, by name.
pub const ROWS: &[(&str, Row)] = &[
    ("c01_finalize_waits_for_all", life::c01),
    ("c02_after_finalize_every_call_is_an_error", life::c02),
    ("c03_before_setup_every_call_is_an_error", life::c03),
    ("c04_contexts_are_numbered_from_zero", life::c04),
    ("c05_a_bell_counts_every_put", transfers::c05),
    ("c06_no_ring_is_lost", transfers::c06),
    ("c07_put_copies_and_rings_both_bells", transfers::c07),
    ("c08_remote_bell_rings_after_data", transfers::c08),
    ("c09_put_needs_no_matching_call", transfers::c09),
    ("c10_get_rings_remote_after_copy_out_and_local_after_copy_in", transfers::c10),
    ("c11_absent_bells_ring_nothing", transfers::c11),
    ("c12_zero_bytes_still_ring", transfers::c12),
    ("c13_ainvoke_passes_who_id_buffer_and_length", calls::c13),
    ("c14_handler_buffers_are_freed", calls::c14),
    ("c15_senders_buffer_is_free_on_return", calls::c15),
    ("c16_functions_are_numbered_in_order_on_all_contexts", calls::c16),
    ("c17_an_unregistered_number_is_an_error_at_the_target", calls::c17),
    ("c18_nobody_leaves_a_barrier_before_all_have_entered", progress::c18),
    ("c19_only_calls_move_messages", progress::c19),
    ("c20_every_call_makes_progress", progress::c20),
    ("c21_wait_compares_and_does_not_reset", progress::c21),
    ("c22_no_thread_is_needed", progress::c22),
    ("c23_calls_do_not_block_for_the_peer", progress::c23),
    ("c24_handlers_may_call_and_do_not_nest", calls::c24),
    ("c25_bells_are_the_only_order", transfers::c25),
    ("c26_a_context_can_reach_itself", transfers::c26),
    ("c27_any_memory_will_do", memory::c27),
    ("c28_copies_share_and_the_last_one_finalises", life::c28),
    ("c29_sends_and_requests_meet_in_either_order", matching::c29),
    ("c30_unmatched_requests_and_messages_are_counted", matching::c30),
    ("c31_structures_and_vectors_travel", matching::c31),
    ("c32_a_custom_serializer_is_used", matching::c32),
];

/// Makes a test of each row, which calls the given function with its name.
#[macro_export]
macro_rules! cheetah_row_tests {
    ($run:ident) => {
        $crate::cheetah_row_tests! { $run
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
    };
    ($run:ident $($name:ident)+) => {
        $(#[test]
        fn $name() {
            $run(stringify!($name));
        })+

        #[test]
        fn every_row_has_its_test() {
            let tests = [$(stringify!($name)),+];
            let rows: Vec<_> = $crate::cheetah::ROWS.iter().map(|(name, _)| *name).collect();
            assert_eq!(rows, tests);
            for (number, name) in tests.iter().enumerate() {
                assert!(name.starts_with(&format!("c{:02}_", number + 1)), "{name}");
            }
        }
    };
}

/// The row whose name begins with `name`.
pub fn row(name: &str) -> Option<(&'static str, Row)> {
    ROWS.iter().copied().find(|(full, _)| full.starts_with(name))
}

/// Longest wait of a row for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// This context's number and how many there are.
fn place(controller: &Controller) -> (usize, usize) {
    (controller.mycontext().expect("valid"), controller.ncontexts().expect("valid"))
}

/// Everyone's address of something.
fn addresses(controller: &Controller, address: usize) -> Vec<usize> {
    watchdog::at("exchanging addresses");
    controller.as_world().expect("valid").allgather(&[address]).expect("all take part")
}

fn wait(controller: &Controller, bell: &Bell, count: usize, what: &str) {
    watchdog::at(format!("{what}: waiting for {count} rings"));
    if let Err(error) = controller.wait_for(bell, count as i32, LIMIT) {
        panic!("{what}: {error}; {:?} rings of {count} have come", bell.read(controller));
    }
}

fn barrier(controller: &Controller, what: &str) {
    watchdog::at(format!("{what}: barrier"));
    if let Err(error) = controller.barrier() {
        panic!("{what}: {error}");
    }
}

/// Polls until `done`, at most [`LIMIT`].
fn poll_until(controller: &Controller, what: &str, mut done: impl FnMut() -> bool) {
    watchdog::at(what);
    let start = Instant::now();
    while !done() {
        controller.poll().expect("nothing wrong");
        assert!(start.elapsed() < LIMIT, "{what}: not done");
        std::thread::yield_now();
    }
}

/// Time as the controller's waits count it.
fn now(controller: &Controller) -> Duration {
    controller.as_world().expect("valid").elapsed()
}

/// Lets time pass without a poll.
fn sleep(controller: &Controller, time: Duration) {
    controller.as_world().expect("valid").sleep(time);
}

/// Waits for a count that nothing needs to deliver, without polling.
fn look_until(controller: &Controller, what: &str, mut done: impl FnMut() -> bool) {
    watchdog::at(what);
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}: not done");
        sleep(controller, Duration::from_micros(1));
    }
}

/// All rings that are under way have come when this returns, because their senders have entered the barrier.
fn settle(controller: &Controller, what: &str) {
    barrier(controller, what);
    while controller.poll().expect("nothing wrong") > 0 {}
}
