//! Messages of two threads of one rank, each with a context, over those of one, beside what two threads that write bare lines do.
//!
//! Rank 0 sends in bursts that fit in a lane, and rank 1 rests meanwhile: with two CPUs, a third thread that runs would be measured
//! too. Rank 1 takes each burst before the next one begins, so the lines are in its cache, as those of a receiver are.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use bellwether_runtime::{HandlerId, Result, ThreadContext};

use super::{LINE, address, opaque};
use crate::bench::cores;
use crate::bench::session::Session;
use crate::bench::task::Measured;

const THREADS: usize = 2;
/// Messages of a burst, of each thread. A quarter of a lane of contexts, so that none waits for room.
const BURST: usize = 64;
/// Lines of a bare ring: as many as in a lane of contexts.
const DEPTH: usize = 256;
/// Most bursts of a batch.
const BURSTS: usize = 100;
/// Once in this many polls of the flag rank 1 polls the world, though it was not told to.
const RARELY: u32 = 10_000;
/// How often threads meet before a round. A thread that yielded its CPU comes late out of one meeting; those that follow at once
/// find both running.
const MEETINGS: usize = 4;
/// Batches before those that count.
const WARM: usize = 2;

/// Words at rank 1: the round that it may take, and how many messages have been sent until then. The rings follow.
const ROUND: usize = 0;
const SENT: usize = 1;
const RINGS: usize = LINE;
/// Word at rank 0: the round that rank 1 has taken.
const TAKEN: usize = 0;
/// Instead of a round: there will be no further one.
const OVER: u64 = u64::MAX;

/// The address of a rank's part of an array.
#[derive(Clone, Copy)]
struct Words(*mut u64);

// SAFETY: an address in mapped memory, which is touched as atomics only.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    #[inline(always)]
    fn get(&self, index: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the array, as all callers guarantee; only touched as an atomic.
        unsafe { AtomicU64::from_ptr(self.0.add(index)) }
    }
}

/// Messages of one line to rank 1, where its memory is mapped.
///
/// # Errors
/// Those of the runtime.
pub fn messages(session: &Session) -> Result<Measured> {
    let world = &session.world;
    // Rank 0 sends when it has the array; rank 1 may take messages before it has.
    let before = session.pongs.get();
    let array = world.alloc::<u64>(RINGS + THREADS * DEPTH * LINE)?;
    let mut measured = Measured { name: "threads-am".into(), on_cpu: 1.0, ..Measured::default() };
    if world.rank() < 2 {
        let [sender, receiver] = [0, 1].map(|rank| Words(address(&array, rank, 0)));
        if world.rank() == 0 {
            let contexts = (0..THREADS).map(|_| world.context()).collect::<Result<Vec<_>>>()?;
            let times = send_all(session, contexts, sender, receiver);
            receiver.get(ROUND).store(OVER, Ordering::Release);
            factors(&times?, session.task.batches, bursts(session), &mut measured);
        } else {
            take_all(session, before, sender, receiver)?;
        }
    }
    world.barrier()?;
    Ok(measured)
}

fn bursts(session: &Session) -> usize {
    session.operations(BURSTS, usize::MAX, LINE)
}

/// Rank 1: takes what was sent, whenever rank 0 says so. `before`: messages that came before.
fn take_all(session: &Session, before: u64, sender: Words, receiver: Words) -> Result<()> {
    let mut taken = 0;
    loop {
        let mut polls = 0u32;
        yield_until(|| {
            polls += 1;
            // With a shallow lane a burst needs room. Rarely, since rank 1 is to rest.
            receiver.get(ROUND).load(Ordering::Acquire) != taken || polls.is_multiple_of(RARELY)
        });
        if receiver.get(ROUND).load(Ordering::Acquire) == taken {
            session.world.poll()?;
            continue;
        }
        taken = receiver.get(ROUND).load(Ordering::Acquire);
        if taken == OVER {
            return Ok(());
        }
        let sent = receiver.get(SENT).load(Ordering::Relaxed);
        while session.pongs.get() - before < sent {
            session.world.poll()?;
        }
        for line in 0..THREADS * DEPTH {
            opaque(receiver.get(RINGS + line * LINE).load(Ordering::Acquire));
        }
        sender.get(TAKEN).store(taken, Ordering::Release);
    }
}

/// A thread of rank 0.
struct Sender {
    thread: usize,
    context: ThreadContext,
    handler: HandlerId,
    receiver: Words,
}

impl Sender {
    #[inline(never)]
    fn messages(&self) -> Result<()> {
        (0..BURST as u64).try_for_each(|i| self.context.send(1, self.handler, &opaque(i).to_ne_bytes()))
    }

    /// Lines with a word each and a sequence number.
    #[inline(never)]
    fn lines(&self, next: &mut usize) {
        for _ in 0..BURST {
            let line = RINGS + (self.thread * DEPTH + *next % DEPTH) * LINE;
            self.receiver.get(line + 1).store(opaque(*next as u64), Ordering::Relaxed);
            *next += 1;
            self.receiver.get(line).store(*next as u64, Ordering::Release);
        }
    }
}

/// State that the threads of rank 0 share.
#[derive(Default)]
struct Meeting {
    /// How often each has come.
    came: [AtomicUsize; THREADS],
    /// Messages that each has sent.
    sent: [AtomicU64; THREADS],
}

impl Meeting {
    fn meet(&self, thread: usize, number: usize) {
        self.came[thread].store(number, Ordering::Release);
        yield_until(|| self.came.iter().all(|came| came.load(Ordering::Acquire) >= number));
    }
}

/// Start and end of a thread's part of a round, in nanoseconds of a clock that both threads read.
type Part = [f64; 2];

/// Rank 0: each thread's part of each round, in the order of [`rounds`].
fn send_all(
    session: &Session,
    contexts: Vec<ThreadContext>,
    sender: Words,
    receiver: Words,
) -> Result<[Vec<Part>; THREADS]> {
    let (pin, cpus, handler) = (session.task.pin, &session.cpus, session.pong);
    let (batches, bursts) = (session.task.batches, bursts(session));
    let (meeting, begin) = (&Meeting::default(), Instant::now());
    let run = move |Sender { thread, context, handler, receiver }: Sender| -> Result<Vec<Part>> {
        if pin {
            // If the thread cannot be pinned, the figure is less precise, but not wrong.
            let _ = cores::pin_to(cpus[thread % cpus.len()]);
        }
        let own = Sender { thread, context, handler, receiver };
        let (mut times, mut next) = (Vec::new(), 0);
        for (number, (is_ours, together)) in rounds(batches, bursts).enumerate() {
            let last = (MEETINGS + 1) * number;
            (1..=MEETINGS).for_each(|meet| meeting.meet(thread, last + meet));
            let start = begin.elapsed().as_nanos() as f64;
            if together || thread == 0 {
                if is_ours {
                    // The other thread must not wait for one that has ended.
                    own.messages().inspect_err(|_| meeting.came[thread].store(usize::MAX, Ordering::Release))?;
                } else {
                    own.lines(&mut next);
                }
            }
            times.push([start, begin.elapsed().as_nanos() as f64]);
            if is_ours && (together || thread == 0) {
                meeting.sent[thread].fetch_add(BURST as u64, Ordering::Relaxed);
            }
            meeting.meet(thread, last + MEETINGS + 1);
            if thread == 0 {
                let sent = meeting.sent.iter().map(|sent| sent.load(Ordering::Relaxed)).sum();
                receiver.get(SENT).store(sent, Ordering::Relaxed);
                receiver.get(ROUND).store(number as u64 + 1, Ordering::Release);
                yield_until(|| sender.get(TAKEN).load(Ordering::Acquire) == number as u64 + 1);
            }
        }
        Ok(times)
    };
    let run = &run;
    std::thread::scope(|scope| {
        let start = |(thread, context)| {
            let sender = Sender { thread, context, handler, receiver };
            scope.spawn(move || run(sender))
        };
        let threads: Vec<_> = contexts.into_iter().enumerate().map(start).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join().expect("does not panic"));
        let mut next = || ended.next().expect("two threads");
        Ok([next()?, next()?])
    })
}

/// For each round, whether the messages are ours or bare lines, and whether both threads send.
fn rounds(batches: usize, bursts: usize) -> impl Iterator<Item = (bool, bool)> {
    let of_batch =
        move |batch: usize| (0..4 * bursts).map(move |round| ((round / 2 + batch).is_multiple_of(2), round % 2 == 1));
    (0..WARM + batches).flat_map(of_batch)
}

/// How much more two threads do than one, by the medians of a batch's bursts. Rounds of two threads whose parts do not overlap are
/// left out: there, one thread ran after the other. So is a batch with no other rounds of two threads, of ours or of bare lines.
fn factors(times: &[Vec<Part>; THREADS], batches: usize, bursts: usize, measured: &mut Measured) {
    let rounds: Vec<_> = rounds(batches, bursts).collect();
    for batch in WARM..WARM + batches {
        let of_batch = 4 * bursts * batch..4 * bursts * (batch + 1);
        let [ours, limit] = [true, false].map(|is_ours| {
            let parts = |together| {
                let of_kind = of_batch.clone().filter(|i| rounds[*i] == (is_ours, together));
                of_kind.map(|i| [times[0][i], times[1][i]]).collect::<Vec<_>>()
            };
            let alone = parts(false).into_iter().map(|[part, _]| part[1] - part[0]).collect();
            let together = parts(true);
            measured.rounds += together.len();
            let both: Vec<f64> = together.iter().copied().filter_map(time_of_both).collect();
            measured.left_out += together.len() - both.len();
            Some(THREADS as f64 * median(alone)? / median(both)?)
        });
        if let (Some(ours), Some(limit)) = (ours, limit) {
            measured.ours.push(ours);
            measured.limit.push(limit);
        }
    }
}

/// The time from the first start to the last end, if both threads ran at the same time for a part.
fn time_of_both([one, other]: [Part; THREADS]) -> Option<f64> {
    let overlap = one[1].min(other[1]) - one[0].max(other[0]);
    (overlap > 0.0).then(|| one[1].max(other[1]) - one[0].min(other[0]))
}

/// The median, at least a nanosecond, so that it can be a divisor.
fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).map(|time| time.max(1.0))
}

/// Waits for another thread, which may need this CPU: there are three, and perhaps two CPUs.
fn yield_until(mut ready: impl FnMut() -> bool) {
    const POLLS: u32 = 500;
    let mut polls = 0;
    while !ready() {
        polls += 1;
        if polls > POLLS {
            // SAFETY: always safe.
            unsafe { libc::sched_yield() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of one batch of a burst, with these parts of the rounds of two threads; of one thread, 100 ns.
    fn batch(ours: [Part; THREADS], lines: [Part; THREADS]) -> Measured {
        let part = |thread: usize, (is_ours, together)| match (is_ours, together) {
            (_, false) => [0.0, 100.0],
            (true, true) => ours[thread],
            (false, true) => lines[thread],
        };
        let mut measured = Measured::default();
        factors(&[0, 1].map(|thread| rounds(1, 1).map(|round| part(thread, round)).collect()), 1, 1, &mut measured);
        measured
    }

    #[test]
    fn two_threads_take_from_the_first_start_to_the_last_end() {
        let measured = batch([[0.0, 100.0], [60.0, 160.0]], [[100.0, 300.0], [50.0, 250.0]]);
        assert_eq!((measured.ours, measured.limit), (vec![1.25], vec![0.8]));
        assert_eq!((measured.left_out, measured.rounds), (0, 2));
    }

    #[test]
    fn rounds_in_which_one_thread_ran_after_the_other_are_left_out() {
        let measured = batch([[0.0, 100.0], [100.0, 200.0]], [[0.0, 100.0], [0.0, 100.0]]);
        assert_eq!((measured.ours, measured.limit), (vec![], vec![]));
        assert_eq!((measured.left_out, measured.rounds), (1, 2));
    }
}
