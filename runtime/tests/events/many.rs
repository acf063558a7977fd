//! How many contexts a rank has at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use bellwether_runtime::{Context, Counter, Error, Result, Transport, World};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::threads;

/// Of each rank: more than a receiver has lanes for, and than a network has interfaces for.
const MANY: usize = 300;
/// Over TCP.
const MOST: usize = 127;

/// In a handler.
fn add(at: &Context<'_>, more: u64) {
    at.state::<Counter>().expect("set before the barrier").add(more);
}

#[test]
fn mapped_memory_sets_no_limit_to_contexts() {
    let program = |world: &World| -> Result<()> {
        let sums = world.alloc::<u64>(1)?;
        world.set_state(Counter::new());
        world.barrier()?;
        let (array, other) = (sums.for_threads(), 1 - world.rank());
        let contexts = (0..MANY).map(|_| world.context()).collect::<Result<Vec<_>>>()?;
        for _ in 0..2 {
            for context in &contexts {
                context.fetch_add(&array, other, 0, 1)?;
                context.invoke_plain(other, 1, add)?;
            }
        }
        let came = world.state::<Counter>().expect("just set");
        world.wait_until(|| came.value() == 2 * MANY as u64)?;
        world.barrier()?;
        assert_eq!((sums.load(0), came.value()), (2 * MANY as u64, 2 * MANY as u64));
        world.barrier()
    };
    threads(2, Transport::Auto).run(program).expect("ranks start").into_iter().for_each(|rank| rank.expect("is well"));
}

/// Each context takes some open files.
fn raise_file_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(4096, |maximum| maximum.min(4096));
    if current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).expect("below the hard limit");
    }
}

#[test]
fn over_tcp_a_rank_has_as_many_contexts_as_interfaces_and_then_an_error() {
    raise_file_limit();
    let files = || std::fs::read_dir("/proc/self/fd").expect("Linux").count();
    let opened = AtomicUsize::new(0);
    let program = |world: &World| -> Result<()> {
        let numbers = world.alloc::<u64>(MOST + 1)?;
        let array = numbers.for_threads();
        world.barrier()?;
        if world.rank() == 0 {
            let (mut contexts, before) = (Vec::new(), files());
            let error = loop {
                match world.context() {
                    Ok(context) => contexts.push(context),
                    Err(error) => break error,
                }
            };
            opened.store(files() - before, Ordering::Relaxed);
            let told = matches!(&error, Error::NoContext { limit: MOST, network, .. } if network == "TCP");
            assert!(told && contexts.len() == MOST, "{} contexts, then {error:?}", contexts.len());
            let text = error.to_string();
            assert!(text.contains("127 contexts") && text.contains("TCP") && text.contains("many.rs"), "{text}");
            for i in [0, MOST - 1] {
                contexts[i].put(&array, 1, i, 7)?;
                contexts[i].flush(1)?;
            }
            // One that is dropped makes room for another.
            drop(contexts.swap_remove(0));
            contexts.push(world.context()?);
            contexts[MOST - 1].put(&array, 1, MOST, 7)?;
            contexts[MOST - 1].flush(1)?;
            assert!(matches!(world.context(), Err(Error::NoContext { .. })));
        }
        world.barrier()?;
        let expected = if world.rank() == 1 { [7; 3] } else { [0; 3] };
        assert_eq!([0, MOST - 1, MOST].map(|i| numbers.load(i)), expected);
        world.barrier()
    };
    threads(2, Transport::Tcp).run(program).expect("ranks start").into_iter().for_each(|rank| rank.expect("is well"));
    println!("{} files of {MOST} contexts", opened.into_inner());
}
