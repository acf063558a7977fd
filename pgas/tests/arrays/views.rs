//! Boxes of an array: walked, copied to arrays of their own, and assigned to each other.

use bellwether::array::{Ghosts, GlobalArray, Layout, Region};
use bellwether::{Result, World};

use super::support::{boxes, lines, planes, says, some_worlds, value};

/// Numbers below something, the same on all ranks.
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut word = seed;
    move |below| {
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (word >> 33) as usize % below
    }
}

/// All, none, one that some ranks have nothing of, and others.
fn some_boxes<const D: usize>(extents: [usize; D]) -> Vec<Region<D>> {
    let mut random = random(5);
    let mut boxes = vec![
        Region { start: [0; D], extents },
        Region { start: extents, extents: [0; D] },
        Region { start: std::array::from_fn(|d| extents[d] / 2), extents: [1; D] },
    ];
    boxes.extend((0..3).map(|_| {
        let start: [usize; D] = std::array::from_fn(|d| random(extents[d]));
        Region { start, extents: std::array::from_fn(|d| random(extents[d] - start[d]) + 1) }
    }));
    boxes
}

/// The index in a box, if it is inside.
fn within<const D: usize>(region: Region<D>, index: [usize; D]) -> Option<[usize; D]> {
    let inside = (0..D).all(|d| region.range(d).contains(&index[d]));
    inside.then(|| std::array::from_fn(|d| index[d] - region.start[d]))
}

fn walked<const D: usize>(world: &World, layouts: Vec<Layout<D>>) -> Result<()> {
    for layout in layouts {
        let array = GlobalArray::from_fn(world, layout.clone(), value)?;
        let mut changed = GlobalArray::from_fn(world, layout, |_| 0.0)?;
        for region in some_boxes(array.extents()) {
            let view = array.view(region)?;
            let expected: Vec<_> = array.iter().filter_map(|(index, x)| Some((within(region, index)?, *x))).collect();
            assert!(view.iter().map(|(index, x)| (index, *x)).eq(expected.iter().copied()), "{region:?} of {array:?}");
            assert_eq!(view.interior().len(), expected.len());
            let (count, sum) = (region.len(), array.iter().filter(|(index, _)| within(region, *index).is_some()));
            assert_eq!(view.reduce(world, 0, |count, _| count + 1, |a, b| a + b)?, count);
            let here = sum.fold(0.0, |sum, (_, x)| sum + *x);
            let mut all = [here];
            world.allreduce(&mut all, |a, b| a + b)?;
            assert_eq!(view.reduce(world, 0.0, |a, b| a + b, |a, b| a + b)?, all[0]);

            changed.fill(-1.0);
            let mut places = Vec::new();
            changed.view_mut(region)?.iter_mut().for_each(|(index, x)| {
                places.push(index);
                *x = value(index);
            });
            assert!(places.iter().eq(expected.iter().map(|(index, _)| index)));
            assert!(changed.iter().all(|(index, x)| *x == within(region, index).map_or(-1.0, value)));
            changed.view_mut(region)?.update(|x| *x += 0.25);
            assert!(changed.iter().all(|(index, x)| *x == within(region, index).map_or(-1.0, |at| value(at) + 0.25)));
            changed.view_mut(region)?.fill(7.0);
            assert!(changed.iter().all(|(index, x)| *x == within(region, index).map_or(-1.0, |_| 7.0)));
        }
    }
    Ok(())
}

#[test]
fn only_what_is_here_of_a_box_is_walked() {
    some_worlds("walked views", |world| {
        let n = world.size();
        walked(world, lines(23, n))?;
        walked(world, planes([6, 9], n))?;
        walked(world, boxes([3, 5, 4], n))?;
        // Ghost layers are not among them.
        let mut bordered = GlobalArray::with_ghosts(world, Layout::block([2 * n, 12], n)?, Ghosts::new([1, 1]))?;
        bordered.local_mut().fill(-1.0);
        bordered.iter_mut().for_each(|(index, x)| *x = value(index));
        let region = Region::from([1..2 * n, 3..10]);
        assert!(bordered.view(region)?.iter().all(|([i, j], x)| *x == value([i + 1, j + 3])));
        bordered.view_mut(region)?.fill(-2.0);
        let is = |index| if within(region, index).is_some() { -2.0 } else { value(index) };
        assert!(bordered.iter().all(|(index, x)| *x == is(index)));
        let [own, local] = [bordered.own_extents(), bordered.local_extents()].map(|e| e.iter().product::<usize>());
        assert_eq!(bordered.local().iter().filter(|x| **x == -1.0).count(), local - own);
        Ok(())
    });
}

fn copied<const D: usize>(
    world: &World,
    layouts: Vec<Layout<D>>,
    of: impl Fn([usize; D]) -> Vec<Layout<D>>,
) -> Result<()> {
    for (number, layout) in layouts.into_iter().enumerate() {
        let mut array = GlobalArray::from_fn(world, layout, value)?;
        for (turn, region) in
            some_boxes(array.extents()).into_iter().enumerate().filter(|(_, region)| !region.is_empty())
        {
            let from = |index: [usize; D]| value::<D>(std::array::from_fn(|d| region.start[d] + index[d]));
            let to = of(region.extents);
            // Every pair of layouts comes, in some box.
            let to = to[(number + turn) % to.len()].clone();
            // By turns from either phase.
            let copy = if turn % 2 == 0 {
                array.view(region)?.to_array(world, to.clone())?
            } else {
                let shared = array.share(world)?;
                let copy = shared.view(region)?.to_array(world, to.clone())?;
                array = shared.localize(world)?;
                copy
            };
            assert_eq!(*copy.layout(), to);
            assert!(copy.iter().all(|(index, x)| *x == from(index)), "{region:?} of {array:?} to {to}");
        }
    }
    Ok(())
}

#[test]
fn boxes_become_arrays_of_every_layout() {
    some_worlds("views to arrays", |world| {
        let n = world.size();
        copied(world, lines(23, n), |[a]| lines(a, n))?;
        copied(world, planes([6, 9], n), |extents| planes(extents, n))?;
        copied(world, boxes([3, 5, 4], n), |extents| boxes(extents, n))?;
        // Pieces of 4 KiB and more, which go by themselves over a network.
        let long = GlobalArray::from_fn(world, Layout::block([1300 * n], n)?, value)?;
        let part = long.view(7..1300 * n - 9)?.to_array(world, Layout::block([1300 * n - 16], n)?)?;
        assert!(part.iter().all(|([i], x)| *x == value([i + 7])));
        // What was put before is copied.
        let shared = long.share(world)?;
        shared.put(world.rank(), -1.0)?;
        let first = shared.view(0..n)?.to_array(world, Layout::cyclic([n], n)?)?;
        assert!(first.iter().all(|(_, x)| *x == -1.0));
        // Ghost layers are not.
        let mut bordered = GlobalArray::with_ghosts(world, Layout::block([2 * n, 12], n)?, Ghosts::new([1, 1]))?;
        bordered.local_mut().fill(-1.0);
        bordered.iter_mut().for_each(|(index, x)| *x = value(index));
        let bordered = bordered.share(world)?;
        let part = bordered.view([1..2 * n, 3..10])?.to_array(world, Layout::cyclic([2 * n - 1, 7], n)?)?;
        assert!(part.iter().all(|([i, j], x)| *x == value([i + 1, j + 3])));
        world.barrier()
    });
}

fn assigned<const D: usize>(world: &World, from: Vec<Layout<D>>, to: Vec<Layout<D>>) -> Result<()> {
    let mut random = random(9);
    for (number, layout) in from.into_iter().enumerate() {
        let mut array = GlobalArray::from_fn(world, layout, value)?;
        let layout = to[(number + 1) % to.len()].clone();
        let mut target = GlobalArray::from_fn(world, layout, |_| -1.0)?;
        let extents = target.extents();
        for (turn, region) in some_boxes(array.extents()).into_iter().enumerate() {
            let taken: [usize; D] = std::array::from_fn(|d| region.extents[d].min(extents[d]));
            let region = Region { extents: taken, ..region };
            let start = std::array::from_fn(|d| random(extents[d] - taken[d] + 1));
            let there = Region { start, extents: taken };
            let is = |index: [usize; D]| match within(there, index) {
                Some(index) => value::<D>(std::array::from_fn(|d| region.start[d] + index[d])),
                None => -1.0,
            };
            if turn % 2 == 0 {
                target.view_mut(there)?.assign(world, &array.view(region)?)?;
            } else {
                let shared = array.share(world)?;
                target.view_mut(there)?.assign(world, &shared.view(region)?)?;
                array = shared.localize(world)?;
            }
            assert!(
                target.iter().all(|(index, x)| *x == is(index)),
                "{region:?} of {array:?} to {there:?} of {target:?}"
            );
            target.fill(-1.0);
        }
    }
    Ok(())
}

#[test]
fn boxes_are_assigned_between_all_layouts() {
    some_worlds("assigned views", |world| {
        let n = world.size();
        assigned(world, lines(23, n), lines(17, n))?;
        assigned(world, planes([6, 9], n), planes([7, 8], n))?;
        assigned(world, boxes([3, 5, 4], n), boxes([4, 3, 6], n))?;
        // Ghost layers on both sides are left alone.
        let bordered = |border: f64| {
            let mut array = GlobalArray::with_ghosts(world, Layout::block([2 * n, 14], n)?, Ghosts::new([1, 2]))?;
            array.local_mut().fill(border);
            array.iter_mut().for_each(|(index, x)| *x = value(index));
            Result::Ok(array)
        };
        let (from, mut to) = (bordered(-1.0)?, bordered(-2.0)?);
        to.view_mut([1..2 * n, 0..9])?.assign(world, &from.view([0..2 * n - 1, 5..14])?)?;
        let is = |[i, j]: [usize; 2]| if i > 0 && j < 9 { value([i - 1, j + 5]) } else { value([i, j]) };
        assert!(to.iter().all(|(index, x)| *x == is(index)));
        let [own, local] = [to.own_extents(), to.local_extents()].map(|e| e.iter().product::<usize>());
        assert_eq!(to.local().iter().filter(|x| **x == -2.0).count(), local - own);
        to.exchange()
    });
}

#[test]
fn boxes_that_do_not_fit_are_told_everywhere() {
    some_worlds("bad views", |world| {
        let n = world.size();
        let from = GlobalArray::from_fn(world, Layout::block([6, 9], n)?, value)?;
        let mut to = GlobalArray::from_fn(world, Layout::cyclic([6, 9], n)?, value)?;
        let mut assign = |there: Region<2>, here: Region<2>| to.view_mut(there)?.assign(world, &from.view(here)?);
        says(assign([0..2, 0..3].into(), [0..3, 0..2].into()), &["assign", "[2, 3]", "[3, 2]"]);
        says(assign([0..0, 0..3].into(), [0..3, 0..2].into()), &["assign", "[0, 3]", "[3, 2]"]);
        assign([0..0, 0..3].into(), [6..6, 0..3].into())?;
        let view = from.view([1..3, 2..6])?;
        says(view.to_array(world, Layout::block([4, 2], n)?), &["to_array", "[2, 4]", "[4, 2]"]);
        says(view.to_array(world, Layout::block([2, 4], n + 1)?), &[&format!("{} ranks", n + 1)]);
        says(from.view([1..1, 2..6])?.to_array(world, Layout::block([1, 4], n)?), &["[0, 4]", "[1, 4]"]);
        if n > 1 {
            let other = usize::from(world.rank() == n - 1);
            says(assign([0..2, 0..3].into(), [0..2, other..3 + other].into()), &["differ", "[0, 0]", "[0, 1]"]);
            says(assign([other..2 + other, 0..3].into(), [0..2, 0..3].into()), &["differ", "[0, 0]", "[1, 0]"]);
            let view = from.view([other..2 + other, 2..6])?;
            says(view.to_array(world, Layout::block([2, 4], n)?), &["differ", "[0, 2]", "[1, 2]"]);
            // Another array of the same layout on one rank.
            let mut pair = [from.map(world, |x| x)?, from.map(world, |x| x)?];
            let wrong = pair[other].view_mut([0..2, 0..3])?.assign(world, &from.view([2..4, 0..3])?);
            says(wrong, &["allocation"]);
            assert!(pair.iter().all(|array| array.iter().all(|(index, x)| *x == value(index))));
        }
        assert!(to.iter().all(|(index, x)| *x == value(index)));
        to.view_mut([0..2, 0..3])?.assign(world, &from.view([2..4, 1..4])?)?;
        assert_eq!(to.share(world)?.get([1, 1])?, value([3, 2]));
        world.barrier()
    });
}
