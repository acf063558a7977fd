//! Code that the tests across crates or processes share: rows of the conformance tables as programs that run over
//! threads, processes or MPI alike, programs started and watched, and a watchdog.

pub mod cheetah;
pub mod gaspi;
#[cfg(doctest)]
mod guide;
pub mod lapi;
pub mod pairs;
pub mod process;
pub mod serving;
pub mod settings_page;
pub mod ucp;
pub mod waiting;
pub mod watchdog;

/// Whether tests run as long as the tables ask (`ROWS_FULL`, which `ci/test full` sets), or a part of it.
pub fn is_full() -> bool {
    std::env::var_os("ROWS_FULL").is_some()
}
