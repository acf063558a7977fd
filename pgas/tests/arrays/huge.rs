//! Counts, indices and extents near the end of what a word holds: errors in words, and no panic, on mapped memory and over a network.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bellwether::array::{Distribution, GatherPlan, Ghosts, GlobalArray, Layout, Region};
use bellwether::{Error, GlobalPtr, Piece, Posted, Result, Team};

use super::support::some_worlds;

const MOST: usize = usize::MAX;
const HALF: usize = usize::MAX / 2 + 1;

/// Refused with an error of arguments, bounds or memory.
#[track_caller]
fn refused<R>(what: &str, call: impl FnOnce() -> Result<R>) {
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| panic!("{what}: it panicked"));
    let error = outcome.err().unwrap_or_else(|| panic!("{what}: it was accepted"));
    let fits = matches!(
        error,
        Error::InvalidArgument { .. } | Error::OutOfBounds { .. } | Error::OutOfMemory { .. } | Error::Stale { .. }
    );
    assert!(fits, "{what}: {error}");
}

#[test]
fn memory() {
    some_worlds("huge counts in memory", |world| {
        let (n, last) = (world.size(), world.size() - 1);
        for len in [MOST, HALF, MOST / 8, MOST / 8 + 1, MOST / 8 - 8] {
            refused("alloc", || world.alloc::<u64>(len));
            refused("alloc of bytes", || world.alloc::<[u8; 7]>(len));
        }
        for align in [MOST, HALF, 0] {
            refused("alloc_aligned", || world.alloc_aligned::<u64>(1, align));
        }
        let array = world.alloc::<u64>(10)?;
        world.barrier()?;
        for start in [MOST, MOST - 1, HALF, MOST / 8, MOST / 8 + 1, 11] {
            refused("put", || array.put(last, start, 1));
            refused("get", || array.get(last, start));
            refused("put_slice", || array.put_slice(last, start, &[1, 2]));
            refused("get_slice", || array.get_slice(last, start, &mut [0, 0]));
            refused("fetch_add", || array.fetch_add(last, start, 1));
            refused("fetch_add_async", || array.fetch_add_async(last, start, 1).wait());
            refused("fetch_update", || array.fetch_update(last, start, |x| x));
            refused("put_from", || array.put_from(last, start, &array, 0..2));
            refused("put_from", || array.put_from(last, 0, &array, start..MOST));
            refused("signal", || array.signal(last, start));
            refused("wait_signal", || array.wait_signal(start, 1));
            for count in [MOST, HALF, MOST - start, 2] {
                refused("get_slice_async", || array.get_slice_async(last, start, count).wait());
                refused("get_slice_async", || array.get_slice_async(last, 1, MOST - 1).wait());
                let pieces = [Piece { rank: last, start: 0, count: 1 }, Piece { rank: last, start, count }];
                refused("get_pieces", || array.get_pieces(&pieces, &mut [0, 0]));
                refused("get_pieces_async", || array.get_pieces_async(&pieces).wait());
                refused("put_pieces", || array.put_pieces(&pieces, &[0, 0]));
                refused("put_pieces_async", || array.put_pieces_async(&pieces, &[0, 0]).wait());
            }
        }
        let nothing = world.alloc::<()>(MOST)?;
        nothing.put(last, MOST - 1, ())?;
        refused("put of nothing", || nothing.put(last, MOST, ()));
        assert_eq!(nothing.get_slice_async(last, 0, MOST).wait()?.len(), MOST);
        refused("get of nothing", || nothing.get_slice_async(last, 1, MOST).wait());
        refused("a length of ranks", || {
            Layout::block([MOST], n)?.box_at(MOST / 2).map_or(Ok(()), |_| Ok(())).and(world.alloc::<u64>(MOST))
        });
        world.barrier()
    });
}

#[test]
fn pointers() {
    some_worlds("huge counts by pointers", |world| {
        let last = world.size() - 1;
        let array = world.alloc::<u64>(10)?;
        array.write(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        world.barrier()?;
        refused("a pointer", || GlobalPtr::to(&array, last, MOST));
        let start = GlobalPtr::to(&array, last, 2)?;
        for far in
            [start.add(MOST), start.add(MOST - 4), start.sub(5), start.offset(isize::MIN), start.offset(isize::MAX)]
        {
            // Around the end of a word: that is element 1.
            if far.index() == 1 {
                continue;
            }
            refused("get", || far.get(world));
            refused("put", || far.put(world, 1));
            refused("get_async", || far.get_async(world).and_then(Posted::wait));
            refused("a slice", || far.slice(1).get(world));
        }
        for len in [MOST, MOST - 1, HALF, MOST / 8 + 1] {
            let slice = start.slice(len);
            refused("get of a slice", || slice.get(world));
            refused("get_async of a slice", || slice.get_async(world).and_then(Posted::wait));
            refused("get_strided", || slice.get_strided(world, 0, 1, 2));
            refused("gather", || slice.gather(world, &[0]));
            refused("a part of a slice", || start.slice(5).slice(3..len));
            refused("at", || start.slice(5).at(len));
            refused("split_at", || start.slice(5).split_at(len));
        }
        let slice = start.slice(8);
        for [from, stride, count] in [
            [0, 0, MOST],
            [0, 0, MOST / 8],
            [7, 0, HALF],
            [8, 0, 1],
            [0, 1, MOST],
            [0, MOST, 2],
            [0, HALF, 3],
            [1, MOST, 2],
            [MOST, 0, 1],
            [MOST, 1, 1],
            [1, MOST / 3 + 1, 4],
        ] {
            refused("get_strided", || slice.get_strided(world, from, stride, count));
            refused("get_strided_async", || slice.get_strided_async(world, from, stride, count).and_then(Posted::wait));
            if count <= 4 {
                let values = vec![0; count];
                refused("put_strided", || slice.put_strided(world, from, stride, &values));
                refused("put_strided_async", || {
                    slice.put_strided_async(world, from, stride, &values).and_then(Posted::wait)
                });
            }
        }
        // As many of one element as anybody may want.
        assert_eq!(slice.get_strided(world, 3, 0, 10_000)?, vec![6; 10_000]);
        assert_eq!(slice.get_strided_async(world, 3, 0, 10_000)?.wait()?, vec![6; 10_000]);
        assert_eq!(slice.get_strided(world, 7, MOST, 1)?, [10]);
        for number in [MOST, HALF, 8] {
            refused("gather", || slice.gather(world, &[0, number]));
            refused("gather_async", || slice.gather_async(world, &[0, number]).and_then(Posted::wait));
            refused("scatter", || slice.scatter(world, &[0, number], &[0, 0]));
            refused("scatter_async", || slice.scatter_async(world, &[0, number], &[0, 0]).and_then(Posted::wait));
        }
        world.barrier()
    });
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "a range that ends before it starts is refused, or has no elements")]
fn arrays() {
    some_worlds("huge counts in arrays", |world| {
        let n = world.size();
        for extents in [[MOST, MOST], [HALF, 2], [MOST, 1], [MOST / 2, 3]] {
            refused("a layout", || GlobalArray::<u64, 2>::new(world, Layout::rows(extents, n)?));
            refused("a cyclic layout", || GlobalArray::<u64, 2>::new(world, Layout::cyclic(extents, n)?));
        }
        for extent in [MOST / 2, MOST / 8, MOST / 16, MOST / 64] {
            refused("an array", || GlobalArray::<u64, 1>::new(world, Layout::block([extent], n)?));
            refused("a cyclic array", || GlobalArray::<[u64; 9], 1>::new(world, Layout::cyclic([extent], n)?));
        }
        let blocks = Layout::new([20], [Distribution::BlockCyclic(MOST)], n)?;
        assert_eq!(blocks.extents_at(0), [20]);
        refused("sizes", || {
            Layout::new([MOST], [Distribution::Sizes(vec![MOST; n])], n)?
                .is_empty()
                .then_some(())
                .ok_or(Error::InvalidArgument { operation: "one rank has it all", why: String::new() })
        });
        for width in [MOST, HALF, MOST / 2, 1000] {
            let ghosts = Ghosts::new([width]);
            refused("ghosts", || GlobalArray::<u64, 1>::with_ghosts(world, Layout::block([4 * n], n)?, ghosts));
            let ghosts = Ghosts::new([width]).periodic([true]);
            refused("periodic ghosts", || {
                GlobalArray::<u64, 1>::with_ghosts(world, Layout::block([4 * n], n)?, ghosts)
            });
        }
        let array = GlobalArray::from_fn(world, Layout::rows([4 * n, 5], n)?, |[i, j]| (10 * i + j) as u64)?;
        let array = array.share(world)?;
        for region in [[0..MOST, 0..MOST], [MOST - 1..MOST, 0..1], [0..HALF, 0..2], [0..1, 4..MOST], [1..2, HALF..MOST]]
        {
            refused("get_patch", || array.get_patch(region.clone()));
            refused("get_patch_into", || array.get_patch_into(region.clone(), &mut [0]));
            refused("get_patch_async", || array.get_patch_async(region.clone()).and_then(Posted::wait));
            refused("put_patch", || array.put_patch(region.clone(), &[0]));
            refused("put_patch_async", || array.put_patch_async(region.clone(), &[0]).and_then(Posted::wait));
            refused("view", || array.view(region.clone()).map(drop));
        }
        let view = array.view([1..3, 1..4])?;
        refused("a view of a view", || view.view([0..MOST, 0..1]).map(drop));
        refused("get of a view", || view.get([MOST, 0]));
        refused("at of a view", || view.at([MOST, MOST]));
        // None of them: the range ends before it starts.
        assert_eq!(array.get_patch([3..1, 0..2])?.len(), 0);
        assert_eq!(Region::from([MOST..0, 0..1]).len(), 0);
        for index in [[MOST, MOST], [HALF, 0], [0, MOST]] {
            refused("get", || array.get(index));
            refused("put", || array.put(index, 1));
            refused("pointer", || array.pointer(index));
            refused("fetch_update", || array.fetch_update(index, |x| x));
            refused("get_async", || array.get_async(index).and_then(Posted::wait));
        }
        for number in [MOST, HALF, 20 * n] {
            refused("a plan", || GatherPlan::<u64>::new(world, array.layout(), &[0, number]));
        }
        let team = Team::world(world)?;
        for counts in [vec![MOST; n], vec![HALF; n], vec![2; n]] {
            refused("alltoallv", || team.alltoallv(&[1u64], &counts));
        }
        world.barrier()
    });
}
