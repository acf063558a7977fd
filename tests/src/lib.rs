//! Code that the tests across crates or processes share: rows of the conformance tables as programs that run over
//! threads, processes or MPI alike, programs started and watched, and a watchdog.

pub mod cheetah;
pub mod gaspi;
#[cfg(doctest)]
mod guide;
pub mod lapi;
pub mod process;
pub mod serving;
pub mod settings_page;
pub mod ucp;
pub mod waiting;
pub mod watchdog;
