//! GASPI's calls: segments, queues made at run time, notifications, groups, and a time limit on everything; thin over the engine.
//!
//! A [`Process`] is this process's place in a job. Its calls have GASPI's names and its numbers for queues, segments, groups and notifications;
//! what C returns as a code is the error of their results, with GPI-2's numbers: [`codes`]. [`Gaspi`] has the same as owned values, without
//! numbers: [`owned`].
//!
//! # Rows that stand
//!
//! | rows | what | where |
//! | --- | --- | --- |
//! | G1 to G14, G16, G17 | queues: made and ended by one process, with the lowest free id | [`Process::queue_create`], [`Process::queue_delete`] |
//! | G15 | a wait for one queue does not wait for requests on another | [`Process::wait`] |
//! | G18, G20, G21, G23, G24 | configuration and life cycles, one after the other | [`Process::config_set`], [`Process::proc_init`], [`Process::proc_term`] |
//! | G22 | a program that has initialised MPI starts a process as any other does; under Open MPI's mpirun its rank is MPI's | [`Process::start`] |
//! | G19, but for what stands below | time limits; calls that are resumed, with one effect | [`Timeout`] |
//! | G25 | `proc_kill`; between processes, not between threads of one | [`Process::proc_kill`] |
//! | G26, but for what stands below | paths are made by [`Process::connect`], or by the first operation that needs them | [`Process::connect`] |
//! | G27 | the configuration, whose limits are in force; what is not configured is a constant of this module | [`Process::config_get`] |
//! | G28 | the texts of codes, time, counters | [`codes::text`], [`Process::time_get`], [`Process::statistics`] |
//! | G30 to G33, G36, G37 | groups and their barriers; collectives of different kinds at a time | [`Process::group_commit`], [`Process::barrier`] |
//! | G34, G35 | reductions, with the same bits at all members | [`Process::allreduce`], [`Process::allreduce_user`] |
//! | G38 to G44, but for what stands below | segments: allocated, of the program's memory, made together; ranges are checked | [`Process::segment_create`] |
//! | G45 to G58 | writes, reads and notifications, and their lists; writes have no order among each other (G48) | [`Process::write`], [`Process::write_notify`] |
//! | G59 | atomic operations on words of 8 bytes | [`Process::atomic_fetch_add`] |
//! | G60 to G66 | notifications: 65,536 of each segment | [`Process::notify_waitsome`], [`Process::notify_reset`] |
//! | G67 to G69 | passive messages | [`Process::passive_send`] |
//! | G70, G71 | a lost process: who it is, and calls that come back; waits for anybody go on while another process lives | [`Process::state_vec_get`] |
//!
//! Rules that hold in part, and rules that do not hold:
//!
//! - G16: 10,000 queues, made and ended one after the other, leave no open file and no memory behind. Over a network each queue has an
//!   interface of its own, of which a process can have 127 beside its own.
//! - G26: [`Process::disconnect`] gives up the endpoints of the queues; the network's own connections stay until their queues end.
//!   [`Process::proc_init`] makes no paths.
//! - G39: after [`Process::segment_register`] the process can reach later segments of that id, too.
//! - Names for profiling (G29) are those of the C headers, in `capi/`.
//!
//! Time limits (G19) hold for waits, collectives, notifications and passive messages. Posting waits for no room: a request that a network has no room
//! for is kept, and later progress posts it. Two waits can time out, after 100 ms at least: for the look-up of a segment, at a queue's first request
//! there over a network, and for room in the messages to memory that only messages reach. Then no request is posted; a part of the bytes of a
//! write by message may be there.
//! [`Process::segment_delete`] and [`Process::queue_delete`] have no limit: the first waits for a process that is stopped and has used the
//! segment, the second for the queue's requests; calls of other threads go on meanwhile. A [`Process::wait`] without a limit ends when its
//! queue is empty, which may be never over a network while another thread posts there all the time.
//!
//! # Queues and notifications
//!
//! A queue is a context of the engine, with a completion stream of its own. On mapped memory a request is complete when it is posted. Posting
//! takes the queue, which is a lock that its last user takes without a locked instruction; threads with a queue each do not delay each other.
//!
//! A notification is a word in memory of its owner, which a peer writes one-sided after the data. A mark for each 64 words makes
//! the search over all of them one over 4 KiB. Neither takes progress of the target.
//!
//! # Progress
//!
//! Writes, reads and notifications take no progress of the target on mapped memory and over a network; to memory that a
//! process has bound, where the kernel allows no cross-memory attach, they go by message. Atomic operations on memory that is not
//! mapped are done by the target, or by the network. A thread of the runtime handles messages while the target computes. On one host it sleeps
//! until one comes, or until a call makes progress; over a network, and while calls make progress, it wakes each millisecond.
//!
//! # Threads
//!
//! Every call may be made from every thread of the process. Posting and [`Process::wait`] on queues that are complete take the queue only;
//! [`Process::notify_waitsome`] and [`Process::notify_reset`] take nothing where they find something. In a job without a network, atomic
//! operations on mapped memory take one of eight locks, which threads get in turn: two threads with the same lock wait for each other for the
//! length of one operation. All else shares one lock; a thread that waits gives it up for others. On a simulated network, where ranks take
//! turns, calls are for the thread that called [`Process::start`], and others get [`codes::ERROR`].
//!
//! A forked child is no process of the job. Its calls that wait, or need a lock that another thread had when the process forked, are
//! [`codes::ERROR`].

mod atomics;
mod by_message;
pub mod codes;
mod collective;
mod config;
mod groups;
mod look_up;
mod monitor;
mod notes;
mod one_sided;
pub mod owned;
mod passive;
mod print;
mod process;
mod queues;
mod reduce;
mod remote;
mod segments;
mod shared;
mod state;
mod statistics;
mod types;

pub use self::config::{
    ALLREDUCE_BUF_SIZE, ALLREDUCE_ELEM_MAX, ATOMIC_MAX, Config, GROUP_MAX, NOTIFICATION_MAX, PASSIVE_TRANSFER_SIZE_MAX,
    PASSIVE_TRANSFER_SIZE_MIN, PRINT_MAX, QUEUE_MAX, QUEUE_SIZE_MAX, RW_LIST_ELEM_MAX, SEGMENT_MAX, TRANSFER_SIZE_MAX,
    TRANSFER_SIZE_MIN, VERSION,
};
pub use self::one_sided::{Note, Part};
pub use self::owned::{
    Element, Gaspi, Group, Local, Notification, Notifications, Outcome, Queue, Remote, Resumable, Segment, Signal,
};
pub use self::process::Process;
pub use self::statistics::{Counter, Statistics};
pub use self::types::{
    Code, Datatype, GROUP_ALL, GroupId, NetworkType, NotificationId, Operation, QueueId, Rank, Result, SegmentId,
    State, Timeout,
};
