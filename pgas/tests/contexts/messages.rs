//! Messages of contexts.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bellwether::sim::Config;
use bellwether::{Context, Error, Result, Settings, Simulated, Symmetric, ThreadContext, Threads, World};
use bellwether_runtime::Transport;
use bellwether_runtime::transport::Memory;
use bellwether_tests::watchdog;

use super::worlds::{LIMIT, expect_all, on_threads};
use super::{everywhere, on_networks, over, transports, travels};

/// Messages that came: of each rank and context, how many; of all, how many.
struct Came {
    next: RefCell<Vec<[u64; 2]>>,
    all: Cell<usize>,
    largest: usize,
    words: Rc<Symmetric<u64>>,
}

/// Lengths of payloads: around what fits in a line, and larger.
const LENGTHS: [usize; 7] = [0, 8, 1, 31, 48, 200, 3000];

/// Bytes of the payload of message `number`, where a message has at most `largest`.
fn length(number: u64, largest: usize) -> usize {
    LENGTHS[number as usize % LENGTHS.len()].min(largest / 2)
}

/// In a handler: message `number` of context `i` of its sender, which has put `number` plus one before.
fn take(at: &Context<'_>, i: usize, number: u64, payload: &[u8]) {
    let came = at.state::<Came>().expect("set before the barrier");
    let next = &mut came.next.borrow_mut()[at.from()][i];
    assert_eq!(*next, number, "of context {i} of rank {}", at.from());
    *next += 1;
    assert_eq!(payload.len(), length(number, came.largest));
    assert!(payload.iter().all(|byte| *byte == number as u8));
    assert!(came.words.load(2 * at.from() + i) > number, "the message came before what was put before it");
    came.all.set(came.all.get() + 1);
}

/// Two contexts of each rank send to each rank, and the world's thread delivers.
fn all_to_all(world: &World, messages: u64) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let words = Rc::new(world.alloc::<u64>(2 * size)?);
    let largest = world.largest_message();
    let next = RefCell::new(vec![[0; 2]; size]);
    world.set_state(Came { next, all: Cell::new(0), largest, words: Rc::clone(&words) });
    let came = world.state::<Came>().expect("just set");
    world.barrier()?;
    let array = words.for_threads();
    let work = |i: usize, context: &ThreadContext| -> Result<()> {
        for number in 0..messages {
            for to in 0..size {
                context.put(&array, to, 2 * rank + i, number + 1)?;
                let len = length(number, largest);
                if len == 8 {
                    let arguments = [i as u64, number, u64::from_ne_bytes([number as u8; 8])];
                    context.invoke_plain(to, arguments, |at, [i, number, payload]: [u64; 3]| {
                        take(at, i as usize, number, &payload.to_ne_bytes());
                    })?;
                } else {
                    let arguments = (i, number, vec![number as u8; len]);
                    context.invoke(to, arguments, |at, (i, number, payload)| take(at, i, number, &payload))?;
                }
            }
        }
        Ok(())
    };
    let all = 2 * size * messages as usize;
    let contexts = [world.context()?, world.context()?];
    if travels(world) {
        std::thread::scope(|scope| {
            let work = &work;
            let threads = contexts.into_iter().enumerate().map(|(i, context)| scope.spawn(move || work(i, &context)));
            let threads: Vec<_> = threads.collect();
            world.wait_until(|| came.all.get() == all)?;
            threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
        })?;
    } else {
        contexts.iter().enumerate().try_for_each(|(i, context)| work(i, context))?;
        world.wait_until(|| came.all.get() == all)?;
    }
    world.barrier()?;
    assert_eq!(came.all.get(), all);
    world.barrier()
}

#[test]
fn messages_of_two_threads_come_whole_and_in_order() {
    everywhere(|world| all_to_all(world, 80));
}

#[bellwether::test(ranks = [1, 2, 3], launch = "processes", deadline = "60s")]
fn messages_of_two_threads_of_each_process_come_whole_and_in_order(world: &World) -> Result<()> {
    all_to_all(world, 2000)
}

#[test]
fn lanes_of_two_lines_suffice() {
    let mut settings = Settings::default();
    settings.lane_depth = Some(2);
    on_threads(&settings, &[1, 2, 3], |world| all_to_all(world, 500));
}

/// More than there are lanes of contexts at one rank.
const MANY: usize = 80;

#[test]
fn more_contexts_than_lanes_send() {
    fn send(contexts: &[(usize, ThreadContext)], numbers: Range<u64>) -> Result<()> {
        for number in numbers {
            for (i, context) in contexts {
                context.invoke_plain(1, [*i as u64, number], |at, [i, number]: [u64; 2]| {
                    let next = at.state::<RefCell<Vec<u64>>>().expect("set before the barrier");
                    let next = &mut next.borrow_mut()[i as usize];
                    assert_eq!(*next, number, "of context {i}");
                    *next += 1;
                })?;
                context.invoke(1, vec![number; 30], |_, numbers| assert!(numbers.iter().all(|n| *n == numbers[0])))?;
            }
        }
        Ok(())
    }
    on_threads(&Settings::default(), &[2], |world| {
        world.set_state(RefCell::new(vec![0u64; MANY]));
        world.barrier()?;
        if world.rank() == 0 {
            let contexts = (0..MANY).map(|i| Ok((i, world.context()?))).collect::<Result<Vec<_>>>()?;
            // All lanes are claimed, before a thread ends and gives its lanes back. Each thread has contexts without a lane.
            send(&contexts, 0..1)?;
            let (even, odd) = contexts.into_iter().partition::<Vec<_>, _>(|(i, _)| i % 2 == 0);
            std::thread::scope(|scope| {
                let threads = [scope.spawn(move || send(&even, 1..20)), scope.spawn(move || send(&odd, 1..20))];
                threads.into_iter().try_for_each(|thread| thread.join().expect("does not panic"))
            })?;
        } else {
            let next = world.state::<RefCell<Vec<u64>>>().expect("set above");
            world.wait_until(|| next.borrow().iter().all(|next| *next == 20))?;
        }
        world.barrier()
    });
}

/// Rank 1 runs no handler until it is told to; then all that was sent comes.
#[test]
fn a_full_target_is_backpressure_and_room_comes_back() {
    const MOST: usize = 100_000;
    for transport in [Transport::Auto, Transport::ShmContract] {
        let _guard = watchdog::guard("a full target", LIMIT);
        let (sent, told, away) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let job = Threads::new(2).settings(over(transport)).deadline(LIMIT);
        let outcomes = job.build(|mut builder| -> Result<()> {
            let came = Rc::new(Cell::new(0));
            let count = Rc::clone(&came);
            let handler = builder.handler("counts", move |_, _| count.set(count.get() + 1));
            let world = builder.start()?;
            world.barrier()?;
            if world.rank() == 0 {
                let context = world.context()?;
                // In the barrier it would run handlers.
                while !away.load(Ordering::Acquire) {
                    world.poll()?;
                    std::thread::yield_now();
                }
                let fill = |payload: &[u8]| -> Result<()> {
                    // A network needs some attempts to learn that there is room.
                    let mut refused = 0;
                    while refused < 1000 && sent.load(Ordering::Relaxed) < MOST {
                        match context.try_send(1, handler, payload) {
                            Ok(()) => (sent.fetch_add(1, Ordering::Relaxed), refused = 0).1,
                            Err(Error::WouldBlock { rank: 1, .. }) => refused += 1,
                            Err(error) => return Err(error),
                        }
                    }
                    Ok(())
                };
                fill(b"short")?;
                let full = sent.load(Ordering::Relaxed);
                told.store(1, Ordering::Release);
                assert!((1..=256).contains(&full), "{full} messages found room");
                for _ in 0..1000 {
                    context.send(1, handler, b"short")?;
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                told.store(2, Ordering::Release);
            } else {
                away.store(true, Ordering::Release);
                while told.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                let done = || told.load(Ordering::Acquire) == 2 && came.get() == sent.load(Ordering::Relaxed);
                while !done() {
                    world.poll()?;
                    std::thread::yield_now();
                }
            }
            world.finish()
        });
        expect_all(outcomes.expect("the job starts"), &format!("{transport:?}"));
    }
}

/// Handlers answer, the worlds send too, and no lane holds more than two messages.
#[test]
fn ranks_that_flood_each_other_go_on() {
    // An emulated device is slow.
    let each = if transports() == [Transport::Verbs] { 300 } else { 3000 };
    let mut settings = Settings::default();
    settings.lane_depth = Some(2);
    for transport in transports() {
        settings.transport = *transport;
        on_threads(&settings, &[2, 3], |world| {
            let size = world.size();
            world.set_state(Cell::new([0u64; 2]));
            let counts = world.state::<Cell<[u64; 2]>>().expect("just set");
            fn ask(at: &Context<'_>, (): ()) {
                let counts = at.state::<Cell<[u64; 2]>>().expect("set before the barrier");
                counts.set([counts.get()[0] + 1, counts.get()[1]]);
                let sent = at.invoke(at.from(), (), |at, ()| {
                    let counts = at.state::<Cell<[u64; 2]>>().expect("set before the barrier");
                    counts.set([counts.get()[0], counts.get()[1] + 1]);
                });
                sent.expect("is sent or kept");
            }
            world.barrier()?;
            let context = world.context()?;
            std::thread::scope(|scope| {
                let thread = scope.spawn(move || {
                    (0..each).try_for_each(|i| context.invoke((context.rank() + 1 + i % 2) % size, (), ask))
                });
                (0..each).try_for_each(|i| world.invoke((world.rank() + 1 + i % 2) % size, (), ask))?;
                world.wait_until(|| counts.get()[1] == 2 * each as u64)?;
                thread.join().expect("does not panic")
            })?;
            world.barrier()
        });
    }
}

#[test]
fn a_target_that_leaves_ends_a_send() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let _guard = watchdog::guard("a target that leaves", LIMIT);
        let job = Threads::new(2).settings(over(transport)).deadline(LIMIT);
        let outcomes = job.run(|world| {
            world.barrier()?;
            if world.rank() == 1 {
                // Meanwhile its lane is full, and the context waits.
                std::thread::sleep(Duration::from_millis(50));
                return Err(Error::InvalidArgument { operation: "a test", why: "ends the rank".into() });
            }
            let context = world.context()?;
            std::thread::scope(|scope| {
                let lost = scope.spawn(move || (0..).find_map(|n: u64| context.invoke_plain(1, n, |_, _| ()).err()));
                let lost = lost.join().expect("does not panic");
                assert!(matches!(lost, Some(Error::PeerLost { rank: 1, .. })), "{lost:?}");
            });
            Ok(())
        });
        let outcomes = outcomes.expect("the job starts");
        assert!(outcomes[0].is_ok(), "{transport:?}: {outcomes:?}");
    }
}

#[test]
fn a_target_that_dies_ends_a_send() {
    for memory in [Memory::Emulated, Memory::Posted] {
        let _guard = watchdog::guard("a death", LIMIT);
        let job = Simulated::new(Config { memory, ..Config::new(3, 4) });
        let outcomes = job.run(|world: &World| -> Result<()> {
            world.barrier()?;
            if world.rank() != 0 {
                let gone = world.wait_until(|| false);
                assert!(matches!(gone, Err(Error::PeerLost { .. })), "{gone:?}");
                return Ok(());
            }
            let context = world.context()?;
            context.invoke_plain(1, 0u64, |_, _| ())?;
            job.network().kill(1);
            let lost = (0..).find_map(|n: u64| {
                world.sleep(Duration::from_nanos(100));
                context.invoke_plain(1, n, |_, _| ()).err()
            });
            assert!(matches!(lost, Some(Error::PeerLost { rank: 1, .. })), "{lost:?}");
            Ok(())
        });
        let outcomes = outcomes.expect("the job starts");
        assert!(outcomes[0].is_ok(), "{outcomes:?}");
    }
}

/// What a context sent before its thread panicked comes, and another context goes on in its lane.
#[test]
fn a_thread_that_panics_leaves_its_lane_to_others() {
    everywhere(|world| {
        if !travels(world) {
            return Ok(());
        }
        world.set_state(Cell::new(0u64));
        let came = world.state::<Cell<u64>>().expect("just set");
        world.barrier()?;
        let next = (world.rank() + 1) % world.size();
        let count = |at: &Context<'_>, _: [u64; 2]| {
            let came = at.state::<Cell<u64>>().expect("set before the barrier");
            came.set(came.get() + 1);
        };
        for round in 0..5 {
            let context = world.context()?;
            std::thread::scope(|scope| {
                let thread = scope.spawn(move || {
                    (0..20).try_for_each(|n| context.invoke_plain(next, [round, n], count)).expect("sends");
                    std::panic::resume_unwind(Box::new("a thread"));
                });
                assert!(thread.join().is_err());
            });
            world.wait_until(|| came.get() >= 20 * (round + 1))?;
        }
        world.barrier()
    });
}

/// All ranks leave when all messages were delivered, those of contexts too.
#[test]
fn the_end_of_a_world_waits_for_messages_of_contexts() {
    const EACH: usize = 50;
    let run = |mut builder: bellwether::Builder| -> Result<()> {
        let came = Rc::new(Cell::new(0));
        let count = Rc::clone(&came);
        let handler = builder.handler("counts", move |_, _| count.set(count.get() + 1));
        let world = builder.start()?;
        let size = world.size();
        {
            // Of one that is gone, and of one that is not.
            let contexts = [world.context()?, world.context()?];
            for context in &contexts {
                (0..EACH).try_for_each(|i| context.send((world.rank() + i) % size, handler, &[7; 60]))?;
            }
            let [first, second] = contexts;
            drop(first);
            world.finish()?;
            drop(second);
        }
        let expected = 2 * EACH;
        assert_eq!(came.get(), expected);
        Ok(())
    };
    for transport in [Transport::Auto, Transport::ShmContract] {
        let outcomes = Threads::new(5).settings(over(transport)).deadline(LIMIT).build(run).expect("starts");
        expect_all(outcomes, &format!("{transport:?}"));
    }
    for seed in 0..3 {
        let _guard = watchdog::guard("the end of a world", LIMIT);
        let outcomes = Simulated::new(Config::new(5, seed).wild()).build(run).expect("starts");
        expect_all(outcomes, "simulated");
    }
}

#[test]
fn wrong_messages_are_errors() {
    everywhere(|world| {
        let context = world.context()?;
        let size = world.size();
        let error = context.invoke(size, (), |_, ()| ());
        assert!(matches!(error, Err(Error::RankOutOfRange { .. })), "{error:?}");
        let large = vec![0u8; 1 << 30];
        let error = context.send(0, bellwether::HandlerId::from_number(0), &large);
        assert!(matches!(error, Err(Error::OutOfMemory { .. })), "{error:?}");
        world.barrier()
    });
}

/// A handler on the thread of the world sends with a context, also with the one that the thread waits with.
#[test]
fn a_handler_sends_with_a_context() {
    let run = |mut builder: bellwether::Builder| -> Result<()> {
        let context = Rc::new(std::cell::OnceCell::<ThreadContext>::new());
        let (lent, refused, came) = (Rc::clone(&context), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (count, refuse) = (Rc::clone(&came), Rc::clone(&refused));
        let answer = builder.handler("answer", move |_, _| count.set(count.get() + 1));
        let ask = builder.handler("ask", move |at, _| {
            match lent.get().expect("set before the barrier").send(at.from(), answer, &[]) {
                Ok(()) => {}
                Err(Error::InsideHandler { .. }) => {
                    refuse.set(refuse.get() + 1);
                    at.send(at.from(), answer, &[]).expect("is kept");
                }
                Err(error) => panic!("{error}"),
            }
        });
        let world = builder.start()?;
        assert!(context.set(world.context()?).is_ok());
        world.barrier()?;
        let other = 1 - world.rank();
        for _ in 0..500 {
            context.get().expect("set").send(other, ask, &[])?;
        }
        world.wait_until(|| came.get() == 500)?;
        world.barrier()?;
        world.finish()
    };
    let mut settings = Settings::default();
    settings.lane_depth = Some(2);
    for transport in [Transport::Auto, Transport::ShmContract] {
        settings.transport = transport;
        let job = Threads::new(2).settings(settings.clone()).deadline(LIMIT);
        expect_all(job.build(run).expect("starts"), &format!("{transport:?}"));
    }
    let _guard = watchdog::guard("a handler that sends", LIMIT);
    expect_all(Simulated::new(Config::new(2, 9)).build(run).expect("starts"), "simulated");
}

#[test]
fn a_message_of_a_context_ends_a_sleep() {
    on_networks(&[2, 3], |world| {
        world.set_state(Cell::new(0u64));
        let came = world.state::<Cell<u64>>().expect("just set");
        let (context, next) = (world.context()?, (world.rank() + 1) % world.size());
        world.barrier()?;
        for round in 1..=6 {
            if world.rank() != 0 {
                world.wait_until(|| came.get() == round)?;
            }
            context.invoke_plain(next, round, |at, round: u64| at.state::<Cell<u64>>().expect("set").set(round))?;
            if world.rank() == 0 {
                world.wait_until(|| came.get() == round)?;
            }
        }
        world.barrier()
    });
    on_threads(&Settings::default(), &[2], |world| {
        world.set_state(Cell::new(0u64));
        let came = world.state::<Cell<u64>>().expect("just set");
        world.barrier()?;
        let context = world.context()?;
        std::thread::scope(|scope| {
            let next = (world.rank() + 1) % world.size();
            let thread = scope.spawn(move || {
                // Long enough that the target sleeps.
                std::thread::sleep(Duration::from_millis(100));
                context.invoke_plain(next, 1u64, |at, one: u64| at.state::<Cell<u64>>().expect("set").set(one))
            });
            world.wait_until(|| came.get() == 1)?;
            thread.join().expect("does not panic")
        })?;
        world.barrier()
    });
}
