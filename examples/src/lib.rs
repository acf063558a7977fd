//! What the examples share, and the parts of them that the tests call.
//!
//! Each example is a folder: `heat2d/main.rs` and `cg/main.rs` hold the command line and the order of events; the
//! modules [`heat`] and [`cg`] hold the work. In both, the file to read first is `parallel.rs`: it is the only one that
//! knows that there is more than one rank. `histogram` and `indexgather` share [`bale`].

pub mod bale;
pub mod cg;
pub mod gather;
pub mod heat;
pub mod job;
pub mod output;
pub mod progress;
pub mod share;
