//! Abandoned gets: a panic of a handler, or a lost peer, ends them while their answers are in flight. Afterwards nothing writes to the
//! memory, which the program reuses.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{self, Config, check};
use bellwether_runtime::{
    Builder, Completion, Error, HandlerId, Loss, Result, Simulated, Symmetric, ThreadContext, Transport, World,
};

use super::{DEADLINE, threads};

/// Words that are registered for the time of a get, and words of which one request gets all.
const LONG: usize = (300 << 10) / 8;
const SHORT: usize = 40;
/// In virtual nanoseconds. A handler's panic goes on after 200 ms at most, in which its rank tells the sender: answers come later.
const PARTED: u64 = 250_000_000;
/// What the program writes to its buffer after it has abandoned a get.
const REUSED: u64 = u64::MAX;

/// Ends this process if the job takes longer than a job may: a simulated one has no deadline.
fn watchdog() -> mpsc::Sender<()> {
    let (alive, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(2 * DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("a job of this file has not ended after {:?}", 2 * DEADLINE);
            std::process::abort();
        }
    });
    alive
}

/// The payload of the panic.
struct Abandoned;

fn numbers(len: usize) -> Vec<u64> {
    (0..len as u64).map(|i| 1 << 32 | i).collect()
}

/// What the ranks of a job share beside it.
#[derive(Default)]
struct Shared {
    /// Rank 1 makes no progress until it has slept.
    silent: Arc<AtomicBool>,
    /// Rank 0 has finished.
    over: AtomicBool,
}

/// What rank 0 gets from rank 1, and by what.
struct Gets<'w> {
    world: &'w World,
    context: ThreadContext,
    array: &'w Symmetric<u64>,
    /// The number of a segment of rank 1.
    number: u32,
}

/// The ways to get `into.len()` words, each of which waits for them.
const WAYS: [&str; 9] = [
    "get_slice",
    "get_segment",
    "reserved",
    "context",
    "segment by a context",
    "future",
    "future of a context",
    "segment by event",
    "segment by event of a context",
];

impl Gets<'_> {
    fn get(&self, way: &str, into: &mut [u64]) -> Result<()> {
        let (len, Gets { world, context, array, number }) = (into.len(), self);
        let offset = array.segment_offset(0);
        match way {
            "get_slice" => array.get_slice(1, 0, into),
            "get_segment" => world.get_segment(1, *number, 0, bytemuck::cast_slice_mut(into)),
            // SAFETY: only `array` is reached, of which any bits are valid.
            "reserved" => unsafe { world.reserved_segments() }.get(1, 0, offset, bytemuck::cast_slice_mut(into)),
            "context" => context.get_slice(&array.for_threads(), 1, 0, into),
            "segment by a context" => context.get_segment(1, *number, 0, bytemuck::cast_slice_mut(into)),
            "future" => {
                into.copy_from_slice(&array.get_slice_async(1, 0, len).wait()?);
                Ok(())
            }
            "future of a context" => {
                into.copy_from_slice(&context.get_slice_async(&array.for_threads(), 1, 0, len).wait()?);
                Ok(())
            }
            _ => {
                // SAFETY: the buffer stays until the segment is closed, by the drop too, and is reached by peers and copies alone.
                let own = unsafe { world.segment_at(None, into.as_mut_ptr().cast(), 8 * len) }?;
                if way.contains("context") {
                    context.get_segment_into((1, *number, 0), &own.for_threads(), 0, 8 * len)?;
                    context.flush_all()?;
                } else {
                    let got = Completion::new();
                    world.operation().effect(&got).get_segment(1, *number, 0, &own, 0, 8 * len)?;
                    world.wait_completion(&got)?;
                }
                own.close()
            }
        }
    }
}

/// Rank 1 interrupts rank 0 all the time, and serves its gets.
fn interrupt(world: &World, handler: HandlerId, is_real: bool, shared: &Shared) -> Result<()> {
    let told = |outcome: Result<()>| match outcome {
        Err(Error::HandlerPanicked { .. }) => Ok(()),
        outcome => outcome,
    };
    while !shared.over.load(Ordering::SeqCst) {
        told(world.send(0, handler, &[]))?;
        if !is_real {
            world.sleep(Duration::from_nanos(500));
        }
        if shared.silent.swap(false, Ordering::SeqCst) {
            std::thread::sleep(Duration::from_nanos(PARTED));
        }
        told(world.poll().map(drop))?;
    }
    // Rank 0 was flushed before it had finished: the last panics are here, and are told now.
    (0..100).try_for_each(|_| told(world.poll().map(drop)))?;
    world.barrier()
}

/// Abandons each kind of get, and reuses its memory. Returns how many gets were abandoned.
fn abandon(mut builder: Builder, network: Option<&sim::Network>, shared: &Shared) -> Result<u32> {
    let armed = Rc::new(Cell::new(None));
    let now = {
        let network = network.cloned();
        move || network.as_ref().map_or(1, sim::Network::now)
    };
    let (since, cut, time) = (Rc::clone(&armed), network.cloned(), now.clone());
    let silent = Arc::clone(&shared.silent);
    let handler = builder.handler("interrupt", move |_, _| {
        // Time has passed: the get waits.
        if since.get().is_some_and(|since| since < time()) {
            since.set(None);
            // In virtual time the partition delays the answers.
            silent.store(cut.is_none(), Ordering::SeqCst);
            if let Some(network) = &cut {
                network.partition(&[0], PARTED);
            }
            resume_unwind(Box::new(Abandoned));
        }
    });
    let world = builder.start()?;
    let array = world.alloc::<u64>(LONG)?;
    let own = world.segment_all(8 * LONG)?;
    array.write(0, &numbers(LONG));
    own.write(0, bytemuck::cast_slice(&numbers(LONG)))?;
    world.barrier()?;
    if world.rank() == 1 {
        interrupt(&world, handler, network.is_none(), shared)?;
        return own.close().map(|()| 0);
    }
    let gets = Gets { world: &world, context: world.context()?, array: &array, number: own.number() };
    let mut abandoned = 0;
    for len in [SHORT, LONG] {
        for way in WAYS {
            let mut buffer = vec![0; len];
            // Its table of segments is known, so that the get itself is what waits.
            gets.get(way, &mut buffer[..1])?;
            armed.set(Some(if network.is_some() { now() } else { 0 }));
            let outcome = catch_unwind(AssertUnwindSafe(|| gets.get(way, &mut buffer)));
            armed.set(None);
            match outcome {
                Ok(outcome) => {
                    outcome?;
                    assert!(buffer == numbers(len), "{way} of {len} words");
                    continue;
                }
                Err(panic) if panic.is::<Abandoned>() => abandoned += 1,
                Err(panic) => resume_unwind(panic),
            }
            buffer.fill(REUSED);
            // Further gets, whose answers may come before those of the abandoned one.
            drop((array.get_slice_async(1, 5, SHORT), gets.context.get_slice_async(&array.for_threads(), 1, 5, SHORT)));
            for (start, by_context) in [(3, false), (4, true)] {
                let mut came = [0; SHORT];
                match by_context {
                    true => gets.context.get_slice(&array.for_threads(), 1, start, &mut came)?,
                    false => array.get_slice(1, start, &mut came)?,
                }
                assert!(came == numbers(LONG)[start..start + SHORT], "a get after {way} of {len} words: {came:x?}");
            }
            // All is answered.
            world.fence();
            gets.context.flush_all()?;
            let written = buffer.iter().filter(|word| **word != REUSED).count();
            assert_eq!(written, 0, "{way} of {len} words: words that were written after it had been abandoned");
        }
    }
    shared.over.store(true, Ordering::SeqCst);
    world.barrier()?;
    drop(gets);
    own.close()?;
    Ok(abandoned)
}

#[test]
fn an_abandoned_get_leaves_its_memory_alone() {
    check("abandoned gets", 1, |seed| {
        let wild = Config::new(2, seed).wild();
        let networks = [
            ("emulated", wild.clone()),
            ("unserved", Config { served_asleep: false, ..wild.clone() }),
            ("posted", Config { memory: Memory::Posted, ..wild.clone() }),
            ("posted, in order", Config { memory: Memory::Posted, ..Config::new(2, seed) }),
        ];
        for (name, config) in networks {
            let _watchdog = watchdog();
            let (job, shared) = (Simulated::new(config), Shared::default());
            let network = job.network().clone();
            let ranks = job.build(|builder| abandon(builder, Some(&network), &shared)).expect("the job runs");
            let counts: Vec<u32> =
                ranks.into_iter().map(|rank| rank.unwrap_or_else(|error| panic!("{name}: {error}"))).collect();
            assert!(counts[0] > WAYS.len() as u32, "{name}: only {} gets were abandoned", counts[0]);
        }
    });
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn an_abandoned_get_leaves_its_memory_alone_over_rdma() {
    let shared = Shared::default();
    let ranks = threads(2, Transport::Verbs).build(|builder| abandon(builder, None, &shared)).expect("ranks start");
    ranks.into_iter().for_each(|rank| assert!(rank.is_ok(), "{rank:?}"));
}

/// Rank 1 ends, in one way or another, before the requests of rank 0 are there. Nobody answers them any more.
fn get_from_one_that_ends(world: &World, network: &sim::Network, by_context: bool, panics: bool) -> Result<()> {
    let (array, context, mut buffer) = (world.alloc::<u64>(LONG)?, world.context()?, vec![0; LONG]);
    let get = |buffer: &mut [u64]| match by_context {
        true => context.get_slice(&array.for_threads(), 1, 0, buffer),
        false => array.get_slice(1, 0, buffer),
    };
    if world.rank() == 0 {
        get(&mut buffer[..1])?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        world.sleep(Duration::from_nanos(PARTED / 2));
        if panics {
            resume_unwind(Box::new(Abandoned));
        }
        return Ok(());
    }
    // Rank 1 is out of the barrier then. It is gone when this ends: a rank that leaves waits for a second until what it sent is there.
    world.sleep(Duration::from_micros(50));
    network.partition(&[0], 20 * PARTED);
    let outcome = get(&mut buffer);
    assert!(matches!(outcome, Err(Error::PeerLost { rank: 1, .. })), "{outcome:?}");
    Ok(())
}

#[test]
fn a_get_returns_when_its_peer_has_ended() {
    for (by_context, panics) in [(false, false), (true, false), (false, true), (true, true)] {
        let _watchdog = watchdog();
        let ended = |outcome: std::thread::Result<Result<Vec<Result<()>>>>| match outcome {
            Ok(ranks) => ranks.expect("the job runs").into_iter().for_each(|rank| rank.expect("is well")),
            Err(panic) => assert!(panics && panic.is::<Abandoned>()),
        };
        let job = Simulated::new(Config { served_asleep: false, ..Config::new(2, 1) });
        let program = |world: &World| get_from_one_that_ends(world, job.network(), by_context, panics);
        ended(catch_unwind(AssertUnwindSafe(|| job.run(program))));
    }
}

/// Each rank abandons a get of a context while the other does the same: neither waits for messages any more, but both serve.
#[test]
fn two_ranks_abandon_gets_from_each_other() {
    let _watchdog = watchdog();
    let config = Config { served_asleep: false, ..Config::new(2, 1) };
    let job = Simulated::new(config);
    let network = job.network().clone();
    let ranks = job.build(|mut builder| -> Result<()> {
        let handler = builder.handler("interrupt", |_, _| resume_unwind(Box::new(Abandoned)));
        let world = builder.start()?;
        let (array, context, other) = (world.alloc::<u64>(LONG)?, world.context()?, 1 - world.rank());
        array.write(0, &numbers(LONG));
        world.barrier()?;
        let mut buffer = vec![0; LONG];
        let get = |buffer: &mut [u64]| context.get_slice(&array.for_threads(), other, 0, buffer);
        get(&mut buffer[..1])?;
        world.barrier()?;
        world.send(other, handler, &[])?;
        // The message is there, and has not been handled. What this rank asks for from now on is answered after the panic.
        world.sleep(Duration::from_micros(50));
        network.partition(&[0], PARTED);
        let panic = catch_unwind(AssertUnwindSafe(|| get(&mut buffer))).expect_err("the handler panics");
        assert!(panic.is::<Abandoned>());
        let told = world.wait_until(|| false);
        assert!(matches!(told, Err(Error::HandlerPanicked { .. })), "{told:?}");
        get(&mut buffer)?;
        assert!(buffer == numbers(LONG));
        world.barrier()
    });
    ranks.expect("the job runs").into_iter().for_each(|rank| rank.expect("is well"));
}

/// The network breaks the connection of one context to rank 1. Another context, whose own connection is well, is in a get from there:
/// the get fails, and so does what else that context has in flight to rank 1, with the same error. Its end waits for its put to rank 2.
#[test]
fn a_context_whose_connection_is_cancelled_has_lost_its_peer() {
    const DETECTED: u64 = PARTED / 10;
    let _watchdog = watchdog();
    let job = Simulated::new(Config { detection: DETECTED, ..Config::new(3, 1) });
    let network = job.network();
    let ranks = job.run(|world| -> Result<()> {
        let (array, is_lost) = (world.alloc::<u64>(LONG)?, |error: &Error| {
            matches!(error, Error::PeerLost { rank: 1, cause: Loss::Disconnected, .. })
        });
        if world.rank() != 0 {
            let waited = world.wait_until(|| false);
            assert!(matches!(waited, Err(Error::PeerLost { rank: 0, .. })), "{waited:?}");
            let mut word = [0];
            array.read(0, &mut word);
            assert!(world.rank() != 2 || word == [7]);
            return Ok(());
        }
        let (shared, mut buffer) = (array.for_threads(), vec![0; LONG]);
        let broken = world.context()?;
        broken.get_slice(&shared, 1, 0, &mut buffer[..1])?;
        // Lost on its way: the context learns of the broken connection.
        broken.operation().handled(&Completion::new()).invoke(1, (), |_, ()| ())?;
        network.disconnect_contexts(0, 1);
        let context = world.context()?;
        for rank in [1, 2] {
            context.get_slice(&shared, rank, 0, &mut buffer[..1])?;
        }
        let start = network.now();
        network.partition(&[0], PARTED);
        for rank in [1, 2] {
            context.put(&shared, rank, 0, 7)?;
        }
        let got = context.get_slice(&shared, 1, 0, &mut buffer);
        assert!(got.as_ref().is_err_and(is_lost), "{got:?}");
        assert!(network.now() < start + PARTED, "the get has waited for its answer");
        let flushed = context.flush_all();
        assert!(flushed.as_ref().is_err_and(is_lost), "{flushed:?}");
        drop(context);
        assert!(network.now() >= start + PARTED, "the end of the context has not waited for its put to rank 2");
        Ok(())
    });
    ranks.expect("the job runs").into_iter().for_each(|rank| rank.expect("is well"));
}

/// The network breaks a context's connection to rank 1, which lives, while rank 0's own stream is in a get from there. The get fails, but
/// rank 0's own connection goes on: over it rank 1 gets the room back that its messages take.
#[test]
fn a_peer_that_only_a_context_has_lost_gets_its_room_back() {
    const DETECTED: u64 = PARTED / 10;
    /// Several windows.
    const MESSAGES: usize = 300;
    let _watchdog = watchdog();
    let job = Simulated::new(Config { detection: DETECTED, ..Config::new(2, 1) });
    let network = job.network();
    let ranks = job.build(|mut builder| -> Result<()> {
        let handled = Rc::new(Cell::new(0));
        let count = Rc::clone(&handled);
        let handler = builder.handler("count", move |_, _| count.set(count.get() + 1));
        let world = builder.start()?;
        let array = world.alloc::<u64>(LONG)?;
        if world.rank() == 1 {
            array.write(0, &numbers(LONG));
            world.barrier()?;
            // Until the network is parted, and the get under way.
            world.sleep(Duration::from_nanos(PARTED / 2));
            // None fails: rank 0 leaves when it has handled all.
            (0..MESSAGES).try_for_each(|_| world.send(0, handler, &[]))?;
            let waited = world.wait_until(|| false);
            assert!(matches!(waited, Err(Error::PeerLost { rank: 0, .. })), "{waited:?}");
            return Ok(());
        }
        world.barrier()?;
        let mut buffer = vec![0; LONG];
        array.get_slice(1, 0, &mut buffer[..1])?;
        let broken = world.context()?;
        broken.get_slice(&array.for_threads(), 1, 0, &mut buffer[..1])?;
        // Lost on its way: the context learns of the broken connection.
        broken.operation().handled(&Completion::new()).invoke(1, (), |_, ()| ())?;
        network.disconnect_contexts(0, 1);
        network.partition(&[0], PARTED);
        let start = network.now();
        let got = array.get_slice(1, 0, &mut buffer);
        assert!(matches!(got, Err(Error::PeerLost { rank: 1, cause: Loss::Disconnected, .. })), "{got:?}");
        while handled.get() < MESSAGES && network.now() < start + 100 * PARTED {
            // Each poll fails with the loss.
            let _ = world.poll();
            world.sleep(Duration::from_nanos(DETECTED));
        }
        assert_eq!(handled.get(), MESSAGES);
        Ok(())
    });
    ranks.expect("the job runs").into_iter().for_each(|rank| rank.expect("is well"));
}
