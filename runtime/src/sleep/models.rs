//! Models for loom of the code that ranks sleep in, in the orders in which a sleeper and its wakers can meet: all with one waker,
//! those of at most two preemptions with two. `ci/loom` runs them.

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::{Fences, SleepWord};

/// What ranks share: the stores that are waited for, and the word that is slept on.
struct Shared {
    messages: [AtomicU32; 2],
    word: SleepWord,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { messages: [AtomicU32::new(0), AtomicU32::new(0)], word: SleepWord::awake() })
}

/// A rank stores a message, and wakes the sleeper if it has to.
fn send(shared: &Shared, message: usize, fences: Fences) {
    shared.messages[message].store(1, Ordering::Release);
    if shared.word.must_wake(fences) {
        shared.word.wake();
    }
}

/// A rank waits for the first `count` messages, as `Engine::wait` does.
fn receive(shared: &Shared, count: usize, fences: Fences) {
    let all_there = || shared.messages[..count].iter().all(|message| message.load(Ordering::Acquire) == 1);
    while !all_there() {
        if shared.word.announce(fences, all_there) {
            shared.word.block(Duration::MAX);
            shared.word.withdraw();
        }
    }
}

fn model(senders: usize, of_sender: Fences, of_sleeper: Fences) {
    let mut builder = loom::model::Builder::new();
    // All orders of three threads take minutes; those with few changes of thread find what is wrong with any two steps.
    builder.preemption_bound = (senders > 1).then_some(2);
    builder.check(move || {
        let shared = shared();
        let senders: Vec<_> = (0..senders)
            .map(|message| {
                let other = Arc::clone(&shared);
                thread::spawn(move || send(&other, message, of_sender))
            })
            .collect();
        receive(&shared, senders.len(), of_sleeper);
        senders.into_iter().for_each(|sender| sender.join().expect("no panic"));
    });
}

#[test]
fn nobody_sleeps_through_a_message() {
    model(1, Fences::Full, Fences::Full);
}

#[test]
fn nobody_sleeps_through_the_second_of_two_messages() {
    model(2, Fences::Full, Fences::Full);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_wakers_fence_somebody_does() {
    model(1, Fences::Missing, Fences::Full);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_sleepers_fence_somebody_does() {
    model(1, Fences::Full, Fences::Missing);
}
