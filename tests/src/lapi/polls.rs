//! Rows about polling, and about waiting without it.

use std::ptr::{null, null_mut};

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, MsgInfo, msg_status};
use bellwether_runtime::vocabulary::lapi::{Counter, codes};

use super::handlers::{Header, TAKE, lock, seen, send};
use super::one_sided::{pattern, with};
use super::{Task, all, get as value, gfence, ok, place, wait, watchdog};

pub(super) fn l37_status(task: &Task) {
    with(task, |handle, _, next, _| {
        let (counter, mut states) = (Counter::new(), [-1; 5]);
        let n = place(handle).1 as u32;
        let to = next as u32;
        let own = std::ptr::from_ref(&counter);
        let start = states.as_mut_ptr();
        let read = |i: usize| {
            // SAFETY: a state of this row.
            unsafe { start.add(i).read() }
        };
        let set = |tasks: &[u32]| {
            counter.set(9);
            // SAFETY: there are five states, which stay until they are given up below.
            ok(unsafe { raw::setcntr_wstatus(handle, own, tasks.len() as i32, tasks.as_ptr(), start) }, "wstatus");
            assert_eq!(value(handle, &counter), 0, "it is set to 0");
        };
        let ping = || {
            ok(send(handle, next, TAKE, &Header::default(), &[1; 8], [null(), null(), own]), "send");
            wait(handle, &counter, 1, "the message is handled");
        };
        use msg_status::{INITIAL, INVALID, PURGED, PURGED_RCVD, RECVD};
        // Two messages to the next task, and one to a task that is none.
        set(&[to, n, to]);
        assert_eq!([read(0), read(1), read(2), read(3)], [INITIAL, INVALID, INITIAL, -1]);
        ping();
        assert_eq!([read(0), read(1), read(2)], [RECVD, INVALID, INITIAL]);
        // Another counter's message is not this one's.
        let other = Counter::new();
        ok(send(handle, next, TAKE, &Header::default(), &[1; 8], [null(), null(), &other]), "send");
        wait(handle, &other, 1, "the other message");
        assert_eq!(read(2), INITIAL);
        ok(raw::purge_totask(handle, to), "purge");
        assert_eq!([read(0), read(1), read(2)], [PURGED_RCVD, INVALID, PURGED]);
        set(&[to, n]);
        assert_eq!([read(0), read(1)], [INVALID; 2], "purged before");
        ok(raw::resume_totask(handle, to), "resume");
        // Given up: by Setcntr, by a list of none, by a wait that succeeds.
        for how in 0..3 {
            set(&[to]);
            assert_eq!(read(0), INITIAL);
            // SAFETY: valid, or null, which is allowed here.
            unsafe {
                match how {
                    0 => ok(raw::setcntr(handle, own, 0), "setcntr"),
                    1 => ok(raw::setcntr_wstatus(handle, own, 3, null(), null_mut()), "no tasks"),
                    _ => {
                        ok(send(handle, next, TAKE, &Header::default(), &[], [null(), null(), own]), "send");
                        ok(raw::nopoll_wait(handle, own, 1, null_mut()), "a wait");
                        assert_eq!(read(0), RECVD);
                        start.write(INITIAL);
                    }
                }
            }
            ping();
            assert_eq!(read(0), INITIAL, "given up");
        }
        counter.set(5);
        // SAFETY: all of these are refused.
        let refused = unsafe {
            [
                raw::setcntr_wstatus(handle, null(), 1, &to, start),
                raw::setcntr_wstatus(handle, own, 1, &to, null_mut()),
                raw::setcntr_wstatus(handle, own, -1, &to, start),
                raw::setcntr_wstatus(0, own, 1, &to, start),
            ]
        };
        assert_eq!(refused, [codes::CNTR_NULL, codes::RET_PTR_NULL, codes::CNTR_VAL, codes::HNDL_INVALID]);
        assert_eq!(value(handle, &counter), 5);
        gfence(handle);
    });
}

fn nopoll(handle: Handle, counter: *const Counter, value: i32) -> (i32, i32) {
    let mut left = -1;
    // SAFETY: null or valid.
    let code = unsafe { raw::nopoll_wait(handle, counter, value, &mut left) };
    (code, left)
}

pub(super) fn l37_wait(task: &Task) {
    with(task, |handle, _, next, _| {
        let counter = Counter::new();
        assert_eq!(nopoll(handle, null(), 1), (codes::CNTR_NULL, -1));
        assert_eq!([0, -1].map(|value| nopoll(handle, &counter, value)), [(codes::CNTR_VAL, -1); 2]);
        assert_eq!(nopoll(0, &counter, 1), (codes::HNDL_INVALID, -1));
        counter.set(5);
        assert_eq!(nopoll(handle, &counter, 3), (codes::SUCCESS, 2), "it subtracts");
        assert_eq!(nopoll(handle, &counter, 2), (codes::SUCCESS, 0));
        // In interrupt mode nothing but the increment itself ends a sleep before a second is over: with as many sleeps, a wake-up that
        // does not come runs into the row's limit.
        for round in 0..if task.virtual_time { 5 } else { 60 } {
            watchdog::at(format!("nopoll_wait {round}"));
            ok(send(handle, next, TAKE, &Header::default(), &[1; 8], [null(), null(), &counter]), "send");
            assert_eq!(nopoll(handle, &counter, 1), (codes::SUCCESS, 0));
        }
        gfence(handle);
        if task.virtual_time {
            return;
        }
        // A second waiter is refused while there is a first; a purge ends the wait, and that of Waitcntr.
        let (slow, left) = (Counter::new(), Counter::new());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                loop {
                    // The other thread may be in its call.
                    match nopoll(handle, &slow, 2) {
                        (codes::MULTIPLE_WAITERS, -1) => std::thread::yield_now(),
                        other => break other,
                    }
                }
            });
            watchdog::at("a second waiter");
            loop {
                // The first waiter waits for 2, so it takes nothing from a counter that is at 1.
                slow.set(1);
                match nopoll(handle, &slow, 1) {
                    (codes::MULTIPLE_WAITERS, -1) => break,
                    other => assert_eq!(other, (codes::SUCCESS, 0), "the first one does not wait yet"),
                }
            }
            // SAFETY: a valid counter.
            let other = scope.spawn(|| unsafe { raw::waitcntr(handle, &left, 1, null_mut()) });
            watchdog::at("a purge ends waits");
            // It may come before the other thread waits.
            while !(waiter.is_finished() && other.is_finished()) {
                ok(raw::purge_totask(handle, next as u32), "purge");
                ok(raw::resume_totask(handle, next as u32), "resume");
                std::thread::yield_now();
            }
            assert_eq!(waiter.join().expect("no panic"), (codes::TGT_PURGED, -1));
            assert_eq!(other.join().expect("no panic"), codes::TGT_PURGED);
        });
        assert_eq!((slow.value(), left.value()), (1, 0), "as they were");
    });
}

pub(super) fn l61(task: &Task) {
    with(task, |handle, _, next, _| {
        let poll = |handle, rounds| {
            let mut info = MsgInfo { status: 77, ..MsgInfo::default() };
            // SAFETY: a valid place.
            (unsafe { raw::msgpoll(handle, rounds, &mut info) }, info.status)
        };
        // SAFETY: null is refused.
        assert_eq!(unsafe { raw::msgpoll(handle, 1, null_mut()) }, codes::MSG_INFO_NULL);
        assert_eq!(poll(0, 1), (codes::HNDL_INVALID, 77));
        lock(&seen(handle)).calls.clear();
        // Only these polls make progress.
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
        gfence(handle);
        assert_eq!([0, 3].map(|rounds| poll(handle, rounds)), [(codes::SUCCESS, raw::DISP_CNTR); 2], "nothing to do");
        gfence(handle);
        // One message each, which is handled: its arrival and its completion are two things.
        let completion = Counter::new();
        ok(send(handle, next, TAKE, &Header::default(), &[1; 8], [null(), null(), &completion]), "send");
        let has_come = || !lock(&seen(handle)).calls.is_empty();
        // Another task may be ahead.
        let (mut told, early) = (0, has_come());
        watchdog::at("msgpoll");
        while completion.value() == 0 || !has_come() {
            let (code, status) = poll(handle, u32::MAX);
            ok(code, "msgpoll");
            assert!(matches!(status, raw::SEND_COMPLETE | raw::RECV_COMPLETE | raw::BOTH_COMPLETE), "{status}");
            told |= status;
        }
        assert_eq!(told | if early { raw::RECV_COMPLETE } else { 0 }, raw::BOTH_COMPLETE);
        assert_eq!(wait(handle, &completion, 1, "its completion"), 0);
        gfence(handle);
        if task.virtual_time {
            return;
        }
        // While another thread waits, this one does not poll.
        let gate = Counter::new();
        std::thread::scope(|scope| {
            // SAFETY: a valid counter.
            let waiter = scope.spawn(|| unsafe { raw::waitcntr(handle, &gate, 1, null_mut()) });
            watchdog::at("another thread polls");
            while poll(handle, 1) != (codes::SUCCESS, raw::POLLING_NET) {
                std::thread::yield_now();
            }
            // SAFETY: a valid counter.
            ok(unsafe { raw::setcntr(handle, &gate, 1) }, "setcntr");
            ok(waiter.join().expect("no panic"), "waitcntr");
        });
        gfence(handle);
    });
}

pub(super) fn l32(task: &Task) {
    with(task, |handle, _, next, _| {
        // Nothing but the waits makes progress.
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
        let target = Counter::new();
        let at_next = all(handle, target.address() as u64)[next] as *const Counter;
        let data = pattern(1, 20_000);
        for round in 0..20 {
            let len = [8, 20_000][round % 2];
            ok(send(handle, next, TAKE, &Header::default(), &data[..len], [at_next, null(), null()]), "send");
            // The other one may be a message ahead.
            wait(handle, &target, 1, "both tasks wait");
        }
        gfence(handle);
    });
}
