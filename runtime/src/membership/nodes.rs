//! Which node each rank runs on, as whoever started the job knows it.

use std::sync::Arc;

/// The node of each rank, numbered from 0 in the order of the ranks. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Nodes {
    of: Option<Arc<[u32]>>,
    /// The highest number.
    last: u32,
}

impl Nodes {
    /// Ranks `0..ranks` one node after the other: so many on each, from the first size again after the last, and on the last
    /// node what is left. Without sizes all are on one; a size of 0 counts as 1.
    pub fn in_turn(ranks: usize, sizes: &[usize]) -> Nodes {
        if sizes.is_empty() {
            return Nodes::default();
        }
        let of =
            sizes.iter().cycle().enumerate().flat_map(|(node, size)| vec![node as u32; (*size).clamp(1, ranks.max(1))]);
        Nodes::of_each(of.take(ranks).collect())
    }

    /// The node of each rank, by its number; nodes are numbered from 0 in the order of their first ranks.
    pub fn of_each(nodes: Vec<u32>) -> Nodes {
        let last = nodes.iter().copied().max().unwrap_or(0);
        Nodes { of: (last != 0).then(|| nodes.into()), last }
    }

    /// The node of a rank. Without ranks on other nodes it is 0, for every number.
    #[inline]
    pub fn of(&self, rank: usize) -> usize {
        self.of.as_ref().and_then(|nodes| nodes.get(rank)).map_or(0, |node| *node as usize)
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.last as usize + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_fill_one_node_after_the_other() {
        let nodes = |ranks, sizes: &[usize]| {
            let nodes = Nodes::in_turn(ranks, sizes);
            let of: Vec<usize> = (0..ranks).map(|rank| nodes.of(rank)).collect();
            assert_eq!(nodes.count(), of.last().map_or(1, |last| last + 1));
            of
        };
        assert_eq!(nodes(5, &[]), [0; 5]);
        assert_eq!(nodes(5, &[2]), [0, 0, 1, 1, 2]);
        assert_eq!(nodes(7, &[3, 1]), [0, 0, 0, 1, 2, 2, 2]);
        assert_eq!(nodes(3, &[0]), [0, 1, 2]);
        assert_eq!(nodes(3, &[usize::MAX]), [0; 3]);
        // By turns, as a launcher may place them.
        assert_eq!(Nodes::of_each(vec![0, 1, 0]).count(), 2);
        assert_eq!(Nodes::of_each(vec![0, 0]).count(), 1);
    }
}
