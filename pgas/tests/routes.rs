//! Aggregation in jobs of many ranks on several nodes: which way items go, and what of them travels.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use bellwether::aggregate::{Aggregator, Blocks, Options, Push, Route};
use bellwether::sim::{Config, Crossed};
use bellwether::{Result, Simulated, World};
use bellwether_tests::watchdog;
use common::LIMIT;

/// Runs `body` on simulated ranks, `node` on each node; tells what went from node to node.
fn crossed(name: &str, ranks: usize, node: &[usize], body: impl Fn(&World) -> Result<()> + Sync) -> Crossed {
    let _guard = watchdog::guard(format!("{name}: {ranks} simulated ranks, {node:?} a node"), LIMIT);
    let job = Simulated::new(Config::new(ranks, 1).nodes(node).wild());
    let outcomes = job.run(body).expect("the job starts");
    outcomes.into_iter().enumerate().for_each(|(rank, end)| end.unwrap_or_else(|error| panic!("rank {rank}: {error}")));
    job.network().crossed()
}

/// An item from every rank to so many after it, all of which arrive.
fn one_to_each(world: &World, route: Route, each: usize) -> Result<()> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&seen);
    let options = Options { route, ..Options::new(world) };
    let mut push = Push::new(world, &options, move |item: u32| sink.borrow_mut().push(item))?;
    assert!(push.memory() <= options.memory);
    let ranks = world.size();
    for step in 0..each {
        push.push((world.rank() + step) % ranks, world.rank() as u32)?;
    }
    push.finish()?;
    let mut seen = seen.take();
    seen.sort_unstable();
    assert!(each == 0 && seen.is_empty() || seen.into_iter().eq(0..ranks as u32), "rank {}", world.rank());
    world.barrier()
}

#[test]
fn many_ranks_go_by_their_nodes() {
    // Not as many a node as make a square.
    let all = |route, each| crossed("by nodes", 104, &[13], |world| one_to_each(world, route, each));
    // Of the items alone.
    let cost = |route| {
        let (with, without) = (all(route, 104), all(route, 0));
        (with.frames - without.frames, with.bytes - without.bytes)
    };
    let (by_itself, straight) = (cost(Route::Auto), cost(Route::OneHop));
    let (square, by_nodes) = (cost(Route::TwoHops { columns: None }), cost(Route::TwoHops { columns: Some(13) }));
    println!("an item from each of 104 ranks to each, 13 a node, frames and bytes from node to node:");
    println!("{by_itself:?} by nodes, {square:?} by a square, {straight:?} straight");
    assert_eq!(by_itself, by_nodes);
    assert!(by_itself.0 < square.0 && by_itself.1 < square.1);
    assert!(by_itself.0 * 3 < straight.0);
}

#[test]
fn many_ranks_on_uneven_nodes() {
    crossed("uneven nodes", 70, &[8, 3, 12], |world| one_to_each(world, Route::Auto, 70));
    crossed("a short node", 67, &[8], |world| one_to_each(world, Route::Auto, 67));
    crossed("a rank a node", 66, &[1], |world| one_to_each(world, Route::Auto, 66));
}

/// Everyone adds to `bins` bins in turn, so often; the bins of a rank of another node.
fn add(world: &World, options: &Options, bins: usize, times: usize) -> Result<()> {
    let places = Blocks::new(1000 * world.size(), world.size());
    let mut table = world.alloc::<u64>(places.block())?;
    let mut by = Aggregator::new(world, options)?;
    // An item in each buffer takes so much.
    assert!(by.memory() <= options.memory.max(2000));
    let first = (world.rank() / 4 + 1) % (world.size() / 4) * 4000;
    let indices: Vec<usize> = (0..times).map(|time| first + time % bins).collect();
    by.scatter_add(&mut table, &places, &indices, &vec![1; times])?;
    world.barrier()?;
    // Four ranks of a node did the same, to the first rank of another.
    let expected = |bin: usize| match world.rank() % 4 {
        0 if bin < bins => 4 * (bin..times).step_by(bins).count() as u64,
        _ => 0,
    };
    assert!((0..places.block()).all(|bin| table.load(bin) == expected(bin)), "rank {}", world.rank());
    world.barrier()
}

#[test]
fn additions_to_few_elements_travel_once() {
    const TIMES: usize = 1000;
    let bytes = |route, bins, times| {
        let name = format!("{times} additions to {bins} bins");
        crossed(&name, 8, &[4], |world| add(world, &Options { route, ..Options::new(world) }, bins, times)).bytes as f64
    };
    // Of the items alone.
    let cost = |route, bins, times| bytes(route, bins, times) - bytes(route, bins, 0);
    let straight = Route::OneHop;
    let (few, many) = (cost(straight, 5, TIMES), cost(straight, TIMES, TIMES));
    // As if each had been added to once.
    let once = cost(straight, 5, 5);
    println!("bytes between nodes: {few} for 5 bins, {many} for {TIMES}, {once} for one time each");
    assert!(
        few < 1.1 * once && 4.0 * few < many,
        "{few} bytes for 5 bins, {many} for {TIMES}, {once} for one time each"
    );
    // Those of a node's ranks meet at the rank between.
    let two = Route::TwoHops { columns: Some(4) };
    let [by_one, by_two] = [straight, two].map(|route| cost(route, TIMES, TIMES));
    println!("{by_one} straight, {by_two} by the rank between");
    assert!(2.0 * by_two < by_one, "{by_one} bytes straight, {by_two} by the rank between");
}

/// Little memory for what is remembered, and none.
#[test]
fn additions_with_next_to_no_memory() {
    for memory in [0, 100, 300, 3000] {
        for route in [Route::OneHop, Route::TwoHops { columns: Some(4) }] {
            crossed("little memory", 8, &[4], |world| {
                add(world, &Options { memory, route, ..Options::new(world) }, 7, 50)
            });
        }
    }
}
