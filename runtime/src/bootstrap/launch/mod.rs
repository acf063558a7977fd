//! Starting the ranks of a job on this machine and looking after them until the last has ended.
//!
//! One supervisor serves the command `bellwether run` and a program that starts its own copies. It
//! is one thread and one `epoll` loop, whatever the number of ranks:
//!
//! - [`JobSpec`] says what to start; [`Hooks`] is how the job's owner hands each rank its
//!   environment and is told of deaths, at once and in their order;
//! - `child` makes a process, `guardian` ends all of them should the supervisor be killed, `strays`
//!   finds what ranks left behind;
//! - `lines` cuts output into whole lines, `repeats` drops errors that another rank has shown, `sink` writes them without waiting, `input` feeds rank 0;
//! - `ending` times the way from the first failure to the last SIGKILL, `report` words it.
//!
//! No rank outlives the supervisor. Each rank asks the kernel to be killed when the supervisor's
//! thread ends; each is in the guardian's process group, which takes their own children along.

mod child;
mod ending;
mod error;
mod guardian;
mod hosts;
mod input;
mod limits;
mod lines;
mod output;
mod program;
mod repeats;
mod report;
mod signals;
mod sink;
mod spec;
mod strays;
mod supervise;
#[cfg(test)]
mod tests;
mod token;

pub use error::LaunchError;
pub use hosts::{Host, serve as serve_host};
#[cfg(any(test, fuzzing))]
pub use lines::cut_lines;
pub use program::find as find_program;
pub use signals::signal_name;
pub use spec::{Bind, Cause, Ended, Hooks, JobSpec, Membership, NoHooks, Outcome, RankEnd, Stdin};
pub use supervise::{supervise, supervise_hosts};

/// The environment variable with a rank's number, for scripts that wrap a program.
pub const RANK: &str = "BELLWETHER_RANK";

/// The environment variable with the number of ranks, for scripts that wrap a program.
pub const SIZE: &str = "BELLWETHER_SIZE";

/// The environment variable by which ranks are told that their standard error ends up on a terminal,
/// and how many columns that has. Absent when it does not.
pub const TERM_WIDTH: &str = "BELLWETHER_TERM_WIDTH";
