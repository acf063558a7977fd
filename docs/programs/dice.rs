//! A histogram of two dice, its bins over all ranks.

use bellwether::aggregate::{Aggregator, Options};
use bellwether::random::Stream;
use bellwether::{GlobalArray, Layout, World};

fn main() -> bellwether::Result<()> {
    let world = World::start()?;

    // Eleven bins, for the sums of two dice, in blocks over all ranks.
    let mut bins = GlobalArray::<u64, 1>::new(&world, Layout::block([11], world.size())?)?;
    let mut by = Aggregator::new(&world, &Options::new(&world))?;

    // This rank's samples, as the numbers of the bins that they fall into.
    let mut random = Stream::new(2011, world.rank() as u64);
    let mut die = || random.below(6) as usize;
    let samples: Vec<usize> = (0..100_000).map(|_| die() + die()).collect();

    bins.scatter_add(&mut by, &samples, &vec![1; samples.len()])?;
    assert_eq!(bins.sum(&world)?, 100_000 * world.size() as u64);

    for (bin, count) in bins.to_root(&world, 0)?.into_iter().flatten().enumerate() {
        println!("{:2} {count:8} {}", bin + 2, "#".repeat(count as usize / (500 * world.size())));
    }
    world.finish()
}
