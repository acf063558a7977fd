//! R-MAT graphs (Chakrabarti, Zhan and Faloutsos, 2004), with the parameters of the Graph500 benchmark: a few vertices
//! have very many neighbours, many have none.

use std::ops::Range;

use bellwether::random::Stream;

use super::graph::Edge;
use crate::random::mix;

/// Probabilities of the first three quarters of the adjacency matrix. The fourth has the rest.
const QUARTERS: [f64; 3] = [0.57, 0.19, 0.19];

/// A random graph of `2^scale` vertices.
#[derive(Clone, Copy, Debug)]
pub struct Rmat {
    /// The logarithm of the number of vertices.
    pub scale: u32,
    /// Edges that are drawn for each vertex. The graph leaves out loops and repetitions.
    pub edges_per_vertex: u64,
    /// Another seed gives another graph.
    pub seed: u64,
}

impl Rmat {
    /// The number of vertices.
    pub fn vertices(&self) -> usize {
        1 << self.scale
    }

    /// The number of edges drawn.
    pub fn drawn(&self) -> u64 {
        self.edges_per_vertex << self.scale
    }

    /// Some of the drawn edges, each in both directions.
    pub fn edges(&self, range: Range<u64>) -> Vec<Edge> {
        range.map(|number| self.edge(number)).flat_map(|[from, to]| [[from, to], [to, from]]).collect()
    }

    fn edge(&self, number: u64) -> Edge {
        let mut random = Stream::new(self.seed, number);
        let [mut from, mut to] = [0_u32; 2];
        for _ in 0..self.scale {
            let chance = random.unit();
            let [a, b, c] = QUARTERS;
            let (down, right) = if chance < a {
                (0, 0)
            } else if chance < a + b {
                (0, 1)
            } else if chance < a + b + c {
                (1, 0)
            } else {
                (1, 1)
            };
            (from, to) = (from << 1 | down, to << 1 | right);
        }
        [self.scatter(from), self.scatter(to)]
    }

    /// Renumbers a vertex, so that vertices with many neighbours are not all on rank 0. A bijection.
    fn scatter(&self, vertex: u32) -> u32 {
        let mask = ((1_u64 << self.scale) - 1) as u32;
        let mut vertex = vertex;
        for round in 0..3 {
            // Multiply by an odd number, add a constant, xor high bits into low ones: each step can be undone.
            let odd = mix(self.seed.wrapping_add(round)) as u32 | 1;
            vertex = vertex.wrapping_mul(odd).wrapping_add(odd >> 7) & mask;
            vertex ^= vertex >> self.scale.div_ceil(2).max(1);
        }
        vertex
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattering_loses_no_vertex() {
        for scale in 1..=12 {
            let graph = Rmat { scale, edges_per_vertex: 1, seed: 5 };
            let mut seen: Vec<u32> = (0..1 << scale).map(|vertex| graph.scatter(vertex)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..1 << scale), "scale {scale}");
        }
    }

    #[test]
    fn an_rmat_graph_has_hubs() {
        let graph = Rmat { scale: 10, edges_per_vertex: 16, seed: 1 };
        let mut degrees = vec![0; graph.vertices()];
        graph.edges(0..graph.drawn()).iter().for_each(|[from, _]| degrees[*from as usize] += 1);
        degrees.sort_unstable();
        assert_eq!(degrees.iter().sum::<u64>(), 2 * graph.drawn());
        assert!(degrees[1023] > 10 * 32 && degrees[512] < 32, "{} {}", degrees[1023], degrees[512]);
    }
}
