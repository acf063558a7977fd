//! Allreduce over the team of all ranks.

use bellwether::{Sum, Team};
use bellwether_runtime::Result;

use super::opaque;
use crate::bench::rank::Session;
use crate::bench::task::Measured;

/// Sums of `size` bytes of f64, beside what they need at least: each rank's values copied out to shared memory and the
/// others' in, and added; without any meeting.
///
/// # Errors
/// Of the runtime.
pub fn allreduce(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let world = &session.world;
    let team = Team::world(world)?;
    let len = size / size_of::<f64>();
    let shared = world.alloc::<f64>(len)?;
    // Zeros, so that they stay small.
    let (mut values, mut theirs, mut sums) = (vec![0.0f64; len], vec![0.0; len], vec![0.0; len]);
    let operations = session.operations(2000, 16 << 20, size);
    let measured = session.alternate(
        operations,
        |n| (0..n).try_for_each(|_| team.allreduce(&mut values, Sum)),
        |n| {
            for _ in 0..n {
                shared.put_slice(world.rank(), 0, &sums)?;
                for other in (0..world.size()).filter(|other| *other != world.rank()) {
                    shared.get_slice(other, 0, &mut theirs)?;
                    sums.iter_mut().zip(&theirs).for_each(|(sum, other)| *sum += other);
                }
                opaque(sums[0].to_bits());
            }
            Ok(())
        },
    )?;
    Ok(vec![measured])
}
