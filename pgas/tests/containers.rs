//! The distributed map and the distributed queue.

mod common;

use std::collections::BTreeMap;

use bellwether::{DistHashMap, DistQueue, Error, Result, Simulated, World, sim};
use common::{Chance, everywhere};

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

#[test]
fn an_entry_larger_than_a_message_is_refused() {
    let ends = Simulated::new(sim::Config::new(3, 1).tiny()).run(|world| {
        let mut map = DistHashMap::<u32, Vec<u8>>::new(world)?;
        let far = (0..).find(|key| map.owner(key) != world.rank()).expect("some key is elsewhere");
        let single = map.insert(far, vec![1; 700]).map(drop);
        let many = map.insert_many([(far, vec![1; 700])]);
        for end in [single, many] {
            let Err(Error::InvalidArgument { why, .. }) = end else { panic!("{end:?} instead of an error") };
            assert!(why.contains("an entry takes 70") && why.contains("has room for"), "{why}");
        }
        world.barrier()?;
        assert_eq!(map.len()?, 0);
        Ok(())
    });
    ends.expect("the job starts").into_iter().for_each(|end: Result<()>| end.expect("only the entry was wrong"));
}

#[test]
fn a_key_larger_than_a_message_is_refused() {
    let ends = Simulated::new(sim::Config::new(3, 2).tiny()).run(|world| {
        let mut map = DistHashMap::<String, u8>::new(world)?;
        let keys = (700..).map(|length| "k".repeat(length));
        let far = keys.into_iter().find(|key| map.owner(key) != world.rank()).expect("some key is elsewhere");
        let ends = [
            map.insert(far.clone(), 1).map(drop),
            map.insert_many([(far.clone(), 1)]),
            map.get(&far).map(drop),
            map.get_many(std::slice::from_ref(&far)).map(drop),
            map.remove(&far).map(drop),
            map.update(far, 1u8, |count, more| *count = Some(more)),
        ];
        for (call, end) in ends.into_iter().enumerate() {
            let error = end.expect_err("too large").to_string();
            let both = error.contains(" 70") || error.contains(" 71");
            assert!(both && error.contains("has room for"), "call {call}: {error}");
        }
        world.barrier()?;
        assert_eq!(map.len()?, 0);
        Ok(())
    });
    ends.expect("the job starts").into_iter().for_each(|end: Result<()>| end.expect("only the key was wrong"));
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
