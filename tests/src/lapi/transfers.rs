//! Rows about `Xfer`, and about polling.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use bellwether_runtime::vocabulary::lapi::raw::{
    self, GEN_GENERIC, Handle, MsgInfo, SendHandler, SendInfo, msg_status, rmw_op, transfer,
};
use bellwether_runtime::vocabulary::lapi::{Counter, codes};

use super::handlers::{Header, TAKE, THEN, calls, lock, seen, send};
use super::one_sided::{Shared, pattern, put, with};
use super::vectors::Places::List;
use super::vectors::{VECTOR, prepare, take_vector};
use super::{Task, all, get as value, gfence, ok, place, wait, watchdog};

/// What a send completion handler is given, and what it has seen.
struct Sent {
    /// The source, which it changes.
    source: *mut u8,
    len: usize,
    /// It tries to call.
    calls: bool,
    times: AtomicUsize,
    to: AtomicI32,
    codes: std::sync::Mutex<Vec<i32>>,
    moved: Counter,
}

impl Sent {
    fn new(source: &mut [u8], calls: bool) -> Sent {
        Sent {
            source: source.as_mut_ptr(),
            len: source.len(),
            calls,
            times: AtomicUsize::new(0),
            to: AtomicI32::new(-1),
            codes: std::sync::Mutex::default(),
            moved: Counter::new(),
        }
    }

    fn parameter(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

unsafe extern "C-unwind" fn sent(handle: *mut Handle, parameter: *mut c_void, info: *mut SendInfo) {
    // SAFETY: what the row gave, which waits for this.
    let (handle, own, info) = unsafe { (*handle, &*parameter.cast::<Sent>(), *info) };
    // SAFETY: the source may be changed from now on.
    unsafe { own.source.write_bytes(0xFF, own.len) };
    own.to.store(info.src as i32, Ordering::Relaxed);
    assert_eq!(info.reason, codes::SUCCESS as u32);
    if own.calls {
        own.codes.lock().expect("no panic").extend(calls(handle, info.src));
    }
    own.times.fetch_add(1, Ordering::Relaxed);
    own.moved.increment();
}

/// A completion handler: adds one.
unsafe extern "C-unwind" fn here(_: *mut Handle, parameter: *mut c_void) {
    // SAFETY: the row's counter.
    unsafe { &*parameter.cast::<Counter>() }.increment();
}

fn xfer<T>(handle: Handle, what: &T) -> i32 {
    // SAFETY: rows give a member of the union with its type, and what it names stays until it is done.
    unsafe { raw::xfer(handle, std::ptr::from_ref(what).cast()) }
}

const SENT: Option<SendHandler> = Some(sent);
const LENGTHS: [usize; 6] = [0, 1, 100, 8 << 10, (8 << 10) + 1, 300_001];

fn am(to: usize, header: &Header, data: &[u8]) -> transfer::Am {
    transfer::Am {
        kind: transfer::AM,
        flags: 0,
        tgt: to as u32,
        hdr_hdl: TAKE as i64,
        uhdr_len: size_of::<Header>() as u32,
        uhdr: std::ptr::from_ref(header).cast_mut().cast(),
        udata: data.as_ptr().cast_mut().cast(),
        udata_len: data.len() as u64,
        shdlr: None,
        sinfo: null_mut(),
        tgt_cntr: 0,
        org_cntr: null_mut(),
        cmpl_cntr: null_mut(),
    }
}

fn mutable(counter: &Counter) -> *mut Counter {
    std::ptr::from_ref(counter).cast_mut()
}

pub(super) fn l29(task: &Task) {
    with(task, |handle, me, next, before| {
        lock(&seen(handle)).calls.clear();
        let unused = Counter::new();
        let [target, completion] = [const { Counter::new() }; 2];
        let at_next = all(handle, target.address() as u64)[next] as i64;
        for (tag, len) in LENGTHS.into_iter().enumerate() {
            let mut data = pattern(me + len, len);
            let own = Sent::new(&mut data, true);
            let header = Header { tag: tag as u32, ..Header::default() };
            let what = transfer::Am {
                shdlr: SENT,
                sinfo: own.parameter(),
                org_cntr: mutable(&unused),
                tgt_cntr: at_next,
                cmpl_cntr: mutable(&completion),
                ..am(next, &header, &data)
            };
            ok(xfer(handle, &what), "xfer");
            wait(handle, &own.moved, 1, "the send completion handler");
            wait(handle, &completion, 1, "completion");
            wait(handle, &target, 1, "target");
            gfence(handle);
            assert_eq!((own.times.into_inner(), own.to.into_inner()), (1, next as i32), "once: {len}");
            let expected = super::handlers::REFUSED;
            assert_eq!(own.codes.into_inner().expect("no panic"), expected, "it may not call");
            let seen = seen(handle);
            assert!(lock(&seen).places[&(tag as u32)][..] == pattern(before + len, len), "{len} bytes");
            gfence(handle);
        }
        assert_eq!([&unused, &target, &completion].map(|counter| value(handle, counter)), [0; 3]);
        // What is refused runs nothing, and what is purged.
        let own = Sent::new(&mut [], false);
        let header = Header::default();
        let what = transfer::Am { shdlr: SENT, sinfo: own.parameter(), hdr_hdl: 0, ..am(next, &header, &[]) };
        assert_eq!(xfer(handle, &what), codes::HDR_HNDLR_NULL);
        gfence(handle);
        assert_eq!(own.times.into_inner(), 0);
    });
}

pub(super) fn l47(task: &Task) {
    with(task, |handle, me, next, before| {
        lock(&seen(handle)).calls.clear();
        // SAFETY: a handler for vectors.
        ok(unsafe { raw::addr_set(handle, take_vector as *const () as usize, 7) }, "addr_set");
        let [target, origin, completion, arrived] = [const { Counter::new() }; 4];
        let at_next = all(handle, target.address() as u64)[next] as i64;
        let (org_cntr, cmpl_cntr) = (mutable(&origin), mutable(&completion));
        let settled = |what: &str| {
            for counter in [&origin, &completion, &target] {
                wait(handle, counter, 1, what);
            }
        };
        let (flags, tgt, none) = (0, next as u32, null_mut::<c_void>());
        for len in LENGTHS {
            let memories = [(); 4].map(|()| Shared::new(len + 1));
            let there = memories.each_ref().map(|memory| all(handle, memory.address())[next] as i64);
            let mut data = pattern(me + len, len);
            let (org_addr, kind) = (data.as_mut_ptr().cast(), transfer::PUT);
            let put = transfer::Put {
                kind,
                flags,
                tgt,
                tgt_addr: there[0],
                org_addr,
                len: len as u64,
                shdlr: None,
                sinfo: none,
                tgt_cntr: at_next,
                org_cntr,
                cmpl_cntr,
            };
            ok(xfer(handle, &put), "put");
            settled("a put");
            assert!(memories[0].bytes() == [pattern(before + len, len), vec![0]].concat(), "put {len}");
            gfence(handle);
            // Back again, by a get with a counter, and by one with a completion handler.
            for (memory, by_handler) in [(&memories[1], false), (&memories[2], true)] {
                let get = transfer::Get {
                    kind: transfer::GET,
                    flags,
                    tgt,
                    tgt_addr: there[0],
                    org_addr: memory.address() as *mut c_void,
                    len: len as u64,
                    tgt_cntr: at_next,
                    org_cntr,
                    chndlr: by_handler.then_some(here),
                    cinfo: std::ptr::from_ref(&arrived).cast_mut().cast(),
                };
                ok(xfer(handle, &get), "get");
                wait(handle, if by_handler { &arrived } else { &origin }, 1, "the data is here");
                assert!(memory.bytes() == [pattern(me + len, len), vec![0]].concat(), "get {len}");
                wait(handle, &target, 1, "the memory of this task may be changed");
            }
            // A put whose source is free in its handler.
            let own = Sent::new(&mut data, false);
            let (shdlr, sinfo) = (SENT, own.parameter());
            ok(xfer(handle, &transfer::Put { tgt_addr: there[3], shdlr, sinfo, ..put }), "put with a handler");
            wait(handle, &own.moved, 1, "the send completion handler");
            wait(handle, &completion, 1, "completion");
            wait(handle, &target, 1, "data from the task before");
            assert!(memories[3].bytes() == [pattern(before + len, len), vec![0]].concat(), "put with a handler {len}");
            gfence(handle);
        }
        for wide in [false, true] {
            let variable = std::cell::UnsafeCell::new(40i64);
            let there = all(handle, variable.get() as u64)[next] as i64;
            for by_handler in [false, true] {
                let (mut operand, mut previous) = (1i64, 0i64);
                let own = Sent::new(&mut [], false);
                let what = transfer::Rmw {
                    kind: transfer::RMW,
                    op: rmw_op::FETCH_AND_ADD,
                    tgt,
                    size: if wide { 64 } else { 32 },
                    tgt_var: there,
                    in_val: (&raw mut operand).cast(),
                    prev_tgt_val: (&raw mut previous).cast(),
                    org_cntr,
                    shdlr: if by_handler { SENT } else { None },
                    sinfo: own.parameter(),
                };
                ok(xfer(handle, &what), "rmw");
                wait(handle, if by_handler { &own.moved } else { &origin }, 1, "the result is here");
                assert_eq!(previous, 40 + i64::from(by_handler));
                for size in [0, 8, 16, 33, 128] {
                    assert_eq!(xfer(handle, &transfer::Rmw { size, ..what }), codes::OP_SZ);
                }
                assert_eq!(xfer(handle, &transfer::Rmw { op: 9, ..what }), codes::RMW_OP);
            }
            gfence(handle);
            // SAFETY: all are done.
            assert_eq!(unsafe { *variable.get() }, 42);
        }
        // Vectors, short and long.
        for (number, len) in [300, 50_000].into_iter().enumerate() {
            let places = if number == 0 {
                (List(GEN_GENERIC, &[(0, 100), (100, 200)]), List(GEN_GENERIC, &[(7, 150), (200, 150)]))
            } else {
                (
                    List(GEN_GENERIC, &[(0, 20_000), (20_000, 30_000)]),
                    List(GEN_GENERIC, &[(7, 25_000), (30_000, 25_000)]),
                )
            };
            let split = len / 2;
            let expected = |from: usize| {
                let (data, mut memory) = (pattern(from, len), vec![0; 60_000]);
                let second = if number == 0 { 200 } else { 30_000 };
                memory[7..7 + split].copy_from_slice(&data[..split]);
                memory[second..second + split].copy_from_slice(&data[split..]);
                memory
            };
            for by_handler in [false, true] {
                let memories = [(); 3].map(|()| Shared::new(60_000));
                let mut data = pattern(me, len);
                let source = all(handle, data.as_ptr() as u64)[next];
                let there = all(handle, memories[0].address())[next];
                prepare(handle, 70, Some(places.1.at(memories[1].address())), 2, false);
                gfence(handle);
                let mut described = [
                    places.0.at(data.as_ptr() as u64),
                    places.1.at(there),
                    places.1.at(memories[2].address()),
                    places.0.at(source),
                ];
                let mut vectors = described.each_mut().map(|places| places.vector());
                let [org_vec, tgt_vec, got, from] = vectors.each_mut().map(std::ptr::from_mut);
                let (chndlr, cinfo) = (by_handler.then_some(here as _), std::ptr::from_ref(&arrived).cast_mut().cast());
                let get = transfer::Getv {
                    kind: transfer::GETV,
                    flags,
                    tgt,
                    org_vec: got,
                    tgt_vec: from.cast(),
                    tgt_cntr: at_next,
                    org_cntr,
                    chndlr,
                    cinfo,
                };
                ok(xfer(handle, &get), "getv");
                wait(handle, if by_handler { &arrived } else { &origin }, 1, "the data is here");
                wait(handle, &target, 1, "the memory of this task may be changed");
                assert!(memories[2].bytes() == expected(next), "getv {len}");
                gfence(handle);
                let uhdr = [70u32];
                let own = [Sent::new(&mut [], false), Sent::new(&mut data, false)];
                let shdlr = if by_handler { SENT } else { None };
                let put = transfer::Putv {
                    kind: transfer::PUTV,
                    flags,
                    tgt,
                    shdlr,
                    sinfo: own[0].parameter(),
                    org_vec,
                    tgt_vec: tgt_vec.cast(),
                    tgt_cntr: at_next,
                    org_cntr,
                    cmpl_cntr,
                };
                ok(xfer(handle, &put), "putv");
                wait(handle, if by_handler { &own[0].moved } else { &origin }, 1, "the source may be changed");
                let message = transfer::Amv {
                    kind: transfer::AMV,
                    flags,
                    tgt,
                    hdr_hdl: VECTOR as i64,
                    uhdr_len: 4,
                    uhdr: uhdr.as_ptr().cast_mut().cast(),
                    shdlr,
                    sinfo: own[1].parameter(),
                    org_vec,
                    tgt_cntr: at_next,
                    org_cntr,
                    cmpl_cntr,
                };
                ok(xfer(handle, &message), "amv");
                wait(handle, if by_handler { &own[1].moved } else { &origin }, 1, "the source may be changed");
                wait(handle, &completion, 2, "completion");
                wait(handle, &target, 2, "data from the task before");
                assert!(memories[0].bytes() == expected(before), "putv {len}");
                assert!(memories[1].bytes() == expected(before), "amv {len}");
                gfence(handle);
            }
        }
        for bad in [-1, 7, 8, 10, 11, 12, i32::MAX] {
            assert_eq!(xfer(handle, &[bad; 64]), codes::XFER_CMD, "{bad}");
        }
        // SAFETY: null is refused.
        assert_eq!(unsafe { raw::xfer(handle, null()) }, codes::XFER_CMD);
        assert_eq!(xfer(0, &[transfer::PUT; 64]), codes::HNDL_INVALID);
        gfence(handle);
        let counters = [&target, &origin, &completion, &arrived];
        assert_eq!(counters.map(|counter| value(handle, counter)), [0; 4], "each moved once for each event");
    });
}

pub(super) fn l48(task: &Task) {
    with(task, |handle, me, next, before| {
        lock(&seen(handle)).calls.clear();
        gfence(handle);
        let most = raw::LW_MAX_SZ as usize - size_of::<Header>();
        let data = pattern(me, most + 1);
        // What follows the data is not read: these are no functions, and no counters.
        // SAFETY: a pointer-sized number that is not null is a valid bit pattern of a function pointer; it is never called.
        let shdlr = Some(unsafe { std::mem::transmute::<usize, SendHandler>(8) });
        let (sinfo, none) = (8 as *mut c_void, 8 as *mut Counter);
        for (tag, len) in [0, 1, most, most + 1].into_iter().enumerate() {
            let mut data = data[..len].to_vec();
            let header = Header { tag: tag as u32, ..Header::default() };
            let what = transfer::Am {
                kind: transfer::AM_LW,
                shdlr,
                sinfo,
                tgt_cntr: 8,
                org_cntr: none,
                cmpl_cntr: none,
                ..am(next, &header, &data)
            };
            let expected = if len > most { codes::LW_DATA_LEN } else { codes::SUCCESS };
            assert_eq!(xfer(handle, &what), expected, "{len}");
            // It was copied.
            data.fill(0xFF);
            std::hint::black_box(&data);
            let huge = transfer::Am { udata_len: u64::MAX, ..what };
            assert_eq!(xfer(handle, &huge), codes::LW_DATA_LEN);
            assert_eq!(xfer(handle, &transfer::Am { hdr_hdl: 0, ..what }), expected.max(codes::HDR_HNDLR_NULL));
            let address = transfer::Am { hdr_hdl: i64::from(u32::MAX), udata_len: 0, ..what };
            assert_eq!(xfer(handle, &address), codes::ADDR_HNDL_RANGE, "an index only");
        }
        gfence(handle);
        let seen = seen(handle);
        let seen = lock(&seen);
        let mut tags: Vec<_> = seen.calls.iter().map(|call| call.header.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, [0, 1, 2], "nothing of what was refused");
        for (tag, len) in [0, 1, most].into_iter().enumerate() {
            assert!(seen.places[&(tag as u32)][..] == pattern(before, most + 1)[..len], "{len}");
        }
    });
}

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
                // Of a counter that is at 1 the first waiter takes nothing.
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

/// Handlers flood each other: every message that is to be answered is, by its handler.
pub(super) fn flood(task: &Task) {
    with(task, |handle, _, _, _| {
        lock(&seen(handle)).calls.clear();
        gfence(handle);
        let n = place(handle).1;
        let each = if task.virtual_time { 12 } else { 400 };
        let completion = Counter::new();
        let data = pattern(1, 30_000);
        // Short ones, ones as long as the narrow message memory, and ones that are fetched; answers come from inline handlers and from
        // those on the handler thread.
        for number in 0..each {
            let mode = super::handlers::REPLY | THEN | if number % 2 == 0 { super::handlers::INLINE } else { 0 };
            let len = [8, 100, 4000, 8192, 20_000][number % 5];
            for to in 0..n {
                let header = Header { mode, tag: number as u32 % 7, address: 0 };
                ok(send(handle, to, TAKE, &header, &data[..len], [null(), null(), &completion]), "send");
            }
        }
        wait(handle, &completion, (each * n) as i32, "all are handled");
        gfence(handle);
        gfence(handle);
        let came = lock(&seen(handle)).calls.len();
        assert_eq!(came, 2 * each * n, "every message and every answer, once");
    });
}

/// Lengths around what travels in one piece, by every call that moves data.
pub(super) fn lengths(task: &Task) {
    with(task, |handle, me, next, before| {
        lock(&seen(handle)).calls.clear();
        gfence(handle);
        let most = 9000;
        let lengths: Vec<usize> =
            [0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2048, 4095, 4096, 4097]
                .into_iter()
                .chain((8192 - 130..8192 - 100).step_by(if task.virtual_time { 10 } else { 1 }))
                .chain([8191, 8192, 8193, most])
                .collect();
        let target = Counter::new();
        let at_next = all(handle, target.address() as u64)[next] as *const Counter;
        let data = pattern(me, most);
        let memories: Vec<_> = lengths.iter().map(|len| Shared::new(len + 1)).collect();
        let base: Vec<u64> = memories.iter().map(Shared::address).collect();
        let table = all(handle, base.as_ptr() as u64);
        // The next task's addresses, by a get.
        let mut there = vec![0u64; base.len()];
        let (bytes, origin) = (8 * base.len() as u64, Counter::new());
        // SAFETY: both stay until the counter has moved.
        ok(
            unsafe {
                let (from, to) = (table[next] as *const c_void, there.as_mut_ptr().cast());
                raw::get(handle, next as u32, bytes, from, to, null(), &origin)
            },
            "get",
        );
        wait(handle, &origin, 1, "the addresses");
        for (tag, (len, there)) in lengths.iter().zip(&there).enumerate() {
            ok(put(handle, next, *there, &data[..*len], [at_next, null(), null()]), "put");
            let header = Header { tag: tag as u32, ..Header::default() };
            ok(send(handle, next, TAKE, &header, &data[..*len], [at_next, null(), null()]), "send");
        }
        wait(handle, &target, 2 * lengths.len() as i32, "all");
        let expected = pattern(before, most);
        let seen = seen(handle);
        for (tag, (len, memory)) in lengths.iter().zip(&memories).enumerate() {
            assert!(memory.bytes() == [&expected[..*len], &[0]].concat(), "put of {len}");
            assert!(lock(&seen).places[&(tag as u32)][..] == expected[..*len], "message of {len}");
        }
        gfence(handle);
    });
}

/// A header handler that gives its user header to an inline completion handler.
unsafe extern "C-unwind" fn take_header(
    _: *mut Handle,
    uhdr: *mut c_void,
    _: *mut u32,
    msg_len: *mut u64,
    then: *mut Option<raw::CompletionHandler>,
    parameter: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: what LAPI passes is valid.
    unsafe {
        (*msg_len.cast::<raw::ReturnInfo>()).ret_flags = raw::LOCAL_STATE;
        *then = Some(header_done);
        *parameter = uhdr;
    }
    null_mut()
}

unsafe extern "C-unwind" fn header_done(handle: *mut Handle, parameter: *mut c_void) {
    // SAFETY: the user header is still there; the row sends 40 bytes.
    let (handle, bytes) = unsafe { (*handle, std::slice::from_raw_parts(parameter.cast::<u8>(), 40)) };
    lock(&seen(handle)).done.push((13, bytes.to_vec()));
}

pub(super) fn l13(task: &Task) {
    with(task, |handle, me, next, before| {
        // SAFETY: a header handler.
        ok(unsafe { raw::addr_set(handle, take_header as *const () as usize, 8) }, "addr_set");
        gfence(handle);
        let completion = Counter::new();
        for round in 0..10 {
            let uhdr = pattern(me + round, 40);
            // SAFETY: the header is copied.
            let code = unsafe {
                let (handler, start) = (std::ptr::without_provenance(8), uhdr.as_ptr().cast());
                raw::amsend(
                    handle,
                    next as u32,
                    handler,
                    start,
                    40,
                    [7u8; 64].as_ptr().cast(),
                    64,
                    null(),
                    null(),
                    &completion,
                )
            };
            ok(code, "send");
            wait(handle, &completion, 1, "it has run");
        }
        gfence(handle);
        let mut came = lock(&seen(handle)).done.clone();
        let mut expected: Vec<_> = (0..10).map(|round| (13, pattern(before + round, 40))).collect();
        (came.sort(), expected.sort());
        assert_eq!(came, expected, "the user header is valid until an inline completion handler has returned");
    });
}

pub(super) fn l26(task: &Task) {
    with(task, |handle, me, _, _| {
        lock(&seen(handle)).calls.clear();
        gfence(handle);
        let counters = [const { Counter::new() }; 3];
        let [target, origin, completion] = &counters;
        let (to, n, header) = (me as u32, place(handle).1 as u32, [0u32; 4]);
        let start: *const c_void = header.as_ptr().cast();
        let send = |handle, to, handler, (uhdr, uhdr_len), (udata, len)| {
            // SAFETY: refused.
            unsafe { raw::amsend(handle, to, handler, uhdr, uhdr_len, udata, len, target, origin, completion) }
        };
        let (right, none) = ((start, 16), (null(), 0));
        let outcomes = [
            send(0, to, TAKE, right, none),
            send(handle, n, TAKE, right, none),
            send(handle, to, null(), right, none),
            send(handle, to, TAKE, (null(), 4), none),
            send(handle, to, TAKE, (start, 5), none),
            send(handle, to, TAKE, right, (null(), 1)),
            send(handle, to, TAKE, right, (start, u64::MAX)),
        ];
        use codes::{DATA_LEN, HDR_HNDLR_NULL, HNDL_INVALID, ORG_ADDR_NULL, TGT, UHDR_LEN, UHDR_NULL};
        let expected = [HNDL_INVALID, TGT, HDR_HNDLR_NULL, UHDR_NULL, UHDR_LEN, ORG_ADDR_NULL, DATA_LEN];
        assert_eq!(outcomes, expected);
        gfence(handle);
        assert_eq!(counters.each_ref().map(|counter| value(handle, counter)), [0; 3], "no counter moved");
        assert!(lock(&seen(handle)).calls.is_empty(), "nothing was sent");
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

/// One byte more than 2 GiB from task 0 to the last one, by a put and by a message. Needs 4 GiB of memory and a bit.
pub fn huge(task: &Task) {
    const LEN: usize = (2 << 30) + 1;
    with(task, |handle, me, _, _| {
        let last = place(handle).1 - 1;
        let byte = |i: usize| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()[0];
        let source: Vec<u8> = if me == 0 { (0..LEN).map(byte).collect() } else { Vec::new() };
        let mut memory = vec![0u8; if me == last { LEN } else { 0 }];
        let there = all(handle, memory.as_mut_ptr() as u64)[last];
        let completion = Counter::new();
        for by_put in [true, false] {
            if me == 0 {
                let counters = [null(), null(), &raw const completion];
                let sent = if by_put {
                    put(handle, last, there, &source, counters)
                } else {
                    let header = Header { mode: super::handlers::PLACE, address: there, ..Header::default() };
                    send(handle, last, TAKE, &header, &source, counters)
                };
                ok(sent, "2 GiB and a byte");
                wait(handle, &completion, 1, "2 GiB and a byte");
            }
            gfence(handle);
            let wrong = memory.iter().enumerate().position(|(i, came)| *came != byte(i));
            assert_eq!(wrong, None, "by a put: {by_put}");
            memory.fill(0);
            gfence(handle);
        }
    });
}
