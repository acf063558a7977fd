//! Waits inside the library.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bellwether_runtime::vocabulary::ucp::codes::IO_ERROR;
use bellwether_runtime::vocabulary::ucp::{Params, Status};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Run, Task, send};

pub fn w10(task: &Task<'_>) {
    let here = Run::new(task);
    if task.rank() == 0 && task.size() > 1 {
        here.settle();
        // A thread tells rank 1 to send during the wait, so that the wait usually sleeps before the message comes.
        let (ring, context) = (here.go.for_threads(), task.context().expect("a context"));
        std::thread::scope(|scope| {
            if task.virtual_time || !task.mapped {
                here.go_on();
            } else {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    context.ring(&ring, 1).expect("rings");
                });
            }
            here.worker.wait().expect("waits");
        });
        assert_eq!(here.came(), 0, "a wait delivers nothing");
        here.await_messages(1);
    }
    here.answer(1);
    here.end();
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

pub fn w11(task: &Task<'_>) {
    let here = Run::new(task);
    if task.rank() == 0 && task.size() > 1 {
        here.settle();
        here.go_on();
        here.await_event();
        // The message is already here, so the wait returns at once. Without a message it would not return.
        for _ in 0..10 {
            here.worker.wait().expect("returns at once");
            assert!(!task.is_quiet_alone() || here.came() == 0, "a wait delivers nothing");
        }
        here.await_messages(1);
    }
    here.answer(1);
    // Where a network announces nothing a wait returns by itself now and then.
    let interrupted = || {
        let action = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler only adds to an atomic; the action is filled in with valid values. SA_RESTART is not asked for.
        unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = action;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &new, std::ptr::null_mut()), 0);
        }
        let signal = here.worker.signaller().expect("has the feature");
        // SAFETY: takes nothing and touches no memory.
        let (me, is_over) = (unsafe { libc::pthread_self() }, AtomicBool::new(false));
        let before = HANDLED.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..3 {
                    std::thread::sleep(Duration::from_millis(20));
                    // SAFETY: that thread lives: it waits for the end of this scope.
                    unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                    while HANDLED.load(Ordering::SeqCst) <= before + number {
                        std::thread::yield_now();
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
                is_over.store(true, Ordering::SeqCst);
                signal.signal().expect("signals");
            });
            here.worker.wait().expect("waits");
            assert!(is_over.load(Ordering::SeqCst), "a signal of the system ended the wait");
        });
    };
    if !task.virtual_time && task.is_quiet_alone() {
        here.by_itself(interrupted);
    }
    // poll(2) fails where a process may have no files, and threads of other tests would have none either.
    if task.processes && task.is_quiet_alone() {
        here.by_itself(|| {
            let before = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).expect("a lower limit is allowed");
            let outcome = here.worker.wait();
            setrlimit(Resource::Nofile, before).expect("the limit is no higher than at first");
            assert_eq!(outcome, Err(Status(IO_ERROR)));
        });
    }
    here.end();
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn w12(task: &Task<'_>) {
    const IDLE: Duration = Duration::from_secs(1);
    let here = Run::with_timer(task, &Params::default());
    let idle = || {
        let (wake_up, end) = (task.wake_up().expect("there is one"), std::time::Instant::now() + IDLE);
        let before = cpu_time();
        while let Some(left) = end.checked_duration_since(std::time::Instant::now()) {
            wake_up.wait_for(left).expect("waits");
            if !task.mapped {
                here.drain();
            }
        }
        let used = cpu_time() - before;
        // The table has 50 ms of 2 s. A device that writes into memory and announces nothing is polled a thousand times a second.
        assert!(used < IDLE / if task.announced { 40 } else { 2 }, "{used:?} of {IDLE:?}");
    };
    if !task.virtual_time {
        here.by_itself(idle);
    }
    here.end();
}

pub fn w13(task: &Task<'_>) {
    // The second word of rank 1 is the address of rank 0's word.
    let words = task.alloc::<u64>(2).expect("allocates");
    let here = Run::new(task);
    // SAFETY: an element of this rank's own, aligned, which lives to the end of the row and is touched atomically only.
    let word = unsafe { AtomicU64::from_ptr(words.as_ptr_range().start) };
    if task.rank() == 0 && task.size() > 1 {
        // A put of another rank.
        here.go_on();
        while word.load(Ordering::Acquire) == 0 {
            here.worker.wait_mem(word);
            if !task.mapped {
                here.drain();
            }
        }
        // A store by another thread of this process. In virtual time that is rank 1's thread.
        if task.virtual_time {
            words.put(1, 1, word.as_ptr() as u64).expect("puts");
            task.fence();
            here.settle();
            here.go_on();
            here.settle();
            let (before, mut waits) = (task.elapsed(), 0);
            while word.load(Ordering::Acquire) != 2 {
                here.worker.wait_mem(word);
                waits += 1;
            }
            // Nothing announces a store: a wait finds it within a millisecond, and has slept meanwhile.
            let took = task.elapsed() - before;
            assert!(took <= SOME_TIME + Duration::from_millis(1), "the store was seen after {took:?}");
            assert!(waits <= 2 + SOME_TIME.as_millis(), "{waits} waits in {took:?}");
        } else {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    word.store(2, Ordering::Release);
                });
                while word.load(Ordering::Acquire) != 2 {
                    here.worker.wait_mem(word);
                }
            });
        }
        // A message.
        here.go_on();
        while here.came() == 0 {
            here.worker.wait_mem(word);
            here.drain();
        }
    }
    if task.rank() == 1 {
        here.wait_to_go_on();
        words.put(0, 0, 1).expect("puts");
        task.fence();
        if task.virtual_time {
            here.wait_to_go_on();
            task.sleep(SOME_TIME);
            let address = words.get(1, 1).expect("gets") as *mut u64;
            // SAFETY: rank 0's element, in this process: a simulated job's ranks are its threads. It lives to the end of the row, and is
            // touched atomically only.
            unsafe { AtomicU64::from_ptr(address) }.store(2, Ordering::Release);
        }
        here.wait_to_go_on();
        send(task, 0);
    }
    here.end();
    task.barrier().expect("all are there");
}

/// In virtual time: longer than it takes to settle.
const SOME_TIME: Duration = Duration::from_millis(50);
