//! Symmetric memory: asked for, used, and given back.

use super::*;

pub fn memory_is_zeroed_symmetric_and_used_again() {
    everywhere(|world| {
        let mut offsets = Vec::new();
        for round in 0..50 {
            let array = world.alloc::<u32>(1 << 14)?;
            let offset = world.allgather(&[array.offset()])?;
            assert!(offset.iter().all(|theirs| *theirs == array.offset()));
            offsets.push(array.offset());
            let mut values = vec![1; 1 << 14];
            array.read(0, &mut values);
            assert!(values.iter().all(|value| *value == 0), "round {round}");
            world.barrier()?;
            // Every rank dirties a share of every part, then drops its handle at its own pace.
            let share = (1 << 14) / world.size();
            let dirt = vec![u32::MAX; share];
            (0..world.size()).try_for_each(|rank| array.put_slice(rank, world.rank() * share, &dirt))?;
            world.barrier()?;
        }
        offsets.sort_unstable();
        offsets.dedup();
        assert!(offsets.len() <= 3, "the same memory comes back: {offsets:?}");
        world.barrier()
    });
}

pub fn more_than_there_is_is_an_error_on_all_and_the_next_is_granted() {
    watchdog();
    let mut settings = settings();
    settings.heap_limit = Some(1 << 20);
    let program = |world: &World| {
        let kept = world.alloc::<u8>(1 << 18)?;
        match world.alloc::<u8>(1 << 20) {
            Err(Error::OutOfMemory { asked, free, limit, setting, .. }) => {
                assert_eq!((asked, limit, setting), (1 << 20, 1 << 20, "BELLWETHER_HEAP_LIMIT"));
                assert!(free < (1 << 20) - (1 << 18), "{free}");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(world.alloc::<u64>(usize::MAX / 2), Err(Error::InvalidArgument { .. })));
        let more = world.alloc::<u8>(1 << 18)?;
        more.put(0, 0, 1)?;
        drop(kept);
        world.barrier()
    };
    Threads::new(3).settings(settings).run(program).expect("starts").into_iter().for_each(|r| r.expect("goes on"));
    // More than the machine has, where no limit is set.
    threads(2, |world| match world.alloc::<u8>(40 << 30) {
        Err(Error::OutOfMemory { asked, .. }) => assert!(asked >= 40 << 30),
        other => panic!("{other:?}"),
    })
    .expect("starts");
}

/// Room for one array at a time: what all ranks have dropped is there for the next call, at whatever pace they go.
pub fn the_last_room_is_granted_again_and_again() {
    watchdog();
    for bytes in [300, 60 << 10, 100 << 10] {
        let mut settings = settings();
        settings.heap_limit = Some(bytes + 256);
        let program = |world: &World| {
            (0..100).try_for_each(|round| {
                let array = world.alloc::<u8>(bytes)?;
                assert_eq!(array.get(0, bytes - 1)?, 0, "{bytes} bytes, round {round}");
                world.barrier()?;
                if world.rank() == round % world.size() {
                    array.put(0, bytes - 1, 1)?;
                    std::thread::yield_now();
                }
                Ok(())
            })
        };
        let outcomes = Threads::new(3).settings(settings).run(program).expect("starts");
        outcomes
            .into_iter()
            .for_each(|outcome| outcome.unwrap_or_else(|error: Error| panic!("{bytes} bytes: {error}")));
    }
}

/// A call that ranks make differently takes no memory.
pub fn a_refused_allocation_takes_no_room() {
    watchdog();
    let mut settings = settings();
    settings.heap_limit = Some(4096);
    let program = |world: &World| {
        for round in 0..20 {
            let refused = world.alloc::<u8>(if world.rank() == 1 { 1000 } else { 2000 }).map(drop);
            assert!(matches!(refused, Err(Error::RanksDiffer { .. })), "round {round}: {refused:?}");
        }
        world.alloc::<u8>(3000).map(drop)
    };
    Threads::new(2)
        .settings(settings)
        .run(program)
        .expect("starts")
        .into_iter()
        .for_each(|r| r.expect("there is room"));
}

pub fn ranks_that_ask_for_different_sizes_are_named() {
    watchdog();
    let errors =
        threads(3, |world| world.alloc::<u8>(if world.rank() == 2 { 200 } else { 100 }).map(drop)).expect("starts");
    for error in errors {
        match error {
            Err(Error::RanksDiffer { rank: 2, theirs, ours, .. }) => {
                assert!(theirs.starts_with("an allocation of 200 elements of type u8"), "{theirs}");
                assert!(ours.starts_with("an allocation of 100 elements of type u8"), "{ours}");
            }
            other => panic!("{other:?}"),
        }
    }
}

pub fn memory_is_aligned_as_asked_and_whole_pages_can_be_joined() {
    watchdog();
    const PAGE: usize = 4096;
    let body = |world: &World| {
        let small = world.alloc::<u8>(3)?;
        for align in [64, 1024, PAGE] {
            let memory = world.alloc_aligned::<u8>(2 * PAGE, align)?;
            assert_eq!(memory.as_ptr_range().start.addr() % align, 0);
        }
        for align in [0, 32, 96, 1 << 30] {
            let error = world.alloc_aligned::<u8>(8, align).expect_err("no such alignment").to_string();
            assert!(error.contains(&format!("aligned to {align} bytes")), "{error}");
        }
        let other = world.alloc_aligned::<u8>(8, if world.rank() == 1 { 128 } else { 64 });
        match other {
            Ok(_) => assert_eq!(world.size(), 1),
            Err(Error::RanksDiffer { rank: 1, theirs, ours, .. }) => {
                assert!(theirs.contains("aligned to 128 bytes") && !ours.contains("aligned"), "{theirs} {ours}");
            }
            Err(other) => panic!("{other:?}"),
        }
        let memory = world.alloc_aligned::<u64>(PAGE / 8, bellwether_runtime::memory::limits::page_size())?;
        assert!(small.joined().is_none());
        let mapping = memory.joined();
        // Where the machine has reserved huge pages a second mapping is not worth it.
        let (mapped, off) = (memory.mapped().is_some(), world.settings().huge_pages == HugePages::Off);
        assert!(if off { mapping.is_some() == mapped } else { mapped || mapping.is_none() });
        let Some(mapping) = mapping else { return Ok(()) };
        let joined = mapping.base().cast::<u64>();
        memory.store(5, 100 + world.rank() as u64);
        world.barrier()?;
        for rank in 0..world.size() {
            // SAFETY: inside the mapping, which lives; nobody writes meanwhile.
            assert_eq!(unsafe { joined.add(rank * PAGE / 8 + 5).read_volatile() }, 100 + rank as u64);
        }
        world.barrier()
    };
    for huge_pages in [HugePages::Off, HugePages::Auto] {
        let mut settings = settings();
        settings.huge_pages = huge_pages;
        for ranks in [1, 2, 3, 7] {
            let outcomes = Threads::new(ranks).settings(settings.clone()).run(body).expect("starts");
            outcomes.into_iter().for_each(|outcome| outcome.expect("runs"));
        }
    }
}

pub fn memory_that_grows_in_small_steps_is_reached_everywhere() {
    watchdog();
    let program = |world: &World| -> Result<()> {
        let (next, mut arrays) = ((world.rank() + 1) % world.size(), Vec::new());
        for step in 0..400usize {
            let array = world.alloc::<u64>(3000 + step * 37 % 7000)?;
            let values: Vec<u64> = (0..array.len()).map(|i| (step * 10_000 + i) as u64).collect();
            array.put_slice(next, 0, &values)?;
            arrays.push((array, values));
        }
        world.barrier()?;
        for (array, values) in &arrays {
            let mut seen = vec![0; array.len()];
            array.read(0, &mut seen);
            assert!(seen == *values, "put");
            seen.fill(0);
            array.get_slice(next, 0, &mut seen)?;
            assert!(seen == *values, "got");
        }
        world.barrier()?;
        for (array, values) in &arrays {
            assert_eq!(array.fetch_add(next, array.len() - 1, 1)?, values[array.len() - 1]);
        }
        world.barrier()
    };
    for ranks in [1, 3] {
        threads(ranks, program).expect("starts").into_iter().for_each(|result| result.expect("memory for all"));
    }
}

/// Bytes of memory this process has.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("there on Linux");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4096
}

pub fn a_hundred_thousand_allocations_leave_nothing_behind() {
    watchdog();
    let mut settings = settings();
    // A leak in the segment is an error long before the end.
    settings.heap_limit = Some(1 << 20);
    let program = |world: &World, rounds: usize| -> Result<()> {
        let mut before = 0;
        for round in 0..rounds {
            let _bell = (round % 10 == 0).then(|| world.bell()).transpose()?;
            let array = world.alloc::<u8>(1 + round * 37 % 4000)?;
            array.store(0, 1);
            if round == rounds / 10 {
                before = resident();
            }
        }
        // Only where no other test shares the process is all of this ours.
        let grown = resident().saturating_sub(before);
        let alone = std::env::var_os("NEXTEST").is_some();
        assert!(!alone || grown < 16 << 20, "{grown} bytes more after {rounds} rounds");
        world.barrier()
    };
    // Ranks that share cores take long to meet.
    for (ranks, rounds) in [(1, 100_000), (2, 10_000)] {
        let threads = Threads::new(ranks).settings(settings.clone());
        let results = threads.run(|world| program(world, rounds)).expect("ranks start");
        results.into_iter().for_each(|result| result.expect("memory comes back"));
    }
}
