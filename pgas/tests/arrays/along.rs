//! Sorting and prefixes along one axis.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bellwether::array::{Distribution::*, Ghosts, GlobalArray, Layout, Region};
use bellwether::{Error, Event, Pod, Result, Threads, World};
use bellwether_tests::watchdog;

use super::support::{LIMIT, boxes, lines, planes, says, some_worlds, value};

/// Some numbers without order.
fn mixed<const D: usize>(index: [usize; D]) -> u32 {
    let word = index.iter().fold(7_u64, |all, i| (all + *i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (word ^ word >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) as u32 >> 3
}

/// A plain array, and what `change` makes of each line along an axis.
fn serial<T: Copy, const D: usize>(
    extents: [usize; D],
    axis: usize,
    value: impl Fn([usize; D]) -> T,
    mut change: impl FnMut(&mut [T]),
) -> Vec<T> {
    let index = |mut number: usize| {
        let mut index = [0; D];
        for d in (0..D).rev() {
            (index[d], number) = (number % extents[d], number / extents[d]);
        }
        index
    };
    let mut all: Vec<T> = (0..extents.iter().product()).map(|number| value(index(number))).collect();
    let stride: usize = extents[axis + 1..].iter().product();
    for first in (0..all.len()).filter(|number| index(*number)[axis] == 0) {
        let places = (0..extents[axis]).map(|i| first + i * stride);
        let mut line: Vec<T> = places.clone().map(|place| all[place]).collect();
        change(&mut line);
        places.zip(line).for_each(|(place, element)| all[place] = element);
    }
    all
}

/// The array has these elements, and the layout and the ghost layers of the other one.
fn has<T: Pod + PartialEq + std::fmt::Debug, const D: usize>(
    array: &GlobalArray<T, D>,
    expected: &[T],
    like: &GlobalArray<T, D>,
) {
    assert_eq!((array.layout(), array.local_extents()), (like.layout(), like.local_extents()));
    let extents = array.extents();
    let count = array.iter().inspect(|(index, element)| {
        let number = (0..D).fold(0, |all, d| all * extents[d] + index[d]);
        assert_eq!(**element, expected[number], "{index:?} of {array:?}");
    });
    assert_eq!(count.count(), array.own_extents().iter().product());
}

fn sorted<const D: usize>(world: &World, layouts: Vec<Layout<D>>) -> Result<()> {
    // Many equal keys: the other half tells whether they keep their order.
    let element = |index: [usize; D]| [mixed(index) % 5, mixed(index)];
    for layout in layouts {
        let array = GlobalArray::from_fn(world, layout, element)?;
        for axis in 0..D {
            let expected = serial(array.extents(), axis, element, |line| line.sort_by_key(|element| element[0]));
            has(&array.sort_along_by_key(world, axis, |element| element[0])?, &expected, &array);
        }
    }
    Ok(())
}

#[test]
fn sorted_along_each_axis_of_every_layout() {
    some_worlds("sort along", |world| {
        let n = world.size();
        sorted(world, lines(29, n))?;
        sorted(world, planes([5, 7], n).into_iter().step_by(2).collect())?;
        // Fewer lines than ranks, and more than are sorted together.
        sorted(world, vec![Layout::rows([2, 40], n)?, Layout::rows([40, 2], n)?, Layout::rows([3, 70], n)?])?;
        sorted(world, boxes([4, 3, 5], n).into_iter().step_by(2).collect())
    });
}

fn prefixes<const D: usize>(world: &World, layouts: Vec<Layout<D>>) -> Result<()> {
    // Linear functions one after the other: associative, and no two of them may change places.
    let element = |index: [usize; D]| [mixed(index) | 1, mixed(index) >> 7];
    let after = |[a, b]: [u32; 2], [c, d]: [u32; 2]| [a.wrapping_mul(c), b.wrapping_mul(c).wrapping_add(d)];
    let inclusive = |line: &mut [[u32; 2]]| (1..line.len()).for_each(|i| line[i] = after(line[i - 1], line[i]));
    let start = [3, 8];
    let exclusive = |line: &mut [[u32; 2]]| {
        let mut before = start;
        for element in line {
            let next = after(before, *element);
            *element = before;
            before = next;
        }
    };
    for layout in layouts {
        let array = GlobalArray::from_fn(world, layout, element)?;
        let extents = array.extents();
        for axis in 0..D {
            has(&array.scan_along(world, axis, after)?, &serial(extents, axis, element, inclusive), &array);
            let expected = serial(extents, axis, element, exclusive);
            has(&array.exclusive_scan_along(world, axis, start, after)?, &expected, &array);
        }
    }
    Ok(())
}

#[test]
fn prefixes_along_each_axis_of_every_layout() {
    some_worlds("scan along", |world| {
        let n = world.size();
        prefixes(world, lines(13, n))?;
        prefixes(world, planes([5, 7], n).into_iter().step_by(2).collect())?;
        prefixes(world, vec![Layout::rows([2, 9], n)?, Layout::rows([9, 2], n)?.reversed()])?;
        prefixes(world, boxes([4, 3, 5], n).into_iter().step_by(2).collect())
    });
}

#[test]
fn lines_that_one_rank_has_give_the_same_bits_on_any_number_of_ranks() {
    let seen: [AtomicU64; 2] = Default::default();
    let float = |index: [usize; 2]| 1.0 / (1.0 + f64::from(mixed(index) % 1000));
    let sum = |line: &mut [f64]| (1..line.len()).for_each(|i| line[i] += line[i - 1]);
    let digest = |all: &[f64]| all.iter().fold(1_u64, |all, x| all.rotate_left(7).wrapping_mul(31) ^ x.to_bits());
    some_worlds("bits along", |world| {
        for axis in 0..2 {
            // Dealt out along the axis it goes to blocks; of one part it never does.
            let mut grid = [world.size(); 2];
            grid[axis] = 1;
            let layout = Layout::on_grid([9, 8], [Cyclic, BlockCyclic(2)], grid, world.size())?;
            let sums = GlobalArray::from_fn(world, layout, float)?.prefix_sum_along(world, axis)?;
            if let Some(all) = sums.to_root(world, 0)? {
                assert_eq!(all, serial([9, 8], axis, float, sum));
                let before = seen[axis].compare_exchange(0, digest(&all), Relaxed, Relaxed).unwrap_or_else(|seen| seen);
                assert!(before == 0 || before == digest(&all), "axis {axis} on {} ranks", world.size());
            }
        }
        Ok(())
    });
}

#[test]
fn results_have_the_ghost_layers_of_the_array() {
    some_worlds("ghosts along", |world| {
        let n = world.size();
        let layout = Layout::on_grid([2 * n, 9], [Block, Block], [n, 1], n)?;
        let ghosts = Ghosts::new([1, 2]).periodic([true, false]);
        let mut array = GlobalArray::with_ghosts(world, layout, ghosts)?;
        array.local_mut().fill(u32::MAX);
        array.iter_mut().for_each(|(index, element)| *element = mixed(index) % 1000);
        let value = |index| mixed(index) % 1000;
        for axis in 0..2 {
            let sums = |line: &mut [u32]| (1..line.len()).for_each(|i| line[i] += line[i - 1]);
            has(&array.prefix_sum_along(world, axis)?, &serial([2 * n, 9], axis, value, sums), &array);
            let before = |line: &mut [u32]| {
                line.iter_mut().fold(0, |sum, element| sum + std::mem::replace(element, sum));
            };
            has(&array.exclusive_prefix_sum_along(world, axis)?, &serial([2 * n, 9], axis, value, before), &array);
            let expected = serial([2 * n, 9], axis, value, |line| line.sort());
            let mut sorted = array.sort_along(world, axis)?;
            has(&sorted, &expected, &array);
            has(&array.sort_along_by(world, axis, |a, b| a.cmp(b))?, &expected, &array);
            assert_eq!(sorted.local()[0], 0);
            sorted.exchange()?;
            // The row above this rank's first one, which may be the last one.
            let above = (sorted.global([0; 2]).expect("rows here")[0] + 2 * n - 1) % (2 * n);
            let width = sorted.local_extents()[1];
            assert_eq!(sorted.local()[2..width - 2], expected[9 * above..9 * (above + 1)]);
        }
        let mut line = GlobalArray::with_ghosts(world, Layout::block([3 * n], n)?, Ghosts::new([1]))?;
        line.iter_mut().for_each(|([i], element)| *element = 3 * n - i);
        has(&line.sort(world)?, &(1..=3 * n).collect::<Vec<_>>(), &line);
        let counts = line.map(world, |_| 1_usize)?.prefix_sum(world)?;
        assert!(counts.iter().all(|([i], count)| *count == i + 1));
        assert_eq!(line.prefix_sum(world)?.local_extents(), line.local_extents());
        world.barrier()
    });
}

#[test]
fn an_axis_that_is_none_is_told_everywhere() {
    some_worlds("bad axis", |world| {
        let n = world.size();
        let plane = GlobalArray::from_fn(world, Layout::block([4, 6], n)?, mixed)?;
        let facts = ["axis 2", "2 dimensions"];
        says(plane.sort_along(world, 2), &facts);
        says(plane.sort_along_by_key(world, 2, |element| *element), &facts);
        says(plane.scan_along(world, 2, |a, _| a), &facts);
        says(plane.exclusive_scan_along(world, 2, 0, |a, _| a), &facts);
        says(plane.prefix_sum_along(world, 2), &["prefix_sum_along", "axis 2", "2 dimensions"]);
        says(plane.exclusive_prefix_sum_along(world, usize::MAX), &[&format!("axis {}", usize::MAX)]);
        let line = GlobalArray::from_fn(world, Layout::block([4], n)?, value)?;
        says(line.sort_along_by(world, 1, f64::total_cmp), &["axis 1", "1 dimensions"]);
        if n > 1 {
            // One rank alone.
            let axis = if world.rank() == n - 1 { 2 } else { 0 };
            says(plane.sort_along(world, axis), &["axis 2", "axis 0", "differ"]);
            says(plane.prefix_sum_along(world, axis % 3 / 2), &["axis 1", "axis 0", "differ"]);
        }
        // All goes on.
        assert_eq!(
            plane.scan_along(world, 0, |a, _| a)?.view([3..4, 0..6])?.reduce(world, 0, |n, _| n + 1, |a, b| a + b)?,
            6
        );
        let whole = Region { start: [0; 2], extents: [4, 6] };
        assert_eq!(plane.view(whole)?.interior(), plane.interior());
        Ok(())
    });
}

thread_local! {
    /// This rank's world, for a function of an event.
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

#[test]
fn a_function_of_an_event_makes_no_collective_call_inside_a_sort() {
    let _guard = watchdog::guard("a collective call inside a sort", LIMIT);
    let outcome: Arc<Mutex<Option<Result<()>>>> = Arc::default();
    let has_run = Arc::new(AtomicBool::new(false));
    let ranks = Threads::new(2).build(|builder| -> Result<()> {
        let world = Rc::new(builder.start()?);
        WORLD.set(Some(Rc::clone(&world)));
        let array = GlobalArray::from_fn(&world, Layout::block([40], 2)?, |[i]| (i as u64 * 7) % 40)?;
        let sent = Cell::new(world.rank() != 0);
        // Elements are compared between the exchanges of a sort: here the function runs.
        let sorted = array.sort_by(&world, |a, b| {
            if !sent.replace(true) {
                let (outcome, has_run) = (Arc::clone(&outcome), Arc::clone(&has_run));
                let between = move |_| {
                    let world = WORLD.with_borrow(Option::clone).expect("set before");
                    *outcome.lock().expect("no panic") = Some(world.barrier());
                    has_run.store(true, Ordering::Release);
                };
                world.operation().handled(Event::call(between)).invoke(1, (), |_, ()| ()).expect("sends");
            }
            while !has_run.load(Ordering::Acquire) {
                world.poll().expect("polls");
                std::thread::yield_now();
            }
            a.cmp(b)
        })?;
        if let Some(all) = sorted.to_root(&world, 0)? {
            assert!(all.into_iter().eq(0..40), "sorted");
        }
        drop((array, sorted));
        WORLD.set(None);
        Rc::into_inner(world).expect("the last one").finish()
    });
    ranks.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    let outcome = outcome.lock().expect("no panic").take().expect("it has run");
    assert!(matches!(&outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
}
