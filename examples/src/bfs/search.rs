//! Direction-switching breadth-first search (Beamer, Asanovic and Patterson, 2012).
//!
//! *Top-down*: each rank takes its vertices of the frontier and examines all their neighbours. A neighbour on another rank is
//! pushed to it together with the vertex that would be its parent; pushed items travel together ([`Push`]). The owner takes the
//! first parent that comes.
//!
//! *Bottom-up*: the frontier is distributed as a bitmap by an allgather, and each rank searches a parent for each of its
//! unreached vertices, up to the first one it finds. That examines far fewer edges when most of the graph is in the frontier.
//!
//! In both directions only a vertex's owner writes its parent. The parent depends on timing; the level does not.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bellwether::aggregate::{Options, Push};
use bellwether::{GlobalArray, Result, World};

use super::graph::{self, Graph};

/// Parent and level of an unreached vertex.
pub const NONE: u32 = u32::MAX;

/// Unreached vertices whose first neighbours are loaded before any of them is looked at: loads that do not wait for each other.
const BATCH: usize = 32;

/// Direction in which edges are examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the frontier to its neighbours.
    TopDown,
    /// From unreached vertices to the frontier.
    BottomUp,
}

/// When to switch.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// Go bottom-up if edges(frontier) > edges(unreached) / alpha. 0: never.
    pub alpha: f64,
    /// Go top-down again if the frontier has fewer than vertices / beta vertices.
    pub beta: f64,
}

/// The record of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How the next level was searched.
    pub direction: Direction,
    /// Vertices of this level.
    pub frontier: u64,
    /// Edges examined for the next one.
    pub examined: u64,
}

/// The result of a search.
pub struct Tree {
    /// The parent of each vertex, itself for the root.
    pub parents: GlobalArray<u32, 1>,
    /// The level of each vertex, 0 for the root.
    pub levels: GlobalArray<u32, 1>,
    /// The records of all levels, in order; the same on every rank.
    pub steps: Vec<Step>,
    /// Edges among reached vertices, each counted once.
    pub edges: u64,
    /// How long the search took.
    pub time: Duration,
}

/// Finds everything that can be reached from `root`, level by level. Collective.
///
/// # Errors
/// Out of memory, or a rank was lost.
pub fn search(world: &World, graph: &Graph, root: usize, switch: Switch) -> Result<Tree> {
    let mut levels = GlobalArray::new(world, graph.layout(world)?)?;
    let mut parents = GlobalArray::new(world, graph.layout(world)?)?;
    levels.fill(NONE);
    parents.fill(NONE);
    let mut search = Search::new(world, graph)?;
    let mut frontier = search.begin(root);
    let mut unreached = graph.own.clone().map(|vertex| graph.degree(vertex)).sum::<u64>();
    let (mut steps, mut edges, mut examined) = (Vec::<Step>::new(), 0, 0);
    world.barrier()?;
    let start = world.elapsed();
    loop {
        let level = steps.len() as u32;
        let own_levels = levels.local_mut();
        let mut frontier_edges = 0;
        for vertex in &frontier {
            own_levels[*vertex as usize - graph.own.start] = level;
            frontier_edges += graph.degree(*vertex as usize);
        }
        unreached -= frontier_edges;
        let mut sums = [frontier.len() as u64, frontier_edges, unreached, examined];
        world.allreduce_sum(&mut sums)?;
        let [found, found_edges, unreached_edges, all_examined] = sums;
        if let Some(last) = steps.last_mut() {
            last.examined = all_examined;
        }
        if found == 0 {
            break;
        }
        edges += found_edges;
        let direction = choose(switch, graph.vertices, &steps, [found, found_edges, unreached_edges]);
        examined = match direction {
            Direction::TopDown => search.top_down(&frontier)?,
            Direction::BottomUp => search.bottom_up(&frontier, levels.local())?,
        };
        search.next(&mut frontier);
        // The number of edges that all ranks have examined comes with the next sums.
        steps.push(Step { direction, frontier: found, examined: 0 });
    }
    parents.local_mut().copy_from_slice(&search.reached.borrow().parents);
    let time = world.elapsed() - start;
    Ok(Tree { parents, levels, steps, edges: edges / 2, time })
}

/// The direction for a frontier of `frontier` vertices and `edges` edges, with `unreached` edges at vertices that are not reached yet.
fn choose(switch: Switch, vertices: usize, steps: &[Step], [frontier, edges, unreached]: [u64; 3]) -> Direction {
    let large = frontier as f64 >= vertices as f64 / switch.beta;
    let up = match steps.last() {
        Some(Step { direction: Direction::BottomUp, .. }) => large,
        // A frontier that shrinks is near the end, where bottom-up would examine many edges for few vertices.
        last => {
            let grows = last.is_none_or(|last| frontier > last.frontier);
            grows && edges as f64 * switch.alpha > unreached as f64
        }
    };
    if up { Direction::BottomUp } else { Direction::TopDown }
}

/// The state of a rank's own vertices.
struct Reached {
    /// The first own vertex.
    first: usize,
    /// The parent of each, or [`NONE`].
    parents: Vec<u32>,
    /// Those of the next level, in the order they were found in. It has room for all: handlers allocate nothing.
    next: Vec<u32>,
}

impl Reached {
    /// Takes `parent`, if the vertex has none yet.
    #[inline]
    fn reach(&mut self, vertex: u32, parent: u32) {
        let known = &mut self.parents[vertex as usize - self.first];
        if *known == NONE {
            *known = parent;
            self.next.push(vertex);
        }
    }
}

/// A search on one rank.
struct Search<'a> {
    world: &'a World,
    graph: &'a Graph,
    /// Shared with the function that takes the items that other ranks push. Not borrowed where this rank pushes or waits.
    reached: Rc<RefCell<Reached>>,
    /// Vertices of other ranks, each with the parent it would have.
    claims: Push<'a, [u32; 2]>,
    block: usize,
}

impl<'a> Search<'a> {
    fn new(world: &'a World, graph: &'a Graph) -> Result<Search<'a>> {
        let own = graph.own.len();
        let reached = Reached { first: graph.own.start, parents: vec![NONE; own], next: room(own) };
        let reached = Rc::new(RefCell::new(reached));
        let taken = Rc::clone(&reached);
        let take = move |[vertex, parent]: [u32; 2]| taken.borrow_mut().reach(vertex, parent);
        let claims = Push::new(world, &Options::new(world), take)?;
        Ok(Search { world, graph, reached, claims, block: graph::block(graph.vertices, world.size()) })
    }

    /// The first frontier.
    fn begin(&self, root: usize) -> Vec<u32> {
        let mut frontier = room(self.graph.own.len());
        if self.graph.own.contains(&root) {
            self.reached.borrow_mut().reach(root as u32, root as u32);
            self.next(&mut frontier);
        }
        frontier
    }

    /// Returns the number of edges examined. Collective.
    fn top_down(&mut self, frontier: &[u32]) -> Result<u64> {
        let own = &self.graph.own;
        let mut examined = 0;
        for from in frontier {
            let neighbours = self.graph.neighbours(*from as usize);
            examined += neighbours.len() as u64;
            // They are in order, so those of this rank lie together.
            let before = |end: usize| neighbours.partition_point(|to| (*to as usize) < end);
            let mine = before(own.start)..before(own.end);
            let mut reached = self.reached.borrow_mut();
            neighbours[mine.clone()].iter().for_each(|to| reached.reach(*to, *from));
            drop(reached);
            for to in neighbours[..mine.start].iter().chain(&neighbours[mine.end..]) {
                self.claims.push(*to as usize / self.block, [*to, *from])?;
            }
        }
        self.claims.finish()?;
        Ok(examined)
    }

    /// Returns the number of edges examined. `levels` are those of this rank's vertices. Collective.
    fn bottom_up(&mut self, frontier: &[u32], levels: &[u32]) -> Result<u64> {
        let own = &self.graph.own;
        let mut bits = vec![0_u64; self.block / 64];
        for vertex in frontier {
            let at = *vertex as usize - own.start;
            bits[at / 64] |= 1 << (at % 64);
        }
        // All blocks have whole words, so that they make one bitmap together.
        let bits = self.world.allgather(&bits)?;
        let mut reached = self.reached.borrow_mut();
        let mut examined = 0;
        let mut batch = [(0, 0); BATCH];
        let mut unreached = own.clone().zip(levels).filter(|(_, level)| **level == NONE).map(|(vertex, _)| vertex);
        loop {
            let mut count = 0;
            for (place, vertex) in batch.iter_mut().zip(&mut unreached) {
                *place = (vertex, self.graph.neighbours(vertex).first().map_or(0, |first| *first));
                count += 1;
            }
            for (vertex, first) in &batch[..count] {
                let neighbours = self.graph.neighbours(*vertex);
                let in_frontier = |to: &u32| bits[*to as usize / 64] >> (to % 64) & 1 == 1;
                let found = match neighbours {
                    [_, ..] if in_frontier(first) => Some(0),
                    _ => neighbours.iter().position(in_frontier),
                };
                examined += found.map_or(neighbours.len(), |at| at + 1) as u64;
                if let Some(at) = found {
                    reached.reach(*vertex as u32, neighbours[at]);
                }
            }
            if count < BATCH {
                return Ok(examined);
            }
        }
    }

    /// This rank's vertices of the next level, in the place of those of this one. No rank pushes for the level after it before
    /// all ranks have met again.
    fn next(&self, frontier: &mut Vec<u32>) {
        frontier.clear();
        std::mem::swap(frontier, &mut self.reached.borrow_mut().next);
    }
}

/// An empty vector with room for `count` vertices. Its memory has been written to, so that the search causes no page faults.
fn room(count: usize) -> Vec<u32> {
    let mut room = vec![NONE; count];
    room.clear();
    room
}
