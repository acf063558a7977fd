//! Reductions of many ranks, mapped and over a network.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bellwether_runtime::transport::sim::Config;
use bellwether_runtime::{Barrier, Error, Settings, Threads, World};

use super::job;

/// Most ranks that read the contributions of all.
const GATHERED: usize = 64;
/// More than a power of two, so that some ranks have no neighbour.
const RANKS: usize = GATHERED + 2;

/// The result of each rank: of threads, and of a simulated job.
fn each<R: Send>(body: impl Fn(&World) -> R + Sync) -> [Vec<R>; 2] {
    // By default many threads on few cores use a counter, and one of them combines.
    let mut settings = Settings::default();
    settings.barrier = Barrier::Dissemination;
    let threads = Threads::new(RANKS).settings(settings).deadline(Duration::from_secs(120));
    let simulated = job(Config::new(RANKS, 1).wild());
    [threads.run(&body).expect("threads start"), simulated.run(&body).expect("the job starts")]
}

/// The map x -> a x + b of rank r, modulo a prime.
fn map_of(rank: usize) -> [u64; 2] {
    [rank as u64 + 2, 3 * rank as u64 + 1]
}

/// Both maps, one after the other: associative, and does not commute.
fn after([a, b]: [u64; 2], [c, d]: [u64; 2]) -> [u64; 2] {
    [a * c % 1_000_003, (b * c + d) % 1_000_003]
}

#[test]
fn each_contribution_of_many_ranks_is_combined_once() {
    let counts = each(|world| {
        let count = Cell::new(0);
        let counted = |a, b| {
            count.set(count.get() + 1);
            after(a, b)
        };
        for len in [1, 40] {
            let mut maps = vec![map_of(world.rank()); len];
            world.allreduce(&mut maps, counted).expect("all call it");
            let all = (0..RANKS).map(map_of).reduce(after).expect("a rank");
            assert_eq!(maps, vec![all; len], "rank {}", world.rank());
        }
        let mut sum = [world.rank()];
        world.allreduce_sum(&mut sum).expect("all call it");
        assert_eq!(sum, [RANKS * (RANKS - 1) / 2]);
        world.barrier().expect("all call it");
        count.get()
    });
    for counts in counts {
        assert_eq!(counts.iter().sum::<usize>(), (RANKS - 1) * 41, "{counts:?}");
    }
}

#[test]
fn closures_at_other_places_are_told_apart_among_many_ranks() {
    let outcomes = each(|world| {
        let mut value = [world.rank()];
        match world.rank() {
            40 => world.allreduce(&mut value, |a, b| a.max(b)).expect("all reduce"),
            _ => world.allreduce(&mut value, |a, b| a + b).expect("all reduce"),
        }
        world.allgather(&[1u8]).map(drop)
    });
    for error in outcomes.into_iter().flatten().map(|outcome| outcome.expect_err("results differ")) {
        let told = error.to_string();
        assert!(matches!(error, Error::RanksDiffer { .. }) && told.matches(file!()).count() >= 2, "{told}");
    }
}

/// Calls at different places, one after the other: the results are the same, and no rank asks each of the others for its values.
#[test]
fn many_ranks_at_two_places_take_logarithmic_steps() {
    const MANY: usize = 200;
    let log = u64::from(MANY.next_power_of_two().ilog2());
    let job = job(Config::new(MANY, 1));
    let requests = job.run(|world| {
        let mut requests = Vec::new();
        world.barrier().expect("all call it");
        for _ in 0..3 {
            let before = job.network().requests(world.rank()).count;
            let mut map = [map_of(world.rank())];
            match world.rank() % 2 {
                0 => world.allreduce(&mut map, after).expect("all reduce"),
                _ => world.allreduce(&mut map, after).expect("all reduce"),
            }
            requests.push(job.network().requests(world.rank()).count - before);
            assert_eq!(map[0], (0..MANY).map(map_of).reduce(after).expect("a rank"), "rank {}", world.rank());
        }
        let before = job.network().requests(world.rank()).count;
        world.agree(Ok(())).expect("results are the same");
        requests.push(job.network().requests(world.rank()).count - before);
        requests
    });
    let requests = requests.expect("the job starts");
    let most: Vec<u64> = (0..4).map(|call| requests.iter().map(|of| of[call]).max().expect("a rank")).collect();
    println!("at most {most:?} requests of one rank");
    // The barrier, the tree and the values of all; the largest of these messages go in parts.
    assert!(most[..3].iter().all(|most| *most <= 4 * log + 8) && most[3] <= 2 * log + 4, "{most:?}");
}

/// A panic at a rank that calls it at another place, or beside one: the others combine without it.
#[test]
fn an_operator_panics_where_many_are_at_two_places() {
    each(|world| {
        for (odd, panics) in [(0, 32), (65, 0), (40, 40), (64, 34)] {
            let add = |a: usize, b: usize| {
                assert_ne!(world.rank(), panics, "as asked");
                a + b
            };
            let mut values = [1];
            let outcome = catch_unwind(AssertUnwindSafe(|| match world.rank() == odd {
                true => world.allreduce(&mut values, add),
                false => world.allreduce(&mut values, add),
            }));
            match outcome {
                Err(_) => assert_eq!((world.rank(), values), (panics, [1])),
                Ok(outcome) => {
                    outcome.expect("others have all values");
                    assert_eq!(values, [RANKS], "rank {}", world.rank());
                }
            }
            let mut sum = [1];
            world.allreduce_sum(&mut sum).expect("the world goes on");
            assert_eq!(sum, [RANKS]);
        }
    });
}

#[test]
fn many_ranks_hear_of_an_operator_that_panics() {
    each(|world| {
        for panics in [0, 32, 64] {
            let add = |a: usize, b: usize| {
                assert_ne!(world.rank(), panics, "as asked");
                a + b
            };
            let mut values = [1];
            let outcome = catch_unwind(AssertUnwindSafe(|| world.allreduce(&mut values, add)));
            assert_eq!(values, [1], "a call that fails changes nothing, at rank {} as {panics} panics", world.rank());
            match outcome {
                Err(_) => assert_eq!(world.rank(), panics),
                Ok(outcome) => assert!(
                    matches!(&outcome, Err(Error::Agreed { rank, .. }) if *rank == panics),
                    "{outcome:?} at rank {}",
                    world.rank()
                ),
            }
            let mut sum = [1];
            world.allreduce_sum(&mut sum).expect("the world goes on");
            assert_eq!(sum, [RANKS]);
        }
    });
}

/// The operator of rank 64, whose result rank 0 waits for, makes a handler panic there.
#[test]
fn many_ranks_hear_of_a_handlers_panic_in_a_reduction() {
    each(|world| {
        let add = |a: usize, b: usize| {
            if world.rank() == GATHERED {
                let called = world.invoke(0, 7u8, |_, number: u8| assert_ne!(number, 7, "as asked"));
                called.expect("room for a message");
                // It comes before the result does.
                world.sleep(Duration::from_millis(20));
            }
            a + b
        };
        let mut values = [1];
        let outcome = catch_unwind(AssertUnwindSafe(|| world.allreduce(&mut values, add)));
        assert_eq!(values, [1], "a call that fails changes nothing, at rank {}", world.rank());
        match outcome {
            Err(_) => assert_eq!(world.rank(), 0),
            Ok(outcome) => {
                assert!(matches!(&outcome, Err(Error::Agreed { rank: 0, .. })), "{outcome:?} at rank {}", world.rank());
            }
        }
        let mut sum = [1];
        world.allreduce_sum(&mut sum).expect("the world goes on");
        assert_eq!(sum, [RANKS]);
    });
}
