//! Codes that only a process of its own can provoke: no memory, a lost task, a place outside memory.

use std::ffi::c_void;
use std::io::Write;
use std::ptr::{null, null_mut};

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, Vector};
use bellwether_runtime::vocabulary::lapi::{Counter, codes};

use super::handlers::{Header, PLACE, TAKE, lock, seen, send};
use super::one_sided::{put, with};
use super::{Task, all, get as value, gfence, ok, place};

/// Runs `body` while this process gets no memory from the system.
fn without_memory<R>(body: impl FnOnce() -> R) -> R {
    // Small requests are met from here.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(100_000)));
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: valid places.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut limit), 0);
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &libc::rlimit { rlim_cur: 1 << 20, ..limit }), 0);
    }
    let result = body();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    result
}

/// There is no memory for the message of a vector. Nothing is sent, and no counter moves.
pub(super) fn memory(task: &Task) {
    with(task, |handle, _, _, next| {
        lock(&seen(handle)).calls.clear();
        let counters = [const { Counter::new() }; 3];
        let mut places = [null_mut::<c_void>(); 3];
        places[0] = places.as_mut_ptr().cast();
        let info = places.as_mut_ptr();
        let vector = Vector { vec_type: raw::GEN_STRIDED_XFER, num_vecs: u32::MAX, info, len: null_mut() };
        gfence(handle);
        // No other thread asks for memory meanwhile.
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
        let refused = without_memory(|| {
            let [target, origin, completion] = &counters;
            // SAFETY: refused; the places have no bytes.
            unsafe { raw::amsendv(handle, next as u32, TAKE, null(), 0, &vector, target, origin, completion) }
        });
        assert_eq!(refused, codes::MEMORY_EXHAUSTED);
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 1), "interrupt mode");
        gfence(handle);
        assert_eq!(counters.each_ref().map(|counter| value(handle, counter)), [0; 3], "no counter moved");
        assert!(lock(&seen(handle)).calls.is_empty(), "nothing was sent");
    });
}

/// Says a line, and ends the process without its destructors.
fn end(line: &str) -> ! {
    println!("{line}");
    std::io::stdout().flush().expect("stdout is there");
    // SAFETY: nothing has to be done at the end.
    unsafe { libc::_exit(0) }
}

/// The last task ends without `Term`: the calls of the others return, and no counter moves.
pub(super) fn lost(task: &Task) {
    let handle: Handle = task.init();
    let (me, n) = place(handle);
    gfence(handle);
    if me == n - 1 {
        // A task that is still in its fence would fail there.
        while lock(&seen(handle)).calls.len() < n - 1 {
            ok(raw::probe(handle), "probe");
            std::thread::yield_now();
        }
        end(&format!("lost: task {me} ends"));
    }
    ok(send(handle, n - 1, TAKE, &Header::default(), &[1; 8], [null(); 3]), "send");
    let never = Counter::new();
    // SAFETY: a valid counter.
    let waited = unsafe { raw::waitcntr(handle, &never, 1, null_mut()) };
    assert_eq!(waited, codes::PEER_LOST);
    let completion = Counter::new();
    let sent = send(handle, n - 1, TAKE, &Header::default(), &[1; 8], [null(), &completion, &completion]);
    assert_eq!((sent, never.value(), completion.value()), (codes::PEER_LOST, 0, 0));
    end(&format!("lost: task {me} was told"));
}

/// An address outside memory: of a put or a get, an error at once; as the place of a long message, one at the target. No counter moves.
pub(super) fn outside(task: &Task) {
    let handle: Handle = task.init();
    let (me, n) = place(handle);
    ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
    let counters = [const { Counter::new() }; 2];
    let mut data = vec![1; 100_000];
    gfence(handle);
    if me == 0 {
        let [origin, completion] = counters.each_ref().map(std::ptr::from_ref);
        assert_eq!(put(handle, n - 1, 4096, &data, [null(), origin, completion]), codes::BAD_ADDRESS);
        let (len, there, here) = (data.len() as u64, 4096 as *mut c_void, data.as_mut_ptr().cast());
        // SAFETY: the address at the target is refused.
        let got = unsafe { raw::get(handle, (n - 1) as u32, len, there, here, null(), origin) };
        assert_eq!(got, codes::BAD_ADDRESS);
        let header = Header { mode: PLACE, address: 4096, ..Header::default() };
        ok(send(handle, n - 1, TAKE, &header, &data, [null(), origin, completion]), "send");
    }
    if me == n - 1 {
        let mut code = codes::SUCCESS;
        while code == codes::SUCCESS {
            code = raw::probe(handle);
            std::thread::yield_now();
        }
        assert_eq!(code, codes::RUNTIME);
    }
    all(handle, 0);
    assert_eq!(counters.each_ref().map(Counter::value), [0; 2], "no counter moved");
    end(&format!("outside: task {me}"));
}
