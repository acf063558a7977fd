//! Panics of handlers, and of buffers when they are dropped, while operations that own buffers are in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::transport::{AtomicOp, Memory};
use bellwether_runtime::{Counter, Error, Result, Simulated};

/// Panics when it is dropped, if it is armed.
struct Panicking(Vec<u64>, Arc<AtomicBool>);

impl AsRef<[u64]> for Panicking {
    fn as_ref(&self) -> &[u64] {
        &self.0
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        if self.1.load(Ordering::Relaxed) {
            std::panic::resume_unwind(Box::new("a buffer"));
        }
    }
}

/// Lent buffers that nobody wants back panic in polls. The other operations of the rank go on.
#[test]
fn a_buffer_that_panics_when_it_is_dropped_takes_no_other_operation_with_it() {
    const LEN: usize = 40_000;
    for memory in [Memory::Posted, Memory::Direct, Memory::Emulated] {
        let panics = AtomicU64::new(0);
        check("a panicking buffer", 3, |seed| {
            let job = Simulated::new(Config { memory, ..Config::new(2, seed).wild() });
            let results = job.run(|world| -> Result<()> {
                let numbers = world.alloc::<u64>(2 * LEN)?;
                let words = world.alloc::<u64>(2)?;
                world.barrier()?;
                if world.rank() == 0 {
                    let (done, armed) = (Counter::new(), Arc::new(AtomicBool::new(false)));
                    let mut found = Vec::new();
                    for half in 0..2 {
                        let buffer = Panicking(vec![5; LEN], Arc::clone(&armed));
                        drop(world.operation().source(&done).put_owned(&numbers, 1, half * LEN, buffer)?);
                        found.push(world.operation().effect(&done).fetch(AtomicOp::Add, &words, 1, 0, 1)?);
                        world.operation().effect(&done).put(&words, 1, 1, &[7])?;
                    }
                    armed.store(true, Ordering::Relaxed);
                    let wait = || world.wait_counter(&done, 6);
                    while done.value() < 6 {
                        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)) {
                            Ok(outcome) => assert_eq!(outcome?, 6),
                            Err(_) => _ = panics.fetch_add(1, Ordering::Relaxed),
                        }
                    }
                    assert!(found.iter().all(|found| found.value().is_some()));
                }
                world.barrier()?;
                if world.rank() == 1 {
                    assert_eq!((numbers.load(0), numbers.load(2 * LEN - 1)), (5, 5));
                    assert_eq!((words.load(0), words.load(1)), (2, 7));
                }
                world.barrier()
            });
            results.expect("the job runs").into_iter().for_each(|result| result.expect("is well"));
        });
        assert!(memory != Memory::Posted || panics.into_inner() > 0, "{memory:?}: no buffer has panicked");
    }
}

/// Tells when it is dropped.
pub(super) struct Dropped(pub(super) Vec<u64>, pub(super) Arc<AtomicBool>);

impl AsRef<[u64]> for Dropped {
    fn as_ref(&self) -> &[u64] {
        &self.0
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

/// A handler panics while a put of a buffer waits for the room for its second request. The first goes on, and then the buffer is given
/// up.
#[test]
fn a_panic_between_two_requests_of_a_lent_buffer_gives_it_up_when_it_was_read() {
    const LEN: usize = 400_000;
    let interrupted = AtomicU64::new(0);
    check("a panic between two requests", 3, |seed| {
        let config = Config { memory: Memory::Posted, ..Config::new(2, seed) };
        let results = Simulated::new(config).run(|world| -> Result<()> {
            // The array lies in memory that was committed at two times. Each is registered by itself and takes a request.
            let asked = world.alloc::<u64>(1)?;
            let numbers = world.alloc::<u64>(LEN)?;
            world.set_state(Counter::new());
            if world.rank() == 0 {
                // Where the array is registered there is known afterwards.
                numbers.put(1, LEN - 1, 5)?;
            }
            world.barrier()?;
            if world.rank() == 0 {
                let freed = Arc::new(AtomicBool::new(false));
                let buffer = Dropped(vec![5; LEN], Arc::clone(&freed));
                asked.put(1, 0, 1)?;
                // The network takes eight requests at a time.
                for _ in 0..7 {
                    drop(world.operation().put_owned(&numbers, 1, LEN / 2, vec![5; 40_000])?);
                }
                let put = || world.operation().put_owned(&numbers, 1, 0, buffer).map(drop);
                match std::panic::catch_unwind(std::panic::AssertUnwindSafe(put)) {
                    Ok(outcome) => outcome?,
                    Err(_) => {
                        interrupted.fetch_add(1, Ordering::Relaxed);
                        assert!(!freed.load(Ordering::Relaxed), "the network still reads it");
                    }
                }
                let calls = world.state::<Counter>().expect("was set");
                let wait = || world.wait_until(|| freed.load(Ordering::Relaxed) && calls.value() == 1);
                loop {
                    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)) {
                        Ok(outcome) => break outcome?,
                        Err(_panic) => continue,
                    }
                }
            } else {
                world.wait_until(|| asked.load(0) == 1)?;
                let panics = |context: &bellwether_runtime::Context<'_>, ()| {
                    context.state::<Counter>().expect("was set").add(1);
                    std::panic::resume_unwind(Box::new("a handler"))
                };
                let outcome = world.call::<_, (), _>(0, (), panics)?.wait();
                assert!(matches!(outcome, Err(Error::HandlerPanicked { .. })), "{outcome:?}");
            }
            world.barrier()
        });
        results.expect("the job runs").into_iter().for_each(|result| result.expect("is well"));
    });
    assert!(interrupted.into_inner() > 0, "no put was interrupted");
}
