//! `bfs`: breadth-first search in a graph that is spread over all ranks.

#![forbid(unsafe_code)]

mod arguments;
mod report;

use std::process::ExitCode;

use arguments::Arguments;
use bellwether::World;
use bellwether_examples::bfs::graph::{Edge, Graph};
use bellwether_examples::bfs::rmat::Rmat;
use bellwether_examples::bfs::search::{Switch, search};
use bellwether_examples::bfs::validate::validate;
use bellwether_examples::cg::problem;
use bellwether_examples::job::{self, Failure};

fn main() -> ExitCode {
    job::main(run)
}

/// Where the graph comes from.
enum Source {
    /// A file, which rank 0 has read.
    File { name: String, vertices: usize, edges: Vec<Edge> },
    /// Any rank can make any edge of this graph.
    Generated(Rmat),
}

fn run(world: &World, arguments: Arguments) -> Result<(), Failure> {
    let source = job::on_root(world, || prepare(&arguments).map_err(Failure::Input))?;
    let graph = spread(world, &arguments, source.as_ref())?;
    let root = match arguments.root {
        Some(root) => root as usize,
        None => graph.hub(world)?,
    };
    let switch = Switch { alpha: arguments.alpha, beta: arguments.beta };
    let tree = search(world, &graph, root, switch)?;
    let (violations, levels) = validate(world, &graph, root, &tree.parents, tree.levels)?;
    let found = report::Found {
        graph: &graph,
        root,
        steps: &tree.steps,
        edges: tree.edges,
        time: tree.time,
        violations,
        levels: &levels,
    };
    job::on_root(world, || match source {
        Some(source) => report::tell(world, source, &found, arguments.check),
        None => Ok(()),
    })?;
    Ok(())
}

/// Reads the graph, if it comes from a file, and makes sure that it has the root.
fn prepare(arguments: &Arguments) -> anyhow::Result<Source> {
    let (source, vertices) = match &arguments.graph {
        Some(path) => {
            let matrix = problem::load_graph(path)?;
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            let row = |row: usize| matrix.row(row).map(move |(column, _)| [row as u32, column]);
            let edges = (0..matrix.rows()).flat_map(row).collect();
            (Source::File { name, vertices: matrix.rows(), edges }, matrix.rows())
        }
        None => {
            let rmat = arguments.rmat();
            (Source::Generated(rmat), rmat.vertices())
        }
    };
    if let Some(root) = arguments.root {
        anyhow::ensure!((root as usize) < vertices, "--root {root}: the graph has vertices 0 to {}", vertices - 1);
    }
    Ok(source)
}

/// Gives each rank its vertices. Collective.
fn spread(world: &World, arguments: &Arguments, source: Option<&Source>) -> Result<Graph, Failure> {
    if arguments.graph.is_none() {
        let rmat = arguments.rmat();
        let own = job::share(world, rmat.drawn() as usize)?;
        return Ok(Graph::spread(world, rmat.vertices(), rmat.edges(own.start as u64..own.end as u64))?);
    }
    let (mut vertices, edges) = match source {
        Some(Source::File { vertices, edges, .. }) => ([*vertices as u64], edges.clone()),
        _ => ([0], Vec::new()),
    };
    world.broadcast(0, &mut vertices)?;
    Ok(Graph::spread(world, vertices[0] as usize, edges)?)
}
