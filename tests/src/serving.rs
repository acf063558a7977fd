//! Programs in which a rank computes, and others need its progress meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use bellwether_runtime::{AtomicOp, Context, Result, World};

/// Words from the handlers of a rank to the thread that computes there.
#[derive(Debug, Default)]
struct Heard {
    calls: AtomicU64,
    over: AtomicU64,
}

fn heard(context: &Context<'_>) -> Arc<Heard> {
    Arc::clone(&context.state::<Arc<Heard>>().expect("set before the barrier"))
}

/// Whether work in [`World::serve_while`] runs on another thread.
///
/// # Errors
/// As [`World::serve_while`].
pub fn runs_elsewhere(world: &World) -> Result<bool> {
    let own = thread::current().id();
    world.serve_while(|| thread::current().id() != own)
}

/// Waits until `flag` is set, without progress of any rank; whether it was set. A job that does not set it fails then.
pub fn is_set(flag: &AtomicBool) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while !flag.load(Ordering::Acquire) && Instant::now() < end {
        thread::sleep(Duration::from_micros(100));
    }
    flag.load(Ordering::Acquire)
}

/// Rank 1 serves rank 0 though poll(2) fails there: the process may have no descriptor.
///
/// # Errors
/// Those of the runtime.
pub fn without_poll(world: &World) -> Result<()> {
    /// Whether poll(2) fails, and whether the work may end.
    type Flags = Arc<[AtomicBool; 2]>;
    let flags = Flags::default();
    world.set_state(Arc::clone(&flags));
    world.barrier()?;
    if world.rank() == 1 {
        let told = world.serve_while(|| {
            let before = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).expect("a lower limit is allowed");
            flags[0].store(true, Ordering::Release);
            let told = is_set(&flags[1]);
            setrlimit(Resource::Nofile, before).expect("the limit is no higher than at first");
            told
        })?;
        assert!(told, "a call was not served");
    } else {
        let ask = |last: bool| -> Result<bool> {
            let answer = world.call(1, last, |context, last: bool| {
                let flags = context.state::<Flags>().expect("set before the barrier");
                flags[1].store(last, Ordering::Release);
                flags[0].load(Ordering::Acquire)
            })?;
            answer.wait()
        };
        while !ask(false)? {}
        for round in 0..5 {
            world.sleep(Duration::from_millis(3));
            ask(round == 4)?;
        }
    }
    world.barrier()
}

/// Rank 1 computes, and makes no call, until all others have told it to end. Each of their operations waits for progress of rank 1 where it
/// is emulated there, and calls always do. The thread that computes has a context.
///
/// # Errors
/// Those of the runtime.
pub fn all(world: &World) -> Result<()> {
    const ROUNDS: u64 = 20;
    let told = Arc::new(Heard::default());
    world.set_state(Arc::clone(&told));
    let words = world.alloc::<u64>(9)?;
    let segment = world.segment(64)?;
    let numbers = world.allgather(&[segment.number()])?;
    world.barrier()?;
    let others = world.size() as u64 - 1;
    if world.rank() == 1 {
        let own = thread::current().id();
        let (context, array, heard) = (world.context()?, words.for_threads(), Arc::clone(&told));
        let elsewhere = world.serve_while(move || -> Result<bool> {
            context.put(&array, 0, 8, 5)?;
            context.flush(0)?;
            // Acquire pairs with the Release of the handler.
            while heard.over.load(Ordering::Acquire) < others {
                thread::sleep(Duration::from_micros(100));
            }
            Ok(thread::current().id() != own)
        })??;
        assert!(elsewhere, "a rank that serves computes on another thread");
        assert_eq!(told.calls.load(Ordering::Relaxed), ROUNDS * others);
        assert_eq!(words.load(0), ROUNDS * others);
    } else {
        let place = 1 + world.rank() % 7;
        for round in 0..ROUNDS {
            let answer = world.call(1, round, |context, x: u64| {
                heard(context).calls.fetch_add(1, Ordering::Relaxed);
                x + 1
            })?;
            assert_eq!(answer.wait()?, round + 1);
            words.fetch_add(1, 0, 1)?;
            words.put(1, place, round)?;
            world.fence();
            assert_eq!(words.get(1, place)?, round);
            world.fetch_segment::<u64>(AtomicOp::Add, 1, numbers[1], 0, 1)?;
            if round % 5 == 0 {
                // Rank 1 has fallen asleep by then.
                world.sleep(Duration::from_millis(3));
            }
        }
        assert!(world.fetch_segment::<u64>(AtomicOp::Add, 1, numbers[1], 0, 0)? >= ROUNDS);
        world.invoke(1, (), |context, ()| {
            heard(context).over.fetch_add(1, Ordering::Release);
        })?;
    }
    world.barrier()?;
    assert_eq!(words.load(8), if world.rank() == 0 { 5 } else { 0 }, "the put of the context");
    segment.close()?;
    world.barrier()
}
