//! The symmetric heap by the number of its segment, 0. Static data, number 1, is in `tests/tests/stopped.rs`: it takes processes.

use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::transport::{AtomicOp, Memory};
use bellwether_runtime::{Completion, Error, Result, Simulated, Symmetric, Transport, World};

use super::{everywhere, threads};

const LEN: usize = 500;

fn words(from: usize, len: usize) -> Vec<u8> {
    (0..len as u64).flat_map(|i| (1000 * (from as u64 + 1) + i).to_ne_bytes()).collect()
}

/// Safe calls name no reserved segment, also while another part of the program reaches them.
fn refuse(world: &World, next: usize, at: usize) -> Result<()> {
    let (context, own) = (world.context()?, world.segment(64)?);
    for number in [0, 1] {
        let none = |outcome: Result<()>, way: &str| {
            assert!(matches!(outcome, Err(Error::NoSegment { .. })), "{way} of segment {number}: {outcome:?}");
        };
        for rank in [world.rank(), next] {
            none(world.put_segment(rank, number, at, &[1]), "put");
            none(world.get_segment(rank, number, at, &mut [1]), "get");
            none(world.notify_segment(rank, number, at, 1u64), "notify");
            none(world.fetch_segment(AtomicOp::Add, rank, number, at, 1u64).map(drop), "atomic");
            none(world.operation().put_segment(rank, number, at, &[1]), "put with events");
            none(world.operation().get_segment(rank, number, at, &own, 0, 8), "get with events");
            let atomic = world.operation().fetch_segment(AtomicOp::Add, rank, number, at, 1u64);
            none(atomic.map(drop), "atomic with events");
            none(context.put_segment(rank, number, at, &[1]), "put of a context");
            none(context.get_segment(rank, number, at, &mut [1]), "get of a context");
            none(context.get_segment_into((rank, number, at), &own.for_threads(), 0, 8), "get of a context");
            none(context.notify_segment(rank, number, at, 1u64), "notify of a context");
            none(context.fetch_segment(AtomicOp::Add, rank, number, at, 1u64).map(drop), "atomic of a context");
        }
    }
    own.close()
}

/// Puts and gets of the heap by its number: by a context, and with events.
fn by_context_and_with_events(world: &World, numbers: &Symmetric<u64>, next: usize, before: usize) -> Result<()> {
    let (me, at, none) = (world.rank(), numbers.segment_offset(0), vec![0; LEN]);
    let (context, into) = (world.context()?, world.segment(8 * LEN)?);
    // SAFETY: all accesses are to `numbers`, of which any bits are valid.
    let (reserved, by_context) = unsafe { (world.reserved_segments(), context.reserved_segments()) };
    let mut came = vec![0; 8 * LEN];
    for way in ["context", "events"] {
        numbers.write(0, &none);
        world.barrier()?;
        let done = Completion::new();
        if way == "context" {
            by_context.put(next, 0, at, &words(me, LEN))?;
            context.flush(next)?;
        } else {
            world.operation().effect(&done).put_reserved(&reserved, next, 0, at, &words(me, LEN))?;
            world.wait_completion(&done)?;
        }
        world.barrier()?;
        assert!((0..LEN).all(|i| numbers.load(i) == 1000 * (before as u64 + 1) + i as u64), "put by {way}");
        came.fill(0);
        if way == "context" {
            by_context.get(next, 0, at, &mut came)?;
        } else {
            let got = Completion::new();
            world.operation().effect(&got).get_reserved(&reserved, (next, 0, at), &into, 0, 8 * LEN)?;
            world.wait_completion(&got)?;
            into.read(0, &mut came)?;
        }
        assert!(came == words(me, LEN), "get by {way}");
        world.barrier()?;
    }
    let missing = [by_context.put(next, 1, 0, &[1]), by_context.get(next, 2, 0, &mut [1])];
    assert!(missing.iter().all(|outcome| matches!(outcome, Err(Error::NoSegment { .. }))), "{missing:?}");
    let beyond = [by_context.put(next, 0, 1 << 40, &[1]), by_context.get(next, 0, usize::MAX - 3, &mut [1; 8])];
    assert!(beyond.iter().all(|outcome| matches!(outcome, Err(Error::OutOfBounds { .. }))), "{beyond:?}");
    let skewed = by_context.fetch(AtomicOp::Add, next, 0, at + 4, 1u64);
    assert!(matches!(skewed, Err(Error::Misaligned { .. })), "{skewed:?}");
    into.close()
}

fn heap(world: &World, _: &()) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let numbers = world.alloc::<u64>(LEN)?;
    let at = numbers.segment_offset(0);
    assert_eq!(numbers.segment_offset(LEN), at + 8 * LEN);
    // SAFETY: all accesses are to `numbers`, of which any bits are valid.
    let reserved = unsafe { world.reserved_segments() };
    refuse(world, next, at)?;
    for number in [1, 2, u32::MAX] {
        let missing = reserved.put(next, number, 0, &[1]);
        assert!(matches!(missing, Err(Error::NoSegment { .. })), "static data is not symmetric here: {missing:?}");
    }
    for beyond in [usize::MAX - 3, 1 << 40] {
        let outcomes = [reserved.put(next, 0, beyond, &[1; 8]), reserved.get(next, 0, beyond, &mut [1; 8])];
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::OutOfBounds { .. }))), "{outcomes:?}");
    }
    let skewed = reserved.fetch(AtomicOp::Add, next, 0, at + 4, 1u64);
    assert!(matches!(skewed, Err(Error::Misaligned { .. })), "{skewed:?}");
    world.barrier()?;

    let mine = words(me, LEN);
    reserved.put(next, 0, at, &mine[..8])?;
    reserved.put(next, 0, at + 8, &mine[8..])?;
    world.fence();
    world.barrier()?;
    for i in 0..LEN {
        assert_eq!(numbers.load(i), 1000 * (before as u64 + 1) + i as u64, "word {i}");
    }
    world.barrier()?;
    let mut came = vec![0; 8 * LEN - 8];
    reserved.get(next, 0, at + 8, &mut came)?;
    assert!(came == mine[8..]);
    reserved.get(me, 0, at, &mut came[..8])?;
    assert!(came[..8] == words(before, 1));
    world.barrier()?;

    by_context_and_with_events(world, &numbers, next, before)?;

    // Atomic to those of the array.
    numbers.store(3, 0);
    world.barrier()?;
    let (mut tickets, at3, context) = (Vec::new(), numbers.segment_offset(3), world.context()?);
    // SAFETY: as above.
    let by_context = unsafe { context.reserved_segments() };
    for i in 0..10 {
        tickets.push(match i % 4 {
            0 => numbers.fetch_add(0, 3, 1)?,
            1 => reserved.fetch(AtomicOp::Add, 0, 0, at3, 1u64)?,
            2 => by_context.fetch(AtomicOp::Add, 0, 0, at3, 1u64)?,
            _ => {
                let add = Completion::new();
                let operation = world.operation().effect(&add);
                let found = operation.fetch_reserved(AtomicOp::Add, &reserved, (0, 0, at3), 1u64)?;
                world.wait_completion(&add)?;
                found.value().expect("it is in effect")
            }
        });
    }
    world.barrier()?;
    let mut all = world.allgather(&[<[u64; 10]>::try_from(tickets).expect("ten")])?.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..10 * n as u64), "each adds to what the one before left");
    if me == 1 {
        let total = 10 * n as u64;
        assert_eq!(reserved.compare_swap(0, 0, at3, 1, 2u64)?, total);
        assert_eq!(reserved.compare_swap(0, 0, at3, total, 3u64)?, total);
        assert_eq!(by_context.compare_swap(0, 0, at3, 1, 4u64)?, 3);
        assert_eq!(by_context.compare_swap(0, 0, at3, 3, 5u64)?, 3);
        for (expected, new) in [(3, 6u64), (5, 2)] {
            let swapped = Completion::new();
            let operation = world.operation().effect(&swapped);
            let found = operation.compare_swap_reserved(&reserved, (0, 0, at3), expected, new)?;
            world.wait_completion(&swapped)?;
            assert_eq!(found.value(), Some(5));
        }
    }
    world.barrier()?;
    assert!(me != 0 || n == 1 || numbers.load(3) == 2);
    world.barrier()
}

#[test]
fn the_heap_is_segment_zero() {
    everywhere("the heap by its number", || (), heap);
    // The device's atomics are not atomic to the processor's, so those of the owner's node mates go by the device, too.
    check("the heap by its number beside a device", 2, |seed| {
        let config = Config { memory: Memory::Posted, ..Config::new(5, seed).wild() }.shared_nodes(&[2]);
        let results = Simulated::new(config).run(|world| heap(world, &())).expect("the job runs");
        results.into_iter().for_each(|result| result.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
    });
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn the_heap_is_segment_zero_over_rdma() {
    let results = threads(2, Transport::Verbs).run(|world| heap(world, &())).expect("ranks start");
    results.into_iter().for_each(|result| result.expect("is well"));
}
