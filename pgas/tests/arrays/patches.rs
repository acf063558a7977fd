//! Boxes of elements.

use bellwether::array::{GlobalArray, Layout, Region};
use bellwether::{Result, World};

use super::support::{boxes, everywhere, lines, planes, says, value};

/// Each rank writes and reads boxes of a shared array beside a plain copy of it.
fn as_a_plain_array<const D: usize>(world: &World, layout: Layout<D>) -> Result<()> {
    let extents = layout.extents();
    let number = |index: [usize; D]| (0..D).fold(0, |all, d| all * extents[d] + index[d]);
    let array = GlobalArray::from_fn(world, layout.clone(), value)?.share(world)?;
    let mut word = 77u64;
    let mut random = |below: usize| {
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (word >> 33) as usize % below
    };
    let mut plain = vec![0.0; layout.len()];
    let whole = Region { start: [0; D], extents };
    for index in indices(whole) {
        plain[number(index)] = value(index);
    }
    for round in 0..12 {
        let start: [usize; D] = std::array::from_fn(|d| random(extents[d]));
        let region = Region { start, extents: std::array::from_fn(|d| random(extents[d] - start[d] + 1)) };
        let posted = array.get_patch_async(region)?;
        let expected = indices(region).map(|index| plain[number(index)]).collect::<Vec<_>>();
        assert_eq!(array.get_patch(region)?, expected, "{region:?} of {layout}");
        assert_eq!(posted.wait()?, expected, "{region:?} of {layout}");
        world.barrier()?;
        let values: Vec<f64> = (0..region.len()).map(|i| (round * 1000 + i) as f64).collect();
        if round % world.size() == world.rank() {
            if round % 2 == 0 {
                array.put_patch(region, &values)?;
            } else {
                array.put_patch_async(region, &values)?.wait()?;
                assert_eq!(array.get_patch(region)?, values);
            }
        }
        indices(region).zip(values).for_each(|(index, value)| plain[number(index)] = value);
        world.barrier()?;
    }
    assert_eq!(array.get_patch(whole)?, plain);
    let array = array.localize(world)?;
    array.iter().for_each(|(index, element)| assert_eq!(*element, plain[number(index)]));
    Ok(())
}

fn indices<const D: usize>(region: Region<D>) -> impl Iterator<Item = [usize; D]> {
    (0..region.len()).map(move |number| {
        let (mut rest, mut index) = (number, region.start);
        for d in (0..D).rev() {
            index[d] += rest % region.extents[d];
            rest /= region.extents[d];
        }
        index
    })
}

#[test]
fn boxes_of_every_layout() {
    everywhere("patches", |world| {
        let n = world.size();
        lines(31, n).into_iter().try_for_each(|layout| as_a_plain_array(world, layout))?;
        planes([6, 9], n).into_iter().try_for_each(|layout| as_a_plain_array(world, layout))?;
        boxes([3, 5, 4], n).into_iter().try_for_each(|layout| as_a_plain_array(world, layout))
    });
}

#[test]
fn a_box_outside_or_with_other_values_is_told() {
    everywhere("bad patches", |world| {
        let array = GlobalArray::<f64, 2>::new(world, Layout::block([4, 6], world.size())?)?.share(world)?;
        says(array.get_patch([0..5, 0..1]), &["get_patch", "[5, 1]", "[0, 0]", "[4, 6]"]);
        says(array.get_patch([3..4, 6..7]), &["[3, 6]", "[4, 6]"]);
        says(array.put_patch([0..usize::MAX, 0..1], &[1.0]), &["put_patch", "[4, 6]"]);
        says(array.put_patch([0..2, 0..2], &[1.0; 3]), &["3 values", "[2, 2]", "4"]);
        says(array.get_patch_async([0..5, 0..1]), &["get_patch_async", "[5, 1]", "[4, 6]"]);
        says(array.put_patch_async([3..4, 6..7], &[1.0]), &["put_patch_async", "[3, 6]", "[4, 6]"]);
        says(array.put_patch_async([0..2, 0..2], &[1.0; 3]), &["put_patch_async", "3 values", "[2, 2]"]);
        assert_eq!(array.get_patch_async([4..4, 2..5])?.wait()?, [0.0; 0]);
        says(array.get_patch_into([0..1, 0..2], &mut [0.0; 3]), &["3 values", "[1, 2]", "2"]);
        assert_eq!(array.get_patch([4..4, 2..5])?, [0.0; 0]);
        assert_eq!(array.get_patch([0..4, 0..6])?, [0.0; 24]);
        world.barrier()
    });
}

#[test]
fn views_have_their_own_indices() {
    everywhere("views", |world| {
        let n = world.size();
        for layout in planes([8, 9], n) {
            let mut array = GlobalArray::from_fn(world, layout, |_| -7)?;
            array.view_mut([0..8, 0..9])?.iter_mut().for_each(|([i, j], x)| *x = (10 * i + j) as i64);
            array.view_mut([3..5, 2..4])?.update(|x| *x += 1000);
            array.view_mut([4..5, 2..9])?.fill(1);
            let changed = |i: usize, j: usize| match (i, j) {
                (4, 2..) => 1,
                (3, 2..4) => (1000 + 10 * i + j) as i64,
                _ => (10 * i + j) as i64,
            };
            assert!(array.iter().all(|([i, j], x)| *x == changed(i, j)));
            array.update(|x| *x = -7);
            array.view_mut([2..7, 1..4])?.iter_mut().for_each(|([i, j], x)| *x = (10 * (i + 2) + j + 1) as i64);
            array.iter_mut().filter(|(_, x)| **x == -7).for_each(|([i, j], x)| *x = (10 * i + j) as i64);
            says(array.view_mut([0..8, 0..10]).map(drop), &["view_mut", "[8, 10]", "[8, 9]"]);
            let view = array.view([2..7, 1..4])?;
            assert_eq!(view.at([4, 2])?, [6, 3]);
            says(view.at([4, 3]), &["at", "[4, 3]", "view of [5, 3]"]);
            assert_eq!((view.extents(), view.len(), view.is_empty()), ([5, 3], 15, false));
            assert!(view.iter().all(|([i, j], x)| *x == (10 * (i + 2) + j + 1) as i64));
            let count = view.reduce(world, 0u64, |count, _| count + 1, |a, b| a + b)?;
            let sum = view.view([1..2, 0..3])?.reduce(world, 0, |a, b| a + b, |a, b| a + b)?;
            assert_eq!((count, sum), (15, 31 + 32 + 33));
            says(view.view([0..6, 0..1]), &["view", "[6, 1]", "[5, 3]"]);
            let array = array.share(world)?;
            let view = array.view([2..7, 1..4])?;
            assert_eq!((view.get([4, 2])?, view.view([1..3, 2..3])?.get_patch()?), (63, vec![33, 43]));
            says(view.get([5, 0]), &["[5, 0]", "view of [5, 3]"]);
            says(view.put([0, 3], 1), &["[0, 3]", "view of [5, 3]"]);
            says(array.view([0..9, 0..1]), &["[9, 1]", "[8, 9]"]);
            world.barrier()?;
            if world.rank() == n - 1 {
                view.put([0, 0], -1)?;
                view.view([1..2, 0..1])?.put_patch(&[-2])?;
                view.view([1..2, 1..2])?.put_patch_async(&[-3])?.wait()?;
                world.fence();
                assert_eq!(view.view([1..2, 0..2])?.get_patch_async()?.wait()?, [-2, -3]);
            }
            world.barrier()?;
            assert_eq!([array.get([2, 1])?, array.get([3, 1])?, array.get([3, 2])?], [-1, -2, -3]);
            world.barrier()?;
        }
        Ok(())
    });
}
