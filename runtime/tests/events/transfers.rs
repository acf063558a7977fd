//! Long and short transfers from and to memory of the caller's, by the world and by contexts.

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::{Completion, Counter, Result, Simulated, Transport, World};

use super::{everywhere, threads};

/// Bytes that are registered for the time of a transfer, and some; 8 of them are a word.
const LONG: usize = (300 << 10) / 8;

fn numbers(of: usize, len: usize) -> Vec<u64> {
    (0..len as u64).map(|i| (of as u64 + 1) << 32 | i).collect()
}

/// Every way to move `len` words between two ranks.
fn transfers(world: &World, len: usize) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let (array, back) = (world.alloc::<u64>(len + 3)?, world.alloc::<u64>(len + 3)?);
    let (own, into) = (world.segment_all(8 * len)?, world.segment(8 * len + 5)?);
    let (context, done) = (world.context()?, Counter::new());
    let lent = (array.for_threads(), back.for_threads());
    let mine = numbers(me, len);
    let bytes: Vec<u8> = mine.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let check = |values: &[u64], way: &str| {
        let right = values.iter().zip(numbers(before, len)).filter(|(a, b)| **a == *b).count();
        assert_eq!(right, len, "{way}: words that are right, of {len}");
    };
    let mut came = vec![0; len];
    for way in ["put_slice", "operation", "context", "operation of a context"] {
        let mut values = mine.clone();
        match way {
            "put_slice" => array.put_slice(next, 3, &values)?,
            "operation" => world.operation().source(&done).put(&array, next, 3, &values)?,
            "context" => context.put_slice(&lent.0, next, 3, &values)?,
            _ => context.operation().source(&done).put(&lent.0, next, 3, &values)?,
        }
        values.fill(u64::MAX);
        context.flush_all()?;
        world.fence();
        world.barrier()?;
        array.read(3, &mut came);
        check(&came, way);
        world.barrier()?;
        array.write(3, &vec![0; len]);
        world.barrier()?;
    }
    let mut lent_bytes = bytes.clone();
    context.put_segment(next, own.number(), 0, &lent_bytes)?;
    lent_bytes.fill(0);
    context.flush_all()?;
    world.barrier()?;
    own.read(0, &mut lent_bytes)?;
    let words = lent_bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight")));
    check(&words.collect::<Vec<_>>(), "a context to a segment");
    world.barrier()?;
    array.write(3, &mine);
    own.write(0, &bytes)?;
    world.barrier()?;
    let them = numbers(next, len);
    for way in ["get_slice", "context", "get_into", "get_into of a context", "get_segment", "segment by event"] {
        came.fill(0);
        back.write(3, &came);
        let mut words = vec![0; 8 * len];
        match way {
            "get_slice" => array.get_slice(next, 3, &mut came)?,
            "context" => context.get_slice(&lent.0, next, 3, &mut came)?,
            "get_into" => {
                let got = Completion::new();
                world.operation().effect(&got).get_into(&array, next, 3, &back, 3..len + 3)?;
                world.wait_completion(&got)?;
                back.read(3, &mut came);
            }
            "get_into of a context" => {
                let got = Completion::new();
                context.operation().effect(&got).get_into(&lent.0, next, 3, &lent.1, 3..len + 3)?;
                context.wait_completion(&got)?;
                back.read(3, &mut came);
            }
            "get_segment" => world.get_segment(next, own.number(), 0, &mut words)?,
            _ => {
                let got = Completion::new();
                world.operation().effect(&got).get_segment(next, own.number(), 0, &into, 5, 8 * len)?;
                world.wait_completion(&got)?;
                into.read(5, &mut words)?;
            }
        }
        if way.contains("segment") {
            came = words.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight"))).collect();
        }
        assert!(came == them, "{way}: {} of {len} words", came.iter().zip(&them).filter(|(a, b)| a == b).count());
    }
    // Within the memory of one rank the two ranges may overlap.
    back.write(0, &numbers(9, len + 3));
    let moved = Completion::new();
    world.operation().effect(&moved).get_into(&back, me, 0, &back, 3..len + 3)?;
    world.wait_completion(&moved)?;
    back.read(3, &mut came);
    assert!(came == numbers(9, len));
    back.write(0, &numbers(9, len + 3));
    context.operation().effect(&moved).get_into(&lent.1, me, 0, &lent.1, 3..len + 3)?;
    context.wait_completion(&moved)?;
    back.read(3, &mut came);
    assert!(came == numbers(9, len));
    world.barrier()?;
    own.close()?;
    into.close()
}

#[test]
fn short_memory_arrives_in_each_way() {
    everywhere("short transfers", || (), |world, ()| [1, 700].into_iter().try_for_each(|len| transfers(world, len)));
}

#[test]
fn long_memory_arrives_in_each_way() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let results = threads(2, transport).run(|world| transfers(world, LONG)).expect("ranks start");
        results.into_iter().for_each(|result| result.expect("is well"));
    }
    check("long transfers", 2, |seed| {
        for memory in [Memory::Emulated, Memory::Posted, Memory::Direct] {
            let config = Config { memory, ..Config::new(2, seed).wild() };
            for result in Simulated::new(config).run(|world| transfers(world, LONG)).expect("the job runs") {
                result.unwrap_or_else(|error| panic!("{memory:?}, seed {seed}: {error}"));
            }
        }
    });
}

/// The device reads a long put of a context to a segment from where it is, and has done so when the call returns. A copy is under way then.
#[test]
fn a_long_put_of_a_context_to_a_segment_is_not_copied() {
    check("long puts of contexts", 2, |seed| {
        let config = Config { memory: Memory::Posted, ..Config::new(2, seed).wild() };
        let ranks = Simulated::new(config).run(|world| -> Result<()> {
            let (own, context, other) = (world.segment_all(8 * LONG)?, world.context()?, 1 - world.rank());
            world.barrier()?;
            for (len, is_complete) in [(8 * LONG, true), (100 << 10, false)] {
                context.flush_all()?;
                context.put_segment(other, own.number(), 0, &vec![1; len])?;
                assert_eq!(context.is_complete()?, is_complete, "{len} bytes");
            }
            context.flush_all()?;
            world.barrier()?;
            own.close()
        });
        ranks.expect("the job runs").into_iter().for_each(|rank| rank.expect("is well"));
    });
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn long_and_short_memory_arrives_over_rdma() {
    for len in [1, 700, LONG] {
        let results = threads(2, Transport::Verbs).run(|world| transfers(world, len)).expect("ranks start");
        results.into_iter().for_each(|result| result.expect("is well"));
    }
}
