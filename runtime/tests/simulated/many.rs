//! Jobs of many ranks: one runs a whole program, and the steps of its collective calls grow as the logarithm of the ranks.

use bellwether_runtime::transport::sim::{Config, Requests};
use bellwether_runtime::{Error, Result};

use super::job;

/// What the ranks do one after the other, as counted.
const PHASES: [Phase; 5] = [
    Phase { name: "barrier", times: 1 },
    Phase { name: "allreduce", times: 3 },
    Phase { name: "allreduce again", times: 3 },
    Phase { name: "agree, one Err", times: 2 },
    Phase { name: "alloc", times: 6 },
];
/// Requests, and latencies, beside the logarithm's. Chosen: a few, for what only a first call does.
const BESIDE: u32 = 4;
/// Bytes of a request.
const REQUEST: u64 = 80;

#[derive(Debug)]
struct Phase {
    name: &'static str,
    /// Steps, in times log2 of the ranks.
    times: u32,
}

/// What one phase took.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Most requests of one rank.
    requests: u64,
    /// Most bytes of them.
    bytes: u64,
    /// Virtual time from the last rank that entered to the last one that left, in latencies: the steps that wait for each other.
    latencies: f64,
}

/// Runs the first `phases` of [`PHASES`] in a world of `ranks` ranks, and after all of them puts, messages and the end of the world: what
/// each phase took.
fn world_of(ranks: usize, phases: usize) -> Vec<Cost> {
    // Bytes take no time, so that virtual time counts steps; the bytes are counted by themselves.
    let config = Config { picoseconds_per_byte: 0, ..Config::new(ranks, 1) };
    let latency = config.latency as f64;
    let job = job(config);
    let outcomes = job.build(|mut builder| -> Result<Vec<(u64, Requests)>> {
        let handler = builder.handler("take", |context, payload| {
            assert_eq!(payload, (context.rank() as u64).to_ne_bytes());
        });
        let world = builder.start()?;
        let (me, next) = (world.rank(), (world.rank() + 1) % ranks);
        let now = || (job.network().now(), job.network().requests(me));
        let mut marks = vec![now()];
        world.barrier()?;
        marks.push(now());
        for _ in 0..2 {
            let mut sum = [me as u64];
            world.allreduce_sum(&mut sum)?;
            assert_eq!(sum[0], (ranks * (ranks - 1) / 2) as u64);
            marks.push(now());
        }
        if phases < PHASES.len() {
            world.barrier()?;
            return Ok(marks);
        }
        let refused = world.agree(if me == ranks / 2 { Err("no input".into()) } else { Ok(()) });
        assert!(matches!(&refused, Err(Error::Agreed { rank, .. }) if *rank == ranks / 2), "{refused:?}");
        marks.push(now());
        let numbers = world.alloc::<u64>(1)?;
        marks.push(now());
        world.barrier()?;
        numbers.put(next, 0, me as u64)?;
        world.send(next, handler, &(next as u64).to_ne_bytes())?;
        world.barrier()?;
        assert_eq!(numbers.load(0) as usize, (me + ranks - 1) % ranks);
        world.finish()?;
        Ok(marks)
    });
    let outcomes: Vec<_> = outcomes.expect("runs").into_iter().map(|outcome| outcome.expect("no error")).collect();
    let last = |mark: usize| outcomes.iter().map(|marks| marks[mark].0).max().expect("a rank");
    let most = |phase: usize, of: fn(Requests) -> u64| {
        let grown = |marks: &Vec<(u64, Requests)>| of(marks[phase + 1].1) - of(marks[phase].1);
        outcomes.iter().map(grown).max().expect("a rank")
    };
    let cost = |phase| Cost {
        requests: most(phase, |requests| requests.count),
        bytes: most(phase, |requests| requests.bytes),
        latencies: (last(phase + 1) - last(phase)) as f64 / latency,
    };
    (0..phases).map(cost).collect()
}

/// Fails if one of the first `phases` of a world of some of these `sizes` takes more steps than the logarithm allows, or larger ones.
fn steps_grow_as_the_logarithm(sizes: &[usize], phases: usize) {
    for ranks in sizes {
        let log = ranks.next_power_of_two().ilog2();
        println!("{ranks} ranks, log2 {log}:");
        for (phase, Cost { requests, bytes, latencies }) in PHASES.iter().zip(world_of(*ranks, phases)) {
            let name = phase.name;
            println!(
                "  {name}: at most {requests} requests of one rank, of {bytes} B together; {latencies:.1} latencies"
            );
            let steps = phase.times * log + BESIDE;
            assert!(requests <= u64::from(steps), "{ranks} ranks: {name} takes {requests} requests of one rank");
            assert!(latencies <= f64::from(steps), "{ranks} ranks: {name} takes {latencies} latencies");
            // Up to 64 ranks gather the contributions of all, of a word each.
            let most = requests * REQUEST + 64 * size_of::<u64>() as u64;
            assert!(bytes <= most, "{ranks} ranks: {name} takes {bytes} bytes of one rank in {requests} requests");
        }
    }
}

#[test]
fn a_thousand_ranks_run_a_world_in_logarithmic_steps() {
    steps_grow_as_the_logarithm(&[8, 64, 65, 1000], PHASES.len());
}

#[test]
#[ignore = "4,096 threads that run a whole world take minutes"]
fn four_thousand_ranks_run_a_world_in_logarithmic_steps() {
    steps_grow_as_the_logarithm(&[4096], PHASES.len());
}
