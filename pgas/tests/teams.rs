//! Collectives over teams against what a loop over the members gives, in every algorithm.

mod worlds;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bellwether::{
    Allgather, Allreduce, Alltoall, Broadcast, Collectives, Gather, Max, Min, Reduce, Result, Scan, Scatter, Settings,
    Simulated, Sum, Team, TeamBarrier, World, Xor, sim,
};
use worlds::{everywhere, expect_all, is_full, on_nodes, on_threads, simulated};

/// Member `rank`'s value number `at`, of no pattern that a mistake could keep.
fn value(rank: usize, at: usize) -> u64 {
    (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64 * 0x2545_f491).rotate_left(13) >> 8
}

fn values(rank: usize, len: usize) -> Vec<u64> {
    (0..len).map(|at| value(rank, at)).collect()
}

/// Every collective on `team` with slices of `len`, against a loop.
fn all_collectives(team: &Team, len: usize) -> Result<()> {
    let (rank, size) = (team.rank(), team.size());
    let mine = values(rank, len);
    let fold = |ranks: std::ops::Range<usize>, at: usize| ranks.map(|rank| value(rank, at)).fold(0, u64::wrapping_add);
    let sums: Vec<u64> = (0..len).map(|at| fold(0..size, at)).collect();
    let add = u64::wrapping_add;
    for round in 0..2 {
        let root = (len + round) % size;
        let mut got = mine.clone();
        team.allreduce(&mut got, add)?;
        assert_eq!(got, sums, "allreduce of {len}");
        let mut got = mine.clone();
        team.reduce(root, &mut got, add)?;
        assert!(rank != root || got == sums, "reduce of {len}");
        let mut got = mine.clone();
        team.broadcast(root, &mut got)?;
        assert_eq!(got, values(root, len), "broadcast of {len}");
        let all: Vec<u64> = (0..size).flat_map(|rank| values(rank, len)).collect();
        assert_eq!(team.allgather(&mine)?, all, "allgather of {len}");
        assert_eq!(team.gather(root, &mine)?, (rank == root).then(|| all.clone()), "gather of {len}");
        let mut got = vec![0; len];
        team.scatter(root, if rank == root { &all } else { &[] }, &mut got)?;
        assert_eq!(got, mine, "scatter of {len}");
        let mut got = mine.clone();
        team.scan(&mut got, add)?;
        assert_eq!(got, (0..len).map(|at| fold(0..rank + 1, at)).collect::<Vec<_>>(), "scan of {len}");
        let mut got = mine.clone();
        team.exclusive_scan(&mut got, 7, add)?;
        assert_eq!(got, (0..len).map(|at| fold(0..rank, at) + 7).collect::<Vec<_>>(), "exclusive scan of {len}");
        // What goes from a to b is numbered by both.
        let sent: Vec<u64> = (0..size).flat_map(|to| values(rank * 100 + to, len)).collect();
        let heard: Vec<u64> = (0..size).flat_map(|from| values(from * 100 + rank, len)).collect();
        assert_eq!(team.alltoall(&sent)?, heard, "all-to-all of {len}");
        let length = |from: usize, to: usize| (from * 7 + to * 3 + round) % 4 * len / 2;
        let sent: Vec<u64> = (0..size).flat_map(|to| values(rank * 100 + to, length(rank, to))).collect();
        let heard: Vec<u64> = (0..size).flat_map(|from| values(from * 100 + rank, length(from, rank))).collect();
        let counts: Vec<usize> = (0..size).map(|to| length(rank, to)).collect();
        let theirs: Vec<usize> = (0..size).map(|from| length(from, rank)).collect();
        assert_eq!(team.alltoallv(&sent, &counts)?, (heard, theirs), "all-to-allv of {len}");
        team.barrier()?;
    }
    Ok(())
}

fn everything(world: &World) -> Result<()> {
    let team = Team::world(world)?;
    [0, 1, 3, 100].iter().try_for_each(|len| all_collectives(&team, *len))
}

#[test]
fn collectives_do_what_a_loop_does() {
    everywhere(everything);
}

#[test]
fn more_ranks_than_cores() {
    on_threads(&Settings::default(), &[16], everything);
    simulated(&Settings::default(), &[16], 1, everything);
}

/// Each algorithm in turn, the others as they are chosen.
fn forced() -> Vec<Collectives> {
    let mut all = Vec::new();
    all.extend(Allreduce::ALL.iter().map(|allreduce| Collectives { allreduce: *allreduce, ..Collectives::default() }));
    all.extend(Reduce::ALL.iter().map(|reduce| Collectives { reduce: *reduce, ..Collectives::default() }));
    all.extend(Broadcast::ALL.iter().map(|broadcast| Collectives { broadcast: *broadcast, ..Collectives::default() }));
    all.extend(Allgather::ALL.iter().map(|allgather| Collectives { allgather: *allgather, ..Collectives::default() }));
    all.extend(Gather::ALL.iter().map(|gather| Collectives { gather: *gather, ..Collectives::default() }));
    all.extend(Scatter::ALL.iter().map(|scatter| Collectives { scatter: *scatter, ..Collectives::default() }));
    all.extend(TeamBarrier::ALL.iter().map(|barrier| Collectives { barrier: *barrier, ..Collectives::default() }));
    all.extend(Alltoall::ALL.iter().map(|alltoall| Collectives { alltoall: *alltoall, ..Collectives::default() }));
    all.extend(Scan::ALL.iter().map(|scan| Collectives { scan: *scan, ..Collectives::default() }));
    all
}

fn every_algorithm(world: &World, lengths: &[usize]) -> Result<()> {
    let team = Team::world(world)?;
    for algorithms in forced() {
        team.set_algorithms(algorithms);
        lengths.iter().try_for_each(|len| all_collectives(&team, *len))?;
    }
    Ok(())
}

#[test]
fn every_algorithm_does_the_same() {
    on_threads(&Settings::default(), &[1, 2, 3, 4, 5, 7, 8], |world| every_algorithm(world, &[1, 50]));
    simulated(&Settings::default(), &[1, 2, 3, 4, 5, 7, 8], 1, |world| every_algorithm(world, &[5]));
}

/// Nodes that are subtrees of a reduction, and nodes that are not.
const LAYOUTS: &[(usize, &[usize])] =
    &[(3, &[2]), (5, &[2]), (7, &[3]), (8, &[4]), (8, &[1, 3]), (8, &[2]), (7, &[4]), (8, &[7, 1])];

#[test]
fn every_algorithm_on_several_nodes() {
    // One of each kind.
    let layouts: &[(usize, &[usize])] = if is_full() { LAYOUTS } else { &[(6, &[1, 3])] };
    on_nodes(&Settings::default(), layouts, |world| every_algorithm(world, &[1, 50]));
    let mut settings = Settings::default();
    (settings.team_memory, settings.world_team_memory) = (4096, 4096);
    let layouts: &[(usize, &[usize])] = if is_full() { &[(5, &[2]), (6, &[1, 3])] } else { &[(5, &[2])] };
    on_nodes(&settings, layouts, |world| every_algorithm(world, &[0, 150]));
}

/// Teams whose members are in another order than their nodes, and some of whose nodes are empty.
#[test]
fn teams_across_nodes() {
    let layouts: &[(usize, &[usize])] = if is_full() { &[(9, &[3]), (8, &[4]), (7, &[2, 3])] } else { &[(7, &[2, 3])] };
    on_nodes(&Settings::default(), layouts, |world| {
        let all = Team::world(world)?;
        let (rank, size) = (all.rank(), all.size());
        let backwards = all.split(Some(0), -(rank as i64))?.expect("everyone has a colour");
        let dealt = all.split(Some(0), (rank * 5 % size) as i64)?.expect("everyone has a colour");
        let third = all.split(Some(rank as u64 % 3), 0)?.expect("everyone has a colour");
        for team in [&all, &backwards, &dealt, &third, &backwards.split_by_node()?] {
            for algorithms in forced() {
                team.set_algorithms(algorithms);
                all_collectives(team, 3)?;
            }
        }
        Ok(())
    });
}

#[test]
fn teams_of_a_node() {
    let node = |sizes: &[usize], rank: usize| {
        let mut left = rank;
        (0..).find(|node| {
            let size = sizes[node % sizes.len()];
            let here = left < size;
            left = left.saturating_sub(size);
            here
        })
    };
    let layouts: &[(usize, &[usize])] = &[(1, &[1]), (4, &[4]), (4, &[1]), (5, &[2]), (7, &[3, 1]), (8, &[5, 2, 1])];
    for &(ranks, sizes) in layouts {
        on_nodes(&Settings::default(), &[(ranks, sizes)], |world| {
            let mine = node(sizes, world.rank());
            assert_eq!(Some(world.node_of(world.rank())?), mine);
            assert_eq!(Some(world.nodes() - 1), node(sizes, ranks - 1));
            let team = Team::world(world)?.split_by_node()?;
            let mates: Vec<usize> = (0..ranks).filter(|rank| node(sizes, *rank) == mine).collect();
            assert_eq!(team.world_ranks().collect::<Vec<_>>(), mates);
            assert!(world.node_of(ranks).is_err());
            all_collectives(&team, 3)
        });
    }
}

/// A workspace with room for little: everything goes in many steps.
#[test]
fn every_algorithm_in_a_small_workspace() {
    let mut settings = Settings::default();
    (settings.team_memory, settings.world_team_memory) = (4096, 4096);
    let (threads, simulations): (&[usize], &[usize]) =
        if is_full() { (&[1, 2, 3, 5, 7, 16], &[5, 8]) } else { (&[1, 2, 3, 7], &[5]) };
    on_threads(&settings, threads, |world| every_algorithm(world, &[0, 90]));
    simulated(&settings, simulations, 2, |world| every_algorithm(world, &[150]));
}

/// The same, where a part for each member would hold no element.
#[test]
fn elements_that_fill_the_workspace() {
    let mut settings = Settings::default();
    (settings.team_memory, settings.world_team_memory) = (4096, 4096);
    on_threads(&settings, &[3, 9], |world| {
        let team = Team::world(world)?;
        for algorithms in forced() {
            team.set_algorithms(algorithms);
            let all = team.allgather(&[[team.rank() as u64; 30]; 3])?;
            assert!(all.iter().enumerate().all(|(at, value)| *value == [at as u64 / 3; 30]));
            let mut sum = [[1u64; 30]; 2];
            team.allreduce(&mut sum, |a: [u64; 30], b: [u64; 30]| std::array::from_fn(|at| a[at] + b[at]))?;
            assert_eq!(sum, [[team.size() as u64; 30]; 2]);
            let heard = team.alltoall(&vec![[team.rank() as u64; 30]; team.size()])?;
            assert!(heard.iter().enumerate().all(|(from, value)| *value == [from as u64; 30]));
        }
        Ok(())
    });
}

/// Sums of floats depend on the order: every algorithm, length and world gives the same bits.
#[test]
fn sums_of_floats_have_the_same_bits_everywhere() {
    let number =
        |rank: usize, at: usize| (value(rank, at) as f64).sqrt() * if at.is_multiple_of(2) { 1e9 } else { 1e-9 };
    for &ranks in if is_full() { &[2, 3, 4, 5, 7, 8][..] } else { &[3, 8] } {
        let first = std::sync::Mutex::new(None);
        let body = |world: &World| {
            let team = Team::world(world)?;
            for algorithms in forced() {
                team.set_algorithms(algorithms);
                for len in [40, 3000] {
                    let mine: Vec<f64> = (0..len).map(|at| number(team.rank(), at % 40)).collect();
                    let mut sums = mine.clone();
                    team.allreduce(&mut sums, Sum)?;
                    let mut at_root = mine.clone();
                    team.reduce(1, &mut at_root, Sum)?;
                    let mut scanned = mine.clone();
                    team.scan(&mut scanned, Sum)?;
                    let mut before = mine;
                    team.exclusive_scan(&mut before, 0.1, Sum)?;
                    let bits = |sums: &[f64]| sums[..40].iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
                    // One after the other, from the first.
                    let upto = |end: usize, start: f64| -> Vec<f64> {
                        (0..40).map(|at| (0..end).map(|rank| number(rank, at)).fold(start, |a, b| a + b)).collect()
                    };
                    let of = format!("{ranks} ranks, {len} elements, {algorithms:?}");
                    // These are positive, so from 0.0 on is from the first on.
                    assert_eq!(bits(&scanned), bits(&upto(team.rank() + 1, 0.0)), "scan, {of}");
                    assert_eq!(bits(&before), bits(&upto(team.rank(), 0.1)), "exclusive scan, {of}");
                    let mut first = first.lock().expect("no panic before");
                    let expected = first.get_or_insert_with(|| bits(&sums));
                    assert_eq!(bits(&sums), *expected, "allreduce, {of}");
                    assert!(team.rank() != 1 || bits(&at_root) == *expected, "reduce, {of}");
                }
            }
            Ok(())
        };
        on_threads(&Settings::default(), &[ranks], body);
        simulated(&Settings::default(), &[ranks], 1, body);
        // Wherever ranks run.
        on_nodes(&Settings::default(), &[(ranks, &[2]), (ranks, &[3]), (ranks, &[1, 4])], body);
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_entered() {
    const ROUNDS: usize = 20;
    // One count a job: it ends with as many for each of its ranks.
    let entered = AtomicUsize::new(0);
    let body = |world: &World| {
        let team = Team::world(world)?;
        let start = {
            // Nobody has entered the first one before all have looked.
            let start = entered.load(Ordering::SeqCst);
            world.barrier()?;
            start
        };
        let mut round = 0;
        for barrier in TeamBarrier::ALL.iter().flat_map(|barrier| [*barrier; ROUNDS]) {
            team.set_algorithms(Collectives { barrier, ..Collectives::default() });
            round += 1;
            // Each is the last in turn.
            if round % team.size() == team.rank() {
                world.sleep(Duration::from_micros(20));
            }
            entered.fetch_add(1, Ordering::SeqCst);
            team.barrier()?;
            let seen = entered.load(Ordering::SeqCst) - start;
            assert!(seen >= round * team.size(), "{barrier:?}, round {round}: {seen} of {}", team.size());
        }
        Ok(())
    };
    everywhere(body);
    on_nodes(&Settings::default(), LAYOUTS, body);
}

#[test]
fn named_operators() {
    everywhere(|world| {
        let team = Team::world(world)?;
        let (rank, size) = (team.rank() as i64, team.size() as i64);
        let mut values = [rank, -rank];
        team.allreduce(&mut values, Max)?;
        assert_eq!(values, [size - 1, 0]);
        let mut values = [rank, -rank];
        team.allreduce(&mut values, Min)?;
        assert_eq!(values, [0, 1 - size]);
        let mut bits = [1u8 << (rank % 8)];
        team.allreduce(&mut bits, Xor)?;
        assert_eq!(bits[0], (0..size).fold(0, |bits, rank| bits ^ 1 << (rank % 8)));
        Ok(())
    });
}

/// An operator that does not commute sees the ranks in order.
#[test]
fn operators_need_not_commute() {
    // Affine maps x -> a x + b modulo 2^32, composed.
    type Map = [u32; 2];
    let then = |f: Map, g: Map| [f[0].wrapping_mul(g[0]), f[1].wrapping_mul(g[0]).wrapping_add(g[1])];
    let map = |rank: usize| [2 * rank as u32 + 3, (7 * rank * rank + 5 * rank) as u32 + 1];
    // Maps with a common fixed point would commute.
    for (a, b) in (0..16).flat_map(|a| (0..a).map(move |b| (a, b))) {
        assert_ne!(then(map(a), map(b)), then(map(b), map(a)), "{a}, {b}");
    }
    everywhere(|world| {
        let team = Team::world(world)?;
        let expected = |end: usize| (1..end).fold(map(0), |before, rank| then(before, map(rank)));
        for algorithms in forced() {
            team.set_algorithms(algorithms);
            let mut all = [map(team.rank())];
            team.allreduce(&mut all, then)?;
            assert_eq!(all[0], expected(team.size()), "{algorithms:?}");
            let mut up_to = [map(team.rank())];
            team.scan(&mut up_to, then)?;
            assert_eq!(up_to[0], expected(team.rank() + 1), "{algorithms:?}");
        }
        Ok(())
    });
}

/// Each member sends to one other at a time, in as many rounds as there are others.
#[test]
fn an_all_to_all_in_pairs_ends_with_many_members() {
    let mut settings = Settings::default();
    settings.collectives.alltoall = Alltoall::Pairwise;
    let [mapped, ranks] = if is_full() { [256, 256] } else { [12, 32] };
    let program = |world: &World| {
        let team = Team::world(world)?;
        let (me, size) = (team.rank(), team.size());
        let values: Vec<usize> = (0..size).map(|to| me * size + to).collect();
        assert_eq!(team.alltoall(&values)?, (0..size).map(|from| from * size + me).collect::<Vec<_>>());
        Ok(())
    };
    on_threads(&settings, &[mapped], program);
    let config = sim::Config::new(ranks, 1);
    let latency = config.latency;
    let job = Simulated::new(config).settings(settings);
    expect_all(job.run(program).expect("the job starts"), "an all-to-all in pairs");
    let (latencies, frames) = (job.network().now() / latency, job.network().delivered() / ranks as u64);
    println!("{ranks} ranks: {latencies} latencies, {frames} frames a rank");
    // A round is a put and a signal, and after some rounds all meet.
    assert!(latencies <= 16 * ranks as u64 && frames <= 24 * ranks as u64, "{latencies} latencies, {frames} frames");
}
