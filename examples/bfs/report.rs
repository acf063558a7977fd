//! The lines that `bfs` prints at the end.

use std::time::Duration;

use anyhow::anyhow;
use bellwether::array::Shared;
use bellwether::{GlobalArray, World};
use bellwether_examples::bfs::graph::Graph;
use bellwether_examples::bfs::search::{Direction, Step};
use bellwether_examples::bfs::serial;
use bellwether_examples::bfs::validate::Violations;
use bellwether_examples::job::Failure;
use bellwether_examples::progress::seconds;
use bellwether_examples::random::digest;
use bellwether_examples::say;

use crate::Source;

/// The results of the search.
pub struct Found<'a> {
    pub graph: &'a Graph,
    pub root: usize,
    pub steps: &'a [Step],
    /// Edges among reached vertices.
    pub edges: u64,
    pub time: Duration,
    pub violations: Violations,
    pub levels: &'a GlobalArray<u32, 1, Shared>,
}

/// Prints the results, and whether they are right.
pub fn tell(world: &World, source: Source, found: &Found<'_>, check: bool) -> Result<(), Failure> {
    let Found { graph, root, steps, .. } = *found;
    let name = match &source {
        Source::File { name, .. } => name.clone(),
        Source::Generated(rmat) => format!("R-MAT of scale {}", rmat.scale),
    };
    let ranks = world.size();
    let plural = if ranks == 1 { "" } else { "s" };
    say!("graph     {name}: {} vertices, {} edges, {ranks} rank{plural}", graph.vertices, graph.edges);
    say!("{:>7}  {:>10}  {:>12}  {:>14}", "level", "direction", "frontier", "edges examined at");
    for (level, step) in steps.iter().enumerate() {
        let direction = match step.direction {
            Direction::TopDown => "top-down",
            Direction::BottomUp => "bottom-up",
        };
        say!("{level:>7}  {direction:>10}  {:>12}  {:>14}", step.frontier, step.examined);
    }
    let reached = steps.iter().map(|step| step.frontier).sum::<u64>();
    let (last, unreached) = (steps.len().saturating_sub(1), graph.vertices as u64 - reached);
    say!("reached   {reached} vertices from vertex {root}, up to level {last}; {unreached} not reached");
    let examined = steps.iter().map(|step| step.examined).sum::<u64>();
    let rate = found.edges as f64 / found.time.as_secs_f64() / 1e6;
    say!("searched  {} edges in {}: {rate:.1} million edges per second", found.edges, seconds(found.time));
    let part = examined as f64 / (2 * found.edges).max(1) as f64;
    say!("          examined at {examined} ends of edges, {:.0} % of all that were reached", 100.0 * part);

    if found.violations != Violations::default() {
        return Err(failed(format!("no breadth-first tree: {:?}", found.violations)));
    }
    let levels = found.levels.get_patch(0..graph.vertices)?;
    if check {
        let (vertices, edges) = match source {
            Source::File { vertices, edges, .. } => (vertices, edges),
            Source::Generated(rmat) => (rmat.vertices(), rmat.edges(0..rmat.drawn())),
        };
        let expected = serial::levels(vertices, edges, root);
        let differ = levels.iter().zip(&expected).filter(|(a, b)| a != b).count();
        if differ > 0 {
            return Err(failed(format!("{differ} vertices have another level than in the serial search")));
        }
    }
    say!("verified  a breadth-first tree{}", if check { "; levels as in the serial search" } else { "" });
    say!("answer    levels {:016x}", digest((0..).zip(levels.into_iter().map(u64::from))));
    Ok(())
}

fn failed(why: String) -> Failure {
    Failure::Running(anyhow!("check failed: {why}"))
}
