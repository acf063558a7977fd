//! A place outside memory, and codes that only a process of its own can provoke: no memory, a lost task.

use std::ffi::c_void;
use std::io::Write;
use std::ptr::{null, null_mut};

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, Vector};
use bellwether_runtime::vocabulary::lapi::{Counter, Failure, What, codes};

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

/// Addresses outside memory. Where no task can have memory, the call is refused. Elsewhere both ends get an error, no counter moves, and
/// fences and the end of the handle do not wait for the failed transfer.
pub(super) fn outside(task: &Task) {
    let handle: Handle = task.init();
    let (_, n) = place(handle);
    let (next, before) = ((place(handle).0 + 1) % n, (place(handle).0 + n - 1) % n);
    ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
    let counters = [const { Counter::new() }; 2];
    let [origin, completion] = counters.each_ref().map(std::ptr::from_ref);
    let mut data = vec![1; 100_000];
    // It tells nothing of messages: a task that is ahead may have sent its own.
    all(handle, 0);
    nowhere(handle, next as u32, [origin, completion]);
    // The first page but one is not mapped either, and only the kernel knows.
    const BAD: u64 = 4096;
    let refused = |code: i32| {
        assert!([codes::SUCCESS, codes::BAD_ADDRESS].contains(&code), "{code}");
        usize::from(code == codes::SUCCESS)
    };
    let (len, there, here) = (data.len() as u64, BAD as *mut c_void, data.as_mut_ptr().cast::<c_void>());
    let mut under_way = refused(put(handle, next, BAD, &data, [null(), origin, completion]));
    let (mut bad, mut good, mut lengths) = ([there], [here], [len]);
    let mut vector = |info: &mut [*mut c_void; 1]| Vector {
        vec_type: raw::GEN_IOVECTOR,
        num_vecs: 1,
        info: info.as_mut_ptr(),
        len: lengths.as_mut_ptr(),
    };
    let [bad, good] = [vector(&mut bad), vector(&mut good)];
    // SAFETY: the address at the target is refused, and what is here stays until the fence.
    unsafe {
        under_way += refused(raw::get(handle, next as u32, len, there, here, null(), origin));
        under_way += refused(raw::putv(handle, next as u32, &bad, &good, null(), origin, completion));
        under_way += refused(raw::getv(handle, next as u32, &bad, &good, null(), origin));
    }
    for (address, len) in [(BAD, 100_000), (8, 64)] {
        let header = Header { mode: PLACE, address, ..Header::default() };
        ok(send(handle, next, TAKE, &header, &data[..len], [null(), null(), completion]), "send");
        under_way += 1;
    }
    // As the origin, and as the target of the task before.
    let (mut told, never) = (Vec::new(), Counter::new());
    super::watchdog::at("what has failed");
    while told.len() < 2 * under_way {
        // SAFETY: a valid counter, which does not move.
        let code = unsafe { raw::waitcntr(handle, &never, 1, null_mut()) };
        told.push(Failure::last(code).expect("it has a text"));
    }
    for Failure { code, task, text, .. } in &told {
        assert_eq!(*code, codes::BAD_ADDRESS, "{text}");
        assert!(task.is_some_and(|task| task == next || task == before), "{task:?}");
        assert!(text.contains("0x1000 ") || text.contains("0x8 "), "{text}");
    }
    gfence(handle);
    assert_eq!(counters.each_ref().map(Counter::value), [0; 2], "no counter moved");
    task.term(handle);
}

/// A call refuses an address where no task can have memory.
fn nowhere(handle: Handle, next: u32, [origin, completion]: [*const Counter; 2]) {
    let (mut number, mut wide) = (1i32, 1i64);
    let data = [1u8; 64];
    let is_bad = |code: i32, address: usize| {
        assert_eq!(code, codes::BAD_ADDRESS, "{address:#x}");
        let failure = Failure::last(code).expect("it has a text");
        assert_eq!(failure.task, Some(next as usize));
        assert!(failure.text.contains(&format!("{address:#x}")), "{}", failure.text);
        failure.what
    };
    for address in [8, 4088, 1 << 60] {
        let there = address as *mut c_void;
        let (own, len) = (data.as_ptr().cast::<c_void>(), data.len() as u64);
        let counter = (address as *const c_void).cast::<Counter>();
        // SAFETY: refused.
        unsafe {
            let code = raw::put(handle, next, len, there, own, null(), origin, completion);
            assert_eq!(is_bad(code, address), What::Put);
            let code = raw::get(handle, next, 8, there, (&raw mut wide).cast(), null(), origin);
            assert_eq!(is_bad(code, address), What::Get);
            let code = raw::rmw(handle, 0, next, there.cast(), &number, &mut number, origin);
            assert_eq!(is_bad(code, address), What::Rmw);
            let code = raw::rmw64(handle, 0, next, there.cast(), &wide, &mut wide, origin);
            assert_eq!(is_bad(code, address), What::Rmw);
            let code = raw::put(handle, next, 0, null_mut(), null(), counter, origin, completion);
            assert_eq!(is_bad(code, address), What::Put);
            let code = raw::amsend(handle, next, TAKE, null(), 0, null(), 0, counter, origin, completion);
            assert_eq!(is_bad(code, address), What::Message);
            let (mut bad, mut good) = ([there, there], [own.cast_mut(), own.cast_mut()]);
            let mut lengths = [0, 8];
            let mut vector = |info: *mut *mut c_void| Vector {
                vec_type: raw::GEN_GENERIC,
                num_vecs: 2,
                info,
                len: lengths.as_mut_ptr(),
            };
            let (bad, good) = (vector(bad.as_mut_ptr()), vector(good.as_mut_ptr()));
            let code = raw::putv(handle, next, &bad, &good, null(), origin, completion);
            assert_eq!(is_bad(code, address), What::Put);
            let code = raw::getv(handle, next, &bad, &good, null(), origin);
            assert_eq!(is_bad(code, address), What::Get);
        }
    }
    // Counters are aligned.
    let crooked = (&raw const wide).cast::<Counter>().wrapping_byte_add(2);
    // SAFETY: refused.
    let code = unsafe { raw::amsend(handle, next, TAKE, null(), 0, null(), 0, crooked, origin, completion) };
    assert_eq!(is_bad(code, crooked as usize), What::Message);
}
