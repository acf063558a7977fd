//! Rows about functions called at another context.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bellwether_runtime::Error;
use bellwether_runtime::vocabulary::cheetah::{Bell, Controller, FunctionId};

use super::memory::{Memory, pattern, same};
use super::{Load, addresses, barrier, place, poll_until, settle, wait};

pub(super) fn c13(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&seen);
    let log_of = move |log: &Rc<RefCell<Vec<_>>>| {
        let log = Rc::clone(log);
        move |_: &Controller, who: usize, id: FunctionId, buffer: &[u8]| {
            log.borrow_mut().push((who, id, buffer.to_vec()))
        }
    };
    let first = controller.register_function(log_of(&log)).expect("registered early");
    let second = controller.register_function(log_of(&log)).expect("registered early");
    for size in load.message_sizes() {
        let what = format!("{size} bytes");
        let bell = Bell::new();
        for to in 0..n {
            let function = if to % 2 == 0 { first } else { second };
            controller.ainvoke(to, function, &pattern(me * n + to, size), Some(&bell)).expect(&what);
        }
        wait(&controller, &bell, n, &what);
        poll_until(&controller, &what, || seen.borrow().len() == n);
        let mut calls = seen.take();
        calls.sort();
        for (from, (who, id, buffer)) in calls.into_iter().enumerate() {
            assert_eq!((who, id), (from, if me % 2 == 0 { first } else { second }), "{what}");
            same(&buffer, &pattern(from * n + me, size), &what);
        }
        barrier(&controller, &what);
    }
}

/// Bytes of memory this process has, without what it shares.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("there on Linux");
    let field = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("there on Linux");
        line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number") << 10
    };
    field("VmRSS:") + field("VmSwap:")
}

pub(super) fn c14(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let target = 1 % n;
    let ack = Memory::segment(&controller, 4);
    let acks = addresses(&controller, ack.address());
    let (total, runs) = (Rc::new(Cell::new(0)), Cell::new(0));
    let count = Rc::clone(&total);
    let function = controller
        .register_function(move |controller, who, _, buffer| {
            count.set(count.get() + buffer.len());
            runs.set(runs.get() + 1);
            if runs.get() % 1000 == 0 {
                // SAFETY: a bell of the caller.
                unsafe { controller.put(who, 0, &[], None, Some(acks[who])) }.expect("an answer");
            }
        })
        .expect("registered early");
    barrier(&controller, "start");
    let rounds = load.times(1000);
    let mut before = 0;
    for round in 1..=rounds {
        if me == 0 {
            // Half of them fit in a line, half go in a block.
            for _ in 0..500 {
                controller.ainvoke(target, function, &[0; 40], None).expect("ainvoke");
                controller.ainvoke(target, function, &[0; 200], None).expect("ainvoke");
            }
            wait(&controller, ack.bell(0), round, "calls");
        }
        if round == rounds.div_ceil(10) {
            before = resident();
        }
    }
    settle(&controller, "the end");
    if me == target {
        assert_eq!(total.get(), rounds * 500 * 240);
    }
    if load.tasks.is_some() {
        let grown = resident().saturating_sub(before);
        assert!(grown < 16 << 20, "{grown} bytes more after {} calls", rounds * 1000);
    }
    barrier(&controller, "looked");
}

pub(super) fn c15(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let next = (me + 1) % n;
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&seen);
    let function = controller
        .register_function(move |_, _, _, buffer| log.borrow_mut().push(buffer.to_vec()))
        .expect("registered early");
    let sizes: Vec<usize> = load.message_sizes().into_iter().filter(|size| *size < 5000).collect();
    barrier(&controller, "start");
    let bell = Bell::new();
    let mut sent = 0;
    // More than any lane holds.
    while sent < 600 {
        let size = sizes[sent % sizes.len()];
        let mut buffer = pattern(sent, size);
        controller.ainvoke(next, function, &buffer, Some(&bell)).expect("ainvoke");
        buffer.fill(0xFF);
        sent += 1;
        assert_eq!(bell.read(&controller).expect("fine") as usize, sent, "the local bell rings before the return");
    }
    poll_until(&controller, "all calls", || seen.borrow().len() == sent);
    // Nothing is promised about their order.
    let mut seen = seen.take();
    let mut expected: Vec<_> = (0..sent).map(|number| pattern(number, sizes[number % sizes.len()])).collect();
    seen.sort();
    expected.sort();
    for (buffer, expected) in seen.iter().zip(&expected) {
        same(buffer, expected, "changed after the call");
    }
    barrier(&controller, "the end");
}

thread_local! {
    /// Which plain functions have run in this context, each with the number it was called by.
    static RUN: RefCell<Vec<(char, FunctionId)>> = const { RefCell::new(Vec::new()) };
}

fn plain_a(_: &Controller, _: usize, id: FunctionId, _: &[u8]) {
    RUN.with_borrow_mut(|run| run.push(('a', id)));
}

fn plain_b(_: &Controller, _: usize, id: FunctionId, _: &[u8]) {
    RUN.with_borrow_mut(|run| run.push(('b', id)));
}

fn plain_c(_: &Controller, _: usize, id: FunctionId, _: &[u8]) {
    RUN.with_borrow_mut(|run| run.push(('c', id)));
}

/// How programs written for Cheetah hold their handlers.
type Pointer = fn(&Controller, usize, FunctionId, &[u8]);

pub(super) fn c16(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let functions: [Pointer; 3] = [plain_a, plain_b, plain_c];
    let ids = functions.map(|function| controller.register_function(function).expect("registered early"));
    assert_eq!([ids[0] + 1, ids[0] + 2], [ids[1], ids[2]]);
    let world = controller.as_world().expect("valid");
    let everyones = world.allgather(&ids).expect("all take part");
    assert!(everyones.chunks(3).all(|theirs| theirs == ids), "{everyones:?}");
    // Between processes the same function lies elsewhere, so its address cannot be what crosses the wire.
    let pids = world.allgather(&[std::process::id()]).expect("all take part");
    let places = world.allgather(&[plain_a as Pointer as usize]).expect("all take part");
    let randomised =
        std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").is_ok_and(|text| text.trim() == "2");
    if randomised && pids[0] != pids[n - 1] {
        assert_ne!(places[0], places[n - 1], "address space randomisation is on");
    }
    for to in 0..n {
        for id in ids.iter().rev() {
            controller.ainvoke(to, *id, &[me as u8], None).expect("ainvoke");
        }
    }
    poll_until(&controller, "calls", || RUN.with_borrow(Vec::len) == 3 * n);
    let mut run = RUN.take();
    run.sort();
    let expected: Vec<_> = ['a', 'b', 'c'].iter().zip(ids).flat_map(|(f, id)| vec![(*f, id); n]).collect();
    assert_eq!(run, expected);
    settle(&controller, "the early ones");
    // Communication has begun, and each context registers at its own pace: the first calls functions that the others have
    // not registered yet. Those keep the calls.
    let late: [Pointer; 2] = [plain_c, plain_a];
    let register = |function| controller.register_function(function).expect("registered late");
    let mut numbers = Vec::new();
    if me == 0 {
        for function in late {
            let number = register(function);
            numbers.push(number);
            (0..n).for_each(|to| controller.ainvoke(to, number, &[2], None).expect("ainvoke"));
        }
    }
    settle(&controller, "the late ones are called");
    if me != 0 {
        assert!(RUN.with_borrow(Vec::is_empty), "a function ran that is not registered");
        numbers.extend(late.map(register));
    }
    assert_eq!(numbers, [ids[2] + 1, ids[2] + 2], "numbers go on");
    poll_until(&controller, "late functions", || RUN.with_borrow(Vec::len) == 2);
    let mut run = RUN.take();
    run.sort();
    assert_eq!(run, [('a', numbers[1]), ('c', numbers[0])]);
    // And the other way round.
    let number = if me == 0 { 0 } else { register(plain_b) };
    if me != 0 {
        controller.ainvoke(0, number, &[3], None).expect("ainvoke");
    }
    settle(&controller, "called by the others");
    let number = if me == 0 { register(plain_b) } else { number };
    assert_eq!(number, numbers[1] + 1);
    let calls = if me == 0 { n - 1 } else { 0 };
    poll_until(&controller, "the last function", || RUN.with_borrow(Vec::len) == calls);
    assert_eq!(RUN.take(), vec![('b', number); calls]);
    barrier(&controller, "the end");
}

pub(super) fn c17(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let target = 1 % n;
    let runs = Rc::new(Cell::new(0));
    let count = Rc::clone(&runs);
    let function =
        controller.register_function(move |_, _, _, _| count.set(count.get() + 1)).expect("registered early");
    barrier(&controller, "start");
    let heard = controller.as_world().expect("valid").alloc::<u64>(1).expect("it fits");
    for (round, id) in [99, function + 1, FunctionId::MAX].into_iter().enumerate() {
        // The error comes from a call of the target, whichever that is: its barrier, or the invocation itself. The
        // barrier is a barrier all the same.
        let mut error = None;
        if me == 0 {
            error = controller.ainvoke(target, id, b"who is there", None).err();
        }
        error = error.or(controller.barrier().err());
        while me == target && error.is_none() {
            error = controller.poll().err();
        }
        match error {
            Some(Error::UnknownHandler { from: 0, rank, id: called, known: 1 }) if me == target => {
                assert_eq!((rank, called), (target, id.into()));
            }
            None if me != target => {}
            other => panic!("function {id}: {other:?}"),
        }
        assert_eq!(runs.get(), 0);
        if me == target {
            heard.put(0, 0, round as u64 + 1).expect("in range");
        }
        if me == 0 {
            poll_until(&controller, "the target's word", || heard.load(0) == round as u64 + 1);
        }
    }
    // Several errors at once are reported one by one.
    if me == 0 && n > 1 {
        (50..53).for_each(|id| controller.ainvoke(target, id, &[], None).expect("ainvoke"));
    }
    if me == target && n > 1 {
        let mut told: Vec<u64> = (50..53)
            .map(|_| {
                loop {
                    match controller.poll() {
                        Ok(_) => {}
                        Err(Error::UnknownHandler { id, .. }) => break id,
                        Err(error) => panic!("{error}"),
                    }
                }
            })
            .collect();
        told.sort();
        assert_eq!(told, [50, 51, 52]);
    }
    barrier(&controller, "after the errors");
    // The job goes on.
    if me == 0 {
        controller.ainvoke(target, function, &[], None).expect("ainvoke");
    }
    if me == target {
        poll_until(&controller, "a good call", || runs.get() == 1);
    }
    barrier(&controller, "the end");
}

pub(super) fn c24(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let partner = 1 % n;
    let area = Memory::segment(&controller, 64);
    let areas = addresses(&controller, area.address());
    let heap = Memory::heap(64);
    let heaps = addresses(&controller, heap.address());
    let (runs, depth) = (Rc::new(Cell::new(0usize)), Rc::new(Cell::new(0)));
    let (count, nested) = (Rc::clone(&runs), Rc::clone(&depth));
    let function = controller
        .register_function(move |controller, who, id, buffer| {
            assert_eq!(nested.replace(nested.get() + 1), 0, "a handler inside a handler");
            let left = u64::from_ne_bytes(buffer.try_into().expect("eight bytes"));
            count.set(count.get() + 1);
            match left {
                0 => {
                    // SAFETY: both expect it, and wait for the bells.
                    unsafe {
                        controller.put(who, areas[who] + 8, &7u64.to_ne_bytes(), None, Some(areas[who])).expect("put");
                        controller.put(who, heaps[who] + 8, &8u64.to_ne_bytes(), None, Some(heaps[who])).expect("put");
                    }
                }
                _ => controller.ainvoke(who, id, &(left - 1).to_ne_bytes(), None).expect("from a handler"),
            }
            if left % 1000 == 1 {
                // Delivers nothing here: the count of nested handlers would show.
                controller.poll().expect("allowed");
                let bell = Bell::new();
                let long = Duration::from_secs(1000);
                for outcome in [controller.wait(&bell, 1), controller.wait_for(&bell, 1, long), controller.barrier()] {
                    assert!(matches!(outcome, Err(Error::InsideHandler { .. })), "{outcome:?}");
                }
                assert!(matches!(controller.finalize(), Err(Error::InsideHandler { .. })));
                assert!(controller.is_valid());
            }
            nested.set(0);
        })
        .expect("registered early");
    barrier(&controller, "start");
    let volleys = load.times(100_000);
    if me == 0 {
        controller.ainvoke(partner, function, &(volleys as u64).to_ne_bytes(), None).expect("ainvoke");
    }
    // The last call runs at the partner if the number is even, and rings at the other one.
    let last_rings = if volleys.is_multiple_of(2) { 0 } else { partner };
    if me == last_rings {
        wait(&controller, area.bell(0), 1, "the last volley, in the segment");
        wait(&controller, heap.bell(0), 1, "the last volley, on the heap");
        assert_eq!((area.read(8, 8), heap.read(8, 8)), (7u64.to_ne_bytes().into(), 8u64.to_ne_bytes().into()));
    }
    settle(&controller, "the end");
    let expected = match (n, me) {
        (1, _) => volleys + 1,
        (_, 0) => volleys.div_ceil(2),
        (_, 1) => volleys / 2 + 1,
        _ => 0,
    };
    assert_eq!(runs.get(), expected);
    // Handlers of all may send to one at the same time, more than there is room for.
    let before = runs.get();
    barrier(&controller, "before the storm");
    let each = if load.virtual_time { 20 } else { 500 };
    for _ in 0..each {
        controller.ainvoke(0, function, &1u64.to_ne_bytes(), None).expect("ainvoke");
    }
    let storm = if me == 0 { each * n } else { 0 };
    // Each call at 0 makes one more at its caller, which rings at 0.
    poll_until(&controller, "the storm", || runs.get() - before == storm + each);
    if me == 0 {
        wait(&controller, area.bell(0), 1 + each * n, "the storm's rings in the segment");
        wait(&controller, heap.bell(0), 1 + each * n, "the storm's rings on the heap");
    }
    barrier(&controller, "the end of the storm");
}
