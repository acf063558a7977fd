//! Rows about handlers that panic.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use bellwether_runtime::vocabulary::lapi::raw::{CompletionHandler, GEN_IOVECTOR, Handle, SendInfo, Vector, transfer};
use bellwether_runtime::vocabulary::lapi::{Counter, Failure, What, codes, raw};

use super::handlers::{INLINE, PANIC, PANIC_LATE, TAKE, THEN, send};
use super::messages::{NONE, counter_at, header};
use super::vectors::Places::List;
use super::{Task, all, get, gfence, ok, place, wait};

/// The index of [`torn`].
const TORN: i32 = 8;

/// A header handler of vectors that panics.
unsafe extern "C-unwind" fn torn(
    _: *mut Handle,
    uhdr: *mut c_void,
    _: *mut u32,
    _: *mut u64,
    _: *mut Option<CompletionHandler>,
    _: *mut *mut c_void,
) -> *mut Vector {
    // SAFETY: every user header is a number.
    panic!("message {} is not wanted", unsafe { uhdr.cast::<u32>().read() });
}

/// How often a send completion handler has run, and its last reason.
#[derive(Default)]
struct Freed {
    times: AtomicU32,
    reason: AtomicU32,
}

unsafe extern "C-unwind" fn freed(_: *mut Handle, parameter: *mut c_void, info: *mut SendInfo) {
    // SAFETY: what the row gave, which waits for this, and valid information.
    let (own, reason) = unsafe { (&*parameter.cast::<Freed>(), (*info).reason) };
    own.reason.store(reason, Ordering::Relaxed);
    own.times.fetch_add(1, Ordering::Relaxed);
}

/// Vectors to a header handler that panics: the distances and lengths of their places, and the code with which the origin gets these back.
/// The data of the first travels with the message.
const VECTORS: [(&[(usize, usize)], i32); 2] =
    [(&[(0, 8), (16, 8)], codes::SUCCESS), (&[(0, 20_000), (30_000, 20_000)], codes::HANDLER_PANICKED)];

/// The header handlers of a message and of vectors panic. The origin gets an error with task, handler and place, and its places back; the
/// panic comes out of the target's call. No counter moves, and the job goes on.
pub(super) fn a_panic(task: &Task) {
    let handle = task.init();
    let (me, n) = place(handle);
    // SAFETY: a header handler of vectors.
    ok(unsafe { raw::addr_set(handle, torn as *const () as usize, TORN) }, "addr_set");
    // The panic is to come out of a call of this thread.
    ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
    let [target, completion, ready] = [const { Counter::new() }; 3];
    let (at_last, at_zero) = (counter_at(handle, n - 1, &target), counter_at(handle, 0, &ready));
    let source = vec![1u8; 60_000];
    for vector in [None].into_iter().chain(VECTORS.map(Some)) {
        let (own, name) =
            (Freed::default(), if vector.is_some() { "vector header handler 8" } else { "header handler 1" });
        if me == n - 1 {
            // From here on it catches panics.
            ok(send(handle, 0, TAKE, &header(0, 0), &[], [at_zero, null(), null()]), "ready");
        }
        let send_it = || {
            wait(handle, &ready, 1, "the target catches panics");
            let Some((places, _)) = vector else {
                ok(send(handle, n - 1, TAKE, &header(PANIC, 3), &[1; 8], NONE), "send");
                return;
            };
            let (mut places, mut uhdr) = (List(GEN_IOVECTOR, places).at(source.as_ptr() as u64), 3u32);
            let mut org_vec = places.vector();
            let what = transfer::Amv {
                kind: transfer::AMV,
                flags: 0,
                tgt: n as u32 - 1,
                hdr_hdl: TORN.into(),
                uhdr_len: 4,
                uhdr: (&raw mut uhdr).cast(),
                shdlr: Some(freed),
                sinfo: std::ptr::from_ref(&own).cast_mut().cast(),
                org_vec: &raw mut org_vec,
                tgt_cntr: at_last as i64,
                org_cntr: null_mut(),
                cmpl_cntr: std::ptr::from_ref(&completion).cast_mut(),
            };
            // SAFETY: the places and `own` stay until the function has run.
            ok(unsafe { raw::xfer(handle, (&raw const what).cast()) }, "a vector");
        };
        if me == 0 && n > 1 {
            send_it();
            super::watchdog::at("the origin of a panic");
            while raw::probe(handle) != codes::HANDLER_PANICKED {
                std::thread::yield_now();
            }
            told(n - 1, name);
        }
        if me == n - 1 {
            super::watchdog::at("a panic");
            let panic = std::panic::catch_unwind(|| {
                if n == 1 {
                    send_it();
                }
                // SAFETY: a valid counter, which stays at 0.
                unsafe { raw::waitcntr(handle, &Counter::new(), 1, null_mut()) }
            });
            let panic = panic.expect_err("it panics");
            assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("message 3 is not wanted"));
        }
        if n == 1 {
            while raw::probe(handle) != codes::HANDLER_PANICKED {}
            told(0, name);
        }
        if me == 0 && vector.is_some() {
            super::watchdog::at("places that the target does not ask for");
            while own.times.load(Ordering::Relaxed) == 0 {
                ok(raw::probe(handle), "probe");
                std::thread::yield_now();
            }
        }
        all(handle, 0);
        let freed = (own.times.into_inner(), own.reason.into_inner() as i32);
        let expected = vector.filter(|_| me == 0).map_or((0, 0), |(_, reason)| (1, reason));
        assert_eq!(freed, expected, "the places are the origin's again, once");
    }
    gfence(handle);
    assert_eq!([&target, &completion].map(|counter| get(handle, counter)), [0; 2], "no counter moved");
    task.term(handle);
}

/// The last code came with task, handler and place of the panic at task `at`.
fn told(at: usize, name: &str) {
    let Failure { what, task, text, .. } = Failure::last(codes::HANDLER_PANICKED).expect("it has a text");
    assert_eq!((what, task), (What::Message, Some(at)), "{text}");
    let file = if name.starts_with("vector") { "panics.rs:" } else { "handlers.rs:" };
    for part in [&format!("rank {at}: "), &format!("`{name}`"), file, ": message 3 is not wanted"] {
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
