//! The command line of `bfs`.

use std::path::PathBuf;

use bellwether_examples::bfs::rmat::Rmat;
use clap::Parser;

/// Breadth-first search in a graph that is distributed over all ranks.
#[derive(Debug, Parser)]
#[command(name = "bfs", version, after_help = HELP)]
pub struct Arguments {
    /// The graph, a METIS file; a random R-MAT graph if absent
    pub graph: Option<PathBuf>,

    /// The root of the search, counted from 0 [default: the first vertex of the highest degree]
    #[arg(short, long, value_name = "VERTEX")]
    pub root: Option<u32>,

    /// The logarithm to base 2 of the number of vertices of the R-MAT graph
    #[arg(short, long, value_name = "N", default_value_t = 16, conflicts_with = "graph",
          value_parser = clap::value_parser!(u32).range(1..=24))]
    pub scale: u32,

    /// Edges of the R-MAT graph for each vertex
    #[arg(short, long, value_name = "N", default_value_t = 16, conflicts_with = "graph",
          value_parser = clap::value_parser!(u64).range(1..=64))]
    pub edges_per_vertex: u64,

    /// Seed of the R-MAT graph
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "graph")]
    pub seed: u64,

    /// Switch to bottom-up when the frontier has more edges than the unreached vertices have, divided by this; 0: never
    #[arg(long, value_name = "X", default_value_t = 14.0, value_parser = not_negative)]
    pub alpha: f64,

    /// Switch back to top-down when the frontier has fewer vertices than the graph, divided by this
    #[arg(long, value_name = "X", default_value_t = 24.0, value_parser = not_negative)]
    pub beta: f64,

    /// Search on one rank too and compare the level of every vertex
    #[arg(long)]
    pub check: bool,
}

const HELP: &str = "\
The result is always verified: the parent of each reached vertex is a neighbour one level
above, edges join levels at most one apart, and none leads from what was reached to what
was not. Levels are the same for any number of ranks; parents need not be.

Vertices are counted from 0, so line i of a METIS file, the first one not counted, is
vertex i - 1. Debian's package libmetis-doc has three graphs; after
`apt-get install libmetis-doc` they are in /usr/share/doc/libmetis-dev/examples/graphs:
4elt.graph, copter2.graph, mdual.graph.

Examples:
  bellwether run -n 4 --example bfs
  bellwether run -n 4 --example bfs --scale 20 --check
  bellwether run -n 4 --example bfs /usr/share/doc/libmetis-dev/examples/graphs/mdual.graph --root 0

Exit code: 0 success, 1 failure while running, 2 wrong arguments or input.";

impl Arguments {
    /// The graph to generate if there is no file.
    pub fn rmat(&self) -> Rmat {
        Rmat { scale: self.scale, edges_per_vertex: self.edges_per_vertex, seed: self.seed }
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err("expected a number from 0 up".to_owned()) }
}
