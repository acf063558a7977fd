//! Futures and operations of plain memory that are left when it is given back, and those of contexts: none reaches what is there next.

use bellwether::array::{GlobalArray, Local};
use bellwether::{Bell, Completion, Event, Piece, Posted, Result, Returned, Symmetric, ThreadPosted, World};

use super::{ELEMENTS, Fate, Late, OWNERS, finish, in_place_of, is_left_alone, late, none, on_all, one, tried};
use crate::support::seeds;

/// What is given back with something under way.
struct Plain {
    data: Symmetric<u64>,
    /// Where what is read goes, and where what is written comes from.
    own: Symmetric<u64>,
    bell: Bell,
    target: usize,
}

type Maker = fn(&World, &Plain) -> Result<Vec<Late>>;

/// Pieces of the last rank, each apart from the next.
fn pieces(plain: &Plain) -> Vec<Piece> {
    (0..ELEMENTS / 4).map(|i| Piece { rank: plain.target, start: 4 * i, count: 1 + i % 3 }).collect()
}

fn listed(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.count).sum()
}

fn ended(done: Completion) -> Late {
    Box::pin(async move { done.await.map(none) })
}

fn returned(buffer: Returned<Vec<u64>>) -> Late {
    Box::pin(buffer)
}

fn all<R: 'static>(posted: impl Iterator<Item = Posted<R>>, values: fn(R) -> Vec<u64>) -> Vec<Late> {
    posted.map(|posted| late(posted, values)).collect()
}

const MAKERS: [(&str, Maker); 8] = [
    ("updates", |_, plain| {
        let (data, target) = (&plain.data, plain.target);
        let mut futures = all((0..100).map(|i| data.fetch_update_async(target, i, |x| x + 1)), one);
        futures.extend(all((0..100).map(|i| data.fetch_add_async(target, i, 1)), one));
        futures.extend(all((0..100).map(|i| data.compare_swap_async(target, i, 0, 7)), one));
        Ok(futures)
    }),
    ("puts of one element", |world, plain| {
        let (data, target) = (&plain.data, plain.target);
        let mut futures = all((0..100).map(|i| data.put_async(target, i, 7)), none);
        for i in 100..200 {
            futures.push(late(tried(world, || data.try_put_async(target, i, 7))?, none));
        }
        Ok(futures)
    }),
    ("slices", |world, plain| {
        let (data, target) = (&plain.data, plain.target);
        let values = [7; ELEMENTS / 2];
        Ok(vec![
            late(data.get_slice_async(target, 0, ELEMENTS), |values| values),
            late(data.put_slice_async(target, 0, &values), none),
            late(tried(world, || data.try_put_slice_async(target, ELEMENTS / 2, &values))?, none),
        ])
    }),
    ("gets of pieces", |_, plain| Ok(vec![late(plain.data.get_pieces_async(&pieces(plain)), |values| values)])),
    ("puts of pieces", |_, plain| {
        let pieces = pieces(plain);
        Ok(vec![late(plain.data.put_pieces_async(&pieces, &vec![7; listed(&pieces)]), none)])
    }),
    ("puts of pieces at once", |world, plain| {
        let pieces = pieces(plain);
        let values = vec![7; listed(&pieces)];
        Ok(vec![late(tried(world, || plain.data.try_put_pieces_async(&pieces, &values))?, none)])
    }),
    ("operations that write", |world, plain| {
        let Plain { data, own, bell, target } = plain;
        let done = Completion::new();
        let operation =
            || world.operation().source(&done).effect(&done).effect(Event::ring(bell, *target)).effect(bell);
        // An error cannot go to a bell, so a later call returns it; a future gets it.
        let change = || world.operation().effect(&done);
        for i in 0..20 {
            operation().put(data, *target, i, &[7, 7])?;
            operation().put_from(data, *target, 100, own, i..ELEMENTS / 2)?;
            drop(change().fetch(bellwether::AtomicOp::Add, data, *target, 50, 1)?);
            drop(change().compare_swap(data, *target, 60 + i, 0, 7)?);
        }
        let lent = operation().put_owned(data, *target, 0, vec![7; ELEMENTS])?;
        Ok(vec![ended(done), returned(lent)])
    }),
    ("operations that read", |world, plain| {
        let Plain { data, own, target, .. } = plain;
        let done = Completion::new();
        for i in 0..20 {
            world.operation().effect(&done).get_into(data, *target, i, own, 0..ELEMENTS - i)?;
        }
        Ok(vec![ended(done)])
    }),
];

#[test]
fn no_future_of_plain_memory_outlives_it() {
    on_all("futures outlive plain memory", seeds(), |world| {
        for (name, maker) in MAKERS {
            for fate in [Fate::Kept, Fate::Dropped, Fate::Forgotten] {
                let target = world.size() - 1;
                let (data, own) = (world.alloc::<u64>(ELEMENTS)?, world.alloc::<u64>(ELEMENTS)?);
                let plain = Plain { data, own, bell: world.bell()?, target };
                // A read that comes late brings what was there: that is not what an array begins with.
                plain.data.write(0, &[9; ELEMENTS]);
                world.barrier()?;
                let mut futures = if world.rank() == 0 { maker(world, &plain)? } else { Vec::new() };
                fate.befalls(&mut futures);
                let what = format!("{name}, {fate:?}");
                let arrays = [in_place_of(world, plain)?, in_place_of(world, ())?, in_place_of(world, ())?];
                finish(world, &what, &mut futures)?;
                are_as_made(world, &what, &arrays)?;
            }
        }
        Ok(())
    });
}

/// Arrays have the elements that [`in_place_of`] gave them, also after all ranks have waited for each other.
fn are_as_made(world: &World, what: &str, arrays: &[GlobalArray<u64, 1, Local>]) -> Result<()> {
    is_left_alone(world, what, &arrays[0])?;
    for (number, array) in arrays.iter().enumerate() {
        let as_made = array.iter().all(|([i], x)| *x == i as u64 + OWNERS);
        assert!(as_made, "{what}: array {number} of rank {}", world.rank());
    }
    world.barrier()
}

/// Drops it, or forgets it, and then nobody polls it.
fn leave<R>(posted: ThreadPosted<'_, R>, is_forgotten: bool) {
    if is_forgotten { std::mem::forget(posted) } else { drop(posted) }
}

#[test]
fn no_future_of_a_context_outlives_its_memory() {
    on_all("futures of a context", seeds(), |world| {
        for is_forgotten in [false, true] {
            let (plain, target) = (world.alloc::<u64>(ELEMENTS)?, world.size() - 1);
            let context = world.context()?;
            let array = plain.for_threads();
            if world.rank() == 0 {
                for i in 0..40 {
                    leave(context.fetch_add_async(&array, target, i, 1), is_forgotten);
                    leave(context.compare_swap_async(&array, target, 50 + i, 0, 7), is_forgotten);
                    leave(context.put_slice_async(&array, target, 100, &[7; ELEMENTS - 100]), is_forgotten);
                    leave(context.get_slice_async(&array, target, 0, ELEMENTS), is_forgotten);
                }
            }
            let array = in_place_of(world, plain)?;
            are_as_made(world, "a future of a context", &[array])?;
            if is_forgotten {
                std::mem::forget(context);
            }
        }
        Ok(())
    });
}
