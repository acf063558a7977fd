//! Signals of this process's own threads.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bellwether_runtime::vocabulary::ucp::codes::BUSY;
use bellwether_runtime::vocabulary::ucp::{Signal, Status};

use super::{LONG, NOW, Run, Task, is_readable};

/// Rank 0's signal, for a rank that is a thread of the same process. Each row has its own: rows run at the same time.
type Shared = Mutex<Option<Signal>>;

/// In virtual time rank 1 signals `times` times, each after a while, and rank 0 does `body` meanwhile.
fn signalled_by_rank_1(here: &Run<'_>, shared: &Shared, times: u64, body: impl FnOnce()) {
    let task = here.task;
    let signal = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    if task.rank() == 0 {
        here.settle();
        *signal() = Some(here.worker.signaller().expect("has the feature"));
        here.go_on();
        // Wait until the events of these calls are over.
        here.settle();
        body();
        *signal() = None;
    } else if task.rank() == 1 {
        here.wait_to_go_on();
        let signal = signal().clone().expect("set before the ring");
        for number in 1..=times {
            task.sleep(SOME_TIME + Duration::from_micros(number * 7 % 50));
            signal.signal().expect("signals");
        }
        // Nothing else wakes rank 0 meanwhile.
        task.sleep(2 * SOME_TIME);
    }
}

/// In virtual time: longer than it takes to settle.
const SOME_TIME: Duration = Duration::from_millis(50);

pub fn w14(task: &Task<'_>) {
    static SIGNAL: Shared = Shared::new(None);
    let here = Run::new(task);
    here.by_itself(|| {
        here.arm();
        here.worker.signal().expect("signals");
        // By itself, and not because a wait finds it behind the timer.
        let wake_up = task.wake_up().expect("there is one");
        assert!(is_readable(wake_up.as_fd(), NOW), "signalled, and the descriptor is silent");
        here.settle();
    });
    if task.virtual_time {
        for by_poll in [false, true] {
            signalled_by_rank_1(&here, &SIGNAL, 1, || {
                let before = task.elapsed();
                if by_poll {
                    here.arm();
                    assert!(here.readable(LONG), "rank 1 has signalled, and the descriptor is silent");
                } else {
                    here.worker.wait().expect("waits");
                }
                let took = task.elapsed() - before;
                assert!(took > Duration::ZERO && took <= SOME_TIME + Duration::from_micros(50), "woken after {took:?}");
                assert_eq!(here.worker.arm(), Err(Status(BUSY)), "woken, and not by the signal");
            });
            task.barrier().expect("all are there");
        }
        return here.end();
    }
    here.by_itself(|| {
        let signal = here.worker.signaller().expect("has the feature");
        for by_poll in [false, true] {
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(20));
                    is_over.store(true, Ordering::SeqCst);
                    signal.signal().expect("signals");
                });
                loop {
                    if by_poll {
                        // Not if the signal is there already.
                        if here.worker.arm().is_ok() {
                            here.await_event();
                        }
                    } else {
                        here.worker.wait().expect("waits");
                    }
                    // Something else may wake it first, over a network.
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    assert!(!task.is_quiet_alone(), "woken before the signal");
                    here.drain();
                }
            });
            here.settle();
        }
    });
    here.end();
}

pub fn w15(task: &Task<'_>) {
    static SIGNAL: Shared = Shared::new(None);
    const THREADS: usize = 8;
    let here = Run::new(task);
    if task.virtual_time {
        const TIMES: u64 = 100;
        signalled_by_rank_1(&here, &SIGNAL, TIMES, || {
            // Rank 1 waits after each: none is one with another.
            for number in 1..=TIMES {
                here.arm();
                assert!(here.readable(LONG), "signal {number} of {TIMES} has woken nobody");
                assert_eq!(here.worker.arm(), Err(Status(BUSY)), "signal {number} of {TIMES}");
            }
        });
        return here.end();
    }
    let each = 100_000 * task.share / 1000;
    here.by_itself(|| {
        let (signal, running) = (here.worker.signaller().expect("has the feature"), AtomicUsize::new(THREADS));
        let mut woken = 0;
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..each {
                        signal.signal().expect("signals");
                    }
                    running.fetch_sub(1, Ordering::SeqCst);
                    // The last signal always wakes the worker.
                    signal.signal().expect("signals");
                });
            }
            let mut is_over = false;
            while !is_over {
                is_over = running.load(Ordering::SeqCst) == 0;
                here.drain();
                match here.worker.arm() {
                    // The last signal may have been taken before.
                    Ok(()) if is_over && woken > 0 => {}
                    Ok(()) => {
                        here.await_event();
                        woken += 1;
                    }
                    Err(status) => {
                        assert_eq!(status, Status(BUSY));
                        woken += 1;
                    }
                }
            }
        });
    });
    here.end();
}

pub fn w16(task: &Task<'_>) {
    let here = Run::new(task);
    here.by_itself(|| {
        if task.is_quiet_alone() {
            here.worker.arm().expect("nothing waits");
            here.worker.signal().expect("signals");
            assert_eq!(here.worker.arm(), Err(Status(BUSY)));
            here.worker.arm().expect("the signal was taken");
        } else {
            here.worker.signal().expect("signals");
            assert_eq!(here.worker.arm(), Err(Status(BUSY)));
            here.arm();
        }
        assert_eq!(BUSY, -15);
    });
    here.end();
}

pub fn w17(task: &Task<'_>) {
    let here = Run::new(task);
    here.by_itself(|| {
        for _ in 0..2 {
            here.worker.signal().expect("signals");
        }
        assert!(here.readable(NOW));
        if task.is_quiet_alone() {
            assert_eq!(here.worker.arm(), Err(Status(BUSY)));
            here.worker.arm().expect("both were one");
        }
        here.settle();
        assert!(here.is_quiet());
    });
    here.end();
}

/// `test_ucp_wakeup.cc::signal` of UCX.
pub fn w18(task: &Task<'_>) {
    let here = Run::new(task);
    here.by_itself(|| {
        let (worker, arm_loop) = (&here.worker, || while here.worker.arm() == Err(Status(BUSY)) {});
        let quiet = |what: &str| {
            // Over a network something else may come.
            if task.is_quiet_alone() {
                assert!(here.is_quiet(), "{what}");
            }
        };
        let arm = || {
            if task.is_quiet_alone() {
                worker.arm().expect("nothing waits");
            } else {
                here.arm();
            }
        };
        quiet("at first");
        arm();
        worker.signal().expect("signals");
        assert!(here.readable(NOW));
        arm_loop();
        quiet("after one signal");
        worker.signal().expect("signals");
        worker.signal().expect("signals");
        assert!(here.readable(NOW));
        arm_loop();
        quiet("after two signals");
        worker.signal().expect("signals");
        assert_eq!(worker.arm(), Err(Status(BUSY)));
        arm();
    });
    here.end();
}
