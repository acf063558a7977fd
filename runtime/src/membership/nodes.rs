//! The node of each rank, as the process that started the job knows it.

use std::sync::Arc;

/// The node of each rank, numbered from 0 in the order of the ranks. Clones share it. Takes 8 bytes for each row of neighbours on one
/// node.
#[derive(Debug, Clone, Default)]
pub struct Nodes {
    /// None if all are on one node.
    rows: Arc<[Row]>,
    ranks: usize,
    /// The highest number.
    last: u32,
}

/// The ranks from this one up to the next row are on one node.
#[derive(Debug, Clone, Copy)]
struct Row {
    first: u32,
    node: u32,
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
        Nodes::of_each(&of.take(ranks).collect::<Vec<_>>())
    }

    /// The node of each rank, by its number; nodes are numbered from 0 in the order of their first ranks.
    pub fn of_each(nodes: &[u32]) -> Nodes {
        let last = nodes.iter().copied().max().unwrap_or(0);
        let rows = nodes.chunk_by(|one, next| one == next).scan(0, |next, row| {
            let first = std::mem::replace(next, *next + row.len());
            Some(Row { first: first as u32, node: row[0] })
        });
        Nodes { rows: if last == 0 { Arc::default() } else { rows.collect() }, ranks: nodes.len(), last }
    }

    /// The node of a rank. Without ranks on other nodes it is 0, for every number.
    #[inline]
    pub fn of(&self, rank: usize) -> usize {
        if rank >= self.ranks {
            return 0;
        }
        let behind = self.rows.partition_point(|row| row.first as usize <= rank);
        behind.checked_sub(1).map_or(0, |row| self.rows[row].node as usize)
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
        let dealt = Nodes::of_each(&[0, 1, 0]);
        assert_eq!((dealt.count(), [0, 1, 2, 3].map(|rank| dealt.of(rank))), (2, [0, 1, 0, 0]));
        assert_eq!(Nodes::of_each(&[0, 0]).count(), 1);
    }
}
