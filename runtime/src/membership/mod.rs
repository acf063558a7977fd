//! Which ranks are in the job, which have failed, and how the others learn of it.
//!
//! This module does not depend on how ranks are started or on what they do in a world.
//!
//! # The roster
//!
//! The ranks of one host share the memory of their job ([`JobMemory`]). At its head is the roster, with a record for each rank of the
//! job. A rank passes through these states ([`RankState`]), never back:
//!
//! ```text
//! Absent -> Starting -> Running -> Left
//! any of the first three -> Panicked, Exited, Signaled, Vanished
//! ```
//!
//! Ends are numbered in the order in which they are entered, so all ranks of a host name the same rank as the first to fail
//! ([`JobMemory::first_lost`]). A rank that leaves because another failed is never named in its place: `Left` is no failure, and
//! a panic is entered after the failure that caused it.
//!
//! # Who enters an end
//!
//! | who | what it enters | when |
//! | --- | --- | --- |
//! | the rank itself | that it leaves, or panics | when its world is dropped |
//! | the supervisor (`bellwether run`, `BELLWETHER_RANKS`) | exit codes and signals | when wait(2) returns |
//! | a rank of the same host, without a supervisor (mpirun, srun) | that a process ended ([`watch`]) | at its next poll of the pidfd, after at most 4 ms of sleep |
//! | the agent of its host ([`hosts`]) | what other hosts tell; all ranks of a host whose connection ended | at most 10 ms after they know, one hop more if that is not the hub |
//! | a rank's own network ([`liveness`]) | nothing, but it treats the connection as lost after 200 ms without a word from the roster, 2 s if a supervisor waits for that rank | when an operation fails |
//!
//! Every end wakes all sleeping ranks of the host. If the rank failed, their waits deliver what it had sent and then fail with
//! [`Error::PeerLost`](crate::Error::PeerLost). If the rank left, only calls that need it fail, and waits that nobody can end
//! any more.
//!
//! # Hosts
//!
//! A job on several hosts has a leader on each, the host's first rank, and a TCP connection from each leader to that of host 0, the hub.
//! A host that answers no probe for 10 s is lost, with all its ranks. If a rank has left or is leaving, and none has failed,
//! the hub asks all hosts every 200 ms what their ranks wait for. After five rounds in a row without a change it fails these
//! waits: no rank can end them.
//!
//! # Bounds
//!
//! A record is 256 bytes, and a rank of another host takes 768 more for the data that it publishes. A roster has at most [`MAX_RANKS`]
//! ranks, and a host slots for at most 65,536. A leader has one thread, which reads the records of its own host every 10 ms; the hub has
//! one socket a host and a message holds at most 2 MiB.

pub mod agreement;
mod at_end;
mod file;
mod guard;
pub mod hosts;
#[doc(hidden)]
pub mod interfaces;
mod job;
pub mod liveness;
pub mod nodes;
mod roster;
pub mod watch;

pub use self::job::{HUGE_PAGE, JobMemory, MAX_RANKS, MAX_SLOTS};
pub(crate) use self::job::{PUBLISHED_LEN, TABLES_LEN, elsewhere_len};
pub(crate) use self::roster::DOING_LEN;
pub use self::roster::{Arrival, RankState};
