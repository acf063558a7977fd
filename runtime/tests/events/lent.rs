//! Puts of contexts that keep their source until an event: buffers that they own, and ranges of this rank's part of an array.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::{
    Completion, Counter, Error, Event, Result, Simulated, ThreadArray, ThreadContext, Transport, World,
};

use super::panics::Dropped;
use super::threads;

/// Words of a buffer that is registered for its put.
const LEN: usize = 40_000;

/// How contexts are used, and what is known of the network.
#[derive(Clone, Copy)]
struct Kind {
    /// On a thread of their own.
    apart: bool,
    /// A long buffer is in flight when the call returns.
    in_flight: bool,
}

/// Calls `act` with the context, on a thread of its own or here, and gives the context back.
fn by<R: Send>(
    world: &World,
    kind: Kind,
    context: ThreadContext,
    act: impl FnOnce(&ThreadContext) -> Result<R> + Send,
) -> Result<(ThreadContext, R)> {
    if !kind.apart {
        let outcome = act(&context)?;
        return Ok((context, outcome));
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || act(&context).map(|outcome| (context, outcome)));
        while !thread.is_finished() {
            // The contexts of peers may need this rank's progress.
            world.poll()?;
            std::thread::yield_now();
        }
        thread.join().expect("does not panic")
    })
}

fn values(rank: usize, round: u64) -> impl Fn(usize) -> u64 {
    move |i| (1000 * rank + i) as u64 + (round << 32)
}

/// One round: a long buffer, which comes back unchanged and may be changed then, and a short one.
fn lend(
    context: &ThreadContext,
    array: &ThreadArray<'_, u64>,
    (next, at): (usize, usize),
    buffer: Vec<u64>,
    in_flight: bool,
) -> Result<Vec<u64>> {
    let place = buffer.as_ptr();
    let (source, effect, shared) = (Counter::new(), Counter::new(), Arc::<[u64]>::from(&buffer[..1000]));
    let put = context.operation().source(&source).effect(&effect);
    let lent = put.put_owned(array, next, LEN * at, buffer)?;
    if in_flight {
        assert!(lent.take().is_none() && source.value() == 0, "the network has not read it yet");
    }
    let short = context.operation().put_owned(array, next, LEN * (1 - at), shared)?;
    assert_eq!(short.take().expect("was copied").len(), 1000);
    let mut buffer = match at {
        0 => context.wait_returned(&lent)?,
        _ => {
            context.wait_counter(&source, 1)?;
            lent.take().expect("the source event has happened")
        }
    };
    assert_eq!((buffer.as_ptr(), buffer.len()), (place, LEN));
    buffer.fill(7);
    context.wait_counter(&effect, 1)?;
    assert_eq!(source.value(), 1);
    context.flush_all()?;
    Ok(buffer)
}

fn owned(world: &World, kind: Kind) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let numbers = world.alloc::<u64>(2 * LEN)?;
    let array = numbers.for_threads();
    let (mut context, mut buffer) = (world.context()?, vec![0; LEN]);
    for round in 1..=3 {
        (0..LEN).map(values(me, round)).zip(&mut buffer).for_each(|(value, to)| *to = value);
        let at = round as usize % 2;
        let act = |context: &ThreadContext| lend(context, &array, (next, at), buffer, kind.in_flight);
        (context, buffer) = by(world, kind, context, act)?;
        world.barrier()?;
        let mut came = vec![0; LEN];
        numbers.read(LEN * at, &mut came);
        assert!((0..LEN).map(values(before, round)).eq(came.iter().copied()), "rank {me}, round {round}");
        numbers.read(LEN * (1 - at), &mut came[..1000]);
        assert!((0..1000).map(values(before, round)).eq(came[..1000].iter().copied()));
        world.barrier()?;
    }
    // Nobody wants this one back. It is dropped in its time, and with its context at the latest.
    let freed = Arc::new(AtomicBool::new(false));
    let lost = Dropped(buffer, Arc::clone(&freed));
    (context, _) = by(world, kind, context, |context| context.operation().put_owned(&array, next, 0, lost).map(drop))?;
    assert!(!kind.in_flight || !freed.load(Ordering::SeqCst), "the network still reads it");
    drop(context);
    assert!(freed.load(Ordering::SeqCst));
    world.barrier()?;
    assert_eq!((numbers.load(0), numbers.load(LEN - 1)), (7, 7));
    world.barrier()
}

/// Long and short ranges of this rank's part of an array go to the next rank, and to this rank itself.
fn from_arrays(world: &World, kind: Kind) -> Result<()> {
    const SHORT: usize = 100;
    let (me, size) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let (from, to) = (world.alloc::<u64>(LEN + SHORT)?, world.alloc::<u64>(LEN + SHORT)?);
    let (source, array) = (from.for_threads(), to.for_threads());
    from.write(0, &(0..LEN + SHORT).map(values(me, 1)).collect::<Vec<_>>());
    world.barrier()?;
    let context = world.context()?;
    let (context, ()) = by(world, kind, context, |context| {
        let [read, copied, effect] = [Counter::new(), Counter::new(), Counter::new()];
        context.operation().source(&read).effect(&effect).put_from(&array, next, 0, &source, SHORT..SHORT + LEN)?;
        assert!(!kind.in_flight || read.value() == 0, "the network has not read it yet");
        context.operation().source(&copied).effect(&effect).put_from(&array, next, LEN, &source, 0..SHORT)?;
        assert_eq!(copied.value(), 1, "a short range is copied");
        context.wait_counter(&read, 1)?;
        context.wait_counter(&effect, 2)?;
        let beyond = context.operation().source(&read).put_from(&array, next, 0, &source, LEN..LEN + SHORT + 1);
        assert!(matches!(beyond, Err(Error::OutOfBounds { .. })), "{beyond:?}");
        assert_eq!(read.value(), 1, "no event of what was not done");
        context.flush_all()
    })?;
    world.barrier()?;
    let mut came = vec![0; LEN + SHORT];
    to.read(0, &mut came);
    assert!((SHORT..SHORT + LEN).chain(0..SHORT).map(values(before, 1)).eq(came.iter().copied()), "rank {me}");
    world.barrier()?;
    // The two overlap.
    let act = |context: &ThreadContext| {
        context.operation().put_from(&source, me, 1, &source, 0..LEN)?;
        context.flush_all()
    };
    by(world, kind, context, act)?;
    world.barrier()?;
    from.read(0, &mut came[..=LEN]);
    assert!((0..LEN).map(values(me, 1)).eq(came[1..=LEN].iter().copied()), "rank {me}");
    world.barrier()
}

fn everywhere(name: &str, program: fn(&World, Kind) -> Result<()>) {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let kind = Kind { apart: true, in_flight: false };
        for result in threads(3, transport).run(|world| program(world, kind)).expect("ranks start") {
            result.expect("is well");
        }
    }
    check(name, 2, |seed| {
        for memory in [Memory::Posted, Memory::Direct, Memory::Emulated] {
            let kind = Kind { apart: false, in_flight: memory == Memory::Posted };
            let job = Simulated::new(Config { memory, ..Config::new(3, seed).wild() });
            let results = job.run(|world| program(world, kind));
            results.expect("the job runs").into_iter().for_each(|result| result.expect("is well"));
        }
    });
}

#[test]
fn a_long_buffer_is_lent_to_a_put_of_a_context_and_comes_back() {
    everywhere("owned buffers of contexts", owned);
}

#[test]
fn a_put_of_a_context_from_an_array_tells_when_its_source_may_be_changed() {
    everywhere("puts of contexts from arrays", from_arrays);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn puts_of_contexts_keep_their_source_over_rdma() {
    let kind = Kind { apart: true, in_flight: false };
    for program in [owned, from_arrays] {
        let results = threads(2, Transport::Verbs).run(|world| program(world, kind)).expect("ranks start");
        results.into_iter().for_each(|result| result.expect("is well"));
    }
}

/// Two ranks die: that to which a context puts a long buffer, or another one. The buffer comes back to a wait for it, at once or later.
#[test]
fn a_wait_of_a_context_for_its_buffer_ends_with_the_buffer_though_ranks_die() {
    for (seed, to) in (0..5).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        for memory in [Memory::Posted, Memory::Emulated] {
            let job = Simulated::new(Config { memory, ..Config::new(3, seed).wild() });
            let results = job.run(|world| -> Result<usize> {
                let (numbers, bell) = (world.alloc::<u64>(LEN)?, world.bell()?);
                world.barrier()?;
                if world.rank() != 1 {
                    bell.ring(1)?;
                }
                match world.rank() {
                    0 => {}
                    1 => {
                        // The others have left the barrier.
                        bell.wait(2)?;
                        world.sleep(Duration::from_micros(10 * seed));
                        job.network().kill(1);
                        return Ok(0);
                    }
                    _ => {
                        // It serves what comes until the first rank leaves.
                        let _ = world.wait_until(|| false);
                        return Ok(0);
                    }
                }
                let (context, array) = (world.context()?, numbers.for_threads());
                let mut came = 0;
                for _ in 0..5 {
                    match context.operation().put_owned(&array, to, 0, vec![1; LEN]) {
                        Ok(lent) => came += context.wait_returned(&lent)?.len() / LEN,
                        // Refused, as its target is dead.
                        Err(Error::PeerLost { rank: 1, .. }) if to == 1 => came += 1,
                        Err(error) => return Err(error),
                    }
                    world.sleep(Duration::from_nanos(200));
                }
                Ok(came)
            });
            let first = results.expect("the job runs").into_iter().next().expect("three ranks");
            assert!(matches!(first, Ok(5)), "{memory:?}, seed {seed}, to {to}: {first:?}");
        }
    }
}

/// The rank that a context puts a long buffer to dies: the buffer comes back, and the events tell of the death.
#[test]
fn a_buffer_of_a_context_comes_back_from_a_rank_that_dies() {
    for seed in 0..5 {
        for memory in [Memory::Posted, Memory::Emulated] {
            let job = Simulated::new(Config { memory, ..Config::new(2, seed).wild() });
            let results = job.run(|world| -> Result<()> {
                let numbers = world.alloc::<u64>(LEN)?;
                world.barrier()?;
                if world.rank() == 1 {
                    world.sleep(Duration::from_nanos(300 * seed));
                    job.network().kill(1);
                    return Ok(());
                }
                let (context, done) = (world.context()?, Completion::new());
                let put = context.operation().source(&done);
                let lent = put.put_owned(&numbers.for_threads(), 1, 0, vec![1; LEN])?;
                let outcome = loop {
                    // Polls tell of the loss, too.
                    let _ = context.poll();
                    world.sleep(Duration::from_micros(1));
                    if let Some(outcome) = done.outcome() {
                        break outcome;
                    }
                };
                assert_eq!(lent.take().map(|buffer| buffer.len()), Some(LEN), "{outcome:?}");
                outcome
            });
            match results.expect("the job runs").into_iter().next().expect("two ranks") {
                Ok(()) | Err(Error::PeerLost { rank: 1, .. }) => {}
                other => panic!("{memory:?}, seed {seed}: {other:?}"),
            }
        }
    }
}

/// A context waits only for what it has lent, and once.
fn only_what_it_has_lent(world: &World, kind: Kind) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let next = (me + 1) % size;
    let numbers = world.alloc::<u64>(2 * LEN)?;
    let array = numbers.for_threads();
    let (context, other) = (world.context()?, world.context()?);
    let invalid = |outcome: Result<Vec<u64>>, why: &str| {
        let told = matches!(&outcome, Err(error @ Error::InvalidArgument { .. }) if error.to_string().contains(why));
        assert!(told, "{why}: {outcome:?}");
    };
    let (context, ()) = by(world, kind, context, move |context| {
        let lent = context.operation().put_owned(&array, next, 0, vec![1; LEN])?;
        if kind.in_flight {
            invalid(other.wait_returned(&lent), "another context has lent it");
        }
        assert_eq!(context.wait_returned(&lent)?.len(), LEN);
        invalid(context.wait_returned(&lent), "taken before");
        invalid(other.wait_returned(&lent), "taken before");
        assert!(lent.take().is_none());
        context.flush_all()
    })?;
    let lent = world.operation().put_owned(&numbers, next, LEN, vec![1; LEN])?;
    if kind.in_flight {
        invalid(context.wait_returned(&lent), "the world has lent it");
    }
    assert_eq!(world.block_on(lent)?.len(), LEN);
    world.barrier()
}

#[test]
fn a_context_waits_for_a_buffer_that_it_has_lent_itself_and_that_nobody_has_taken() {
    everywhere("what a context waits for", only_what_it_has_lent);
}

/// A function of the source event panics: the put was posted, and its effect is told.
fn source_that_panics(world: &World, kind: Kind) -> Result<()> {
    let next = (world.rank() + 1) % world.size();
    let (from, to) = (world.alloc::<u64>(8)?, world.alloc::<u64>(24)?);
    from.write(0, &[5; 8]);
    world.barrier()?;
    let (source, array, context) = (from.for_threads(), to.for_threads(), world.context()?);
    let (context, ()) = by(world, kind, context, |context| {
        let effect = Counter::new();
        let operation = || context.operation().source(Event::call(|_| panic!("of the program"))).effect(&effect);
        let calls: [&dyn Fn() -> Result<()>; 3] = [
            &|| operation().put_owned(&array, next, 0, vec![5; 8]).map(drop),
            &|| operation().put_from(&array, next, 8, &source, 0..8),
            &|| operation().put(&array, next, 16, &[5; 8]),
        ];
        for (i, call) in calls.iter().enumerate() {
            assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "put {i} copies: its source event is in the call");
        }
        context.wait_counter(&effect, 3)?;
        context.flush_all()
    })?;
    world.barrier()?;
    let mut came = [0; 24];
    to.read(0, &mut came);
    assert_eq!(came, [5; 24]);
    drop(context);
    world.barrier()
}

#[test]
fn a_source_function_that_panics_does_not_keep_the_effect_of_a_put_of_a_context_from_being_told() {
    everywhere("source functions that panic", source_that_panics);
}
