//! Which way items go.

/// The way of items from rank to rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Route {
    /// One hop up to 64 ranks, two above: first to the rank of the same node in the owner's column, then to the owner's node, so
    /// that an item leaves its node once. On a single node, on nodes with different numbers of ranks, and where nodes are so
    /// many that the second hop would have hundreds of targets, by a square grid.
    #[default]
    Auto,
    /// Straight to the owner: a buffer for each rank.
    OneHop,
    /// Over a rank in the sender's row and the owner's column of a grid: about 2√n buffers at each of n ranks, and every item
    /// is sent twice. Ranks of a row are neighbours, as ranks of a node are, so with as many columns as a node has ranks the
    /// items that a node's ranks have for one other node leave it in common messages.
    TwoHops {
        /// Columns of the grid; `None`: ⌈√n⌉.
        columns: Option<usize>,
    },
}

/// Most ranks for which [`Route::Auto`] is one hop.
const DIRECT: usize = 64;
/// Most nodes that make a row of the grid each.
const ROWS: usize = 256;

/// One rank's place in the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    rank: usize,
    ranks: usize,
    /// As many as ranks: every item goes straight.
    columns: usize,
}

impl Grid {
    /// The place of `rank` among `ranks`; `node`: how many ranks each node has, where it matters.
    pub(super) fn new(rank: usize, ranks: usize, route: Route, node: Option<usize>) -> Grid {
        let square = || (1..=ranks).find(|side| side * side >= ranks).unwrap_or(1);
        let columns = match route {
            Route::OneHop => ranks,
            Route::Auto if ranks <= DIRECT => ranks,
            Route::Auto => node.filter(|node| *node > 1 && ranks.div_ceil(*node) <= ROWS).unwrap_or_else(square),
            Route::TwoHops { columns } => columns.unwrap_or_else(square).clamp(1, ranks),
        };
        Grid { rank, ranks, columns }
    }

    pub(super) fn rank(self) -> usize {
        self.rank
    }

    /// The rank over which items for `to` go: `to` itself if it is in the same row or column.
    #[inline(always)]
    pub(super) fn via(self, to: usize) -> usize {
        if self.columns >= self.ranks {
            return to;
        }
        let (row, column) = (self.rank / self.columns, self.rank % self.columns);
        let (to_row, to_column) = (to / self.columns, to % self.columns);
        if row == to_row || column == to_column {
            return to;
        }
        // The last row may be short. From there go up first: every other row has all columns.
        match row * self.columns + to_column {
            via if via < self.ranks => via,
            _ => to_row * self.columns + column,
        }
    }

    /// Whether items take one hop only.
    pub(super) fn is_direct(self) -> bool {
        self.columns >= self.ranks
    }

    /// The number of a rank that this one sends to directly, among those.
    #[inline(always)]
    pub(super) fn slot(self, peer: usize) -> usize {
        match (self.is_direct(), peer / self.columns == self.rank / self.columns) {
            (true, _) => peer,
            (_, true) => peer % self.columns,
            _ => self.columns + peer / self.columns,
        }
    }

    /// One more than the highest [`Grid::slot`].
    pub(super) fn slots(self) -> usize {
        if self.is_direct() { self.ranks } else { self.columns + self.ranks.div_ceil(self.columns) }
    }

    /// Most ranks that this one sends to directly.
    pub(super) fn peers(self) -> usize {
        if self.is_direct() {
            return self.ranks - 1;
        }
        self.columns - 1 + self.ranks.div_ceil(self.columns) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rank_is_two_hops_away_and_peers_are_few() {
        for ranks in [1, 2, 3, 5, 7, 12, 16, 17, 31, 64, 65, 101, 1000] {
            for columns in [None, Some(1), Some(2), Some(5), Some(ranks)] {
                let grid = |rank| Grid::new(rank, ranks, Route::TwoHops { columns }, None);
                let mut peers = vec![BTreeSet::new(); ranks];
                for from in 0..ranks {
                    for to in (0..ranks).filter(|to| *to != from) {
                        let via = grid(from).via(to);
                        assert!(via < ranks && via != from, "{from} to {to} of {ranks} by {columns:?}");
                        assert_eq!(grid(via).via(to), to);
                        peers[from].insert(via);
                        if via != to {
                            peers[via].insert(to);
                        }
                    }
                }
                for (rank, peers) in peers.iter().enumerate() {
                    let slots: BTreeSet<_> = peers.iter().map(|peer| grid(rank).slot(*peer)).collect();
                    assert!(slots.len() == peers.len() && slots.last() < Some(&grid(rank).slots()));
                    assert!(peers.len() <= grid(rank).peers(), "{rank} of {ranks} by {columns:?}");
                }
            }
        }
        let direct = Grid::new(0, 64, Route::Auto, Some(8));
        assert!(direct.is_direct() && direct.peers() == 63);
        assert_eq!(Grid::new(0, 10_000, Route::Auto, None).peers(), 198);
        // Nodes as rows: one hop within a node, one between nodes.
        let grid = Grid::new(3, 100, Route::Auto, Some(10));
        assert!((10..100).filter(|to| to % 10 != 3).all(|to| grid.via(to) == to % 10));
        assert_eq!(grid.peers(), 9 + 9);
        assert_eq!(Grid::new(0, 10_000, Route::Auto, Some(4)).peers(), 198);
    }
}
