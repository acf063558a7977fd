//! Phases, elements, and what is told when ranks do not agree.

use bellwether::array::{GlobalArray, Layout};
use bellwether::{Error, HugePages, Settings, Threads};
use bellwether_tests::watchdog;

use super::support::{boxes, everywhere, lines, on_threads, planes, says, value};

/// Fills locally, checks everywhere; changes everywhere, checks locally.
fn there_and_back<const D: usize>(world: &bellwether::World, layout: Layout<D>) -> bellwether::Result<()> {
    let (rank, n) = (world.rank(), world.size());
    let mut array = GlobalArray::from_fn(world, layout.clone(), value)?;
    assert_eq!(array.own_extents(), layout.extents_at(rank));
    assert_eq!(array.local().len(), layout.extents_at(rank).iter().product::<usize>());
    for (index, element) in array.iter() {
        assert_eq!(*element, value(index));
        assert_eq!(layout.rank_of(index), Some(rank));
    }
    assert_eq!(array.iter().count(), array.local().len());
    for (index, element) in array.iter_mut() {
        assert_eq!(*element, value(index));
        *element += 1.0;
    }
    let array = array.share(world)?;
    let all: Vec<[usize; D]> = every(layout.extents());
    for &index in &all {
        assert_eq!(array.get(index)?, value(index) + 1.0, "{index:?} of {layout}");
    }
    world.barrier()?;
    for (number, &index) in all.iter().enumerate() {
        if number % n == rank {
            array.put(index, value(index) - 3.0)?;
        }
    }
    let array = array.localize(world)?;
    for (index, element) in array.iter() {
        assert_eq!(*element, value(index) - 3.0);
    }
    Ok(())
}

/// All indices of a box.
fn every<const D: usize>(extents: [usize; D]) -> Vec<[usize; D]> {
    let mut all = vec![[0; D]];
    for d in 0..D {
        all = all
            .iter()
            .flat_map(|index| {
                (0..extents[d]).map(|i| {
                    let mut index = *index;
                    index[d] = i;
                    index
                })
            })
            .collect();
    }
    all
}

#[test]
fn elements_in_every_layout() {
    everywhere("elements", |world| {
        let n = world.size();
        lines(23, n).into_iter().chain(lines(2, n)).try_for_each(|layout| there_and_back(world, layout))?;
        planes([5, 7], n).into_iter().try_for_each(|layout| there_and_back(world, layout))?;
        boxes([3, 4, 5], n).into_iter().try_for_each(|layout| there_and_back(world, layout))
    });
}

/// Every rank adds to every element, and keeps the largest, many times.
fn accumulates<T>(world: &bellwether::World, number: impl Fn(usize) -> T) -> bellwether::Result<()>
where
    T: bellwether::Word + std::ops::Add<Output = T> + PartialOrd + std::fmt::Debug,
{
    let (n, rank, rounds) = (world.size(), world.rank(), 5);
    for layout in lines(7, n) {
        let sums = GlobalArray::<T, 1>::new(world, layout.clone())?.share(world)?;
        let largest = GlobalArray::<T, 1>::new(world, layout)?.share(world)?;
        for i in (0..rounds).flat_map(|_| 0..7) {
            sums.accumulate(i, number(i))?;
            let mine = number((rank + i) % n);
            largest.fetch_update([i], |old| if old < mine { mine } else { old })?;
        }
        world.barrier()?;
        for i in 0..7 {
            assert_eq!((sums.get(i)?, largest.get(i)?), (number(i * n * rounds), number(n - 1)));
        }
        says(sums.accumulate(7, number(1)), &["[7]", "outside"]);
        says(sums.accumulate_async(7, number(1)), &["[7]", "outside"]);
        says(sums.fetch_update_async(7, |old| old), &["[7]", "outside"]);
        world.barrier()?;
        // The same in future form: together, one by one, and let go of when done.
        let post = |i| sums.accumulate_async(i, number(i));
        bellwether::Posted::wait_all((0..4).map(post).collect::<bellwether::Result<Vec<_>>>()?)?;
        post(4)?.wait()?;
        for mut one in (5..7).map(post).collect::<bellwether::Result<Vec<_>>>()? {
            while !one.is_done() {}
        }
        let counted = sums.fetch_update_async(6, move |old| old)?.wait()?;
        assert!(counted >= number(6 * (n * rounds + 1)), "its own addition is there");
        world.barrier()?;
        for i in 0..7 {
            assert_eq!(sums.get(i)?, number(i * n * (rounds + 1)));
        }
        world.barrier()?;
        // What is returned is what was there: each value before is seen once.
        let before = sums.accumulate(0, number(1))?;
        let mut seen = world.allgather(&[before])?;
        seen.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
        assert_eq!(seen, (0..n).map(&number).collect::<Vec<T>>());
        world.barrier()?;
    }
    Ok(())
}

#[test]
fn numbers_of_every_kind_are_accumulated() {
    everywhere("accumulate", |world| {
        accumulates(world, |i| i as f64 * 0.5)?;
        accumulates(world, |i| i as f32 * 0.25)?;
        accumulates(world, |i| i as u64)?;
        accumulates(world, |i| i as i32)
    });
}

#[test]
fn atomics_count_every_rank() {
    everywhere("atomics", |world| {
        let n = world.size() as u64;
        let array = GlobalArray::<u64, 1>::new(world, Layout::cyclic([9], world.size())?)?.share(world)?;
        for i in 0..9 {
            array.fetch_add(i, i as u64)?;
            array.fetch_or([i], 1 << 40)?;
        }
        world.barrier()?;
        assert_eq!(
            (0..9).map(|i| array.get(i)).collect::<bellwether::Result<Vec<_>>>()?,
            (0..9).map(|i| (i * n) | (1 << 40)).collect::<Vec<u64>>()
        );
        world.barrier()?;
        let first = array.compare_swap(8usize, (8 * n) | (1 << 40), 7)?;
        world.barrier()?;
        let winners = world.allgather(&[u64::from(first != 7)])?;
        assert_eq!(winners.iter().sum::<u64>(), 1, "one swap finds the old value");
        array.fetch_and(8usize, 3)?;
        array.fetch_xor(7usize, 1 << (41 + world.rank()))?;
        world.barrier()?;
        assert_eq!((array.get(8)?, array.get(7)?), (3, ((7 * n) | (1 << 40)) ^ ((1 << n) - 1) << 41));
        world.barrier()?;
        let before = array.swap(0usize, world.rank() as u64 + 1)?;
        world.barrier()?;
        let mut seen = world.allgather(&[before])?;
        seen.push(array.get(0)?);
        seen.sort_unstable();
        assert_eq!(seen, (1..=n).chain([1 << 40]).collect::<Vec<_>>());
        world.barrier()
    });
}

#[test]
fn a_pointer_ends_with_its_phase() {
    everywhere("pointers to elements", |world| {
        let layout = Layout::block([10], world.size())?;
        let array = GlobalArray::<u32, 1>::new(world, layout)?.share(world)?;
        let pointer = array.pointer(7)?;
        if world.rank() == 0 {
            pointer.put(world, 5)?;
        }
        world.barrier()?;
        assert_eq!((array.get(7)?, pointer.get(world)?), (5, 5));
        says(array.pointer(10), &["[10]", "outside", "[10] elements"]);
        let array = array.localize(world)?;
        says(pointer.put(world, 6), &["put", "stale", "does not share"]);
        let array = array.share(world)?;
        says(pointer.put(world, 6), &["stale", "take a new pointer"]);
        assert_eq!(array.pointer(7)?.get(world)?, 5);
        drop(array);
        says(pointer.get(world), &["stale"]);
        world.barrier()
    });
}

#[test]
fn an_index_outside_is_told_with_both_sides() {
    everywhere("outside", |world| {
        let array = GlobalArray::<u32, 2>::new(world, Layout::block([4, 6], world.size())?)?.share(world)?;
        for index in [[4, 0], [0, 6], [usize::MAX, usize::MAX], [1 << 63, 1]] {
            let facts = [format!("{index:?}"), "[4, 6]".into()];
            let facts = [facts[0].as_str(), facts[1].as_str()];
            says(array.get(index), &facts);
            says(array.put(index, 1), &facts);
            says(array.fetch_add(index, 1), &facts);
            says(array.compare_swap(index, 1, 2), &facts);
        }
        world.barrier()
    });
}

#[test]
fn parts_of_whole_pages_are_one_array_to_every_way_in() {
    let body = |world: &bellwether::World| {
        let (n, rank) = (world.size(), world.rank());
        let part = 2048;
        let array = GlobalArray::<u64, 1>::new(world, Layout::block([n * part], n)?)?;
        let mut array = array.share(world)?;
        for round in 0..2u64 {
            // Each element by a rank that does not own it, if there are two.
            let mine = (rank + 1) % n * part;
            (mine..mine + part).try_for_each(|i| array.put(i, i as u64 + round))?;
            world.barrier()?;
            for i in [0, part - 1, n * part - 1, rank * part + 7] {
                assert_eq!((array.get(i)?, array.pointer(i)?.get(world)?), (i as u64 + round, i as u64 + round));
            }
            world.barrier()?;
            array.fetch_add((mine + 5) % (n * part), 1)?;
            world.barrier()?;
            assert_eq!(array.get(mine + 5)?, (mine + 5) as u64 + round + 1);
            says(array.get(n * part), &["outside"]);
            says(array.put(usize::MAX, 0), &["outside"]);
            let local = array.localize(world)?;
            assert_eq!(local.local()[9], (rank * part + 9) as u64 + round);
            array = local.share(world)?;
        }
        world.barrier()
    };
    everywhere("pages", body);
    // Mapped together also on machines with reserved huge pages, which are not.
    let mut settings = Settings::default();
    settings.huge_pages = HugePages::Off;
    for ranks in [2, 3] {
        let _guard = watchdog::guard(format!("small pages on {ranks} threads"), std::time::Duration::from_secs(600));
        let outcomes = Threads::new(ranks).settings(settings.clone()).run(body).expect("the job runs");
        outcomes.into_iter().for_each(|outcome| outcome.expect("every element is found"));
    }
}

#[test]
fn a_layout_for_another_world_is_told() {
    everywhere("layouts", |world| {
        let n = world.size();
        says(
            GlobalArray::<u8, 1>::new(world, Layout::block([4], n + 1)?),
            &[&format!("{} ranks", n + 1), &format!("has {n}")],
        );
        if n > 1 {
            let extent = 20 + world.rank() / (n - 1);
            says(
                GlobalArray::<u8, 1>::new(world, Layout::block([extent], n)?),
                &["layout of an array", "differs", "[20] elements", "[21] elements"],
            );
        }
        says(GlobalArray::<u64, 1>::new(world, Layout::block([1 << 62], n)?), &["bytes"]);
        world.barrier()
    });
}

#[test]
fn ranks_that_change_other_arrays_are_told_and_nobody_has_a_slice() {
    for simulated in [false, true] {
        let body = |world: &bellwether::World| {
            let layout = Layout::block([8], world.size())?;
            let a = GlobalArray::<u8, 1>::new(world, layout.clone())?.share(world)?;
            let b = GlobalArray::<u8, 1>::new(world, layout.clone())?.share(world)?;
            let pointer = (if world.rank() == 0 { &a } else { &b }).pointer(0)?;
            let changed = if world.rank() == 0 { a.localize(world) } else { b.localize(world) };
            says(changed, &["a change of phase differs", "allocation", "local phase"]);
            assert!(matches!(pointer.get(world), Err(Error::Stale { .. })));
            let c = GlobalArray::<u8, 1>::new(world, layout)?;
            world.barrier()?;
            // The others meet at a barrier meanwhile, which must not count for this.
            if world.rank() == 0 {
                assert!(c.share(world).is_err());
            } else {
                let _ = world.barrier();
            }
            bellwether::Result::Ok(())
        };
        if simulated {
            super::support::simulated("other arrays", &[2, 3], body);
        } else {
            on_threads("other arrays", &[2, 3, 5], body);
        }
    }
}

#[test]
fn another_world_is_told() {
    on_threads("another world", &[1], |outer| {
        let layout = Layout::block([8], 1)?;
        let array = GlobalArray::<u8, 1>::new(outer, layout)?;
        // The only rank of another world on this very thread.
        let other = bellwether::World::start()?;
        says(array.sum(&other), &["another world"]);
        says(array.share(&other), &["another world"]);
        Ok(())
    });
}

#[test]
fn parts_may_be_forgotten() {
    on_threads("forgotten", &[1, 3], |world| {
        let layout = Layout::block([8], world.size())?;
        for _ in 0..3 {
            let mut array = GlobalArray::<u64, 1>::new(world, layout.clone())?;
            array.local_mut().fill(7);
            assert_eq!(array.sum(world)?, 56);
            std::mem::forget(array);
        }
        assert_eq!(GlobalArray::<u64, 1>::new(world, layout)?.sum(world)?, 0, "not the memory of those");
        world.barrier()
    });
}
