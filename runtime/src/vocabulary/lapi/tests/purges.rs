//! Purges: the waits that they end, and those that they do not end.

use super::*;
use crate::vocabulary::lapi::domain;
use crate::vocabulary::lapi::traffic::Place;

/// More bytes than travel with a header: the target fetches them when it makes progress.
const LONG_DATA: usize = 20_000;

fn purge(handle: Handle, task: u32) {
    assert_eq!(raw::purge_totask(handle, task), codes::SUCCESS);
}

fn resume(handle: Handle, task: u32) {
    assert_eq!(raw::resume_totask(handle, task), codes::SUCCESS);
}

/// A wait of task 0 ends when another thread purges task 1.
pub(super) fn is_purged(handle: Handle, name: &str, wait: &dyn Fn() -> Result<(), Code>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                assert_eq!(raw::purge_totask(handle, 1), codes::SUCCESS);
                assert_eq!(raw::resume_totask(handle, 1), codes::SUCCESS);
                std::thread::yield_now();
            }
        });
        let waited = wait();
        over.store(true, Ordering::Release);
        assert_eq!(waited, Err(Code(codes::TGT_PURGED)), "{name}");
    });
}

/// Term, while it waits for data that task 1 has not fetched, and in its barrier. It goes on when it is made again.
#[test]
fn a_purge_ends_every_wait_of_term() {
    let (begin, done) = (Barrier::new(2), AtomicBool::new(false));
    for len in [0, 20_000] {
        done.store(false, Ordering::Release);
        run(2, |lapi| {
            let handle = lapi.number();
            lapi.handler(2, |_, _| Answer::vec(Vec::new())).expect("an index of the table");
            lapi.gfence().expect("both have the handler");
            begin.wait();
            if lapi.rank() == 0 {
                if len != 0 {
                    lapi.message(1, 2).data(vec![1; len]).send().expect("sends");
                }
                let ended = || match raw::term(handle) {
                    codes::SUCCESS => Ok(()),
                    code => Err(Code(code)),
                };
                is_purged(handle, &format!("term, {len} bytes"), &ended);
                is_purged(handle, &format!("term again, {len} bytes"), &ended);
                done.store(true, Ordering::Release);
            }
            await_flag(&done);
            assert_eq!(raw::term(handle), codes::SUCCESS);
        });
    }
}

/// Waits of task 0 for task 1, which lives and does not poll, end when another thread purges a task. The collective calls go on when they are made
/// again.
#[test]
fn a_purge_ends_every_wait() {
    const LEN: usize = 20_000;
    let (begin, done) = (Barrier::new(2), AtomicBool::new(false));
    run(2, |lapi| {
        let handle = lapi.number();
        lapi.handler(2, |_, _| Answer::vec(Vec::new())).expect("an index of the table");
        let bell = lapi.bell().expect("makes a bell");
        lapi.gfence().expect("both have the handler");
        begin.wait();
        if lapi.rank() == 1 {
            await_flag(&done);
            lapi.gfence().expect("task 0 goes on with its call");
            assert_eq!(raw::term(handle), codes::SUCCESS);
            return;
        }
        let purged = |name: &str, wait: &dyn Fn() -> Result<(), Code>| is_purged(handle, name, wait);
        // The barrier alone, and then a fence before it.
        purged("gfence in its barrier", &|| lapi.gfence());
        let completion = Completion::new();
        lapi.message(1, 2).data(vec![1; LEN]).completion(&completion).send().expect("sends");
        purged("fence", &|| lapi.fence());
        purged("gfence", &|| lapi.gfence());
        purged("counter", &|| lapi.wait(&Counter::new(), 1).map(drop));
        purged("bell", &|| lapi.wait_bell(bell, 1).map(drop));
        purged("completion", &|| lapi.wait_completion(&completion));
        done.store(true, Ordering::Release);
        lapi.gfence().expect("it goes on with the first one");
        assert_eq!(lapi.wait_completion(&completion), Ok(()));
        assert_eq!(raw::term(handle), codes::SUCCESS);
    });
}

/// Task 0 is ended in the second round of a barrier of three tasks, and goes on there.
#[test]
fn a_purge_ends_a_barrier_in_its_second_round() {
    let (begin, purged) = (Barrier::new(3), AtomicBool::new(false));
    run(3, |lapi| {
        let handle = lapi.number();
        match lapi.rank() {
            // Task 2 tells it the first round, and task 1 does not tell it the second one.
            0 => loop {
                is_purged(handle, "gfence", &|| lapi.gfence());
                let traffic = &port::enter(handle).expect("a handle").traffic;
                let left = traffic.enter_barrier(Collective::Gfence);
                traffic.leave_behind(left);
                if left.round == 1 {
                    assert!(left.is_told);
                    purged.store(true, Ordering::Release);
                    break;
                }
            },
            1 => await_flag(&purged),
            _ => {}
        }
        lapi.gfence().expect("all make it");
        begin.wait();
        // All that was told is here after a poll.
        (0..100).for_each(|_| assert_eq!(raw::probe(handle), codes::SUCCESS));
        {
            let traffic = &port::enter(handle).expect("a handle").traffic;
            let next = traffic.enter_barrier(Collective::Term);
            let rounds = [0, 1].map(|round| traffic.has_round(Place { round, ..next }));
            assert_eq!(rounds, [Ok(false); 2], "each round is told once");
            traffic.leave_behind(next);
        }
        begin.wait();
        assert_eq!(raw::term(handle), codes::SUCCESS);
    });
}

/// `Address_init` and the making of a bell, which go on when they are made again.
#[test]
fn a_purge_ends_the_barriers_of_exchanges() {
    let begin = Barrier::new(2);
    run(2, |lapi| {
        let (handle, own) = (lapi.number(), lapi.rank() as u64 + 7);
        let exchanged = || {
            let mut table = [0; 2];
            // SAFETY: the table has room for two values.
            match unsafe { raw::address_init(handle, own, table.as_mut_ptr()) } {
                codes::SUCCESS => Ok(table),
                code => Err(Code(code)),
            }
        };
        if lapi.rank() == 0 {
            is_purged(handle, "Address_init", &|| exchanged().map(drop));
        }
        begin.wait();
        assert_eq!(exchanged(), Ok([7, 8]));
        if lapi.rank() == 0 {
            is_purged(handle, "bell", &|| lapi.bell().map(drop));
        }
        begin.wait();
        let bell = lapi.bell().expect("makes a bell");
        assert_eq!(lapi.wait_bell(bell, 0), Ok(0));
        lapi.gfence().expect("both are as far");
        assert_eq!(raw::term(handle), codes::SUCCESS);
    });
}

/// The barrier of a call that is followed by an exchange has told task 1 of its only round: task 1 waits in the exchange.
#[test]
fn no_other_call_takes_the_place_of_one_for_which_others_wait_in_an_exchange() {
    type Call = fn(&Lapi) -> i32;
    let calls: [(Collective, Call); 3] = [
        (Collective::AddressInit, |lapi| {
            let mut table = [0; 2];
            // SAFETY: the table has room for two values.
            unsafe { raw::address_init(lapi.number(), 7, table.as_mut_ptr()) }
        }),
        (Collective::Bell, |lapi| lapi.bell().map_or_else(|Code(code)| code, |_| codes::SUCCESS)),
        (Collective::Term, |lapi| raw::term(lapi.number())),
    ];
    for (ended, call) in calls {
        let begin = Barrier::new(2);
        run(2, |lapi| {
            let handle = lapi.number();
            if lapi.rank() == 0 {
                let mut is_told = false;
                while !is_told {
                    is_purged(handle, ended.name(), &|| match call(lapi) {
                        codes::SUCCESS => Ok(()),
                        code => Err(Code(code)),
                    });
                    let traffic = &port::enter(handle).expect("a handle").traffic;
                    let left = traffic.enter_barrier(ended);
                    is_told = left.is_told;
                    traffic.leave_behind(left);
                }
                let gfence: Call = |lapi| raw::gfence(lapi.number());
                let others =
                    calls.into_iter().filter(|(other, _)| *other != ended).chain([(Collective::Gfence, gfence)]);
                for (other, call) in others {
                    assert_eq!(call(lapi), codes::RUNTIME, "{ended:?}, then {other:?}");
                    let text = Failure::last(codes::RUNTIME).expect("it has a text").text;
                    assert!(text.contains(&format!("call {} again before", ended.name())), "{text}");
                }
            }
            begin.wait();
            assert_eq!(call(lapi), codes::SUCCESS, "{ended:?}");
            if ended != Collective::Term {
                assert_eq!(raw::term(handle), codes::SUCCESS);
            }
        });
    }
}

/// Tasks 1 to 3 call `Gfence`, task 0 something else, for which it would wait in an exchange.
#[test]
fn collective_calls_that_differ_are_errors_at_all_tasks() {
    for tasks in [2, 4] {
        run(tasks, |lapi| {
            let handle = lapi.number();
            let (code, other) = if lapi.rank() == 0 {
                let mut table = vec![0; tasks];
                // SAFETY: the table has room for a value of each task.
                (
                    unsafe { raw::address_init(handle, 7, table.as_mut_ptr()) },
                    "in LAPI_Gfence, this task in LAPI_Address_init",
                )
            } else {
                (raw::gfence(handle), "in LAPI_Address_init, this task in LAPI_Gfence")
            };
            assert_eq!(code, codes::RUNTIME);
            let text = Failure::last(codes::RUNTIME).expect("it has a text").text;
            assert!(text.contains(other) || lapi.rank() == 3 && text.starts_with("task 1 gave up a barrier"), "{text}");
            lapi.gfence().expect("all are in it");
            assert_eq!(raw::term(handle), codes::SUCCESS);
        });
    }
}

/// The purge comes when the call has begun, and before its fence or its barrier looks for purges.
#[test]
fn a_purge_before_the_first_wait_of_a_collective_call_ends_it() {
    type Since = fn(Handle, u64) -> Result<(), i32>;
    type Call = fn(Handle) -> i32;
    let calls: [(Since, Call); 2] = [(raw::gfence_since, raw::gfence), (raw::term_since, raw::term)];
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
