//! The barrier of all ranks.

use std::sync::atomic::Ordering;

use bellwether_runtime::Result;

use super::{LINE, spin_until, word};
use crate::bench::rank::Session;
use crate::bench::task::Measured;

/// Our barrier, beside flags that are stored and spun on in the same pattern: for two ranks one exchange.
///
/// # Errors
/// Of the runtime.
pub fn barrier(session: &Session, _: usize) -> Result<Vec<Measured>> {
    Ok(vec![session.in_places(|| barrier_here(session))?])
}

fn barrier_here(session: &Session) -> Result<Measured> {
    let world = &session.world;
    let (rank, ranks) = (world.rank(), world.size());
    let rounds = ranks.next_power_of_two().ilog2() as usize;
    let flags = world.alloc::<u64>(rounds * LINE)?;
    let mut epoch = 0u64;
    session.alternate(
        session.operations(2000, usize::MAX, 1),
        |n| (0..n).try_for_each(|_| world.barrier()),
        |n| {
            for _ in 0..n {
                epoch += 1;
                for round in 0..rounds {
                    let partner = (rank + (1 << round)) % ranks;
                    word(&flags, partner, round * LINE).store(epoch, Ordering::Release);
                    let own = word(&flags, rank, round * LINE);
                    // The partner may be one barrier ahead.
                    spin_until(|| own.load(Ordering::Acquire) >= epoch);
                }
            }
            Ok(())
        },
    )
}
