//! The same tallies where ranks die meanwhile: the batches of the dead are done again.
//!
//! Batches are done in rounds. In a round each living rank follows the particles of its batches and counts them in memory of its own.
//! Then the ranks add up their counts, and agree on which ranks live and whether all of these have the sum. If so, every rank adds the
//! sum to its copy of the tallies. If not, the batches of the dead are given to the others, which keep their counts. So a death
//! costs the dead rank's part of one round, and no rank is special.

use bellwether::{Error, Result, Sum, Team, World};

use super::{BATCH, Slab, Tallies};

/// Batches of a round, for each rank. Chosen: a round takes some ten milliseconds.
const ROUND: u64 = 32;
/// The flag for [`World::agree_surviving`]: this rank has the sum.
const HAS_SUM: u64 = 1;

/// As [`super::run`], in a world that was started to survive. Also gives the team of the ranks that live. Collective over them.
///
/// # Errors
/// Errors other than the death of a rank.
pub fn run(
    world: &World,
    slab: &Slab,
    particles: u64,
    bins: usize,
    seed: u64,
    mut progress: impl FnMut(u64),
) -> Result<(Team, Tallies)> {
    let batches = particles.div_ceil(BATCH);
    let mut team = world.survivors()?;
    let mut total = vec![0; bins + 3];
    let mut first = 0;
    while first < batches {
        let last = batches.min(first + ROUND * team.size() as u64);
        progress(first * BATCH);
        // The rank in the world that does each batch of this round.
        let mut owners = vec![None; (last - first) as usize];
        let mut mine = vec![0; bins + 3];
        loop {
            // The batches that have no owner, or whose owner has died, are dealt out in turn.
            let open = owners
                .iter_mut()
                .enumerate()
                .filter(|(_, owner)| owner.is_none_or(|rank| team.team_rank(rank).is_none()));
            for (turn, (batch, owner)) in open.enumerate() {
                let rank = team.world_rank(turn % team.size())?;
                *owner = Some(rank);
                if rank == world.rank() {
                    let start = (first + batch as u64) * BATCH;
                    let end = particles.min(start + BATCH);
                    (start..end).for_each(|number| slab.count(seed, number, &mut mine));
                }
            }
            let mut sums = mine.clone();
            let has_sum = match team.allreduce(&mut sums, Sum) {
                Ok(()) => HAS_SUM,
                Err(Error::PeerLost { .. }) => 0,
                Err(error) => return Err(error),
            };
            let (living, all_have) = world.agree_surviving(has_sum)?;
            team = living;
            if all_have & HAS_SUM != 0 {
                total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
                break;
            }
        }
        first = last;
    }
    Ok((team, Tallies::of(total, bins)))
}
