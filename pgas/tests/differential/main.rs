//! The same calls on every transport: a seed makes a sequence of them, mapped memory says what they give, errors included, and
//! every other transport must give the same.
//!
//! Ranks act at the same time, each on elements of its own at every rank, so that what a call gives does not depend on when it
//! is made. Futures of one batch reach for different elements, and are waited for in any order, or let go of.

mod arrays;
#[path = "../common/mod.rs"]
mod common;
mod containers;
mod contexts;
mod memory;
mod operations;
mod plan;
mod segments;
mod together;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use bellwether::sim::{self, Config, FlowLimits};
use bellwether::{Builder, Landing, Result, Settings, Simulated, Threads, World};
use bellwether_runtime::Transport;
use bellwether_runtime::transport::Memory;
use bellwether_tests::watchdog;
use common::{LIMIT, is_full};
use containers::Landings;
use plan::Plan;

/// What each rank has seen, a line a call.
type Seen = Vec<Vec<String>>;
type Script = fn(&World, &mut Plan) -> Result<()>;

/// A rank's part. What goes wrong outside of the calls that are compared is a line, too.
fn rank(world: &World, seed: u64, effort: usize, script: Script) -> Vec<String> {
    let mut plan = Plan::new(world, seed, effort);
    let outcome = catch_unwind(AssertUnwindSafe(|| script(world, &mut plan)));
    let mut seen = plan.seen();
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => seen.push(format!("ended with: {error}")),
        Err(panic) => {
            seen.push("panicked".into());
            std::panic::resume_unwind(panic);
        }
    }
    seen
}

/// Starts a rank that takes large messages, which have to be registered before.
fn started(mut builder: Builder, run: impl Fn(&World) -> Vec<String>) -> Result<Vec<String>> {
    let sums: Rc<RefCell<Vec<u64>>> = Rc::default();
    let landings = Rc::clone(&sums);
    let handler = builder.landing_handler(
        "large",
        |_, _| Landing::vec(Vec::new()),
        move |context, landed| {
            let header = landed.header().to_vec();
            let digest = containers::digest(&header, &landed.into_vec());
            let mut sums = landings.borrow_mut();
            sums.resize(context.size(), 0);
            sums[context.from()] = sums[context.from()].wrapping_add(digest);
        },
    );
    let world = builder.start()?;
    world.set_state(Landings { handler, sums });
    Ok(run(&world))
}

/// A simulated job.
fn simulated(config: Config, run: impl Fn(&World) -> Vec<String> + Sync) -> Seen {
    let seen = Simulated::new(config).build(|builder| started(builder, &run)).expect("the job runs");
    seen.into_iter().collect::<Result<_>>().expect("all ranks start")
}

/// With `BELLWETHER_TRANSPORT=verbs` in the environment a device only: in an emulated machine the others would take long.
fn by_device() -> bool {
    std::env::var_os("BELLWETHER_TRANSPORT").is_some_and(|transport| transport == "verbs")
}

/// The same on threads, over this transport; `None` where there is no device for it, unless one is asked for.
fn threads(ranks: usize, transport: Transport, run: impl Fn(&World) -> Vec<String> + Sync) -> Option<Seen> {
    let mut settings = Settings::default();
    settings.transport = transport;
    let job = Threads::new(ranks).settings(settings).deadline(LIMIT);
    match job.build(|builder| started(builder, &run)).and_then(|seen| seen.into_iter().collect()) {
        Ok(seen) => Some(seen),
        Err(bellwether::Error::Start(_)) if transport == Transport::Verbs && !by_device() => None,
        Err(error) => panic!("the job does not start: {error}"),
    }
}

fn compare(on: &str, reference: &Seen, seen: &Seen) {
    for (rank, (reference, seen)) in reference.iter().zip(seen).enumerate() {
        let calls = reference.len().max(seen.len());
        for call in 0..calls {
            let line = |seen: &[String]| seen.get(call).cloned().unwrap_or("nothing more".into());
            let (wanted, found) = (line(reference), line(seen));
            assert!(wanted == found, "call {call} of rank {rank}\n on mapped memory: {wanted}\n on {on}: {found}");
        }
    }
}

/// Ranks of a job, by the seed: of six seeds in a row one has one rank.
const RANKS: [usize; 6] = [2, 3, 1, 4, 2, 3];
/// Seeds with more than one rank among those six: each takes another share of the parts of a script.
const TURNS: usize = 5;

fn ranks(seed: u64) -> usize {
    RANKS[seed as usize % RANKS.len()]
}

/// The share of a seed. With one rank it is that of the next seed.
fn turn(seed: u64) -> usize {
    RANKS[..seed as usize % RANKS.len()].iter().filter(|ranks| **ranks > 1).count()
}

/// Compares so many seeds.
fn alike(name: &str, seeds: u64, effort: usize, script: Script) {
    sim::check(name, seeds, |seed| {
        let ranks = ranks(seed);
        let _guard = watchdog::guard(format!("{name}, seed {seed}"), 3 * LIMIT);
        let run = |effort| move |world: &World| rank(world, seed, effort, script);
        let reference = threads(ranks, Transport::Auto, run(effort)).expect("memory can be mapped");
        assert!(reference.iter().all(|seen| seen.len() > 20), "hardly anything was compared");
        if let Some(seen) = threads(ranks, Transport::Verbs, run(effort)) {
            compare("verbs", &reference, &seen);
        }
        if by_device() {
            return;
        }
        for (on, transport) in [("shared memory by the contract", Transport::ShmContract), ("TCP", Transport::Tcp)] {
            compare(on, &reference, &threads(ranks, transport, run(effort)).expect("always there"));
        }
        let plain = Config::new(ranks, seed);
        let wild = plain.clone().wild();
        let few = Config { flow: FlowLimits { slots: 1, credits: 1, ..plain.flow }, ..wild.clone() };
        for (on, config) in [
            ("a network in order", plain),
            ("a wild network", wild.clone()),
            ("a network without room", few),
            ("a network whose devices do the work", Config { memory: Memory::Posted, ..wild.clone() }),
            ("a network whose devices do the work at once", Config { memory: Memory::Direct, ..wild.clone() }),
            ("a network of nodes", wild.clone().shared_nodes(&[2])),
        ] {
            let seen = simulated(config, run(effort));
            compare(on, &reference, &seen);
        }
        // Fragments of a byte are slow: few calls and ranks, and without `ROWS_FULL` every other time, where there are several.
        let odd = seed % 2 == 1;
        if is_full() || (seeds > 1 && odd && ranks <= 3) {
            let ranks = ranks.min(if odd { 3 } else { 2 });
            let reference = threads(ranks, Transport::Auto, run(1)).expect("memory can be mapped");
            let seen = simulated(Config::new(ranks, seed).wild().tiny(), run(1));
            compare("a network of fragments of a byte", &reference, &seen);
        }
    });
}

#[test]
fn a_broadcast_of_nothing_is_told_to_those_who_expect_something() {
    let body = |world: &World| {
        let mut values = if world.rank() == 0 { vec![] } else { vec![7u32; 3] };
        let told = world.broadcast(0, &mut values);
        if world.rank() != 0 {
            assert!(matches!(told, Err(bellwether::Error::RanksDiffer { .. })), "{told:?}");
        }
        Vec::new()
    };
    for ranks in [2, 5] {
        let _guard = watchdog::guard("a broadcast of nothing", LIMIT);
        threads(ranks, Transport::Auto, body).expect("memory can be mapped");
        threads(ranks, Transport::ShmContract, body).expect("memory can be mapped");
        Simulated::new(Config::new(ranks, 3).wild()).run(body).expect("the job runs");
    }
}

/// A rank with another length passes on all pieces nevertheless, and takes part in the next broadcast.
#[test]
fn a_broadcast_that_fails_leaves_later_ones_in_step() {
    // Of several messages on every transport here.
    const MANY: usize = 40_000;
    let body = |world: &World| {
        let n = world.size();
        for (turn, wrong) in [0, 1, MANY / 2, MANY - 1, MANY + 1, 3 * MANY].into_iter().enumerate() {
            let (root, odd) = (turn % n, (turn + 1 + turn / 2 % (n - 1)) % n);
            assert_ne!(root, odd);
            let mut values = vec![world.rank() as u64; if world.rank() == odd { wrong } else { MANY }];
            match world.broadcast(root, &mut values) {
                Err(bellwether::Error::RanksDiffer { .. }) => {}
                Ok(()) => assert!(world.rank() != odd && values.iter().all(|value| *value == root as u64)),
                Err(error) => panic!("{error}"),
            }
            for count in [3, MANY, 1] {
                let mut values = vec![if world.rank() == root { 70 + count as u64 } else { 0 }; count];
                world.broadcast(root, &mut values).expect("all have the same length");
                assert!(values.iter().all(|value| *value == 70 + count as u64), "rank {}, turn {turn}", world.rank());
            }
        }
        Vec::new()
    };
    for ranks in [2, 3, 5] {
        let _guard = watchdog::guard("broadcasts that fail", LIMIT);
        threads(ranks, Transport::Auto, body).expect("memory can be mapped");
        threads(ranks, Transport::ShmContract, body).expect("memory can be mapped");
        let _ = threads(ranks, Transport::Verbs, body);
        for config in [Config::new(ranks, 3), Config::new(ranks, 4).wild(), Config::new(ranks, 5).straggling()] {
            Simulated::new(config).run(body).expect("the job runs");
        }
    }
}

#[test]
fn arrays_are_the_same_everywhere() {
    alike("arrays_are_the_same_everywhere", 6, 3, arrays::script);
}

#[test]
fn collectives_and_calls_are_the_same_everywhere() {
    alike("collectives_and_calls_are_the_same_everywhere", 4, 3, together::script);
}

#[test]
fn memory_is_the_same_everywhere() {
    alike("memory_is_the_same_everywhere", memory::SEEDS, if is_full() { 3 } else { 2 }, memory::script);
}

#[test]
fn operations_are_the_same_everywhere() {
    alike("operations_are_the_same_everywhere", some_seeds(), 2, operations::script);
}

#[test]
fn segments_are_the_same_everywhere() {
    alike("segments_are_the_same_everywhere", some_seeds(), 2, segments::script);
}

#[test]
fn contexts_are_the_same_everywhere() {
    alike("contexts_are_the_same_everywhere", some_seeds(), 2, contexts::script);
}

#[test]
fn containers_are_the_same_everywhere() {
    alike("containers_are_the_same_everywhere", some_seeds(), 2, containers::script);
}

/// The first has three ranks.
fn some_seeds() -> u64 {
    if is_full() { 6 } else { 1 }
}
