//! A million numbers over all ranks, and their sum.

use bellwether::World;
use bellwether::array::{GlobalArray, Layout};

fn main() -> bellwether::Result<()> {
    let world = World::start()?;

    // A million numbers, in blocks; each rank fills its own.
    let layout = Layout::block([1_000_000], world.size())?;
    let mut x = GlobalArray::from_fn(&world, layout, |[i]| i as f64)?;

    // This rank's part is a slice that nobody else can touch.
    for value in x.local_mut() {
        *value = 1.0 / (1.0 + *value);
    }
    let sum = x.sum(&world)?; // the same on every rank

    // Shared, any rank reads any element.
    let x = x.share(&world)?;
    let last = x.get(999_999)?;
    if world.rank() == 0 {
        println!("sum {sum:.6}, last {last:e}");
    }
    world.finish()
}
