//! A rank that computes serves the others where it is asked to, and only there.

use std::cell::{Cell, OnceCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::Config;
use bellwether_runtime::{
    Arm, AtomicOp, Error, HandlerId, ProgressThread, Result, Settings, Simulated, Threads, Transport, World,
};
use bellwether_tests::process::{command, run};
use bellwether_tests::serving::{self, is_set, runs_elsewhere};
use bellwether_tests::watchdog;

const LIMIT: Duration = Duration::from_secs(120);

fn settings(transport: Transport, progress_thread: ProgressThread) -> Settings {
    let mut settings = Settings::default();
    (settings.transport, settings.progress_thread) = (transport, progress_thread);
    settings
}

fn expect_all(what: &str, outcomes: Vec<Result<()>>) {
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        outcome.unwrap_or_else(|error| panic!("{what}, rank {rank}: {error}"));
    }
}

#[test]
fn threads_are_served_by_a_rank_that_computes() {
    for ranks in [2, 3, 5] {
        for transport in [Transport::Auto, Transport::ShmContract, Transport::Tcp] {
            let what = format!("{ranks} threads, {transport:?}");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let job = Threads::new(ranks).settings(settings(transport, ProgressThread::On)).deadline(LIMIT);
            expect_all(&what, job.run(serving::all).expect("starts"));
        }
    }
}

#[test]
fn simulated_ranks_are_served_by_one_that_computes() {
    for seed in 0..3 {
        for memory in [Memory::Emulated, Memory::Posted] {
            let what = format!("seed {seed}, {memory:?}");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let config = Config { memory, served_asleep: false, ..Config::new(3, seed).wild() };
            // `Auto` starts the thread where accesses are emulated. Posted ones need no progress, so the test asks for it.
            let way = if memory == Memory::Emulated { ProgressThread::Auto } else { ProgressThread::On };
            let job = Simulated::new(config).settings(settings(Transport::Auto, way));
            expect_all(&what, job.run(serving::all).expect("starts"));
        }
    }
}

#[test]
fn processes_are_served_by_one_that_computes() {
    for (ranks, transport) in [(2, "auto"), (3, "auto"), (3, "shm-contract")] {
        let mut program = command(env!("CARGO_BIN_EXE_waiting"));
        program.env("BELLWETHER_RANKS", ranks.to_string()).env("BELLWETHER_TRANSPORT", transport);
        program.env("BELLWETHER_PROGRESS_THREAD", "on").arg("serve");
        assert_eq!(run(&mut program, LIMIT).expect_success().stdout, "served\n");
    }
}

#[test]
fn a_rank_serves_though_it_cannot_sleep() {
    let mut program = command(env!("CARGO_BIN_EXE_waiting"));
    program.env("BELLWETHER_RANKS", "2").env("BELLWETHER_PROGRESS_THREAD", "on").arg("serve-without-poll");
    assert_eq!(run(&mut program, LIMIT).expect_success().stdout, "served\n");
}

/// Rank 0 changes a word of `segment` of rank 1 while rank 1 computes; `elsewhere` if rank 1 serves meanwhile.
fn change_meanwhile(world: &World, segment: Option<u32>, elsewhere: bool, done: &AtomicBool) -> Result<()> {
    let number = world.allgather(&[segment.unwrap_or(0)])?[1];
    if world.rank() == 1 {
        assert_eq!(runs_elsewhere(world)?, elsewhere, "serves");
        world.barrier()?;
        assert!(world.serve_while(|| is_set(done))?, "the atomic waits for the computing");
    } else {
        world.barrier()?;
        assert_eq!(world.fetch_segment::<u64>(AtomicOp::Add, 1, number, 0, 1)?, 0);
        // Release pairs with the Acquire load of `is_set`.
        done.store(true, Ordering::Release);
    }
    world.barrier()
}

/// [`runs_elsewhere`] while memory outside the slot is a segment, whose atomics are the owner's.
fn with_outside_segment(world: &World) -> Result<bool> {
    let memory = Box::new(AtomicU64::new(0));
    // SAFETY: the word lives until the segment is closed, and is only touched as an atomic.
    let segment = unsafe { world.segment_at(None, memory.as_ptr().cast(), 8) }?;
    let elsewhere = runs_elsewhere(world);
    segment.close()?;
    elsewhere
}

#[test]
fn atomics_on_segments_of_one_node_take_effect_while_their_owner_computes() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let what = format!("{transport:?}");
        let _guard = watchdog::guard(what.clone(), LIMIT);
        let done = [const { AtomicBool::new(false) }; 2];
        let job = Threads::new(2).settings(settings(transport, ProgressThread::Auto)).deadline(LIMIT);
        let outcomes = job.run(|world| {
            let is_owner = world.rank() == 1;
            let mapped = is_owner.then(|| world.segment(8)).transpose()?;
            change_meanwhile(world, mapped.as_ref().map(|own| own.number()), false, &done[0])?;

            let memory = Box::new(AtomicU64::new(0));
            // SAFETY: the word lives until the segment is closed below, and is only touched as an atomic.
            let at = || unsafe { world.segment_at(None, memory.as_ptr().cast(), 8) };
            let outside = is_owner.then(at).transpose()?;
            change_meanwhile(world, outside.as_ref().map(|own| own.number()), true, &done[1])?;

            if let (Some(mapped), Some(outside)) = (mapped, outside) {
                mapped.close()?;
                outside.close()?;
                assert_eq!(memory.load(Ordering::Relaxed), 1);
                assert!(!runs_elsewhere(world)?, "the segments are closed");
            }
            world.barrier()
        });
        expect_all(&what, outcomes.expect("starts"));
    }
}

#[test]
fn there_is_a_thread_only_where_it_is_needed_or_asked_for() {
    let expect = |settings: Settings, program: &(dyn Fn(&World) -> Result<()> + Sync)| {
        expect_all("threads", Threads::new(2).settings(settings).deadline(LIMIT).run(program).expect("starts"));
    };
    expect(settings(Transport::Auto, ProgressThread::Auto), &|world| {
        assert!(!runs_elsewhere(world)?, "mapped memory needs no progress");
        let segment = world.segment(8)?;
        assert!(!runs_elsewhere(world)?, "peers of the node have mapped the segment");
        segment.close()?;
        world.barrier()
    });
    expect(settings(Transport::Auto, ProgressThread::Off), &|world| {
        assert!(!with_outside_segment(world)?, "it is off");
        world.barrier()
    });
    expect(settings(Transport::Auto, ProgressThread::On), &|world| {
        assert!(runs_elsewhere(world)?, "it was asked for");
        world.barrier()
    });
    let alone = Threads::new(1).settings(settings(Transport::Auto, ProgressThread::Auto)).deadline(LIMIT);
    let outcomes = alone.run(|world| {
        assert!(!with_outside_segment(world)?, "there is nobody to serve");
        Ok(())
    });
    expect_all("alone", outcomes.expect("starts"));
    // The device of a simulated node serves accesses that are emulated, if the rank does not.
    for (memory, served_asleep, expected) in [
        (Memory::Emulated, false, true),
        (Memory::Emulated, true, false),
        (Memory::Posted, false, false),
        (Memory::Direct, false, false),
    ] {
        let _guard = watchdog::guard(format!("{memory:?}"), LIMIT);
        let config = Config { memory, served_asleep, ..Config::new(2, 1) };
        let outcomes = Simulated::new(config).run(|world| {
            assert_eq!(runs_elsewhere(world)?, expected, "{memory:?}, {served_asleep}");
            world.barrier()
        });
        expect_all("simulated", outcomes.expect("starts"));
    }
}

#[test]
fn a_rank_that_serves_sleeps_while_nothing_comes() {
    const IDLE: Duration = Duration::from_millis(500);
    let cpu_time = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let job = Threads::new(2).settings(settings(Transport::Auto, ProgressThread::On)).deadline(LIMIT);
    let outcomes = job.run(|world| {
        world.barrier()?;
        if world.rank() == 1 {
            let before = cpu_time();
            world.serve_while(|| std::thread::sleep(IDLE))?;
            let used = cpu_time() - before;
            // Of this thread alone, however busy the machine is.
            assert!(used < IDLE / 20, "{used:?} of {IDLE:?}");
        }
        world.barrier()
    });
    expect_all("idle", outcomes.expect("starts"));
}

#[test]
fn a_panic_of_the_work_or_of_a_handler_reaches_the_caller() {
    let on = || settings(Transport::Auto, ProgressThread::On);
    let outcomes = Threads::new(1).settings(on()).deadline(LIMIT).run(|world| {
        let caught = catch_unwind(AssertUnwindSafe(|| world.serve_while(|| panic!("of the work"))));
        assert_eq!(caught.expect_err("panics").downcast_ref(), Some(&"of the work"));
        // The world is as it was.
        assert_eq!(world.serve_while(|| 7)?, 7);
        world.barrier()
    });
    expect_all("work", outcomes.expect("starts"));

    let began = AtomicBool::new(false);
    let outcomes = Threads::new(2).settings(on()).deadline(LIMIT).run(|world| {
        let told = Arc::new(AtomicBool::new(false));
        world.set_state(Arc::clone(&told));
        world.barrier()?;
        if world.rank() == 0 {
            // Else the handler might run in the barrier, and its panic come out of that.
            assert!(is_set(&began));
            world.invoke(1, (), |_, ()| panic!("of a handler"))?;
            // The work ends by a handler that runs after the panic.
            world.invoke(1, (), |context, ()| {
                let told = context.state::<Arc<AtomicBool>>().expect("set before the barrier");
                told.store(true, Ordering::Release);
            })?;
        } else {
            let ended = AtomicBool::new(false);
            let work = || {
                began.store(true, Ordering::Release);
                ended.store(is_set(&told), Ordering::Relaxed);
            };
            let caught = catch_unwind(AssertUnwindSafe(|| world.serve_while(work)));
            assert_eq!(caught.expect_err("panics").downcast_ref(), Some(&"of a handler"));
            assert!(ended.load(Ordering::Relaxed), "the rank serves until the work ends");
        }
        // Rank 0 hears of the panic, here or in a later call, and may leave.
        let _ = world.barrier();
        Ok(())
    });
    expect_all("handler", outcomes.expect("starts"));
}

#[test]
fn what_a_rank_has_to_hear_is_kept_while_it_serves() {
    let job = Threads::new(2).settings(settings(Transport::Auto, ProgressThread::On)).deadline(LIMIT);
    let over = AtomicBool::new(false);
    let outcomes = job.run(|world| {
        if world.rank() == 0 {
            // No rank has such a handler: the target hears of that.
            world.send(1, HandlerId::from_number(7), &[])?;
            world.call(1, (), |_, ()| ())?.wait()?;
            // Pairs with the Acquire load of rank 1.
            over.store(true, Ordering::Release);
            return world.barrier();
        }
        let wake_up = world.wake_up()?;
        wake_up.signal()?;
        world.serve_while(|| {
            while !over.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        })?;
        assert!(wake_up.poll(Some(Duration::ZERO))?, "a signal to the program's own loop is not lost");
        assert_eq!(wake_up.arm()?, Arm::Busy);
        let told = world.poll().expect_err("a message had no handler");
        assert!(matches!(told, Error::UnknownHandler { from: 0, id: 7, .. }), "{told}");
        world.barrier()
    });
    expect_all("kept", outcomes.expect("starts"));
}

#[test]
fn handlers_may_not_compute_elsewhere() {
    let job = Threads::new(1).settings(settings(Transport::Auto, ProgressThread::On)).deadline(LIMIT);
    let outcomes = job.build(|mut builder| {
        let refused = Rc::new(Cell::new(false));
        let (told, own) = (Rc::clone(&refused), Rc::new(OnceCell::<World>::new()));
        let inner = Rc::clone(&own);
        let handler = builder.handler("computes", move |_, _| {
            let world = inner.get().expect("set before the message");
            told.set(matches!(world.serve_while(|| ()), Err(Error::InsideHandler { .. })));
        });
        let world = builder.start()?;
        let world = own.get_or_init(|| world);
        world.send(0, handler, b"")?;
        world.poll()?;
        assert!(refused.get());
        Ok(())
    });
    expect_all("handlers", outcomes.expect("starts"));
}
