//! Events of messages that contexts send.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bellwether_runtime::transport::AtomicOp;
use bellwether_runtime::{Completion, Context, Counter, Error, Event, Result, Settings, Threads, Transport, World};

use super::{DEADLINE, everywhere, threads};

/// Messages of a context, by whichever route: the source may be changed at once, the handler's end is told by the world's thread.
fn messages_of_a_context(world: &World, _: &()) -> Result<()> {
    const MANY: u64 = 40;
    let (me, size) = (world.rank(), world.size());
    let bell = world.bell()?;
    world.set_state(Counter::new());
    let ran = world.state::<Counter>().expect("just set");
    let context = world.context()?;
    world.barrier()?;
    let (source, effect, done) = (Counter::new(), Counter::new(), Completion::new());
    for i in 0..MANY {
        let to = (me + i as usize) % size;
        let operation = || context.operation().source(&source).effect(&effect);
        let count = |at: &Context<'_>, bytes: Vec<u8>| {
            assert!(bytes.iter().all(|byte| *byte == 7));
            at.state::<Counter>().expect("set before the barrier").add(1);
        };
        let bytes = vec![7; if i % 3 == 0 { 300 } else { 3 }];
        match i % 2 {
            0 => operation().handled(&done).handled(&bell).invoke(to, bytes, count)?,
            _ => operation().invoke(to, bytes, count)?,
        }
        assert_eq!(source.value(), i + 1);
    }
    context.wait_counter(&effect, MANY)?;
    context.wait_completion(&done)?;
    bell.wait(MANY / 2)?;
    world.wait_until(|| ran.value() == MANY)?;
    world.barrier()
}

#[test]
fn a_context_tells_of_its_messages_events() {
    everywhere("events of a context's messages", || (), messages_of_a_context);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_context_tells_of_its_messages_events_over_rdma() {
    let results = threads(2, Transport::Verbs).run(|world| messages_of_a_context(world, &())).expect("ranks start");
    results.into_iter().for_each(|result| result.expect("is well"));
}

#[test]
fn a_thread_is_told_by_the_worlds_when_a_handler_has_run() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let (asleep, ran) = (AtomicBool::new(true), Arc::new(AtomicBool::new(false)));
        let results = threads(2, transport).build(|mut builder| -> Result<()> {
            let mark = Arc::clone(&ran);
            let handler = builder.handler("mark", move |_, bytes| mark.store(bytes == b"now", Ordering::SeqCst));
            let world = builder.start()?;
            if world.rank() == 1 {
                while asleep.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                return world.finish();
            }
            let context = world.context()?;
            let (begun, finished) = (&AtomicBool::new(false), &AtomicBool::new(false));
            std::thread::scope(|scope| {
                let ran = &ran;
                let thread = scope.spawn(move || {
                    let (effect, done) = (Counter::new(), Completion::new());
                    let sent = context.operation().effect(&effect).handled(&done).send(1, handler, b"now");
                    begun.store(true, Ordering::SeqCst);
                    let outcome = sent.and_then(|()| context.wait_completion(&done));
                    let has_run = ran.load(Ordering::SeqCst);
                    finished.store(true, Ordering::SeqCst);
                    outcome.and_then(|()| context.wait_counter(&effect, 1)).map(|count| (count, has_run))
                });
                for _ in 0..1000 {
                    while !begun.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    world.poll()?;
                }
                let is_early = finished.load(Ordering::SeqCst);
                asleep.store(false, Ordering::SeqCst);
                let waited = world.wait_until(|| finished.load(Ordering::SeqCst));
                assert_eq!(thread.join().expect("does not panic")?, (1, true));
                assert!(!is_early, "the target has not polled");
                waited
            })?;
            world.finish()
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("runs"));
    }
}

#[test]
fn a_context_learns_that_the_target_left_before_its_handler_ran() {
    let ways = [Transport::Auto, Transport::ShmContract].map(|transport| [(transport, false), (transport, true)]);
    for (transport, by_context) in ways.into_iter().flatten() {
        let sent = AtomicBool::new(false);
        let results = threads(2, transport).run(|world| -> Result<()> {
            if world.rank() == 1 {
                while !sent.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                // It leaves without a poll.
                return Ok(());
            }
            let (context, done) = (world.context()?, Completion::new());
            context.operation().handled(&done).invoke(1, (), |_, ()| ())?;
            sent.store(true, Ordering::SeqCst);
            if by_context {
                let waited = context.wait_completion(&done);
                assert!(matches!(waited, Err(Error::PeerLost { rank: 1, .. })), "{waited:?}");
                return Ok(());
            }
            drop(context);
            loop {
                // Also a poll fails once the rank has left.
                let polled = world.poll();
                assert!(matches!(polled, Ok(_) | Err(Error::PeerLost { rank: 1, .. })), "{polled:?}");
                if let Some(outcome) = done.outcome() {
                    assert!(matches!(outcome, Err(Error::PeerLost { rank: 1, .. })), "{outcome:?}");
                    return Ok(());
                }
                std::thread::yield_now();
            }
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("runs"));
    }
}

#[test]
fn a_panic_of_one_events_function_keeps_no_other_from_happening() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let results = threads(2, transport).run(|world| -> Result<()> {
            let numbers = world.alloc::<u64>(1)?;
            if world.rank() == 0 {
                let (context, effect) = (world.context()?, Counter::new());
                let array = numbers.for_threads();
                let panics = || Event::call(|_| panic!("on purpose"));
                let sent = catch_unwind(AssertUnwindSafe(|| {
                    context.operation().source(panics()).effect(&effect).invoke(1, (), |_, ()| ())
                }));
                assert!(sent.is_err(), "the panic comes out");
                context.wait_counter(&effect, 1)?;
                let put = catch_unwind(AssertUnwindSafe(|| {
                    context.operation().source(panics()).effect(&effect).put(&array, 1, 0, &[7])
                }));
                assert!(put.is_err(), "the panic comes out");
                context.wait_counter(&effect, 2)?;
            }
            world.barrier()
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("runs"));
    }
}

#[test]
fn a_context_that_outlives_its_world_waits_for_no_receipt() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let is_over = AtomicBool::new(false);
        let results = threads(2, transport).build(|builder| -> Result<()> {
            let world = builder.start()?;
            world.barrier()?;
            if world.rank() == 1 {
                // It handles messages as long as the context of the other rank sends.
                return world.wait_until(|| is_over.load(Ordering::SeqCst));
            }
            let context = world.context()?;
            drop(world);
            let done = Completion::new();
            let sent = context.operation().handled(&done).invoke(1, (), |_, ()| ());
            assert!(matches!(sent, Err(Error::InvalidArgument { .. })), "{sent:?}");
            let waited = context.wait_completion(&done);
            assert!(matches!(waited, Err(Error::InvalidArgument { .. })), "{waited:?}");
            // What counts what no thread takes any more.
            let waited = context.wait_counter(&Counter::new(), 1);
            assert!(matches!(waited, Err(Error::InvalidArgument { .. })), "{waited:?}");
            is_over.store(true, Ordering::SeqCst);
            Ok(())
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("runs"));
    }
}

#[test]
fn a_future_of_an_operation_that_was_not_begun_is_an_error() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let mut settings = Settings::default();
        // A message that is too long stays short.
        (settings.transport, settings.message_memory) = (transport, 8 << 20);
        let results = Threads::new(2).settings(settings).deadline(DEADLINE).run(|world| -> Result<()> {
            let (me, size) = (world.rank(), world.size());
            let numbers = world.alloc::<u64>(8)?;
            let (context, array) = (world.context()?, numbers.for_threads());
            let long = vec![7u8; 2 * world.largest_message() + 64];
            let is_told = |what: &str, call: &dyn Fn(&Completion) -> Result<()>| {
                let done = Completion::new();
                let refused = call(&done).expect_err(what);
                let outcome = done.outcome().expect("nothing is in flight");
                let error = outcome.expect_err(what);
                assert!(matches!(error, Error::InvalidArgument { .. }), "{what}: {error:?}");
                // Told once.
                assert!(matches!(done.outcome(), Some(Ok(()))), "{what}");
                (refused.to_string(), error.to_string())
            };
            is_told("a put by the world", &|done| world.operation().effect(done).put(&numbers, size, 0, &[7]));
            is_told("a put", &|done| context.operation().effect(done).put(&array, me, 7, &[7, 7]));
            is_told("a get", &|done| context.operation().effect(done).get_into(&array, size, 0, &array, 0..1));
            is_told("an atomic", &|done| {
                context.operation().effect(done).fetch(AtomicOp::Add, &array, size, 0, 1).map(drop)
            });
            is_told("a message", &|done| context.operation().effect(done).invoke(size, (), |_, ()| ()));
            // Of messages whose handlers tell: what the call tells.
            for (refused, told) in [
                is_told("one of the world", &|done| {
                    world.operation().handled(done).invoke(1 - me, long.clone(), |_, _: Vec<u8>| ())
                }),
                is_told("one of a context", &|done| {
                    context.operation().handled(done).invoke(1 - me, long.clone(), |_, _: Vec<u8>| ())
                }),
            ] {
                // Each with its own line: that of the call, and that of the completion.
                let (refused, _) = refused.split_once(" (called at ").expect("a line");
                assert!(told.contains(refused), "{told}");
            }
            // One that was begun and one that was not.
            let done = Completion::new();
            world.operation().effect(&done).put(&numbers, 1 - me, 0, &[7])?;
            drop(world.operation().effect(&done));
            let outcome = world.wait_completion(&done);
            assert!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
            world.barrier()
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("runs"));
    }
}
