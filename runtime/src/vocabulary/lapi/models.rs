//! Models for loom of the biased lock: the orders in which a favourite and the threads that revoke it can meet. `ci/loom` runs them.
//!
//! They run [`BiasedLock`] itself. Both halves of its membarrier are full fences in them (`sleep/fences.rs`), and a sleep has no limit, so a
//! wake-up that is lost is a deadlock.

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{Ordering, fence};
use loom::thread;

use crate::sleep::{Fences, SleepWord, Sleeper, fall_asleep};
use crate::vocabulary::bias::BiasedLock;

/// A lock, what it protects, and the word that a thread sleeps on while it is in.
struct Shared {
    lock: BiasedLock,
    turns: UnsafeCell<usize>,
    word: SleepWord,
}

// SAFETY: `turns` is used by the thread that has the lock. loom checks that.
unsafe impl Sync for Shared {}

/// How a thread is in, as `port::Way`.
enum Way {
    Locked,
    Favoured,
}

impl Shared {
    /// Leaked: guards of the lock live as long as it does.
    fn new() -> &'static Shared {
        Box::leak(Box::new(Shared { lock: BiasedLock::default(), turns: UnsafeCell::new(0), word: SleepWord::awake() }))
    }

    /// As `port::enter`.
    fn enter(&'static self, me: usize) -> Way {
        if self.lock.enter_favoured(me) {
            return Way::Favoured;
        }
        self.lock.keep(self.lock.acquire(&|| self.wake()));
        Way::Locked
    }

    /// As `port::try_enter`.
    fn try_enter(&'static self) -> Option<Way> {
        self.lock.keep(self.lock.try_acquire()?);
        Some(Way::Locked)
    }

    fn leave(&self, way: Way, me: usize) {
        match way {
            // SAFETY: `enter` and `try_enter` have kept the guard.
            Way::Locked => unsafe { self.lock.end_turn(me) },
            Way::Favoured => self.lock.leave_favoured(),
        }
    }

    /// The action of a thread while it is in. loom detects another thread that is in at the same time.
    fn count(&self) {
        // SAFETY: the calling thread has the lock.
        self.turns.with_mut(|turns| unsafe { *turns += 1 });
    }

    fn turn(&'static self, me: usize) {
        let way = self.enter(me);
        self.count();
        self.leave(way, me);
    }

    /// Turns by the lock, after which thread `me` is the favourite.
    fn become_favourite(&'static self, me: usize) {
        (0..2).for_each(|_| self.turn(me));
        let way = self.enter(me);
        assert!(matches!(way, Way::Favoured), "it has entered often enough");
        self.leave(way, me);
    }

    fn wake(&self) {
        // loom takes sequentially consistent accesses for AcqRel, but knows such fences. This one stands for the order of the store
        // to `contenders` before the swap in the word.
        fence(Ordering::SeqCst);
        self.word.wake(|| panic!("nobody listens"));
    }

    /// Waits in the lock, as LAPI's waits do, until another thread wants to enter.
    fn wait_for_contender(&self) {
        struct Waits<'a>(&'a BiasedLock);
        impl Sleeper for Waits<'_> {
            fn arm(&mut self) -> bool {
                true
            }
            fn ready(&mut self) -> bool {
                self.0.is_contended()
            }
            fn flush(&mut self) -> bool {
                false
            }
            fn has_work(&mut self) -> bool {
                false
            }
            fn block(&mut self, word: &SleepWord) {
                word.block(Duration::MAX);
            }
        }
        while !fall_asleep(&self.word, Fences::Full, &mut Waits(&self.lock)) {}
    }
}

/// All orders, or those of at most so many preemptions.
fn check(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

#[test]
fn a_favourite_and_another_thread_take_turns() {
    check(None, || {
        let shared = Shared::new();
        shared.become_favourite(1);
        let other = thread::spawn(move || shared.turn(2));
        shared.turn(1);
        other.join().expect("no panic");
        // Both have left: it is free.
        shared.turn(2);
        // SAFETY: no other thread is left.
        assert_eq!(shared.turns.with(|turns| unsafe { *turns }), 5);
    });
}

#[test]
fn a_late_favourite_does_not_disturb_the_next_one() {
    check(Some(4), || {
        let shared = Shared::new();
        shared.become_favourite(1);
        let other = thread::spawn(move || (0..3).for_each(|_| shared.turn(2)));
        shared.turn(1);
        other.join().expect("no panic");
    });
}

#[test]
fn two_threads_revoke_a_favourite() {
    check(Some(3), || {
        let shared = Shared::new();
        shared.become_favourite(1);
        let others = [
            thread::spawn(move || shared.turn(2)),
            thread::spawn(move || {
                if let Some(way) = shared.try_enter() {
                    shared.count();
                    shared.leave(way, 3);
                }
            }),
        ];
        shared.turn(1);
        others.into_iter().for_each(|other| other.join().expect("no panic"));
    });
}

#[test]
fn a_favourite_that_sleeps_is_woken_by_another_thread() {
    check(None, || {
        let shared = Shared::new();
        shared.become_favourite(1);
        sleeps_until_another_thread_enters(shared);
    });
}

#[test]
fn a_thread_that_sleeps_with_the_mutex_is_woken_by_another_one() {
    check(None, || sleeps_until_another_thread_enters(Shared::new()));
}

fn sleeps_until_another_thread_enters(shared: &'static Shared) {
    let way = shared.enter(1);
    let other = thread::spawn(move || shared.turn(2));
    shared.wait_for_contender();
    shared.count();
    shared.leave(way, 1);
    other.join().expect("no panic");
}
