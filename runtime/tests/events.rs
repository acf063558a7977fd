//! The three events of operations: on mapped memory, over the transport contract, on simulated networks and between processes.

#[path = "events/abandoned.rs"]
mod abandoned;
#[path = "events/addresses.rs"]
mod addresses;
#[path = "events/contexts.rs"]
mod contexts;
#[path = "events/large.rs"]
mod large;
#[path = "events/lent.rs"]
mod lent;
#[path = "events/many.rs"]
mod many;
#[path = "events/panics.rs"]
mod panics;
#[path = "events/places.rs"]
mod places;
#[path = "events/rdma.rs"]
mod rdma;
#[path = "events/reserved.rs"]
mod reserved;
#[path = "events/segments.rs"]
mod segments;
#[path = "events/transfers.rs"]
mod transfers;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::transport::{AtomicOp, Memory};
use bellwether_runtime::{Completion, Counter, Error, Event, Result, Settings, Simulated, Threads, Transport, World};

const DEADLINE: Duration = Duration::from_secs(120);

/// Lets a rank go on when it is dropped, also by a panic.
struct LetsGo<'a>(&'a AtomicBool);

impl Drop for LetsGo<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn threads(ranks: usize, transport: Transport) -> Threads {
    let mut settings = Settings::default();
    settings.transport = transport;
    Threads::new(ranks).settings(settings).deadline(DEADLINE)
}

/// Runs `program` on threads with mapped memory, without, and over TCP, and on simulated networks: late, reordering, with few credits, with
/// targets that serve nothing while they compute, with several ranks on a node. What ranks of one run share is made for each run.
fn everywhere<S>(name: &str, shared: impl Fn() -> S + Sync, program: impl Fn(&World, &S) -> Result<()> + Sync)
where
    S: Send + Sync + 'static,
{
    let all_well = |place: &str, results: Vec<Result<()>>| {
        for (rank, result) in results.into_iter().enumerate() {
            result.unwrap_or_else(|error| panic!("{place}, rank {rank}: {error}"));
        }
    };
    let on_threads = [(1, Transport::Auto), (3, Transport::Auto), (3, Transport::ShmContract), (2, Transport::Tcp)];
    for (ranks, transport) in on_threads {
        let shared = shared();
        all_well("threads", threads(ranks, transport).run(|world| program(world, &shared)).expect("ranks start"));
    }
    check(name, if std::env::var_os("ROWS_FULL").is_some() { 2 } else { 1 }, |seed| {
        let wild = Config::new(3, seed).wild();
        let mut narrow = wild.clone();
        (narrow.flow.slots, narrow.flow.credits, narrow.flow.fragment) = (1, 1, 8);
        let networks = [
            ("narrow", narrow),
            ("unserved", Config { served_asleep: false, ..wild.clone() }),
            ("native", Config { memory: Memory::Direct, ..wild.clone() }),
            ("posted", Config { memory: Memory::Posted, ..wild.clone() }),
            ("shared nodes", wild.shared_nodes(&[2])),
        ];
        for (network, config) in networks {
            let shared = shared();
            all_well(network, Simulated::new(config).run(|world| program(world, &shared)).expect("the job runs"));
        }
    });
}

/// Ranks that are through with a step, outside of anything that the job orders.
#[derive(Default)]
struct Through([AtomicU64; 8]);

impl Through {
    fn pass(&self, step: usize) {
        self.0[step].fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until so many ranks are through, by polls alone.
    fn await_all(&self, world: &World, step: usize, ranks: usize) -> Result<()> {
        while self.0[step].load(Ordering::SeqCst) < ranks as u64 {
            world.poll()?;
            std::thread::yield_now();
        }
        Ok(())
    }
}

const LEN: usize = 3000;

/// Puts, gets and atomics, and each way to hear of their events.
fn one_sided(world: &World, through: &Through) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let (numbers, bell) = (world.alloc::<u64>(LEN)?, world.bell()?);
    let mine: Vec<u64> = (0..LEN as u64).map(|i| 1000 * (me as u64 + 1) + i).collect();
    let theirs: Vec<u64> = (0..LEN as u64).map(|i| 1000 * (before as u64 + 1) + i).collect();
    let (source, effect, called, done) = (Counter::new(), Counter::new(), Counter::new(), Completion::new());
    for (i, part) in mine.chunks(LEN / 10).enumerate() {
        let mut part = part.to_vec();
        let put = world.operation().source(&source).effect(&effect).handled(&bell).effect(&done);
        let count = called.clone();
        let hear = Event::call(move |outcome| outcome.map_or((), |()| count.add(1)));
        put.effect(hear).put(&numbers, next, i * (LEN / 10), &part)?;
        part.fill(0);
        assert_eq!(source.value(), i as u64 + 1, "copied, so the source may be changed at once");
    }
    world.wait_counter(&effect, 10)?;
    // Nothing but the events says that it is in effect.
    through.pass(0);
    through.await_all(world, 0, size)?;
    let mut came = vec![0; LEN];
    numbers.read(0, &mut came);
    assert!(came == theirs, "rank {me}: {} of {LEN} elements are there", came.iter().filter(|x| **x != 0).count());
    assert!(bell.wait(10)? == 10);
    world.wait_completion(&done)?;
    assert!(done.outcome().is_some_and(|outcome| outcome.is_ok()));
    world.wait_counter(&called, 10)?;
    assert_eq!([source.value(), effect.value(), called.value(), bell.count()?], [10; 4]);
    world.barrier()?;

    // Out of this rank's own part, and into it.
    let (copy, back) = (world.alloc::<u64>(LEN)?, world.alloc::<u64>(LEN)?);
    let (source, effect, got) = (Counter::new(), Counter::new(), Completion::new());
    world.operation().source(&source).effect(&effect).put_from(&copy, next, 5, &numbers, 5..LEN)?;
    world.wait_counter(&source, 1)?;
    numbers.store(LEN - 1, 0);
    world.wait_counter(&effect, 1)?;
    through.pass(1);
    through.await_all(world, 1, size)?;
    world.operation().effect(&got).get_into(&copy, me, 5, &back, 5..LEN)?;
    world.operation().effect(&got).get_into(&copy, next, 0, &back, 0..5)?;
    world.block_on(got)?;
    let (mut came, theirs) = (vec![0; LEN], (before + size - 1) % size);
    back.read(0, &mut came);
    let expected = |i: usize| if i < 5 { 0 } else { 1000 * (theirs as u64 + 1) + i as u64 };
    assert!(came.iter().enumerate().all(|(i, x)| *x == expected(i)));
    let got = Completion::new();
    world.operation().effect(&got).get_into(&copy, next, 5, &back, 0..LEN - 5)?;
    world.wait_completion(&got)?;
    assert_eq!(
        back.load(LEN - 6),
        1000 * (before as u64 + 1) + LEN as u64 - 1,
        "what was put there from here, before it was changed"
    );
    world.barrier()?;

    // Atomics: the former values of all ranks' adds are all different.
    let words = world.alloc::<u64>(size + 1)?;
    let found = Counter::new();
    let add = world.operation().effect(&found).fetch(AtomicOp::Add, &words, 0, size, 1)?;
    let swap = world.operation().handled(&found).compare_swap(&words, next, me, 0, 7)?;
    world.wait_counter(&found, 2)?;
    assert_eq!(swap.value(), Some(0));
    let was = add.value().expect("in effect");
    let all = world.allgather(&[was])?;
    assert!((0..size as u64).all(|i| all.contains(&i)), "{all:?}");
    world.barrier()?;
    assert_eq!(words.load(before), 7);
    assert!(matches!(
        world.operation().fetch(AtomicOp::CompareSwap, &words, 0, 0, 1),
        Err(Error::InvalidArgument { .. })
    ));
    assert!(matches!(world.operation().effect(&found).put(&words, size, 0, &[1]), Err(Error::RankOutOfRange { .. })));
    assert_eq!(found.value(), 2, "no event of what was not done");
    world.barrier()
}

#[test]
fn puts_gets_and_atomics_tell_of_their_events() {
    everywhere("events of puts", Through::default, one_sided);
}

/// A buffer long enough to be registered, and what holds it: it is the same one when it comes back, and may be changed then.
fn owned(world: &World) -> Result<()> {
    const LEN: usize = 40_000;
    let (me, size) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let numbers = world.alloc::<u64>(2 * LEN)?;
    let values = |rank: usize, round: u64| move |i: usize| (1000 * rank + i) as u64 + (round << 32);
    let mut buffer = vec![0; LEN];
    for round in 1..=3 {
        (0..LEN).map(values(me, round)).zip(&mut buffer).for_each(|(value, to)| *to = value);
        let place = buffer.as_ptr();
        let (source, effect, shared) = (Counter::new(), Counter::new(), Arc::<[u64]>::from(&buffer[..1000]));
        let put = world.operation().source(&source).effect(&effect);
        let lent = put.put_owned(&numbers, next, LEN * (round as usize % 2), buffer)?;
        let short = world.operation().put_owned(&numbers, next, LEN * ((round as usize + 1) % 2), shared)?;
        assert_eq!(short.take().expect("was copied").len(), 1000);
        world.wait_counter(&source, 1)?;
        buffer = lent.take().expect("the source event has happened");
        assert_eq!((buffer.as_ptr(), buffer.len()), (place, LEN));
        buffer.fill(7);
        world.wait_counter(&effect, 1)?;
        world.barrier()?;
        let mut came = vec![0; LEN];
        numbers.read(LEN * (round as usize % 2), &mut came);
        assert!((0..LEN).map(values(before, round)).eq(came.iter().copied()), "rank {me}, round {round}");
        numbers.read(LEN * ((round as usize + 1) % 2), &mut came[..1000]);
        assert!((0..1000).map(values(before, round)).eq(came[..1000].iter().copied()));
        world.barrier()?;
        let lent = world.operation().put_owned(&numbers, next, 0, std::mem::take(&mut buffer))?;
        buffer = world.block_on(lent)?;
        world.barrier()?;
    }
    // One is dropped, and its buffer with it, in its time.
    drop(world.operation().put_owned(&numbers, next, 0, buffer)?);
    world.barrier()
}

#[test]
fn a_long_buffer_is_lent_to_its_put_and_comes_back() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        for result in threads(3, transport).run(owned).expect("ranks start") {
            result.expect("is well");
        }
    }
    check("owned buffers", 2, |seed| {
        for memory in [Memory::Posted, Memory::Direct, Memory::Emulated] {
            let results = Simulated::new(Config { memory, ..Config::new(3, seed).wild() }).run(owned);
            results.expect("the job runs").into_iter().for_each(|result| result.expect("is well"));
        }
    });
}

/// The rank that a long buffer is put to dies: the buffer comes back, and the events tell of it.
#[test]
fn a_long_buffer_comes_back_from_a_rank_that_dies() {
    for seed in 0..5 {
        for memory in [Memory::Posted, Memory::Emulated] {
            let job = Simulated::new(Config { memory, ..Config::new(2, seed).wild() });
            let results = job.run(|world| -> Result<()> {
                let numbers = world.alloc::<u64>(40_000)?;
                world.barrier()?;
                if world.rank() == 1 {
                    world.sleep(Duration::from_nanos(300 * seed));
                    job.network().kill(1);
                    return Ok(());
                }
                let done = Completion::new();
                let lent = world.operation().source(&done).put_owned(&numbers, 1, 0, vec![1; 40_000])?;
                let outcome = loop {
                    // Polls tell of the loss, too.
                    let _ = world.poll();
                    world.sleep(Duration::from_micros(1));
                    if let Some(outcome) = done.outcome() {
                        break outcome;
                    }
                };
                assert_eq!(lent.take().map(|buffer| buffer.len()), Some(40_000), "{outcome:?}");
                outcome
            });
            match results.expect("the job runs").into_iter().next().expect("two ranks") {
                Ok(()) | Err(Error::PeerLost { rank: 1, .. }) => {}
                other => panic!("{memory:?}, seed {seed}: {other:?}"),
            }
        }
    }
}

/// A message's handler has run when that is told, and not before.
fn messages(world: &World, ran: &Through) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let next = (me + 1) % size;
    world.set_state(Counter::new());
    world.barrier()?;
    let (source, effect, handled, done) = (Counter::new(), Counter::new(), Counter::new(), Completion::new());
    let bell = world.bell()?;
    for i in 0..20u64 {
        let message = world.operation().source(&source).effect(&effect).handled(&handled).handled(&bell).handled(&done);
        message.invoke(next, (i, vec![i; i as usize * 50]), |context, (i, list)| {
            assert!(list.len() as u64 == i * 50 && list.iter().all(|x| *x == i));
            context.state::<Counter>().expect("was set").add(1);
        })?;
        assert_eq!(source.value(), i + 1);
    }
    world.wait_counter(&effect, 20)?;
    world.wait_counter(&handled, 20)?;
    // Each of mine has run at the next rank, though nothing but the events says so.
    ran.pass(0);
    ran.await_all(world, 0, size)?;
    assert_eq!(world.state::<Counter>().expect("was set").value(), 20);
    world.wait_completion(&done)?;
    assert_eq!([bell.wait(20)?, handled.value(), effect.value()], [20; 3]);
    world.barrier()
}

#[test]
fn a_message_tells_when_its_handler_has_run() {
    everywhere("events of messages", Through::default, messages);
}

#[test]
fn a_handlers_end_comes_after_the_handler_and_needs_the_targets_progress() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let (asleep, ran) = (AtomicBool::new(true), Arc::new(AtomicBool::new(false)));
        let results = threads(2, transport).build(|mut builder| {
            let mark = Arc::clone(&ran);
            let handler = builder.handler("mark", move |_, bytes| mark.store(bytes == b"now", Ordering::SeqCst));
            let world = builder.start()?;
            if world.rank() == 1 {
                while asleep.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                return world.finish();
            }
            let (seen, mark) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&ran));
            let told = Arc::clone(&seen);
            let hear = Event::call(move |outcome| {
                told.lock().expect("no panic").push((outcome.is_ok(), mark.load(Ordering::SeqCst)));
            });
            let effect = Counter::new();
            world.operation().effect(&effect).handled(hear).send(1, handler, b"now")?;
            for _ in 0..1000 {
                world.poll()?;
            }
            assert!(seen.lock().expect("no panic").is_empty(), "the target has not polled");
            asleep.store(false, Ordering::SeqCst);
            world.wait_until(|| !seen.lock().expect("no panic").is_empty())?;
            assert_eq!(*seen.lock().expect("no panic"), [(true, true)], "once, after the handler");
            world.wait_counter(&effect, 1)?;
            world.finish()
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("runs"));
    }
}

#[test]
fn who_is_gone_is_told_to_functions_and_futures() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let sent = AtomicBool::new(false);
        let results = threads(2, transport).run(|world| {
            if world.rank() == 1 {
                while !sent.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                // It leaves without a look at the message.
                return;
            }
            let seen = Arc::new(Mutex::new(None));
            let (told, done, counter) = (Arc::clone(&seen), Completion::new(), Counter::new());
            let hear = Event::call(move |outcome| *told.lock().expect("no panic") = Some(outcome));
            let message = world.operation().handled(hear).handled(&done).handled(&counter);
            message.invoke(1, (), |_, ()| ()).expect("is sent");
            sent.store(true, Ordering::SeqCst);
            while seen.lock().expect("no panic").is_none() {
                let _ = world.poll();
                std::thread::yield_now();
            }
            let outcome = seen.lock().expect("no panic").take();
            assert!(matches!(outcome, Some(Err(Error::PeerLost { rank: 1, .. }))), "{outcome:?}");
            assert!(matches!(done.outcome(), Some(Err(Error::PeerLost { rank: 1, .. }))));
            assert_eq!(counter.value(), 0, "it counts what was handled");
        });
        results.expect("ranks start");
    }
}

#[test]
fn a_bell_that_was_dropped_is_not_rung() {
    everywhere(
        "events at dropped bells",
        || (),
        |world, ()| {
            let next = (world.rank() + 1) % world.size();
            let bell = world.bell()?;
            let late = Event::ring(&bell, world.rank());
            drop(bell);
            world.barrier()?;
            // In the memory that the bell had.
            let numbers = world.alloc::<u64>(8)?;
            let handled = Counter::new();
            world.operation().handled(late).handled(&handled).invoke(next, (), |_, ()| ())?;
            world.wait_counter(&handled, 1)?;
            world.barrier()?;
            // The same by a context, which looks at the bell's phase from whatever thread it is on.
            let others = world.alloc::<u64>(1)?;
            let bell = world.bell()?;
            let late = Event::ring(&bell, world.rank());
            drop(bell);
            world.barrier()?;
            let more = world.alloc::<u64>(8)?;
            let (context, effect) = (world.context()?, Counter::new());
            context.operation().effect(late).effect(&effect).put(&others.for_threads(), next, 0, &[1])?;
            context.wait_counter(&effect, 1)?;
            drop(context);
            world.barrier()?;
            assert!((0..8).all(|i| more.load(i) == 0), "a context counts in somebody else's memory");
            assert!((0..8).all(|i| numbers.load(i) == 0), "somebody else's memory is not counted in");
            world.barrier()
        },
    );
}

#[test]
fn a_panic_in_a_function_of_an_event_keeps_the_others() {
    everywhere(
        "a panic between events",
        || (),
        |world, ()| {
            let next = (world.rank() + 1) % world.size();
            let numbers = world.alloc::<u64>(1)?;
            let (source, effect, done) = (Counter::new(), Counter::new(), Completion::new());
            let panics = || Event::call(|_| std::panic::resume_unwind(Box::new("an event")));
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| -> Result<()> {
                let put = world.operation().source(panics()).source(&source).effect(&effect).effect(&done);
                put.put(&numbers, next, 0, &[7])
            }));
            assert!(caught.is_err_and(|panic| panic.downcast_ref() == Some(&"an event")));
            world.wait_counter(&source, 1)?;
            world.wait_counter(&effect, 1)?;
            world.wait_completion(&done)?;
            world.barrier()?;
            assert_eq!(numbers.load(0), 7);
            world.barrier()
        },
    );
}

#[test]
fn a_future_of_an_operation_that_outlives_its_world_is_an_error() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let results = threads(2, transport).run(|world| -> Result<Completion> {
            let done = Completion::new();
            if world.rank() == 0 {
                match world.operation().handled(&done).invoke(1, (), |_, ()| ()) {
                    // Rank 1 may have left.
                    Ok(()) | Err(Error::PeerLost { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(done)
        });
        let done = results.expect("ranks start").into_iter().next().expect("two ranks").expect("sends");
        // Rank 1 may have handled it while it ended.
        match done.outcome() {
            Some(Err(Error::InvalidArgument { why, .. })) => assert!(why.contains("ended before"), "{why}"),
            Some(Err(Error::PeerLost { rank: 1, .. }) | Ok(())) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_event_of_a_world_that_is_gone_is_an_error() {
    for _ in 0..20 {
        let event =
            threads(1, Transport::Auto).run(|world| Mutex::new(Some(world.bell().map(|bell| Event::from(&bell)))));
        let event = event.expect("starts").remove(0).into_inner().expect("no panic").expect("made").expect("a bell");
        let event = Mutex::new(Some(event));
        let outcome = threads(1, Transport::Auto).run(|world| {
            let numbers = world.alloc::<u64>(8)?;
            let event = event.lock().expect("no panic").take().expect("one rank");
            world.operation().effect(event).put(&numbers, 0, 0, &[1])
        });
        let error = outcome.expect("starts").remove(0).expect_err("a bell of another world");
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    }
}

/// As [`one_sided`], by a context.
fn by_context(world: &World, through: &Through, elsewhere: bool) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let (numbers, bell) = (world.alloc::<u64>(LEN + 1)?, world.bell()?);
    let copies = world.alloc::<u64>(LEN)?;
    let context = world.context()?;
    let (array, copied, chime) = (numbers.for_threads(), copies.for_threads(), bell.for_threads());
    let mine: Vec<u64> = (0..LEN as u64).map(|i| 1000 * (me as u64 + 1) + i).collect();
    let puts = move || {
        let (source, effect, done) = (Counter::new(), Counter::new(), Completion::new());
        for (i, part) in mine.chunks(LEN / 10).enumerate() {
            let put = context.operation().source(&source).effect(&effect).handled(&done).effect(&chime);
            put.put(&array, next, i * (LEN / 10), part)?;
            assert_eq!(source.value(), i as u64 + 1);
        }
        context.wait_counter(&effect, 10)?;
        context.wait_completion(&done)?;
        for (i, part) in mine.chunks(LEN / 10).enumerate() {
            let (first, got) = (i * (LEN / 10), context.operation().source(&source).effect(&effect).handled(&done));
            got.get_into(&array, next, first, &copied, first..first + part.len())?;
        }
        context.wait_completion(&done)?;
        assert_eq!(effect.value(), 20);
        let mut read = vec![0; LEN];
        context.get_slice(&copied, me, 0, &mut read)?;
        assert_eq!(read, mine);
        through.pass(0);
        Ok(context)
    };
    let context = match elsewhere {
        true => std::thread::scope(|scope| scope.spawn(puts).join().expect("does not panic"))?,
        false => puts()?,
    };
    // Nothing but the events says that they are in effect.
    through.await_all(world, 0, size)?;
    let mut came = vec![0; LEN];
    numbers.read(0, &mut came);
    assert!(came.iter().enumerate().all(|(i, x)| *x == 1000 * (before as u64 + 1) + i as u64));
    assert_eq!(bell.wait(10)?, 10);
    let atomics = move || {
        let effect = Counter::new();
        let add = context.operation().effect(&effect).fetch(AtomicOp::Add, &array, next, LEN, 3)?;
        context.wait_counter(&effect, 1)?;
        assert_eq!(add.value(), Some(0));
        let swap = context.operation().handled(&effect).compare_swap(&array, next, LEN, 3, 4)?;
        context.wait_counter(&effect, 2)?;
        assert_eq!((swap.value(), effect.value()), (Some(3), 2));
        through.pass(1);
        Ok(())
    };
    match elsewhere {
        true => std::thread::scope(|scope| scope.spawn(atomics).join().expect("does not panic"))?,
        false => atomics()?,
    }
    through.await_all(world, 1, size)?;
    assert_eq!(numbers.load(LEN), 4);
    world.barrier()
}

#[test]
fn a_context_tells_of_its_operations_events() {
    everywhere("events of contexts", Through::default, |world, through| by_context(world, through, false));
}

#[test]
fn a_context_of_another_thread_tells_of_its_operations_events() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let through = Through::default();
        // Nobody polls on the thread of the world meanwhile: over the contract only a target that makes progress serves puts.
        let results = threads(1, transport).run(|world| by_context(world, &through, true));
        results.expect("ranks start").into_iter().for_each(|result| result.expect("runs"));
    }
}

#[test]
fn ranks_that_are_processes_tell_of_events() {
    let program = std::env::current_exe().expect("this program");
    let ranks = std::process::Command::new(program)
        .args(["--exact", "one_of_several_processes", "--ignored", "--nocapture", "--test-threads", "1"])
        .env("BELLWETHER_RANKS", "3")
        .output()
        .expect("starts");
    let told = String::from_utf8_lossy(&ranks.stderr);
    assert!(ranks.status.success(), "{told}");
    assert_eq!(String::from_utf8_lossy(&ranks.stdout).matches("all events have happened").count(), 3, "{told}");
}

#[test]
#[ignore = "started by ranks_that_are_processes_tell_of_events"]
fn one_of_several_processes() {
    let world = World::start().expect("starts");
    let (me, size) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let numbers = world.alloc::<u64>(1).expect("allocates");
    let (effect, handled) = (Counter::new(), Completion::new());
    world.operation().effect(&effect).put(&numbers, next, 0, &[me as u64 + 1]).expect("puts");
    let check = |context: &bellwether_runtime::Context<'_>, from: usize| assert_eq!(context.from(), from);
    world.operation().handled(&handled).invoke(next, me, check).expect("sends");
    world.wait_counter(&effect, 1).expect("is in effect");
    world.wait_completion(&handled).expect("is handled");
    world.barrier().expect("meets");
    assert_eq!(numbers.load(0), before as u64 + 1);
    println!("all events have happened");
    world.finish().expect("finishes");
}

thread_local! {
    /// This rank's world, for functions of events.
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

#[test]
fn a_function_of_an_event_makes_no_collective_call_inside_another() {
    type Collective = fn(&World) -> Result<()>;
    let barrier: Collective = |world| world.barrier();
    let alloc: Collective = |world| world.alloc::<u64>(100).map(drop);
    for transport in [Transport::Auto, Transport::ShmContract] {
        let outcomes: Arc<Mutex<Vec<Result<()>>>> = Arc::default();
        let ranks = threads(2, transport).deadline(Duration::from_secs(20)).build(|builder| -> Result<()> {
            let world = Rc::new(builder.start()?);
            WORLD.set(Some(Rc::clone(&world)));
            for (number, (outer, inner)) in
                [(barrier, barrier), (barrier, alloc), (alloc, barrier), (alloc, alloc)].into_iter().enumerate()
            {
                // It runs while rank 0 is in `outer`, which rank 1 enters only afterwards.
                if world.rank() == 0 {
                    let outcomes = Arc::clone(&outcomes);
                    let nested = move |_| {
                        let world = WORLD.with_borrow(Option::clone).expect("set before");
                        let outcome = inner(&world);
                        outcomes.lock().expect("no panic").push(outcome);
                    };
                    world.operation().handled(Event::call(nested)).invoke(1, (), |_, ()| ())?;
                }
                while world.rank() == 1 && outcomes.lock().expect("no panic").len() == number {
                    world.poll()?;
                    std::thread::yield_now();
                }
                outer(&world)?;
            }
            WORLD.set(None);
            // An operator makes none either.
            let mut sum = [1];
            let inside = |a, b| match world.barrier() {
                Err(Error::InvalidArgument { .. }) => a + b,
                other => panic!("a barrier inside an allreduce: {other:?}"),
            };
            world.allreduce(&mut sum, inside)?;
            assert_eq!(sum, [2]);
            world.barrier()?;
            Rc::into_inner(world).expect("the last one").finish()
        });
        ranks.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
        let outcomes = std::mem::take(&mut *outcomes.lock().expect("no panic"));
        assert_eq!(outcomes.len(), 4);
        for outcome in outcomes {
            assert!(
                matches!(&outcome, Err(Error::InvalidArgument { why, .. }) if why.contains("another collective call")),
                "{outcome:?}"
            );
        }
    }
}

#[test]
fn a_function_of_an_event_makes_no_collective_call_between_two_of_a_composed_one() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let outcome: Arc<Mutex<Option<Result<()>>>> = Arc::default();
        let ranks = threads(2, transport).deadline(Duration::from_secs(20)).build(|builder| -> Result<()> {
            let world = Rc::new(builder.start()?);
            WORLD.set(Some(Rc::clone(&world)));
            if world.rank() == 0 {
                let outcome = Arc::clone(&outcome);
                let between = move |_| {
                    let world = WORLD.with_borrow(Option::clone).expect("set before");
                    *outcome.lock().expect("no panic") = Some(world.barrier());
                };
                world.operation().handled(Event::call(between)).invoke(1, (), |_, ()| ())?;
            }
            world.within("two barriers", || {
                // The function runs here, where this rank is in none of the two.
                while outcome.lock().expect("no panic").is_none() {
                    world.poll()?;
                    std::thread::yield_now();
                }
                world.barrier()?;
                world.barrier()
            })?;
            if world.rank() == 0 {
                outcome.lock().expect("no panic").take().expect("it has run").expect_err("refused");
            }
            world.barrier()?;
            WORLD.set(None);
            Rc::into_inner(world).expect("the last one").finish()
        });
        ranks.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    }
}
