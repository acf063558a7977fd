//! Jobs with two networks: each peer is reached over one of them.

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::{Error, Result, World};

use super::job;

/// Every operation, from every rank to every rank.
fn everything(world: &World) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let (data, sum, bell) = (world.alloc::<u64>(n * 40)?, world.alloc::<u64>(1)?, world.bell()?);
    // More memory than was registered at the start.
    let more = world.alloc::<u64>(1 << 16)?;
    let segment = world.segment_all(64)?;
    for round in 1..=3u64 {
        for to in 0..n {
            data.put_slice_bell(to, me * 40, &[round * 100 + me as u64; 40], &bell)?;
            more.put(to, (1 << 16) - 1 - me, round)?;
            world.put_segment(to, segment.number(), 8 * me, &round.to_ne_bytes())?;
            sum.fetch_add(to, 0, 1)?;
        }
        bell.wait(round * n as u64)?;
        assert!((0..n).all(|from| data.load(from * 40 + 39) == round * 100 + from as u64));
        world.barrier()?;
        assert_eq!(sum.load(0), round * n as u64, "no atomic is lost, whichever network brought it");
        for from in 0..n {
            let mut word = [0; 8];
            segment.read(8 * from, &mut word)?;
            assert_eq!((u64::from_ne_bytes(word), more.load((1 << 16) - 1 - from)), (round, round));
            world.get_segment(from, segment.number(), 8 * me, &mut word)?;
            let mut got = [0; 40];
            data.get_slice(from, me * 40, &mut got)?;
            assert_eq!((u64::from_ne_bytes(word), got), (round, [round * 100 + me as u64; 40]));
            let answer = world.call(from, (me, vec![round; 100]), |context, (asker, words): (usize, Vec<u64>)| {
                (context.rank(), asker, words.len())
            })?;
            assert_eq!(answer.wait()?, (from, me, 100));
        }
        world.barrier()?;
    }
    let context = world.context()?;
    let array = data.for_threads();
    for to in 0..n {
        context.put(&array, to, me * 40, 7)?;
        assert_eq!(context.fetch_add(&array, to, me * 40, 1)?, 7);
        context.flush(to)?;
        assert_eq!(context.get(&array, to, me * 40)?, 8);
    }
    drop(context);
    world.barrier()?;
    segment.close()?;
    world.barrier()
}

#[test]
fn some_peers_are_reached_over_one_network_and_some_over_another() {
    check("some_peers_are_reached_over_one_network_and_some_over_another", 2, |seed| {
        let plain = Config { islands: 2, ..Config::new(5, seed) };
        let wild = plain.clone().wild();
        for (kind, config) in [
            ("plain", plain.clone()),
            ("wild", wild.clone()),
            ("tiny", plain.clone().tiny()),
            ("native", Config { memory: Memory::Direct, ..wild.clone() }),
            // RDMA whose atomics the target's processor does.
            ("posted", Config { memory: Memory::Posted, native_atomics: false, served_asleep: false, ..wild.clone() }),
            (
                "posted, shared nodes",
                Config {
                    memory: Memory::Posted,
                    native_atomics: false,
                    served_asleep: false,
                    islands: 4,
                    ..wild.clone().shared_nodes(&[2])
                },
            ),
            ("unserved", Config { served_asleep: false, ..wild.clone() }),
            ("shared nodes", Config { islands: 4, ..wild.clone().shared_nodes(&[2]) }),
            ("shared nodes across islands", Config { islands: 2, ..wild.shared_nodes(&[3]) }),
        ] {
            let job = job(config);
            let network = job.network().clone();
            for (rank, result) in job.run(everything).expect("the job runs").into_iter().enumerate() {
                result.unwrap_or_else(|error| panic!("{kind}, seed {seed}, rank {rank}: {error}"));
            }
            let (all, islands) = (network.delivered(), network.on_islands().frames);
            assert!(islands > 20 && all > islands + 20, "{kind}: {islands} of {all} frames on islands");
        }
    });
}

#[test]
fn ranks_that_open_networks_in_different_orders_agree() {
    check("ranks_that_open_networks_in_different_orders_agree", 2, |seed| {
        let wild = Config { islands: 3, ..Config::new(6, seed).wild() };
        for (kind, config) in [("wild", wild.clone()), ("shared nodes", wild.shared_nodes(&[2]))] {
            // Ranks 1 and 4 prefer the network of all; rank 2 has found no other.
            let job = job(config).networks(|rank, networks| match rank {
                1 | 4 => networks.reverse(),
                2 => networks.retain(|network| *network == 1),
                _ => {}
            });
            let network = job.network().clone();
            for (rank, result) in job.run(everything).expect("the job runs").into_iter().enumerate() {
                result.unwrap_or_else(|error| panic!("{kind}, seed {seed}, rank {rank}: {error}"));
            }
            let (all, islands) = (network.delivered(), network.on_islands().frames);
            assert!(islands > 20 && all > islands + 20, "{kind}: {islands} of {all} frames on islands");
        }
    });
}

#[test]
fn ranks_without_a_common_network_are_told() {
    let apart: fn(usize, &mut Vec<usize>) =
        |rank, networks| networks.retain(|network| *network == usize::from(rank != 2));
    // Rank 1 has the network of rank 0, or both.
    let between: fn(usize, &mut Vec<usize>) =
        |rank, networks| networks.retain(|network| rank == 1 || (*network == 1) == (rank == 0));
    for arrange in [apart, between] {
        let job = job(Config { islands: 4, ..Config::new(3, 1) }).networks(arrange);
        let told = job.build(|builder| builder.start().err().map(|error| error.to_string())).expect("the job runs");
        let told = told[0].as_deref().expect("no network leads from rank 0 to rank 2");
        assert!(told.contains("rank 2 is reached over no network that this rank has opened (simulated)"), "{told}");
        assert!(told.contains("BELLWETHER_TRANSPORT"), "{told}");
    }
}

#[test]
fn neighbours_use_the_network_of_their_island_alone() {
    let job = job(Config { islands: 2, ..Config::new(4, 1) });
    let network = job.network().clone();
    let results = job.run(|world| -> Result<()> {
        let data = world.alloc::<u64>(1000)?;
        world.barrier()?;
        let before = [network.on_islands().frames, network.delivered()];
        if world.rank() == 0 {
            for _ in 0..20 {
                data.put_slice(1, 0, &[1; 1000])?;
                assert_eq!(data.get(1, 999)?, 1);
            }
            let after = [network.on_islands().frames, network.delivered()];
            assert!(after[0] >= before[0] + 20, "{before:?}, then {after:?}");
            data.put_slice(2, 0, &[1; 1000])?;
            assert_eq!(data.get(2, 999)?, 1);
            assert!(network.delivered() - after[1] > network.on_islands().frames - after[0], "{after:?}");
        }
        world.barrier()
    });
    results.expect("the job runs").into_iter().collect::<Result<Vec<()>>>().expect("no rank fails");
}

#[test]
fn a_death_is_told_on_both_networks() {
    let job = job(Config { islands: 2, ..Config::new(4, 3) });
    let network = job.network().clone();
    let results = job.run(|world| -> Result<()> {
        let data = world.alloc::<u64>(1)?;
        world.barrier()?;
        if world.rank() == 1 {
            network.kill(1);
        }
        // Rank 0 loses it on the island, the others on the network of all.
        loop {
            data.put(1, 0, 1)?;
            world.barrier()?;
        }
    });
    for (rank, result) in results.expect("the job runs").into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        assert!(matches!(result, Err(Error::PeerLost { rank: 1, .. })), "rank {rank}: {result:?}");
    }
}
