//! Bellwether: a partitioned global address space for SPMD programs.
//!
//! A job is one program that runs as several *ranks*: threads of a test, processes of a machine, tasks of mpirun. They meet
//! once, at [`World::start`]. From then on each rank reads and writes the others' memory directly (*one-sided*).
//!
//! | to | use |
//! | --- | --- |
//! | share memory | [`World::alloc`] gives a [`Symmetric`] array, with an equal part at every rank |
//! | read and write it at any rank | [`Symmetric::put`], [`Symmetric::get`] and their slices; [`Symmetric::fetch_add`] and other atomics |
//! | spread one array over all ranks | [`GlobalArray`], in the module [`mod@array`] |
//! | keep and send the address of any element | [`GlobalPtr`], [`GlobalSlice`] |
//! | tell a rank that data has arrived | a [`Bell`]: [`Symmetric::put_bell`], [`Bell::wait`] |
//! | learn when a put, get, atomic or message is complete | [`World::operation`], with a [`Counter`], a bell, a function or a [`Completion`] |
//! | share memory of one rank alone | [`World::segment`], [`World::put_segment`], [`World::get_segment`] |
//! | run code at another rank | [`World::call`] and [`World::invoke`] with a closure, [`World::send`] with a registered handler |
//! | send large messages to a place that the receiver names | [`World::send_large`], [`Builder::landing_handler`] |
//! | communicate from several threads of a rank | [`World::context`] |
//! | read and update many elements anywhere, a few nanoseconds each | [`aggregate`] |
//! | look up by key, or share work, over all ranks | [`DistHashMap`], [`DistQueue`] |
//! | use all cores of a rank | a [`Pool`]: [`GlobalArray::par_iter`], and [`rayon`] |
//! | compile inner loops for several processors | [`cpu`] |
//! | random numbers that do not depend on the number of ranks | [`random::Stream`] |
//! | wait for several calls, puts and collectives, or the first of them | [`World::wait_all`], [`World::select`]; of different types [`World::wait_any`], [`World::wait_every`] |
//! | send or put without waiting for room | [`World::try_send`], [`World::try_call`], [`Symmetric::try_put`] |
//! | synchronise and combine | [`World::barrier`], [`World::allreduce`], [`World::broadcast`], [`World::allgather`] |
//! | test a whole program | [`threads`]; [`Simulated`], where messages arrive late and out of order |
//! | use Cheetah's calls | [`cheetah`] |
//!
//! # Examples
//! Each rank sends a row to its neighbour and rings; no rank calls a receive.
//! ```
//! # fn main() -> bellwether::Result<()> {
//! # bellwether::threads(4, |world| {
//! // let world = bellwether::World::start()?;
//! let next = (world.rank() + 1) % world.size();
//! let halo = world.alloc::<f64>(100)?;
//! let arrived = world.bell()?;
//! halo.put_slice_bell(next, 0, &[world.rank() as f64; 100], &arrived)?;
//! arrived.wait(1)?;
//! let mut row = [0.0; 100];
//! halo.read(0, &mut row);
//! assert_eq!(row[99] as usize, (world.rank() + world.size() - 1) % world.size());
//! world.barrier()
//! # })?.into_iter().collect() }
//! ```
//!
//! # What needs what
//! Puts, gets, atomics and bells in symmetric memory need no progress at the target: it may compute or sleep. Messages
//! and remote calls run when the target polls, waits or enters a collective. [`World::fence`] says when a put is visible.

pub mod aggregate;
pub mod array;
pub mod cpu;
#[cfg(any(test, fuzzing))]
pub mod forged;
mod map;
pub mod pointer;
mod pool;
mod queue;
pub mod random;
mod registry;
#[doc(hidden)]
pub mod testing;

pub use array::{GlobalArray, Layout};
pub use bellwether_macros::test;
pub use pointer::{GlobalPtr, GlobalSlice};

pub use self::map::DistHashMap;
pub use self::pool::{Pool, Pooled, PooledPut};
pub use self::queue::DistQueue;
/// The simulated network that [`Simulated`] jobs run on.
pub use bellwether_runtime::transport::sim;
pub use bellwether_runtime::vocabulary::{cheetah, gaspi, lapi, ucp};
pub use bellwether_runtime::{
    Allgather, Allreduce, Alltoall, And, Announced, Arm, AtomicElement, AtomicOp, Barrier, Bell, Broadcast, Builder,
    Call, CalledAt, Collectives, Completion, Context, ContextWakeUp, Counter, Doing, Driver, Error, Event, Fetched,
    Gather, HandlerId, HugePages, Landed, Landing, LandingId, Loss, Mapped, Max, Min, Operation, Operator, Or, Pending,
    Piece, PlainData, Pod, Posted, Product, Progress, ProgressThread, RawBells, Reactor, Reduce, Result, Returned,
    Rung, Scan, Scatter, Segment, Settings, Signalled, Signaller, Simulated, Sum, Symmetric, Team, TeamBarrier,
    ThreadArray, ThreadBell, ThreadContext, ThreadOperation, ThreadPosted, Threads, Transport, Waitable, WakeOn,
    WakeUp, Word, World, Xor, Zeroable, threads,
};
/// Rayon, whose parallel iterators, `join` and `scope` run on a [`Pool`].
pub use rayon;
