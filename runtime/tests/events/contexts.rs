//! Events of messages that contexts send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bellwether_runtime::{Completion, Context, Counter, Result, Transport, World};

use super::{everywhere, threads};

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
fn a_thread_is_told_by_the_worlds_when_a_handler_has_run() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let results = threads(2, transport).build(|mut builder| -> Result<()> {
            let ran = Arc::new(AtomicBool::new(false));
            let mark = Arc::clone(&ran);
            let handler = builder.handler("mark", move |_, bytes| mark.store(bytes == b"now", Ordering::SeqCst));
            let world = builder.start()?;
            let (other, bell, context) = (1 - world.rank(), world.bell()?, world.context()?);
            let finished = &AtomicBool::new(false);
            std::thread::scope(|scope| {
                let thread = scope.spawn(move || {
                    let (effect, done) = (Counter::new(), Completion::new());
                    let sent = context.operation().effect(&effect).handled(&done).send(other, handler, b"now");
                    let outcome = sent.and_then(|()| context.wait_completion(&done));
                    assert!(outcome.is_err() || effect.value() <= 1);
                    finished.store(true, Ordering::SeqCst);
                    outcome
                });
                let waited = world.wait_until(|| finished.load(Ordering::SeqCst));
                thread.join().expect("does not panic").and(waited)
            })?;
            bell.ring(other)?;
            bell.wait(1)?;
            assert!(ran.load(Ordering::SeqCst));
            world.finish()
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("runs"));
    }
}
