//! GASPI's calls: segments, queues made at run time, notifications, groups, and a time limit on everything; thin over the engine.
//!
//! A [`Process`] is this process's place in a job. Its calls have GASPI's names and its numbers for queues, segments, groups and notifications;
//! what C returns as a code is the error of their results, with GPI-2's numbers: [`codes`].
//!
//! # Rows that stand
//!
//! | rows | what | where |
//! | --- | --- | --- |
//! | G1 to G14, G16, G17 | queues: made and ended by one process, with the lowest free id | [`Process::queue_create`], [`Process::queue_delete`] |
//! | G15 | a wait for one queue is not delayed by requests on another | [`Process::wait`] |
//! | G18, G20, G21, G23, G24 | configuration and life cycles, one after the other | [`Process::config_set`], [`Process::proc_init`], [`Process::proc_term`] |
//! | G19, but for what stands below | time limits; calls that are resumed, with one effect | [`Timeout`] |
//! | G26 | `connect`, `disconnect`: paths are made by the first operation that needs them | [`Process::connect`] |
//! | G28 | the texts of codes, time | [`codes::text`], [`Process::time_get`] |
//! | G30 to G33, G36, G37 | groups and their barriers; collectives of different kinds at a time | [`Process::group_commit`], [`Process::barrier`] |
//! | G34, G35 | reductions, with the same bits at all members | [`Process::allreduce`], [`Process::allreduce_user`] |
//! | G38 to G44 | segments: allocated, of the program's memory, made together; ranges are checked | [`Process::segment_create`] |
//! | G45 to G58 | writes, reads and notifications, and their lists | [`Process::write`], [`Process::write_notify`] |
//! | G59 | atomic operations on words of 8 bytes | [`Process::atomic_fetch_add`] |
//! | G60 to G66 | notifications: 65,536 of each segment | [`Process::notify_waitsome`], [`Process::notify_reset`] |
//! | G67 to G69 | passive messages | [`Process::passive_send`] |
//!
//! Not there: the C headers, MPI together with GASPI (G22), `proc_kill` (G25), statistics (part of G28), names for profiling (G29). Getters are
//! [`Process::config_get`] (G27). What a lost process does to the others (G70, G71) is written, but no test kills one.
//!
//! Time limits (G19) hold for waits, collectives, notifications and passive messages. Posting waits for the one lock whatever its limit. A put of
//! many bytes over a network, a read of bound memory that goes by message, [`Process::segment_delete`] and [`Process::proc_term`] may wait
//! longer than their limit for a target that is stopped.
//!
//! # Progress
//!
//! Writes and reads are puts and gets of the engine. They take no progress of the target on mapped memory and over a network; to memory that a
//! process has bound, where the kernel allows no cross-memory attach, they go by message. A notification is a message, after what was
//! written before. Atomic operations on memory that is not mapped are done by the target, or by the network. A thread of the runtime makes progress
//! when no call has for 1 ms, so messages are handled while the target computes.
//!
//! # Threads
//!
//! Every call may be made from every thread of the process. They share one lock; a thread that waits gives it up for others.
//! [`Process::notify_waitsome`] and [`Process::notify_reset`] take it only where they find nothing. On a simulated network, where ranks take
//! turns, calls are for the thread that called [`Process::start`], and others get [`codes::ERROR`].

mod atomics;
pub mod codes;
mod collective;
mod config;
mod groups;
mod notes;
mod one_sided;
mod passive;
mod place;
mod process;
mod queues;
mod reduce;
mod remote;
mod segments;
mod state;
mod types;

pub use self::config::{
    ALLREDUCE_BUF_SIZE, ALLREDUCE_ELEM_MAX, Config, GROUP_MAX, NOTIFICATION_MAX, PASSIVE_TRANSFER_SIZE_MAX, QUEUE_MAX,
    QUEUE_SIZE_MAX, RW_LIST_ELEM_MAX, SEGMENT_MAX, TRANSFER_SIZE_MAX,
};
pub use self::one_sided::{Note, Part};
pub use self::process::Process;
pub use self::types::{
    Code, Datatype, GROUP_ALL, GroupId, NotificationId, Operation, QueueId, Rank, Result, SegmentId, State, Timeout,
};
