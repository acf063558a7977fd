//! Panics that meet other panics, or collective calls.

use super::*;
use crate::error::Error;
use crate::vocabulary::lapi::Job;
use crate::vocabulary::lapi::domain::barrier;

/// Panics when it is dropped, if it is to.
struct Falls(bool);

impl Drop for Falls {
    fn drop(&mut self) {
        assert!(!self.0, "it falls");
    }
}

/// The panic of a handler comes out of a send. What the functions of both events hold panics when these are forgotten: the next call returns
/// the code, and the process goes on.
#[test]
fn panics_of_what_two_events_hold_end_no_process() {
    panics_once(true, None, |lapi, again| {
        let [origin, completion] = [Falls(!again), Falls(!again)].map(|falls| Signal::call(move |_| drop(falls)));
        let send = || lapi.message(1, 2).origin(origin).completion(completion).send();
        match catch_unwind(AssertUnwindSafe(send)) {
            Ok(sent) => sent.expect("sends"),
            Err(panic) => {
                until_told(lapi, codes::HANDLER_PANICKED, 1);
                resume_unwind(panic)
            }
        }
    });
}

/// As above, of one event: the other one ends too.
#[test]
fn a_panic_of_what_an_event_holds_is_told_after_that_of_a_handler() {
    panics_once(true, None, |lapi, again| {
        let (completion, falls) = (Completion::new(), Falls(!again));
        let origin = Signal::call(move |_| drop(falls));
        let send = || lapi.message(1, 2).origin(origin).completion(&completion).send();
        match catch_unwind(AssertUnwindSafe(send)) {
            Ok(sent) => {
                sent.expect("sends");
                assert_eq!(lapi.wait_completion(&completion), Ok(()));
            }
            Err(panic) => {
                until_told(lapi, codes::HANDLER_PANICKED, 1);
                assert_eq!(lapi.wait_completion(&completion), Err(Code(codes::RUNTIME)));
                resume_unwind(panic)
            }
        }
    });
}

/// The panic of a handler comes out of `finish` when the job has ended: the other task does not find this one lost.
#[test]
fn a_panic_out_of_finish_comes_when_the_job_has_finished() {
    let (panics, begin) = (AtomicUsize::new(0), Barrier::new(2));
    let ran = Threads::new(2).deadline(Duration::from_secs(60)).build(|builder| {
        let lapi = Lapi::start(builder).expect("starts");
        assert_eq!(raw::senv(lapi.number(), raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
        lapi.handler(1, |_, _| -> Answer { panic!("it is not wanted") }).expect("an index of the table");
        lapi.gfence().expect("both have the handler");
        // A message that came while task 0 is still in that call would be told by a code.
        begin.wait();
        let is_origin = lapi.rank() == 1;
        if is_origin {
            lapi.message(0, 1).send().expect("sends");
        }
        match catch_unwind(AssertUnwindSafe(|| lapi.finish())) {
            // The sender is told, too.
            Ok(finished) => assert!(is_origin && matches!(finished, Err(Error::HandlerPanicked { rank: 0, .. }))),
            Err(panic) => {
                assert_eq!((panic.downcast_ref(), is_origin), (Some(&"it is not wanted"), false));
                panics.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    ran.expect("runs");
    assert_eq!(panics.into_inner(), 1);
}

/// How far a collective call of task 0 is.
#[derive(Default)]
struct Inside {
    exchanges: AtomicBool,
    has_panicked: AtomicBool,
}

/// Task 0 makes a collective call. Task 1 makes its parts, and calls the function that it gets between the barrier and the exchange of that call: a
/// handler of task 0 panics in the exchange then. The panic comes out of no call, a later one returns the code at both tasks, and later panics come
/// out of calls.
fn panics_in_an_exchange(call: fn(&Lapi), parts: fn(&Lapi, &dyn Fn())) {
    let (begin, inside) = (Barrier::new(2), Arc::new(Inside::default()));
    run(2, |lapi| {
        let (handle, sees) = (lapi.number(), Arc::clone(&inside));
        let panics = lapi.handler(1, move |_, _| -> Answer {
            sees.has_panicked.store(true, Ordering::Release);
            panic!("it is not wanted")
        });
        panics.expect("an index of the table");
        let sees = Arc::clone(&inside);
        let looks = lapi.handler(2, move |_, _| {
            let exchanges = port::enter(handle).is_ok_and(|domain| domain.catches.get());
            sees.exchanges.fetch_or(exchanges, Ordering::Release);
            Answer::discard()
        });
        looks.expect("an index of the table");
        lapi.gfence().expect("both have the handlers");
        begin.wait();
        if lapi.rank() == 0 {
            call(lapi);
        } else {
            parts(lapi, &|| {
                while !inside.exchanges.load(Ordering::Acquire) {
                    lapi.message(0, 2).send().expect("sends");
                    std::thread::yield_now();
                }
                lapi.message(0, 1).send().expect("sends");
                await_flag(&inside.has_panicked);
            });
        }
        // Term has ended it.
        if port::enter(handle).is_err() {
            return;
        }
        until_told(lapi, codes::HANDLER_PANICKED, 1);
        let text = Failure::last(codes::HANDLER_PANICKED).expect("it has a text").text;
        assert!(text.contains("it is not wanted"), "{text}");
        begin.wait();
        if lapi.rank() == 0 {
            let polls = || while raw::probe(handle) == codes::SUCCESS {};
            let panic = catch_unwind(AssertUnwindSafe(polls)).expect_err("a handler panics");
            assert_eq!(panic.downcast_ref(), Some(&"it is not wanted"));
        } else {
            lapi.message(0, 1).send().expect("sends");
            until_told(lapi, codes::HANDLER_PANICKED, 1);
        }
        lapi.gfence().expect("both have told all");
        assert_eq!(raw::term(handle), codes::SUCCESS);
    });
}

#[test]
fn a_panic_in_an_exchange_comes_out_of_no_address_init() {
    let call: fn(&Lapi) = |lapi| {
        let mut table = [0; 2];
        // SAFETY: the table has room for two values.
        assert_eq!(unsafe { raw::address_init(lapi.number(), 7, table.as_mut_ptr()) }, codes::SUCCESS);
        assert_eq!(table, [7, 8]);
    };
    panics_in_an_exchange(call, |lapi, panics| {
        barrier(lapi.number(), Collective::AddressInit).expect("task 0 is in it");
        panics();
        let domain = enter_outside(lapi.number()).expect("a handle");
        assert_eq!(domain.world.allgather(&[8u64]).expect("task 0 is in it"), [7, 8]);
    });
}

#[test]
fn a_panic_in_an_exchange_comes_out_of_no_bell() {
    let call: fn(&Lapi) = |lapi| {
        let bell = lapi.bell().expect("makes a bell");
        assert_eq!(lapi.wait_bell(bell, 0), Ok(0));
    };
    panics_in_an_exchange(call, |lapi, panics| {
        barrier(lapi.number(), Collective::Bell).expect("task 0 is in it");
        panics();
        let domain = enter_outside(lapi.number()).expect("a handle");
        let bell = domain.world.bell().expect("task 0 is in it");
        domain.bells.all.borrow_mut().push(bell);
    });
}

#[test]
fn a_panic_in_an_exchange_comes_out_of_no_term() {
    let call: fn(&Lapi) = |lapi| assert_eq!(raw::term(lapi.number()), codes::SUCCESS);
    panics_in_an_exchange(call, |lapi, panics| {
        let handle = lapi.number();
        barrier(handle, Collective::Term).expect("task 0 is in it");
        panics();
        let domain = enter_outside(handle).expect("a handle");
        let all = domain.world.allgather(&[domain.traffic.sent(), 1]).expect("task 0 is in it");
        domain.traffic.sent_before.replace(vec![all[0], all[2]]);
        drop(domain);
        until_told(lapi, codes::HANDLER_PANICKED, 1);
        // From the second round on.
        assert_eq!(raw::term(handle), codes::SUCCESS);
    });
}

/// An error of a message that no call has returned: the handle ends, and the next one begins. The end of the job returns the last error.
#[test]
fn an_error_of_a_message_keeps_no_handle_from_its_end() {
    const WHY: &str = "it is of a test";
    let ended = Threads::new(2).deadline(Duration::from_secs(60)).build(|builder| {
        let job = Job::start(builder).expect("starts");
        let mut is_told = false;
        for _ in 0..2 {
            let handle = job.init().expect("makes a handle");
            let domain = port::enter(handle).expect("a handle");
            is_told = domain.world.rank() == 0;
            if is_told {
                domain.world.engine().faults.keep(Error::BadMessage { from: 1, why: WHY.to_owned() });
            }
            drop(domain);
            assert_eq!(raw::term(handle), codes::SUCCESS);
        }
        let finished = job.finish();
        assert_eq!(finished.is_err_and(|error| error.to_string().contains(WHY)), is_told);
    });
    ended.expect("runs");
}
