//! How many contexts a rank has at a time.

use std::process::Command;

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

/// Sets the limit of open files of this process. `false`: the hard limit is lower.
fn limit_files(wanted: u64) -> bool {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let allowed = maximum.is_none_or(|maximum| wanted <= maximum);
    allowed && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok()
}

/// Runs the test again in a process of its own: the limit of open files is that of a process. Whether this is it.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "BELLWETHER_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().expect("a running test has a file"));
    let outcome = again.args(["--exact", test, "--test-threads", "1"]).env(ALONE, "1").output().expect("it starts");
    let one = String::from_utf8_lossy(&outcome.stdout).contains("1 passed");
    assert!(outcome.status.success() && one, "{outcome:?}");
    false
}

/// Each takes five open files, and one for each rank that it reaches.
#[test]
fn over_tcp_a_rank_has_as_many_contexts_as_interfaces_and_then_an_error() {
    if !is_alone("many::over_tcp_a_rank_has_as_many_contexts_as_interfaces_and_then_an_error") {
        return;
    }
    if !limit_files(2048) {
        println!("skipped: this process may not open 2048 files");
        return;
    }
    let program = |world: &World| -> Result<()> {
        let numbers = world.alloc::<u64>(MOST + 1)?;
        let array = numbers.for_threads();
        world.barrier()?;
        if world.rank() == 0 {
            let mut contexts = Vec::new();
            let error = loop {
                match world.context() {
                    Ok(context) => contexts.push(context),
                    Err(error) => break error,
                }
            };
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
}

#[test]
fn over_tcp_a_context_beyond_the_limit_of_open_files_is_refused_with_advice() {
    if !is_alone("many::over_tcp_a_context_beyond_the_limit_of_open_files_is_refused_with_advice") {
        return;
    }
    let program = |world: &World| -> Result<()> {
        world.barrier()?;
        if world.rank() == 0 {
            let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
            let open = std::fs::read_dir("/proc/self/fd").expect("Linux");
            let numbers = open.filter_map(|file| file.ok()?.file_name().to_str()?.parse::<u64>().ok());
            let highest = numbers.max().expect("a process has files");
            assert!(limit_files(highest + 60), "it may open some 60 files more");
            let mut contexts = Vec::new();
            let error = loop {
                match world.context() {
                    Ok(context) => contexts.push(context),
                    Err(error) => break error,
                }
            };
            let text = error.to_string();
            let told = matches!(error, Error::Os { .. }) && text.contains("ulimit -n");
            assert!(told && (1..MOST).contains(&contexts.len()), "{} contexts, then {text}", contexts.len());
            // One that is dropped makes room for another.
            drop(contexts.pop());
            drop(world.context()?);
            setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("as it was");
        }
        world.barrier()
    };
    threads(2, Transport::Tcp).run(program).expect("ranks start").into_iter().for_each(|rank| rank.expect("is well"));
}
