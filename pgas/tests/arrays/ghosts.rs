//! Ghost layers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use bellwether::array::{Distribution, Ghosts, GlobalArray, Layout};
use bellwether::{Error, Result, World};

use super::support::{everywhere, on_threads, says};

const NOTHING: i64 = -1;

/// After each exchange the ghost layers are what the neighbours have, and everything else is as it was.
fn as_the_neighbours_have_it<const D: usize>(
    world: &World,
    layout: Layout<D>,
    width: [usize; D],
    periodic: [bool; D],
    corners: bool,
) -> Result<()> {
    let extents = layout.extents();
    let ghosts = Ghosts::new(width).periodic(periodic).corners(corners);
    let mut array = GlobalArray::with_ghosts(world, layout.clone(), ghosts)?;
    let value = |index: [usize; D], round: i64| index.iter().fold(round, |all, i| all * 100 + *i as i64);
    array.local_mut().fill(NOTHING);
    for round in 1..9 {
        array.iter_mut().for_each(|(index, element)| *element = value(index, round));
        if round == 3 {
            // Not finished: the next one does it.
            drop(array.start_exchange()?);
            continue;
        }
        // What is changed after it has begun is not seen by neighbours.
        let own = array.interior();
        let at = own.start.iter().zip(array.local_extents()).fold(0, |at, (i, n)| at * n + i);
        let change =
            |local: &mut [i64]| local.get_mut(at).filter(|_| !own.is_empty()).into_iter().for_each(|e| *e = 12345);
        // In one call, in two, or one way here and the other there.
        if round > 5 && (round > 6 || world.rank().is_multiple_of(2)) {
            array.exchange()?;
            change(array.local_mut());
        } else {
            let mut pending = array.start_exchange()?;
            assert!(pending.array().iter().all(|(index, element)| *element == value(index, round)));
            change(pending.local_mut());
            pending.finish()?;
        }
        let Some(first) = array.global([0; D]) else {
            assert!(array.local().iter().all(|element| *element == NOTHING), "no elements, no neighbours");
            continue;
        };
        let (interior, box_extents) = (array.interior(), array.local_extents());
        for (number, element) in array.local().iter().enumerate() {
            let (mut rest, mut local) = (number, [0; D]);
            for d in (0..D).rev() {
                local[d] = rest % box_extents[d];
                rest /= box_extents[d];
            }
            let outside = (0..D).filter(|d| !interior.range(*d).contains(&local[*d])).count();
            let index: [i64; D] = std::array::from_fn(|d| (first[d] + local[d]) as i64 - width[d] as i64);
            let inside = (0..D).all(|d| periodic[d] || (0..extents[d] as i64).contains(&index[d]));
            let wrapped = std::array::from_fn(|d| index[d].rem_euclid(extents[d] as i64) as usize);
            let expected = match outside {
                0 if local == interior.start => 12345,
                0 => value(wrapped, round),
                1 if inside => value(wrapped, round),
                _ if inside && corners => value(wrapped, round),
                _ => NOTHING,
            };
            assert_eq!(*element, expected, "{local:?} of rank {} in round {round}: {layout}, {ghosts:?}", world.rank());
        }
    }
    Ok(())
}

#[test]
fn ghosts_of_every_kind() {
    everywhere("ghosts", |world| {
        let n = world.size();
        for periodic in [false, true] {
            as_the_neighbours_have_it(world, Layout::block([3 * n + 1], n)?, [2], [periodic], false)?;
            let weights = (0..n).map(|rank| 1.0 + (rank % 2) as f64).collect();
            let uneven = Layout::new([6 * n], [Distribution::Uneven(weights)], n)?;
            as_the_neighbours_have_it(world, uneven, [3], [periodic], true)?;
            let mut sizes = vec![0; n];
            (sizes[0], sizes[n / 2], sizes[n - 1]) = (5, 4, 3);
            let extent = sizes.iter().sum();
            let gaps = Layout::new([extent], [Distribution::Sizes(sizes.clone())], n)?;
            as_the_neighbours_have_it(world, gaps, [3], [periodic], false)?;
            let kinds = [Distribution::Sizes(sizes), Distribution::Block];
            let gaps = Layout::on_grid([extent, 3], kinds, [n, 1], n)?;
            as_the_neighbours_have_it(world, gaps, [2, 1], [periodic, true], true)?;
            for corners in [false, true] {
                as_the_neighbours_have_it(world, Layout::block([2 * n, 15], n)?, [1, 2], [periodic, true], corners)?;
                as_the_neighbours_have_it(world, Layout::rows([2 * n, 40], n)?, [1, 0], [periodic, false], corners)?;
                let boxes = Layout::block([2 * n, 8, 9], n)?;
                as_the_neighbours_have_it(world, boxes, [1, 2, 1], [true, periodic, false], corners)?;
            }
            // None in the second dimension, which may be of any kind then.
            let kinds = [Distribution::Block, Distribution::Cyclic];
            let rows = Layout::on_grid([2 * n, 5], kinds, [n, 1], n)?;
            as_the_neighbours_have_it(world, rows, [1, 0], [periodic, false], false)?;
        }
        Ok(())
    });
}

/// A line whose rank gives each element its number and the round.
fn numbered(world: &World, line: &mut GlobalArray<u64, 1>, round: u64) {
    let rank = world.rank() as u64;
    line.iter_mut().for_each(|(_, element)| *element = round * 10 + rank);
}

const LONG: usize = 3000;

/// A line of long parts with as long ghost layers on both sides, so that a copy takes long.
fn long_line(world: &World) -> Result<GlobalArray<u64, 1>> {
    let layout = Layout::block([LONG * world.size()], world.size())?;
    GlobalArray::with_ghosts(world, layout, Ghosts::new([LONG]).periodic([true]))
}

fn is_of_round(world: &World, line: &GlobalArray<u64, 1>, round: u64) {
    let (rank, n) = (world.rank(), world.size());
    let expected = |of: usize| round * 10 + of as u64;
    let (before, rest) = line.local().split_at(LONG);
    let all = |part: &[u64], of| part.iter().all(|element| *element == expected(of));
    assert!(all(before, (rank + n - 1) % n) && all(&rest[LONG..], (rank + 1) % n), "rank {rank} in round {round}");
}

#[test]
fn a_border_is_changed_right_after_its_exchange() {
    on_threads("changed", &[1, 2, 3], |world| {
        let mut line = long_line(world)?;
        for round in 0..100 {
            numbered(world, &mut line, round);
            line.exchange()?;
            let ours = line.interior();
            line.local_mut()[ours.range(0)].fill(u64::MAX);
            is_of_round(world, &line, round);
        }
        world.barrier()
    });
}

#[test]
fn an_exchange_in_one_call_does_not_wait_for_the_end_of_one_in_two() {
    on_threads("one call", &[2, 3], |world| {
        let mut line = long_line(world)?;
        for round in 0..20 {
            numbered(world, &mut line, round);
            if world.rank() == round as usize % world.size() {
                let pending = line.start_exchange()?;
                world.barrier()?;
                pending.finish()?;
            } else {
                line.exchange()?;
                numbered(world, &mut line, 777);
                world.barrier()?;
            }
            is_of_round(world, &line, round);
        }
        world.barrier()
    });
}

#[test]
fn a_handler_that_panics_in_an_exchange_leaves_its_neighbours_whole() {
    let in_exchange = AtomicBool::new(false);
    on_threads("panics", &[2], |world| {
        let mut line = long_line(world)?;
        numbered(world, &mut line, 1);
        if world.rank() == 0 {
            in_exchange.store(true, Ordering::Release);
            catch_unwind(AssertUnwindSafe(|| line.exchange())).expect_err("the handler panics");
            let ours = line.interior();
            line.local_mut()[ours.range(0)].fill(u64::MAX);
            world.barrier()?;
        } else {
            world.wait_until(|| in_exchange.load(Ordering::Acquire))?;
            let told = world.call(0, true, |_, panics| assert!(!panics, "a handler"))?.wait();
            assert!(matches!(told, Err(Error::HandlerPanicked { rank: 0, .. })), "{told:?}");
            world.barrier()?;
            line.exchange()?;
        }
        // Rank 0 finishes that exchange first.
        numbered(world, &mut line, 2);
        if world.rank() == 1 {
            is_of_round(world, &line, 1);
        }
        line.exchange()?;
        is_of_round(world, &line, 2);
        world.barrier()
    });
}

#[test]
fn a_rank_that_has_left_exchanges_no_more() {
    let ranks = bellwether::Threads::new(2).build(|builder| -> Result<()> {
        let world = builder.start()?;
        let mut line = long_line(&world)?;
        line.exchange()?;
        if world.rank() == 1 {
            drop(world);
            says(line.exchange(), &["exchange", "has left"]);
            says(line.start_exchange().map(drop), &["start_exchange", "has left"]);
        }
        Ok(())
    });
    ranks.expect("ranks start").into_iter().for_each(|result| result.expect("runs"));
}

#[test]
fn ghosts_live_through_phases_and_other_calls() {
    everywhere("ghosts and phases", |world| {
        let n = world.size();
        let layout = Layout::block([4 * n, 6], n)?;
        let mut array = GlobalArray::with_ghosts(world, layout.clone(), Ghosts::new([1, 1]).periodic([true, true]))?;
        array.iter_mut().for_each(|([i, j], x)| *x = (10 * i + j) as u32);
        let total: u32 = (0..4 * n as u32).flat_map(|i| (0..6).map(move |j| 10 * i + j)).sum();
        array.exchange()?;
        assert_eq!(array.sum(world)?, total, "own elements only");
        let array = array.share(world)?;
        assert_eq!(array.get([4 * n - 1, 5])?, (40 * n - 5) as u32);
        assert_eq!(array.get_patch([1..3, 2..4])?, [12, 13, 22, 23]);
        world.barrier()?;
        if world.rank() == 0 {
            array.put([0, 0], 1000)?;
            array.put_patch([4 * n - 1..4 * n, 0..2], &[7, 8])?;
        }
        let mut array = array.localize(world)?;
        array.exchange()?;
        let moved = array.relayout(world, Layout::cyclic([4 * n, 6], n)?)?;
        assert!(moved.iter().all(|([i, j], x)| match (i, j) {
            (0, 0) => *x == 1000,
            (i, 0) if i == 4 * n - 1 => *x == 7,
            (i, 1) if i == 4 * n - 1 => *x == 8,
            (i, j) => *x == (10 * i + j) as u32,
        }));
        let back = moved.copy_into(world, array)?;
        assert_eq!(back.dot(world, &moved.relayout(world, layout)?)?, moved.dot(world, &moved)?);
        let turned = back.transpose(world, Layout::rows([6, 4 * n], n)?)?;
        assert!(turned.iter().all(|([j, i], x)| (i, j) == (0, 0) || i == 4 * n - 1 || *x == (10 * i + j) as u32));
        Ok(())
    });
}

#[test]
fn a_line_that_swings_does_not_depend_on_the_ranks() {
    let swing = |world: &World| -> Result<Vec<f64>> {
        let layout = Layout::block([40], world.size())?;
        let mut a = GlobalArray::with_ghosts(world, layout.clone(), Ghosts::new([1]).periodic([true]))?;
        let mut b = GlobalArray::with_ghosts(world, layout, Ghosts::new([1]).periodic([true]))?;
        a.iter_mut().for_each(|([i], x)| *x = (i as f64).sin());
        for _ in 0..200 {
            a.exchange()?;
            let (from, to) = (a.local(), b.local_mut());
            for i in 1..from.len() - 1 {
                to[i] = 0.25 * from[i - 1] + 0.5 * from[i] + 0.25 * from[i + 1];
            }
            std::mem::swap(&mut a, &mut b);
        }
        let a = a.share(world)?;
        let all = a.get_patch(0..40)?;
        world.barrier()?;
        Ok(all)
    };
    let alone = bellwether::threads(1, swing).expect("runs").remove(0).expect("runs");
    everywhere("swing", |world| {
        assert_eq!(swing(world)?, alone);
        Ok(())
    });
}

/// One generation of Life on a torus, all of it at one place.
fn generation(cells: &[u8], [rows, columns]: [usize; 2]) -> Vec<u8> {
    let at = |i: usize, j: usize| cells[i % rows * columns + j % columns];
    let next = |i: usize, j: usize| {
        let around: u8 = (0..9).map(|k| at(rows + i + k / 3 - 1, columns + j + k % 3 - 1)).sum();
        u8::from(around == 3 || around == 4 && at(i, j) == 1)
    };
    (0..rows).flat_map(|i| (0..columns).map(move |j| next(i, j))).collect()
}

#[test]
fn life_is_right_without_a_word_about_corners() {
    everywhere("life", |world| {
        let extents = [4 * world.size() + 3, 15];
        let mut all: Vec<u8> = (0..extents[0] * extents[1]).map(|i| u8::from(i * i % 7 < 3)).collect();
        let ghosts = Ghosts::new([1, 1]).periodic([true, true]);
        let mut cells = GlobalArray::with_ghosts(world, Layout::block(extents, world.size())?, ghosts)?;
        cells.iter_mut().for_each(|([i, j], cell)| *cell = all[i * extents[1] + j]);
        for round in 0..12 {
            cells.exchange()?;
            let (old, row) = (cells.local().to_vec(), cells.local_extents()[1]);
            for [i, j] in cells.interior() {
                let around: u8 = (0..9).map(|k| old[(i + k / 3 - 1) * row + j + k % 3 - 1]).sum();
                cells.local_mut()[i * row + j] = u8::from(around == 3 || around == 4 && old[i * row + j] == 1);
            }
            all = generation(&all, extents);
            assert!(cells.iter().all(|([i, j], cell)| *cell == all[i * extents[1] + j]), "generation {round}");
        }
        Ok(())
    });
}

#[test]
fn corners_are_there_unless_they_are_declined() {
    assert_eq!(Ghosts::new([1, 1]), Ghosts::new([1, 1]).corners(true));
    assert_ne!(Ghosts::new([1, 1]), Ghosts::new([1, 1]).corners(false));
}

#[test]
fn layers_that_do_not_fit_are_told() {
    on_threads("bad ghosts", &[2, 3], |world| {
        let n = world.size();
        let wide = GlobalArray::<f64, 1>::with_ghosts(world, Layout::block([3 * n], n)?, Ghosts::new([4]));
        says(wide, &["ghost layers", "dimension 0", "layers of 4", "smallest part has 3", "Put fewer ranks along it"]);
        let in_turns = |kind| Layout::on_grid([9 * n, 9], [Distribution::Block, kind], [1, n], n);
        for kind in [Distribution::Cyclic, Distribution::BlockCyclic(2)] {
            let cyclic = GlobalArray::<f64, 2>::with_ghosts(world, in_turns(kind)?, Ghosts::new([1, 1]));
            let error = cyclic.expect_err("an error").to_string();
            assert!(!error.contains("small"), "{error}");
            says::<()>(
                Err(bellwether::Error::InvalidArgument { operation: "ghost layers", why: error }),
                &["ghost layers", "dimension 1", "in turns", "Distribute it in blocks", "layers of 0"],
            );
        }
        let huge = GlobalArray::<f64, 1>::with_ghosts(world, Layout::block([9], n)?, Ghosts::new([usize::MAX]));
        says(huge, &["ghost layers"]);
        let mut none = GlobalArray::<f64, 1>::new(world, Layout::block([9], n)?)?;
        none.exchange()?;
        let width = 1 + world.rank();
        let other = GlobalArray::<f64, 1>::with_ghosts(world, Layout::block([9 * n], n)?, Ghosts::new([width]));
        says(other, &["ghost layers differs", "width: [1]", "width: [2]"]);
        world.barrier()
    });
}
