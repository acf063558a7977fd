//! What is done with all elements of an array.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bellwether::aggregate::{Aggregator, Options};
use bellwether::array::Distribution::{Block, BlockCyclic, Cyclic, Uneven};
use bellwether::array::{Ghosts, GlobalArray, Layout};
use bellwether::{Result, Simulated, World};
use bellwether_tests::watchdog;

use super::support::{boxes, everywhere, lines, on_threads, planes, says, simulated, value};

/// Numbers without order, the same everywhere.
fn mixed(i: usize) -> u64 {
    let word = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
}

/// All elements, in the order of their indices.
fn all<T: bellwether::Pod, const D: usize>(world: &World, array: GlobalArray<T, D>) -> Result<Vec<T>> {
    let extents = array.extents();
    let array = array.share(world)?;
    let all = array.get_patch(bellwether::array::Region { start: [0; D], extents })?;
    world.barrier()?;
    Ok(all)
}

/// The indices of an array of these extents, in order.
fn indices<const D: usize>(extents: [usize; D]) -> impl Iterator<Item = [usize; D]> {
    (0..extents.iter().product()).map(move |mut place: usize| {
        let mut index = [0; D];
        for (at, extent) in index.iter_mut().zip(extents).rev() {
            (*at, place) = (place % extent, place / extent);
        }
        index
    })
}

fn there_and_back<const D: usize>(world: &World, layouts: Vec<Layout<D>>) -> Result<()> {
    let n = world.size();
    for (number, layout) in layouts.into_iter().enumerate() {
        let (root, back) = (number % n, (number + 1) % n);
        let values: Vec<f64> = indices(layout.extents()).map(value).collect();
        let array = GlobalArray::from_root(world, layout, root, (world.rank() == root).then_some(&values))?;
        assert!(array.iter().all(|(index, element)| *element == value(index)));
        assert_eq!(array.to_root(world, back)?, (world.rank() == back).then_some(values));
    }
    Ok(())
}

#[test]
fn from_one_rank_and_back() {
    everywhere("from a root", |world| {
        let n = world.size();
        there_and_back(world, planes([5, 7], n))?;
        there_and_back(world, boxes([5, 2, 3], n))?;
        let numbers: Vec<u64> = (0..13).map(mixed).collect();
        for layout in lines(13, n) {
            // What other ranks give is not looked at.
            let given = if world.rank() == 0 { &numbers } else { &numbers[..2] };
            let mut array = GlobalArray::from_root(world, layout.clone(), 0, Some(given))?;
            array.update(|x| *x ^= 1);
            let expected: Vec<u64> = numbers.iter().map(|x| x ^ 1).collect();
            assert_eq!(array.to_root(world, n - 1)?, (world.rank() == n - 1).then_some(expected));
            says(array.to_root(world, n), &["to_root", &format!("rank {n} of a world of {n}")]);
            says(GlobalArray::from_root(world, layout.clone(), n, Some(given)), &[&format!("rank {n} of a world")]);
            says(GlobalArray::from_root(world, layout.clone(), 0, Some(&numbers[1..])), &["12 elements", "of 13"]);
            says(GlobalArray::<u64, 1>::from_root(world, layout, 0, None), &["rank 0 gives no elements"]);
        }
        let bordered = GlobalArray::<u8, 2>::with_ghosts(world, Layout::block([2 * n, 14], n)?, Ghosts::new([1, 2]))?;
        assert!(bordered.to_root(world, 0)?.is_none_or(|all| all.len() == 28 * n));
        Ok(())
    });
}

fn combined<const D: usize>(world: &World, layouts: Vec<Layout<D>>) -> Result<()> {
    let number = |index: [usize; D]| index.iter().fold(0, |all, i| 10 * all + *i as i64);
    for layout in layouts {
        let numbers: Vec<i64> = indices(layout.extents()).map(number).collect();
        let a = GlobalArray::from_fn(world, layout.clone(), number)?;
        let mut b = a.map(world, |x| x as f64 / 2.0)?;
        let c = a.zip_map(world, &b, |x, y| x as f64 - y)?;
        assert!(c.iter().zip(b.iter()).all(|(c, b)| c == b));
        b.zip_update(&a, |y, x| *y += x as f64)?;
        b.update(|y| *y *= 2.0);
        assert!(b.iter().all(|(index, b)| *b == 3.0 * number(index) as f64));
        assert_eq!(a.sum(world)?, numbers.iter().sum::<i64>());
        assert_eq!(Some(a.reduce(world, i64::MIN, i64::max, i64::max)?), numbers.last().copied());
        let even = numbers.iter().filter(|x| **x % 2 == 0).count();
        assert_eq!(a.reduce(world, 0, |n, x| n + usize::from(x % 2 == 0), |a, b| a + b)?, even);
        assert_eq!(a.dot(world, &a)?, a.map(world, |x| x * x)?.sum(world)?);
        b.fill(1.5);
        assert_eq!(b.sum(world)?, 1.5 * numbers.len() as f64);
    }
    Ok(())
}

#[test]
fn map_zip_and_reduce() {
    everywhere("map", |world| {
        combined(world, planes([5, 7], world.size()))?;
        combined(world, boxes([3, 5, 2], world.size()))
    });
}

#[test]
fn a_reduction_gives_the_same_bits_each_time_and_everywhere() {
    // By ranks and layout, 0 for none yet. No lock of std's: the thread sanitizer does not see those wait.
    let seen: [[AtomicU64; 4]; 8] = Default::default();
    let body = |world: &World| {
        let sums = lines(1000, world.size()).into_iter().enumerate().map(|(kind, layout)| {
            let array = GlobalArray::from_fn(world, layout, |[i]| 1.0 / (1.0 + mixed(i) as f64))?;
            let first: f64 = array.sum(world)?;
            (0..5).try_for_each(|_| array.sum(world).map(|sum| assert_eq!(sum.to_bits(), first.to_bits())))?;
            assert_eq!(array.dot(world, &array)?.to_bits(), array.dot(world, &array)?.to_bits());
            Ok((kind, first.to_bits()))
        });
        for (kind, bits) in sums.collect::<Result<Vec<_>>>()? {
            let before =
                seen[world.size()][kind].compare_exchange(0, bits, Relaxed, Relaxed).unwrap_or_else(|seen| seen);
            assert!(before == 0 || before == bits, "of {} ranks, layout {kind}", world.size());
        }
        world.barrier()
    };
    // By the size of the team and the layout alone: not by the rank, the network, or what comes first on it.
    on_threads("bits", &[1, 2, 3, 5, 7], body);
    simulated("bits", &[1, 2, 3, 5, 7], body);
    for (ranks, seed) in [(2, 1), (3, 2), (3, 3), (5, 4), (7, 5), (7, 6)] {
        let _guard = watchdog::guard(format!("bits, seed {seed}"), std::time::Duration::from_secs(600));
        let job = Simulated::new(bellwether::sim::Config::new(ranks, seed).wild());
        job.run(body).expect("the job runs").into_iter().collect::<Result<Vec<_>>>().expect("sums");
    }
    let different: std::collections::BTreeSet<u64> = seen.into_iter().flatten().map(AtomicU64::into_inner).collect();
    assert!(different.len() > 2, "sums that are exact in any order prove nothing");
}

#[test]
fn arrays_of_different_layouts_are_not_combined() {
    everywhere("other layouts", |world| {
        let n = world.size();
        let a = GlobalArray::<f64, 1>::new(world, Layout::block([10], n)?)?;
        let mut b = GlobalArray::<f64, 1>::new(world, Layout::block([11], n)?)?;
        let facts = ["arrays of different layouts combined", "[10] elements", "[11] elements"];
        says(a.dot(world, &b), &facts);
        says(a.zip_map(world, &b, |a, b| a + b), &facts);
        says(b.zip_update(&a, |b, a| *b = a), &facts);
        says(a.relayout(world, Layout::block([12], n)?), &["relayout", "[10]", "[12]"]);
        says(a.copy_into(world, b), &["copy_into", "[10]", "[11]"]);
        if n > 1 {
            let c = GlobalArray::<f64, 1>::new(world, Layout::cyclic([10], n)?)?;
            says(a.dot(world, &c), &["different layouts", "block", "cyclic"]);
        }
        let plane = GlobalArray::<f64, 2>::new(world, Layout::block([3, 4], n)?)?;
        says(plane.transpose(world, Layout::block([3, 4], n)?), &["transpose", "[3, 4]", "[4, 3]"]);
        says(plane.relayout(world, Layout::block([3, 4], n + 1)?), &[&format!("{} ranks", n + 1), &format!("has {n}")]);
        Ok(())
    });
}

#[test]
fn every_layout_into_every_other() {
    fn each<const D: usize>(world: &World, layouts: &[Layout<D>]) -> Result<()> {
        for from in layouts {
            let array = GlobalArray::from_fn(world, from.clone(), value)?;
            for to in layouts {
                let moved = array.relayout(world, to.clone())?;
                assert!(moved.iter().all(|(index, element)| *element == value(index)), "{from} to {to}");
                let target = GlobalArray::from_fn(world, to.clone(), |_| 0.0)?;
                let copied = array.copy_into(world, target)?;
                assert!(copied.iter().all(|(index, element)| *element == value(index)), "{from} to {to}");
            }
        }
        Ok(())
    }
    everywhere("relayout", |world| {
        let n = world.size();
        each(world, &lines(17, n))?;
        each(world, &lines(16 * n, n))?;
        each(world, &planes([5, 6], n))?;
        // Every other one: of all pairs these are enough, and each kind is among them.
        let some: Vec<_> = boxes([3, 4, 2], n).into_iter().step_by(2).collect();
        each(world, &some)?;
        // Pieces of 4 KiB and more, which go by themselves over a network.
        let long = [BlockCyclic(600), Block, Uneven((1..=n).map(|part| part as f64).collect())];
        let long = long.map(|kind| Layout::new([1200 * n + 7], [kind], n).expect("fits"));
        each(world, &long)?;
        let rows = |kind| Layout::on_grid([n, 700], [kind, Block], [n, 1], n).expect("fits");
        each(world, &[rows(Block), rows(Cyclic), Layout::on_grid([n, 700], [Block, Block], [1, n], n).expect("fits")])
    });
}

#[test]
fn transposed_in_every_layout() {
    everywhere("transpose", |world| {
        for (extents, columns) in [([5, 9], [9, 5]), ([70, 41], [41, 70])] {
            if extents[0] == 70 && world.size() > 3 {
                continue;
            }
            let from = planes(extents, world.size());
            for (from, to) in from.iter().zip(planes(columns, world.size()).iter().rev()) {
                let array = GlobalArray::from_fn(world, from.clone(), value)?;
                let turned = array.transpose(world, to.clone())?;
                assert!(turned.iter().all(|([i, j], element)| *element == value([j, i])), "{from} to {to}");
                let back = turned.transpose_into(world, GlobalArray::new(world, from.clone())?)?;
                assert!(back.iter().all(|(index, element)| *element == value(index)));
                let reversed = array.transpose(world, from.reversed())?;
                assert!(reversed.iter().all(|([i, j], element)| *element == value([j, i])));
            }
        }
        Ok(())
    });
}

#[test]
fn prefix_sums_of_every_layout() {
    everywhere("prefix sums", |world| {
        for extent in [1, 4, 29] {
            for layout in lines(extent, world.size()) {
                let array = GlobalArray::from_fn(world, layout, |[i]| mixed(i) % 1000)?;
                let sums: Vec<u64> = (0..extent).map(|i| (0..=i).map(|i| mixed(i) % 1000).sum()).collect();
                let inclusive = array.prefix_sum(world)?;
                assert_eq!(inclusive.layout(), array.layout());
                assert_eq!(all(world, inclusive)?, sums);
                let exclusive: Vec<u64> = [0].into_iter().chain(sums).take(extent).collect();
                assert_eq!(all(world, array.exclusive_prefix_sum(world)?)?, exclusive);
                // Joined from the left: the first element that is asked for stays.
                let first = all(world, array.scan(world, |a, _| a)?)?;
                assert_eq!(first, vec![mixed(0) % 1000; extent]);
                let last = all(world, array.exclusive_scan(world, 7, |_, b| b)?)?;
                assert_eq!(
                    last,
                    [7].into_iter().chain((0..extent).map(|i| mixed(i) % 1000)).take(extent).collect::<Vec<_>>()
                );
            }
        }
        Ok(())
    });
}

#[test]
fn sorted_the_same_on_any_number_of_ranks() {
    everywhere("sort", |world| {
        for extent in [1, 6, 500] {
            // Many equal keys: the other half tells whether they keep their order.
            for keys in [1, 5, 1 << 20] {
                let element = |i: usize| [(mixed(i) % keys) as u32, i as u32];
                let mut expected: Vec<[u32; 2]> = (0..extent).map(element).collect();
                expected.sort_by_key(|element| element[0]);
                for layout in lines(extent, world.size()) {
                    let array = GlobalArray::from_fn(world, layout, |[i]| element(i))?;
                    let sorted = array.sort_by_key(world, |element| element[0])?;
                    assert_eq!(sorted.layout(), array.layout());
                    assert_eq!(all(world, sorted)?, expected);
                }
            }
        }
        let floats = GlobalArray::from_fn(world, Layout::cyclic([40], world.size())?, |[i]| match i % 7 {
            0 => f64::NAN,
            1 => -0.0,
            _ => 20.0 - i as f64,
        })?;
        let sorted = all(world, floats.sort_by(world, f64::total_cmp)?)?;
        assert!(sorted.is_sorted_by(|a, b| a.total_cmp(b).is_le()));
        let sorted = all(
            world,
            GlobalArray::from_fn(world, Layout::block([9], world.size())?, |[i]| 9 - i as i32)?.sort(world)?,
        )?;
        assert_eq!(sorted, (1..=9).collect::<Vec<_>>());
        Ok(())
    });
}

/// Integers of each type, enough of them on each rank to be sorted by radix.
#[test]
fn integers_of_every_type_in_order() {
    everywhere("sort integers", |world| {
        macro_rules! check {
            ($($integer:ty),*) => {
                $({
                    let extent = 1500 * world.size();
                    // All bits, so that some are negative.
                    let element = |i: usize| mixed(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) as $integer;
                    let array = GlobalArray::from_fn(world, Layout::block([extent], world.size())?, |[i]| element(i))?;
                    let mut expected: Vec<$integer> = (0..extent).map(element).collect();
                    expected.sort_unstable();
                    assert_eq!(all(world, array.sort(world)?)?, expected, stringify!($integer));
                })*
            };
        }
        check!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);
        // Lines of an array: of its only one, and of each of several.
        let element = |i: usize| mixed(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) as i32;
        let extent = 1500 * world.size();
        let line = GlobalArray::from_fn(world, Layout::cyclic([extent], world.size())?, |[i]| element(i))?;
        let mut expected: Vec<i32> = (0..extent).map(element).collect();
        expected.sort_unstable();
        assert_eq!(all(world, line.sort_along(world, 0)?)?, expected);
        let lines = Layout::block([3, 1100], world.size())?;
        let lines = GlobalArray::from_fn(world, lines, |[i, j]| element(1100 * i + j))?;
        let mut expected: Vec<i32> = (0..3300).map(element).collect();
        expected.chunks_mut(1100).for_each(<[_]>::sort_unstable);
        assert_eq!(all(world, lines.sort_along(world, 1)?)?, expected);
        Ok(())
    });
}

/// Every rank adds to elements all over an array of any layout, and everyone reads them back by number.
#[test]
fn lists_of_elements_are_added_to_and_gathered() {
    everywhere("scatter_add", |world| {
        let mut by = Aggregator::new(world, &Options::new(world))?;
        let numbers: Vec<usize> = (0..100).map(|i| i * i % 42).collect();
        let mut expected = vec![0; 42];
        numbers.iter().chain(&[41]).for_each(|number| expected[*number] += world.size() as u64);
        expected.reverse();
        let backwards: Vec<usize> = (0..42).rev().collect();
        let check = |mut array: GlobalArray<u64, 2>, by: &mut Aggregator<'_, u64>| {
            array.scatter_add(by, &numbers, &vec![1; numbers.len()])?;
            array.fetch_add_all(by, &[41], &[1])?;
            assert_eq!(array.gather(by, &backwards)?, expected);
            says(array.gather(by, &[42]), &["42", "42 elements"]);
            let shared = array.share(world)?;
            assert_eq!(shared.gather(by, &backwards)?, expected);
            let [rows, columns] = shared.extents();
            assert_eq!(shared.get([rows - 1, columns - 1])?, expected[0]);
            world.barrier()
        };
        for layout in planes([6, 7], world.size()) {
            check(GlobalArray::new(world, layout)?, &mut by)?;
        }
        let ghosts = Ghosts::new([0, 1]);
        check(GlobalArray::with_ghosts(world, Layout::rows([7, 6], world.size())?, ghosts)?, &mut by)
    });
}
