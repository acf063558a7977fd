//! What the tests that cross crates or processes share: rows of the conformance tables as programs that run over
//! threads, processes or MPI alike, and a watchdog.

pub mod cheetah;
pub mod watchdog;
