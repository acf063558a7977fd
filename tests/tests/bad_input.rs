//! What goes wrong is an error that names what and where, on every rank it concerns, and soon.

use std::cell::{Cell, RefCell};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bellwether_runtime::vocabulary::cheetah::{Bell, Controller, FunctionId, MatchingHandler};
use bellwether_runtime::{Context, Error, Loss, Settings, Threads, World, threads};
use bellwether_tests::cheetah::Memory;
use bellwether_tests::process::{command, launched, run};
use bellwether_tests::watchdog;

/// A job in which something has gone wrong is over by then, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn guard(name: &str) -> watchdog::Guard {
    watchdog::guard(name, Duration::from_secs(60))
}

/// Runs `program` on contexts that are threads.
fn contexts<R: Send>(ranks: usize, settings: &Settings, program: impl Fn(Controller) -> R + Sync) -> Vec<R> {
    Threads::new(ranks)
        .settings(settings.clone())
        .build(|builder| program(Controller::setup_with(builder).expect("set up")))
        .expect("starts")
}

fn by_message() -> Settings {
    let mut settings = Settings::default();
    settings.cross_memory_attach = false;
    settings.message_memory = 16 << 10;
    settings
}

/// Both ways to memory outside segments.
fn both_ways() -> [(&'static str, Settings); 2] {
    [("by attach", Settings::default()), ("by message", by_message())]
}

/// Polls until a call tells an error.
fn error_of_a_later_call(controller: &Controller) -> Error {
    let start = Instant::now();
    loop {
        if let Err(error) = controller.poll() {
            return error;
        }
        assert!(start.elapsed() < SOON, "no error");
    }
}

#[test]
fn a_rank_that_does_not_exist() {
    let _guard = guard("a_rank_that_does_not_exist");
    contexts(3, &Settings::default(), |controller| {
        let matching = MatchingHandler::new(&controller).expect("all make it");
        let bell = Bell::new();
        let memory = Memory::heap(8);
        for rank in [3, 4, usize::MAX] {
            // SAFETY: nothing is copied, which is the point.
            let (put, get, empty) = unsafe {
                (
                    controller.put(rank, memory.address(), &[1; 8], Some(&bell), Some(bell.address())),
                    controller.get(rank, memory.address(), memory.start(), 8, Some(&bell), None),
                    controller.put(rank, 0, &[], Some(&bell), None),
                )
            };
            let outcomes = [
                ("put", put),
                ("get", get),
                ("put", empty),
                ("sending a message", controller.ainvoke(rank, 0, &[], Some(&bell))),
                ("send", matching.send(rank, 1, &1u8)),
                ("request", matching.request::<u8, _>(rank, 1, |_| {})),
                ("remote call", controller.as_world().expect("valid").invoke(rank, (), |_, ()| ())),
                ("remote call", controller.as_world().expect("valid").call(rank, (), |_, ()| ()).map(drop)),
            ];
            for (call, outcome) in outcomes {
                match outcome {
                    Err(Error::RankOutOfRange { operation, rank: named, size: 3, .. }) => {
                        assert!(named == rank && operation.contains(call), "{operation} {named}");
                    }
                    other => panic!("{call} to {rank}: {other:?}"),
                }
            }
        }
        assert_eq!((bell.read(&controller).expect("fine"), memory.read(0, 8)), (0, vec![0; 8]));
        controller.barrier().expect("the job goes on");
    });
}

/// Where this executable's first mapping begins: readable, not writable, and nothing is mapped before it.
fn start_of_image() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("there on Linux");
    let name = std::env::current_exe().expect("it runs");
    let line = maps.lines().find(|line| line.ends_with(name.to_str().expect("text"))).expect("it is mapped");
    assert!(line.contains(" r--p "), "{line}");
    usize::from_str_radix(line.split('-').next().expect("a range"), 16).expect("a number")
}

#[test]
fn an_address_that_is_not_there() {
    let _guard = guard("an_address_that_is_not_there");
    for (way, settings) in both_ways() {
        contexts(2, &settings, |controller| {
            let me = controller.mycontext().expect("valid");
            let world = controller.as_world().expect("valid");
            let segment = Memory::segment(&controller, 4096);
            let theirs = world.allgather(&[segment.address()]).expect("both")[1 - me];
            let (bell, remote_bell) = (Bell::new(), Memory::segment(&controller, 4));
            let bells = world.allgather(&[remote_bell.address()]).expect("both");
            let here = Memory::heap(3 << 20);
            let heaps = world.allgather(&[here.address()]).expect("both")[1 - me];
            let (answered, mut after) = (Bell::new(), 0);
            let image = start_of_image();
            controller.barrier().expect("both");
            // What, where, how much; and whether it can be read.
            let places = [
                ("null", 0, 8, false),
                ("the first page", 0x1000, 8, false),
                ("wrapping", usize::MAX - 3, 8, false),
                ("the kernel's", 1 << 63, 8, false),
                ("before the heap of its segment", theirs - (64 << 10), 8, false),
                ("behind what is allocated", theirs + (1 << 34), 8, false),
                ("partly behind it", theirs, 1 << 34, false),
                ("read-only", image, 64, true),
                ("partly not mapped", image - (2 << 20), (2 << 20) + 64, false),
            ];
            for (what, address, len, readable) in places {
                let what = format!("{what}, {way}");
                let source = vec![1; len.min(3 << 20)];
                let len = source.len();
                // A put as large as this one is cut; what is left of it is there, so it would succeed.
                let putting = !what.starts_with("partly behind");
                for put in [true, false] {
                    if put && !putting || !put && readable {
                        continue;
                    }
                    let target = Some(bells[1 - me]);
                    let len = if what.starts_with("partly behind") { 1 << 34 } else { len };
                    // SAFETY: nothing can be copied, which is the point.
                    let outcome = unsafe {
                        if put {
                            controller.put(1 - me, address, &source, Some(&bell), target)
                        } else {
                            controller.get(1 - me, address, here.start(), len, Some(&bell), target)
                        }
                    };
                    let rung = bell.read(&controller);
                    let error = match (outcome, rung) {
                        (Err(error), _) | (Ok(()), Err(error)) => error,
                        (Ok(()), Ok(_)) => error_of_a_later_call(&controller),
                    };
                    let operation = if put { "put" } else { "get" };
                    match &error {
                        Error::BadAddress { operation: told, rank, address: at, length } => {
                            assert!(told.contains(operation) && *rank == 1 - me, "{what}: {error}");
                            assert!(*at >= address && at - address + length <= len, "{what}: {error}");
                        }
                        _ => panic!("{what}: {error:?}"),
                    }
                    // Pieces of one transfer may be refused one by one: what is asked after them is answered after them.
                    after += 1;
                    while controller.poll().is_err() {}
                    // SAFETY: readable there, our own memory here.
                    let get = || unsafe { controller.get(1 - me, heaps, here.start(), 8, Some(&answered), None) };
                    while get().is_err() {}
                    while !matches!(answered.read(&controller), Ok(count) if count >= after) {}
                }
            }
            controller.barrier().expect("all errors are told");
            assert_eq!(remote_bell.bell(0).read(&controller).expect("fine"), 0, "{way}: a bell for what was not done");
            // The job goes on: the same two can still move data, in pieces too.
            let big = Memory::heap(1 << 20);
            let big_there = world.allgather(&[big.address()]).expect("both")[1 - me];
            // SAFETY: the other one expects it.
            unsafe { controller.put(1 - me, big_there, &vec![7; 1 << 20], None, Some(bells[1 - me])) }.expect("put");
            controller.wait_for(remote_bell.bell(0), 1, SOON).expect("it rings");
            assert!(big.read(0, 1 << 20).iter().all(|byte| *byte == 7));
            controller.barrier().expect("both");
        });
    }
}

#[test]
fn a_bell_that_is_not_there() {
    let _guard = guard("a_bell_that_is_not_there");
    for (way, settings) in both_ways() {
        contexts(2, &settings, |controller| {
            let me = controller.mycontext().expect("valid");
            let world = controller.as_world().expect("valid");
            let memory = Memory::segment(&controller, 64);
            let theirs = world.allgather(&[memory.address()]).expect("both")[1 - me];
            controller.barrier().expect("both");
            let heap = Memory::heap(64);
            for bell in [theirs + 1, theirs + 2, heap.address() + 3, 0] {
                // SAFETY: refused, which is the point.
                let outcome = unsafe { controller.put(1 - me, theirs + 8, &[1; 8], None, Some(bell)) };
                match outcome {
                    Err(Error::Misaligned { rank, address, alignment: 4, .. }) => {
                        assert_eq!((rank, address), (1 - me, bell));
                    }
                    other => panic!("bell at {bell:#x}, {way}: {other:?}"),
                }
            }
            controller.barrier().expect("both");
            assert_eq!(memory.read(0, 64), [0; 64], "nothing is done by a refused call");
            controller.barrier().expect("both");
            for bell in [0x1000, theirs - (64 << 10), start_of_image()] {
                // SAFETY: the data is expected; the bell is refused, which is the point.
                let outcome = unsafe { controller.put(1 - me, theirs + 8, &[1; 8], None, Some(bell)) };
                let error = outcome.err().unwrap_or_else(|| error_of_a_later_call(&controller));
                match &error {
                    Error::BadAddress { operation, rank, address, length: 4 } => {
                        assert!(operation.contains("bell") && (*rank, *address) == (1 - me, bell), "{way}: {error}");
                    }
                    _ => panic!("bell at {bell:#x}, {way}: {error:?}"),
                }
            }
            controller.barrier().expect("the job goes on");
        });
    }
}

fn one(_: &Controller, _: usize, _: FunctionId, _: &[u8]) {}
fn two(_: &Controller, _: usize, _: FunctionId, _: &[u8]) {
    std::hint::black_box(2);
}
type Pointer = fn(&Controller, usize, FunctionId, &[u8]);

#[test]
fn functions_in_another_order() {
    let _guard = guard("functions_in_another_order");
    // What rank 2 does otherwise: the order, by type or by pointer.
    for difference in ["order", "pointers"] {
        let errors = contexts(3, &Settings::default(), |controller| {
            let last = controller.mycontext().expect("valid") == 2;
            let register = |which: u8| match (difference, which) {
                ("pointers", 1) => controller.register_function(one as Pointer),
                ("pointers", _) => controller.register_function(two as Pointer),
                (_, 1) => controller.register_function(one),
                _ => controller.register_function(two),
            };
            let order: &[u8] = match (difference, last) {
                (_, true) => &[2, 1],
                _ => &[1, 2],
            };
            order.iter().try_for_each(|which| register(*which).map(drop)).expect("registered early");
            controller.barrier()
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let error = error.expect_err(difference);
            let Error::RanksDiffer { rank: named, reference, theirs, ours, .. } = &error else { panic!("{error:?}") };
            // Each rank is told which one differs from it, and in which function.
            assert_eq!((*named, *reference), (if rank == 2 { 0 } else { 2 }, rank), "{difference}: {error}");
            let (good, bad) = if rank == 2 { (theirs, ours) } else { (ours, theirs) };
            let (of_good, of_bad, number) = match difference {
                "order" => ("bad_input::one`", "bad_input::two`", "handler 0 of"),
                _ => ("`fn(", "`fn(", "handler 0 of"),
            };
            let named = good.contains(of_good) && bad.contains(of_bad) && theirs.contains(number);
            assert!(named, "{difference}: {error}");
        }
    }
}

#[test]
fn functions_that_one_rank_has_registered_so_far() {
    let _guard = guard("functions_that_one_rank_has_registered_so_far");
    // Others may register them yet.
    let met = contexts(3, &Settings::default(), |controller| {
        controller.register_function(one).expect("the same on all");
        if controller.mycontext().expect("valid") == 2 {
            controller.register_function(two).expect("ahead of the others");
        }
        controller.barrier()
    });
    assert!(met.iter().all(Result::is_ok), "{met:?}");
}

#[test]
fn handlers_in_another_order_keep_a_world_from_starting() {
    let _guard = guard("handlers_in_another_order_keep_a_world_from_starting");
    let outcomes = Threads::new(3)
        .build(|mut builder| {
            // A builder does not know its rank before the start: the thread's name does.
            let last = std::thread::current().name() == Some("rank 2");
            let (first, second) = if last { ("second", "first") } else { ("first", "second") };
            builder.handler(first, |_: &Context<'_>, _: &[u8]| {});
            builder.handler(second, |_: &Context<'_>, _: &[u8]| {});
            builder.start().map(drop)
        })
        .expect("runs");
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let error = outcome.expect_err("they differ").to_string();
        let other = if rank == 2 { "rank 0 has `first`" } else { "rank 2 has `second`" };
        assert!(error.contains(other) && error.contains("handler 0"), "rank {rank}: {error}");
    }
}

#[test]
fn a_call_between_ranks_that_differ() {
    let _guard = guard("a_call_between_ranks_that_differ");
    // Outside the job, since to call anything there might deliver something.
    let ready = AtomicBool::new(false);
    let errors = contexts(2, &Settings::default(), |controller| {
        let me = controller.mycontext().expect("valid");
        let ran = Rc::new(Cell::new(false));
        let count = Rc::clone(&ran);
        if me == 1 {
            controller.register_function(one).expect("registered early");
        }
        let function = controller.register_function(move |_, _, _, _| count.set(true)).expect("registered early");
        if me == 1 {
            // Nobody else has called, so this rank is not told yet; but it shows its functions from now on.
            let sent = controller.ainvoke(0, function, &[], None);
            ready.store(true, Ordering::Release);
            let start = Instant::now();
            let error = sent.err().unwrap_or_else(|| {
                loop {
                    match controller.ainvoke(0, function, &[], None) {
                        Err(error) => break error,
                        Ok(()) => assert!(start.elapsed() < SOON),
                    }
                }
            });
            assert!(!ran.get());
            return error;
        }
        while !ready.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let error = controller.ainvoke(1, function, &[], None).expect_err("they differ");
        assert!(!ran.get(), "a function ran though the numbers mean different ones");
        std::thread::sleep(Duration::from_millis(50));
        error
    });
    for (rank, error) in errors.iter().enumerate() {
        assert!(matches!(error, Error::RanksDiffer { rank: named, .. } if *named == 1 - rank), "{rank}: {error:?}");
    }
}

#[test]
fn registration_after_the_start() {
    let _guard = guard("registration_after_the_start");
    // After the first call of its own, of each kind that needs the table, and after the first call that came in.
    for first in ["ainvoke", "barrier", "MatchingHandler", "a call that came in"] {
        contexts(2, &Settings::default(), |controller| {
            let me = controller.mycontext().expect("valid");
            let ran = Rc::new(Cell::new(0));
            let count = Rc::clone(&ran);
            let function =
                controller.register_function(move |_, _, _, _| count.set(count.get() + 1)).expect("registered early");
            match first {
                "ainvoke" => controller.ainvoke(1 - me, function, &[], None).expect("ainvoke"),
                "barrier" => controller.barrier().expect("both"),
                "MatchingHandler" => drop(MatchingHandler::new(&controller).expect("both")),
                _ if me == 0 => controller.ainvoke(1, function, &[], None).expect("ainvoke"),
                _ => {
                    while ran.get() == 0 {
                        controller.poll().expect("fine");
                    }
                }
            }
            // Another function on each, which shows when one is called.
            let late = if me == 0 { controller.register_function(one) } else { controller.register_function(two) };
            let late = late.expect("at any time");
            assert_eq!(late, function + 1, "{first}");
            // The call may come while the called rank is still in there.
            let mut met = controller.barrier().map(|()| 0);
            if me == 0 {
                controller.ainvoke(1, late, &[], None).expect("the called one finds it out");
            }
            let start = Instant::now();
            let told = loop {
                match std::mem::replace(&mut met, Ok(0)).and_then(|_| controller.poll()) {
                    Ok(_) if me == 0 => break None,
                    Ok(_) => assert!(start.elapsed() < SOON, "{first}: the difference is not found"),
                    Err(error) => break Some(error),
                }
            };
            match told {
                None if me == 0 => {}
                Some(Error::RanksDiffer { rank: 0, reference: 1, ours, .. }) if me == 1 => {
                    assert!(ours.contains("two"), "{ours}");
                }
                other => panic!("{first}: {other:?}"),
            }
            controller.barrier().expect("the job goes on");
        });
    }
}

#[test]
fn a_call_of_a_function_that_is_never_registered() {
    let _guard = guard("a_call_of_a_function_that_is_never_registered");
    contexts(2, &Settings::default(), |controller| {
        let me = controller.mycontext().expect("valid");
        if me == 0 {
            let function = controller.register_function(one).expect("here only");
            controller.ainvoke(1, function, &[], None).expect("kept there");
        }
        controller.barrier().expect("it may be registered yet");
        let done = controller.finalize();
        match done {
            Ok(()) if me == 0 => {}
            Err(Error::UnknownHandler { from: 0, rank: 1, id: 0, known: 0 }) if me == 1 => {}
            other => panic!("{me}: {other:?}"),
        }
    });
}

#[test]
fn a_rank_that_is_done_while_others_wait() {
    let _guard = guard("a_rank_that_is_done_while_others_wait");
    for way in ["drop", "finalize", "panic"] {
        for wait in ["bell", "barrier", "call", "alloc", "wait until"] {
            if wait == "wait until" && way != "panic" {
                // Something outside the job may end it, so that one is gone is no reason to give up.
                continue;
            }
            let start = Instant::now();
            let what = format!("{way}, {wait}");
            let program = |controller: Controller| {
                let me = controller.mycontext().expect("valid");
                if me == 1 {
                    match way {
                        "drop" => drop(controller),
                        // The others do not come: how they fare is told to them, and to this one.
                        "finalize" => drop(controller.finalize()),
                        _ => panic!("on purpose"),
                    }
                    return None;
                }
                let world = controller.as_world().expect("valid");
                let outcome = match wait {
                    "bell" => controller.wait(&Bell::new(), 1),
                    "barrier" => controller.barrier(),
                    "call" => world.call(1, (), |_, ()| ()).and_then(|call| {
                        call.wait()?;
                        // In its last barrier it still answers.
                        controller.wait(&Bell::new(), 1)
                    }),
                    "alloc" => world.alloc::<u8>(1).and_then(|_| controller.barrier()),
                    _ => world.wait_until(|| false),
                };
                Some(outcome.expect_err("the other one is gone"))
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| contexts(3, &Settings::default(), program)));
            assert!(start.elapsed() < SOON, "{what}: took {:?}", start.elapsed());
            match outcome {
                Ok(errors) => {
                    assert!(errors[1].is_none() && way != "panic", "{what}");
                    for rank in [0, 2] {
                        let error = errors[rank].as_ref().expect("it waited");
                        let named = match error {
                            // That another one is in its last call of all, where it should allocate, or be in a barrier.
                            Error::RanksDiffer { what, theirs, .. } if ["alloc", "barrier"].contains(&wait) => {
                                *what == "the collective call" && theirs.contains("finish")
                            }
                            Error::PeerLost { cause, .. } => *cause == Loss::Left,
                            _ => false,
                        };
                        assert!(named, "{what}: rank {rank}: {error:?}");
                    }
                    let names_it = |error: &Option<Error>| {
                        matches!(error, Some(Error::PeerLost { rank: 1, .. } | Error::RanksDiffer { rank: 1, .. }))
                    };
                    assert!(errors.iter().any(names_it), "{what}: {errors:?}");
                }
                Err(panic) => {
                    assert_eq!((way, panic.downcast_ref::<&str>()), ("panic", Some(&"on purpose")), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_panic_in_a_handler_is_told_to_who_waits() {
    let _guard = guard("a_panic_in_a_handler_is_told_to_who_waits");
    let told = std::sync::Mutex::new(Vec::new());
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        threads(3, |world| {
            if world.rank() == 0 {
                let call = world.call(1, (), |_, ()| -> u8 { panic!("in a handler") }).expect("goes out");
                let outcome = call.wait().map(drop);
                told.lock().expect("fine").push(outcome);
            } else {
                let outcome = world.barrier();
                told.lock().expect("fine").push(outcome);
            }
        })
    }));
    assert!(outcome.is_err());
    let told = told.into_inner().expect("fine");
    let count = |is: fn(&Error) -> bool| told.iter().filter(|outcome| outcome.as_ref().is_err_and(is)).count();
    assert_eq!(count(|error| matches!(error, Error::HandlerPanicked { rank: 1, .. })), 1, "who called: {told:?}");
    // The caller may have left because of its error before the panic has come out of its rank.
    let lost = |error: &Error| {
        matches!(error, Error::PeerLost { rank: 1, .. } | Error::PeerLost { rank: 0, cause: Loss::Left, .. })
    };
    assert_eq!(count(lost), 1, "who waits: {told:?}");
}

#[test]
fn a_bad_message_does_not_break_a_collective() {
    let _guard = guard("a_bad_message_does_not_break_a_collective");
    contexts(3, &Settings::default(), |controller| {
        let me = controller.mycontext().expect("valid");
        let world = controller.as_world().expect("valid");
        controller.register_function(one).expect("registered early");
        // The first of them may come while this rank is still in here, where errors are told at the end.
        let mut told = usize::from(controller.barrier().is_err());
        for round in 0..100u64 {
            if me != 0 {
                controller.ainvoke(0, 7, &[], None).expect("ainvoke");
            }
            let mut sum = [1];
            world.allreduce_sum(&mut sum).expect("a bad message is no reason to leave the others alone");
            assert_eq!(sum, [3]);
            let array = world.alloc::<u64>(8).expect("nor here");
            array.put(0, me, round).expect("in range");
        }
        world.allgather(&[0u8]).expect("nor here");
        while let Err(error) = controller.poll() {
            assert!(matches!(error, Error::UnknownHandler { id: 7, known: 1, .. }), "{error:?}");
            told += 1;
        }
        assert!(if me == 0 { told > 10 } else { told == 0 }, "{told} errors at rank {me}");
    });
}

#[test]
fn a_limit_on_address_space_is_told_with_numbers() {
    // 2 GB; without a limit on its heap a rank reserves 64 GiB.
    let mut program = command("/bin/sh");
    program.args(["-c", "ulimit -v 2000000; exec \"$0\"", env!("CARGO_BIN_EXE_ring")]);
    let said = run(&mut program, Duration::from_secs(60)).expect_failure().stderr;
    let told = ["out of address space: 68719476736 bytes asked", " free of 2048000000;", "set BELLWETHER_HEAP_LIMIT"];
    assert!(told.iter().all(|words| said.contains(words)) && !said.contains(" 0 free of"), "{said}");
}

#[test]
fn more_memory_than_there_is() {
    let _guard = guard("more_memory_than_there_is");
    threads(3, |world| {
        let kept = world.alloc::<u64>(1000).expect("fits");
        kept.store(7, 7);
        // More than the machine has, more than the address space of a slot has, more than a word can count.
        for bytes in [1 << 35, 1 << 40, usize::MAX / 2, usize::MAX] {
            let error = world.alloc::<u8>(bytes).expect_err("too much");
            match &error {
                Error::OutOfMemory { asked, free, setting, .. } => {
                    assert!(*asked >= bytes && free < asked, "{error}");
                    assert_eq!(*setting, "BELLWETHER_HEAP_LIMIT");
                }
                // Where memory ran short at another rank first, its word counts.
                Error::Agreed { why, .. } => assert!(why.contains("no memory"), "{error}"),
                _ => panic!("{bytes} bytes: {error:?}"),
            }
            // And on.
            let next = world.alloc::<u64>(10_000).expect("fits");
            next.put((world.rank() + 1) % 3, 9_999, 5).expect("in range");
            world.barrier().expect("all");
            assert_eq!((next.load(9_999), kept.load(7)), (5, 7));
        }
        world.barrier().expect("all");
    })
    .expect("starts");
}

#[test]
fn memory_is_used_again() {
    let _guard = guard("memory_is_used_again");
    threads(2, |world: &World| {
        let furthest = RefCell::new(0);
        let turn = |bytes: usize, check: bool| {
            let array = world.alloc::<u8>(bytes).expect("fits");
            let end = array.offset() + bytes;
            furthest.replace_with(|before| end.max(*before));
            if check {
                assert_eq!((array.load(0), array.load(bytes - 1)), (0, 0), "zeroed when used again");
                world.barrier().expect("both");
                array.put(1 - world.rank(), 0, 0xFF).expect("in range");
                array.put(1 - world.rank(), bytes - 1, 0xFF).expect("in range");
                world.barrier().expect("both");
            }
        };
        turn(4 << 20, true);
        let first = *furthest.borrow();
        // Several MiB many times, and little very many times, so that bytes and book-keeping would both run out.
        (0..500).for_each(|round| turn((1 << 20) + (round % 4) * (1 << 20), round % 10 == 0));
        (0..20_000).for_each(|round| turn(1 + round % 4096, round % 100 == 0));
        let grown = *furthest.borrow() - first;
        assert!(grown <= 8 << 20, "the heap has grown by {grown} bytes");
    })
    .expect("starts");
}

#[test]
fn what_only_a_launcher_sets_is_warned_of() {
    for name in ["BELLWETHER_RANK", "BELLWETHER_SIZE"] {
        let mut alone = command(env!("CARGO_BIN_EXE_start"));
        let outcome = run(alone.env(name, "4"), Duration::from_secs(60)).expect_success();
        let words = format!("{name} is not a setting of Bellwether; did you mean BELLWETHER_RANKS?");
        assert!(outcome.stderr.contains(&words), "{}", outcome.stderr);
    }
    let mut job = command(env!("CARGO_BIN_EXE_start"));
    let outcome = run(job.env("BELLWETHER_RANKS", "2"), Duration::from_secs(60)).expect_success();
    assert_eq!(outcome.stderr, "");
}

/// Whoever ends first, the rank that the others missed is named.
#[test]
fn the_rank_that_left_the_others_is_named() {
    for (how, words) in [("fail", "failed first: exit 1"), ("return", "ended with exit 0 after")] {
        for turn in 0..20 {
            let rank = turn % 7;
            let mut job = command(env!("CARGO_BIN_EXE_start"));
            job.args([how, &rank.to_string()]).env("BELLWETHER_RANKS", "7");
            let outcome = run(&mut job, Duration::from_secs(60)).expect_failure();
            let first = outcome.stderr.lines().find(|line| line.contains("failed first") || line.contains("exit 0"));
            let named = first.is_some_and(|line| line.contains(&format!("rank {rank} (pid")) && line.contains(words));
            assert!(named, "{how}, rank {rank}: {first:?}\n{}", outcome.stderr);
        }
    }
}

/// As [`assert_job_names`], of `start` with these arguments on so many ranks.
#[track_caller]
fn assert_named(ranks: usize, arguments: &[&str], transport: &str, rank: usize, (words, status): (&str, i32)) {
    let mut job = command(env!("CARGO_BIN_EXE_start"));
    job.args(arguments).envs([("BELLWETHER_RANKS", &*ranks.to_string()), ("BELLWETHER_TRANSPORT", transport)]);
    assert_job_names(&mut job, rank, (words, status));
}

/// Runs a job of `start`; the line of the launcher must name `rank`, with these words.
#[track_caller]
fn assert_job_names(job: &mut Command, rank: usize, (words, status): (&str, i32)) {
    let outcome = run(job.env("RUST_BACKTRACE", "0"), Duration::from_secs(60)).expect_failure();
    let first = outcome.stderr.lines().find(|line| line.contains("failed first") || line.contains("exit 0"));
    let named = first.is_some_and(|line| line.contains(&format!("rank {rank} (pid")) && line.contains(words));
    assert!(named, "{job:?} must name rank {rank}, {words}: {first:?}\n{}", outcome.stderr);
    assert_eq!(outcome.status.code(), Some(status), "{job:?}");
}

const TRANSPORTS: [&str; 3] = ["auto", "shm-contract", "tcp"];

/// How a rank of `start` ends, and what the launcher says of it.
const ENDS: [(&str, (&str, i32)); 3] = [
    ("fail", ("failed first: exit 1", 1)),
    ("exit", ("failed first: exit 3", 3)),
    ("return", ("ended with exit 0 after", 1)),
];

/// The ranks that panic may end before the rank that is gone.
#[test]
fn the_launcher_names_the_rank_whose_end_makes_others_panic() {
    for (how, words) in ENDS {
        for turn in 0..9 {
            let (rank, transport) = (turn % 7, TRANSPORTS[turn % 3]);
            assert_named(7, &[how, &rank.to_string(), "unwrap"], transport, rank, words);
        }
    }
}

/// The hosts are this one under two names.
#[test]
fn the_launcher_names_the_rank_whose_end_makes_others_panic_on_two_hosts() {
    let folder = tempfile::tempdir().expect("a folder");
    let agent = folder.path().join("agent");
    std::fs::write(&agent, "#!/bin/sh\nexport BELLWETHER_HOST=$1; shift; exec \"$@\"\n").expect("there is room");
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let start = env!("CARGO_BIN_EXE_start");
    let launcher = Path::new(start).with_file_name("bellwether");
    for (how, words) in ENDS {
        for rank in 0..4 {
            let mut job = command(launcher.to_str().expect("plain text"));
            job.args(["run", "--grace", "60s", "--hosts", "a:2,b:2", "-n", "4", "--agent"]).arg(&agent);
            assert_job_names(job.args([start, how, &rank.to_string(), "unwrap"]), rank, words);
        }
    }
}

#[test]
fn a_rank_is_named_that_ends_what_another_one_needs_and_leaves() {
    for transport in TRANSPORTS {
        for words in
            [&["ask", "segment"][..], &["ask", "map"], &["ask", "segment", "unwrap"], &["ask", "map", "unwrap"]]
        {
            assert_named(2, words, transport, 1, ("ended with exit 0 after", 1));
        }
    }
}

#[test]
fn a_rank_is_not_named_that_ended_what_another_one_could_do_without() {
    for transport in TRANSPORTS {
        (0..3).for_each(|_| assert_named(4, &["go", "on"], transport, 3, ("failed first: exit 1", 1)));
    }
}

#[test]
fn a_call_whose_closure_panics_in_another_process_is_answered_with_what_it_said() {
    let settings: [&[(&str, &str)]; 3] =
        [&[], &[("BELLWETHER_TRANSPORT", "shm-contract")], &[("BELLWETHER_LANE_DEPTH", "1"), ("BELLWETHER_SPIN", "0")]];
    for settings in settings {
        // With time for rank 2 to tell it after the end of rank 1.
        let mut ring = launched(env!("CARGO_BIN_EXE_ring"), 3);
        ring.envs(settings.iter().copied()).args(["handler", "1"]);
        let outcome = run(&mut ring, Duration::from_secs(60)).expect_failure();
        // Of rank 2, which called. Rank 1 is the cause, though rank 2 may be gone first.
        assert!(outcome.stderr.contains("Error: rank 1: `ring::run::{{closure}}` panicked at "), "{outcome:#?}");
        assert!(outcome.stderr.contains("ring.rs:"), "{outcome:#?}");
        assert!(outcome.stderr.contains(": no 7 here; that rank ends unless"), "{outcome:#?}");
        assert!(outcome.stderr.contains("bellwether: rank 1 (pid "), "{outcome:#?}");
        assert!(outcome.stderr.contains("failed first: exit 101"), "{outcome:#?}");
    }
}

#[test]
fn a_function_of_cheetah_that_panics_is_told_to_its_caller() {
    let _guard = guard("a_function_of_cheetah_that_panics_is_told_to_its_caller");
    let (ready, caught) = (AtomicBool::new(false), AtomicBool::new(false));
    contexts(2, &Settings::default(), |controller| {
        let function = controller.register_function(|_, _, _, _| panic!("on purpose")).expect("registered");
        controller.barrier().expect("all live");
        if controller.mycontext().expect("valid") == 0 {
            // The target may be in its barrier still, which would run the function there.
            while !ready.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let invoked = controller.ainvoke(1, function, &[1], None);
            let error = invoked.err().unwrap_or_else(|| error_of_a_later_call(&controller));
            caught.store(true, Ordering::Release);
            let Error::HandlerPanicked { rank: 1, handler, why, .. } = &error else { panic!("{error}") };
            assert!(handler.starts_with("bad_input::a_function_of_cheetah"), "{error}");
            assert_eq!(why, "on purpose");
        } else {
            ready.store(true, Ordering::Release);
            let panic = catch_unwind(AssertUnwindSafe(|| while controller.poll().is_ok() {}));
            assert!(panic.is_err());
            let start = Instant::now();
            while !caught.load(Ordering::Acquire) {
                assert!(start.elapsed() < SOON, "the caller was not told while its target lived");
            }
        }
        controller.barrier().expect("all live");
    });
}
