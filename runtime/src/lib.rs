//! Everything that one rank needs to reach another: start-up, memory, transports, messages, bells.
//!
//! Most programs use the crate `bellwether`, which re-exports this one.

#![cfg_attr(loom, allow(dead_code, unused_imports, reason = "the models need little of what is here"))]

pub mod bootstrap;
mod bounds;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub mod decoders;
mod engine;
mod error;
mod forked;
mod hash;
pub mod membership;
#[doc(hidden)]
pub mod memory;
mod message;
mod secret;
mod settings;
pub mod sleep;
mod sync;
mod team;
mod thread;
pub mod transport;
pub mod vocabulary;
mod world;

pub use bytemuck::{Pod, Zeroable};

#[doc(hidden)]
pub use crate::bounds::OneThread;
pub use crate::bounds::PlainData;
pub use crate::engine::Background;
pub use crate::error::{CalledAt, Doing, Error, Loss, Placed, Result};
#[doc(hidden)]
pub use crate::message::code::CodeOffset;
pub use crate::message::{Announced, Call, Context, HandlerId, Landed, Landing, LandingId};
pub use crate::settings::{
    Allgather, Allreduce, Alltoall, Barrier, Broadcast, Collectives, Gather, HugePages, KNOWN as KNOWN_SETTINGS,
    Known as KnownSetting, ProgressThread, Reduce, Scan, Scatter, Settings, TEAMS_MAX, TeamBarrier, Transport,
    Values as SettingValues,
};
pub use crate::team::{And, Max, Min, Operator, Or, Pending, Product, Sum, Team, Xor};
#[doc(hidden)]
pub use crate::thread::allowed_cores;
pub use crate::transport::AtomicOp;
pub use crate::world::{
    Arm, AtomicElement, Bell, Builder, Completion, ContextWakeUp, Counter, Driver, Event, Fetched, Mapped, Operation,
    Piece, Posted, Progress, RawBells, Reactor, ReservedSegments, Returned, Rung, Segment, Signalled, Signaller,
    Simulated, Symmetric, ThreadArray, ThreadBell, ThreadContext, ThreadOperation, ThreadPosted,
    ThreadReservedSegments, ThreadSegment, Threads, Waitable, WakeOn, WakeUp, Word, World, threads,
};
#[doc(hidden)]
pub use crate::world::{LargeJob, Lent, Poller, Reach, Served, Server, Working};
