//! Exchanges of ranks that tell each other by messages.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bellwether_runtime::transport::sim::Config;
use bellwether_runtime::{Error, Result, Team, World};

use super::{everywhere, is_full, job, networks};

type Calls = (&'static str, fn(&World) -> Result<()>);

/// Frames on the network, a rank, that each of these calls takes.
fn frames<const N: usize>(ranks: usize, calls: &[Calls; N]) -> [f64; N] {
    let job = job(Config::new(ranks, 1));
    let counts = job.run(|world| {
        let mut before = 0;
        let mut since = || {
            world.barrier()?;
            let now = job.network().delivered();
            Ok::<_, Error>(now - std::mem::replace(&mut before, now))
        };
        since()?;
        let count = |calls: &Calls| {
            calls.1(world)?;
            since()
        };
        calls.iter().map(count).collect::<Result<Vec<_>>>()
    });
    let counts = counts.expect("runs").into_iter().next().expect("rank 0").expect("no rank fails");
    std::array::from_fn(|call| counts[call] as f64 / ranks as f64)
}

#[test]
fn the_operations_of_an_exchange_grow_with_the_logarithm_of_the_ranks() {
    let calls: [Calls; 4] = [
        ("allocation", |world| world.alloc::<u64>(1).map(drop)),
        ("allgather", |world| world.allgather(&[world.rank() as u8]).map(drop)),
        ("allreduce", |world| world.allreduce(&mut [1u64], |a, b| a + b)),
        ("agreement", |world| world.agree(Ok(()))),
    ];
    let sizes = if is_full() { [64, 256, 1024] } else { [16, 64, 256] };
    let frames = sizes.map(|ranks| frames(ranks, &calls));
    for (call, (name, _)) in calls.iter().enumerate() {
        let [few, more, most] = frames.map(|frames| frames[call]);
        println!("{name}: {few:.1}, {more:.1}, {most:.1} frames a rank with {sizes:?} ranks");
        // Rounds: 6, 8 and 10, or 4, 6 and 8. A frame is as long as a fragment: where all bytes are wanted, they take a few frames more.
        assert!(more < few * 1.6 && most < few * 2.2, "{name}: {few}, {more}, {most}");
    }
}

#[test]
fn ranks_see_what_all_bring() {
    everywhere("ranks_see_what_all_bring", &[1, 2, 3, 5, 7], |world| {
        let (me, n) = (world.rank(), world.size());
        for len in [0, 1, 700] {
            let all = world.allgather(&vec![me as u32; len])?;
            assert_eq!(all, (0..n).flat_map(|rank| vec![rank as u32; len]).collect::<Vec<_>>());
        }
        // In the order of the ranks: the operator, which puts digits behind digits, is not commutative.
        let mut digits = [[me as u64, 10]];
        world.allreduce(&mut digits, |a, b| [a[0] * b[1] + b[0], a[1] * b[1]])?;
        assert_eq!(digits[0][0], (0..n as u64).fold(0, |all, rank| all * 10 + rank));
        world.agree(Ok(()))?;
        let last = world.agree(if me == n - 1 { Err("no input".into()) } else { Ok(()) });
        assert!(matches!(&last, Err(Error::Agreed { rank, why }) if *rank == n - 1 && why == "no input"), "{last:?}");
        // Results that differ at one place of the program are right.
        let mut sum = [1u64];
        world.allreduce(&mut sum, |a, b| a + b + me as u64)?;
        world.agree(Ok(()))
    });
}

#[test]
fn ranks_that_bring_different_lengths_are_told() {
    everywhere("ranks_that_bring_different_lengths_are_told", &[2, 3, 5], |world| {
        let odd = world.size() - 1;
        let told = world.allgather(&vec![1u8; 3 + usize::from(world.rank() == odd)]);
        assert!(matches!(&told, Err(Error::RanksDiffer { rank, .. }) if *rank == odd), "{told:?}");
        world.barrier()
    });
}

#[test]
fn an_exchange_that_a_panic_came_out_of_is_finished_by_the_next_call() {
    let mut panicked = 0;
    for seed in 1..=40 {
        let job = job(Config::new(4, seed).wild());
        let results = job.run(|world| {
            let (me, n) = (world.rank(), world.size());
            let mut panics = 0;
            let call =
                (me == 0).then(|| world.call(2, 7u8, |_, number: u8| assert_ne!(number, 7, "as asked"))).transpose()?;
            for round in 0..4 {
                let gather = || world.allgather(&[10 * round + me]);
                match catch_unwind(AssertUnwindSafe(gather)) {
                    Ok(all) => assert_eq!(all?, (0..n).map(|rank| 10 * round + rank).collect::<Vec<_>>()),
                    Err(_) => panics += 1,
                }
                // All fetch boards, as they differ.
                let agree = || world.agree(if me == 1 { Err("no".into()) } else { Ok(()) });
                match catch_unwind(AssertUnwindSafe(agree)) {
                    Ok(told) => assert!(matches!(told, Err(Error::Agreed { rank: 1, .. })), "{told:?}"),
                    Err(_) => panics += 1,
                }
            }
            if let Some(call) = call {
                call.wait().expect_err("its handler panics");
            }
            world.barrier()?;
            Ok::<_, Error>(panics)
        });
        for (rank, result) in results.expect("runs").into_iter().enumerate() {
            let panics = result.unwrap_or_else(|error| panic!("seed {seed}, rank {rank}: {error}"));
            assert!(panics <= usize::from(rank == 2));
            panicked += panics;
        }
    }
    assert!(panicked > 20, "the handler should run in an exchange most often: {panicked} of 40");
}

#[test]
fn a_difference_in_a_team_names_both_places_over_a_network() {
    for (network, config) in networks(3, 1) {
        let lines = std::sync::Mutex::new([0, 0]);
        let job = job(config);
        let results = job.run(|world| {
            let team = Team::world(world)?;
            let odd = world.rank() == 2;
            let (told, line) = match odd {
                true => (team.allgather(&[1u64, 2]).map(drop), line!()),
                false => (team.allgather(&[1.0f32]).map(drop), line!()),
            };
            lines.lock().expect("no panic")[usize::from(odd)] = line;
            // No rank leaves before all have read who called.
            world.barrier()?;
            Ok::<_, Error>(told)
        });
        let told: Vec<_> =
            results.expect("runs").into_iter().map(|told| told.expect("barriers are the world's")).collect();
        assert!(told.iter().all(Result::is_err), "{network}: {told:?}");
        let differ = told.iter().filter_map(|told| match told {
            Err(error @ Error::RanksDiffer { .. }) => Some(error.to_string()),
            _ => None,
        });
        let differ: Vec<_> = differ.collect();
        let places = lines.into_inner().expect("no panic").map(|line| format!("exchanges.rs:{line}"));
        assert!(!differ.is_empty(), "{network}: {told:?}");
        for error in differ {
            assert!(places.iter().all(|place| error.contains(place)), "{network}: {error} names not both {places:?}");
            assert!(
                error.contains("1 elements of type f32") && error.contains("2 elements of type u64"),
                "{network}: {error}"
            );
        }
    }
}
