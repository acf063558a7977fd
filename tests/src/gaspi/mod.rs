//! The rows of GASPI's table, each a program that every process runs.

pub mod bound;
mod groups;
pub mod idle;
pub mod killed;
mod life;
mod notifications;
mod one_sided;
mod owned;
mod passive;
mod queues;
mod segments;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellwether_runtime::vocabulary::gaspi::Timeout::{After, Block, Test};
use bellwether_runtime::vocabulary::gaspi::{
    Code, Config, GROUP_ALL, Note, Part, Process, Rank, Result, Timeout, codes,
};

use crate::watchdog;

/// A process that runs a row.
#[derive(Debug)]
pub struct Task {
    /// Its place in the job.
    pub process: Process,
    /// Time passes only while all processes wait, and calls are for one thread.
    pub virtual_time: bool,
    /// The machine is emulated, or a sanitizer watches, and all takes twenty times as long.
    pub emulated: bool,
}

/// A row: the program of one process.
pub type Row = fn(&Task);

/// Names the rows, and makes a macro of tests, one a row, which call a given function with its name.
macro_rules! rows {
    ($dollar:tt $($name:ident: $row:path;)+) => {
        /// All rows, by name.
        pub const ROWS: &[(&str, Row)] = &[$((stringify!($name), $row)),+];

        /// Makes a test of each row, which calls the given function with its name.
        #[macro_export]
        macro_rules! gaspi_row_tests {
            ($dollar run:ident) => {$(
                #[test]
                fn $name() {
                    $dollar run(stringify!($name));
                }
            )+};
        }
    };
}

rows! { $
    g01_g02_a_new_queue_takes_requests_at_once: queues::g01;
    g03_only_the_creator_has_the_queue: queues::g03;
    g04_creation_in_a_test_loop_creates_once: queues::g04;
    g05_g06_there_is_a_limit_and_the_others_go_on: queues::g05;
    g07_connections_made_before_carry_a_new_queue: queues::g07;
    g08_g10_delete_completes_open_requests: queues::g10;
    g09_a_deleted_queue_is_an_error: queues::g09;
    g11_g12_g13_queue_num_counts: queues::g12;
    g14_ids_are_the_lowest_free_ones: queues::g14;
    g15_queues_do_not_wait_for_each_other: queues::g15;
    g16_queues_come_and_go: queues::g16;
    g17_threads_create_distinct_queues: queues::g17;
    g18_calls_belong_to_the_working_phase: life::g18;
    g19_test_loops_end_as_blocking_calls_do: life::g19;
    g20_the_configuration_is_set_before_the_start: life::g20;
    g20_other_configurations_are_an_error_at_all: life::g20_differ;
    g21_the_start_is_resumable_and_happens_once: life::g21;
    g21_of_two_threads_one_starts: life::g21_threads;
    g23_life_cycles_follow_each_other: life::g23;
    g24_ranks_are_numbered: life::g24;
    g25_only_another_process_is_killed: life::g25;
    g26_connect_may_be_called_twice: life::g26;
    g26_nothing_has_to_be_connected: life::g26_unconnected;
    g27_the_configuration_is_what_was_set: life::g27;
    g28_codes_have_texts_and_time_passes: life::g28;
    g30_groups_have_their_rules: groups::g30;
    g31_the_group_of_all_is_committed: groups::g31;
    g32_ranks_are_sorted: groups::g32;
    g33_a_barrier_is_resumed_and_nobody_leaves_early: groups::g33;
    g34_allreduce_of_every_type_and_operation: groups::g34;
    g34_allreduce_captures_what_is_sent: groups::g34_capture;
    g34_allreduce_gives_all_the_same_bits: groups::g34_bits;
    g35_allreduce_by_a_function: groups::g35;
    g36_a_barrier_and_an_allreduce_at_a_time: groups::g36;
    g37_groups_make_progress_by_themselves: groups::g37;
    g38_alloc_has_its_rules: segments::g38;
    g39_registration_names_a_rank: segments::g39;
    g40_create_is_resumable_and_writable_at_once: segments::g40;
    g41_memory_of_the_program_is_a_segment: segments::g41;
    g42_deleted_segments_are_gone: segments::g42;
    g42_segments_end_while_threads_use_them: segments::g42_threads;
    g42_writes_to_oneself_end_with_the_segment: segments::g42_own;
    g42_atomic_operations_end_with_the_segment: segments::g42_atomics;
    g43_size_pointer_and_list: segments::g43;
    g44_ranges_stay_inside: segments::g44;
    g45_writes_need_no_call_of_the_target: one_sided::g45;
    g46_wait_frees_sources_and_brings_data: one_sided::g46;
    g47_g52_queue_size_counts_and_wait_clears: one_sided::g47;
    g48_writes_to_one_place_come_whole_in_any_order: one_sided::g48;
    g49_g64_a_notification_is_not_before_the_writes: one_sided::g49;
    g50_write_notify_brings_its_own_data: one_sided::g50;
    g51_a_full_queue_takes_nothing: one_sided::g51;
    g53_purge_empties_a_queue: one_sided::g53;
    g54_posting_does_not_time_out: one_sided::g54;
    g55_no_bytes_are_no_request: one_sided::g55;
    g56_the_own_rank_is_a_target: one_sided::g56;
    g57_lists_are_all_or_nothing: one_sided::g57;
    g58_read_notify_sets_one_here: one_sided::g58;
    g59_atomic_operations_lose_nothing: one_sided::g59;
    g59_a_thread_that_spins_for_a_lock_lets_messages_in: one_sided::g59_lock;
    g59_an_atomic_operation_waits_for_no_other_thread: one_sided::g59_threads;
    g60_values_and_numbers_have_a_range: notifications::g60;
    g61_waitsome_leaves_the_notification: notifications::g61;
    g62_one_thread_gets_the_value: notifications::g62;
    g63_a_second_notification_replaces_the_value: notifications::g63;
    g65_notifications_need_no_segment_here: notifications::g65;
    g66_segments_have_their_own_notifications: notifications::g66;
    g67_a_passive_message_is_sent_once: passive::g67;
    g67_a_late_message_is_not_of_the_next_life_cycle: passive::g67_late;
    g68_every_sender_gets_its_turn: passive::g68;
    g69_passive_messages_have_a_size: passive::g69;
    owned_g02_queues_are_given_back_when_they_are_complete: owned::g02;
    owned_g15_a_library_waits_for_its_queue_alone: owned::g15;
    owned_g19_calls_are_resumed_and_take_effect_once: owned::g19;
    owned_g19_a_dropped_start_goes_on: owned::g19_start;
    owned_g19_a_dropped_segment_goes_on: owned::g19_segment;
    owned_g19_a_dropped_group_goes_on: owned::g19_group;
    owned_g23_a_drop_ends_the_working_phase: owned::g23;
    owned_g23_values_of_an_ended_phase_touch_nothing: owned::g23_ended;
    owned_g40_a_segment_is_at_all_members_or_at_none: owned::g40;
    owned_g42_segments_are_made_together_and_given_back: owned::g42;
    owned_g57_lists_and_reads_notify: owned::g57;
    owned_g61_notifications_have_one_owner: owned::g61;
    owned_g61_a_wide_range_is_tested_until_all_have_come: owned::g61_wide;
    owned_g61_a_drop_ends_beside_others_that_notify: owned::g61_drop;
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

/// Long enough for others to be late.
const WHILE: Timeout = After(Duration::from_millis(20));
/// A segment that rows have, and its notifications below [`FREE`].
const S: u8 = 3;
/// A notification that no process sets.
const FREE: u32 = 60_000;
/// The notification and the queue of [`Here::late`].
const GO: u32 = 59_999;
const LATE: u8 = 7;

/// A process in the working phase, with a segment of 4 MiB.
struct Here<'a> {
    p: &'a Process,
    me: usize,
    n: usize,
}

impl Task {
    /// How often something is tried: the first where each time takes long, and where not all is asked for.
    fn times<T>(&self, few: T, many: T) -> T {
        if self.virtual_time || self.emulated || !crate::is_full() { few } else { many }
    }

    /// Runs `body` in the working phase, with a segment.
    fn works(&self, body: impl FnOnce(&Here<'_>)) {
        let p = &self.process;
        ok("config_set", p.config_set(Config::default()));
        self.works_as_set(|here| {
            ok("segment_create", p.segment_create(S, 4 << 20, GROUP_ALL, Block));
            body(here);
        });
    }

    /// Runs `body` in the working phase.
    fn works_as_set(&self, body: impl FnOnce(&Here<'_>)) {
        let p = &self.process;
        ok("proc_init", p.proc_init(Block));
        let here = Here { p, me: ok("rank", p.proc_rank()).into(), n: ok("num", p.proc_num()).into() };
        body(&here);
        here.barrier();
        ok("proc_term", p.proc_term(Block));
    }
}

impl Here<'_> {
    fn next(&self) -> Rank {
        ((self.me + 1) % self.n) as Rank
    }

    fn before(&self) -> Rank {
        ((self.me + self.n - 1) % self.n) as Rank
    }

    fn barrier(&self) {
        watchdog::at("barrier");
        ok("barrier", self.p.barrier(GROUP_ALL, Block));
    }

    /// Lets time pass, and makes progress.
    fn pause(&self) {
        fails(codes::TIMEOUT, self.p.notify_waitsome(S, FREE, 1, WHILE));
    }

    /// Posts so often on a queue that this thread is the one which posts there most: its calls take the shortest way from then on.
    fn post_often(&self, queue: u8) {
        for _ in 0..200 {
            ok("write", self.p.write(part(0, 100, 8), self.next(), queue, Block));
        }
        ok("wait", self.p.wait(queue, Block));
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        ok("segment_read", self.p.segment_read(S, offset, &mut bytes));
        bytes
    }

    fn fill(&self, offset: u64, bytes: &[u8]) {
        ok("segment_write", self.p.segment_write(S, offset, bytes));
    }

    /// Waits for a notification, and resets it.
    fn take(&self, id: u32) -> u32 {
        watchdog::at(format!("waiting for notification {id}"));
        assert_eq!(ok("waitsome", self.p.notify_waitsome(S, id, 1, Block)), Some(id));
        ok("reset", self.p.notify_reset(S, id))
    }

    /// Makes a resumable call that ends when all make it: the others come when it has timed out at rank 0.
    #[track_caller]
    fn late<R: std::fmt::Debug>(&self, what: &str, mut call: impl FnMut(Timeout) -> Result<R>) -> R {
        if self.me != 0 {
            self.take(GO);
        } else if self.n > 1 {
            fails(codes::TIMEOUT, call(Test));
            (1..self.n).for_each(|rank| self.tell(rank as Rank, GO, 1, LATE));
            ok("wait", self.p.wait(LATE, Block));
        }
        test_loop(what, call).0
    }

    fn tell(&self, rank: Rank, id: u32, value: u32, queue: u8) {
        ok("notify", self.p.notify(Note { segment: S, id, value }, rank, queue, Block));
    }
}

/// Sets a flag when it is dropped, also by a panic.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A part of the rows' segment: from here, to there.
fn part(local: u64, remote: u64, size: u64) -> Part {
    Part { local: (S, local), remote: (S, remote), size }
}

fn note(id: u32, value: u32) -> Note {
    Note { segment: S, id, value }
}

#[track_caller]
fn ok<R>(what: &str, result: Result<R>) -> R {
    result.unwrap_or_else(|code| panic!("{what}: {code}"))
}

/// Checks that a call returns this code.
#[track_caller]
fn fails<R: std::fmt::Debug>(code: i32, result: Result<R>) {
    assert_eq!(result.map_err(|Code(code)| code).expect_err("no code"), code);
}

/// Makes a call with [`Test`] until it does not time out; how many times it did.
#[track_caller]
fn test_loop<R>(what: &str, mut call: impl FnMut(Timeout) -> Result<R>) -> (R, usize) {
    watchdog::at(format!("{what} in a loop"));
    let mut times = 0;
    loop {
        match call(Test) {
            Err(code) if code.is_timeout() => times += 1,
            outcome => return (ok(what, outcome), times),
        }
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + seed * 7 + i / 251) as u8).collect()
}
