//! The thread of interrupt mode sleeps while nothing happens, and each event wakes it. A doze has no time limit here that a test could wait for:
//! without the wake-up a job runs into its deadline.

use std::panic::resume_unwind;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Barrier, Mutex};

use super::super::{Answer, Counter, Lapi, Signal, codes, raw};
use super::*;
use crate::error::Error;
use crate::{Settings, Threads, Transport};

const TRANSPORTS: [Transport; 3] = [Transport::Auto, Transport::ShmContract, Transport::Tcp];

fn job(tasks: usize, transport: Transport) -> Threads {
    let settings = Settings { transport, ..Settings::default() };
    Threads::new(tasks).settings(settings).deadline(Duration::from_secs(60))
}

/// What a test sees of a thread of interrupt mode without entering the port.
struct Thread {
    stands: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
}

impl Thread {
    fn of(lapi: &Lapi) -> Thread {
        let domain = port::enter(lapi.number()).expect("a handle");
        let mode = domain.interrupts.borrow();
        let mode = mode.as_ref().expect("interrupt mode");
        Thread { stands: mode.doze.as_ref().expect("descriptors").stands(), turns: mode.interrupts.turns() }
    }

    fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    fn await_doze(&self) {
        await_that(|| self.stands.load(Ordering::Relaxed));
    }
}

/// Makes no call meanwhile.
fn await_that(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn the_thread_of_interrupt_mode_sleeps_while_nothing_happens() {
    for transport in TRANSPORTS {
        let both = Barrier::new(2);
        let ran = job(2, transport).build(|builder| {
            let lapi = Lapi::start(builder).expect("starts");
            lapi.gfence().expect("all are there");
            let thread = Thread::of(&lapi);
            both.wait();
            thread.await_doze();
            both.wait();
            let before = thread.turns();
            std::thread::sleep(Duration::from_millis(300));
            let turns = thread.turns() - before;
            // 300, if it wakes each millisecond.
            assert!(turns <= 20, "{turns} turns while nothing happened, {transport:?}");
            both.wait();
            lapi.finish().expect("finishes");
        });
        ran.expect("runs");
    }
}

#[test]
fn messages_puts_and_calls_of_other_threads_end_the_doze() {
    const ROUNDS: i32 = 20;
    for transport in TRANSPORTS {
        let (both, places) = (Barrier::new(2), Mutex::new((0, 0)));
        let counted = Arc::new(AtomicU64::new(0));
        let ran = job(2, transport).build(|builder| {
            let lapi = Lapi::start(builder).expect("starts");
            let counts = Arc::clone(&counted);
            let handles = lapi.handler(1, move |_, _| {
                counts.fetch_add(1, Ordering::Relaxed);
                Answer::discard()
            });
            handles.expect("an index of the table");
            let (put, called) = (Counter::new(), Arc::new(Counter::new()));
            let word = AtomicU64::new(0);
            lapi.target_event(1, &called).expect("an index");
            if lapi.rank() == 1 {
                *places.lock().expect("no panic") = (word.as_ptr() as usize, &raw const put as usize);
            }
            lapi.gfence().expect("all are there");
            let thread = Thread::of(&lapi);
            for round in 1..=ROUNDS {
                if lapi.rank() == 1 {
                    thread.await_doze();
                    both.wait();
                    await_that(|| counted.load(Ordering::Relaxed) == round as u64 * 2 - 1);
                    thread.await_doze();
                    both.wait();
                    await_that(|| put.value() == round);
                    assert_eq!(word.load(Ordering::Relaxed), round as u64);
                    thread.await_doze();
                    both.wait();
                    // This call sleeps beside the thread that dozed.
                    lapi.wait(&called, 1).expect("a message in a call");
                    assert_eq!(counted.load(Ordering::Relaxed), round as u64 * 2);
                } else {
                    both.wait();
                    lapi.message(1, 1).send().expect("sends");
                    both.wait();
                    let (to, counter) = *places.lock().expect("no panic");
                    let value = round as u64;
                    // SAFETY: task 1 keeps both until all have gone through the fence; the value stays until the fence of the round.
                    let code = unsafe {
                        raw::put(
                            lapi.number(),
                            1,
                            8,
                            to as *mut _,
                            (&raw const value).cast(),
                            counter as *const _,
                            null(),
                            null(),
                        )
                    };
                    assert_eq!(code, codes::SUCCESS);
                    lapi.fence().expect("task 1's thread answers");
                    both.wait();
                    std::thread::sleep(Duration::from_millis(3));
                    lapi.message(1, 1).target(1).send().expect("sends");
                }
            }
            lapi.gfence().expect("all have gone through");
            lapi.finish().expect("finishes");
        });
        ran.expect("runs");
    }
}

#[test]
fn the_end_of_the_handle_ends_the_doze() {
    for transport in TRANSPORTS {
        let both = Barrier::new(2);
        let ran = job(2, transport).build(|builder| {
            let lapi = Lapi::start(builder).expect("starts");
            let ends = || {
                let domain = port::enter(lapi.number()).expect("a handle");
                let mode = domain.interrupts.borrow();
                mode.as_ref().expect("interrupt mode").interrupts.has_ended()
            };
            for _ in 0..3 {
                let (thread, has_ended) = (Thread::of(&lapi), ends());
                thread.await_doze();
                let Thread { turns, .. } = thread;
                drop(turns);
                assert_eq!(raw::senv(lapi.number(), raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
                assert_eq!(raw::senv(lapi.number(), raw::query::INTERRUPT_SET, 1), codes::SUCCESS);
                await_that(has_ended);
            }
            let has_ended = ends();
            Thread::of(&lapi).await_doze();
            both.wait();
            lapi.finish().expect("finishes");
            await_that(has_ended);
        });
        ran.expect("runs");
    }
}

#[test]
fn the_end_of_a_task_ends_the_doze() {
    for transport in TRANSPORTS {
        let (both, told) = (Barrier::new(2), Mutex::new(None));
        let told = &*Box::leak(Box::new(told));
        let ran = std::panic::catch_unwind(AssertUnwindSafe(|| {
            job(2, transport).build(|builder| {
                let lapi = Lapi::start(builder).expect("starts");
                lapi.gfence().expect("all are there");
                if lapi.rank() == 1 {
                    assert_eq!(raw::senv(lapi.number(), raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
                    both.wait();
                    // Task 0 has sent, and dozes.
                    both.wait();
                    resume_unwind(Box::new("task 1 ends"));
                }
                both.wait();
                let tell = Signal::call(|outcome| *told.lock().expect("no panic") = Some(outcome));
                lapi.message(1, 1).completion(tell).send().expect("sends");
                Thread::of(&lapi).await_doze();
                both.wait();
                await_that(|| told.lock().expect("no panic").is_some());
            })
        }));
        assert!(ran.is_err(), "task 1 panics");
        let told = told.lock().expect("no panic").take();
        assert!(matches!(told, Some(Err(Error::PeerLost { rank: 1, .. }))), "{told:?}, {transport:?}");
    }
}
