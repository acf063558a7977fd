//! Who is in the job, who failed, and how that is told, on one host or several.

mod file;
mod guard;
pub mod hosts;
pub mod job;
pub mod liveness;
pub mod nodes;
pub mod watch;
