//! The same calls on every transport: a seed makes a sequence of them, mapped memory says what they give, errors included, and
//! every other transport must give the same.
//!
//! Ranks act at the same time, each on elements of its own at every rank, so that what a call gives does not depend on when it
//! is made. Futures of one batch reach for different elements, and are waited for in any order, or let go of.

mod arrays;
#[path = "../common/mod.rs"]
mod common;
mod memory;
mod plan;
mod together;

use std::panic::{AssertUnwindSafe, catch_unwind};

use bellwether::sim::{self, Config, FlowLimits};
use bellwether::{Result, Settings, Simulated, Threads, World};
use bellwether_runtime::Transport;
use bellwether_runtime::transport::Memory;
use bellwether_tests::watchdog;
use common::LIMIT;
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

/// With `BELLWETHER_TRANSPORT=verbs` in the environment a device only: in an emulated machine the others would take long.
fn by_device() -> bool {
    std::env::var_os("BELLWETHER_TRANSPORT").is_some_and(|transport| transport == "verbs")
}

/// The same on threads, over this transport; `None` where there is no device for it, unless one is asked for.
fn threads(ranks: usize, transport: Transport, run: impl Fn(&World) -> Vec<String> + Sync) -> Option<Seen> {
    let mut settings = Settings::default();
    settings.transport = transport;
    match Threads::new(ranks).settings(settings).deadline(LIMIT).run(run) {
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

/// Compares so many seeds.
fn alike(name: &str, seeds: u64, script: Script) {
    sim::check(name, seeds, |seed| {
        let ranks = 1 + (seed as usize * 7 + 3) % 4;
        let _guard = watchdog::guard(format!("{name}, seed {seed}"), 3 * LIMIT);
        let run = |effort| move |world: &World| rank(world, seed, effort, script);
        let reference = threads(ranks, Transport::Auto, run(3)).expect("memory can be mapped");
        assert!(reference.iter().all(|seen| seen.len() > 20), "hardly anything was compared");
        if let Some(seen) = threads(ranks, Transport::Verbs, run(3)) {
            compare("verbs", &reference, &seen);
        }
        if by_device() {
            return;
        }
        for (on, transport) in [("shared memory by the contract", Transport::ShmContract), ("TCP", Transport::Tcp)] {
            compare(on, &reference, &threads(ranks, transport, run(3)).expect("always there"));
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
            let seen = Simulated::new(config).run(run(3)).expect("the job runs");
            compare(on, &reference, &seen);
        }
        // Fragments of a byte are slow: few calls, every other time.
        if seed % 2 == 1 && ranks <= 3 {
            let reference = threads(ranks, Transport::Auto, run(1)).expect("memory can be mapped");
            let seen = Simulated::new(wild.tiny()).run(run(1)).expect("the job runs");
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
    alike("arrays_are_the_same_everywhere", 6, arrays::script);
}

#[test]
fn collectives_and_calls_are_the_same_everywhere() {
    alike("collectives_and_calls_are_the_same_everywhere", 4, together::script);
}

#[test]
fn memory_is_the_same_everywhere() {
    alike("memory_is_the_same_everywhere", 6, memory::script);
}
