//! The search on one rank, as a textbook has it.

use std::collections::VecDeque;

use super::graph::Edge;
use super::search::NONE;

/// The level of each vertex, [`NONE`] if it is not reached from `root`. Edges are given in both directions.
pub fn levels(vertices: usize, mut edges: Vec<Edge>, root: usize) -> Vec<u32> {
    edges.sort_unstable();
    let start = |vertex: usize| edges.partition_point(|[from, _]| (*from as usize) < vertex);
    let mut levels = vec![NONE; vertices];
    levels[root] = 0;
    let mut queue = VecDeque::from([root]);
    while let Some(vertex) = queue.pop_front() {
        for [_, to] in edges[start(vertex)..].iter().take_while(|[from, _]| *from as usize == vertex) {
            if levels[*to as usize] == NONE {
                levels[*to as usize] = levels[vertex] + 1;
                queue.push_back(*to as usize);
            }
        }
    }
    levels
}
