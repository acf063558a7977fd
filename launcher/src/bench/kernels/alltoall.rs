//! All-to-all over the team of all ranks.

use bellwether::Team;
use bellwether_runtime::{Alltoall, Collectives, Result};

use super::allreduce::Bare;
use super::opaque;
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// `size` bytes from each rank for each, beside bare copies and flags: with the algorithm that the team chooses, and with each of
/// the two that a user can force on one node.
///
/// # Errors
/// Those of the runtime.
pub fn alltoall(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let ways = [
        ("alltoall", Alltoall::Auto),
        ("alltoall-direct", Alltoall::Direct),
        ("alltoall-pairwise", Alltoall::Pairwise),
    ];
    ways.into_iter().map(|(name, way)| Ok(Measured { name: name.into(), ..by(session, size, way)? })).collect()
}

fn by(session: &Session, size: usize, way: Alltoall) -> Result<Measured> {
    let world = &session.world;
    let team = Team::world(world)?;
    team.set_algorithms(Collectives { alltoall: way, ..Collectives::default() });
    let len = size / size_of::<f64>();
    let values = vec![world.rank() as f64; len * world.size()];
    // Pairwise takes a step for each rank, one after the other: fewer operations of more ranks.
    let operations = session.operations((4000 / world.size()).clamp(1, 1000), 16 << 20, size * world.size());
    let ours = |n| {
        (0..n).try_for_each(|_| {
            opaque(team.alltoall(&values)?[0].to_bits());
            Ok(())
        })
    };
    if !session.mapped {
        return session.alternate(operations, ours, |_| Ok(()));
    }
    let (mut bare, mut into) = (Bare::new(world, len, len)?, values.clone());
    let measured = session.alternate(operations, ours, |n| {
        (0..n).for_each(|_| bare.exchange(&values, &mut into));
        opaque(into[0].to_bits());
        Ok(())
    })?;
    Ok(measured)
}
