//! Teams made of teams, many of them, collectives side by side, and what goes wrong.

mod worlds;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bellwether::{
    Allreduce, Collectives, Error, Max, Result, Settings, Simulated, Sum, Team, TeamBarrier, Threads, World, sim,
};
use bellwether_tests::watchdog;
use worlds::{everywhere, on_nodes, on_threads, simulated};

const LIMIT: Duration = Duration::from_secs(60);

fn sum(team: &Team, value: u64) -> Result<u64> {
    let mut values = [value];
    team.allreduce(&mut values, Sum)?;
    Ok(values[0])
}

#[test]
fn teams_of_teams() {
    everywhere(|world| {
        let all = Team::world(world)?;
        let (rank, size) = (all.rank(), all.size());
        assert_eq!((rank, size), (world.rank(), world.size()));
        // Backwards, by the key.
        let parity = all.split(Some(rank as u64 % 2), -(rank as i64))?.expect("a colour");
        let expected: Vec<usize> = (0..size).rev().filter(|other| other % 2 == rank % 2).collect();
        assert_eq!(parity.world_ranks().collect::<Vec<_>>(), expected);
        assert_eq!(parity.world_rank(parity.rank())?, rank);
        assert_eq!(parity.team_rank(rank), Some(parity.rank()));
        assert_eq!(sum(&parity, rank as u64)?, expected.iter().sum::<usize>() as u64);
        // Only the first of each takes part.
        let first = parity.split((parity.rank() == 0).then_some(5), 0)?;
        assert_eq!(first.is_some(), parity.rank() == 0);
        if let Some(first) = &first {
            assert_eq!(first.size(), 1);
            first.barrier()?;
        }
        let list: Vec<usize> = (0..parity.size()).rev().step_by(2).collect();
        let some = parity.subset(&list)?;
        assert_eq!(some.is_some(), list.contains(&parity.rank()));
        if let Some(some) = some {
            assert_eq!(some.rank(), list.iter().position(|rank| *rank == parity.rank()).expect("on it"));
            assert_eq!(some.allgather(&[parity.rank()])?, list);
        }
        assert_eq!(all.split_by_node()?.size(), size);
        Ok(())
    });
}

/// More than there are slots, one after the other, with other members each time.
#[test]
fn many_teams_made_and_dropped() {
    let mut settings = Settings::default();
    (settings.teams, settings.team_memory, settings.world_team_memory) = (3, 8192, 8192);
    let body = |world: &World| {
        let all = Team::world(world)?;
        for round in 0..20usize {
            let colour = (all.rank() * 7 + round) / 3 % 2;
            let part = all.split(Some(colour as u64), (round as i64) * (all.rank() as i64))?.expect("a colour");
            let ranks: u64 = part.world_ranks().map(|rank| rank as u64).sum();
            for repeat in 0..1 + round % 3 {
                assert_eq!(sum(&part, world.rank() as u64)?, ranks);
                let mut word = [part.rank() + repeat];
                part.broadcast(repeat % part.size(), &mut word)?;
                assert_eq!(word, [repeat % part.size() + repeat]);
            }
        }
        Ok(())
    };
    on_threads(&settings, &[1, 2, 3, 5, 7], body);
    simulated(&settings, &[2, 3, 5, 7], 3, body);
}

/// Flags that a team has left in its lines are not those of the next team in its slot.
#[test]
fn lines_of_a_slot_begin_anew() {
    let mut settings = Settings::default();
    (settings.teams, settings.team_memory, settings.world_team_memory) = (2, 8192, 8192);
    let lines = Collectives { allreduce: Allreduce::Lines, ..Collectives::default() };
    on_threads(&settings, &[2, 3, 8], |world| {
        let all = Team::world(world)?;
        for round in 0..12u64 {
            let team = all.split(Some(0), 0)?.expect("a colour");
            team.set_algorithms(lines);
            for repeat in 0..1 + round % 3 {
                // A rank that comes late: others must not take what it wrote before.
                if team.rank() as u64 == (round + repeat) % team.size() as u64 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                let value = (round + 1) * (repeat + 1);
                assert_eq!(sum(&team, value)?, value * team.size() as u64);
            }
        }
        Ok(())
    });
}

#[test]
fn a_panic_of_an_operator_by_lines_is_told() {
    let outcomes = Threads::new(2).deadline(LIMIT).run(|world| {
        let team = Team::world(world).expect("a team");
        team.set_algorithms(Collectives { allreduce: Allreduce::Lines, ..Collectives::default() });
        let rank = world.rank();
        let operator = |a: u64, b: u64| if rank == 1 { panic!("on purpose") } else { a + b };
        let first = catch_unwind(AssertUnwindSafe(|| team.allreduce(&mut [1u64], operator)));
        assert_eq!(first.is_err(), rank == 1);
        let next = team.barrier().expect_err("the team has failed").to_string();
        assert!(next.contains("panicked in a team's allreduce: on purpose"), "{next}");
    });
    outcomes.expect("threads start");
}

#[test]
fn elements_of_no_bytes_are_combined() {
    on_threads(&Settings::default(), &[1, 2, 3, 8], |world| {
        let team = Team::world(world)?;
        for allreduce in [Allreduce::Auto, Allreduce::Lines] {
            team.set_algorithms(Collectives { allreduce, ..Collectives::default() });
            team.allreduce(&mut [(); 3], |(), ()| ())?;
        }
        Ok(())
    });
}

#[test]
fn an_operator_in_the_background_calls_nothing_of_its_team() {
    for ranks in [2, 3] {
        let told = Threads::new(ranks).deadline(LIMIT).run(|world| {
            let team = std::rc::Rc::new(Team::world(world).expect("a team"));
            let (inner, told) = (team.clone(), std::rc::Rc::new(std::cell::Cell::new(0)));
            let count = std::rc::Rc::clone(&told);
            let operator = move |a: u64, b: u64| {
                let error = inner.barrier().expect_err("in a collective of the same team").to_string();
                assert!(error.contains("in another collective call"), "{error}");
                count.set(count.get() + 1);
                a + b
            };
            let sum = team.allreduce_async(vec![1u64], operator).wait().expect("all call it");
            assert_eq!(sum, [ranks as u64]);
            told.get()
        });
        assert!(told.expect("threads start").into_iter().sum::<usize>() > 0, "no operator has run");
    }
}

#[test]
fn too_many_teams_is_an_error_that_passes() {
    let mut settings = Settings::default();
    settings.teams = 4;
    on_threads(&settings, &[1, 3], |world| {
        let all = Team::world(world)?;
        let mut teams = Vec::new();
        for _ in 0..3 {
            teams.push(all.split(Some(0), 0)?.expect("a colour"));
        }
        let error = all.split(Some(0), 0).expect_err("no slot left").to_string();
        assert!(
            error.contains("teams") && error.contains("BELLWETHER_TEAMS") && error.contains("free of 4"),
            "{error}"
        );
        teams.pop();
        let again = all.split(Some(0), 0)?.expect("a colour");
        assert_eq!(sum(&again, 1)?, world.size() as u64);
        Ok(())
    });
}

/// Dropped while their collectives are under way, which go on: the slots come back.
#[test]
fn teams_dropped_with_collectives_under_way() {
    let mut settings = Settings::default();
    (settings.teams, settings.team_memory) = (3, 8192);
    let body = |world: &World| {
        let all = Team::world(world)?;
        for round in 0..50usize {
            let team = all.split((round % 5 != world.rank()).then_some(0), 0)?;
            if let Some(team) = team {
                let (sums, barrier) = (team.allreduce_async(vec![1u64; 40], Sum), team.barrier_async());
                match (world.rank() + round) % 3 {
                    0 => drop((sums, barrier, team)),
                    1 => drop((team, barrier, sums)),
                    // The mates of those that dropped theirs at once.
                    _ => {
                        let size = team.size() as u64;
                        drop((team, barrier));
                        assert_eq!(sums.wait()?, [size; 40]);
                    }
                }
            }
        }
        // Nobody leaves before all are done.
        all.barrier()
    };
    on_threads(&settings, &[1, 2, 3, 5], body);
    simulated(&settings, &[2, 3, 5], 3, body);
    on_nodes(&settings, &[(5, &[2])], body);
}

#[test]
fn collectives_side_by_side() {
    let body = |world: &World| {
        let all = Team::world(world)?;
        let (rank, size) = (all.rank(), all.size());
        let twin = all.split(Some(0), 0)?.expect("a colour");
        for round in 0..5u64 {
            // Some begin them in another order, and wait in another.
            let (on_twin, on_all) = match rank % 2 {
                0 => {
                    let on_all = all.allgather_async(vec![rank; 40]);
                    (twin.allreduce_async(vec![rank as u64 + round; 300], Max), on_all)
                }
                _ => {
                    let on_twin = twin.allreduce_async(vec![rank as u64 + round; 300], Max);
                    (on_twin, all.allgather_async(vec![rank; 40]))
                }
            };
            if (rank / 2 + round as usize).is_multiple_of(2) {
                assert_eq!(on_all.wait()?, (0..size).flat_map(|rank| [rank; 40]).collect::<Vec<_>>());
                assert_eq!(on_twin.wait()?, vec![size as u64 - 1 + round; 300]);
            } else {
                assert_eq!(on_twin.wait()?, vec![size as u64 - 1 + round; 300]);
                assert_eq!(on_all.wait()?, (0..size).flat_map(|rank| [rank; 40]).collect::<Vec<_>>());
            }
            // Several on one team: the last wait drives all; one is dropped.
            let scan = all.scan_async(vec![1usize], Sum);
            drop(all.broadcast_async(size - 1, vec![rank]));
            let parts = all.scatter_async(0, if rank == 0 { (0..size).collect() } else { vec![] }, 1);
            let gathered = all.gather_async(size - 1, vec![rank]);
            let reduced = all.reduce_async(0, vec![rank], Sum);
            let turned = all.alltoall_async((0..size).map(|to| rank * 100 + to).collect());
            let uneven = all.alltoallv_async(vec![rank; size], vec![1; size]);
            let before = all.exclusive_scan_async(vec![rank], 1000, Sum);
            let barrier = all.barrier_async();
            assert_eq!(sum(&all, 1)?, size as u64);
            barrier.wait()?;
            assert_eq!(before.wait()?, [1000 + rank * rank.saturating_sub(1) / 2]);
            assert_eq!(uneven.wait()?, ((0..size).collect(), vec![1; size]));
            assert_eq!(turned.wait()?, (0..size).map(|from| from * 100 + rank).collect::<Vec<_>>());
            assert_eq!(reduced.wait()?, (rank == 0).then(|| vec![size * (size - 1) / 2]));
            assert_eq!(gathered.wait()?, (rank == size - 1).then(|| (0..size).collect()));
            assert_eq!(parts.wait()?, [rank]);
            assert_eq!(scan.wait()?, [rank + 1]);
        }
        Ok(())
    };
    everywhere(body);
    on_threads(&Settings::default(), &[16], body);
}

/// Driven by a loop that knows nothing of the library, in the manner of an executor.
#[test]
fn any_executor_will_do() {
    fn run<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        loop {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
        }
    }
    everywhere(|world| {
        let team = Team::world(world)?;
        let words = world.alloc::<u64>(4)?;
        let next = (world.rank() + 1) % world.size();
        run(async {
            words.fetch_add_async(next, 0, 5).await?;
            words.put_slice_async(next, 1, &[6, 7]).await?;
            team.barrier_async().await?;
            assert_eq!(words.get_slice_async(world.rank(), 0, 3).await?, [5, 6, 7]);
            team.barrier_async().await?;
            assert_eq!(words.compare_swap_async(next, 0, 5, 9).await?, 5);
            team.allreduce_async(vec![1u64], Sum).await
        })
        .map(|sums| assert_eq!(sums, [world.size() as u64]))
    });
}

/// Each rank's outcome of a collective called otherwise by one of them.
fn outcomes(ranks: usize, body: impl Fn(&Team) -> Result<()> + Sync) -> Vec<String> {
    let _guard = watchdog::guard("a mismatch", LIMIT);
    let outcomes = Threads::new(ranks).run(|world| {
        let team = Team::world(world).expect("memory for teams");
        let outcome = body(&team);
        // Nobody leaves before all have heard.
        world.barrier().expect("the world is well");
        outcome.err().map_or_else(String::new, |error| error.to_string())
    });
    outcomes.expect("threads start")
}

#[test]
fn both_sides_are_told_with_types_and_places() {
    // One line for each call.
    let types = |team: &Team| match team.rank() {
        0 => team.allreduce(&mut [1u64], Sum),
        _ => team.allreduce(&mut [1f64], Sum),
    };
    let roots = |team: &Team| {
        match team.rank() {
            0 => team.reduce(0, &mut [1u32], Sum)?,
            _ => team.reduce(1, &mut [1u32], Sum)?,
        }
        // For members that are no root.
        team.barrier()
    };
    let futures = |team: &Team| match team.rank() {
        0 => team.allgather_async(vec![1u8; 3]).wait().map(drop),
        _ => team.allgather_async(vec![1u8; 4]).wait().map(drop),
    };
    let closures = |team: &Team| {
        // Where one member combines for all, all get the same.
        team.set_algorithms(Collectives { allreduce: Allreduce::Gather, ..Collectives::default() });
        match team.rank() {
            0 => team.allreduce(&mut [team.rank()], |a, b| a + b)?,
            _ => team.allreduce(&mut [team.rank()], |a: usize, b| a.max(b) + 5)?,
        }
        match team.rank() {
            0 => team.allgather(&[1u8]).map(drop),
            _ => team.allgather(&[1u8]).map(drop),
        }
    };
    type Body<'a> = &'a (dyn Fn(&Team) -> Result<()> + Sync);
    let cases: [(&[&str], Body<'_>); 4] = [
        (&["1 elements of type u64", "1 elements of type f64", "by Sum"], &types),
        (&["of type u32", "root 0", "root 1"], &roots),
        (&["3 elements of type u8", "4 elements of type u8"], &futures),
        (&["other results of an allreduce before allgather"], &closures),
    ];
    for (what, body) in cases {
        let outcomes = outcomes(3, body);
        let places = |text: &str| {
            let line =
                |place: &str| place.split_once("team_life.rs:")?.1.split(&[';', ',', ')'][..]).next()?.parse().ok();
            let mut lines: Vec<u32> = text.split("called at ").skip(1).filter_map(line).collect();
            lines.sort_unstable();
            lines
        };
        let is_told = |text: &String| {
            let lines = places(text);
            what.iter().all(|what| text.contains(what)) && lines.len() == 2 && lines[0] != lines[1]
        };
        assert!(outcomes.iter().any(is_told), "{what:?}: {outcomes:#?}");
        assert!(outcomes.iter().all(|text| !text.is_empty()), "{what:?}: {outcomes:#?}");
    }
}

#[test]
fn the_place_of_a_call_with_wrong_arguments_is_told() {
    on_threads(&Settings::default(), &[2], |world| {
        let team = Team::world(world)?;
        let line = line!() + 1;
        let blocking = team.broadcast(2, &mut [1]).expect_err("no such member").to_string();
        let future = team.gather_async(2, vec![1]);
        let future = future.wait().expect_err("no such member").to_string();
        for (text, line) in [(blocking, line), (future, line + 1)] {
            assert!(text.contains(&format!("(called at pgas/tests/team_life.rs:{line})")), "{text}");
        }
        Ok(())
    });
}

#[test]
fn barriers_by_different_algorithms_follow_each_other() {
    on_threads(&Settings::default(), &[3, 4], |world| {
        let team = Team::world(world)?;
        for _ in 0..2000 {
            for barrier in [TeamBarrier::Central, TeamBarrier::Dissemination] {
                team.set_algorithms(Collectives { barrier, ..Collectives::default() });
                team.barrier()?;
            }
        }
        Ok(())
    });
}

#[test]
fn members_that_differ_are_told_so() {
    let told = |ranks, what: &[&str], body: &(dyn Fn(&Team) -> Result<()> + Sync)| {
        let outcomes = outcomes(ranks, body);
        assert!(outcomes.iter().any(|text| what.iter().all(|what| text.contains(what))), "{what:?}: {outcomes:#?}");
        assert!(outcomes.iter().all(|text| !text.is_empty()), "{what:?}: {outcomes:#?}");
    };
    for ranks in [2, 3, 5] {
        told(ranks, &["3 elements", "4 elements", "allreduce"], &|team| {
            team.allreduce(&mut vec![0u64; 3 + team.rank() / (team.size() - 1)], Sum)?;
            team.barrier()
        });
        told(ranks, &["by Sum", "by Max"], &|team| match team.rank() {
            0 => team.allreduce(&mut [1], Sum),
            _ => team.allreduce(&mut [1], Max),
        });
        told(ranks, &["root 0", "root 1"], &|team| {
            team.broadcast(usize::from(team.rank() == 1), &mut [1])?;
            team.allreduce(&mut [1], Sum)
        });
        told(ranks, &["barrier", "gather"], &|team| match team.rank() {
            0 => team.gather(0, &[1u8]).map(drop),
            _ => team.barrier(),
        });
        told(ranks, &["7 elements for"], &|team| {
            team.scatter(0, &[0u8; 7][..if team.rank() == 0 { 7 } else { 0 }], &mut [0u8; 2])
        });
    }
}

#[test]
fn wrong_arguments_are_errors_and_the_team_goes_on() {
    everywhere(|world| {
        let team = Team::world(world)?;
        let size = team.size();
        let wrong = |outcome: Result<()>, what: &str| {
            let text = outcome.expect_err(what).to_string();
            assert!(text.contains(what), "{text}");
        };
        wrong(team.broadcast(size, &mut [1]), &format!("rank {size} is outside the team"));
        wrong(team.reduce(size + 3, &mut [1], Sum), "outside the team");
        wrong(team.gather_async(size, vec![1]).wait().map(drop), "outside the team");
        wrong(team.scatter(size, &[], &mut [1]), "outside the team");
        wrong(team.subset(&[]).map(drop), &format!("the list of ranks is empty, of a team of {size}"));
        wrong(team.subset(&[0, size]).map(drop), "outside the team");
        wrong(team.subset(&[0, 0]).map(drop), "twice");
        wrong(team.alltoallv(&[1], &vec![0; size]).map(drop), "sum to 0");
        wrong(team.alltoallv::<u8>(&[], &vec![0; size + 1]).map(drop), "one for each member");
        if size > 1 {
            wrong(team.alltoall(&vec![0u8; size + 1]).map(drop), "cannot be parted equally");
        }
        wrong(team.world_rank(size).map(drop), "outside the team");
        // Nothing of that length is made, nor gone through.
        let units = vec![(); usize::MAX];
        wrong(team.scatter_async::<u64>(0, vec![1], usize::MAX).wait().map(drop), "for each of");
        wrong(team.scatter_async::<u64>(0, vec![1], usize::MAX >> 5).wait().map(drop), "for each of");
        wrong(team.gather(0, &units).map(drop), "for each of");
        wrong(team.allgather_async(units.clone()).wait().map(drop), "for each of");
        wrong(team.broadcast(0, &mut [(); usize::MAX]), "for each of");
        wrong(team.alltoall(&units[..usize::MAX / size * size]).map(drop), "for each of");
        wrong(team.alltoallv(&units[..size * 5], &vec![usize::MAX; size]).map(drop), "counts, which sum to");
        team.broadcast(0, &mut [(); 1 << 40])?;
        assert_eq!(sum(&team, 2)?, 2 * size as u64);
        Ok(())
    });
}

#[test]
fn an_element_larger_than_a_buffer_is_an_error() {
    let mut settings = Settings::default();
    (settings.team_memory, settings.world_team_memory) = (4096, 4096);
    on_threads(&settings, &[1, 2], |world| {
        let team = Team::world(world)?;
        let error = team.allgather(&[[0u8; 1024]]).expect_err("1 KiB of buffer").to_string();
        assert!(error.contains("1024 bytes") && error.contains("raise BELLWETHER_WORLD_TEAM_MEMORY"), "{error}");
        Ok(())
    });
}

/// A member that is gone: every other one hears of it, now and later.
#[test]
fn a_lost_member_is_an_error() {
    for (ranks, how) in [(2, "leaves"), (3, "leaves"), (5, "leaves"), (3, "is cut off")] {
        let _guard = watchdog::guard(format!("{ranks} ranks, one {how}"), LIMIT);
        let body = |world: &World| -> Result<()> {
            let team = Team::world(world)?;
            team.barrier()?;
            if world.rank() == 1 {
                return Ok(());
            }
            for _ in 0..2 {
                let error = team.allreduce(&mut [1u64], Sum).expect_err("a member is gone");
                assert!(matches!(error, Error::PeerLost { .. } | Error::Standstill { .. }), "{error}");
            }
            Ok(())
        };
        if how == "leaves" {
            let outcomes = Threads::new(ranks).run(body).expect("threads start");
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        } else {
            let job = Simulated::new(sim::Config::new(ranks, 1).wild());
            let outcomes = job.run(body).expect("the job starts");
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        }
    }
}

/// An operator that panics, on all members or on one: there the panic comes from the call, and from then on errors; the
/// others hear of it, and other teams go on.
fn one_panics(world: &World, who: Option<usize>, posted: bool) -> Result<()> {
    let all = Team::world(world)?;
    let team = all.split(Some(0), 0)?.expect("a colour");
    // Everyone combines.
    team.set_algorithms(Collectives { allreduce: Allreduce::Gather, ..Collectives::default() });
    let panics = who.is_none_or(|who| who == world.rank());
    let operator = move |a: u64, b: u64| {
        assert!(!panics, "words of an operator");
        a + b
    };
    let beside = all.allreduce_async(vec![1u64], Sum);
    let outcome = catch_unwind(AssertUnwindSafe(|| match posted {
        true => team.allreduce_async(vec![1u64], operator).wait().map(drop),
        false => team.allreduce(&mut [1u64], operator),
    }));
    let heard = match outcome {
        Err(panic) => {
            assert!(panics);
            assert_eq!(panic.downcast_ref(), Some(&"words of an operator"));
            let error = team.barrier().expect_err("the team is broken").to_string();
            assert!(error.contains("words of an operator") && error.contains("panicked"), "{error}");
            team.barrier_async().wait()
        }
        Ok(outcome) => {
            // Where all panic, one may hear of another before.
            assert_ne!(who, Some(world.rank()));
            outcome.and_then(|()| team.barrier())
        }
    };
    let error = heard.expect_err("a member panicked").to_string();
    let from = who.map_or_else(|| "rank ".into(), |who| format!("rank {who}"));
    assert!(error.contains(&from) && error.contains("panicked"), "{error}");
    team.allreduce_async(vec![1u64], Sum).wait().expect_err("it stays so");
    assert_eq!(beside.wait()?, [world.size() as u64]);
    assert_eq!(sum(&all, 1)?, world.size() as u64);
    Ok(())
}

#[test]
fn a_panic_in_a_collective_ends_its_team_and_hangs_nobody() {
    let settings = Settings::default();
    for (who, posted) in [(None, false), (None, true), (Some(1), false), (Some(1), true)] {
        println!("panics: {who:?}, future form: {posted}");
        on_threads(&settings, &[2, 3], |world| one_panics(world, who, posted));
        simulated(&settings, &[2, 3], 2, |world| one_panics(world, who, posted));
    }
    // The head of a node, which combines for it.
    for posted in [false, true] {
        on_nodes(&settings, &[(5, &[2]), (7, &[3])], |world| one_panics(world, Some(0), posted));
    }
}

/// What a panic in a future form leaves behind is for its own wait, whoever drove it.
#[test]
fn a_panic_of_a_collective_under_way_comes_from_its_own_wait() {
    on_threads(&Settings::default(), &[1, 2, 3], |world| {
        let all = Team::world(world)?;
        let team = all.split(Some(0), 0)?.expect("a colour");
        let panics = world.rank() == 0;
        let operator = move |a: u64, b: u64| {
            assert!(!panics, "words of an operator");
            a + b
        };
        let (first, second) = (team.reduce_async(0, vec![1u64], operator), team.barrier_async());
        // Both are driven to their ends by polls.
        while !second.is_done() {
            world.poll()?;
        }
        assert_eq!(sum(&all, 1)?, world.size() as u64);
        match catch_unwind(AssertUnwindSafe(|| first.wait())) {
            Err(panic) => assert!(panics && panic.downcast_ref() == Some(&"words of an operator")),
            Ok(outcome) => assert!(!panics || (world.size() == 1 && outcome? == Some(vec![1]))),
        }
        assert_eq!(second.wait().is_err(), world.size() > 1);
        Ok(())
    });
}

/// A future of the program's own that panics: collectives go on at every poll, as before.
#[test]
fn a_panic_in_the_programs_future_leaves_collectives_going() {
    simulated(&Settings::default(), &[3], 2, |world| {
        let (all, done) = (Team::world(world)?, world.alloc::<u64>(1)?);
        let future = async { panic!("words of the program") };
        assert!(catch_unwind(AssertUnwindSafe(|| world.block_on::<()>(future))).is_err());
        let barrier = all.barrier_async();
        if world.rank() > 0 {
            barrier.wait()?;
            done.fetch_add(0, 0, 1)?;
            return world.barrier();
        }
        // The others' barriers need steps of this one's, which nobody looks at.
        let begin = std::time::Instant::now();
        while done.fetch_add(0, 0, 0)? < 2 {
            assert!(begin.elapsed().as_secs() < 100, "nobody drives it");
            world.poll()?;
        }
        barrier.wait()?;
        world.barrier()
    });
}

/// A handler that panics while its rank is in a barrier: the panic comes out of the barrier, and the team is broken everywhere.
#[test]
fn a_panic_of_a_handler_out_of_a_barrier_ends_the_team_and_hangs_nobody() {
    on_threads(&Settings::default(), &[3], |world| {
        for barrier in [TeamBarrier::Central, TeamBarrier::Dissemination] {
            let all = Team::world(world)?;
            let team = all.split(Some(0), 0)?.expect("a colour");
            team.set_algorithms(Collectives { barrier, ..Collectives::default() });
            let in_barrier = world.bell()?;
            match world.rank() {
                0 => {
                    in_barrier.wait(1)?;
                    world.sleep(Duration::from_millis(20));
                    let call = world.call(1, 7u8, |_, number: u8| assert_ne!(number, 7, "as asked"))?;
                    call.wait().expect_err("its handler panics");
                    // Rank 1 may have entered for good before.
                    drop(team.barrier());
                }
                1 => {
                    in_barrier.ring(0)?;
                    catch_unwind(AssertUnwindSafe(|| team.barrier())).expect_err("a handler panics meanwhile");
                }
                _ => drop(team.barrier()),
            }
            let error = team.allreduce(&mut [1u64], Sum).expect_err("the team is broken").to_string();
            assert!(
                error.contains("rank 1") && error.contains("was given up before it was done"),
                "{barrier:?}: {error}"
            );
            assert_eq!(sum(&all, 1)?, 3);
        }
        Ok(())
    });
}
