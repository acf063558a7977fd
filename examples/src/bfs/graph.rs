//! A graph whose vertices are dealt out to the ranks in blocks, each with its neighbours.

use std::ops::Range;

use bellwether::array::Distribution;
use bellwether::{Layout, Result, World};

/// An edge, from the first vertex to the second. A graph has each edge in both directions.
pub type Edge = [u32; 2];

/// Blocks of vertices are a multiple of this, so that a set of vertices, one bit each, is cut between words.
const WORD: usize = 64;

/// This rank's vertices of a graph, and all their edges.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Vertices of the whole graph, at least one.
    pub vertices: usize,
    /// Edges of the whole graph, each counted once.
    pub edges: u64,
    /// The vertices of this rank.
    pub own: Range<usize>,
    /// Where each own vertex' neighbours begin in `neighbours`, and their number at the end.
    starts: Vec<usize>,
    neighbours: Vec<u32>,
}

/// How many vertices each rank has. The last ranks may have fewer.
pub fn block(vertices: usize, ranks: usize) -> usize {
    vertices.div_ceil(ranks).next_multiple_of(WORD)
}

impl Graph {
    /// Sends every edge to the rank that has its first vertex. Each rank gives some edges, in any order; loops and repeated
    /// edges are left out. Collective: all give the same number of vertices.
    ///
    /// # Errors
    /// Out of memory, or a rank was lost.
    pub fn spread(world: &World, vertices: usize, mut edges: Vec<Edge>) -> Result<Graph> {
        let (rank, ranks, block) = (world.rank(), world.size(), block(vertices, world.size()));
        edges.retain(|[from, to]| from != to);
        edges.sort_unstable();
        edges.dedup();
        let own = |rank: usize| (rank * block).min(vertices)..((rank + 1) * block).min(vertices);
        let place = |vertex: usize| edges.partition_point(|[from, _]| (*from as usize) < vertex);
        let parts: Vec<Range<usize>> = (0..ranks).map(own).map(|own| place(own.start)..place(own.end)).collect();
        let mut counts: Vec<u64> = parts.iter().map(|part| part.len() as u64).collect();
        world.allreduce(&mut counts, |a, b| a + b)?;

        // Each rank reserves room in the inbox of another rank by a fetch-and-add on the number of elements taken there.
        let inbox = world.alloc::<Edge>(counts.iter().max().map_or(0, |most| *most as usize))?;
        let taken = world.alloc::<u64>(1)?;
        for to in (0..ranks).map(|step| (rank + step) % ranks) {
            let part = &edges[parts[to].clone()];
            let at = taken.fetch_add(to, 0, part.len() as u64)?;
            inbox.put_slice(to, at as usize, part)?;
        }
        world.barrier()?;
        let mut mine = vec![[0; 2]; counts[rank] as usize];
        inbox.read(0, &mut mine);
        mine.sort_unstable();
        mine.dedup();

        let mut total = [mine.len() as u64];
        world.allreduce_sum(&mut total)?;
        let own = own(rank);
        let starts = (own.start..=own.end).map(|v| mine.partition_point(|[from, _]| (*from as usize) < v)).collect();
        let neighbours = mine.into_iter().map(|[_, to]| to).collect();
        Ok(Graph { vertices, edges: total[0] / 2, own, starts, neighbours })
    }

    /// The neighbours of one of this rank's vertices, in order.
    ///
    /// # Panics
    /// If it is another rank's.
    pub fn neighbours(&self, vertex: usize) -> &[u32] {
        let at = vertex - self.own.start;
        &self.neighbours[self.starts[at]..self.starts[at + 1]]
    }

    /// How many neighbours one of this rank's vertices has.
    ///
    /// # Panics
    /// As [`Graph::neighbours`].
    pub fn degree(&self, vertex: usize) -> u64 {
        self.neighbours(vertex).len() as u64
    }

    /// The layout of an array with an element for each vertex, at the rank that has it.
    ///
    /// # Errors
    /// The world has other ranks than the graph was spread over.
    pub fn layout(&self, world: &World) -> Result<Layout<1>> {
        let block = block(self.vertices, world.size());
        Layout::new([self.vertices], [Distribution::BlockCyclic(block)], world.size())
    }

    /// The vertex with most neighbours, the first one of several. Collective.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn hub(&self, world: &World) -> Result<usize> {
        let mine = self.own.clone().map(|vertex| [self.degree(vertex), !(vertex as u64)]).max().unwrap_or([0, 0]);
        let mut best = [mine];
        world.allreduce(&mut best, |a, b| a.max(b))?;
        Ok(!best[0][1] as usize)
    }
}
