//! Code that the examples share, and the parts of the examples that the tests call.
//!
//! Each example is a folder whose `main.rs` holds the command line and the order of events, and a module here that holds
//! the work. In [`heat`] and [`cg`] the file to read first is `parallel.rs`: it is the only one that deals with
//! more than one rank. `histogram` and `indexgather` share [`bale`]. The others
//! are small: read the module from its top.

#![forbid(unsafe_code)]

pub mod bale;
pub mod bfs;
pub mod cg;
pub mod halo3d;
pub mod heat;
pub mod job;
pub mod montecarlo;
pub mod nbody;
pub mod output;
pub mod progress;
pub mod random;
pub mod samplesort;
pub mod transpose;
