//! Direction-switching breadth-first search (Beamer, Asanovic and Patterson, 2012).
//!
//! *Top-down*: each rank takes its vertices of the frontier and examines all their neighbours, on whatever rank. The rank
//! whose one-sided compare-and-swap sets the parent of an unreached vertex appends that vertex to its owner's queue: a
//! fetch-and-add takes a place, a put fills it. The owner does nothing for this.
//!
//! *Bottom-up*: the frontier is distributed as a bitmap by an allgather, and each rank searches a parent for each of its
//! unreached vertices, up to the first one it finds. That examines far fewer edges when most of the graph is in the frontier.
//!
//! A vertex's parent depends on timing; its level does not.

use std::time::Duration;

use bellwether::array::Shared;
use bellwether::{GlobalArray, Result, Symmetric, World};

use super::graph::{self, Graph};

/// Parent and level of an unreached vertex.
pub const NONE: u32 = u32::MAX;

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

/// What happened at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How the next level was searched.
    pub direction: Direction,
    /// Vertices of this level.
    pub frontier: u64,
    /// Edges examined for the next one.
    pub examined: u64,
}

/// What a search has found.
pub struct Tree {
    /// The parent of each vertex, itself for the root.
    pub parents: GlobalArray<u32, 1>,
    /// The level of each vertex, 0 for the root.
    pub levels: GlobalArray<u32, 1>,
    /// What happened, level by level; the same on every rank.
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
    levels.fill(NONE);
    let search = Search::new(world, graph)?;
    let mut frontier = search.begin(root)?;
    let mut unreached = graph.own.clone().map(|vertex| graph.degree(vertex)).sum::<u64>();
    let (mut steps, mut edges) = (Vec::<Step>::new(), 0);
    world.barrier()?;
    let start = world.elapsed();
    loop {
        let level = steps.len() as u32;
        let mut frontier_edges = 0;
        for vertex in &frontier {
            levels.local_mut()[*vertex as usize - graph.own.start] = level;
            frontier_edges += graph.degree(*vertex as usize);
        }
        unreached -= frontier_edges;
        let mut sums = [frontier.len() as u64, frontier_edges, unreached];
        world.allreduce_sum(&mut sums)?;
        if sums[0] == 0 {
            break;
        }
        edges += sums[1];
        let direction = choose(switch, graph.vertices, &steps, sums);
        let examined = match direction {
            Direction::TopDown => search.top_down(&frontier)?,
            Direction::BottomUp => search.bottom_up(&frontier, levels.local())?,
        };
        let mut examined = [examined];
        world.allreduce_sum(&mut examined)?;
        frontier = search.next()?;
        steps.push(Step { direction, frontier: sums[0], examined: examined[0] });
    }
    let time = world.elapsed() - start;
    Ok(Tree { parents: search.parents.localize(world)?, levels, steps, edges: edges / 2, time })
}

/// The direction for a frontier of so many vertices and edges, with so many edges at vertices that are not reached yet.
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

/// What the ranks share while they search.
struct Search<'a> {
    world: &'a World,
    graph: &'a Graph,
    parents: GlobalArray<u32, 1, Shared>,
    /// Each rank's vertices of the next level, in the order they were found in.
    queue: Symmetric<u32>,
    /// How many there are.
    queued: Symmetric<u64>,
    block: usize,
}

impl<'a> Search<'a> {
    fn new(world: &'a World, graph: &'a Graph) -> Result<Search<'a>> {
        let mut parents = GlobalArray::new(world, graph.layout(world)?)?;
        parents.fill(NONE);
        let block = graph::block(graph.vertices, world.size());
        let (queue, queued) = (world.alloc(block)?, world.alloc(1)?);
        Ok(Search { world, graph, parents: parents.share(world)?, queue, queued, block })
    }

    /// The first frontier.
    fn begin(&self, root: usize) -> Result<Vec<u32>> {
        if !self.graph.own.contains(&root) {
            return Ok(Vec::new());
        }
        self.parents.put(root, root as u32)?;
        Ok(vec![root as u32])
    }

    /// Returns the number of edges examined.
    fn top_down(&self, frontier: &[u32]) -> Result<u64> {
        let mut examined = 0;
        for from in frontier {
            for to in self.graph.neighbours(*from as usize) {
                examined += 1;
                let vertex = *to as usize;
                // Most have been reached already, and a get is cheaper than a compare-and-swap.
                if self.parents.get(vertex)? == NONE && self.parents.compare_swap(vertex, NONE, *from)? == NONE {
                    self.append(vertex)?;
                }
            }
        }
        Ok(examined)
    }

    /// Appends a vertex to its owner's queue.
    fn append(&self, vertex: usize) -> Result<()> {
        let owner = vertex / self.block;
        let place = self.queued.fetch_add(owner, 0, 1)?;
        self.queue.put(owner, place as usize, vertex as u32)
    }

    /// Returns the number of edges examined. `levels` are those of this rank's vertices.
    fn bottom_up(&self, frontier: &[u32], levels: &[u32]) -> Result<u64> {
        let own = &self.graph.own;
        let mut bits = vec![0_u64; self.block / 64];
        for vertex in frontier {
            let at = *vertex as usize - own.start;
            bits[at / 64] |= 1 << (at % 64);
        }
        // All blocks have whole words, so that they make one bitmap together.
        let bits = self.world.allgather(&bits)?;
        let mut examined = 0;
        for vertex in own.clone().filter(|vertex| levels[*vertex - own.start] == NONE) {
            for to in self.graph.neighbours(vertex) {
                examined += 1;
                if bits[*to as usize / 64] >> (to % 64) & 1 == 1 {
                    self.parents.put(vertex, *to)?;
                    self.append(vertex)?;
                    break;
                }
            }
        }
        Ok(examined)
    }

    /// This rank's vertices of the next level. Collective.
    fn next(&self) -> Result<Vec<u32>> {
        // What has been appended is there after this.
        self.world.barrier()?;
        let mut frontier = vec![0; self.queued.load(0) as usize];
        self.queue.read(0, &mut frontier);
        self.queued.store(0, 0);
        // Nobody appends for the level after the next before all have emptied their queues.
        self.world.barrier()?;
        Ok(frontier)
    }
}
