//! Global pointers and slices.

use bellwether::array::{GlobalArray, Layout};
use bellwether::pointer::{GlobalPtr, GlobalSlice};
use bellwether::{Error, World, Zeroable};

use super::support::{everywhere, on_threads, says};

#[test]
fn a_pointer_reaches_any_element_and_travels() {
    everywhere("pointers", |world| {
        let (rank, n) = (world.rank(), world.size());
        let next = (rank + 1) % n;
        let memory = world.alloc::<u64>(8)?;
        let pointers = world.alloc::<GlobalPtr<u64>>(1)?;
        let slices = world.alloc::<GlobalSlice<u64>>(1)?;
        let mine = GlobalPtr::to(&memory, rank, 2)?;
        pointers.put(next, 0, mine)?;
        slices.put(next, 0, mine.slice(6))?;
        world.barrier()?;
        let theirs = pointers.load(0);
        let before = (rank + n - 1) % n;
        assert_eq!((theirs.rank(), theirs.index()), (before, 2));
        theirs.put(world, 100 + rank as u64)?;
        theirs.add(3).put(world, 5)?;
        theirs.add(1).fetch_add(world, 7)?;
        world.barrier()?;
        assert_eq!(memory.load(2), 100 + next as u64);
        assert_eq!(theirs.sub(2).add(5).get(world)?, 5);
        assert_eq!(theirs.offset(1).compare_swap(world, 7, 9)?, 7);
        assert_eq!(theirs.offset(4).offset(-3).swap(world, 11)?, 9);
        assert_eq!(slices.load(0).get(world)?, [100 + rank as u64, 11, 0, 5, 0, 0]);
        assert_eq!(theirs.local(world)?, (n == 1).then_some(100));
        assert_eq!(mine.local(world)?, Some(100 + next as u64));
        assert_eq!(theirs.add(4).offset_from(theirs.sub(1)), Some(5));
        assert_eq!(theirs.offset_from(GlobalPtr::to(&memory, next, 0)?).is_none(), before != next);
        world.barrier()
    });
}

#[test]
fn futures_are_under_way_together() {
    everywhere("futures", |world| {
        let (rank, n) = (world.rank(), world.size());
        let memory = world.alloc::<u64>(4 * n)?;
        let to = |rank: usize, index| GlobalPtr::to(&memory, rank, index);
        // Each rank has four elements at every other.
        let puts: Result<Vec<_>, Error> = (0..n)
            .map(|other| to(other, 4 * rank)?.slice(3).put_async(world, &[rank as u64, 10, 20]))
            .chain([to((rank + 1) % n, 4 * rank + 3)?.put_async(world, 30)])
            .collect();
        puts?.into_iter().try_for_each(|put| put.wait())?;
        world.barrier()?;
        let adds: Result<Vec<_>, Error> =
            (0..n).map(|other| to(other, 4 * rank + 1)?.fetch_add_async(world, 5)).collect();
        adds?.into_iter().try_for_each(|add| add.wait().map(|before| assert_eq!(before, 10)))?;
        let swap = to(rank, 4 * rank + 2)?.compare_swap_async(world, 20, 21)?;
        assert_eq!(swap.wait()?, 20);
        world.barrier()?;
        let gets: Result<Vec<_>, Error> = (0..n).map(|other| to(rank, 4 * other)?.slice(2).get_async(world)).collect();
        for (other, get) in gets?.into_iter().enumerate() {
            assert_eq!(get.wait()?, [other as u64, 15]);
        }
        let before = (rank + n - 1) % n;
        assert_eq!(to(rank, 4 * before + 3)?.get_async(world)?.wait()?, 30);
        // What is wrong is told at once, or by the future.
        assert!(matches!(GlobalPtr::<u64>::null().get_async(world), Err(Error::Stale { .. })));
        assert!(matches!(to(0, 4 * n)?.get_async(world)?.wait(), Err(Error::OutOfBounds { .. })));
        assert!(matches!(to(0, 0)?.slice(2).put_async(world, &[1]), Err(Error::InvalidArgument { .. })));
        world.barrier()
    });
}

/// All atomics of a pointer against what they do to a number, each in both forms.
fn bit_by_bit<T>(world: &World, number: impl Fn(u32) -> T, fetch_add: fn(T, T) -> T) -> Result<(), Error>
where
    T: bellwether::AtomicElement
        + std::fmt::Debug
        + PartialEq
        + std::ops::BitAnd<Output = T>
        + std::ops::BitOr<Output = T>
        + std::ops::BitXor<Output = T>,
{
    let (rank, n) = (world.rank(), world.size());
    let memory = world.alloc::<T>(n)?;
    // A word of its own at every other rank.
    let theirs = GlobalPtr::to(&memory, (rank + 1) % n, rank)?;
    let mut expected = number(0xc35a_0ff1);
    theirs.put(world, expected)?;
    macro_rules! both {
        ($($operation:ident, $future:ident, $makes:expr;)*) => {
            for round in 0..4u32 {
                $(
                    let value = number(0x9e37_79b9u32.rotate_left(7 * round));
                    assert_eq!(theirs.$operation(world, value)?, expected, stringify!($operation));
                    expected = $makes(expected, value);
                    let value = number(0x85eb_ca6bu32.rotate_left(5 * round));
                    assert_eq!(theirs.$future(world, value)?.wait()?, expected, stringify!($future));
                    expected = $makes(expected, value);
                )*
            }
        };
    }
    both! {
        fetch_or, fetch_or_async, |old, value| old | value;
        fetch_xor, fetch_xor_async, |old, value| old ^ value;
        fetch_add, fetch_add_async, fetch_add;
        fetch_and, fetch_and_async, |old, value| old & value;
        swap, swap_async, |_, value| value;
    }
    assert_eq!(theirs.compare_swap(world, number(1), number(2))?, expected);
    assert_eq!(theirs.compare_swap_async(world, expected, number(3))?.wait()?, expected);
    world.barrier()?;
    assert_eq!(memory.load((rank + n - 1) % n), number(3));
    assert!(matches!(theirs.add(n).fetch_and_async(world, number(1))?.wait(), Err(Error::OutOfBounds { .. })));
    assert!(matches!(theirs.add(n).fetch_xor(world, number(1)), Err(Error::OutOfBounds { .. })));
    assert!(matches!(GlobalPtr::<T>::null().fetch_or_async(world, number(1)), Err(Error::Stale { .. })));
    world.barrier()
}

#[test]
fn bits_are_changed_atomically_through_pointers() {
    everywhere("bits", |world| {
        bit_by_bit(world, |bits| bits, u32::wrapping_add)?;
        bit_by_bit(world, |bits| bits as i32, i32::wrapping_add)?;
        bit_by_bit(world, |bits| u64::from(bits) << 32 | u64::from(!bits), u64::wrapping_add)?;
        bit_by_bit(world, |bits| !(i64::from(bits) << 29), i64::wrapping_add)
    });
    // Of all ranks on one word nothing is lost.
    everywhere("one word", |world| {
        let (rank, n) = (world.rank(), world.size());
        let memory = world.alloc::<u64>(1)?;
        let word = GlobalPtr::to(&memory, n - 1, 0)?;
        word.fetch_or(world, 1 << rank)?;
        word.fetch_xor_async(world, 1 << (rank + 20))?.wait()?;
        word.fetch_or_async(world, 1 << (rank + 40))?.wait()?;
        world.barrier()?;
        let all = (1 << n) - 1;
        assert_eq!(word.get(world)?, all | all << 20 | all << 40);
        world.barrier()?;
        word.fetch_and(world, !(1 << rank))?;
        word.fetch_xor(world, 1 << (rank + 20))?;
        word.fetch_and_async(world, !(1 << (rank + 40)))?.wait()?;
        world.barrier()?;
        assert_eq!(word.get(world)?, 0);
        world.barrier()
    });
}

#[test]
fn futures_of_arrays() {
    everywhere("futures of arrays", |world| {
        let (rank, n) = (world.rank(), world.size());
        for layout in super::support::lines(4 * n + 3, n) {
            let array = GlobalArray::<u64, 1>::new(world, layout)?.share(world)?;
            let all = 0..array.extents()[0];
            let adds: Result<Vec<_>, Error> = all.clone().map(|i| array.fetch_add_async(i, i as u64)).collect();
            adds?.into_iter().try_for_each(|add| add.wait().map(drop))?;
            world.barrier()?;
            let gets: Result<Vec<_>, Error> = all.clone().map(|i| array.get_async(i)).collect();
            for (i, get) in gets?.into_iter().enumerate() {
                assert_eq!(get.wait()?, (i * n) as u64);
            }
            world.barrier()?;
            array.put_async(rank, 1)?.wait()?;
            assert_eq!(array.compare_swap_async(rank, 1, 2)?.wait()?, 1);
            assert_eq!(array.swap_async(rank, 3)?.wait()?, 2);
            let error = array.get_async(all.end).map(drop).expect_err("outside");
            assert!(error.to_string().contains("outside"), "{error}");
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn a_remote_closure_takes_a_pointer() {
    on_threads("sent", &[2, 3], |world| {
        let memory = world.alloc::<u64>(1)?;
        let bell = world.bell()?;
        let pointer = GlobalPtr::to(&memory, world.rank(), 0)?;
        let next = (world.rank() + 1) % world.size();
        let back = world.call(next, (pointer, pointer.slice(1)), |_, (pointer, slice)| {
            assert_eq!(slice.start(), pointer);
            (pointer.rank(), slice.len())
        })?;
        assert_eq!(back.wait()?, (world.rank(), 1));
        bell.ring(next)?;
        bell.wait(1)?;
        world.barrier()
    });
}

#[test]
fn strided_and_indexed_forms() {
    everywhere("strides", |world| {
        let memory = world.alloc::<i32>(20)?;
        let last = world.size() - 1;
        let all = GlobalPtr::to(&memory, last, 0)?.slice(20);
        if world.rank() == 0 {
            all.put_strided(world, 1, 3, &[1, 2, 3, 4, 5, 6, 7])?;
            all.scatter(world, &[0, 2], &[10, 9])?;
            all.slice(17..19)?.put(world, &[-1, -2])?;
        }
        world.barrier()?;
        let expected = [10, 1, 9, 0, 2, 0, 0, 3, 0, 0, 4, 0, 0, 5, 0, 0, 6, -1, -2, 7];
        assert_eq!(all.get(world)?, expected);
        assert_eq!(all.get_strided(world, 1, 3, 7)?, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(all.get_strided(world, 19, 100, 1)?, [7]);
        assert_eq!(all.get_strided(world, 0, 0, 3)?, [10; 3]);
        assert_eq!(all.gather(world, &[19, 0, 17])?, [7, 10, -1]);
        let apart = [19, 0, 17, 1, 2, 2];
        let posted = (all.get_strided_async(world, 1, 3, 7)?, all.gather_async(world, &apart)?);
        let empty = (all.gather_async(world, &[])?, all.get_strided_async(world, 20, 1, 0)?);
        assert_eq!(posted.1.wait()?, [7, 10, -1, 1, 9, 9]);
        assert_eq!(
            (posted.0.wait()?, all.get_strided_async(world, 4, 1, 5)?.wait()?),
            (vec![1, 2, 3, 4, 5, 6, 7], expected[4..9].to_vec())
        );
        assert_eq!((empty.0.wait()?, empty.1.wait()?, all.gather(world, &[])?), (vec![], vec![], vec![]));
        let (front, back) = all.split_at(5)?;
        assert_eq!((front.len(), back.get(world)?), (5, expected[5..].to_vec()));
        let mut some = [0; 2];
        all.slice(2..4)?.get_into(world, &mut some)?;
        assert_eq!(some, [9, 0]);
        assert_eq!(all.local(world)?.is_some(), world.rank() == last);
        world.barrier()
    });
}

#[test]
fn what_is_outside_is_told_at_access() {
    everywhere("bounds", |world| {
        let memory = world.alloc::<u64>(4)?;
        let pointer = GlobalPtr::to(&memory, 0, 4)?;
        says(GlobalPtr::to(&memory, 0, 5), &["elements 5..6", "which has 4"]);
        says(pointer.get(world), &["get at rank 0", "elements 4..5", "which has 4"]);
        says(pointer.sub(5).put(world, 1), &["put at rank 0", "which has 4"]);
        says(pointer.sub(4).slice(5).get(world), &["elements 0..5", "which has 4"]);
        says(pointer.sub(4).slice(usize::MAX).get(world), &["which has 4"]);
        says(pointer.sub(4).slice(4).at(4), &["elements 4..5", "has 4"]);
        says(pointer.sub(4).slice(4).get_strided(world, 0, 2, 3), &["has 4"]);
        says(pointer.sub(4).slice(4).get_strided(world, 1, usize::MAX, 3), &["has 4"]);
        says(pointer.sub(4).slice(4).gather(world, &[0, 4]), &["elements 4..5"]);
        says(pointer.sub(4).slice(4).scatter(world, &[0, 1], &[1]), &["1 values for 2"]);
        says(pointer.sub(4).slice(4).get_strided_async(world, 0, 2, 3), &["get_strided_async", "has 4"]);
        says(pointer.sub(4).slice(4).put_strided_async(world, 1, 3, &[1, 2]), &["put_strided_async", "has 4"]);
        says(pointer.sub(4).slice(4).gather_async(world, &[0, 4]), &["gather_async", "elements 4..5"]);
        says(pointer.sub(4).slice(4).scatter_async(world, &[0, 1], &[1]), &["scatter_async", "1 values for 2"]);
        says(pointer.sub(4).slice(4).put(world, &[1]), &["1 values", "4 elements"]);
        says(GlobalPtr::to(&memory, world.size(), 0)?.get(world), &["does not exist"]);
        assert_eq!(pointer.sub(4).get(world)?, 0);
        world.barrier()
    });
}

#[test]
fn elements_apart_are_those_at_their_places() {
    everywhere("apart", |world| {
        let (rank, n) = (world.rank(), world.size());
        // More than are taken at a time.
        let len = if n == 2 { 5000 } else { 300 };
        let memory = world.alloc::<u64>(n * len)?;
        (0..n * len).for_each(|i| memory.store(i, (i * n + rank) as u64));
        world.barrier()?;
        let other = (rank + 1) % n;
        let theirs = GlobalPtr::to(&memory, other, rank * len)?.slice(len);
        let value = |i: usize| ((rank * len + i) * n + other) as u64;
        let indices: Vec<usize> = (0..len).map(|i| i * 7919 % len).collect();
        let expected: Vec<u64> = indices.iter().map(|i| value(*i)).collect();
        let gathered = theirs.gather_async(world, &indices)?;
        assert!(theirs.gather(world, &indices)? == expected && gathered.wait()? == expected);
        assert!(
            theirs.get_strided(world, 1, 2, len / 2)? == (0..len / 2).map(|i| value(2 * i + 1)).collect::<Vec<_>>()
        );
        // What was put just before is what is read.
        let put = theirs.scatter_async(world, &indices, &(0..len as u64).collect::<Vec<_>>())?;
        assert!(theirs.gather(world, &indices)? == (0..len as u64).collect::<Vec<_>>());
        put.wait()?;
        theirs.put_strided_async(world, 0, 2, &vec![7; len / 2])?.wait()?;
        theirs.put_strided(world, 1, 2, &vec![9; len / 2])?;
        world.barrier()?;
        let mine = GlobalPtr::to(&memory, rank, ((rank + n - 1) % n) * len)?.slice(len);
        assert!(mine.get(world)? == [7, 9].repeat(len / 2));
        world.barrier()
    });
}

#[test]
fn a_pointer_to_what_was_dropped_is_stale_even_where_other_memory_took_its_place() {
    everywhere("stale", |world| {
        let old = world.alloc::<u64>(4)?;
        let pointer = GlobalPtr::to(&old, world.size() - 1, 0)?;
        let offset = old.offset();
        assert_eq!(pointer.get(world)?, 0);
        drop(old);
        says(pointer.get(world), &["stale", "does not share"]);
        world.barrier()?;
        let new = world.alloc::<u64>(4)?;
        assert_eq!(new.offset(), offset, "the test wants the same memory");
        says(pointer.put(world, 1), &["stale", &format!("{:#x}", new.identity().1)]);
        says(pointer.fetch_add(world, 1), &["stale"]);
        says(pointer.slice(1).get(world), &["stale"]);
        says(pointer.slice(0).put(world, &[]), &["stale"]);
        world.barrier()?;
        assert_eq!(new.load(0), 0);
        // One rank alone that has dropped it: stale there only.
        let kept = (world.rank() != 0).then_some(new);
        let pointer = world.allgather(&[kept
            .as_ref()
            .map_or(GlobalPtr::null(), |new| GlobalPtr::to(new, world.rank(), 0).expect("inside"))])?;
        assert_eq!(pointer[world.size() - 1].get(world).is_ok(), world.rank() != 0);
        world.barrier()
    });
}

#[test]
fn any_bits_are_an_error_or_shared_memory() {
    on_threads("bits", &[1, 2], |world| {
        let memory = world.alloc::<u64>(64)?;
        let array = GlobalArray::<u64, 1>::new(world, Layout::block([64], world.size())?)?;
        assert!(matches!(GlobalPtr::<u64>::zeroed().get(world), Err(Error::Stale { .. })));
        assert!(GlobalPtr::<u64>::null().is_null() && GlobalSlice::<u64>::zeroed().is_empty());
        // Memory that looks like anything at all does not make a pointer valid.
        (0..64).for_each(|i| memory.store(i, (1 << 32) + 1));
        world.barrier()?;
        let mut word = 1u64;
        for _ in 0..100_000 {
            word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let bits =
                [(word >> 60) | (word >> 59 & 3) << 32, (word >> 57 & 3) << 32 | (word >> 55 & 3), word >> 50 & 127];
            let pointer: GlobalPtr<u64> = bytemuck::cast(bits);
            if let Ok(value) = pointer.get(world) {
                assert_eq!(value, (1 << 32) + 1, "{pointer:?}");
            }
        }
        drop(array);
        world.barrier()
    });
}

#[test]
fn two_worlds_do_not_mix() {
    on_threads("two worlds", &[2], |outer| {
        let memory = outer.alloc::<u64>(1)?;
        let pointer = GlobalPtr::to(&memory, 0, 0)?;
        let inside = |inner: &World| {
            assert!(matches!(pointer.get(inner), Err(Error::Stale { .. })));
            inner.barrier()
        };
        bellwether::threads(2, inside)?.into_iter().collect::<Result<Vec<_>, _>>()?;
        outer.barrier()
    });
}
