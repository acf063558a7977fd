//! A job on several hosts. The launcher starts a host's launcher (`side`) on each of them through an agent, which is `ssh` or what
//! the user names in its place, and talks to it in frames over the agent's standard input and output:
//!
//! ```text
//! host's launcher          launcher (`link`)
//! Hello            ------>                      of every host, before any rank is started
//!                  <------ Job
//! Started, Joined  ------>
//! Fence(puts)      ------>                      when all ranks of the host have entered it
//!                  <------ Fence(all puts)      when all hosts have
//!                  <------ Broken               when the first rank has ended: ranks in a fence are told
//! Output, Closed   ------>
//!                  <------ Taken, Signal, Input
//! Left, Ended, Bye ------>
//! ```
//!
//! The ranks of a host get a socket on which the host's launcher serves PMI-1 (`space`), so that they come together as under any
//! other launcher that has an exchange. A rank that leaves also says there which rank was missed first. The job's secret is one of the values that they put: it crosses the agent's connection and no
//! command line.
//!
//! If the connection ends, for whatever reason, the host's launcher kills the ranks of its host.

mod frame;
mod link;
mod side;
mod space;
mod states;

use std::ffi::OsString;

pub(super) use link::{Event, Links};
pub use side::serve;
pub(super) use states::States;

/// A host on which ranks are to be started.
#[derive(Debug, Clone)]
pub struct Host {
    /// As the user calls it.
    pub name: String,
    /// The program that starts the host's launcher there, and its arguments.
    pub command: Vec<OsString>,
    /// How many ranks it takes; the number of its CPUs if that is not said.
    pub slots: Option<usize>,
}
