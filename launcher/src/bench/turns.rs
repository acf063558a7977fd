//! How batches of ours and of the limit take turns.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use bellwether_runtime::{Result, World};

use super::socket::Bare;
use super::task::{Measured, Task, stream};

/// The world, or another job, in which the ranks of a benchmark run.
pub trait Ground {
    /// Memory that is left out.
    type Left;
    /// Waits until all ranks are here. Collective.
    ///
    /// # Errors
    /// Those of the runtime.
    fn meet(&self) -> Result<()>;
    /// Leaves out `bytes` bytes of memory, so that the next allocation lies elsewhere. Collective.
    ///
    /// # Errors
    /// Those of the runtime.
    fn pass_over(&self, bytes: usize) -> Result<Self::Left>;
}

impl Ground for World {
    type Left = bellwether_runtime::Symmetric<u8>;

    fn meet(&self) -> Result<()> {
        self.barrier()
    }

    fn pass_over(&self, bytes: usize) -> Result<Self::Left> {
        self.alloc::<u8>(bytes)
    }
}

impl Ground for Rc<World> {
    type Left = bellwether_runtime::Symmetric<u8>;

    fn meet(&self) -> Result<()> {
        World::meet(self)
    }

    fn pass_over(&self, bytes: usize) -> Result<Self::Left> {
        World::pass_over(self, bytes)
    }
}

/// A rank's part in a benchmark, and the pace of its batches.
pub struct Turns<G> {
    /// The world, or another job, in which the ranks run.
    pub world: G,
    /// The task to measure.
    pub task: Task,
    /// Ranks reach each other's memory by pointer, as the limit does. Without that there is no such limit.
    pub mapped: bool,
    /// A bare socket between ranks 0 and 1: the limit over TCP.
    pub socket: Option<Bare>,
    /// In how many parts a benchmark's batches are measured.
    parts: Cell<usize>,
}

impl<G: Ground> Turns<G> {
    /// All batches in one part.
    pub fn new(world: G, task: Task, mapped: bool) -> Turns<G> {
        Turns { world, task, mapped, socket: None, parts: Cell::new(1) }
    }

    /// Operations of a batch: `most`, or as many as handle `bytes` bytes in all, shortened as the task says.
    pub fn operations(&self, most: usize, bytes: usize, size: usize) -> usize {
        (bytes / size.max(1)).min(most).div_ceil(self.task.shorten).max(1)
    }

    /// Puts of a batch: as [`Turns::operations`] where memory is mapped, else a run that fills the network's queues.
    pub fn stream(&self, most: usize, bytes: usize, size: usize) -> usize {
        if self.mapped { self.operations(most, bytes, size) } else { stream(size, self.task.quick).max(20) }
    }

    /// Measures the batches in several places of memory, a part of them in each. The transfer time of a cache line depends on its home
    /// in the shared cache: in one place we would compare two lines, and not two ways to write them. The stack is deeper in each
    /// place for the same reason: a load from the stack waits for a store to the same offset in another page (4 KiB aliasing).
    ///
    /// # Errors
    /// Those of `measure`, and of [`Ground::pass_over`].
    pub fn in_places(&self, mut measure: impl FnMut() -> Result<Measured>) -> Result<Measured> {
        const PLACES: usize = 8;
        /// Bytes between two places, at least.
        const APART: usize = 5 * 64;
        if !self.mapped {
            return measure();
        }
        self.parts.set(PLACES);
        let mut all = Measured { on_cpu: 1.0, ..Measured::default() };
        let mut passed_over = Vec::new();
        for place in 1..=PLACES {
            passed_over.push(self.world.pass_over(place * APART)?);
            all.add(&deeper(place, &mut measure)?);
        }
        self.parts.set(1);
        Ok(all)
    }

    /// Measures a latency: in turn with the limit where memory is mapped, or with a bare socket where there is one, in batches of
    /// `operations`; else in a row, for about
    /// as long as an emulated machine needs to find its pace.
    ///
    /// # Errors
    /// Those of either, and of the barriers around batches.
    pub fn latency(
        &self,
        operations: usize,
        size: usize,
        ours: impl FnMut(usize) -> Result<()>,
        limit: impl FnMut(usize) -> Result<()>,
    ) -> Result<Measured> {
        /// Operations of a batch in a row, before shortening: as many in all as in a peer's run.
        const IN_A_ROW: usize = 25_000;
        if self.mapped {
            return self.alternate(operations, ours, limit);
        }
        if let Some(socket) = &self.socket {
            return self.beside_socket(operations, ours, |n| socket.there_and_back(n, size));
        }
        self.in_a_row(self.operations(IN_A_ROW, 128 << 20, size), ours)
    }

    /// Measures batches of `ours` alone, one right after the other, as peers measure over a network. There is no barrier between
    /// them, because after a barrier caches and TLB are cold. Ranks
    /// for which `ours` does nothing sleep meanwhile. Values are nanoseconds an operation.
    ///
    /// # Errors
    /// Those of `ours`, and of the barriers around them all.
    fn in_a_row(&self, operations: usize, mut ours: impl FnMut(usize) -> Result<()>) -> Result<Measured> {
        /// One in this many operations is to warm up.
        const WARM: usize = 11;
        let warm = (self.task.batches * operations).div_ceil(WARM - 1);
        let mut measured = Measured { ours: Vec::with_capacity(self.task.batches), ..Measured::default() };
        self.world.meet()?;
        ours(warm)?;
        let cpu_before = cpu_nanoseconds();
        let begin = Instant::now();
        let mut last = begin;
        for _ in 0..self.task.batches {
            ours(operations)?;
            let now = Instant::now();
            measured.ours.push(now.duration_since(last).as_nanos() as f64 / operations as f64);
            last = now;
        }
        let wall = last.duration_since(begin).as_nanos() as f64;
        measured.on_cpu = if wall > 0.0 { ((cpu_nanoseconds() - cpu_before) / wall).min(1.0) } else { 1.0 };
        self.world.meet()?;
        Ok(measured)
    }

    /// Measures batches of `ours` and `limit` in turn, each of `operations`; values are nanoseconds an operation.
    ///
    /// # Errors
    /// Those of either, and of the barrier before each batch.
    pub fn alternate(
        &self,
        operations: usize,
        mut ours: impl FnMut(usize) -> Result<()>,
        mut limit: impl FnMut(usize) -> Result<()>,
    ) -> Result<Measured> {
        let [ours, limit] = self.take_turns(operations, [&mut ours, &mut limit])?;
        Ok(Measured { on_cpu: ours.1, ours: ours.0, limit: limit.0, ..Measured::default() })
    }

    /// Measures batches of `ours` and of a bare socket in turn.
    ///
    /// # Errors
    /// Those of either, and of the barrier before each batch.
    pub fn beside_socket(
        &self,
        operations: usize,
        mut ours: impl FnMut(usize) -> Result<()>,
        mut socket: impl FnMut(usize) -> Result<()>,
    ) -> Result<Measured> {
        let [ours, limit] = self.take_turns_of(true, operations, [&mut ours, &mut socket])?;
        Ok(Measured { on_cpu: ours.1, ours: ours.0, limit: limit.0, ..Measured::default() })
    }

    /// As [`Turns::alternate`], without a limit.
    ///
    /// # Errors
    /// Those of `ours`, and of the barrier before each batch.
    pub fn alone(&self, operations: usize, mut ours: impl FnMut(usize) -> Result<()>) -> Result<Measured> {
        let [ours] = self.take_turns(operations, [&mut ours])?;
        Ok(Measured { on_cpu: ours.1, ours: ours.0, ..Measured::default() })
    }

    /// As [`Turns::alternate`], with something to compare with that is no limit.
    ///
    /// # Errors
    /// Those of any of the three, and of the barrier before each batch.
    pub fn alternate_beside(
        &self,
        operations: usize,
        mut ours: impl FnMut(usize) -> Result<()>,
        mut limit: impl FnMut(usize) -> Result<()>,
        mut beside: impl FnMut(usize) -> Result<()>,
    ) -> Result<Measured> {
        let [ours, limit, beside] = self.take_turns(operations, [&mut ours, &mut limit, &mut beside])?;
        Ok(Measured { on_cpu: ours.1, ours: ours.0, limit: limit.0, beside: beside.0, ..Measured::default() })
    }

    /// Batches of each way in turn: nanoseconds an operation, and how much of the time of all of them this rank had a CPU.
    /// Only the first way runs where memory is not mapped.
    fn take_turns<const N: usize>(&self, operations: usize, ways: [Way<'_>; N]) -> Result<[(Vec<f64>, f64); N]> {
        self.take_turns_of(self.mapped, operations, ways)
    }

    /// As [`Turns::take_turns`]: all ways, or only the first.
    fn take_turns_of<const N: usize>(
        &self,
        all: bool,
        operations: usize,
        ways: [Way<'_>; N],
    ) -> Result<[(Vec<f64>, f64); N]> {
        // To warm up. Over a network a batch is long, and one makes the connection.
        let warm = if self.mapped { 2 } else { 1 };
        let mut taken = [(); N].map(|()| Vec::new());
        let (mut wall, mut cpu) = (0.0, 0.0);
        for batch in 0..warm + self.task.batches.div_ceil(self.parts.get()) {
            // Each way comes first as often as the others.
            for way in (0..N).map(|turn| (batch + turn) % N).filter(|way| *way == 0 || all) {
                self.world.meet()?;
                let cpu_before = cpu_nanoseconds();
                let begin = Instant::now();
                ways[way](operations)?;
                let took = begin.elapsed().as_nanos() as f64;
                cpu += cpu_nanoseconds() - cpu_before;
                wall += took;
                if batch >= warm {
                    taken[way].push(took / operations as f64);
                }
            }
        }
        let on_cpu = if wall > 0.0 { (cpu / wall).min(1.0) } else { 1.0 };
        Ok(taken.map(|taken| (taken, on_cpu)))
    }
}

/// Does a number of operations in one way.
pub type Way<'a> = &'a mut dyn FnMut(usize) -> Result<()>;

/// Runs `measure` with the stack deeper by a number of eighths of a page.
#[inline(never)]
fn deeper(eighths: usize, measure: &mut dyn FnMut() -> Result<Measured>) -> Result<Measured> {
    if eighths == 0 {
        return measure();
    }
    let room = std::hint::black_box([0u8; 4096 / 8]);
    let measured = deeper(eighths - 1, measure);
    std::hint::black_box(&room);
    measured
}

/// Time this thread has spent on a CPU.
fn cpu_nanoseconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the struct it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
