//! Models for loom of the code that ranks sleep in, in the orders in which a sleeper and its wakers can meet: all with one waker,
//! those of at most two preemptions with two. `ci/loom` runs them.

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{Ending, Fences, Listener, SleepWord, Sleeper, fall_asleep, listen};

/// The state that the ranks share: the stores that a rank waits for, and the word that it sleeps on.
struct Shared {
    messages: [AtomicU32; 2],
    word: SleepWord,
    socket: Socket,
}

/// Stands for the socket of a rank, and for the kernel's queue of those that poll it.
struct Socket {
    is_rung: Mutex<bool>,
    queue: Condvar,
}

impl Socket {
    fn set(&self, is_rung: bool) {
        *self.is_rung.lock().expect("no panic") = is_rung;
        self.queue.notify_all();
    }

    fn poll(&self) {
        let mut is_rung = self.is_rung.lock().expect("no panic");
        while !*is_rung {
            is_rung = self.queue.wait(is_rung).expect("no panic");
        }
    }
}

fn shared() -> Arc<Shared> {
    let messages = [AtomicU32::new(0), AtomicU32::new(0)];
    let socket = Socket { is_rung: Mutex::new(false), queue: Condvar::new() };
    Arc::new(Shared { messages, word: SleepWord::awake(), socket })
}

/// A rank stores a message, and wakes the sleeper if it has to.
fn send(shared: &Shared, message: usize, fences: Fences) {
    shared.messages[message].store(1, Ordering::Release);
    if shared.word.must_wake(fences) {
        shared.word.wake(|| shared.socket.set(true));
    }
}

/// A rank that waits for the first `count` messages. If it polls for them it sees them by its own loads, as flags and bells; if they
/// have to be delivered it sees them after a poll, as messages.
struct Waits<'a> {
    shared: &'a Shared,
    count: usize,
    /// Messages delivered, where they have to be.
    delivered: Option<usize>,
}

impl Waits<'_> {
    fn came(&self) -> usize {
        self.shared.messages[..self.count].iter().filter(|message| message.load(Ordering::Acquire) == 1).count()
    }

    fn poll(&mut self) {
        let came = self.came();
        self.delivered = self.delivered.map(|_| came);
    }
}

impl Sleeper for Waits<'_> {
    fn arm(&mut self) -> bool {
        true
    }

    fn ready(&mut self) -> bool {
        self.delivered.unwrap_or_else(|| self.came()) == self.count
    }

    fn flush(&mut self) -> bool {
        false
    }

    fn has_work(&mut self) -> bool {
        self.delivered.is_some_and(|delivered| self.came() > delivered)
    }

    fn block(&mut self, word: &SleepWord) {
        word.block(Duration::MAX);
    }
}

/// A rank waits, as `Engine::wait_long` does.
fn receive(mut waits: Waits<'_>, fences: Fences) {
    loop {
        waits.poll();
        if waits.ready() || fall_asleep(&waits.shared.word, fences, &mut waits) {
            return;
        }
    }
}

fn model(senders: usize, of_sender: Fences, of_sleeper: Fences) {
    [None, Some(0)].into_iter().for_each(|delivered| model_of(senders, delivered, of_sender, of_sleeper));
}

fn model_of(senders: usize, delivered: Option<usize>, of_sender: Fences, of_sleeper: Fences) {
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
        receive(Waits { shared: &shared, count: senders.len(), delivered }, of_sleeper);
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

/// A rank that sleeps on its socket. Messages it sees when it arms, if they have to be delivered; bells it checks after that.
struct Listens<'a>(Waits<'a>);

impl Listener for Listens<'_> {
    fn drain(&mut self) -> bool {
        self.0.shared.socket.set(false);
        true
    }

    fn has_work(&mut self) -> bool {
        self.0.has_work()
    }
}

/// A rank polls, arms, checks and sleeps in poll(2), in a loop.
fn receive_by_descriptor(waits: Waits<'_>, fences: Fences) {
    let mut listens = Listens(waits);
    loop {
        listens.0.poll();
        if listens.0.ready() {
            return;
        }
        let shared = listens.0.shared;
        if listen(&shared.word, fences, &mut listens) {
            if listens.0.ready() {
                return;
            }
            shared.socket.poll();
        }
    }
}

fn model_of_descriptors(senders: usize, of_sender: Fences, of_sleeper: Fences) {
    for delivered in [None, Some(0)] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = (senders > 1).then_some(2);
        builder.check(move || {
            let shared = shared();
            let senders: Vec<_> = (0..senders)
                .map(|message| {
                    let other = Arc::clone(&shared);
                    thread::spawn(move || send(&other, message, of_sender))
                })
                .collect();
            receive_by_descriptor(Waits { shared: &shared, count: senders.len(), delivered }, of_sleeper);
            senders.into_iter().for_each(|sender| sender.join().expect("no panic"));
        });
    }
}

#[test]
fn nobody_who_armed_polls_through_a_message() {
    model_of_descriptors(1, Fences::Full, Fences::Full);
}

#[test]
fn nobody_who_armed_polls_through_the_second_of_two_messages() {
    model_of_descriptors(2, Fences::Full, Fences::Full);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_wakers_fence_somebody_who_armed_does() {
    model_of_descriptors(1, Fences::Missing, Fences::Full);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_sleepers_fence_somebody_who_armed_does() {
    model_of_descriptors(1, Fences::Full, Fences::Missing);
}

/// A waker dies when it has taken back the announcement and has not rung. Another process sees the death, and `wakes` the rank.
fn model_of_death(wakes: fn(&Shared)) {
    loom::model(move || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let dies = thread::spawn(move || {
            other.messages[0].store(1, Ordering::Release);
            if other.word.must_wake(Fences::Full) {
                other.word.wake(|| {});
            }
            wakes(&other);
        });
        receive_by_descriptor(Waits { shared: &shared, count: 1, delivered: None }, Fences::Full);
        dies.join().expect("no panic");
    });
}

#[test]
fn a_death_rings_a_rank_that_its_waker_left_asleep() {
    model_of_death(|shared| shared.word.wake_after_death(|| shared.socket.set(true)));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_wake_up_that_trusts_the_word_leaves_it_asleep() {
    model_of_death(|shared| shared.word.wake(|| shared.socket.set(true)));
}

/// A thread that works, and one that serves meanwhile and sleeps in the rank's descriptor, as `Engine::serve_until` does.
struct Work {
    ending: Ending,
    /// Stands for the eventfd of the rank's signals.
    signals: Socket,
    shared: Arc<Shared>,
    done: UnsafeCell<u32>,
}

// SAFETY: `done` is used by the thread that works, and by the other one when the work is over. loom checks that.
unsafe impl Sync for Work {}
// SAFETY: as above.
unsafe impl Send for Work {}

impl Work {
    fn new() -> Arc<Work> {
        let signals = Socket { is_rung: Mutex::new(false), queue: Condvar::new() };
        Arc::new(Work { ending: Ending::default(), signals, shared: shared(), done: UnsafeCell::new(0) })
    }

    /// As the thread of `World::serve_while` or of a pool.
    fn work(&self) {
        // SAFETY: the work is not over.
        self.done.with_mut(|done| unsafe { *done = 7 });
        if self.ending.end() {
            self.signals.set(true);
        }
    }

    /// Serves until the work is over.
    fn serve(&self) {
        struct Serves<'a>(&'a Work);
        impl Listener for Serves<'_> {
            fn drain(&mut self) -> bool {
                // A signal that has come keeps the rank from arming, and counts as handled.
                !std::mem::take(&mut *self.0.signals.is_rung.lock().expect("no panic"))
            }
            fn has_work(&mut self) -> bool {
                false
            }
        }
        while !self.ending.is_over() {
            if self.ending.falls_asleep() && listen(&self.shared.word, Fences::Full, &mut Serves(self)) {
                self.signals.poll();
            }
        }
        // SAFETY: the work is over.
        assert_eq!(self.done.with(|done| unsafe { *done }), 7, "what the work has done is seen");
    }
}

#[test]
fn nobody_who_serves_sleeps_through_the_end_of_the_work() {
    loom::model(|| {
        let work = Work::new();
        let works = Arc::clone(&work);
        let works = thread::spawn(move || works.work());
        work.serve();
        works.join().expect("no panic");
    });
}
