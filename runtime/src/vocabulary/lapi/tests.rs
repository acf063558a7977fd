//! Departures of tasks, failed places and malformed messages, in the books of a task: what no call of a program shows by itself.

use std::ffi::c_void;
use std::ptr::null;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::event::Event;
use super::failure::Failure;
use super::{Counter, Lapi, Signal, codes, kind, port, raw};
use crate::Threads;
use crate::error::Loss;

/// Runs a program of every task in polling mode.
fn run(tasks: usize, program: impl Fn(&Lapi) + Sync) {
    let job = Threads::new(tasks).deadline(Duration::from_secs(60));
    // No task begins while another is in the fence, which would tell it of errors.
    let begin = Barrier::new(tasks);
    let ran = job.build(|builder| {
        let lapi = Lapi::start(builder).expect("starts");
        assert_eq!(raw::senv(lapi.number(), raw::query::INTERRUPT_SET, 0), codes::SUCCESS);
        lapi.gfence().expect("all are in polling mode");
        begin.wait();
        program(&lapi);
    });
    ran.expect("runs");
}

/// Makes progress until so many calls have returned `code`. All others succeed.
fn until_told(lapi: &Lapi, code: i32, times: usize) {
    let mut told = 0;
    while told < times {
        match raw::probe(lapi.number()) {
            codes::SUCCESS => std::thread::yield_now(),
            other => {
                assert_eq!(other, code, "{:?}", Failure::last(other));
                told += 1;
            }
        }
    }
}

/// Two long places of a vector fail. Its completion counter stands for one answer, and each place tells the origin of its failure.
#[test]
fn places_that_fail_take_one_answer_from_what_is_owed() {
    // The first page but one is not mapped, and only the kernel knows.
    const BAD: usize = 4096;
    const LEN: usize = 20_000;
    run(2, |lapi| {
        let (handle, never) = (lapi.number(), Counter::new());
        let mut data = vec![1u8; 2 * LEN];
        if lapi.rank() == 0 {
            // Another message with a completion counter, which has no answer yet.
            port::enter(handle).expect("a handle").owed.expect(1);
            let start = data.as_mut_ptr().cast::<c_void>();
            let mut from = [start, start.wrapping_byte_add(LEN)];
            let mut to = [BAD, BAD + 2 * LEN].map(|at| at as *mut c_void);
            let mut lengths = [[LEN as u64; 2]; 2];
            let [own, same] = &mut lengths;
            let vector = |info: &mut [*mut c_void; 2], len: &mut [u64; 2]| raw::Vector {
                vec_type: raw::GEN_IOVECTOR,
                num_vecs: 2,
                info: info.as_mut_ptr(),
                len: len.as_mut_ptr(),
            };
            let (org_vec, tgt_vec) = (vector(&mut from, own), vector(&mut to, same));
            // SAFETY: the data stays until the fence, and the places at the target are refused.
            let sent = unsafe { raw::putv(handle, 1, &tgt_vec, &org_vec, null(), null(), &never) };
            assert_eq!(sent, codes::SUCCESS);
        }
        until_told(lapi, codes::BAD_ADDRESS, 2);
        lapi.gfence().expect("nothing is under way");
        if lapi.rank() == 0 {
            let domain = port::enter(handle).expect("a handle");
            assert_eq!(domain.owed.tasks().collect::<Vec<_>>(), [1], "the other message has no answer yet");
            domain.owed.completed(1);
            assert!(!domain.owed.any() && never.value() == 0);
        }
        lapi.gfence().expect("the data is not read any more");
    });
}

/// Task 0 after all others have left: what is a loss for it, and what is not.
#[test]
fn a_task_that_left_is_lost_for_what_it_owes_and_is_not_purged() {
    run(3, |lapi| {
        if lapi.rank() != 0 {
            return;
        }
        let handle = lapi.number();
        let domain = port::enter(handle).expect("a handle");
        let job = &domain.world.engine().job;
        while (1..3).any(|task| job.loss(task) != Some(Loss::Left)) {
            std::thread::yield_now();
        }
        let (counter, shared) = (Counter::new(), Arc::new(Counter::new()));
        let event = Event::counter(&counter);
        let lost = || domain.check_not_left("a test").err().map(|code| Failure::last(code).and_then(|last| last.task));
        let purge = |task, purged: bool| {
            let call = if purged { raw::purge_totask } else { raw::resume_totask };
            assert_eq!(call(handle, task), codes::SUCCESS);
        };
        domain.fail_event(event, codes::NO_HNDLR_SET, 1);
        domain.signal(Signal::from(&shared), Err(codes::NO_HNDLR_SET), 1);
        assert_eq!(lost(), None, "task 1 has answered");
        purge(1, true);
        domain.fail_event(event, codes::PEER_LOST, 1);
        purge(1, false);
        assert_eq!(lost(), None, "nothing was expected of task 1");
        domain.signal(Signal::from(&shared), Err(codes::PEER_LOST), 1);
        assert_eq!(lost(), Some(Some(1)));
        purge(1, true);
        assert_eq!(lost(), None, "nothing is expected of task 1 any more");
        domain.fail_event(event, codes::PEER_LOST, 2);
        assert_eq!(lost(), Some(Some(2)), "task 1 is purged");
        assert_eq!((counter.value(), shared.value()), (0, 0));
    });
}

/// What no task of ours sends is an error, and counts for no barrier.
#[test]
fn a_malformed_barrier_message_is_told_and_not_counted() {
    let lost = codes::PEER_LOST as u64;
    // A task that is none, and a round that no barrier has.
    let malformed = [[0, lost, 3], [0, lost, u64::MAX], [32, 0, 0], [u64::MAX, lost, 0]];
    run(2, |lapi| {
        if lapi.rank() == 0 {
            let domain = port::enter(lapi.number()).expect("a handle");
            malformed.iter().for_each(|words| domain.tell(1, kind::BARRIER, words));
        } else {
            until_told(lapi, codes::RUNTIME, malformed.len());
        }
        for _ in 0..2 {
            lapi.gfence().expect("its rounds have come whole");
        }
    });
}
