//! Rows about progress: which context moves messages, when, and which context waits for which.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bellwether_runtime::vocabulary::cheetah::{Bell, Controller, MatchingHandler};

use super::memory::{Memory, pattern, same};
use super::{Load, addresses, barrier, look_until, now, place, poll_until, settle, sleep, wait};
use crate::process::forbid_threads;
use crate::watchdog;

pub(super) fn c18(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let world = controller.as_world().expect("valid");
    let entered = world.alloc::<u64>(n).expect("it fits");
    barrier(&controller, "start");
    let delay = Duration::from_millis(if load.full { 1000 } else { 200 });
    let rounds = load.times(10_000).max(200) as u64;
    for round in 1..=rounds {
        if round == 1 && me == n - 1 {
            sleep(&controller, delay);
        }
        for to in 0..n {
            entered.put(to, me, round).expect("in range");
        }
        barrier(&controller, "one of many");
        for other in 0..n {
            let seen = entered.load(other);
            assert!(seen >= round, "left barrier {round} when context {other} had entered {seen}");
        }
    }
}

pub(super) fn c19(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let target = 1 % n;
    let runs = Rc::new(Cell::new(0));
    let count = Rc::clone(&runs);
    let function =
        controller.register_function(move |_, _, _, _| count.set(count.get() + 1)).expect("registered early");
    let sent = controller.as_world().expect("valid").alloc::<u64>(1).expect("it fits");
    let bell = Memory::heap(4);
    let bells = addresses(&controller, bell.address());
    barrier(&controller, "start");
    // The target must be out of the barrier, which would deliver.
    let out = controller.as_world().expect("valid").alloc::<u64>(1).expect("it fits");
    if me == target {
        out.put(0, 0, 1).expect("in range");
    }
    if me == 0 {
        poll_until(&controller, "the target's word that it polls no more", || out.load(0) == 1);
        controller.ainvoke(target, function, b"run", None).expect("ainvoke");
        // SAFETY: a bell of the target.
        unsafe { controller.put(target, 0, &[], None, Some(bells[target])) }.expect("put");
        sent.put(target, 0, 1).expect("in range");
    }
    if me == target {
        look_until(&controller, "the other's word that all is sent", || sent.load(0) == 1);
        let end = now(&controller) + Duration::from_millis(100);
        while n > 1 && now(&controller) < end {
            sleep(&controller, Duration::from_millis(1));
            // Calls that do not communicate deliver nothing; neither does time.
            let _ = (controller.ncontexts(), controller.mycontext(), controller.is_valid(), controller.as_world());
            assert_eq!((runs.get(), bell.read(0, 4)), (0, vec![0; 4]), "delivered though nobody polled");
        }
        poll_until(&controller, "what was sent", || runs.get() == 1 && bell.read(0, 4) == 1i32.to_ne_bytes());
    }
    barrier(&controller, "the end");
    // A loop over the bell itself polls, so it ends.
    let own = Bell::new();
    let addresses = addresses(&controller, own.address());
    // SAFETY: a bell of the neighbour.
    unsafe { controller.put((me + 1) % n, 0, &[], None, Some(addresses[(me + 1) % n])) }.expect("put");
    look_until(&controller, "a bell that polls when read", || own.read(&controller).expect("fine") == 1);
    barrier(&controller, "the end of the loop");
}

pub(super) fn c20(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let target = 1 % n;
    let runs = Rc::new(Cell::new(0));
    let count = Rc::clone(&runs);
    let back = Memory::segment(&controller, 64);
    let backs = addresses(&controller, back.address());
    let heap = Memory::heap(64);
    let heaps = addresses(&controller, heap.address());
    let function = controller
        .register_function(move |controller, who, _, _| {
            count.set(count.get() + 1);
            // SAFETY: a bell of the caller.
            unsafe { controller.put(who, 0, &[], None, Some(backs[who])) }.expect("an answer");
        })
        .expect("registered early");
    let nothing = controller.register_function(|_, _, _, _| {}).expect("registered early");
    let matching = MatchingHandler::new(&controller).expect("all make it");
    // For transfers to oneself, which may still be under way when the calls return.
    let (own, here) = (Memory::heap(8), Memory::heap(8));
    let bell = Memory::segment(&controller, 4);
    let bells = addresses(&controller, bell.address());
    let calls = ["barrier", "wait", "wait_for", "poll", "put", "get", "ainvoke", "send", "request"];
    for (round, call) in calls.into_iter().enumerate() {
        barrier(&controller, call);
        let what = format!("only {call} at the target");
        if me == 0 && n > 1 {
            // A call, and a put to memory and a bell outside the segment: both need the target to move messages.
            controller.ainvoke(target, function, &[], None).expect("ainvoke");
            let bytes = pattern(round, 40);
            // SAFETY: the target expects it.
            unsafe { controller.put(target, heaps[target] + 8, &bytes, None, Some(heaps[target])) }.expect("put");
            wait(&controller, back.bell(0), round + 1, &what);
            // The target's wait ends only now.
            // SAFETY: a bell of the target.
            unsafe { controller.put(target, 0, &[], None, Some(bells[target])) }.expect("put");
        }
        if me == target && n > 1 {
            let start = Instant::now();
            let step = || match call {
                // SAFETY: our own memory.
                "put" => unsafe { controller.put(me, here.address(), &[1; 8], None, None) },
                // SAFETY: our own memory.
                "get" => unsafe { controller.get(me, own.address(), here.start(), 8, None, None) },
                "ainvoke" => controller.ainvoke(me, nothing, &[], None),
                "send" => matching.send(0, 5, &1u8),
                "request" => matching.request::<u8, _>(0, 6, |_| {}),
                "poll" => controller.poll().map(drop),
                "wait" => controller.wait(bell.bell(0), round as i32 + 1),
                "wait_for" => controller.wait_for(bell.bell(0), round as i32 + 1, Duration::from_secs(60)),
                _ => Ok(()),
            };
            watchdog::at(what.clone());
            // The barrier of the next line is one of the calls.
            while call != "barrier" && (runs.get() <= round || bell_value(&heap) <= round) {
                assert!(start.elapsed() < Duration::from_secs(30), "{what}: no progress");
                step().expect(call);
                // Slowly: what the call keeps would fill all room, and then it waits, which is progress, too.
                if !load.virtual_time {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
        barrier(&controller, &what);
        if me == target && n > 1 {
            poll_until(&controller, &what, || bell_value(&heap) == round + 1);
            assert_eq!(runs.get(), round + 1);
            same(&heap.read(8, 40), &pattern(round, 40), &what);
        }
    }
    settle(&controller, "the end");
}

/// The value of the counter at the start of `memory`, without polling.
fn bell_value(memory: &Memory) -> usize {
    u32::from_ne_bytes(memory.read(0, 4).try_into().expect("four bytes")) as usize
}

pub(super) fn c21(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let next = (me + 1) % n;
    let bell = Memory::segment(&controller, 4);
    let bells = addresses(&controller, bell.address());
    for round in 1..=5 {
        for _ in 0..3 {
            // SAFETY: a bell of the neighbour.
            unsafe { controller.put(next, 0, &[], None, Some(bells[next])) }.expect("put");
        }
        let count = 3 * round;
        watchdog::at("waiting without a limit");
        controller.wait(bell.bell(0), count).expect("it rings");
        assert_eq!(bell.bell(0).read(&controller).expect("fine"), count, "a wait leaves the bell as it is");
        for again in [count, count - 1, 0, -1, i32::MIN] {
            controller.wait(bell.bell(0), again).expect("at once");
            controller.wait_for(bell.bell(0), again, Duration::ZERO).expect("at once");
        }
        let limit = Duration::from_millis(20);
        let start = now(&controller);
        let late = controller.wait_for(bell.bell(0), count + 1, limit).expect_err("nobody rings").to_string();
        assert!(late.contains("not done after 20ms") && now(&controller) - start >= limit, "{late}");
        assert_eq!(bell.bell(0).read(&controller).expect("fine"), count);
        barrier(&controller, "the end of a round");
    }
}

pub(super) fn c22(controller: Controller, load: &Load) {
    let tasks = || std::fs::read_dir("/proc/self/task").expect("there on Linux").count();
    barrier(&controller, "start");
    if let Some(expected) = load.tasks {
        assert_eq!(tasks(), expected, "threads that the program did not start");
        // Nor does it start one for a moment.
        forbid_threads();
    }
    // With everything going on that there is.
    let (me, n) = place(&controller);
    let next = (me + 1) % n;
    let memory = Memory::heap(1 << 16);
    let theirs = addresses(&controller, memory.address());
    let matching = MatchingHandler::new(&controller).expect("all make it");
    matching.send(next, 1, &1u8).expect("send");
    // SAFETY: the neighbour expects it.
    unsafe { controller.put(next, theirs[next] + 8, &pattern(1, 60_000), None, Some(theirs[next])) }.expect("put");
    wait(&controller, memory.bell(0), 1, "put");
    same(&memory.read(8, 60_000), &pattern(1, 60_000), "put");
    if let Some(expected) = load.tasks {
        assert_eq!(tasks(), expected, "threads that the program did not start");
    }
    barrier(&controller, "the end");
}

pub(super) fn c23(controller: Controller, load: &Load) {
    let (me, n) = place(&controller);
    let target = 1 % n;
    // Operations that find no room are kept, as far as the message memory allows.
    let roomy = load.message_memory > 4 << 20;
    let size = if roomy { load.large() } else { 1000 };
    let (calls, puts) = if roomy { (10_000, 1000) } else { (30, 30) };
    let runs = Rc::new(Cell::new(0));
    let count = Rc::clone(&runs);
    let function =
        controller.register_function(move |_, _, _, _| count.set(count.get() + 1)).expect("registered early");
    let called = controller.as_world().expect("valid").alloc::<u64>(1).expect("it fits");
    let kinds = [Memory::segment(&controller, size), Memory::heap(size)];
    let theirs: Vec<_> = kinds.iter().map(|memory| addresses(&controller, memory.address())).collect();
    let bell = Memory::heap(4);
    let bells = addresses(&controller, bell.address());
    let matching = MatchingHandler::new(&controller).expect("all make it");
    let (here, local, bytes) = (Memory::heap(size), Bell::new(), pattern(3, size));
    let asleep = Duration::from_millis(if load.full { 3000 } else { 500 });
    barrier(&controller, "start");
    if me == target && n > 1 {
        if load.virtual_time {
            sleep(&controller, asleep);
        } else {
            // The clock of a busy machine proves nothing: nothing moves here before the other has made all its calls.
            look_until(&controller, "the other's word that all was called", || called.load(0) == 1);
        }
    }
    if me == 0 {
        let start = now(&controller);
        // SAFETY: the target expects it; `here` lives until all rings have come.
        unsafe {
            for theirs in &theirs {
                for _ in 0..puts {
                    // The same bytes as in the longer put, because the two puts have no order.
                    controller.put(target, theirs[target], &bytes[..8], None, Some(bells[target])).expect("put");
                }
                controller.put(target, theirs[target], &bytes, None, Some(bells[target])).expect("put");
                controller.get(target, theirs[target], here.start(), size, Some(&local), None).expect("get");
            }
        }
        for i in 0..calls {
            controller.ainvoke(target, function, &[0; 80][..i % 80], None).expect("ainvoke");
            matching.send(target, 1, &i).expect("send");
        }
        controller.ainvoke(target, function, &vec![0; if roomy { 1 << 20 } else { 0 }], None).expect("ainvoke");
        let took = now(&controller) - start;
        if load.virtual_time {
            assert!(n == 1 || took < asleep, "the calls took {took:?}, longer than the other slept");
        } else {
            called.put(target, 0, 1).expect("in range");
        }
        // Nothing orders them with the puts.
        wait(&controller, &local, 2, "gets");
    }
    if me == target {
        wait(&controller, bell.bell(0), 2 * (puts + 1), "puts");
        kinds.iter().for_each(|memory| same(&memory.read(0, size), &bytes, "put"));
        poll_until(&controller, "calls", || runs.get() == calls + 1);
        // Nothing orders them with the calls.
        poll_until(&controller, "values", || matching.messages(0) == calls);
    }
    barrier(&controller, "the end");
    if me == 0 {
        for (theirs, gets) in theirs.iter().zip(3..) {
            // SAFETY: the target expects it; `here` lives until the ring has come.
            unsafe { controller.get(target, theirs[target], here.start(), size, Some(&local), None) }.expect("get");
            wait(&controller, &local, gets, "a get after the puts");
            same(&here.read(0, size), &bytes, "a get after the puts");
        }
    }
    no_room(&controller);
}

/// The form that keeps nothing says that there is no room, while the target does not poll; nothing is lost or done twice.
fn no_room(controller: &Controller) {
    let (me, n) = place(controller);
    let target = 1 % n;
    let runs = Rc::new(Cell::new(0u64));
    let count = Rc::clone(&runs);
    let function = controller.register_function(move |_, _, _, _| count.set(count.get() + 1)).expect("registered late");
    let full = controller.as_world().expect("valid").alloc::<u64>(1).expect("it fits");
    barrier(controller, "room");
    if me == target && n > 1 {
        look_until(controller, "the other's word that there is no room", || full.load(0) > 0);
    }
    if me == 0 {
        let (bell, mut sent) = (Bell::new(), 0);
        let ready = || controller.try_ainvoke(target, function, &[1; 100], Some(&bell)).expect("alive");
        // A context that calls itself polls itself.
        while (n == 1 && sent < 100) || (n > 1 && ready()) {
            sent += 1;
            if n == 1 {
                poll_until(controller, "room", ready);
            }
            assert!(sent < 1_000_000, "there is always room");
        }
        assert_eq!(bell.value() as u64, sent, "the bell tells what went");
        full.put(target, 0, sent + 1).expect("in range");
    }
    barrier(controller, "told");
    let sent = full.load(0).saturating_sub(1);
    if me == target {
        poll_until(controller, "what there was room for", || runs.get() >= sent);
    }
    settle(controller, "all calls");
    assert_eq!(runs.get(), if me == target { sent } else { 0 });
}
