//! Maps and queues over ports: by either route, with buffers of any size, whatever other ranks do meanwhile.

mod common;

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, Ordering::Relaxed};

use bellwether::aggregate::{Options, Route};
use bellwether::{DistHashMap, DistQueue, Error, Loss, Result, Settings, Simulated, Threads, World, sim};
use bellwether_tests::watchdog;
use common::{Chance, LIMIT, everywhere};

/// Both routes, with room for nothing, for some, and for all; and messages of one item.
fn all_options(world: &World) -> Vec<Options> {
    let of = |route, memory| Options { memory, route, ..Options::new(world) };
    let (one, two) = (Route::OneHop, Route::TwoHops { columns: Some(2) });
    vec![of(one, 5000), of(one, 16 << 20), of(two, 0), Options { items: 1, ..of(two, 1 << 20) }]
}

/// As [`everywhere`], and on threads whose memory is as a network's: bytes as the contract has them.
fn everywhere_and_by_contract(name: &str, program: impl Fn(&World) -> Result<()> + Sync) {
    everywhere(name, &program);
    let settings = contract();
    for ranks in [2, 5] {
        let _guard = watchdog::guard(format!("{name} on {ranks} threads by contract"), LIMIT);
        let ends = Threads::new(ranks).settings(settings.clone()).run(&program).expect("the job starts");
        ends.into_iter().for_each(|end| end.expect("it goes as elsewhere"));
    }
}

/// Settings of a network's memory.
fn contract() -> Settings {
    let mut settings = Settings::default();
    settings.transport = bellwether_runtime::Transport::ShmContract;
    settings
}

/// Its length differs from that of others, also from few bytes to more than small buffers.
fn value(key: u64) -> Vec<u8> {
    vec![key as u8; (key * key % 101) as usize]
}

#[test]
fn entries_of_any_length_by_any_way() {
    everywhere_and_by_contract("entries_of_any_length_by_any_way", |world| {
        for options in all_options(world) {
            let mut map = DistHashMap::<String, Vec<u8>>::with_options(world, &options)?;
            let key = |number: u64| format!("{number}{}", "k".repeat((number % 5 * 15) as usize));
            let ranks = world.size() as u64;
            let mine = (0..12).map(|i| i * ranks + world.rank() as u64);
            map.insert_many(mine.map(|number| (key(number), value(number))))?;
            // What is in others' requests changes nothing of what a call has done.
            let mine: Vec<u64> = (0..12).map(|i| i * ranks + world.rank() as u64).collect();
            let keys: Vec<String> = mine.iter().map(|number| key(*number)).collect();
            assert!(mine.iter().zip(map.get_many(&keys)?).all(|(number, found)| found == Some(value(*number))));
            world.barrier()?;
            let all: Vec<String> = (0..12 * ranks + 3).rev().map(key).collect();
            let found = map.get_many(&all)?;
            assert!(found[..3].iter().all(Option::is_none));
            assert!((0..12 * ranks).rev().zip(&found[3..]).all(|(number, found)| *found == Some(value(number))));
            world.barrier()?;
            map.update_many(all.into_iter().map(|key| (key, 1u8)), |value, more| {
                value.get_or_insert_default().push(more);
            })?;
            world.barrier()?;
            let ones = |value: &Vec<u8>| value.iter().rev().take_while(|byte| **byte == 1).count() >= world.size();
            assert!(map.local().iter().all(|(_, value)| ones(value)));
            assert_eq!(map.len()?, 12 * world.size() + 3);
        }
        Ok(())
    });
}

#[test]
fn one_rank_asks_while_the_others_are_in_a_barrier() {
    everywhere_and_by_contract("one_rank_asks_while_the_others_are_in_a_barrier", |world| {
        for options in all_options(world) {
            let mut map = DistHashMap::<u64, u64>::with_options(world, &options)?;
            for rank in 0..world.size() {
                if rank == world.rank() {
                    map.update_many((0..100).map(|key| (key % 70, 1)), |sum, more: u64| {
                        *sum = Some(sum.unwrap_or(0) + more)
                    })?;
                    let found = map.get_many(&(0..70).collect::<Vec<_>>())?;
                    let each = |key: u64| (0..100).filter(|item| item % 70 == key).count() as u64;
                    let expected = |key| Some((rank as u64 + 1) * each(key));
                    assert!(found.into_iter().enumerate().all(|(key, found)| found == expected(key as u64)));
                }
                world.barrier()?;
            }
        }
        Ok(())
    });
}

#[test]
fn what_is_closed_at_one_rank_is_an_error_for_its_keys_alone() {
    everywhere_and_by_contract("what_is_closed_at_one_rank_is_an_error_for_its_keys_alone", |world| {
        if world.size() < 3 {
            return Ok(());
        }
        for options in all_options(world) {
            let mut map = DistHashMap::<u64, u64>::with_options(world, &options)?;
            let owners: Vec<usize> = (0..100).map(|key| map.owner(&key)).collect();
            if world.rank() == 1 {
                // In the middle of what others ask for.
                map.insert_many((0..20).map(|key| (key, 1)))?;
                drop(map);
                world.barrier()?;
                continue;
            }
            let closed = |end: Error| assert!(end.to_string().contains("rank 1 has dropped the map"), "{end}");
            let others = || (0..100).filter(|key| owners[*key as usize] != 1);
            // Some find it open.
            while map
                .update_many((0..100).map(|key| (key, 1)), |sum, more: u64| *sum = Some(more))
                .map_err(closed)
                .is_ok()
            {}
            closed(map.get_many(&(0..100).collect::<Vec<_>>()).expect_err("some are gone"));
            map.insert_many(others().map(|key| (key, 7)))?;
            assert!(map.get_many(&others().collect::<Vec<_>>())?.iter().all(|found| found.is_some()));
            world.barrier()?;
        }
        Ok(())
    });
}

/// Rank 0 leaves, and rank 1 drops its map because of that: rank 0 is what went wrong.
#[test]
fn who_dropped_a_map_because_another_left_is_not_named() {
    let _guard = watchdog::guard("who_dropped_a_map_because_another_left_is_not_named", LIMIT);
    let (dropped, asked) = (AtomicBool::new(false), AtomicBool::new(false));
    let ends = Threads::new(3).run(|world| {
        let map = DistHashMap::<u64, u64>::new(world)?;
        world.barrier()?;
        match world.rank() {
            0 => {}
            1 => {
                assert!(matches!(world.barrier(), Err(Error::PeerLost { rank: 0, .. })));
                drop(map);
                dropped.store(true, Ordering::Release);
                while !asked.load(Ordering::Acquire) {
                    let _ = world.poll();
                }
            }
            _ => {
                while !dropped.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                let key = (0..).find(|key| map.owner(key) == 1).expect("each rank has keys");
                let named = |end: Error| matches!(end, Error::PeerLost { rank: 0, cause: Loss::Left, .. });
                assert!(map.get(&key).is_err_and(named));
                assert!(map.get_many(&[key]).is_err_and(named));
                asked.store(true, Ordering::Release);
            }
        }
        Ok::<(), Error>(())
    });
    ends.expect("the job starts").into_iter().for_each(|end| end.expect("each does its part"));
}

#[test]
fn ranks_that_choose_other_options_are_told() {
    everywhere("ranks_that_choose_other_options_are_told", |world| {
        if world.size() == 1 {
            return Ok(());
        }
        let memory = if world.rank() == 0 { 1000 } else { 2000 };
        let options = Options { memory, ..Options::new(world) };
        let refused = |end: Result<()>| assert!(matches!(end, Err(Error::RanksDiffer { .. })), "{end:?}");
        refused(DistHashMap::<u64, u64>::with_options(world, &options).map(drop));
        refused(DistQueue::<u64>::with_options(world, &options).map(drop));
        let other = match world.rank() {
            0 => DistHashMap::<u64, u64>::new(world).map(drop),
            _ => DistHashMap::<u64, i64>::new(world).map(drop),
        };
        refused(other);
        let mut map = DistHashMap::<u64, u64>::new(world)?;
        map.insert_many((0..10).map(|key| (key, key)))?;
        assert_eq!(map.len()?, 10);
        Ok(())
    });
}

#[test]
fn two_types_of_one_name_are_told_apart() {
    fn make(world: &World) -> Result<&'static str> {
        use serde::{Deserialize, Serialize};
        if world.rank() == 0 {
            #[derive(Serialize, Deserialize, Hash, PartialEq, Eq)]
            struct Key(u64);
            return DistHashMap::<Key, u64>::new(world).map(|_| std::any::type_name::<Key>());
        }
        #[derive(Serialize, Deserialize, Hash, PartialEq, Eq)]
        struct Key(String);
        DistHashMap::<Key, u64>::new(world).map(|_| std::any::type_name::<Key>())
    }
    for end in bellwether::threads(2, make).expect("the job starts") {
        let error = end.expect_err("the owner would take one for the other");
        assert!(error.to_string().contains("another type that has this name"), "{error}");
    }
}

#[test]
fn where_messages_are_small_at_some_ranks_those_bound_all() {
    let _guard = watchdog::guard("where_messages_are_small_at_some_ranks_those_bound_all", LIMIT);
    let started = AtomicUsize::new(0);
    let ends = Threads::new(4).build(|builder| {
        let message_memory = if started.fetch_add(1, Relaxed) == 0 { 256 << 10 } else { 16 << 10 };
        let mut settings = contract();
        settings.message_memory = message_memory;
        let world = builder.settings(settings).start()?;
        let route = Route::TwoHops { columns: Some(2) };
        let options = Options { memory: 16 << 20, route, ..Options::new(&world) };
        let mut queue = DistQueue::<Vec<u8>>::with_options(&world, &options)?;
        let map = DistHashMap::<u64, Vec<u8>>::with_options(&world, &options)?;
        for told in world.allgather(&[queue.memory(), map.memory()])?.chunks(2) {
            assert_eq!(
                told,
                [queue.memory(), map.memory()],
                "what is sent is as large as what is told where it arrives"
            );
        }
        // More than some can pass on.
        for to in (0..world.size()).filter(|to| *to != world.rank()) {
            let end = queue.push_to(to, vec![1; 20_000]);
            assert!(matches!(end, Err(Error::InvalidArgument { .. })), "{end:?}");
            queue.push_to(to, vec![1; 7_000])?;
        }
        let mut taken = [0];
        while queue.pop()?.is_some() {
            taken[0] += 1;
        }
        world.allreduce_sum(&mut taken)?;
        assert_eq!(taken, [12]);
        Ok::<_, Error>(())
    });
    ends.expect("the job starts").into_iter().for_each(|end| end.expect("it goes well"));
}

thread_local! {
    static MAP: OnceCell<DistHashMap<'static, u64, u64>> = const { OnceCell::new() };
}

#[test]
fn a_handler_that_asks_the_map_does_not_take_the_answers_of_its_rank() {
    const KEYS: u64 = 100;
    let _guard = watchdog::guard("a_handler_that_asks_the_map", LIMIT);
    let ends = Threads::new(2).build(|builder| {
        let world: &'static World = Box::leak(Box::new(builder.start()?));
        let mut map = DistHashMap::new(world)?;
        map.insert_many((0..KEYS).map(|key| (key, key)))?;
        assert!(MAP.with(|place| place.set(map).is_ok()));
        world.barrier()?;
        let all: Vec<u64> = (0..KEYS).collect();
        for _ in 0..200 {
            if world.rank() == 1 {
                world.invoke(0, (), |_, ()| {
                    let end = MAP.with(|map| map.get().expect("it was set").get_many(&[0, 1, 2, 3, 4, 5]));
                    assert!(matches!(end, Err(Error::InsideHandler { .. })), "{end:?}");
                })?;
            }
            let found = MAP.with(|map| map.get().expect("it was set").get_many(&all))?;
            assert!(found.into_iter().flatten().eq(0..KEYS));
        }
        world.barrier()
    });
    ends.expect("the job starts").into_iter().for_each(|end| end.expect("it goes well"));
}

/// Each item tells how many more hops it makes, and drags some bytes along.
#[test]
fn items_are_neither_lost_nor_doubled_by_any_way() {
    everywhere_and_by_contract("items_are_neither_lost_nor_doubled_by_any_way", |world| {
        for options in all_options(world) {
            let mut queue = DistQueue::<(u64, Vec<u8>)>::with_options(world, &options)?;
            for round in 0..2 {
                let (ranks, mut chance) = (world.size(), Chance::new(world.rank(), round));
                for number in 0..8 {
                    queue.push_to(chance.below(ranks), (2, value(number)))?;
                }
                let mut seen = [0u64; 2];
                while let Some((hops, bytes)) = queue.pop()? {
                    seen = [seen[0] + 1, seen[1] + bytes.len() as u64];
                    if hops > 0 {
                        queue.push_to(chance.below(ranks), (hops - 1, bytes))?;
                    }
                }
                world.allreduce_sum(&mut seen)?;
                let bytes: u64 = (0..8).map(|number| value(number).len() as u64).sum();
                assert_eq!(seen, [8, bytes].map(|each| 3 * each * ranks as u64), "{options:?}");
                queue.restart()?;
            }
        }
        Ok(())
    });
}

#[test]
fn items_for_one_rank_leave_together() {
    const ITEMS: u64 = 500;
    let frames = |items: u64| {
        let _guard = watchdog::guard("items_for_one_rank_leave_together", LIMIT);
        let job = Simulated::new(sim::Config::new(2, 1).nodes(&[1]));
        let ends = job.run(|world| {
            let mut queue = DistQueue::<u64>::new(world)?;
            if world.rank() == 0 {
                (0..items).try_for_each(|item| queue.push_to(1, item))?;
            }
            // Rank 1 shares nothing: it takes what has come, all at once.
            let mut sum = [0];
            while let Some(item) = queue.pop()? {
                sum[0] += item + 1;
            }
            world.allreduce_sum(&mut sum)?;
            assert_eq!(sum[0], items * (items + 1) / 2);
            Ok::<_, Error>(())
        });
        ends.expect("the job starts").into_iter().for_each(|end| end.expect("it goes well"));
        job.network().crossed().frames
    };
    let (none, all) = (frames(0), frames(ITEMS));
    println!("{none} frames without items, {all} with {ITEMS}");
    assert!(all < none + ITEMS / 4, "{all} frames for {ITEMS} items, {none} for none");
}
