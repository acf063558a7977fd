//! Calls that find room take no time.

use bellwether_runtime::{Result, Symmetric, World};

/// Rank 0 puts to rank 1, whose table of segments it has not fetched yet: the puts answer while virtual time stands still, and are in
/// effect in time.
pub fn first_puts_take_no_time(world: &World) -> Result<()> {
    /// More than are put without a copy where a call may wait.
    const LONG: usize = 64 << 10;
    let numbers: Symmetric<u64> = world.alloc(LONG + 1)?;
    let done = world.bell()?;
    world.barrier()?;
    if world.rank() == 0 {
        let values = vec![7; LONG];
        let before = world.elapsed();
        // All of it is kept, since nothing else is.
        numbers.try_put_slice(1, 0, &values)?;
        assert_eq!(world.elapsed(), before, "nothing has happened meanwhile");
        numbers.put(1, LONG, 5)?;
        world.fence();
        done.ring(1)?;
    } else {
        done.wait(1)?;
        assert_eq!((numbers.load(0), numbers.load(LONG - 1), numbers.load(LONG)), (7, 7, 5));
    }
    world.barrier()
}
