//! The beginning and the end of a handle, while messages arrive and handlers run.

use super::purges::is_purged;
use super::*;
use crate::vocabulary::lapi::domain::{barrier, fence_together, purges};

/// Task 0 is in `Term`. Task 1 makes the parts of `Term`, so that both rounds have the same counts of sent messages, and the handler of a message
/// that the second round has brought still runs. The handle does not end before the handler has returned.
#[test]
fn term_waits_for_a_handler_of_a_message_of_its_last_round() {
    let begin = Barrier::new(2);
    let [goes_on, has_run] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    run(2, |lapi| {
        let handle = lapi.number();
        let (gate, done) = (Arc::clone(&goes_on), Arc::clone(&has_run));
        let slow = lapi.handler(1, move |_, _| {
            let (gate, done) = (Arc::clone(&gate), Arc::clone(&done));
            Answer::discard().then(move |_, _| {
                await_flag(&gate);
                done.store(true, Ordering::Release);
            })
        });
        slow.expect("an index of the table");
        // A thread of its own runs the completion handlers of task 0.
        assert_eq!(raw::senv(handle, raw::query::INTERRUPT_SET, 1), codes::SUCCESS);
        lapi.gfence().expect("both have the handler");
        begin.wait();
        if lapi.rank() == 0 {
            assert_eq!(raw::term(handle), codes::SUCCESS);
            assert!(has_run.load(Ordering::Acquire), "a handler runs after the end of the handle");
            return;
        }
        let gather = |sent| {
            let domain = enter_outside(handle).expect("a handle");
            domain.world.allgather(&[sent, 1]).expect("task 0 is in it")
        };
        let sent = port::enter(handle).expect("a handle").traffic.sent();
        barrier(handle, Collective::Term).expect("task 0 is in it");
        // As if the message was on its way.
        let [of_zero, ..] = gather(sent + 1)[..] else { panic!("two values of each task") };
        // Task 0 has waited for the handlers of the second round.
        let place = port::enter(handle).expect("a handle").traffic.enter_barrier(Collective::Term);
        port::enter(handle).expect("a handle").traffic.leave_behind(place);
        while port::enter(handle).expect("a handle").traffic.has_round(place) != Ok(true) {
            assert_eq!(raw::probe(handle), codes::SUCCESS);
        }
        lapi.message(0, 1).send().expect("sends");
        fence_together(handle, purges(handle).expect("a handle")).expect("task 0 has the message");
        barrier(handle, Collective::Term).expect("task 0 is in it");
        let second = gather(sent + 1);
        goes_on.store(true, Ordering::Release);
        assert_eq!(second, [of_zero, 0, sent + 1, 1], "task 0 has a handler that runs");
        port::enter(handle).expect("a handle").traffic.sent_before.replace(vec![of_zero, sent + 1]);
        // From the third round on.
        assert_eq!(raw::term(handle), codes::SUCCESS);
    });
}

/// A purge has ended task 0's `Term` when its part of the barrier was told, and then a handler begins that waits for task 1. Task 1 is in the
/// exchange, and goes on only when task 0 is, too.
#[test]
fn term_made_again_does_not_wait_for_handlers_before_it_joins_the_others() {
    let begin = Barrier::new(2);
    let [goes_on, runs] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    run(2, |lapi| {
        let handle = lapi.number();
        let (gate, begun) = (Arc::clone(&goes_on), Arc::clone(&runs));
        let slow = lapi.handler(1, move |_, _| {
            let (gate, begun) = (Arc::clone(&gate), Arc::clone(&begun));
            Answer::discard().then(move |_, _| {
                begun.store(true, Ordering::Release);
                await_flag(&gate);
            })
        });
        slow.expect("an index of the table");
        assert_eq!(raw::senv(handle, raw::query::INTERRUPT_SET, 1), codes::SUCCESS);
        lapi.gfence().expect("both have the handler");
        if lapi.rank() == 0 {
            let mut is_told = false;
            while !is_told {
                is_purged(handle, "Term", &|| match raw::term(handle) {
                    codes::SUCCESS => Ok(()),
                    code => Err(Code(code)),
                });
                let traffic = &port::enter(handle).expect("a handle").traffic;
                let left = traffic.enter_barrier(Collective::Term);
                is_told = left.is_told;
                traffic.leave_behind(left);
            }
            begin.wait();
            await_flag(&runs);
            assert_eq!(raw::term(handle), codes::SUCCESS);
            return;
        }
        begin.wait();
        lapi.message(0, 1).send().expect("sends");
        barrier(handle, Collective::Term).expect("task 0 is in it");
        let domain = enter_outside(handle).expect("a handle");
        let all = domain.world.allgather(&[domain.traffic.sent(), 1]).expect("task 0 is in it");
        domain.traffic.sent_before.replace(vec![all[0], all[2]]);
        drop(domain);
        goes_on.store(true, Ordering::Release);
        assert_eq!(all[1], 0, "task 0 has a handler that runs");
        assert_eq!(raw::term(handle), codes::SUCCESS);
    });
}
