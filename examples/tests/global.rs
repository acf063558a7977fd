//! The examples on global arrays: the same answer on any number of ranks, and with more ranks than there is work for.

#![forbid(unsafe_code)]

mod common;

use bellwether::{Error, Result, World};
use bellwether_examples::bale::{Kernel, chance};
use bellwether_examples::bfs::graph::{Edge, Graph};
use bellwether_examples::bfs::rmat::Rmat;
use bellwether_examples::bfs::search::{Direction, NONE, Step, Switch, search};
use bellwether_examples::bfs::serial;
use bellwether_examples::bfs::validate::{Violations, validate};
use bellwether_examples::cg::metis;
use bellwether_examples::montecarlo::{self, Slab};
use bellwether_examples::nbody::parallel::{self, Method, Plan};
use bellwether_examples::nbody::{Bodies, UNIT, attract};
use bellwether_examples::random::{digest, hash};
use bellwether_examples::samplesort::{self, Keys};
use bellwether_examples::transpose;
use clap::ValueEnum;

use common::{same_everywhere, threads};

#[test]
fn bins_and_reads_are_the_same_everywhere() {
    for (extent, requests) in [(1, 1), (7, 100), (1000, 3000)] {
        let index = |request| (chance(request, 1) % extent as u64) as usize;
        let weight = |request| chance(request, 2) >> 20;
        let added = same_everywhere("histogram", |world| {
            let mut kernel = Kernel::new(world, extent, requests)?;
            let weights: Vec<u64> = kernel.requests.clone().map(weight).collect();
            kernel.add(&weights)?;
            let sum = kernel.checksum()?;
            // Once more, one at a time.
            world.barrier()?;
            kernel.add_singly(&weights, weights.len())?;
            Ok((sum, kernel.checksum()?))
        });
        let mut bins = vec![0; extent];
        (0..requests).for_each(|request| bins[index(request)] += weight(request));
        let sum = |times: u64| {
            bins.iter().enumerate().fold(0, |sum: u64, (bin, weight)| sum.wrapping_add(chance(bin, times * weight)))
        };
        assert_eq!(added, (sum(1), sum(2)), "{requests} samples in {extent} bins");

        let read = same_everywhere("indexgather", |world| {
            let mut kernel = Kernel::new(world, extent, requests)?;
            kernel.set(|index| chance(index, 3))?;
            let mut values = vec![0; kernel.indices.len()];
            kernel.read(&mut values)?;
            assert!(kernel.indices.iter().zip(&values).all(|(index, value)| *value == chance(*index, 3)));
            let mut sum = [values.iter().fold(0, |sum: u64, value| sum.wrapping_add(*value))];
            world.allreduce(&mut sum, u64::wrapping_add)?;
            kernel.read_singly(&mut values, 5)?;
            assert!(kernel.indices.iter().zip(&values).all(|(index, value)| *value == chance(*index, 3)));
            Ok(sum)
        });
        let expected = (0..requests).fold(0, |sum: u64, request| sum.wrapping_add(chance(index(request), 3)));
        assert_eq!(read, [expected], "{requests} reads of {extent} elements");
    }
}

#[test]
fn keys_are_sorted_alike_everywhere() {
    for keys in Keys::value_variants() {
        for count in [1, 2, 5, 1000] {
            let found = same_everywhere("samplesort", |world| {
                let sorted = samplesort::run(world, *keys, count, 7, 2)?;
                assert_eq!(sorted.parts.iter().map(|part| part.keys).sum::<u64>(), count as u64);
                assert_eq!(sorted.times.len(), 2);
                Ok((sorted.digest, sorted.disorder, sorted.permutation))
            });
            assert_eq!(found, (samplesort::serial_digest(*keys, count, 7), 0, true), "{count} keys, {keys:?}");
        }
    }
}

#[test]
fn a_matrix_is_transposed_alike_everywhere() {
    for [rows, columns] in [[1, 1], [1, 9], [9, 1], [3, 2], [64, 33], [100, 70]] {
        let found = same_everywhere("transpose", |world| {
            let found = transpose::run(world, [rows, columns], 2)?;
            Ok((found.digest, found.wrong))
        });
        let places = (0..columns).flat_map(|row| (0..rows).map(move |column| (row, column)));
        let values =
            places.map(|(row, column)| ((row * rows + column) as u64, ((column * columns + row) as f64).to_bits()));
        assert_eq!(found, (digest(values), 0), "{rows} x {columns}");
    }
}

#[test]
fn tallies_are_the_same_integers_everywhere() {
    for (particles, bins, scattering) in [(1, 1, 1.0), (3, 100, 0.5), (2500, 10, 2.0), (2500, 7, 0.0)] {
        let slab = Slab { thickness: 2.0, absorption: 0.6, scattering };
        let found = same_everywhere("montecarlo", |world| {
            let (tallies, followed) = montecarlo::run(world, &slab, particles, bins, 5, |_| ())?;
            assert_eq!(followed.iter().sum::<u64>(), particles);
            Ok(tallies)
        });
        assert_eq!((found.particles(), found.absorbed.len()), (particles, bins));
        if scattering == 0.0 {
            assert_eq!((found.reflected, found.scatterings), (0, 0));
            assert!(montecarlo::deviation(&slab, &found).is_chance());
        }
    }
}

#[test]
fn bodies_move_alike_everywhere_and_by_both_methods() {
    for bodies in [1, 2, 3, 50] {
        let plan = Plan { bodies, steps: 5, time_step: 0.01, seed: 2 };
        let [gathered, passed] = [Method::Allgather, Method::Ring].map(|method| {
            same_everywhere("nbody", |world| {
                let found = parallel::run(world, &plan, method, |_| ())?;
                assert_eq!(found.places.is_some(), world.rank() == 0);
                assert!(found.places.is_none_or(|places| places.len() == bodies));
                assert_eq!(found.pull, [0; 3], "{bodies} bodies");
                Ok((found.digest, found.energy))
            })
        });
        assert_eq!(gathered, passed);

        // The same without any of the ranks' code.
        let mut alone = Bodies::new(bodies, 0..bodies, 2);
        let forces = |alone: &Bodies| {
            let mut sums = vec![[0; 4]; bodies];
            attract(&alone.places, &alone.places, alone.mass, &mut sums);
            sums
        };
        let mut sums = forces(&alone);
        for _ in 0..5 {
            alone.kick(&sums, 0.005);
            alone.drift(0.01);
            sums = forces(&alone);
            alone.kick(&sums, 0.005);
        }
        assert_eq!(gathered.0, alone.digest());
    }
}

#[test]
fn energy_is_kept_better_with_shorter_steps() {
    let drift = |time_step: f64| {
        let steps = (1.0 / time_step).round() as u64;
        let plan = Plan { bodies: 100, steps, time_step, seed: 1 };
        let found = threads(2, "nbody", |world| parallel::run(world, &plan, Method::Ring, |_| ()).unwrap()).remove(0);
        assert!(found.energy[0] as f64 * UNIT < -0.1, "the clusters are bound");
        found.drift()
    };
    let [long, short] = [drift(0.04), drift(0.005)];
    assert!(short < 1e-4 && short < long / 8.0, "{long:e} {short:e}");
}

/// A graph as a list of edges in both directions.
struct Given {
    vertices: usize,
    edges: Vec<Edge>,
}

impl Given {
    fn new(vertices: usize, edges: impl IntoIterator<Item = Edge>) -> Given {
        Given { vertices, edges: edges.into_iter().flat_map(|[a, b]| [[a, b], [b, a]]).collect() }
    }

    /// Searches the graph, whose edges are with rank 0 alone or dealt out to all.
    fn search(
        &self,
        world: &World,
        root: usize,
        switch: Switch,
        dealt: bool,
    ) -> Result<(Vec<u32>, Vec<Step>, Violations)> {
        let edges = if dealt {
            self.edges.iter().skip(world.rank()).step_by(world.size()).copied().collect()
        } else if world.rank() == 0 {
            self.edges.clone()
        } else {
            Vec::new()
        };
        let graph = Graph::spread(world, self.vertices, edges)?;
        let tree = search(world, &graph, root, switch)?;
        let (violations, levels) = validate(world, &graph, root, &tree.parents, tree.levels)?;
        Ok((levels.get_patch(0..self.vertices)?, tree.steps, violations))
    }
}

fn graphs() -> Vec<(&'static str, Given)> {
    let house = metis::parse(include_str!("../data/house.graph")).unwrap();
    let row = |row: usize| house.row(row).map(move |(column, _)| [row as u32, column]).collect::<Vec<_>>();
    let rmat = Rmat { scale: 8, edges_per_vertex: 8, seed: 3 };
    let hashed = |number: u64| (hash(1, number) % 300) as u32;
    vec![
        ("one vertex", Given::new(1, [])),
        ("no edges", Given::new(200, [])),
        ("house", Given::new(house.rows(), (0..house.rows()).flat_map(row))),
        ("path", Given::new(150, (0..149).map(|vertex| [vertex, vertex + 1]))),
        ("star", Given::new(200, (0..200).map(|vertex| [77, vertex]))),
        ("random, in pieces", Given::new(300, (0..200).map(|edge| [hashed(edge), hashed(edge + 1000)]))),
        ("R-MAT", Given { vertices: rmat.vertices(), edges: rmat.edges(0..rmat.drawn()) }),
    ]
}

#[test]
fn levels_are_those_of_the_serial_search_everywhere() {
    let switches = [
        Switch { alpha: 14.0, beta: 24.0 },
        // Top-down only; bottom-up as long as the frontier grows, and then for ever.
        Switch { alpha: 0.0, beta: 24.0 },
        Switch { alpha: 1e9, beta: 1e9 },
    ];
    for (name, graph) in graphs() {
        let root = graph.vertices / 2;
        let expected = serial::levels(graph.vertices, graph.edges.clone(), root);
        for (switch, dealt) in switches.into_iter().zip([false, true, false]) {
            let (levels, steps, violations) = same_everywhere(name, |world| graph.search(world, root, switch, dealt));
            assert!(levels == expected, "{name}, {switch:?}");
            assert_eq!(violations, Violations::default(), "{name}, {switch:?}");
            let reached = steps.iter().map(|step| step.frontier).sum::<u64>();
            assert_eq!(reached as usize, expected.iter().filter(|level| **level != NONE).count(), "{name}");
            let up = steps.iter().any(|step| step.direction == Direction::BottomUp);
            assert!(!up || switch.alpha > 0.0, "{name}, {switch:?}");
            assert!(up || switch.alpha < 1e9 || graph.edges.is_empty(), "{name}, {switch:?}");
        }
    }
}

#[test]
fn a_wrong_tree_does_not_pass() {
    let graph = Given::new(150, (0..149).map(|vertex| [vertex, vertex + 1]));
    let found = threads(3, "validation", |world| {
        let edges = if world.rank() == 0 { graph.edges.clone() } else { Vec::new() };
        let spread = Graph::spread(world, 150, edges).unwrap();
        let switch = Switch { alpha: 14.0, beta: 24.0 };
        let spoiled = |spoil: &dyn Fn(usize, &mut u32, &mut u32)| {
            let mut tree = search(world, &spread, 70, switch).unwrap();
            for (([vertex], parent), (_, level)) in tree.parents.iter_mut().zip(tree.levels.iter_mut()) {
                spoil(vertex, parent, level);
            }
            validate(world, &spread, 70, &tree.parents, tree.levels).unwrap().0
        };
        [
            spoiled(&|vertex, parent, _| *parent = if vertex == 5 { 8 } else { *parent }),
            spoiled(&|vertex, _, level| *level += if vertex == 0 { 2 } else { 0 }),
            spoiled(&|vertex, parent, level| {
                if vertex == 0 {
                    (*parent, *level) = (NONE, NONE)
                }
            }),
        ]
    });
    for [parent, level, border] in found {
        assert_eq!(parent, Violations { parents: 1, ..Violations::default() });
        assert_eq!(level, Violations { parents: 1, edges: 2, borders: 0 });
        assert_eq!(border, Violations { borders: 2, ..Violations::default() });
    }
}

#[test]
fn sizes_that_cannot_be_are_errors_on_all_ranks() {
    let told = threads(3, "absurd sizes", |world| {
        let sorted = samplesort::run(world, Keys::Uniform, 1 << 50, 1, 1).map(drop);
        let transposed = transpose::run(world, [1 << 30, 1 << 30], 1).map(drop);
        [sorted, transposed].map(|outcome| matches!(outcome, Err(Error::OutOfMemory { .. })))
    });
    assert_eq!(told, [[true; 2]; 3]);
}
