//! Programs on ranks that have mapped each other's memory.

mod programs;

const TRANSPORT: bellwether_runtime::Transport = bellwether_runtime::Transport::Auto;

/// Every thread that is started from here on is to have a stack that no machine can give; but for tests on the thread of `main`.
const NO_STACK: (&str, &str) = ("RUST_MIN_STACK", "1000000000000000");

#[test]
fn ranks_that_get_no_thread_are_an_error() {
    use bellwether_runtime::{Error, Threads};
    use std::time::Duration;

    let start = |deadline: bool| {
        let ranks = Threads::new(2);
        let ranks = if deadline { ranks.deadline(Duration::from_secs(60)) } else { ranks };
        ranks.run(|world| world.rank())
    };
    if std::env::var_os(NO_STACK.0).is_some_and(|stack| stack == NO_STACK.1) {
        let told = |deadline, what: &str| match start(deadline) {
            Err(Error::Start(why)) => assert!(why.contains(what) && why.contains("no thread"), "{why}"),
            other => panic!("{other:?}"),
        };
        told(false, "rank 0 of 2");
        return told(true, "the deadline");
    }
    let again = ["--exact", "ranks_that_get_no_thread_are_an_error", "--test-threads", "1"];
    let mut test = std::process::Command::new(std::env::current_exe().expect("a running test has a file"));
    let outcome = test.args(again).env(NO_STACK.0, NO_STACK.1).output().expect("it starts");
    assert!(outcome.status.success(), "{outcome:?}");
}
