//! Threads of a rank: puts and gets from them while the world's thread waits.

mod worlds;

use std::rc::Rc;

use bellwether::{Pool, Result, World};
use worlds::everywhere;

fn reach_everyone(world: &World) -> Result<()> {
    const LEN: usize = 24;
    let numbers = Rc::new(world.alloc::<u64>(LEN)?);
    let marks = Rc::new(world.alloc::<u32>(world.size() * LEN)?);
    (0..LEN).for_each(|at| numbers.store(at, (world.rank() * 1000 + at) as u64));
    world.barrier()?;
    for pool in [Pool::new(world)?, Pool::with_threads(world, 3)?] {
        assert!(pool.threads() >= 1);
        let (numbers, marks) = (pool.share(&numbers), pool.share(&marks));
        let (rank, size) = (world.rank(), world.size());
        // Joins within joins, as far as single elements.
        fn sum(range: std::ops::Range<usize>, element: &(impl Fn(usize) -> Result<u64> + Sync)) -> Result<u64> {
            if range.len() == 1 {
                return element(range.start);
            }
            let middle = (range.start + range.end) / 2;
            let (low, high) = rayon::join(|| sum(range.start..middle, element), || sum(middle..range.end, element));
            Ok(low? + high?)
        }
        let total = pool.install(|| {
            sum(0..size * LEN, &|at| {
                marks.put(at / LEN, rank * LEN + at % LEN, 1 + rank as u32)?;
                numbers.get(at / LEN, at % LEN)
            })
        })?;
        let expected: usize = (0..size).map(|rank| (0..LEN).map(|at| rank * 1000 + at).sum::<usize>()).sum();
        assert_eq!(total, expected as u64);
        let error = pool.install(|| numbers.get(size, 0)).expect_err("no such rank").to_string();
        assert!(error.contains(&format!("rank {size} does not exist")), "{error}");
        world.barrier()?;
    }
    for from in 0..world.size() {
        assert!((0..LEN).all(|at| marks.load(from * LEN + at) == 1 + from as u32));
    }
    Ok(())
}

#[test]
fn threads_of_a_rank_reach_other_ranks() {
    everywhere(reach_everyone);
}
