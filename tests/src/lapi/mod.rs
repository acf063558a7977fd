//! The rows of LAPI's table, each a program that every task runs.

mod basics;

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
}

/// A row: the program of one task.
pub type Row = fn(&Task);

/// All rows, by name.
pub const ROWS: &[(&str, Row)] = &[
    ("l31_waitcntr_subtracts_and_tells_what_is_left", basics::l31),
    ("l33_getcntr_reads_and_does_not_decrement", basics::l33),
    ("l34_setcntr_sets", basics::l34),
    ("l35_counters_and_results_must_be_there", basics::l35),
    ("l52_address_init_gives_all_values_to_all", basics::l52),
    ("l53_indexes_of_the_address_table_have_a_range", basics::l53),
    ("l55_init_refuses_bad_information", basics::l55),
    ("l56_term_ends_the_handle_and_init_makes_another", basics::l56),
    ("l57_qenv_and_senv_know_what_they_name", basics::l57),
    ("l58_error_chk_reads_back", basics::l58),
    ("l60_probe_makes_progress", basics::l60),
    ("l64_msg_string_knows_every_code", basics::l64),
    ("l65_calls_may_come_from_several_threads", basics::l65),
];

/// Makes a test of each row, which calls the given function with its name.
#[macro_export]
macro_rules! lapi_row_tests {
    ($run:ident) => {
        $crate::lapi_row_tests! { $run
            l31_waitcntr_subtracts_and_tells_what_is_left
            l33_getcntr_reads_and_does_not_decrement
            l34_setcntr_sets
            l35_counters_and_results_must_be_there
            l52_address_init_gives_all_values_to_all
            l53_indexes_of_the_address_table_have_a_range
            l55_init_refuses_bad_information
            l56_term_ends_the_handle_and_init_makes_another
            l57_qenv_and_senv_know_what_they_name
            l58_error_chk_reads_back
            l60_probe_makes_progress
            l64_msg_string_knows_every_code
            l65_calls_may_come_from_several_threads
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

/// Longest time of a row in one surrounding.
pub const LIMIT: Duration = Duration::from_secs(150);

impl Task {
    /// A handle on the job. Collective.
    fn init(&self) -> Handle {
        let mut handle = 0;
        // SAFETY: both are valid.
        ok(unsafe { raw::init(&self.job, &mut handle, &Info::default()) }, "init");
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

/// What `LAPI_Waitcntr` leaves.
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

/// Everyone's value of something.
fn all(handle: Handle, mine: u64) -> Vec<u64> {
    watchdog::at("address_init");
    let mut table = vec![0; place(handle).1];
    // SAFETY: room for a value of each task.
    ok(unsafe { raw::address_init(handle, mine, table.as_mut_ptr()) }, "address_init");
    table
}
