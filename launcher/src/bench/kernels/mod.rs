//! The loops that are measured: ours, and beside each what bare loads and stores do on the same mapping.

pub mod address;
mod aggregate;
mod alloc;
mod allreduce;
mod alltoall;
mod area;
mod array;
mod barrier;
mod bell;
mod crowded;
mod gaspi;
mod growth;
mod lapi;
mod matching;
pub mod memory;
mod message;
mod random;
mod thread_messages;
mod threads;

use std::sync::atomic::AtomicU64;

use bellwether_runtime::{Error, Result, Symmetric};

use super::bare::{opaque, opaque_index, spin, spin_until};
use super::kind::Kind;
use super::session::Session;
use super::task::{Measured, Task};

/// Words of a cache line.
const LINE: usize = 8;

/// Runs the session's task: one or more figures for each size.
///
/// # Errors
/// Those of the runtime.
pub fn run(session: &Session) -> Result<Vec<Measured>> {
    let kernel = match session.task.kind {
        Kind::Put => memory::put,
        Kind::PutRandom => random::put,
        Kind::PutAddress => address::put,
        Kind::PutSegment => address::put_segment,
        Kind::Get => memory::get,
        Kind::Atomic => memory::atomic,
        Kind::Threads => threads::threads,
        Kind::Bandwidth => memory::bandwidth,
        Kind::PutPoll => bell::put_poll,
        Kind::PutBell => bell::put_bell,
        Kind::Am => message::ping_pong,
        Kind::AmRate => message::stream,
        Kind::Call => message::call,
        Kind::Barrier => barrier::barrier,
        Kind::Histogram => aggregate::histogram,
        Kind::Indexgather => aggregate::indexgather,
        Kind::ArrayGet => array::get,
        Kind::ArrayPut => array::put,
        Kind::LocalSum => array::local_sum,
        Kind::Exchange => array::exchange,
        Kind::Transpose => array::transpose,
        Kind::Allreduce => allreduce::allreduce,
        Kind::WorldAllreduce => allreduce::of_world,
        Kind::TeamBarrier => barrier::of_team,
        Kind::Alloc => alloc::alloc,
        Kind::Alltoall => alltoall::alltoall,
        Kind::Growth => growth::growth,
        Kind::Crowded => crowded::crowded,
        Kind::Matching
        | Kind::LapiAm
        | Kind::LapiRate
        | Kind::LapiBandwidth
        | Kind::GaspiNotify
        | Kind::GaspiPost
        | Kind::GaspiWait
        | Kind::GaspiWaitsome
        | Kind::Startup
        | Kind::Death
        | Kind::Wake
        | Kind::Idle
        | Kind::Poll
        | Kind::Footprint => {
            let why = format!("{} needs no ranks of its own", session.task.kind.name());
            return Err(Error::InvalidArgument { operation: "bench", why });
        }
    };
    report(&session.task, |size| kernel(session, size))
}

/// Takes part in a job of another vocabulary than the world's own, hands this rank and its figures to `tell`, and leaves the job.
///
/// # Errors
/// Those of the runtime, and of `tell`.
pub fn vocabulary(task: Task, tell: impl FnOnce(usize, &[Measured]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    match task.kind {
        Kind::Matching => matching::run(task, tell),
        Kind::GaspiNotify | Kind::GaspiPost | Kind::GaspiWait | Kind::GaspiWaitsome => gaspi::run(task, tell),
        _ => lapi::run(task, tell),
    }
}

/// The figures of each size that `kernel` gives.
///
/// # Errors
/// Those of `kernel`.
fn report(task: &Task, mut kernel: impl FnMut(usize) -> Result<Vec<Measured>>) -> Result<Vec<Measured>> {
    let mut report = Vec::new();
    for &size in &task.sizes {
        for measured in kernel(size)? {
            let name = if measured.name.is_empty() { task.kind.name().into() } else { measured.name };
            report.push(Measured { name, size, ..measured });
        }
    }
    Ok(report)
}

/// As many words at each rank, which every rank has mapped.
trait Words {
    /// How many at each rank.
    fn count(&self) -> usize;
    /// Where those of `rank` begin here.
    fn start(&self, rank: usize) -> *mut u64;
}

impl Words for Symmetric<u64> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn start(&self, rank: usize) -> *mut u64 {
        self.ptr(rank).expect("shared memory maps every rank")
    }
}

/// Address of word `index` of the array at `rank`.
///
/// # Panics
/// If rank or index is out of range.
#[inline(always)]
fn address(array: &impl Words, rank: usize, index: usize) -> *mut u64 {
    assert!(index < array.count());
    // SAFETY: inside the array, as just checked.
    unsafe { array.start(rank).add(index) }
}

/// The same as an atomic word.
#[inline(always)]
fn word(array: &impl Words, rank: usize, index: usize) -> &AtomicU64 {
    // SAFETY: an aligned word of a live allocation; every rank touches words used so only as atomics meanwhile.
    unsafe { AtomicU64::from_ptr(address(array, rank, index)) }
}

// A loop of few instructions was seen to take twice as long where it crosses a boundary of 64 bytes, and its place is chance. So the
// loops that are compared exist four times, each 16 bytes further on.

/// A quarter of the operations with each.
fn in_quarters<M>(loops: [fn(&M, usize) -> Result<()>; 4], memory: &M, count: usize) -> Result<()> {
    (0..4).try_for_each(|n| loops[n](memory, (count + n) / 4))
}

/// The code behind it begins `16 * PLACE` bytes after a boundary of 64 bytes.
#[inline(always)]
fn further_on<const PLACE: usize>() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: instructions that do nothing.
    unsafe {
        std::arch::asm!(".p2align 6", ".rept {}", "nop", ".endr", const 16 * PLACE, options(nomem, nostack, preserves_flags));
    }
}
