//! GASPI's calls: a notification there and back, posting, a wait, and the search for a notification.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bellwether_runtime::vocabulary::gaspi::Timeout::Block;
use bellwether_runtime::vocabulary::gaspi::{Code, Config, Datatype, GROUP_ALL, Note, Operation, Part, Process};
use bellwether_runtime::{Error, Result, Settings, World};

use super::area::Area;
use super::bell::one_way;
use super::{LINE, opaque, report, spin, word};
use crate::bench::kind::Kind;
use crate::bench::session::settle;
use crate::bench::task::{Measured, Task};
use crate::bench::turns::{Ground, Turns};

/// The segment of the benchmarks, and its bytes.
const SEGMENT: u8 = 0;
const BYTES: u64 = 1 << 20;
/// The queue.
const QUEUE: u8 = 0;
/// Requests between two waits.
const REQUESTS: usize = 1000;
/// Notifications of the segment.
const NOTES: u32 = 65536;

/// A process, and memory that the limits use.
struct Tasks {
    process: Process,
    rank: usize,
    size: usize,
    /// Bytes that further areas pass over.
    passed: Cell<usize>,
}

/// The result of a call of GASPI as one of the runtime.
fn of<T>(result: Result<T, Code>) -> Result<T> {
    result.map_err(|code| Error::InvalidArgument { operation: "bench", why: code.to_string() })
}

impl Ground for Tasks {
    type Left = ();

    fn meet(&self) -> Result<()> {
        of(self.process.barrier(GROUP_ALL, Block))
    }

    fn pass_over(&self, bytes: usize) -> Result<()> {
        self.passed.set(self.passed.get() + bytes);
        Ok(())
    }
}

impl Tasks {
    /// Gathers the word `mine` of each process.
    fn exchange(&self, mine: u64) -> Result<Vec<u64>> {
        (0..self.size)
            .map(|rank| {
                let send = if rank == self.rank { mine } else { 0 };
                let mut sum = [0; 8];
                let outcome = self.process.allreduce(
                    &send.to_ne_bytes(),
                    &mut sum,
                    Operation::Sum,
                    Datatype::Ulong,
                    GROUP_ALL,
                    Block,
                );
                of(outcome).map(|()| u64::from_ne_bytes(sum))
            })
            .collect()
    }

    /// Fresh memory for a limit, behind what was passed over.
    fn area(&self, words: usize) -> Result<Area> {
        Area::new(self.rank, self.passed.get(), words, |mine| self.exchange(mine), || self.meet())
    }

    /// Where data goes in the segment, in the place that is measured.
    fn there(&self) -> u64 {
        (BYTES / 2 + self.passed.get().next_multiple_of(64) as u64) % BYTES
    }
}

/// Takes part in the benchmark; see [`super::vocabulary`].
///
/// # Errors
/// Those of the runtime, and of `tell`.
pub fn run(task: Task, tell: impl FnOnce(usize, &[Measured]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mapped = Settings::from_env()?.transport.name() == "auto";
    let process = Process::start(World::builder())?;
    let (rank, size) = process.place();
    settle(&task, rank, size)?;
    of(process.config_set(Config { queue_size_max: 4096, notification_num: NOTES, ..Config::default() }))?;
    of(process.proc_init(Block))?;
    of(process.segment_create(SEGMENT, BYTES, GROUP_ALL, Block))?;
    let turns = Turns::new(Tasks { process, rank, size, passed: Cell::new(0) }, task, mapped);
    let kernel = match turns.task.kind {
        Kind::GaspiPost => post,
        Kind::GaspiWait => wait,
        Kind::GaspiWaitsome => waitsome,
        _ => notify,
    };
    let measured = report(&turns.task, |size| kernel(&turns, size))?;
    tell(rank, &measured)?;
    turns.world.meet()?;
    let process = turns.world.process;
    of(process.proc_term(Block))?;
    process.finish()?;
    Ok(())
}

/// One way of a ping-pong of a write with its notification, which the target finds and resets. Beside the limit of `put-bell`.
fn notify(turns: &Turns<Tasks>, size: usize) -> Result<Vec<Measured>> {
    Ok(vec![turns.in_places(|| notify_here(turns, size))?])
}

fn notify_here(turns: &Turns<Tasks>, size: usize) -> Result<Measured> {
    let tasks = &turns.world;
    let (p, own) = (&tasks.process, tasks.rank);
    let there = tasks.there();
    let bare = if turns.mapped { Some(tasks.area(2 * LINE)?) } else { None };
    let (mut round, mut bare_round) = (0u32, 0u64);
    let mut data = 0u64;
    let part = Part { local: (SEGMENT, 0), remote: (SEGMENT, there), size: size as u64 };
    let memory = of(p.segment_ptr(SEGMENT))?;
    // SAFETY: aligned words of the own segment, which others only write through atomics.
    let (source, came) =
        unsafe { (AtomicU64::from_ptr(memory.cast()), AtomicU64::from_ptr(memory.add(there as usize).cast())) };
    let throw = |partner: u16, round: u32| {
        source.store(u64::from(round), Ordering::Relaxed);
        of(p.write_notify(part, partner, Note { segment: SEGMENT, id: 7, value: round }, QUEUE, Block))
    };
    let mut catch = |round: u32| {
        of(p.notify_waitsome(SEGMENT, 7, 1, Block))?;
        let value = of(p.notify_reset(SEGMENT, 7))?;
        data = opaque(came.load(Ordering::Relaxed));
        debug_assert_eq!((u64::from(value), data), (u64::from(round), u64::from(round)));
        // The queue counts what was posted until a wait.
        if round.is_multiple_of(REQUESTS as u32) { of(p.wait(QUEUE, Block)) } else { Ok(()) }
    };
    let ours = |n| {
        for _ in 0..if own < 2 { n } else { 0 } {
            round += 1;
            if own == 0 {
                throw(1, round)?;
                catch(round)?;
            } else {
                catch(round)?;
                throw(0, round)?;
            }
        }
        Ok(())
    };
    let limit = |n| {
        let Some(bare) = bare.as_ref().filter(|_| own < 2) else { return Ok(()) };
        for _ in 0..n {
            bare_round += 1;
            let throw = || {
                word(bare, 1 - own, 0).store(bare_round, Ordering::Relaxed);
                word(bare, 1 - own, LINE).store(bare_round, Ordering::Release);
            };
            let catch = || {
                spin(word(bare, own, LINE), bare_round);
                opaque(word(bare, own, 0).load(Ordering::Relaxed));
            };
            if own == 0 {
                throw();
                catch();
            } else {
                catch();
                throw();
            }
        }
        Ok(())
    };
    let measured = turns.latency(turns.operations(2000, 8 << 20, size), size, ours, limit)?;
    of(p.wait(QUEUE, Block))?;
    turns.world.meet()?;
    Ok(one_way(measured))
}

/// Posts of writes to the next process, with a wait after each 1,000; beside bare stores.
fn post(turns: &Turns<Tasks>, size: usize) -> Result<Vec<Measured>> {
    let tasks = &turns.world;
    let (p, own) = (&tasks.process, tasks.rank);
    let area = if turns.mapped { Some(tasks.area(REQUESTS)?) } else { None };
    let ours = |n| {
        for i in 0..if own == 0 { n } else { 0 } {
            let offset = 8 * (i % REQUESTS) as u64;
            let part = Part { local: (SEGMENT, offset), remote: (SEGMENT, BYTES / 2 + offset), size: size as u64 };
            of(p.write(part, 1, QUEUE, Block))?;
            if (i + 1) % REQUESTS == 0 {
                of(p.wait(QUEUE, Block))?;
            }
        }
        of(p.wait(QUEUE, Block))
    };
    let limit = |n| {
        if let (0, Some(area)) = (own, &area) {
            (0..n).for_each(|i| word(area, 1, i % REQUESTS).store(opaque(i as u64), Ordering::Relaxed));
        }
        Ok(())
    };
    Ok(vec![turns.alternate(turns.operations(50_000, 16 << 20, size), ours, limit)?])
}

/// A wait on a queue of 1,000 requests that have finished.
fn wait(turns: &Turns<Tasks>, size: usize) -> Result<Vec<Measured>> {
    let tasks = &turns.world;
    let (p, own) = (&tasks.process, tasks.rank);
    let mut measured = Measured { on_cpu: 1.0, ..Measured::default() };
    tasks.meet()?;
    for _ in 0..if own == 0 { 10 * turns.task.batches } else { 0 } {
        for i in 0..REQUESTS as u64 {
            let part = Part { local: (SEGMENT, 8 * i), remote: (SEGMENT, BYTES / 2 + 8 * i), size: size as u64 };
            of(p.write(part, 1, QUEUE, Block))?;
        }
        let begin = Instant::now();
        of(p.wait(QUEUE, Block))?;
        measured.ours.push(begin.elapsed().as_nanos() as f64);
    }
    tasks.meet()?;
    Ok(vec![measured])
}

/// A search over 65,536 notifications of which the last is set; beside bare loads of all words.
fn waitsome(turns: &Turns<Tasks>, _: usize) -> Result<Vec<Measured>> {
    let tasks = &turns.world;
    let (p, own) = (&tasks.process, tasks.rank);
    let note = Note { segment: SEGMENT, id: NOTES - 1, value: 1 };
    of(p.notify(note, own as u16, QUEUE, Block))?;
    of(p.wait(QUEUE, Block))?;
    let area = if turns.mapped { Some(tasks.area(NOTES as usize / 2)?) } else { None };
    let ours = |n| {
        (0..n).try_for_each(|_| {
            let found = of(p.notify_waitsome(SEGMENT, 0, NOTES, Block))?;
            assert_eq!(found, Some(NOTES - 1));
            Ok(())
        })
    };
    let limit = |n| {
        if let Some(area) = area.as_ref().filter(|_| own < 2) {
            for _ in 0..n {
                let any = (0..NOTES as usize / 2).fold(0, |any, i| any | word(area, own, i).load(Ordering::Relaxed));
                opaque(any);
            }
        }
        Ok(())
    };
    let measured = turns.alternate(turns.operations(500, usize::MAX, 1), ours, limit)?;
    of(p.notify_reset(SEGMENT, NOTES - 1))?;
    Ok(vec![measured])
}
