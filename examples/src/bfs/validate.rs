//! Checks that the result of a search is a breadth-first tree, by the rules of the Graph500 benchmark.

use bellwether::array::{Local, Shared};
use bellwether::{GlobalArray, Result, World};

use super::graph::Graph;
use super::search::NONE;

/// Violations of each rule, summed over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// Reached vertices that are not one level below their parent, whose parent is no neighbour, or that have only one of
    /// parent and level; or a root that is not its own parent, or is not alone at level 0.
    pub parents: u64,
    /// Edges that join levels more than one apart. Each is counted at both ends.
    pub edges: u64,
    /// Edges that join a reached and an unreached vertex. Each is counted at both ends.
    pub borders: u64,
}

/// Checks every vertex and every edge, and fetches the levels of other ranks' vertices with one-sided gets. Returns the
/// violations, and the levels again. Collective.
///
/// # Errors
/// A rank was lost.
pub fn validate(
    world: &World,
    graph: &Graph,
    root: usize,
    parents: &GlobalArray<u32, 1>,
    levels: GlobalArray<u32, 1>,
) -> Result<(Violations, GlobalArray<u32, 1, Shared>)> {
    let own_levels = levels.local().to_vec();
    let levels = levels.share(world)?;
    let mut found = [0_u64; 3];
    for ([vertex], parent) in own_pairs(parents) {
        let level = own_levels[vertex - graph.own.start];
        let neighbours = graph.neighbours(vertex);
        let right = match (level, parent) {
            (NONE, NONE) => true,
            (0, parent) => vertex == root && parent as usize == root,
            (NONE, _) | (_, NONE) => false,
            (level, parent) => neighbours.binary_search(&parent).is_ok() && levels.get(parent as usize)? == level - 1,
        };
        found[0] += u64::from(!right);
        for neighbour in neighbours {
            let other = levels.get(*neighbour as usize)?;
            if (other == NONE) != (level == NONE) {
                found[2] += 1;
            } else if level.abs_diff(other) > 1 {
                found[1] += 1;
            }
        }
    }
    world.allreduce_sum(&mut found)?;
    Ok((Violations { parents: found[0], edges: found[1], borders: found[2] }, levels))
}

fn own_pairs(parents: &GlobalArray<u32, 1, Local>) -> impl Iterator<Item = ([usize; 1], u32)> + '_ {
    parents.iter().map(|(index, parent)| (index, *parent))
}
