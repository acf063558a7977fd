//! Arrays: elements, boxes and their futures, and what all ranks do together.

use bellwether::aggregate::{Aggregator, Options};
use bellwether::array::{GlobalArray, Layout, Shared};
use bellwether::{Result, Word, World};

use crate::plan::{Plan, many, nothing, one};

/// Elements in each dimension; rows are dealt out to those who act on them.
const SIDES: [usize; 2] = [13, 9];

pub fn script(world: &World, plan: &mut Plan) -> Result<()> {
    array(world, plan, "u64", |a, b| a ^ b, |value: u64| value)?;
    if plan.effort > 1 {
        array(world, plan, "f32", |a, b| a + b, |value: u64| (value % 1000) as f32)?;
        array(world, plan, "i32", i32::wrapping_sub, |value: u64| value as i32)?;
        whole(world, plan)?;
    }
    Ok(())
}

fn layout(world: &World, plan: &mut Plan) -> Result<Layout<2>> {
    let n = world.size();
    Ok(match plan.all.below(4) {
        0 => Layout::rows(SIDES, n)?,
        1 => Layout::cyclic(SIDES, n)?,
        2 => Layout::rows([SIDES[1], SIDES[0]], n)?.reversed(),
        _ => Layout::block(SIDES, n)?,
    })
}

/// One that this rank acts on, or now and then one that there is not.
fn index(world: &World, plan: &mut Plan) -> [usize; 2] {
    if plan.own.below(25) == 0 {
        return [SIDES[0] + plan.own.below(2), plan.own.below(SIDES[1] + 2)];
    }
    let rows = rows(world);
    [rows[plan.own.below(rows.len())], plan.own.below(SIDES[1])]
}

fn rows(world: &World) -> Vec<usize> {
    (0..SIDES[0]).filter(|row| row % world.size() == world.rank()).collect()
}

/// A part of a row that is this rank's to act on; now and then one that leaves the array.
fn part(plan: &mut Plan, row: usize) -> [std::ops::Range<usize>; 2] {
    let first = plan.own.below(SIDES[1]);
    let end = first + plan.own.below(SIDES[1] - first + 1);
    match plan.own.below(25) {
        0 => [row..row + 1, first..SIDES[1] + 1],
        1 => [row..row, first..end],
        _ => [row..row + 1, first..end],
    }
}

fn array<T: Word>(
    world: &World,
    plan: &mut Plan,
    name: &str,
    combine: fn(T, T) -> T,
    value: fn(u64) -> T,
) -> Result<()> {
    plan.about(format!("array of {name}"));
    for _ in 0..plan.effort {
        let layout = layout(world, plan)?;
        let start = plan.all.next() % 1000;
        let array = GlobalArray::from_fn(world, layout, |[i, j]| value(start + 100 * i as u64 + j as u64))?;
        let array = array.share(world)?;
        for _ in 0..15 {
            at_once(world, plan, &array, combine, value);
        }
        world.barrier()?;
        futures(world, plan, &array, combine, value)?;
        let mut array = array.localize(world)?;
        plan.note("what is here", Ok(many(array.local().to_vec())));
        // And the other way.
        array.iter_mut().for_each(|(_, x)| *x = combine(*x, value(start)));
        let array = array.share(world)?;
        plan.note("all of it", array.get_patch([0..SIDES[0], 0..SIDES[1]]).map(many));
        world.barrier()?;
    }
    Ok(())
}

fn at_once<T: Word>(
    world: &World,
    plan: &mut Plan,
    array: &GlobalArray<T, 2, Shared>,
    combine: fn(T, T) -> T,
    value: fn(u64) -> T,
) {
    let at = index(world, plan);
    let new = value(plan.own.next());
    let region = part(plan, at[0]);
    let count = region[0].len() * region[1].len();
    match plan.own.below(7) {
        0 => plan.note(format!("get {at:?}"), array.get(at).map(one)),
        1 => plan.note_put(world, format!("put {at:?}"), array.put(at, new)),
        2 => {
            let outcome = array.fetch_update(at, |x| combine(x, new)).map(one);
            plan.note(format!("fetch_update {at:?}"), outcome);
        }
        3 => plan.note(format!("get_patch {region:?}"), array.get_patch(region).map(many)),
        4 => {
            let values = vec![new; count + usize::from(plan.own.below(20) == 0)];
            plan.note_put(world, format!("put_patch {region:?}"), array.put_patch(region, &values));
        }
        5 => plan.note(format!("a view {region:?}"), array.view(region).and_then(|view| view.get_patch()).map(many)),
        _ => plan.note(format!("a pointer {at:?}"), array.pointer(at).and_then(|at| at.get(world)).map(one)),
    }
}

fn futures<T: Word>(
    world: &World,
    plan: &mut Plan,
    array: &GlobalArray<T, 2, Shared>,
    combine: fn(T, T) -> T,
    value: fn(u64) -> T,
) -> Result<()> {
    let mut under = Vec::new();
    for row in rows(world) {
        let region = part(plan, row);
        let count = region[0].len() * region[1].len();
        let at = if plan.own.below(25) == 0 { [row, SIDES[1]] } else { [row, plan.own.below(SIDES[1])] };
        let new = value(plan.own.next());
        let outcome = match plan.own.below(6) {
            0 => array.get_async(at).map(|get| plan.under(format!("get_async {at:?}"), get, one)),
            1 => array.put_async(at, new).map(|put| plan.under(format!("put_async {at:?}"), put, nothing)),
            2 => array
                .fetch_update_async(at, move |x| combine(x, new))
                .map(|update| plan.update(format!("fetch_update_async {at:?}"), update, one)),
            3 => {
                let name = format!("get_patch_async {region:?}");
                array.get_patch_async(region).map(|get| plan.under(name, get, many))
            }
            4 => {
                let name = format!("put_patch_async {region:?}");
                array.put_patch_async(region, &vec![new; count]).map(|put| plan.under(name, put, nothing))
            }
            _ => {
                let name = format!("a view's get_patch_async {region:?}");
                array.view(region).and_then(|view| view.get_patch_async()).map(|get| plan.under(name, get, many))
            }
        };
        match outcome {
            Ok(future) => under.push(future),
            Err(error) => plan.note("a future", Err(error)),
        }
    }
    plan.wait_for(world, under)
}

/// What takes all ranks.
fn whole(world: &World, plan: &mut Plan) -> Result<()> {
    plan.about("whole arrays");
    let n = world.size();
    let (extent, salt) = (1 + plan.all.below(200), plan.all.next());
    let mix = |i: usize| (i as u64).wrapping_mul(salt | 1) >> 3;
    let mut line = GlobalArray::from_fn(world, Layout::block([extent], n)?, |[i]| mix(i))?;
    let mut by = Aggregator::new(world, &Options::new(world))?;
    let indices: Vec<usize> = (0..plan.own.below(40)).map(|_| plan.own.below(extent)).collect();
    let addends = vec![3; indices.len()];
    plan.note("scatter_add", line.scatter_add(&mut by, &indices, &addends).map(nothing));
    plan.note("gather", line.gather(&mut by, &indices).map(many));
    plan.note("sum", line.reduce(world, 0u64, u64::wrapping_add, u64::wrapping_add).map(one));
    let cyclic = line.relayout(world, Layout::cyclic([extent], n)?)?;
    plan.note("relayout", Ok(many(cyclic.local().to_vec())));
    let sorted = cyclic.sort(world)?;
    plan.note("sort", Ok(many(sorted.local().to_vec())));
    let plane = GlobalArray::from_fn(world, Layout::rows(SIDES, n)?, |[i, j]| mix(i * 100 + j))?;
    let turned = plane.transpose(world, Layout::cyclic([SIDES[1], SIDES[0]], n)?);
    plan.note("transpose", turned.map(|turned| many(turned.local().to_vec())));
    world.barrier()
}
