//! Ranks that wait in different collective calls for each other are told, and ranks that are only slow are not.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bellwether_runtime::{Allreduce, Barrier, Error, Result, Team, Threads, World};

use super::{settings, threads, watchdog};

/// The line after this call.
#[track_caller]
fn next_line() -> u32 {
    std::panic::Location::caller().line() + 1
}

/// Runs a program in which every rank waits for good. Each gets [`Error::RanksDiffer`] that has all of `said`.
fn told(ranks: usize, said: &[String], program: impl Fn(&World) -> Result<()> + Sync) {
    watchdog();
    for (rank, outcome) in threads(ranks, program).expect("the ranks start").into_iter().enumerate() {
        let error = outcome.expect_err("nobody can go on");
        let text = error.to_string();
        assert!(matches!(error, Error::RanksDiffer { .. }), "rank {rank} of {ranks}: {text}");
        assert!(said.iter().all(|word| text.contains(word)), "rank {rank} of {ranks}: {said:?}: {text}");
        assert!(text.contains(file!()), "rank {rank} of {ranks}: {text}");
    }
}

pub fn a_barrier_of_the_world_beside_one_of_a_team() {
    for ranks in [2, 3, 5, 16] {
        let (of_world, of_team) = (AtomicU32::new(0), AtomicU32::new(0));
        let outcome = |world: &World| {
            let team = Team::world(world)?;
            world.barrier()?;
            if world.rank() + 1 == world.size() {
                of_team.store(next_line(), Ordering::Relaxed);
                team.barrier()
            } else {
                of_world.store(next_line(), Ordering::Relaxed);
                world.barrier()
            }
        };
        watchdog();
        for (rank, outcome) in threads(ranks, outcome).expect("the ranks start").into_iter().enumerate() {
            let error = outcome.expect_err("nobody can go on");
            let text = error.to_string();
            assert!(matches!(error, Error::RanksDiffer { .. }), "rank {rank} of {ranks}: {text}");
            for place in [&of_world, &of_team] {
                let line = place.load(Ordering::Relaxed);
                assert!(
                    text.contains(&format!("barrier (deadlock.rs:{line})")),
                    "rank {rank} of {ranks}: {line}: {text}"
                );
            }
            assert!(text.contains(file!()), "rank {rank} of {ranks}: {text}");
        }
    }
}

pub fn collectives_of_the_world_beside_those_of_a_team() {
    let said = |words: [&str; 2]| words.map(String::from);
    told(3, &said(["barrier (deadlock.rs", "scan (deadlock.rs"]), |world| {
        let team = Team::world(world)?;
        world.barrier()?;
        match world.rank() {
            // Member 2 of a scan waits for member 1.
            2 => team.scan(&mut [1], |a, b| a + b),
            // An exchange waits in a barrier.
            _ => world.allreduce_sum(&mut [1]),
        }
    });
    told(2, &said(["allreduce (deadlock.rs", "barrier (deadlock.rs"]), |world| {
        let team = Team::world(world)?;
        world.barrier()?;
        if world.rank() == 0 { team.allreduce(&mut [1], |a, b| a + b) } else { world.barrier() }
    });
}

pub fn a_collective_that_was_begun_before() {
    told(3, &["all-to-all (deadlock.rs".into(), "allgather (deadlock.rs".into()], |world| {
        let (first, second) = (Team::world(world)?, Team::world(world)?.subset(&[0, 1, 2])?.expect("a member"));
        world.barrier()?;
        if world.rank() == 1 {
            first.alltoall_async(vec![1; 3]).wait().map(drop)
        } else {
            second.allgather_async(vec![1]).wait().map(drop)
        }
    });
}

/// Two teams in opposite order, at one place of the program.
pub fn teams_in_opposite_order() {
    watchdog();
    for ranks in [2, 4] {
        let outcomes = threads(ranks, |world| {
            let all = Team::world(world)?;
            let again = all.split(Some(0), 0)?.expect("a member");
            let mut teams = [&all, &again];
            if world.rank() == 1 {
                teams.reverse();
            }
            teams.iter().try_for_each(|team| team.barrier())
        });
        for outcome in outcomes.expect("the ranks start") {
            let error = outcome.expect_err("nobody can go on");
            assert!(matches!(error, Error::Standstill { .. }), "{error}");
            assert!(error.to_string().contains(file!()), "{error}");
        }
    }
}

/// The barrier of the world was entered by some, so that its numbers differ between ranks.
pub fn calls_after_it_fail_too() {
    watchdog();
    let outcomes = threads(3, |world| {
        let team = Team::world(world)?;
        let first = match world.rank() {
            1 => team.barrier(),
            _ => world.barrier(),
        };
        assert!(matches!(first, Err(Error::RanksDiffer { .. })), "{first:?}");
        let second = if world.rank() == 1 { team.barrier() } else { world.barrier() };
        Err::<(), _>(second.expect_err("it has failed before"))
    });
    for outcome in outcomes.expect("the ranks start") {
        let error = outcome.expect_err("it has failed before");
        assert!(matches!(error, Error::Agreed { .. }), "{error}");
    }
}

/// Programs whose ranks wait long in different calls, and come to an end.
fn ends(ranks: usize, barrier: Barrier, program: impl Fn(&World) -> Result<()> + Sync) {
    watchdog();
    let mut settings = settings();
    settings.barrier = barrier;
    settings.collectives.allreduce = Allreduce::Tree;
    let outcomes = Threads::new(ranks).settings(settings).run(program).expect("the ranks start");
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        outcome.unwrap_or_else(|error| panic!("rank {rank} of {ranks}: {error}"));
    }
}

const LONG: Duration = Duration::from_millis(600);

pub fn who_computes_ends_the_waits_of_others() {
    for barrier in [Barrier::Central, Barrier::Dissemination] {
        ends(6, barrier, |world| {
            let team = Team::world(world)?;
            let bell = world.bell()?;
            for late in [0, 3] {
                let began = team.allreduce_async(vec![1u64], |a, b| a + b);
                match world.rank() {
                    rank if rank == late => std::thread::sleep(LONG),
                    // In no collective, for as long.
                    rank if rank == late + 1 => bell.wait(1).map(drop)?,
                    // With a limit.
                    rank if rank == late + 2 => {
                        let limit = Duration::from_millis(1);
                        while matches!(world.barrier_for(limit), Err(Error::TimedOut { .. })) {}
                    }
                    _ => {}
                }
                if world.rank() == late {
                    bell.ring(late + 1)?;
                }
                if world.rank() != late + 2 {
                    world.barrier()?;
                }
                assert_eq!(began.wait()?, [6]);
            }
            Ok(())
        });
    }
}

/// Up a tree of ranks, where 6 combines what 7 has, and then 4 what 6 has. While one combines, all others sleep, and none gets out of
/// its wait before the end.
pub fn steps_of_a_long_reduction_are_seen() {
    for by_wait in [false, true] {
        ends(8, Barrier::Auto, |world| {
            let team = Team::world(world)?;
            let (rank, calls) = (world.rank(), std::rc::Rc::new(std::cell::Cell::new(0)));
            let slow = move |a: u64, b: u64| {
                calls.set(calls.get() + 1);
                if (rank, calls.get()) == (6, 1) || (rank, calls.get()) == (4, 2) {
                    std::thread::sleep(LONG);
                }
                a + b
            };
            world.barrier()?;
            if rank == 7 {
                // The others are in their waits before.
                std::thread::sleep(LONG / 3);
            }
            let mut values = vec![1u64];
            if by_wait {
                values = team.allreduce_async(values, slow).wait()?;
            } else {
                team.allreduce(&mut values, slow)?;
            }
            assert_eq!(values, [8]);
            Ok(())
        });
    }
}

pub fn a_thread_with_a_context_may_end_a_wait() {
    ends(2, Barrier::Auto, |world| {
        let bell = world.bell()?;
        let (context, ring) = (world.context()?, bell.for_threads());
        std::thread::scope(|scope| {
            // Rank 0 enters the barrier after what the thread of rank 1 does.
            if world.rank() == 1 {
                let ring = &ring;
                scope.spawn(move || {
                    std::thread::sleep(LONG);
                    context.ring(ring, 0)
                });
            } else {
                bell.wait(1)?;
            }
            world.barrier()
        })
    });
}

pub fn many_ranks_on_few_cores_go_on() {
    for barrier in [Barrier::Central, Barrier::Dissemination] {
        ends(24, barrier, |world| {
            let team = Team::world(world)?;
            let halves = team.split(Some(world.rank() as u64 % 2), 0)?.expect("a member");
            for round in 0..12 {
                if round % 4 == world.rank() % 4 {
                    std::thread::sleep(Duration::from_millis(40));
                }
                let mut values = vec![1u64; 64];
                halves.allreduce(&mut values, |a, b| a + b)?;
                assert_eq!(values, [12; 64]);
                let began = team.alltoall_async(vec![world.rank(); world.size()]);
                world.barrier()?;
                assert!(began.wait()?.into_iter().eq(0..world.size()));
            }
            Ok(())
        });
    }
}
