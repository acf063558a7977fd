//! The world's collectives in their future form: tested, given a time limit, resumed, and several under way.

use std::time::Duration;

use bellwether_runtime::{Error, Pending, Result, Sum, Team, World};

use super::{is_mapped, threads, watchdog};

/// Rank 0 makes its calls when all others have found theirs not done.
fn rank_0_is_late(world: &World) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let go_on = world.bell()?;
    Team::world(world)?;
    if rank == 0 {
        go_on.wait(size as u64 - 1)?;
        // A call that blocks needs no order with them.
        world.barrier()?;
    }
    let barrier = &mut world.barrier_async()?;
    let sums = &mut world.allreduce_async(vec![rank, 1], |a, b| a + b)?;
    let values = &mut world.broadcast_async(0, vec![rank + 7; 3000])?;
    let all = &mut world.allgather_async(vec![rank as u8])?;
    if rank > 0 {
        for _ in 0..2 {
            assert!(!barrier.is_done() && !sums.is_done() && !values.is_done() && !all.is_done());
            let told = [
                barrier.wait_for(Duration::ZERO).err(),
                sums.wait_for(Duration::ZERO).err(),
                values.wait_for(Duration::from_millis(1)).err(),
                all.wait_for(Duration::ZERO).err(),
            ];
            assert!(told.iter().all(|told| matches!(told, Some(Error::TimedOut { .. }))), "{told:?}");
        }
        go_on.ring(0)?;
        world.barrier()?;
    }
    // Not in the order of their start.
    let limit = Duration::from_secs(60);
    assert_eq!(all.wait_for(limit)?, (0..size as u8).collect::<Vec<_>>());
    assert_eq!(sums.wait_for(limit)?, [size * (size - 1) / 2, size]);
    barrier.wait_for(limit)?;
    assert_eq!(values.wait_for(limit)?, [7; 3000]);
    let again = sums.wait_for(limit).expect_err("its result is taken").to_string();
    assert!(again.contains("an earlier wait has given its result"), "{again}");
    world.barrier()
}

pub fn the_worlds_collectives_are_tested_limited_and_resumed() {
    watchdog();
    for ranks in [2, 3, 5] {
        for (rank, outcome) in threads(ranks, rank_0_is_late).expect("the ranks start").into_iter().enumerate() {
            outcome.unwrap_or_else(|error| panic!("rank {rank} of {ranks}: {error}"));
        }
    }
}

/// As above, of allocations, beside one that blocks.
fn rank_0_allocates_late(world: &World) -> Result<()> {
    const LEN: usize = 700;
    let (rank, size) = (world.rank(), world.size());
    let go_on = world.bell()?;
    // What is allocated later may lie where this was.
    let used = world.alloc::<u64>(3 * LEN)?;
    used.write(0, &[u64::MAX; 3 * LEN]);
    Team::world(world)?;
    drop(used);
    if rank == 0 {
        go_on.wait(size as u64 - 1)?;
    }
    let (array, bell) = (&mut world.alloc_async::<u64>(LEN)?, &mut world.bell_async()?);
    if rank > 0 {
        for limit in [Duration::ZERO, Duration::from_millis(1)] {
            assert!(!array.is_done() && !bell.is_done());
            assert!(matches!(array.wait_for(limit), Err(Error::TimedOut { .. })));
            assert!(matches!(bell.wait_for(limit), Err(Error::TimedOut { .. })));
        }
        go_on.ring(0)?;
    }
    let blocking = world.alloc::<u64>(LEN)?;
    blocking.write(0, &[7; LEN]);
    let limit = Duration::from_secs(60);
    let (bell, array) = (bell.wait_for(limit)?, array.wait_for(limit)?);
    // Zeroed before any rank has it.
    array.put_bell((rank + 1) % size, LEN - 1, 10 + rank as u64, &bell)?;
    bell.wait(1)?;
    let mut values = [1; LEN];
    array.read(0, &mut values);
    assert_eq!((values[LEN - 1], &values[..LEN - 1]), (10 + (rank + size - 1) as u64 % size as u64, &[0; LEN - 1][..]));
    blocking.read(0, &mut values);
    assert_eq!(values, [7; LEN]);
    // No memory for it at any rank, which does not break the team.
    let told = world.alloc_async::<u64>(usize::MAX / 16)?.wait().expect_err("there is not as much").to_string();
    assert!(told.contains("BELLWETHER_HEAP_LIMIT") && told.contains("under_way.rs"), "{told}");
    let array = world.alloc_async::<u8>(1)?.wait()?;
    array.put((rank + 1) % size, 0, 3)?;
    world.barrier()?;
    assert_eq!(array.load(0), 3);
    world.barrier()
}

pub fn allocations_are_tested_limited_and_resumed() {
    watchdog();
    for ranks in [2, 3, 5] {
        for (rank, outcome) in threads(ranks, rank_0_allocates_late).expect("the ranks start").into_iter().enumerate() {
            outcome.unwrap_or_else(|error| panic!("rank {rank} of {ranks}: {error}"));
        }
    }
}

pub fn allocations_that_differ_are_told() {
    watchdog();
    let outcomes = threads(2, |world| {
        let pending = match world.rank() {
            0 => world.alloc_async::<u64>(5)?,
            _ => world.alloc_async::<u64>(6)?,
        };
        let told = pending.wait().expect_err("the ranks differ").to_string();
        Ok::<_, Error>((told.contains("allocation of 5 elements") && told.contains("6 elements"), told))
    });
    let told: Vec<_> = outcomes.expect("the ranks start").into_iter().map(|told| told.expect("a team")).collect();
    // Over a network the one that finds it may be told alone, and the other one that it was.
    let are_right = |told: &(bool, String)| told.0;
    assert!(if is_mapped() { told.iter().all(are_right) } else { told.iter().any(are_right) }, "{told:?}");
    // More than there are addresses, at one rank: the other does not wait for it.
    let outcomes = threads(2, |world| {
        let len = if world.rank() == 0 { usize::MAX } else { 1 };
        let outcome = world.alloc_async::<u64>(len).and_then(Pending::wait);
        outcome.expect_err("one asks for too much").to_string()
    });
    let told = outcomes.expect("the ranks start");
    assert!(told[0].contains("exceed the address space"), "{told:?}");
}

pub fn future_forms_that_differ_are_told_with_both_places() {
    watchdog();
    let outcomes = threads(2, |world| {
        let line = line!() + 2;
        let pending = match world.rank() {
            0 => world.allreduce_async(vec![1u64], Sum)?,
            _ => world.broadcast_async(0, vec![1u64])?,
        };
        // The root of a broadcast waits for nobody.
        let told = pending.wait().and_then(|_| world.barrier_async()?.wait());
        let told = told.expect_err("the ranks differ").to_string();
        let places = [line, line + 1].map(|line| format!("called at {}:{line}", file!()));
        Ok::<_, Error>(places.iter().all(|place| told.contains(place)))
    });
    let told: Vec<bool> = outcomes.expect("the ranks start").into_iter().map(|told| told.expect("a team")).collect();
    // Over a network the one that finds it may be told alone, and the other one that it was.
    assert!(if is_mapped() { told == [true; 2] } else { told.contains(&true) }, "{told:?}");
}
