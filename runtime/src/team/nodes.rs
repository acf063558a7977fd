//! A team by nodes: the members of this rank's node as a group of their own, and one member of each node as another. Either is a
//! [`Context`] with a slot of the workspace, so every algorithm runs on it as it is; [`super::by_nodes`] puts them together.

use std::rc::Rc;

use super::context::Context;
use super::hub::Hub;

/// Which members share a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The members on each node, in order; nodes in the order of their first members.
    pub(super) nodes: Vec<Vec<u32>>,
    /// Most members of a node.
    pub(super) most: usize,
    /// Each node's members are a whole subtree of the tree that reductions follow: blocks of the same power of two, the last
    /// one perhaps shorter. Combined on each node, and then between nodes, values are combined along the same tree.
    pub(super) whole: bool,
}

impl Layout {
    /// The layout of members on these nodes. `None` if it brings no gain: one node, or one member on each.
    fn new(node_of: impl ExactSizeIterator<Item = usize>) -> Option<Layout> {
        let members = node_of.len();
        let mut index = std::collections::BTreeMap::new();
        let mut nodes: Vec<Vec<u32>> = Vec::new();
        let mut block = true;
        for (member, node) in node_of.enumerate() {
            let node = *index.entry(node).or_insert_with(|| {
                nodes.push(Vec::new());
                nodes.len() - 1
            });
            // In order, and no node again after another.
            block &= node + 1 == nodes.len();
            nodes[node].push(member as u32);
        }
        let most = nodes.iter().map(Vec::len).max().unwrap_or(0);
        let full = nodes.iter().rev().skip(1).all(|node| node.len() == most);
        let whole = block && full && most.is_power_of_two();
        (nodes.len() > 1 && most > 1 && members > 2).then_some(Layout { nodes, most, whole })
    }
}

/// The groups of a team on several nodes.
pub(super) struct Nodes {
    pub(super) layout: Layout,
    /// Which of the nodes is this rank's.
    pub(super) own: usize,
    /// The members on this rank's node; the first of them is the node's leader.
    pub(super) local: Context,
    /// The leaders, one of each node, in the order of the nodes; at a leader.
    pub(super) leaders: Option<Context>,
}

impl Nodes {
    /// Groups within the team that has `slot`.
    pub(super) fn new(hub: &Rc<Hub>, slot: usize, members: &Rc<[u32]>, rank: usize) -> Option<Nodes> {
        let layout = Layout::new(members.iter().map(|rank| hub.engine.nodes.of(*rank as usize)))?;
        let place = |node: &Vec<u32>| node.iter().position(|member| *member as usize == rank);
        let (own, place) = layout.nodes.iter().enumerate().find_map(|(own, node)| Some((own, place(node)?)))?;
        let group = |level, group: Rc<[u32]>, rank| Context::group(hub, slot, level, [&group, members], rank);
        let local = layout.nodes[own].iter().map(|member| members[*member as usize]).collect();
        let leaders = layout.nodes.iter().map(|node| members[node[0] as usize]).collect();
        let local = group(1, local, place);
        let leaders = (place == 0).then(|| group(2, leaders, own));
        Some(Nodes { layout, own, local, leaders })
    }

    /// The node of a member, and its number there.
    pub(super) fn place(&self, member: usize) -> (usize, usize) {
        let of = |(node, members): (usize, &Vec<u32>)| Some((node, members.binary_search(&(member as u32)).ok()?));
        self.layout.nodes.iter().enumerate().find_map(of).expect("a member is on a node")
    }

    /// Each member, with its place when every node has as much room as the largest needs.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let most = self.layout.most;
        self.layout.nodes.iter().enumerate().flat_map(move |(node, members)| {
            members.iter().enumerate().map(move |(place, member)| (*member as usize, node * most + place))
        })
    }

    /// As many places as that makes.
    pub(super) fn room(&self) -> usize {
        self.layout.nodes.len() * self.layout.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_subtrees_are_known_as_such() {
        let whole = |nodes: &[usize]| Layout::new(nodes.iter().copied()).map(|layout| layout.whole);
        assert_eq!(whole(&[0, 0, 0]), None);
        assert_eq!(whole(&[0, 1, 2]), None);
        for good in [&[0, 0, 1, 1][..], &[0, 0, 1], &[7, 7, 7, 7, 2, 2, 2], &[0, 0, 1, 1, 2, 2]] {
            assert_eq!(whole(good), Some(true), "{good:?}");
        }
        for bad in [&[0, 1, 1][..], &[0, 1, 0], &[0, 0, 0, 1, 1, 1], &[0, 0, 1, 2, 2], &[0, 0, 1, 1, 0]] {
            assert_eq!(whole(bad), Some(false), "{bad:?}");
        }
    }
}
