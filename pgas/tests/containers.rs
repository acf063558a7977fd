//! The distributed map and the distributed queue.

mod common;

use std::collections::BTreeMap;

use bellwether::{DistHashMap, DistQueue, Error, Result, Settings, Simulated, Threads, World, sim};
use bellwether_tests::watchdog;
use common::{Chance, LIMIT, everywhere};

#[test]
fn a_map_answers_as_one_map_would() {
    everywhere("a_map_answers_as_one_map_would", |world| {
        let mut map = DistHashMap::<String, Vec<u32>>::new(world)?;
        let (rank, ranks) = (world.rank(), world.size());
        let key = |rank: usize, number: usize| format!("{rank}/{number}");
        for number in 0..5 {
            assert_eq!(map.insert(key(rank, number), vec![number as u32; number])?, None);
        }
        assert_eq!(map.insert(key(rank, 0), vec![7])?, Some(vec![]));
        assert_eq!(map.remove(&key(rank, 1))?, Some(vec![1]));
        assert_eq!(map.remove(&key(rank, 1))?, None);
        map.update(key(rank, 2), 9u32, |value, more| value.get_or_insert_default().push(more))?;
        map.update(key(rank, 3), (), |value, ()| *value = None)?;
        world.barrier()?;
        let other = (rank + 1) % ranks;
        let expected = [Some(vec![7]), None, Some(vec![2, 2, 9]), None, Some(vec![4; 4])];
        for (number, expected) in expected.iter().enumerate() {
            assert_eq!(map.get(&key(other, number))?, *expected, "{number}");
        }
        let keys: Vec<String> = (0..5).map(|number| key(other, number)).collect();
        assert_eq!(map.get_many(&keys)?, expected);
        assert_eq!(map.len()?, 3 * ranks);
        // Every rank names the same owner, and the parts are what the owners have.
        let owners = world.allgather(&[map.owner(&key(0, 0))])?;
        assert!(owners.iter().all(|owner| *owner == owners[0]));
        assert!(map.local().iter().all(|(key, _)| map.owner(key) == rank));
        let here = map.local_len();
        assert_eq!(map.drain_local().count(), here);
        assert!(map.is_empty()?);
        Ok(())
    });
}

#[test]
fn many_keys_in_few_messages() {
    everywhere("many_keys_in_few_messages", |world| {
        let mut map = DistHashMap::<u64, u64>::new(world)?;
        let mut expected = BTreeMap::new();
        for rank in 0..world.size() {
            let mut chance = Chance::new(rank, 3);
            for _ in 0..300 {
                let (key, value) = (chance.below(50) as u64, chance.next() >> 10);
                *expected.entry(key).or_insert(0) += value;
            }
        }
        let mut chance = Chance::new(world.rank(), 3);
        let items: Vec<_> = (0..300).map(|_| (chance.below(50) as u64, chance.next() >> 10)).collect();
        map.update_many(items, |sum, more: u64| *sum = Some(sum.unwrap_or(0) + more))?;
        world.barrier()?;
        let keys: Vec<u64> = (0..60).collect();
        let values = map.get_many(&keys)?;
        assert!(keys.iter().zip(&values).all(|(key, value)| *value == expected.get(key).copied()));
        world.barrier()?;
        map.insert_many((0..60).map(|key| (key, 1)))?;
        world.barrier()?;
        assert_eq!(map.get_many(&[59, 0])?, [Some(1), Some(1)]);
        assert_eq!(map.len()?, 60);
        world.barrier()
    });
}

#[test]
fn answers_that_need_several_messages() {
    everywhere("answers_that_need_several_messages", |world| {
        let mut map = DistHashMap::<u8, Vec<u8>>::new(world)?;
        if world.rank() == 0 {
            map.insert_many((0..10).map(|key| (key, vec![key; 300])))?;
        }
        world.barrier()?;
        let keys: Vec<u8> = (0..10).rev().collect();
        let values = map.get_many(&keys)?;
        assert!(keys.iter().zip(values).all(|(key, value)| value == Some(vec![*key; 300])));
        world.barrier()
    });
}

/// Runs `program` where a message is small and where it is large, on threads and on networks. It gets the most bytes of a
/// payload.
fn where_messages_end(name: &str, program: impl Fn(&World, usize) -> Result<()> + Sync) {
    let mut settings = Settings::default();
    settings.message_memory = 1 << 20;
    let body = |world: &World| program(world, world.largest_message());
    for ranks in [1, 2, 3] {
        let _guard = watchdog::guard(format!("{name} on {ranks} ranks"), LIMIT);
        let config = || sim::Config::new(ranks, 1);
        let jobs = [
            Threads::new(ranks).settings(settings.clone()).run(body),
            Simulated::new(config()).run(body),
            Simulated::new(config().tiny()).run(body),
        ];
        for ends in jobs {
            ends.expect("the job starts").into_iter().for_each(|end| end.expect("only the entries were wrong"));
        }
    }
}

/// Both facts, and nothing but the error that the map gives itself.
fn assert_too_large<T>(end: Result<T>, what: &str, asked: usize, largest: usize, call: &str) {
    let Err(Error::InvalidArgument { operation: "a distributed map", why }) = end.map(drop) else {
        panic!("{call}: not refused as it should be");
    };
    let (told, room) = (format!("{what} takes "), format!("bytes, and a message has room for {}", largest - 64));
    assert!(why.contains(&told) && why.contains(&room), "{call}: {why}");
    let number = why[told.len()..].split(' ').next().and_then(|number| number.parse::<usize>().ok());
    assert!(number.is_some_and(|number| (asked..asked + 10).contains(&number)), "{call}: {why}");
}

/// A key of each rank.
fn of_each_rank(world: &World, owner: impl Fn(&u32) -> usize) -> Vec<u32> {
    (0..world.size()).map(|rank| (0..).find(|key| owner(key) == rank).expect("each rank has some")).collect()
}

#[test]
fn an_entry_larger_than_a_message_is_refused_by_whomever_it_belongs_to() {
    where_messages_end("entries", |world, largest| {
        let mut map = DistHashMap::<u32, Vec<u8>>::new(world)?;
        for key in of_each_rank(world, |key| map.owner(key)) {
            let large = || vec![1; largest];
            assert_too_large(map.insert(key, large()), "an entry", largest, largest, "insert");
            assert_too_large(map.insert_many([(key, large())]), "an entry", largest, largest, "insert_many");
            let update = map.update(key, large(), |value, new| *value = Some(new));
            assert_too_large(update, "an entry", largest, largest, "update");
        }
        world.barrier()?;
        assert_eq!(map.len()?, 0);
        Ok(())
    });
}

#[test]
fn a_key_larger_than_a_message_is_refused_by_whomever_it_belongs_to() {
    where_messages_end("keys", |world, largest| {
        let mut map = DistHashMap::<String, u8>::new(world)?;
        let mut keys = vec![None; world.size()];
        // All of nearly one length.
        for last in 'a'..='z' {
            let key = "k".repeat(largest) + &last.to_string();
            let owner = map.owner(&key);
            keys[owner] = Some(key);
        }
        for key in keys.into_iter().map(|key| key.expect("chance gives each rank some of so many")) {
            let refused = |end: Result<()>, call| assert_too_large(end, "a key", largest, largest, call);
            refused(map.get(&key).map(drop), "get");
            refused(map.get_many(std::slice::from_ref(&key)).map(drop), "get_many");
            refused(map.remove(&key).map(drop), "remove");
            let refused = |end: Result<()>, call| assert_too_large(end, "an entry", largest, largest, call);
            refused(map.insert(key.clone(), 1).map(drop), "insert");
            refused(map.insert_many([(key.clone(), 1)]), "insert_many");
            refused(map.update(key, 1u8, |count, more| *count = Some(more)), "update");
        }
        world.barrier()?;
        assert_eq!(map.len()?, 0);
        Ok(())
    });
}

#[test]
fn the_largest_entry_comes_back_whole() {
    where_messages_end("largest", |world, largest| {
        let room = largest - 64;
        // Without a byte of the key: the answer is as long as the entry, and the byte that says that it is there.
        let mut map = DistHashMap::<(), Vec<u8>>::new(world)?;
        let value = (0..room).rev().map(|len| vec![7u8; len]).find(|value| bytes(value) == room).expect("some length");
        let mut too_large = value.clone();
        too_large.push(7);
        for rank in 0..world.size() {
            world.barrier()?;
            if rank != world.rank() {
                continue;
            }
            assert!(map.insert((), value.clone())?.is_none());
            assert_too_large(map.insert((), too_large.clone()), "an entry", room + 1, largest, "insert");
            assert!(map.get(&())?.as_ref() == Some(&value));
            assert!(map.get_many(&[()])?[0].as_ref() == Some(&value));
            assert!(map.insert((), value.clone())?.as_ref() == Some(&value));
            assert!(map.remove(&())?.as_ref() == Some(&value));
        }
        world.barrier()
    });
}

/// Its length as serde makes it here: a length of seven bits a byte, and the bytes.
fn bytes(value: &[u8]) -> usize {
    value.len() + (1..).find(|digits| value.len() >> (7 * digits) == 0).expect("a number has an end")
}

#[test]
fn keys_and_arguments_without_bytes_are_not_lost() {
    everywhere("keys_and_arguments_without_bytes_are_not_lost", |world| {
        let mut map = DistHashMap::<(), u64>::new(world)?;
        map.update((), (), |count, ()| *count = Some(count.unwrap_or(0) + 1))?;
        map.update_many([((), ()); 3], |count, ()| *count = Some(count.unwrap_or(0) + 1))?;
        world.barrier()?;
        assert_eq!(map.get_many(&[(); 2])?, [Some(4 * world.size() as u64); 2]);
        world.barrier()
    });
}

#[test]
fn a_value_grown_larger_than_a_message_stays() {
    where_messages_end("grown", |world, largest| {
        let mut map = DistHashMap::<u32, Vec<u8>>::new(world)?;
        let keys = of_each_rank(world, |key| map.owner(key));
        for (rank, key) in keys.iter().enumerate() {
            if rank == world.rank() {
                map.insert(*key, vec![5])?;
                map.update(*key, largest, |value, len| value.get_or_insert_default().resize(len, 5))?;
            }
        }
        world.barrier()?;
        for (rank, key) in keys.iter().enumerate() {
            let refused =
                |end: Result<()>, call| assert_too_large(end, "the value that is there", largest, largest, call);
            refused(map.get_many(&[*key]).map(drop), "get_many");
            if rank == world.rank() {
                assert!(map.get(key)? == Some(vec![5; largest]));
                continue;
            }
            refused(map.get(key).map(drop), "get");
            refused(map.remove(key).map(drop), "remove");
            refused(map.insert(*key, vec![1]).map(drop), "insert");
        }
        world.barrier()?;
        let local = map.local();
        assert!(local == [(keys[world.rank()], vec![5; largest])]);
        world.barrier()?;
        // The ways out.
        let (rank, next) = (world.rank(), keys[(world.rank() + 1) % world.size()]);
        map.update(next, 3usize, |value, len| value.get_or_insert_default().truncate(len))?;
        assert_eq!(map.remove(&next)?, Some(vec![5; 3]));
        world.barrier()?;
        map.update(keys[rank], largest, |value, len| *value = Some(vec![6; len]))?;
        assert!(map.remove(&keys[rank])? == Some(vec![6; largest]));
        Ok(())
    });
}

/// A node of a tree: its depth, and what chance makes of it.
type Node = (u32, u64);

fn children((depth, seed): Node) -> impl Iterator<Item = Node> {
    let count = if depth == 0 { 0 } else { 1 + seed % 3 };
    (0..count).map(move |child| (depth - 1, (seed ^ child).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)))
}

fn nodes_below(node: Node) -> u64 {
    1 + children(node).map(nodes_below).sum::<u64>()
}

/// Works off a tree that starts at `root`, and tells how many nodes each rank has seen.
fn work(world: &World, queue: &mut DistQueue<'_, Node>, root: usize, node: Node) -> Result<Vec<u64>> {
    if world.rank() == root {
        queue.push(node)?;
    }
    let mut seen = 0;
    while let Some(node) = queue.pop()? {
        seen += 1;
        for (number, child) in children(node).enumerate() {
            // Some are sent away at once.
            match number {
                0 => queue.push_to((world.rank() + 1) % world.size(), child)?,
                _ => queue.push(child)?,
            }
        }
    }
    assert_eq!(queue.pop()?, None);
    world.allgather(&[seen])
}

#[test]
fn a_queue_ends_when_all_work_is_done() {
    everywhere("a_queue_ends_when_all_work_is_done", |world| {
        let mut queue = DistQueue::new(world)?;
        for round in 0..3 {
            let node = (7, round);
            let seen = work(world, &mut queue, round as usize % world.size(), node)?;
            assert_eq!(seen.iter().sum::<u64>(), nodes_below(node));
            assert!(matches!(queue.push(node), Err(Error::InvalidArgument { .. })));
            queue.restart()?;
        }
        assert_eq!(queue.pop()?, None);
        Ok(())
    });
}

#[test]
fn work_spreads_to_ranks_that_have_none() {
    everywhere("work_spreads_to_ranks_that_have_none", |world| {
        let mut queue = DistQueue::new(world)?;
        if world.rank() == 0 {
            (0..40 * world.size() as u32).try_for_each(|item| queue.push(item))?;
        }
        let with_work = world.alloc::<u64>(1)?;
        let (mut seen, mut sum) = (0u64, 0u64);
        while let Some(item) = queue.pop()? {
            if seen == 0 {
                with_work.fetch_add(0, 0, 1)?;
            }
            // Nobody gets on before all have some: there is enough, so it must come to them.
            while with_work.get(0, 0)? < world.size() as u64 {
                world.sleep(std::time::Duration::from_micros(20));
                world.poll()?;
            }
            seen += 1;
            sum += u64::from(item);
        }
        let seen = world.allgather(&[seen])?;
        let mut sum = [sum];
        world.allreduce_sum(&mut sum)?;
        let all = 40 * world.size() as u64;
        assert_eq!((seen.iter().sum::<u64>(), sum[0]), (all, all * (all - 1) / 2));
        assert!(seen.iter().all(|seen| *seen > 0), "{seen:?}");
        Ok(())
    });
}
