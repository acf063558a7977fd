//! Rows about `Xfer`.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use bellwether_runtime::vocabulary::lapi::raw::{self, GEN_GENERIC, Handle, SendHandler, SendInfo, rmw_op, transfer};
use bellwether_runtime::vocabulary::lapi::{Counter, codes};

use super::handlers::{Header, TAKE, calls, lock, seen};
use super::one_sided::{Shared, pattern, with};
use super::vectors::Places::List;
use super::vectors::{VECTOR, prepare, take_vector};
use super::{Task, all, get as value, gfence, ok, wait};

/// The parameter of a send completion handler, and its observations.
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
        // A refused transfer runs no send completion handler, nor does a purged one.
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
        // The fields behind the data are not read: their values here are no functions and no counters.
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
