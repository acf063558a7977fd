//! Aggregated access to tables, compared with one operation after the other.

mod common;

use bellwether::aggregate::{Addend, Aggregator, Blocks, Cyclic, Options, Places, Route};
use bellwether::{Error, GlobalPtr, Result, Settings, Symmetric, Threads, World};
use common::{Chance, everywhere, is_full, on_threads};

/// Blocks of different lengths: rank r has r + 1 times `unit`, the last what is left.
struct Uneven {
    unit: usize,
    ranks: usize,
    extent: usize,
}

impl Places for Uneven {
    fn extent(&self) -> usize {
        self.extent
    }
    fn place(&self, index: usize) -> (usize, usize) {
        let start = |rank: usize| self.unit * rank * (rank + 1) / 2;
        let rank = (0..self.ranks).rev().find(|rank| start(*rank) <= index).unwrap_or(0);
        (rank, index - start(rank))
    }
    fn run(&self, index: usize) -> usize {
        let (rank, local) = self.place(index);
        if rank + 1 == self.ranks { self.extent - index } else { self.unit * (rank + 1) - local }
    }
}

/// Element `i` at rank `i mod ranks`, but for one that is nowhere.
struct Astray(Cyclic, usize);

impl Places for Astray {
    fn extent(&self) -> usize {
        self.0.extent()
    }
    fn place(&self, index: usize) -> (usize, usize) {
        if index == self.1 { (usize::MAX, 7) } else { self.0.place(index) }
    }
}

/// Element `i` at the rank after `i mod ranks`.
struct Turned(Cyclic, usize);

impl Places for Turned {
    fn extent(&self) -> usize {
        self.0.extent()
    }
    fn place(&self, index: usize) -> (usize, usize) {
        let (rank, local) = self.0.place(index);
        ((rank + 1) % self.1, local)
    }
}

/// What rank `rank` brings: indices below `extent`, and values.
fn load(rank: usize, extent: usize, count: usize, skew: bool) -> (Vec<usize>, Vec<u64>) {
    let mut chance = Chance::new(rank, extent as u64);
    let index = |chance: &mut Chance| {
        let index = chance.below(extent);
        if skew && chance.below(4) > 0 { index % 3 } else { index }
    };
    (0..count).map(|_| (index(&mut chance), chance.next())).unzip()
}

/// How many items rank `rank` brings: not all the same, and one nothing.
fn count(rank: usize, most: usize) -> usize {
    if rank == 1 { 0 } else { most / (1 + rank % 3) }
}

fn options(world: &World, memory: usize) -> Options {
    Options { memory, ..Options::new(world) }
}

/// The whole table, from the ranks' own parts.
fn whole<P: Places>(world: &World, table: &Symmetric<u64>, places: &P) -> Result<Vec<u64>> {
    world.barrier()?;
    let whole = (0..places.extent()).map(|index| {
        let (rank, local) = places.place(index);
        table.get(rank, local)
    });
    let whole = whole.collect();
    world.barrier()?;
    whole
}

/// Adds and reads by every call, and compares.
fn check<P: Places>(world: &World, places: &P, room: usize, most: usize, options: &Options) -> Result<()> {
    let mut table = world.alloc::<u64>(room)?;
    let mut aggregator = Aggregator::new(world, options)?;
    let mut expected = vec![0u64; places.extent()];
    for skew in [false, true] {
        for rank in 0..world.size() {
            let (indices, values) = load(rank, places.extent(), count(rank, most), skew);
            indices.iter().zip(&values).for_each(|(i, v)| expected[*i] = expected[*i].wrapping_add(*v));
        }
        let (indices, values) = load(world.rank(), places.extent(), count(world.rank(), most), skew);
        aggregator.scatter_add(&mut table, places, &indices, &values)?;
        assert_eq!(whole(world, &table, places)?, expected);
        // Many are read in two ways, which are tried in turn.
        for _ in 0..3 {
            let read = aggregator.gather(&table, places, &indices)?;
            assert!(read.iter().zip(&indices).all(|(value, index)| *value == expected[*index]));
        }
    }
    // Of a counter each asker gets another number, and none is left out.
    world.barrier()?;
    (0..room).for_each(|local| table.store(local, 0));
    world.barrier()?;
    let (indices, _) = load(world.rank(), places.extent(), count(world.rank(), most), true);
    let old = aggregator.fetch_add(&mut table, places, &indices, &vec![1; indices.len()])?;
    let counts = whole(world, &table, places)?;
    let sums = old.iter().zip(&indices).fold(vec![0u64; places.extent()], |mut sums, (old, index)| {
        sums[*index] += *old;
        sums
    });
    assert!(old.iter().zip(&indices).all(|(old, index)| *old < counts[*index]));
    let mut sums = sums;
    world.allreduce_sum(&mut sums)?;
    assert!(sums.iter().zip(&counts).all(|(sum, count)| *sum == count * count.saturating_sub(1) / 2));
    // Another way to combine.
    let (indices, values) = load(world.rank(), places.extent(), count(world.rank(), most), false);
    aggregator.scatter_with(&mut table, places, &indices, &values, u64::max)?;
    let mut expected = counts;
    for rank in 0..world.size() {
        let (indices, values) = load(rank, places.extent(), count(rank, most), false);
        indices.iter().zip(&values).for_each(|(i, v)| expected[*i] = expected[*i].max(*v));
    }
    assert_eq!(whole(world, &table, places)?, expected);
    Ok(())
}

/// Every layout, with much memory and with next to none.
fn all_layouts(world: &World, extent: usize, most: usize, options: &Options) -> Result<()> {
    let ranks = world.size();
    let blocks = Blocks::new(extent, ranks);
    check(world, &blocks, blocks.block(), most, options)?;
    let cyclic = Cyclic::new(extent, ranks);
    check(world, &cyclic, cyclic.block() + 3, most, options)?;
    let uneven = Uneven { unit: 1 + extent / (ranks * (ranks + 1)), ranks, extent };
    check(world, &uneven, extent, most, options)
}

#[test]
fn every_call_equals_one_operation_after_the_other() {
    everywhere("every_call_equals_one_operation_after_the_other", |world| {
        all_layouts(world, 101, 150, &options(world, 64 << 10))
    });
}

#[test]
fn memory_for_one_item_is_enough() {
    everywhere("memory_for_one_item_is_enough", |world| {
        let least = Options { items: 1, ..options(world, 0) };
        all_layouts(world, 23, 20, &least)
    });
}

#[test]
fn two_hops_lead_where_one_does() {
    everywhere("two_hops_lead_where_one_does", |world| {
        for columns in [None, Some(2)] {
            let route = Route::TwoHops { columns };
            all_layouts(world, 23, 20, &Options { route, items: 3, ..options(world, 500) })?;
        }
        Ok(())
    });
}

#[test]
fn tables_of_many_buckets() {
    on_threads("tables_of_many_buckets", |world| {
        // Every rank computes what all ranks bring.
        if world.size() > 5 && !is_full() {
            return Ok(());
        }
        let extent = 300_000 + world.size();
        let blocks = Blocks::new(extent, world.size());
        check(world, &blocks, blocks.block(), 30_000, &options(world, 200_000))?;
        let cyclic = Cyclic::new(extent, world.size());
        check(world, &cyclic, cyclic.block(), 30_000, &options(world, 1 << 20))?;
        let uneven = Uneven { unit: 1 + extent / (world.size() * (world.size() + 1)), ranks: world.size(), extent };
        check(world, &uneven, extent, 30_000, &options(world, 20_000))
    });
}

/// Offsets in a bucket take two bytes or four, by the size of an element.
#[test]
fn elements_far_apart_in_a_bucket() {
    fn tally<T: Addend + PartialEq + std::fmt::Debug>(world: &World, one: T, all: T) -> Result<()> {
        let cyclic = Cyclic::new(140_000 * world.size(), world.size());
        let mut table = world.alloc::<T>(cyclic.block())?;
        let mut aggregator = Aggregator::new(world, &options(world, 100_000))?;
        // Some of these differ by a power of two.
        let far = [0, 1, 4464, 65_535, 65_536, 65_537, 131_071, 131_072, 139_999].map(|local| local * world.size());
        aggregator.scatter_add(&mut table, &cyclic, &far, &[one; 9])?;
        assert_eq!(aggregator.gather(&table, &cyclic, &far)?, [all; 9]);
        let touched = (0..cyclic.block()).filter(|local| table.load(*local) != T::zeroed()).count();
        assert_eq!(touched, if world.rank() == 0 { far.len() } else { 0 });
        // Until all have looked.
        world.barrier()?;
        Ok(())
    }
    on_threads("elements_far_apart_in_a_bucket", |world| {
        let ranks = world.size();
        tally::<u8>(world, 1, ranks as u8)?;
        tally::<u32>(world, 1, ranks as u32)?;
        tally::<u64>(world, 1, ranks as u64)?;
        tally::<u128>(world, 1, ranks as u128)
    });
}

#[test]
fn memory_keeps_to_the_budget() {
    everywhere("memory_keeps_to_the_budget", |world| {
        for memory in [16 << 10, 100_000, 4 << 20] {
            let told = Aggregator::<u64>::new(world, &options(world, memory))?.memory();
            assert!(told <= memory + 4096 * world.size(), "{told} bytes where {memory} were wished for");
        }
        Ok(())
    });
}

#[test]
fn buffers_without_room_name_the_setting_that_asks_for_them() {
    let made = |world: &World| Aggregator::<u64>::new(world, &options(world, 1 << 24)).map(drop);
    let mut settings = Settings::default();
    settings.heap_limit = Some(1 << 20);
    for end in Threads::new(2).settings(settings).run(made).expect("the job starts") {
        let error = end.expect_err("no heap is so large").to_string();
        assert!(error.contains("lower BELLWETHER_AGGREGATION_MEMORY"), "{error}");
    }
}

#[test]
fn an_index_out_of_range_is_told_to_all_and_changes_nothing() {
    everywhere("an_index_out_of_range_is_told_to_all_and_changes_nothing", |world| {
        let (ranks, last) = (world.size(), world.size() - 1);
        let blocks = Blocks::new(40, ranks);
        let mut table = world.alloc::<u64>(blocks.block())?;
        let mut aggregator = Aggregator::new(world, &options(world, 1000))?;
        let mut indices = vec![3; 500];
        if world.rank() == last {
            indices[499] = 40;
        }
        let told = |end: Result<()>| match end {
            // Without the place of the call.
            Err(Error::InvalidArgument { why, .. }) => why.split(" (called at ").next().unwrap_or_default().to_owned(),
            other => panic!("{other:?} instead of an error"),
        };
        let expected = format!("rank {last} brought index 40, its number 499, for a table of 40 elements");
        assert_eq!(told(aggregator.scatter_add(&mut table, &blocks, &indices, &[1; 500])), expected);
        assert_eq!(told(aggregator.fetch_add(&mut table, &blocks, &indices, &[1; 500]).map(drop)), expected);
        let mut values = [7; 500];
        assert_eq!(told(aggregator.gather_into(&table, &blocks, &indices, &mut values)), expected);
        assert_eq!(values, [7; 500]);
        indices[499] = usize::MAX;
        assert!(told(aggregator.gather(&table, &blocks, &indices).map(drop)).contains(&usize::MAX.to_string()));
        let short = aggregator.scatter_add(&mut table, &blocks, &[1, 2], &[1]);
        assert_eq!(told(short), "rank 0 brought 2 indices and 1 values");
        // A table of another length than the layout says.
        let large = Blocks::new(41 * ranks, ranks);
        assert!(told(aggregator.scatter_add(&mut table, &large, &[41 * ranks - 1], &[1])).contains("element 40"));
        assert_eq!(whole(world, &table, &blocks)?, [0; 40]);
        // And it goes on.
        aggregator.scatter_add(&mut table, &blocks, &[39], &[1])?;
        assert_eq!(aggregator.gather(&table, &blocks, &[39])?, [ranks as u64]);
        Ok(())
    });
}

#[test]
fn an_index_out_of_range_among_many_is_told_to_all() {
    on_threads("an_index_out_of_range_among_many_is_told_to_all", |world| {
        const MANY: usize = 20_000;
        type Read<'a> = &'a dyn Fn(&mut Aggregator<u64>, &[usize], &mut [u64]) -> Result<()>;
        let told = |read: Read<'_>, wrong, expected: &str| {
            let mut aggregator = Aggregator::new(world, &Options::new(world))?;
            let good: Vec<usize> = (0..MANY).map(|i| i * 31 % 4000).collect();
            let mut bad = good.clone();
            if world.rank() == world.size() - 1 {
                bad[MANY - 1] = wrong;
            }
            // Each comes with one way to read, then with the other.
            for _ in 0..2 {
                read(&mut aggregator, &good, &mut [7; MANY])?;
                let mut values = [7; MANY];
                let error = read(&mut aggregator, &bad, &mut values).expect_err("an index outside");
                assert!(error.to_string().contains(expected), "{error}");
                assert_eq!(values, [7; MANY]);
            }
            Ok(())
        };
        let (blocks, cyclic) = (Blocks::new(5000, world.size()), Cyclic::new(5000, world.size()));
        let astray = Astray(cyclic, 4999);
        let table = world.alloc::<u64>(5000)?;
        let last = world.size() - 1;
        let outside = format!("rank {last} brought index 5000, its number {}, for a table of 5000 elements", MANY - 1);
        let nowhere = format!("the layout puts index 4999 of rank {last} at element 7 of rank {}", usize::MAX);
        told(&|by, indices, values| by.gather_into(&table, &blocks, indices, values), 5000, &outside)?;
        told(&|by, indices, values| by.gather_into(&table, &cyclic, indices, values), 5000, &outside)?;
        told(&|by, indices, values| by.gather_into(&table, &astray, indices, values), 4999, &nowhere)
    });
}

#[test]
fn ranks_in_different_calls_are_told() {
    everywhere("ranks_in_different_calls_are_told", |world| {
        if world.size() == 1 {
            return Ok(());
        }
        let blocks = Blocks::new(40, world.size());
        let (mut one, mut other) = (world.alloc::<u64>(blocks.block())?, world.alloc::<u64>(blocks.block())?);
        let mut aggregator = Aggregator::new(world, &options(world, 1000))?;
        let table = if world.rank() == 0 { &mut one } else { &mut other };
        let end = aggregator.scatter_add(table, &blocks, &[1], &[1]);
        let Err(Error::RanksDiffer { theirs, ours, .. }) = end else { panic!("{end:?}") };
        let call = format!("call 1 is scatter_add, on {} elements at each rank", blocks.block());
        assert!(ours.starts_with(&call) && theirs.starts_with(&call) && ours != theirs, "{ours}, {theirs}");
        world.barrier()?;
        let end = match world.rank() {
            0 => aggregator.gather(&one, &blocks, &[1]).map(drop),
            _ => aggregator.scatter_add(&mut one, &blocks, &[1], &[1]),
        };
        let Err(Error::RanksDiffer { theirs, ours, .. }) = end else { panic!("{end:?}") };
        let both = [&ours, &theirs].map(|said| (said.contains("call 2 is gather"), said.contains("is scatter_add")));
        assert!(both.contains(&(true, false)) && both.contains(&(false, true)), "{ours}, {theirs}");
        Ok(())
    });
}

/// One call by layouts that are not the same on all ranks: refused on all, and nothing is changed anywhere.
fn refused(world: &World, len: usize, mine: &impl Places, said: [&str; 2]) -> Result<()> {
    let guard = vec![u64::MAX; 300];
    let before = world.alloc::<u64>(guard.len())?;
    let mut table = world.alloc::<u64>(len)?;
    let after = world.alloc::<u64>(guard.len())?;
    before.write(0, &guard);
    after.write(0, &guard);
    let mut aggregator = Aggregator::new(world, &options(world, 1 << 20))?;
    let told = |end: Result<()>| {
        let Err(Error::RanksDiffer { theirs, ours, .. }) = end else { panic!("{end:?} instead of an error") };
        let both = [&ours, &theirs];
        assert!(said.iter().all(|said| both.iter().any(|told| told.contains(said))), "{ours}; {theirs}");
        assert_ne!(ours, theirs);
    };
    let (indices, values) = load(world.rank(), mine.extent(), 500, false);
    told(aggregator.scatter_add(&mut table, mine, &indices, &values));
    told(aggregator.fetch_add(&mut table, mine, &indices, &values).map(drop));
    told(aggregator.scatter_with(&mut table, mine, &indices, &values, u64::max));
    told(aggregator.gather(&table, mine, &indices).map(drop));
    world.barrier()?;
    let mut seen = guard.clone();
    for around in [&before, &after] {
        around.read(0, &mut seen);
        assert!(seen == guard, "rank {} changed what is beside its table", world.rank());
    }
    assert!((0..len).all(|local| table.load(local) == 0));
    // And it goes on.
    let blocks = Blocks::new(len * world.size(), world.size());
    aggregator.scatter_add(&mut table, &blocks, &[len], &[1])?;
    assert_eq!(aggregator.gather(&table, &blocks, &[len, 0])?, [world.size() as u64, 0]);
    world.barrier()
}

#[test]
fn ranks_with_different_layouts_are_told() {
    everywhere("ranks_with_different_layouts_are_told", |world| {
        let (ranks, is_first) = (world.size(), world.rank() == 0);
        if ranks == 1 {
            return Ok(());
        }
        // By place at one, by index at the others.
        let (cyclic, blocks) = (Cyclic::new(100 * ranks, ranks), Blocks::new(100 * ranks, ranks));
        let said = format!("a layout of {} elements", 100 * ranks);
        match is_first {
            true => refused(world, 100, &cyclic, [&said; 2])?,
            false => refused(world, 100, &blocks, [&said; 2])?,
        }
        // Of one kind, of other extents: by index, then by place.
        let extents = [100_000 * ranks, 65_000 * ranks];
        let said = extents.map(|extent| format!("a layout of {extent} elements"));
        let (said, extent) = ([&*said[0], &*said[1]], extents[usize::from(!is_first)]);
        refused(world, 100_000, &Blocks::new(extent, ranks), said)?;
        refused(world, 100_000, &Cyclic::new(extent, ranks), said)?;
        // Of one kind and extent, with other elements under the same bucket.
        let extent = 100 * ranks;
        let said = format!("a layout of {extent} elements");
        let uneven = Uneven { unit: 1, ranks, extent };
        match is_first {
            true => refused(world, extent, &uneven, [&said; 2])?,
            false => refused(world, extent, &blocks, [&said; 2])?,
        }
        let (columns, rows) = (Cyclic::new(extent, ranks), Turned(Cyclic::new(extent, ranks), ranks));
        match is_first {
            true => refused(world, 100, &columns, [&said; 2]),
            false => refused(world, 100, &rows, [&said; 2]),
        }
    });
}

#[test]
fn elements_of_other_types() {
    fn sums<T: Addend + PartialEq + std::fmt::Debug>(world: &World, one: T, all: T) -> Result<()> {
        let blocks = Blocks::new(7, world.size());
        let mut table = world.alloc::<T>(blocks.block())?;
        let mut aggregator = Aggregator::new(world, &options(world, 2000))?;
        for _ in 0..6 / world.size() {
            aggregator.scatter_add(&mut table, &blocks, &[6, 6], &[one, one])?;
        }
        assert_eq!(aggregator.gather(&table, &blocks, &[6, 0])?, [all, T::zeroed()]);
        Ok(())
    }
    everywhere("elements_of_other_types", |world| {
        if 6 % world.size() != 0 {
            return Ok(());
        }
        sums::<u8>(world, 100, (12u32 * 100) as u8)?;
        sums::<i16>(world, -1, -12)?;
        sums::<f32>(world, 0.5, 6.0)?;
        sums::<f64>(world, 0.25, 3.0)?;
        sums::<u128>(world, 1 << 100, 12 << 100)
    });
}

#[test]
fn an_update_leaves_no_pointer_to_the_table() {
    everywhere("an_update_leaves_no_pointer", |world| {
        let blocks = Blocks::new(7, world.size());
        let mut table = world.alloc::<u64>(blocks.block())?;
        let mut aggregator = Aggregator::new(world, &options(world, 2000))?;
        let before = GlobalPtr::to(&table, 0, 0)?;
        assert_eq!(before.get(world)?, 0);
        world.barrier()?;
        aggregator.scatter_add(&mut table, &blocks, &[0], &[1])?;
        assert!(matches!(before.get(world), Err(Error::Stale { .. })));
        let after = world.allgather(&[GlobalPtr::to(&table, 0, 0)?])?;
        for pointer in after {
            assert_eq!(pointer.get(world)?, world.size() as u64);
        }
        world.barrier()
    });
}
