//! Rows about put, get and the bells they ring.

use std::sync::atomic::{AtomicI32, Ordering};

use bellwether_runtime::vocabulary::cheetah::{Bell, Controller};

use super::memory::{Memory, pattern, same};
use super::{Load, addresses, barrier, look_until, place, poll_until, settle, wait};

/// Memory of both kinds, and everyone's addresses of each.
fn both_kinds(controller: &Controller, len: usize) -> [(Memory, Vec<usize>, &'static str); 2] {
    [(Memory::segment(controller, len), "segment"), (Memory::heap(len), "heap")].map(|(memory, kind)| {
        let theirs = addresses(controller, memory.address());
        (memory, theirs, kind)
    })
}

pub(super) fn c05(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let next = (me + 1) % n;
    for (memory, theirs, kind) in both_kinds(&controller, 64) {
        let local = Bell::new();
        for i in 0..1000u64 {
            // SAFETY: bell and data of `next` are there for this.
            unsafe {
                controller
                    .put(next, theirs[next] + 8, &i.to_ne_bytes(), Some(&local), Some(theirs[next]))
                    .expect("put");
            }
        }
        wait(&controller, memory.bell(0), 1000, kind);
        assert_eq!(local.read(&controller).expect("fine"), 1000, "{kind}: local bell");
        settle(&controller, kind);
        assert_eq!(memory.bell(0).read(&controller).expect("fine"), 1000, "{kind}: exactly");
        // The puts have no order: any value may be the last.
        let last = u64::from_ne_bytes(memory.read(8, 8).try_into().expect("eight bytes"));
        assert!(last < 1000, "{kind}: {last} was never put");
        barrier(&controller, kind);
    }
    // A number of the program's own, which is rung by another context, by hand, lowered and set.
    let number = AtomicI32::new(5);
    let bell = Bell::of(&number);
    let theirs = addresses(&controller, bell.address());
    assert_eq!(bell.address(), std::ptr::from_ref(&number) as usize);
    for _ in 0..10 {
        // SAFETY: the bell of `next` is there until the barrier.
        unsafe { controller.put(next, 0, &[], None, Some(theirs[next])) }.expect("put");
    }
    wait(&controller, bell, 15, "a number that is a bell");
    settle(&controller, "all rings");
    assert_eq!((number.load(Ordering::Acquire), bell.value()), (15, 15));
    bell.ring();
    assert_eq!((bell.lower(10), number.load(Ordering::Acquire)), (6, 6));
    wait(&controller, bell, 6, "rung by hand");
    number.store(1, Ordering::Release);
    assert_eq!(bell.value(), 1);
    bell.set(0);
    assert_eq!(number.load(Ordering::Acquire), 0);
    barrier(&controller, "the end");
}

pub(super) fn c06(controller: Controller, load: &Load) {
    let (_, n) = place(&controller);
    // Rings of memory outside segments are messages, of which a tenth will do.
    for ((memory, theirs, kind), total) in both_kinds(&controller, 64).into_iter().zip([1_000_000, 100_000]) {
        let each = load.times(total).div_ceil(n);
        let (local, here) = (Bell::new(), Memory::heap(8));
        for i in 0..each as u64 {
            let (bell, data) = (theirs[0], theirs[0] + 8);
            // SAFETY: bell and data of context 0 are there for this; `here` lives until all rings have come.
            unsafe {
                if i % 2 == 0 {
                    controller.put(0, data, &i.to_ne_bytes(), Some(&local), Some(bell)).expect("put");
                } else {
                    controller.get(0, data, here.start(), 8, Some(&local), Some(bell)).expect("get");
                }
            }
        }
        wait(&controller, &local, each, kind);
        if controller.mycontext().expect("valid") == 0 {
            wait(&controller, memory.bell(0), each * n, kind);
        }
        settle(&controller, kind);
        assert_eq!(local.read(&controller).expect("fine") as usize, each, "{kind}: local bell");
        let rung = if theirs[0] == memory.address() { each * n } else { 0 };
        assert_eq!(memory.bell(0).read(&controller).expect("fine") as usize, rung, "{kind}: remote bell");
        barrier(&controller, kind);
    }
}

pub(super) fn c07(controller: Controller, load: &Load) {
    const GUARD: u8 = 0xEE;
    let (me, n) = place(&controller);
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    let bell = Memory::segment(&controller, 4);
    let bells = addresses(&controller, bell.address());
    let mut rounds = 0;
    for size in load.sizes() {
        let offsets: &[(usize, usize)] =
            if size <= 4097 { &[(0, 0), (1, 0), (0, 1), (3, 5), (7, 8)] } else { &[(0, 0), (3, 5)] };
        for (memory, theirs, kind) in both_kinds(&controller, size + 64) {
            for (from, to) in offsets {
                let what = format!("{size} bytes from {from} to {to} in {kind}");
                rounds += 1;
                memory.set(GUARD);
                let local = Bell::new();
                let mut source = vec![0; from + size];
                source[*from..].copy_from_slice(&pattern(me + rounds, size));
                barrier(&controller, &what);
                let (target, remote) = (theirs[next] + 16 + to, bells[next]);
                // SAFETY: `next` expects writes there.
                unsafe { controller.put(next, target, &source[*from..], Some(&local), Some(remote)) }.expect(&what);
                wait(&controller, &local, 1, &what);
                source.fill(0xFF);
                wait(&controller, bell.bell(0), rounds, &what);
                same(&memory.read(16 + to, size), &pattern(previous + rounds, size), &what);
                assert!(memory.read(0, 16 + to).iter().all(|byte| *byte == GUARD), "{what}: written before");
                assert!(memory.read(16 + to + size, 40).iter().all(|byte| *byte == GUARD), "{what}: written behind");
                barrier(&controller, &what);
            }
        }
    }
}

/// Pairs of a context that moves data and its target, one of which must wait: first and last context, both ways.
fn pairs(n: usize) -> [(usize, usize); 2] {
    [(0, 1 % n), (n - 1, 0)]
}

pub(super) fn c08(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let (bell, ack) = (Memory::segment(&controller, 4), Memory::segment(&controller, 4));
    let bells = [addresses(&controller, bell.address()), addresses(&controller, ack.address())];
    let own = Memory::heap(4);
    let bells_outside = addresses(&controller, own.address());
    let mut rung = [0; 2];
    let mut acked = 0;
    let plan = [(8, 10_000), (4096, 1000), ((256 << 10).min(load.large()), 100), (load.large(), 3)];
    for (size, rounds) in plan {
        let rounds = load.times(rounds).max(3);
        for (memory, theirs, kind) in both_kinds(&controller, size) {
            for (sender, receiver) in pairs(n) {
                let what = format!("{size} bytes to {kind} of {receiver}");
                let mut source = pattern(0, size);
                let (bell, other) = (bell.bell(0), own.bell(0));
                for round in 0..rounds {
                    // The last byte tells the round; every fourth bell lies outside the segment.
                    let outside = usize::from(round % 4 == 3);
                    let seal = (round % 255) as u8 + 1;
                    rung[outside] += usize::from(me == receiver);
                    if me == sender {
                        source[0] = seal;
                        source[size - 1] = seal;
                        let remote = if outside == 1 { bells_outside[receiver] } else { bells[0][receiver] };
                        // SAFETY: the receiver expects writes there.
                        unsafe { controller.put(receiver, theirs[receiver], &source, None, Some(remote)) }
                            .expect(&what);
                    }
                    if me == receiver {
                        wait(&controller, if outside == 1 { other } else { bell }, rung[outside], &what);
                        let (last, first) = (memory.byte(size - 1), memory.byte(0));
                        assert_eq!((last, first), (seal, seal), "{what}: the bell of round {round} came first");
                        // SAFETY: a bell of the sender.
                        unsafe { controller.put(sender, 0, &[], None, Some(bells[1][sender])) }.expect(&what);
                    }
                    if me == sender {
                        acked += 1;
                        wait(&controller, ack.bell(0), acked, &what);
                    }
                }
                barrier(&controller, &what);
            }
        }
    }
}

pub(super) fn c09(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    for size in [8, 4096, load.large()] {
        for (memory, theirs, kind) in both_kinds(&controller, size + 8) {
            for (sender, receiver) in pairs(n) {
                let what = format!("{size} bytes to {kind} of {receiver}");
                memory.set(0);
                barrier(&controller, &what);
                if me == sender {
                    let (bell, data) = (theirs[receiver], theirs[receiver] + 8);
                    // SAFETY: the receiver expects writes there.
                    unsafe { controller.put(receiver, data, &pattern(7, size), None, Some(bell)) }.expect(&what);
                }
                if me == receiver {
                    // Nothing but polling.
                    poll_until(&controller, &what, || memory.bell(0).read(&controller).expect("fine") == 1);
                    same(&memory.read(8, size), &pattern(7, size), &what);
                }
                barrier(&controller, &what);
            }
        }
        // Where memory is registered the target need not even poll. Few bytes: each look compares all.
        let size = size.min(4096);
        // Only a few words go by atomics, which the thread sanitizer wants where a look may meet a put.
        let size = if cfg!(bellwether_tsan) { size.min(64).next_multiple_of(8) } else { size };
        let memory = Memory::segment(&controller, size);
        let theirs = addresses(&controller, memory.address());
        for (sender, receiver) in pairs(n) {
            let what = format!("{size} bytes to registered memory of {receiver}");
            memory.set(0);
            barrier(&controller, &what);
            let sent = pattern(9, size);
            if me == sender {
                // SAFETY: the receiver expects writes there.
                unsafe { controller.put(receiver, theirs[receiver], &sent, None, None) }.expect(&what);
                let (local, here) = (Bell::new(), Memory::heap(size));
                // SAFETY: our own memory, untouched until the bell.
                unsafe { controller.get(receiver, theirs[receiver], here.start(), size, Some(&local), None) }
                    .expect(&what);
                wait(&controller, &local, 1, &what);
            }
            if me == receiver {
                look_until(&controller, &what, || memory.holds(0, &sent));
            }
            barrier(&controller, &what);
        }
    }
}

pub(super) fn c10(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let bell = Memory::segment(&controller, 4);
    let bells = addresses(&controller, bell.address());
    let mut rung = 0;
    for (size, rounds) in [(8, 1000), (49, 400), (4096, 400), ((256 << 10).min(load.large()), 100), (load.large(), 3)] {
        let rounds = load.times(rounds).max(3);
        for (memory, theirs, kind) in both_kinds(&controller, size) {
            for (getter, owner) in pairs(n) {
                let what = format!("{size} bytes from {kind} of {owner}");
                for round in 0..rounds {
                    let old = pattern(round, size);
                    if me == owner {
                        memory.write(0, &old);
                    }
                    barrier(&controller, &what);
                    let (local, here) = (Bell::new(), Memory::heap(size + 3));
                    if me == getter {
                        let start = here.start().wrapping_add(3);
                        let remote = Some(bells[owner]);
                        // SAFETY: our own memory, untouched until the bell; the owner changes its own after its bell.
                        unsafe { controller.get(owner, theirs[owner], start, size, Some(&local), remote) }
                            .expect(&what);
                    }
                    if me == owner {
                        rung += 1;
                        wait(&controller, bell.bell(0), rung, &what);
                        memory.set(0xDD);
                    }
                    if me == getter {
                        wait(&controller, &local, 1, &what);
                        same(&here.read(3, size), &old, &format!("{what}: round {round}"));
                    }
                    barrier(&controller, &what);
                }
            }
        }
    }
}

pub(super) fn c11(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let next = (me + 1) % n;
    for (memory, theirs, kind) in both_kinds(&controller, 64) {
        let (mut expected_local, mut expected_remote) = (0, 0);
        let (local, here) = (Bell::new(), Memory::heap(16));
        for choice in 0..8 {
            let what = format!("choice {choice} in {kind}");
            let (with_local, with_remote) = (choice & 1 != 0, choice & 2 != 0);
            let (local_bell, remote_bell) = (with_local.then_some(&local), with_remote.then_some(theirs[next]));
            expected_local += i32::from(with_local);
            expected_remote += i32::from(with_remote);
            // SAFETY: `next` expects it; `here` lives until all is settled.
            unsafe {
                if choice & 4 != 0 {
                    controller.put(next, theirs[next] + 8, &[5; 16], local_bell, remote_bell).expect(&what);
                } else {
                    controller.get(next, theirs[next] + 8, here.start(), 16, local_bell, remote_bell).expect(&what);
                }
            }
            wait(&controller, &local, expected_local as usize, &what);
            wait(&controller, memory.bell(0), expected_remote as usize, &what);
        }
        // Requests of others are answered in the first barrier, and the answers are here after the second.
        settle(&controller, kind);
        settle(&controller, kind);
        assert_eq!(local.read(&controller).expect("fine"), expected_local, "{kind}: local");
        assert_eq!(memory.bell(0).read(&controller).expect("fine"), expected_remote, "{kind}: remote");
        assert_eq!(memory.read(8, 16), [5; 16], "{kind}");
        assert_eq!(memory.read(24, 40), [0; 40], "{kind}");
        barrier(&controller, kind);
    }
}

pub(super) fn c12(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let next = (me + 1) % n;
    for (memory, theirs, kind) in both_kinds(&controller, 64) {
        // A transfer of no bytes does not check its address: a good one, none, one that wraps, one that is not mapped.
        for (round, address) in [theirs[next] + 8, 0, usize::MAX, 1 << 46].into_iter().enumerate() {
            let what = format!("nothing at {address:#x}, bells in {kind}");
            let (put_bell, get_bell) = (Bell::new(), Bell::new());
            // SAFETY: nothing is copied; the bells are there.
            unsafe {
                let nowhere = std::ptr::null_mut();
                controller.put(next, address, &[], Some(&put_bell), Some(theirs[next])).expect(&what);
                controller.get(next, address, nowhere, 0, Some(&get_bell), Some(theirs[next] + 4)).expect(&what);
            }
            wait(&controller, &put_bell, 1, &what);
            wait(&controller, &get_bell, 1, &what);
            wait(&controller, memory.bell(0), round + 1, &what);
            wait(&controller, memory.bell(4), round + 1, &what);
        }
        settle(&controller, kind);
        for bell in [0, 4] {
            assert_eq!(memory.bell(bell).read(&controller).expect("fine"), 4, "{kind}: bell {bell}");
        }
        assert_eq!(memory.read(8, 56), [0; 56], "{kind}");
        barrier(&controller, kind);
    }
}

pub(super) fn c25(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let next = (me + 1) % n;
    let previous = (me + n - 1) % n;
    let large = load.large().min(4 << 20);
    let kinds = both_kinds(&controller, large);
    let bells = Memory::heap(64);
    let theirs = addresses(&controller, bells.address());
    for round in 1..=8 {
        // Large before small, so that the small one may well come first: each is good when its own bell says so.
        for (number, (_, data, _)) in kinds.iter().enumerate() {
            for (part, size) in [(0, large / 2), (1, 8)] {
                let bell = theirs[next] + 4 * (2 * number + part);
                let bytes = pattern(me + round, size);
                let target = data[next] + part * large / 2;
                // SAFETY: `next` expects writes there.
                unsafe { controller.put(next, target, &bytes, None, Some(bell)) }.expect("put");
            }
        }
        // Looked at in the order in which they were sent, and the other way round.
        let mut order = [(0, 0), (0, 1), (1, 0), (1, 1)];
        if round % 2 == 0 {
            order.reverse();
        }
        for (number, part) in order {
            let (memory, _, kind) = &kinds[number];
            let what = format!("part {part} in {kind}, round {round}");
            wait(&controller, bells.bell(4 * (2 * number + part)), round, &what);
            let size = [large / 2, 8][part];
            same(&memory.read(part * large / 2, size), &pattern(previous + round, size), &what);
        }
        barrier(&controller, "the end of a round");
    }
}

pub(super) fn c26(controller: Controller, load: &Load) {
    let (me, _) = place(&controller);
    let calls = std::rc::Rc::new(std::cell::Cell::new(0));
    let count = std::rc::Rc::clone(&calls);
    let function = controller
        .register_function(move |controller, who, _, buffer| {
            assert_eq!(who, controller.mycontext().expect("valid"));
            assert_eq!(buffer, b"to myself");
            count.set(count.get() + 1);
        })
        .expect("registered early");
    barrier(&controller, "registered");
    for size in load.sizes() {
        for (memory, _, kind) in both_kinds(&controller, size + 8) {
            let what = format!("{size} bytes in {kind}");
            let (bell, here, data) = (Bell::new(), Memory::heap(size), memory.address() + 8);
            let sent = pattern(me + size, size);
            let remote = Some(memory.address());
            // SAFETY: our own memory, which lives until the bells have rung.
            unsafe { controller.put(me, data, &sent, Some(&bell), remote) }.expect(&what);
            wait(&controller, memory.bell(0), 1, &what);
            // SAFETY: as above.
            unsafe { controller.get(me, data, here.start(), size, Some(&bell), remote) }.expect(&what);
            wait(&controller, &bell, 2, &what);
            wait(&controller, memory.bell(0), 2, &what);
            same(&here.read(0, size), &sent, &what);
        }
    }
    let times = if load.virtual_time && !crate::is_full() { 100 } else { 1000 };
    for _ in 0..times {
        controller.ainvoke(me, function, b"to myself", None).expect("ainvoke");
    }
    poll_until(&controller, "calls to myself", || calls.get() == times);
    barrier(&controller, "the end");
}
