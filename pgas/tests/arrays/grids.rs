//! Boxes of indices, and the ranks of a line of a layout's grid.

use bellwether::array::{Layout, Region};
use bellwether::{Result, Sum, Team, World};

use super::support::{everywhere, on_threads, says};

#[test]
fn a_region_gives_its_indices_in_order() {
    for (start, extents) in [([3, 0, 5], [2, 3, 4]), ([0; 3], [1; 3]), ([7, 8, 9], [0, 2, 2]), ([1; 3], [4, 1, 0])] {
        let region = Region { start, extents };
        let mut all = Vec::new();
        for i in region.range(0) {
            for j in region.range(1) {
                all.extend(region.range(2).map(|k| [i, j, k]));
            }
        }
        let mut indices = region.indices();
        for (done, index) in all.iter().enumerate() {
            assert_eq!(indices.len(), all.len() - done);
            assert_eq!(indices.next(), Some(*index));
        }
        assert_eq!((indices.len(), indices.next(), indices.next()), (0, None, None));
        assert_eq!(region.into_iter().collect::<Vec<_>>(), all);
    }
    assert_eq!(Region::from(4..7).indices().collect::<Vec<_>>(), [[4], [5], [6]]);
    let last = Region { start: [usize::MAX - 1], extents: [1] };
    assert_eq!(last.indices().collect::<Vec<_>>(), [[usize::MAX - 1]]);
}

/// Each team has the ranks of one line, in order, and works.
fn lines_of<const D: usize>(world: &World, layout: &Layout<D>) -> Result<()> {
    let all = Team::world(world)?;
    let place = layout.place_of(world.rank());
    for along in 0..D {
        let team = layout.team_along(&all, along)?;
        let line = (0..layout.grid()[along]).map(|at| {
            let mut place = place;
            place[along] = at;
            layout.rank_at(place).expect("a place of the grid")
        });
        let line: Vec<usize> = line.collect();
        assert!(team.world_ranks().eq(line.iter().copied()), "dimension {along} at {place:?}: {layout}");
        assert_eq!(team.rank(), place[along]);
        let mut sum = [world.rank()];
        team.allreduce(&mut sum, Sum)?;
        assert_eq!(sum[0], line.iter().sum::<usize>(), "dimension {along} at {place:?}: {layout}");
    }
    Ok(())
}

#[test]
fn lines_of_a_grid_are_teams() {
    let body = |world: &World| {
        let n = world.size();
        lines_of(world, &Layout::block([9], n)?)?;
        lines_of(world, &Layout::cyclic([9, 9], n)?)?;
        lines_of(world, &Layout::rows([9, 9], n)?)?;
        lines_of(world, &Layout::rows([9, 9], n)?.reversed())?;
        lines_of(world, &Layout::block([9, 9, 9], n)?)
    };
    everywhere("teams of lines", body);
    on_threads("teams of lines", &[4, 6, 8, 12], body);
}

#[test]
fn lines_that_there_are_not_are_told() {
    on_threads("no such line", &[2, 3], |world| {
        let all = Team::world(world)?;
        let layout = Layout::block([9, 9], world.size())?;
        says(layout.team_along(&all, 2), &["team_along", "no dimension 2", "0 to 1"]);
        let other = Layout::block([9, 9], world.size() + 1)?;
        says(other.team_along(&all, 0), &["team_along", "the team has", "the layout is for"]);
        world.barrier()
    });
}
