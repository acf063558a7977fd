//! Rows about flow control, lengths, and the handling of headers.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle};
use bellwether_runtime::vocabulary::lapi::{Counter, codes};

use super::handlers::{Header, NOTE, PLACE, TAKE, THEN, lock, seen, send};
use super::one_sided::{Shared, pattern, put, with};
use super::{Task, all, get as value, gfence, ok, place, wait};

/// Handlers flood each other: every message that is to be answered is, by its handler.
pub(super) fn flood(task: &Task) {
    with(task, |handle, _, _, _| {
        lock(&seen(handle)).calls.clear();
        gfence(handle);
        let n = place(handle).1;
        let each = task.times(40, 400);
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

/// Handlers send thousands of messages: each of the first ones is followed by 84, of which a handler sends four at a time.
pub(super) fn spread(task: &Task) {
    const LEVELS: u32 = 3;
    const OF_EACH: usize = 1 + 4 + 16 + 64;
    with(task, |handle, me, _, _| {
        lock(&seen(handle)).calls.clear();
        gfence(handle);
        let n = place(handle).1;
        let each = match (task.virtual_time, task.emulated) {
            (true, _) => 2,
            (_, true) => 2,
            _ => task.times(12, 100),
        };
        for number in 0..each {
            let inline = if number % 2 == 0 { super::handlers::INLINE } else { 0 };
            for to in 0..n {
                let root = ((me * n + to) * each + number) as u64;
                let mode = super::handlers::SPREAD | THEN | inline;
                let header = Header { mode, tag: LEVELS, address: root << 8 };
                ok(send(handle, to, TAKE, &header, &[], [null(); 3]), "send");
            }
        }
        let total = (n * n * each * OF_EACH) as u64;
        loop {
            let state = seen(handle);
            gfence(handle);
            let refused = lock(&state).done_codes.iter().find(|code| **code != codes::SUCCESS).copied();
            assert_eq!(refused, None, "handlers may send");
            // Without the lock: handlers run in the call.
            let own = lock(&state).calls.len() as u64;
            let came = all(handle, own);
            crate::watchdog::at(format!("messages of handlers: {came:?} of {total}"));
            let sum: u64 = came.iter().sum();
            assert!(sum <= total, "{came:?} of {total}: something came twice");
            if sum == total {
                break;
            }
        }
        gfence(handle);
        let state = seen(handle);
        let mut found = lock(&state);
        let mut addresses: Vec<_> = found.calls.iter().map(|call| call.header.address).collect();
        let came = addresses.len();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), came, "once each");
        found.calls.clear();
        drop(found);
        gfence(handle);
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

pub(super) fn l05(task: &Task) {
    let len = task.times(1 << 20, 100 << 20);
    with(task, |handle, me, next, before| {
        let completion = Counter::new();
        let data = pattern(me, len);
        ok(
            send(
                handle,
                next,
                TAKE,
                &Header { tag: me as u32, ..Header::default() },
                &data,
                [null(), null(), &completion],
            ),
            "send",
        );
        wait(handle, &completion, 1, "completion");
        gfence(handle);
        let state = seen(handle);
        let mut found = lock(&state);
        assert_eq!(found.calls.len(), 1, "once, however many packets");
        assert!(found.places[&(before as u32)][..] == pattern(before, len));
        found.places.clear();
        found.calls.clear();
        drop(found);
        // A place that the origin knows: nothing is stored there before the header handler has run.
        let mut place = vec![0xEE; len];
        let there = all(handle, place.as_mut_ptr() as u64)[next];
        for len in [8, 5000, len] {
            let sent = Header { mode: PLACE | NOTE, tag: 0, address: there };
            ok(send(handle, next, TAKE, &sent, &data[..len], [null(), null(), &completion]), "send");
            wait(handle, &completion, 1, "completion");
            gfence(handle);
            assert!(place[..len] == pattern(before, len)[..], "{len} bytes");
            place.fill(0xEE);
            gfence(handle);
        }
        let notes: Vec<_> = lock(&seen(handle)).calls.iter().map(|call| call.consumed.clone()).collect();
        assert_eq!(notes, [[0xEE; 2]; 3], "once, before any data is stored");
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
        came.sort();
        expected.sort();
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

/// What is no index, and no address where a task can have a function, is refused by every call, and stays out of the table.
pub(super) fn no_function(handle: Handle, next: u32) {
    let (words, mut found) = ([0u64; 2], 0);
    let (mut places, mut lengths) = ([words.as_ptr().cast_mut().cast::<c_void>()], [8]);
    let (info, len) = (places.as_mut_ptr(), lengths.as_mut_ptr());
    let vector = raw::Vector { vec_type: raw::GEN_IOVECTOR, num_vecs: 1, info, len };
    let counters = [const { Counter::new() }; 3];
    let [target, origin, completion] = &counters;
    for handler in [256, 4095, 1 << 60, usize::MAX] {
        let value: *const c_void = std::ptr::without_provenance(handler);
        for len in [0, 8, 20_000] {
            let data = vec![1u8; len];
            super::messages::refused(
                handle,
                next,
                value,
                (words.as_ptr().cast(), 8),
                (data.as_ptr(), len as u64),
                codes::HDR_HNDLR_NULL,
            );
        }
        // SAFETY: refused.
        let code = unsafe { raw::amsendv(handle, next, value, null(), 0, &vector, target, origin, completion) };
        assert_eq!(code, codes::HDR_HNDLR_NULL, "{handler:#x}");
        let org_cntr = std::ptr::from_ref(origin).cast_mut();
        let what = raw::transfer::Am {
            kind: raw::transfer::AM,
            flags: 0,
            tgt: next,
            hdr_hdl: handler as i64,
            uhdr_len: 0,
            uhdr: null_mut(),
            udata: null_mut(),
            udata_len: 0,
            shdlr: None,
            sinfo: null_mut(),
            tgt_cntr: 0,
            org_cntr,
            cmpl_cntr: org_cntr,
        };
        // SAFETY: refused.
        let code = unsafe { raw::xfer(handle, (&raw const what).cast()) };
        assert_eq!(code, codes::HDR_HNDLR_NULL, "{handler:#x}");
    }
    for address in [1, 255, 256, 4095, 1 << 60, usize::MAX] {
        // SAFETY: refused.
        let codes = unsafe { [raw::addr_set(handle, address, 2), raw::addr_get(handle, &mut found, 2)] };
        assert_eq!((codes, found), ([codes::HDR_HNDLR_NULL, codes::SUCCESS], 0), "{address:#x}");
    }
    gfence(handle);
    assert_eq!(counters.each_ref().map(|counter| value(handle, counter)), [0; 3], "no counter moved");
    assert!(lock(&seen(handle)).calls.is_empty(), "nothing was sent");
}

/// A message whose completion handler passes it on, as often as its user header says.
unsafe extern "C-unwind" fn take_hop(
    _: *mut Handle,
    uhdr: *mut c_void,
    _: *mut u32,
    _: *mut u64,
    then: *mut Option<raw::CompletionHandler>,
    parameter: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: what LAPI passes is valid.
    unsafe {
        *then = Some(hop);
        *parameter = Box::into_raw(Box::new(uhdr.cast::<Header>().read())).cast();
    }
    null_mut()
}

unsafe extern "C-unwind" fn hop(handle: *mut Handle, parameter: *mut c_void) {
    // SAFETY: what `take_hop` gave, once.
    let (handle, header) = unsafe { (*handle, *Box::from_raw(parameter.cast::<Header>())) };
    lock(&seen(handle)).done.push((header.tag, Vec::new()));
    if header.tag != 0 {
        let (me, n) = place(handle);
        let next = Header { tag: header.tag - 1, ..header };
        ok(send(handle, (me + 1) % n, std::ptr::without_provenance(9), &next, &[], [null(); 3]), "the next hop");
    }
}

pub(super) fn l56(task: &Task) {
    const HOPS: usize = 60;
    let handle = task.init();
    let (me, n) = place(handle);
    // SAFETY: a header handler.
    ok(unsafe { raw::addr_set(handle, take_hop as *const () as usize, 9) }, "addr_set");
    gfence(handle);
    let header = Header { tag: HOPS as u32 - 1, ..Header::default() };
    ok(send(handle, (me + 1) % n, std::ptr::without_provenance(9), &header, &[], [null(); 3]), "the first hop");
    let seen = seen(handle);
    task.term(handle);
    let hops = lock(&seen).done.len() as u64;
    let handle = task.init();
    assert_eq!(all(handle, hops).iter().sum::<u64>(), (HOPS * n) as u64, "all handlers ran before the handles ended");
    task.term(handle);
}

/// One byte more than 2 GiB from task 0 to the last one, by a put and by a message. Needs 4 GiB of memory and a bit.
pub(super) fn huge(task: &Task) {
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
