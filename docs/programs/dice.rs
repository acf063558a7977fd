//! A histogram of two dice, its bins over all ranks.

use bellwether::aggregate::{Aggregator, Options};
use bellwether::{GlobalArray, Layout, World};

fn main() -> bellwether::Result<()> {
    let world = World::start()?;

    // Eleven bins, for the sums of two dice, in blocks over all ranks.
    let mut bins = GlobalArray::<u64, 1>::new(&world, Layout::block([11], world.size())?)?;
    let mut by = Aggregator::new(&world, &Options::new(&world))?;

    // This rank's samples, as the numbers of the bins that they fall into.
    let mut state = world.rank() as u64 + 1;
    let mut die = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % 6
    };
    let samples: Vec<usize> = (0..100_000).map(|_| die() + die()).collect();

    bins.scatter_add(&mut by, &samples, &vec![1; samples.len()])?;
    assert_eq!(bins.sum(&world)?, 100_000 * world.size() as u64);

    for (bin, count) in bins.to_root(&world, 0)?.into_iter().flatten().enumerate() {
        println!("{:2} {count:8} {}", bin + 2, "#".repeat(count as usize / (500 * world.size())));
    }
    world.finish()
}
