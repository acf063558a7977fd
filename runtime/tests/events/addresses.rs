//! Memory by its address at the target: puts, gets and atomics of the world and of contexts, and their events.

use std::sync::atomic::{AtomicU64, Ordering};

use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::transport::{AtomicOp, Memory};
use bellwether_runtime::{Completion, Counter, Error, Event, Result, Segment, Simulated, Symmetric, Transport, World};

use super::{Through, everywhere, threads};

const WORDS: usize = 375;
const LEN: usize = 8 * WORDS;
/// Parts that the bytes are put in.
const PARTS: usize = 5;

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 + seed * 31 + i / 251 + 1) as u8).collect()
}

fn words() -> Vec<AtomicU64> {
    (0..WORDS).map(|_| AtomicU64::new(0)).collect()
}

/// Memory of each kind, of every rank.
struct Places {
    heap: Symmetric<u64>,
    made: Segment,
    given: Segment,
    /// Of `given`, and memory that is nothing to the world.
    memory: [Vec<AtomicU64>; 2],
}

/// Memory of this rank, and where that of each rank is.
struct Place {
    kind: &'static str,
    own: *mut u64,
    there: Vec<usize>,
}

impl Place {
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS);
        // SAFETY: memory of `Places`, which outlives this; peers' accesses are kept apart or are atomics.
        unsafe { AtomicU64::from_ptr(self.own.add(index)) }
    }

    fn bytes(&self) -> Vec<u8> {
        (0..WORDS).flat_map(|i| self.word(i).load(Ordering::Relaxed).to_ne_bytes()).collect()
    }
}

impl Places {
    fn new(world: &World) -> Result<Places> {
        let memory = [words(), words()];
        // SAFETY: atomics, which outlive the segment.
        let given = unsafe { world.segment_at(None, memory[0].as_ptr().cast_mut().cast(), LEN) }?;
        Ok(Places { heap: world.alloc(WORDS)?, made: world.segment(LEN)?, given, memory })
    }

    /// Plain memory is the last.
    fn all(&self, world: &World) -> Result<Vec<Place>> {
        let starts = [
            ("heap", self.heap.as_ptr_range().start),
            ("segment of the job's memory", self.made.as_ptr().cast()),
            ("segment of the program's memory", self.given.as_ptr().cast()),
            ("plain", self.memory[1].as_ptr().cast_mut().cast()),
        ];
        let place = |(kind, own): (&'static str, *mut u64)| {
            world.exchange_addresses(own.cast_const()).map(|there| Place { kind, own, there })
        };
        starts.into_iter().map(place).collect()
    }

    fn close(self) -> Result<()> {
        self.made.close()?;
        self.given.close()
    }
}

/// Checks that all ranks' tickets together are those from 0 on.
fn all_differ(world: &World, kind: &str, tickets: Vec<u64>) -> Result<()> {
    let mut all = world.allgather(&[<[u64; 3]>::try_from(tickets).expect("three")])?.concat();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..3 * world.size() as u64), "{kind}: {all:?}");
    Ok(())
}

/// Atomics on words of a place, by address and by what else names them.
fn change(world: &World, places: &Places, place: &Place) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let (kind, at, at_next) = (place.kind, place.there[0], place.there[next]);
    (0..3).for_each(|i| place.word(i).store(0, Ordering::Relaxed));
    world.barrier()?;
    let numbers = world.allgather(&[[places.made.number(), places.given.number()]])?[0];
    let found = Counter::new();
    let operation = || world.operation().effect(&found);
    if kind == "plain" {
        // Told at once, or, where the owner is asked, when it answers.
        // SAFETY: nothing is changed.
        let refused = unsafe { world.fetch_address(AtomicOp::Add, next, at_next, 1u64) };
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
        let done = Completion::new();
        // SAFETY: as above.
        let begun = unsafe { operation().effect(&done).fetch_address(AtomicOp::Add, next, at_next, 1u64) };
        let outcome = begun.and_then(|_| world.wait_completion(&done));
        assert!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
        world.barrier()?;
        assert_eq!((found.value(), place.word(0).load(Ordering::Relaxed)), (0, 0));
        return Ok(());
    }
    // SAFETY: words that all ranks change by atomics alone.
    let add = unsafe { operation().fetch_address(AtomicOp::Add, 0, at, 1u64) }?;
    // SAFETY: as above.
    let swap = unsafe { operation().compare_swap_address(next, at_next + 20, 0u32, me as u32 + 7) }?;
    // SAFETY: as above.
    let mut tickets = vec![unsafe { world.fetch_address(AtomicOp::Add, 0, at, 1u64) }?];
    tickets.push(match kind {
        "heap" => places.heap.fetch_add(0, 0, 1)?,
        "segment of the job's memory" => world.fetch_segment(AtomicOp::Add, 0, numbers[0], 0, 1u64)?,
        _ => world.fetch_segment(AtomicOp::Add, 0, numbers[1], 0, 1u64)?,
    });
    world.wait_counter(&found, 2)?;
    tickets.push(add.value().expect("in effect"));
    assert_eq!(swap.value(), Some(0), "{kind}");
    all_differ(world, kind, tickets)?;
    // SAFETY: as above.
    let swapped = unsafe { world.compare_swap_address(next, at_next + 20, me as u32 + 7, me as u32 + 70) }?;
    assert_eq!(swapped, me as u32 + 7, "{kind}");
    world.barrier()?;
    assert_eq!(place.word(2).load(Ordering::Relaxed).to_ne_bytes()[4..], (before as u32 + 70).to_ne_bytes(), "{kind}");
    if me == 0 {
        assert_eq!(place.word(0).load(Ordering::Relaxed), 3 * n as u64, "{kind}");
    }
    // SAFETY: nothing is changed.
    let skewed = unsafe { operation().fetch_address(AtomicOp::Add, next, at_next + 4, 1u64) };
    assert!(matches!(skewed, Err(Error::Misaligned { alignment: 8, .. })), "{kind}: {skewed:?}");
    // SAFETY: as above.
    let two = unsafe { operation().fetch_address(AtomicOp::CompareSwap, next, at_next, 1u64) };
    assert!(matches!(two, Err(Error::InvalidArgument { .. })), "{kind}: {two:?}");
    assert_eq!(found.value(), 2, "no event of what was not done");
    Ok(())
}

/// Addresses that are none.
fn refuse(world: &World, back: &Segment, heap: usize) -> Result<()> {
    let (next, done) = ((world.rank() + 1) % world.size(), Counter::new());
    let context = world.context()?;
    let into = back.for_threads();
    for (rank, address) in [(next, 0), (next, usize::MAX - 3), (world.size(), heap)] {
        let operation = || world.operation().effect(&done);
        let by_context = || context.operation().effect(&done);
        // SAFETY: nothing is reached.
        let outcomes = unsafe {
            [
                operation().put_address(rank, address, &[1; 8]),
                operation().get_address(rank, address, back, 0, 8),
                operation().fetch_address(AtomicOp::Add, rank, address, 1u64).map(drop),
                world.compare_swap_address(rank, address, 0u64, 1).map(drop),
                by_context().put_address(rank, address, &[1; 8]),
                by_context().get_address(rank, address, &into, 0, 8),
                by_context().fetch_address(AtomicOp::Add, rank, address, 1u64).map(drop),
                context.get_address(rank, address, &mut [1; 8]),
            ]
        };
        let is_right = |outcome: &Result<()>| match rank == world.size() {
            true => matches!(outcome, Err(Error::RankOutOfRange { .. })),
            false => matches!(outcome, Err(Error::BadAddress { .. })),
        };
        assert!(outcomes.iter().all(is_right), "{address:#x} of rank {rank}: {outcomes:?}");
    }
    // SAFETY: as above.
    let outside = unsafe {
        [
            world.operation().effect(&done).get_address(next, heap, back, LEN - 7, 8),
            context.operation().effect(&done).get_address(next, heap, &into, LEN - 7, 8),
        ]
    };
    assert!(outside.iter().all(|outcome| matches!(outcome, Err(Error::OutOfBounds { .. }))), "{outside:?}");
    assert_eq!(done.value(), 0, "no event of what was not done");
    Ok(())
}

/// What the world puts, gets and changes by address, and each event of it. `meet` waits until all ranks have come so far, and orders
/// nothing.
pub(super) fn by_world(world: &World, meet: &dyn Fn(usize) -> Result<()>) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let (places, back, bell) = (Places::new(world)?, world.segment(LEN)?, world.bell()?);
    let all = places.all(world)?;
    for (step, place) in all.iter().enumerate() {
        let (kind, to) = (place.kind, place.there[next]);
        let (source, effect, called, done) = (Counter::new(), Counter::new(), Counter::new(), Completion::new());
        let mine = pattern(me + 10 * step);
        for (i, part) in mine.chunks(LEN / PARTS).enumerate() {
            let mut part = part.to_vec();
            let count = called.clone();
            let hear = Event::call(move |outcome| outcome.map_or((), |()| count.add(1)));
            let put = world.operation().source(&source).effect(&effect).handled(&bell).effect(&done).effect(hear);
            // SAFETY: memory that all ranks touch as atomics, and nobody else meanwhile.
            unsafe { put.put_address(next, to + i * (LEN / PARTS), &part) }?;
            part.fill(0);
            assert_eq!(source.value(), i as u64 + 1, "{kind}: copied, so the source may be changed at once");
        }
        world.wait_counter(&effect, PARTS as u64)?;
        // Nothing but the events says that it is in effect.
        meet(step)?;
        assert!(place.bytes() == pattern(before + 10 * step), "{kind}");
        world.wait_completion(&done)?;
        world.wait_counter(&called, PARTS as u64)?;
        assert!(bell.wait((step + 1) as u64 * PARTS as u64)? == (step + 1) as u64 * PARTS as u64, "{kind}");
        back.write(0, &[0; LEN])?;
        let got = Counter::new();
        // SAFETY: as above.
        unsafe { world.operation().effect(&got).get_address(next, to + 3, &back, 5, LEN - 10) }?;
        world.wait_counter(&got, 1)?;
        let mut came = vec![0; LEN];
        back.read(0, &mut came)?;
        assert!(came[5..LEN - 5] == mine[3..LEN - 7] && came[..5] == [0; 5] && came[LEN - 5..] == [0; 5], "{kind}");
        world.barrier()?;
        change(world, &places, place)?;
    }
    refuse(world, &back, all[0].there[next])?;
    world.barrier()?;
    places.close()?;
    back.close()?;
    world.barrier()
}

/// What a context puts, gets and changes by address.
fn by_context(world: &World, through: &Through) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let (places, back) = (Places::new(world)?, world.segment(LEN)?);
    let (context, into) = (world.context()?, back.for_threads());
    let all = places.all(world)?;
    let (plain, registered) = all.split_last().expect("four");
    // Between ranks of a simulated node the kernel copies nothing.
    let attaches = world.receipt().iter().any(|(_, text)| text.contains("cross-memory attach"));
    let is_mapped = |rank: usize| places.heap.ptr(rank).is_some();
    let needs_message = |outcome: &Result<()>| match outcome {
        Err(Error::InvalidArgument { why, .. }) => why.contains("calls of World"),
        _ => false,
    };
    for (step, place) in registered.iter().enumerate() {
        let (kind, to, mine) = (place.kind, place.there[next], pattern(me + 10 * step));
        let (effect, got, found) = (Counter::new(), Counter::new(), Counter::new());
        // SAFETY: memory that all ranks touch as atomics, and nobody else meanwhile.
        let put = unsafe { context.operation().effect(&effect).put_address(next, to, &mine[..1000]) };
        let reached = !needs_message(&put);
        if reached {
            put?;
            context.wait_counter(&effect, 1)?;
            // SAFETY: as above.
            unsafe { context.put_address(next, to + 1000, &mine[1000..]) }?;
            context.flush(next)?;
        }
        let by_kernel = kind == "segment of the program's memory" && is_mapped(next) && n > 1;
        assert_eq!(reached, !by_kernel || attaches, "{kind}");
        // Nothing but the event and the flush says that it is in effect.
        through.pass(step);
        through.await_all(world, step, n)?;
        let there = place.bytes();
        let is_there = there == pattern(before + 10 * step);
        assert_eq!(is_there, world.allgather(&[u8::from(reached)])?[before] == 1, "{kind}");
        let clear = || (0..3).for_each(|i| place.word(i).store(0, Ordering::Relaxed));
        if !reached {
            world.barrier()?;
            clear();
            world.barrier()?;
            world.barrier()?;
            continue;
        }
        // SAFETY: as above.
        unsafe { context.operation().effect(&got).get_address(next, to + 3, &into, 0, 2000) }?;
        let mut rest = vec![0; LEN - 2003];
        // SAFETY: as above.
        unsafe { context.get_address(next, to + 2003, &mut rest) }?;
        context.wait_counter(&got, 1)?;
        let mut came = vec![0; 2000];
        back.read(0, &mut came)?;
        assert!(came == mine[3..2003] && rest == mine[2003..], "{kind}");
        world.barrier()?;
        clear();
        world.barrier()?;
        // SAFETY: words that all ranks change by atomics alone.
        match unsafe { context.operation().effect(&found).fetch_address(AtomicOp::Add, next, to, 1u64) } {
            Err(Error::InvalidArgument { why, .. }) if kind != "heap" => {
                assert!(why.contains("World::fetch_address"), "{why}")
            }
            ticket => {
                let ticket = ticket?;
                let swap = context.operation().effect(&found);
                // SAFETY: as above.
                let swap = unsafe { swap.compare_swap_address(next, to + 20, 0u32, me as u32 + 7) }?;
                context.wait_counter(&found, 2)?;
                assert_eq!((ticket.value(), swap.value()), (Some(0), Some(0)), "{kind}");
                // SAFETY: as above.
                let before = unsafe { context.compare_swap_address(next, to + 20, me as u32 + 7, 9u32) }?;
                // SAFETY: as above.
                let ticket = unsafe { context.fetch_address(AtomicOp::Add, next, to, 5u64) }?;
                assert_eq!((before, ticket), (me as u32 + 7, 1), "{kind}");
                let mut word = [0; 8];
                // SAFETY: as above.
                unsafe { context.get_address(next, to, &mut word) }?;
                assert_eq!(u64::from_ne_bytes(word), 6, "{kind}");
            }
        }
        world.barrier()?;
    }
    // Where a message would have to carry it, a context says so.
    let mut came = [0; 64];
    // SAFETY: as above.
    let reached = unsafe {
        context.put_address(next, plain.there[next], &pattern(me)[..64]).and_then(|()| {
            context.flush(next)?;
            context.get_address(next, plain.there[next], &mut came)
        })
    };
    match is_mapped(next) && attaches {
        true => assert!(reached.is_ok() && came[..] == pattern(me)[..64], "{reached:?}"),
        false => assert!(needs_message(&reached), "{reached:?}"),
    }
    // SAFETY: nothing is changed.
    let refused = unsafe { context.fetch_address(AtomicOp::Add, next, plain.there[next], 1u64) };
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    world.barrier()?;
    places.close()?;
    back.close()
}

fn by_world_through(world: &World, through: &Through) -> Result<()> {
    by_world(world, &|step| {
        through.pass(step);
        through.await_all(world, step, world.size())
    })
}

#[test]
fn operations_by_address_tell_of_their_events() {
    everywhere("events by address", Through::default, by_world_through);
    // Where the kernel copies nothing between ranks.
    let mut settings = bellwether_runtime::Settings::default();
    settings.cross_memory_attach = false;
    let through = Through::default();
    let results = threads(3, Transport::Auto).settings(settings).run(|world| by_world_through(world, &through));
    results.expect("ranks start").into_iter().for_each(|result| result.expect("is well"));
}

/// The device's atomics are not atomic to the processor's, so those of the owner's node mates go by the device, too.
#[test]
fn atomics_by_address_have_one_home() {
    check("atomics by address beside a device", 2, |seed| {
        for program in [by_world_through, by_context] {
            let (through, config) =
                (Through::default(), Config { memory: Memory::Posted, ..Config::new(5, seed).wild() });
            let job = Simulated::new(config.shared_nodes(&[2]));
            let results = job.run(|world| program(world, &through)).expect("the job runs");
            results.into_iter().for_each(|result| result.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
        }
    });
}

#[test]
fn contexts_reach_memory_by_address() {
    everywhere("contexts by address", Through::default, by_context);
}
