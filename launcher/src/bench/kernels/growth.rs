//! Benchmarks that run with few ranks and with many, to see how times grow.

use bellwether::Team;
use bellwether_runtime::Result;

use super::barrier::Bare;
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// A barrier, on mapped memory beside the best of the bare ones; the world's allreduce of 8 B, an allocation and an all-to-all of 8 B.
/// Each in batches of its own, in this order.
///
/// # Errors
/// Those of the runtime.
pub fn growth(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let world = &session.world;
    let team = Team::world(world)?;
    let values = vec![world.rank() as u64; world.size()];
    let batches = |name: &str, most, mut one: Box<dyn FnMut() -> Result<()> + '_>| {
        let operations = session.operations(most, usize::MAX, 1);
        let measured = session.alone(operations, |n| (0..n).try_for_each(|_| one()))?;
        Ok(Measured { name: name.into(), ..measured })
    };
    let barrier = if session.mapped {
        let operations = session.operations(1000, usize::MAX, 1);
        let mut bare = Bare::new(session, operations)?;
        let both = session.alternate(operations, |n| (0..n).try_for_each(|_| world.barrier()), |n| bare.meet(n))?;
        Measured { name: "barrier".into(), ..both }
    } else {
        batches("barrier", 1000, Box::new(|| world.barrier()))?
    };
    Ok(vec![
        barrier,
        batches("allreduce", 1000, Box::new(|| world.allreduce_sum(&mut [1.0])))?,
        batches("alloc", 500, Box::new(|| world.alloc::<u64>(1).map(drop)))?,
        batches("alltoall", 150, Box::new(|| team.alltoall(&values).map(drop)))?,
    ])
}
