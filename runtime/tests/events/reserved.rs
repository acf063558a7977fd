//! The symmetric heap by the number of its segment, 0. Static data, number 1, is in `tests/tests/stopped.rs`: it takes processes.

use bellwether_runtime::transport::AtomicOp;
use bellwether_runtime::{Counter, Error, Result, Transport, World};

use super::{everywhere, threads};

const LEN: usize = 500;

/// What one operation needs: the target, the segment and the offset.
type At = (usize, u32, usize);

fn words(from: usize, len: usize) -> Vec<u8> {
    (0..len as u64).flat_map(|i| (1000 * (from as u64 + 1) + i).to_ne_bytes()).collect()
}

/// Each operation on `LEN` words of the next rank, of which `read` gives the own ones: `at` is where the next rank has them.
fn all_operations(world: &World, (next, number, at): At, read: impl Fn(usize) -> u64) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let before = (me + n - 1) % n;
    let context = world.context()?;
    let (back, done) = (world.segment(8 * LEN)?, Counter::new());
    let mine = words(me, LEN);

    // Each third is put in another way.
    let (third, part) = (8 * (LEN / 3), |i: usize| &mine[i * 8 * (LEN / 3)..(i + 1) * 8 * (LEN / 3)]);
    world.put_segment(next, number, at, part(0))?;
    world.operation().effect(&done).put_segment(next, number, at + third, part(1))?;
    context.put_segment(next, number, at + 2 * third, part(2))?;
    world.wait_counter(&done, 1)?;
    context.flush_all()?;
    world.fence();
    world.barrier()?;
    for i in 0..3 * (LEN / 3) {
        assert_eq!(read(i), 1000 * (before as u64 + 1) + i as u64, "word {i}");
    }
    world.barrier()?;

    let (mut came, mut lent) = (vec![0; third], vec![0; third]);
    world.get_segment(next, number, at, &mut came)?;
    assert!(came == part(0));
    context.get_segment(next, number, at + 2 * third, &mut came)?;
    assert!(came == part(2));
    world.operation().effect(&done).get_segment(next, number, at + third, &back, 8, third)?;
    world.wait_counter(&done, 2)?;
    back.read(8, &mut lent)?;
    assert!(lent == part(1));
    context.get_segment_into((next, number, at + 8), &back.for_threads(), 16, third - 8)?;
    context.flush_all()?;
    back.read(16, &mut lent[..third - 8])?;
    assert!(lent[..third - 8] == part(0)[8..]);
    world.barrier()?;

    // A counter at rank 0, which all change in three ways.
    let counter = at + 8 * (LEN - 1);
    let mut tickets = vec![world.fetch_segment(AtomicOp::Add, 0, number, counter, 1u64)?];
    let by_event = world.operation().effect(&done).fetch_segment(AtomicOp::Add, 0, number, counter, 1u64)?;
    world.wait_counter(&done, 3)?;
    tickets.extend(by_event.value());
    match context.fetch_segment(AtomicOp::Add, 0, number, counter, 1u64) {
        // Where only the owner changes that word.
        Err(Error::InvalidArgument { .. }) => {
            tickets.push(world.fetch_segment(AtomicOp::Add, 0, number, counter, 1u64)?)
        }
        ticket => tickets.push(ticket?),
    }
    let mut all = world.allgather(&[<[u64; 3]>::try_from(tickets).expect("three")])?.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..3 * n as u64), "each adds to what the one before left");
    world.barrier()?;

    // A word that is seen after what was put before it.
    let flag = at + 8 * (LEN - 2);
    world.put_segment(next, number, at, &[7; 64])?;
    world.notify_segment(next, number, flag, 1u64)?;
    world.wait_until(|| read(LEN - 2) == 1)?;
    assert_eq!(read(7), u64::from_ne_bytes([7; 8]));
    world.barrier()?;
    context.put_segment(next, number, at, &[8; 64])?;
    context.notify_segment(next, number, flag, 2u64)?;
    world.wait_until(|| read(LEN - 2) == 2)?;
    assert_eq!(read(7), u64::from_ne_bytes([8; 8]));
    let bell = world.bell()?;
    world.put_segment_bell(next, number, at, &[9; 64], &bell)?;
    bell.wait(1)?;
    assert_eq!(read(0), u64::from_ne_bytes([9; 8]));
    world.barrier()?;
    back.close()
}

fn heap(world: &World, _: &()) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let next = (me + 1) % n;
    let numbers = world.alloc::<u64>(LEN)?;
    let at = numbers.segment_offset(0);
    assert_eq!(numbers.segment_offset(LEN), at + 8 * LEN);
    let context = world.context()?;
    let none = |outcome: Result<()>| assert!(matches!(outcome, Err(Error::NoSegment { number: 0, .. })), "{outcome:?}");
    none(world.put_segment(next, 0, at, &[1]));
    none(world.get_segment(next, 0, at, &mut [1]));
    none(context.put_segment(next, 0, at, &[1]));
    none(context.fetch_segment(AtomicOp::Add, next, 0, at, 1u64).map(drop));
    none(world.fetch_segment(AtomicOp::Add, next, 0, at, 1u64).map(drop));
    // SAFETY: all accesses to segment 0 are to `numbers`, of which any bits are valid.
    unsafe { world.allow_reserved_segments() };
    let missing = world.put_segment(next, 1, 0, &[1]);
    assert!(matches!(missing, Err(Error::NoSegment { number: 1, .. })), "static data is not symmetric here");
    for beyond in [usize::MAX - 3, 1 << 40] {
        let outcomes = [world.put_segment(next, 0, beyond, &[1; 8]), context.put_segment(next, 0, beyond, &[1; 8])];
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::OutOfBounds { .. }))), "{outcomes:?}");
    }
    let skewed = [
        world.fetch_segment(AtomicOp::Add, next, 0, at + 4, 1u64),
        context.fetch_segment(AtomicOp::Add, next, 0, at + 4, 1u64),
    ];
    assert!(skewed.iter().all(|outcome| matches!(outcome, Err(Error::Misaligned { .. }))), "{skewed:?}");
    all_operations(world, (next, 0, at), |i| numbers.load(i))?;
    // Atomic to those of the array.
    let total: u64 = 10 * n as u64;
    world.barrier()?;
    numbers.store(3, 0);
    world.barrier()?;
    for i in 0..10 {
        match i % 2 {
            0 => numbers.fetch_add(0, 3, 1).map(drop)?,
            _ => world.fetch_segment(AtomicOp::Add, 0, 0, numbers.segment_offset(3), 1u64).map(drop)?,
        }
    }
    world.barrier()?;
    assert!(me != 0 || numbers.load(3) == total);
    world.barrier()
}

#[test]
fn the_heap_is_segment_zero() {
    everywhere("the heap by its number", || (), heap);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn the_heap_is_segment_zero_over_rdma() {
    let results = threads(2, Transport::Verbs).run(|world| heap(world, &())).expect("ranks start");
    results.into_iter().for_each(|result| result.expect("is well"));
}
