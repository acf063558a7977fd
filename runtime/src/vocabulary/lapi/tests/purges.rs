//! Purges before a call waits, and of tasks for which it does not wait.

use super::*;
use crate::vocabulary::lapi::domain;

/// More bytes than travel with a header: the target fetches them when it makes progress.
const LONG_DATA: usize = 20_000;

fn purge(handle: Handle, task: u32) {
    assert_eq!(raw::purge_totask(handle, task), codes::SUCCESS);
}

fn resume(handle: Handle, task: u32) {
    assert_eq!(raw::resume_totask(handle, task), codes::SUCCESS);
}

/// The purge comes when the call has begun, and before its fence or its barrier looks for purges.
#[test]
fn a_purge_before_the_first_wait_of_a_collective_call_ends_it() {
    type Since = fn(Handle, u64) -> Result<(), i32>;
    let calls: [(Since, fn(Handle) -> i32); 2] = [(raw::gfence_since, raw::gfence), (raw::term_since, raw::term)];
    let begin = Barrier::new(2);
    for len in [0, LONG_DATA] {
        run(2, |lapi| {
            let handle = lapi.number();
            lapi.handler(2, |_, _| Answer::vec(Vec::new())).expect("an index of the table");
            lapi.gfence().expect("both have the handler");
            for (since, call) in calls {
                begin.wait();
                if lapi.rank() == 0 {
                    if len != 0 {
                        lapi.message(1, 2).data(vec![1; len]).send().expect("sends");
                    }
                    let purges = domain::purges(handle).expect("a handle");
                    purge(handle, 1);
                    resume(handle, 1);
                    assert_eq!(since(handle, purges), Err(codes::TGT_PURGED), "{len} bytes");
                }
                begin.wait();
                assert_eq!(call(handle), codes::SUCCESS, "{len} bytes");
            }
        });
    }
}

/// Task 1 lives, and does not poll.
#[test]
fn a_fence_does_not_wait_for_a_task_that_was_purged_before() {
    let begin = Barrier::new(2);
    for gets in [false, true] {
        run(2, |lapi| {
            let handle = lapi.number();
            lapi.handler(2, |_, _| Answer::vec(Vec::new())).expect("an index of the table");
            lapi.gfence().expect("both have the handler");
            begin.wait();
            let (mut here, arrived) = (0u64, Counter::new());
            if lapi.rank() == 0 {
                if gets {
                    let (from, to) = (THERE.as_ptr().cast_const().cast(), (&raw mut here).cast());
                    // SAFETY: both are variables of this process, and this one stays until the global fence.
                    let got = unsafe { raw::get(handle, 1, 8, from, to, null(), &arrived) };
                    assert_eq!(got, codes::SUCCESS);
                } else {
                    lapi.message(1, 2).data(vec![1; LONG_DATA]).send().expect("sends");
                }
                purge(handle, 1);
                let fenced = [(); 2].map(|()| lapi.fence());
                assert_eq!(fenced, [Err(Code(codes::TGT_PURGED)); 2], "gets: {gets}");
            }
            begin.wait();
            lapi.gfence().expect("it waits for purged tasks");
            if lapi.rank() == 0 {
                assert_eq!((arrived.value(), here), if gets { (1, 5) } else { (0, 0) });
                lapi.fence().expect("task 1 has answered");
                resume(handle, 1);
            }
            assert_eq!(raw::term(handle), codes::SUCCESS);
        });
    }
}

/// Task 0's fence waits for task 1 when another thread purges task 2.
#[test]
fn a_purge_ends_no_fence_that_waits_for_another_task() {
    let (begin, purged) = (Barrier::new(3), AtomicBool::new(false));
    run(3, |lapi| {
        let handle = lapi.number();
        lapi.handler(2, |_, _| Answer::vec(Vec::new())).expect("an index of the table");
        lapi.gfence().expect("all have the handler");
        begin.wait();
        if lapi.rank() == 0 {
            lapi.message(1, 2).data(vec![1; LONG_DATA]).send().expect("sends");
            let fenced = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while port::enter(handle).expect("a handle").traffic.is_fenced() {
                        std::thread::yield_now();
                    }
                    purge(handle, 2);
                    resume(handle, 2);
                    purged.store(true, Ordering::Release);
                });
                lapi.fence()
            });
            assert_eq!(fenced, Ok(()), "task 1 was not purged");
        }
        await_flag(&purged);
        lapi.gfence().expect("all are as far");
        assert_eq!(raw::term(handle), codes::SUCCESS);
    });
}

/// `Lapi::finish` has taken the handle, so it makes the call again that a purge has ended.
#[test]
fn a_purge_does_not_end_finish() {
    const PURGES: usize = 1000;
    let (purged, begin) = (AtomicBool::new(false), Barrier::new(2));
    let job = Threads::new(2).deadline(Duration::from_secs(60));
    let ran = job.build(|builder| {
        let lapi = Lapi::start(builder).expect("starts");
        let handle = lapi.number();
        assert_eq!(raw::senv(handle, raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
        if lapi.rank() == 1 {
            await_flag(&purged);
            return lapi.finish().expect("finishes");
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                for _ in 0..PURGES {
                    purge(handle, 1);
                    resume(handle, 1);
                    std::thread::yield_now();
                }
                purged.store(true, Ordering::Release);
            });
            begin.wait();
            lapi.finish().expect("finishes");
        });
    });
    ran.expect("runs");
}
