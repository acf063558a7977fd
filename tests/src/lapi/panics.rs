//! Rows about handlers that panic.

use std::ptr::null;

use bellwether_runtime::vocabulary::lapi::{Counter, Failure, What, codes, raw};

use super::handlers::{INLINE, PANIC, PANIC_LATE, TAKE, THEN, send};
use super::messages::{NONE, counter_at, header};
use super::{Task, all, get, gfence, ok, place, wait};

pub(super) fn a_panic(task: &Task) {
    let handle = task.init();
    let (me, n) = place(handle);
    // The panic is to come out of a call of this thread.
    ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
    let ready = Counter::new();
    let at_zero = counter_at(handle, 0, &ready);
    if me == n - 1 {
        // From here on it catches panics.
        ok(send(handle, 0, TAKE, &header(0, 0), &[], [at_zero, null(), null()]), "ready");
    }
    let send_it = || {
        wait(handle, &ready, 1, "the target catches panics");
        ok(send(handle, n - 1, TAKE, &header(PANIC, 3), &[1; 8], NONE), "send");
    };
    if me == 0 && n > 1 {
        send_it();
        super::watchdog::at("the origin of a panic");
        while raw::probe(handle) != codes::HANDLER_PANICKED {
            std::thread::yield_now();
        }
        told(n - 1);
    }
    if me == n - 1 {
        super::watchdog::at("a panic");
        let panic = std::panic::catch_unwind(|| {
            if n == 1 {
                send_it();
            }
            // SAFETY: a valid counter, which stays at 0.
            unsafe { raw::waitcntr(handle, &Counter::new(), 1, std::ptr::null_mut()) }
        });
        let panic = panic.expect_err("it panics");
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("message 3 is not wanted"));
    }
    if n == 1 {
        while raw::probe(handle) != codes::HANDLER_PANICKED {}
        told(0);
    }
    gfence(handle);
    task.term(handle);
}

/// The last code came with task, handler and place of the panic at task `at`.
fn told(at: usize) {
    let Failure { what, task, text, .. } = Failure::last(codes::HANDLER_PANICKED).expect("it has a text");
    assert_eq!((what, task), (What::Message, Some(at)), "{text}");
    for part in [&format!("rank {at}: "), "`header handler 1`", "handlers.rs:", ": message 3 is not wanted"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

/// Completion handlers panic, on the handler thread and inline: the origin gets an error with task, handler and place. The target gets it
/// too, or the panic comes out of its call. No counter moves, and the job goes on.
pub(super) fn a_late_panic(task: &Task) {
    let handle = task.init();
    let (me, n) = place(handle);
    ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
    let [target, completion] = [const { Counter::new() }; 2];
    let at_last = counter_at(handle, n - 1, &target);
    let ready = Counter::new();
    let at_zero = counter_at(handle, 0, &ready);
    for (mode, name) in
        [(THEN, "`completion handler of header handler 1`"), (THEN | INLINE, "`inline completion handler")]
    {
        let inline = mode & INLINE != 0;
        let mut left = usize::from(me == 0) + usize::from(me == n - 1);
        if me == n - 1 {
            // From here on it catches panics.
            ok(send(handle, 0, TAKE, &header(0, 0), &[], [at_zero, null(), null()]), "ready");
        }
        if me == 0 {
            wait(handle, &ready, 1, "the target catches panics");
            ok(
                send(handle, n - 1, TAKE, &header(mode | PANIC_LATE, 3), &[1; 8], [at_last, null(), &completion]),
                "send",
            );
        }
        super::watchdog::at(format!("a panic of a completion handler, inline: {inline}"));
        while left != 0 {
            match std::panic::catch_unwind(|| raw::probe(handle)) {
                Ok(codes::SUCCESS) => std::thread::yield_now(),
                Ok(code) => {
                    assert_eq!(code, codes::HANDLER_PANICKED);
                    let Failure { what, task, text, .. } = Failure::last(code).expect("it has a text");
                    assert_eq!((what, task), (What::Message, Some(n - 1)), "{text}");
                    for part in [&format!("rank {}: ", n - 1), name, "handlers.rs:", ": message 3 cannot be handled"] {
                        assert!(text.contains(part), "{part:?} in {text:?}");
                    }
                    left -= 1;
                }
                Err(panic) => {
                    assert!(inline && me == n - 1, "a queued handler runs apart from calls");
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    assert_eq!(text, Some("message 3 cannot be handled"));
                    left -= 1;
                }
            }
        }
        all(handle, 0);
    }
    gfence(handle);
    assert_eq!([&target, &completion].map(|counter| get(handle, counter)), [0; 2], "no counter moved");
    task.term(handle);
}
