//! How much more two threads of one rank do than one, each with a context, beside what two threads of bare stores and locked adds
//! do: two CPUs may be halves of one core.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bellwether_runtime::{Result, ThreadArray, ThreadContext};

use super::memory::REACH;
use super::{address, opaque, opaque_index, thread_messages};
use crate::bench::cores;
use crate::bench::session::Session;
use crate::bench::task::Measured;

const THREADS: usize = 2;
/// Words that a thread's operations wander over, and those between two threads' words.
const WORDS: usize = REACH / size_of::<u64>();
const APART: usize = 4 * WORDS;
/// Most operations of a batch, of each thread.
const PUTS: usize = 2_000_000;
const ATOMICS: usize = 200_000;
const REMOTE: usize = 2_000;

/// Puts and fetch-and-adds at rank 1: operations a second of two threads of rank 0 over those of one. Also messages, where memory is
/// mapped.
///
/// # Errors
/// Those of the runtime.
pub fn threads(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let array = session.world.alloc::<u64>(THREADS * APART)?;
    let most = |mapped| if session.mapped { mapped } else { REMOTE };
    let mut report = Vec::new();
    if session.world.rank() == 0 {
        let contexts = (0..THREADS).map(|_| session.world.context()).collect::<Result<Vec<_>>>()?;
        let target = array.for_threads();
        let bare = |thread: usize| {
            Bare(if session.mapped { address(&array, 1, thread * APART) } else { std::ptr::null_mut() })
        };
        let ways = [bare(0), bare(1)];
        let contexts = contexts.into_iter().zip(ways).enumerate();
        let workers: Vec<Worker<'_>> =
            contexts.map(|(thread, (context, bare))| Worker { context, target, bare, first: thread * APART }).collect();
        let [puts, atomics] = [most(PUTS), most(ATOMICS)].map(|most| session.operations(most, usize::MAX, 8));
        let pairs: [(&str, usize, [Way; 2]); 2] = [
            ("", puts, [|worker, count| worker.puts(count), |worker, count| worker.stores(count)]),
            (
                "threads-atomic",
                atomics,
                [|worker, count| worker.fetch_adds(count), |worker, count| worker.locked_adds(count)],
            ),
        ];
        report = measure(session, workers, pairs)?;
    }
    session.world.barrier()?;
    if session.mapped {
        let messages = thread_messages::messages(session)?;
        if session.world.rank() == 0 {
            report.push(messages);
        }
    }
    Ok(report)
}

/// Does a number of operations in one way.
type Way = fn(&Worker<'_>, usize) -> Result<()>;

struct Bare(*mut u64);

// SAFETY: an address in mapped memory that one thread works on.
unsafe impl Send for Bare {}

/// A thread's part.
struct Worker<'a> {
    context: ThreadContext,
    target: ThreadArray<'a, u64>,
    bare: Bare,
    first: usize,
}

impl Worker<'_> {
    #[inline(never)]
    fn puts(&self, count: usize) -> Result<()> {
        let target = opaque_index(1);
        let (context, array, first) = (&self.context, self.target, self.first);
        (0..count).try_for_each(|i| context.put(&array, target, first + opaque_index(i % WORDS), i as u64))?;
        self.context.flush_all()
    }

    #[inline(never)]
    fn stores(&self, count: usize) -> Result<()> {
        for i in 0..count {
            // SAFETY: inside this thread's part of the array at rank 1.
            unsafe { self.bare.0.add(opaque_index(i % WORDS)).write_volatile(i as u64) };
        }
        Ok(())
    }

    #[inline(never)]
    fn fetch_adds(&self, count: usize) -> Result<()> {
        let target = opaque_index(1);
        let (context, array, first) = (&self.context, self.target, self.first);
        (0..count)
            .try_for_each(|i| context.fetch_add(&array, target, first + opaque_index(i % 8), 1).map(|x| _ = opaque(x)))
    }

    #[inline(never)]
    fn locked_adds(&self, count: usize) -> Result<()> {
        for i in 0..count {
            // SAFETY: inside this thread's part of the array at rank 1, aligned.
            let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(self.bare.0.add(opaque_index(i % 8))) };
            opaque(word.fetch_add(1, Ordering::AcqRel));
        }
        Ok(())
    }
}

/// Where threads meet before each part of a batch and get their next step.
#[derive(Default)]
struct Meeting {
    /// How often each has come.
    came: [AtomicUsize; THREADS],
}

impl Meeting {
    fn meet(&self, thread: usize, round: usize) {
        self.came[thread].store(round, Ordering::Release);
        super::spin_until(|| self.came.iter().all(|came| came.load(Ordering::Acquire) >= round));
    }
}

/// In each batch both ways take turns, each by one thread and by two.
fn measure(session: &Session, workers: Vec<Worker<'_>>, pairs: [(&str, usize, [Way; 2]); 2]) -> Result<Vec<Measured>> {
    const WARM: usize = 2;
    let (batches, bare, pin, cpus) = (session.task.batches, session.mapped, session.task.pin, &session.cpus);
    let meeting = Meeting::default();
    let begin = Instant::now();
    // For each thread: nanoseconds from `begin`, at the start and the end of its part.
    let run = |thread: usize, worker: Worker<'_>| -> Result<Vec<[f64; 2]>> {
        if pin {
            // If the thread cannot be pinned, the figure is less precise, but not wrong.
            let _ = cores::pin_to(cpus[thread % cpus.len()]);
        }
        let (mut times, mut round) = (Vec::new(), 0);
        for (_, count, ways) in &pairs {
            for batch in 0..WARM + batches {
                for turn in 0..if bare { 2 } else { 1 } {
                    let way = if bare { (turn + batch) % 2 } else { 0 };
                    for together in [false, true] {
                        round += 1;
                        meeting.meet(thread, round);
                        let start = begin.elapsed().as_nanos() as f64;
                        let outcome = if together || thread == 0 { ways[way](&worker, *count) } else { Ok(()) };
                        times.push([start, begin.elapsed().as_nanos() as f64]);
                        // The other thread must not wait for one that has ended.
                        if outcome.is_err() {
                            meeting.came[thread].store(usize::MAX, Ordering::Release);
                            outcome?;
                        }
                    }
                }
            }
        }
        Ok(times)
    };
    let shared = &run;
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .enumerate()
            .map(|(thread, worker)| scope.spawn(move || shared(thread, worker)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("does not panic")).collect::<Result<Vec<_>>>()
    })?;
    let mut parts = times[0].iter().zip(&times[1]).map(|(one, other)| [*one, *other]);
    let mut report = Vec::new();
    for (name, ..) in pairs {
        let mut measured = Measured { name: name.into(), on_cpu: 1.0, ..Measured::default() };
        for batch in 0..WARM + batches {
            for turn in 0..if bare { 2 } else { 1 } {
                let (Some([alone, _]), Some([one, other])) = (parts.next(), parts.next()) else { break };
                let both = (one[1].max(other[1]) - one[0].min(other[0])).max(1.0);
                let factor = THREADS as f64 * (alone[1] - alone[0]).max(1.0) / both;
                let is_ours = !bare || (turn + batch) % 2 == 0;
                if batch >= WARM {
                    if is_ours { &mut measured.ours } else { &mut measured.limit }.push(factor);
                }
            }
        }
        report.push(measured);
    }
    Ok(report)
}
