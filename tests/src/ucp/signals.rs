//! Signals of this process's own threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bellwether_runtime::vocabulary::ucp::Status;
use bellwether_runtime::vocabulary::ucp::codes::BUSY;

use super::{LONG, NOW, Run, Task};

pub fn w14(task: &Task<'_>) {
    let here = Run::new(task);
    here.by_itself(|| {
        let signal = here.worker.signaller().expect("has the feature");
        for by_poll in [false, true] {
            if task.virtual_time {
                // Time stands still while a thread that is no rank runs.
                signal.signal().expect("signals");
            }
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(20));
                    is_over.store(true, Ordering::SeqCst);
                    signal.signal().expect("signals");
                });
                if by_poll {
                    here.arm();
                    while !is_over.load(Ordering::SeqCst) && !task.virtual_time {
                        assert!(here.readable(LONG));
                    }
                } else {
                    // Something else may wake it first, over a network.
                    loop {
                        here.worker.wait().expect("waits");
                        if is_over.load(Ordering::SeqCst) || task.virtual_time {
                            break;
                        }
                        assert!(!task.mapped, "woken before the signal");
                        here.drain();
                    }
                }
            });
            here.settle();
        }
    });
    here.end();
}

pub fn w15(task: &Task<'_>) {
    const THREADS: usize = 8;
    let each = if task.virtual_time { 100 } else { 100_000 * task.share / 1000 };
    let here = Run::new(task);
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
                    // The last one is told of in any case.
                    signal.signal().expect("signals");
                });
            }
            let mut is_over = false;
            while !is_over {
                is_over = running.load(Ordering::SeqCst) == 0;
                here.drain();
                match here.worker.arm() {
                    Ok(()) if task.virtual_time => std::thread::yield_now(),
                    // The last signal may have been taken before.
                    Ok(()) if is_over && woken > 0 => {}
                    Ok(()) => {
                        assert!(here.readable(LONG), "threads signal, and it sleeps");
                        woken += 1;
                    }
                    Err(status) => {
                        assert_eq!(status, Status(BUSY));
                        woken += 1;
                    }
                }
            }
        });
        assert!(woken > 0 || task.virtual_time);
    });
    here.end();
}

pub fn w16(task: &Task<'_>) {
    let here = Run::new(task);
    here.by_itself(|| {
        if task.mapped {
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
        if task.mapped {
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
            if task.mapped {
                assert!(here.is_quiet(), "{what}");
            }
        };
        let arm = || {
            if task.mapped {
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
