//! Rows about active messages.

use std::ffi::c_void;
use std::ptr::null;
use std::sync::atomic::AtomicU64;

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle};
use bellwether_runtime::vocabulary::lapi::{Counter, LOC_ADDRTBL_SZ, MAX_UHDR_SZ, codes};

use super::handlers::{
    BURY, CALL, CONSUME, DROP, FLAG, GATE, HALF, Header, INLINE, LOCAL, LOOK, PLACE, POLL, REFUSED, REPLY, TAKE, THEN,
    WAIT, lock, seen, send, take, take_other,
};
use super::one_sided::{Shared, put};
use super::{Task, all, get, gfence, ok, place, wait};

pub(super) const NONE: [*const Counter; 3] = [null(); 3];

pub(super) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
}

/// Lengths of data: around words, lines, and what travels with the header.
const LENGTHS: [usize; 11] = [0, 1, 4, 8, 24, 25, 200, 4096, 8 << 10, (8 << 10) + 1, 300_001];

pub(super) fn header(mode: u32, tag: usize) -> Header {
    Header { mode, tag: tag as u32, address: 0 }
}

/// Runs `body` with a handle, the own number, the number of tasks, and the next task. Every task has cleared what its handlers saw.
pub(super) fn with(task: &Task, body: impl FnOnce(Handle, usize, usize, usize)) {
    let handle = task.init();
    let (me, n) = place(handle);
    lock(&seen(handle)).calls.clear();
    gfence(handle);
    body(handle, me, n, (me + 1) % n);
    gfence(handle);
    task.term(handle);
}

/// A counter at the next task, as that one's address.
pub(super) fn counter_at(handle: Handle, to: usize, own: &Counter) -> *const Counter {
    all(handle, own.address() as u64)[to] as *const Counter
}

pub(super) fn l01(task: &Task) {
    with(task, |handle, me, n, next| {
        let [target, origin, completion] = [const { Counter::new() }; 3];
        let at_next = counter_at(handle, next, &target);
        let data = pattern(me, 100);
        // A short message is copied: its origin counter has moved when the call returns, and its completion counter waits for an answer.
        ok(send(handle, next, TAKE, &header(0, me), &data[..8], [null(), &origin, &completion]), "send");
        assert_eq!(origin.value(), 1, "the origin counter of a short message");
        wait(handle, &completion, 1, "completion");
        wait(handle, &origin, 1, "origin");
        let counters = [at_next, &origin, &completion];
        ok(send(handle, next, TAKE, &header(0, me), &data, counters), "send");
        wait(handle, &completion, 1, "completion");
        wait(handle, &origin, 1, "origin");
        wait(handle, &target, 1, "target");
        assert_eq!([&target, &origin, &completion].map(Counter::value), [0; 3], "each moved by one");
        let seen = seen(handle);
        let from = (me + n - 1) % n;
        assert!(lock(&seen).places[&(from as u32)][..] == pattern(from, 100));
    });
}

pub(super) fn l02(task: &Task) {
    const RETURNED: usize = 1000;
    let len = task.times(1 << 20, 64 << 20);
    with(task, |handle, me, n, next| {
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
        let (origin, completion) = (Counter::new(), Counter::new());
        let data = pattern(me, len);
        // The next task's handler drops it until this task says that the call has returned: a call that waited for delivery would
        // never return.
        ok(send(handle, next, TAKE, &header(DROP | GATE, me), &data, [null(), &origin, &completion]), "send");
        assert_eq!((origin.value(), completion.value()), (0, 0), "the target has not taken it");
        ok(send(handle, next, TAKE, &header(0, RETURNED), &[], NONE), "the call has returned");
        let seen = seen(handle);
        super::watchdog::at("the call of the task before returns");
        while !lock(&seen).calls.iter().any(|call| call.header.tag == RETURNED as u32) {
            ok(raw::probe(handle), "probe");
        }
        lock(&seen).gate = true;
        wait(handle, &completion, 1, "completion");
        wait(handle, &origin, 1, "origin");
        gfence(handle);
        let from = (me + n - 1) % n;
        assert!(lock(&seen).places[&(from as u32)][..] == pattern(from, len));
        lock(&seen).places.clear();
    });
}

pub(super) fn l03(task: &Task) {
    with(task, |handle, me, n, _| {
        let completion = Counter::new();
        let kept: Vec<_> = LENGTHS.iter().map(|len| pattern(me + len, *len)).collect();
        for to in 0..n {
            for (number, data) in kept.iter().enumerate() {
                let sent = header(0, me * 100 + number);
                ok(send(handle, to, TAKE, &sent, data, [null(), null(), &completion]), "send");
            }
        }
        wait(handle, &completion, (n * LENGTHS.len()) as i32, "all");
        gfence(handle);
        let seen = seen(handle);
        let seen = lock(&seen);
        assert_eq!(seen.calls.len(), n * LENGTHS.len());
        for call in &seen.calls {
            let (from, number) = (call.header.tag as usize / 100, call.header.tag as usize % 100);
            assert_eq!((call.from, call.header_len, call.header), (from, 16, header(0, from * 100 + number)));
            assert_eq!(call.len, LENGTHS[number] as u64);
            let place = &seen.places[&call.header.tag];
            assert!(place[..] == pattern(from + LENGTHS[number], LENGTHS[number]), "{} bytes", call.len);
        }
    });
}

pub(super) fn l04(task: &Task) {
    with(task, |handle, me, n, _| {
        // Inline handlers send, also to their own task, and poll: a message that waits then must not run its handler.
        for to in 0..n {
            for number in 0..20 {
                let mode = if number % 2 == 0 { THEN | INLINE | REPLY | POLL } else { 0 };
                ok(send(handle, to, TAKE, &header(mode, me * 100 + number), &[1; 40], NONE), "send");
            }
        }
        gfence(handle);
        // Of the answers too, which were sent meanwhile.
        gfence(handle);
        let seen = seen(handle);
        let seen = lock(&seen);
        assert_eq!(seen.calls.len(), 30 * n);
        assert!(seen.calls.iter().all(|call| call.depth == 1), "handlers do not nest");
        assert_eq!(seen.deepest, 1, "inline completion handlers do not nest either");
    });
}

pub(super) fn l06(task: &Task) {
    with(task, |handle, me, n, next| {
        let mut buffers = vec![vec![0u8; 50_000]; 3];
        let own: Vec<u64> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr() as u64).collect();
        let tables: Vec<_> = own.iter().map(|address| all(handle, *address)).collect();
        let completion = Counter::new();
        let data: Vec<_> = [10, 50_000, 3000].iter().map(|len| pattern(me + len, *len)).collect();
        for (number, data) in data.iter().enumerate() {
            let sent = Header { mode: PLACE, tag: 0, address: tables[number][next] };
            ok(send(handle, next, TAKE, &sent, data, [null(), null(), &completion]), "send");
        }
        wait(handle, &completion, 3, "completion");
        gfence(handle);
        let from = (me + n - 1) % n;
        for (buffer, len) in buffers.iter().zip([10, 50_000, 3000]) {
            assert!(buffer[..len] == pattern(from + len, len), "{len}");
            assert!(buffer[len..].iter().all(|byte| *byte == 0), "{len}");
        }
    });
}

pub(super) fn l07(task: &Task) {
    with(task, |handle, me, n, next| {
        let [target, origin, completion] = [const { Counter::new() }; 3];
        let counters = [counter_at(handle, next, &target), &origin, &completion];
        let (short, long) = (pattern(me, 64), pattern(me, 1 << 20));
        let packet = super::query(handle, raw::query::MAX_PKT_SZ) as usize;
        assert_eq!(packet, super::query(handle, raw::query::REX_BUF_SZ) as usize);
        let most = pattern(me, packet);
        ok(send(handle, next, TAKE, &header(CONSUME, 1), &short, counters), "short");
        ok(send(handle, next, TAKE, &header(CONSUME, 2), &long, counters), "long");
        ok(send(handle, next, TAKE, &header(CONSUME, 3), &most, [counters[0], null(), &completion]), "a packet");
        for (counter, moves) in [(&completion, 3), (&origin, 2), (&target, 3)] {
            wait(handle, counter, moves, "each counter moves");
        }
        let copied = Counter::new();
        ok(send(handle, me, TAKE, &header(BURY, 4), &most, [null(), &copied, null()]), "a copied one");
        assert_eq!(copied.value(), 1, "it moves in the call");
        let seen = seen(handle);
        let mut seen = lock(&seen);
        seen.calls.sort_by_key(|call| call.header.tag);
        let from = (me + n - 1) % n;
        assert!(seen.calls[0].has_data && !seen.calls[1].has_data, "null for more than one packet");
        assert!(seen.calls[0].consumed == pattern(from, 64) && !seen.places.contains_key(&1));
        assert!(seen.places[&2][..] == pattern(from, 1 << 20));
        assert!(seen.calls[2].has_data && seen.calls[2].consumed == pattern(from, packet), "of a packet");
    });
}

pub(super) fn l08(task: &Task) {
    with(task, |handle, me, n, _| {
        for to in 0..n {
            for mode in [THEN | LOCAL, 0, BURY, 0] {
                ok(send(handle, to, TAKE, &header(mode, me), &[1; 8], NONE), "send");
            }
        }
        gfence(handle);
        let seen = seen(handle);
        let seen = lock(&seen);
        assert_eq!(seen.calls.len(), 4 * n);
        for call in &seen.calls {
            assert_eq!(call.from, call.header.tag as usize);
            assert_eq!(call.flags, (raw::NORMAL, raw::DELIVER_MSG), "as at first, whatever the one before answered");
        }
        drop(seen);
        l08_bytes(handle, me, n);
    });
}

/// The header handler asks for half of the data: the rest of the place is left alone.
fn l08_bytes(handle: Handle, me: usize, n: usize) {
    gfence(handle);
    let data: Vec<_> = [64, 20_000].iter().map(|len| pattern(me, *len)).collect();
    for (tag, data) in data.iter().enumerate() {
        ok(send(handle, (me + 1) % n, TAKE, &header(HALF, tag), data, NONE), "send");
    }
    gfence(handle);
    let (seen, from) = (seen(handle), (me + n - 1) % n);
    let seen = lock(&seen);
    for (tag, len) in [(0, 64), (1, 20_000)] {
        let (stored, rest) = seen.places[&tag].split_at(len / 2);
        assert!(stored == &pattern(from, len)[..len / 2], "half of {len} bytes");
        assert!(rest.iter().all(|byte| *byte == 0xEE), "no more than half of {len} bytes");
    }
}

pub(super) fn l09(task: &Task) {
    with(task, |handle, me, n, next| {
        let [target, origin, completion] = [const { Counter::new() }; 3];
        let counters = [counter_at(handle, next, &target), &origin, &completion];
        let data: Vec<_> = [20, 20, 100_000, 100_000].iter().map(|len| pattern(me, *len)).collect();
        for (tag, (mode, data)) in [BURY, DROP, BURY, DROP].into_iter().zip(&data).enumerate() {
            ok(send(handle, next, TAKE, &header(mode, tag), data, counters), "send");
        }
        for counter in [&completion, &origin, &target] {
            wait(handle, counter, 4, "each counter moves");
        }
        let seen = seen(handle);
        let seen = lock(&seen);
        let from = (me + n - 1) % n;
        let times = |tag| seen.calls.iter().filter(|call| call.header.tag == tag).count();
        assert_eq!([0, 1, 2, 3].map(times), [1, 3, 1, 3], "a dropped message comes again");
        for (tag, len) in [(1, 20), (3, 100_000)] {
            assert!(seen.places[&tag][..] == pattern(from, len), "dropped");
        }
        assert!([0, 2].iter().all(|tag| seen.places[tag].iter().all(|byte| *byte == 0xEE)), "buried");
    });
}

pub(super) fn l10(task: &Task) {
    with(task, |handle, me, n, _| {
        let completion = Counter::new();
        let kept: Vec<_> = LENGTHS.iter().map(|len| pattern(me + len, *len)).collect();
        for to in 0..n {
            for (number, data) in kept.iter().enumerate() {
                let mode = THEN | if number % 2 == 0 { INLINE } else { 0 };
                let sent = header(mode, me * 100 + number);
                ok(send(handle, to, TAKE, &sent, data, [null(), null(), &completion]), "send");
            }
        }
        wait(handle, &completion, (n * LENGTHS.len()) as i32, "all");
        // All of every task's have run: each has waited for its completions.
        gfence(handle);
        let seen = seen(handle);
        let seen = lock(&seen);
        assert_eq!(seen.done.len(), n * LENGTHS.len());
        for (tag, data) in &seen.done {
            let len = LENGTHS[*tag as usize % 100];
            assert!(*data == pattern(*tag as usize / 100 + len, len), "{len} bytes");
        }
    });
}

pub(super) fn l11(task: &Task) {
    with(task, |handle, me, _, next| {
        let completion = Counter::new();
        let sent = header(THEN | REPLY | WAIT, me);
        for _ in 0..3 {
            ok(send(handle, next, TAKE, &sent, &[2; 300], [null(), null(), &completion]), "send");
        }
        wait(handle, &completion, 3, "handlers that send and wait");
        gfence(handle);
        let seen = seen(handle);
        let seen = lock(&seen);
        assert_eq!(seen.done_codes, [codes::SUCCESS; 6]);
        let here = std::thread::current().id();
        assert!(seen.done_on.iter().all(|thread| (*thread == here) == task.virtual_time), "on a thread of their own");
    });
}

pub(super) fn l12(task: &Task) {
    with(task, |handle, me, n, next| {
        let completion = Counter::new();
        let slow = if task.virtual_time { THEN } else { THEN | GATE };
        for _ in 0..100 {
            ok(send(handle, next, TAKE, &header(slow, 1), &[2; 30], NONE), "slow");
        }
        let sent = header(THEN | INLINE | REPLY, 2);
        ok(send(handle, next, TAKE, &sent, &[2; 300], [null(), null(), &completion]), "inline");
        // Before the slow ones, whose gate is closed.
        wait(handle, &completion, 1, "an inline handler");
        gfence(handle);
        let seen = seen(handle);
        {
            let mut seen = lock(&seen);
            let inline = seen.done.iter().position(|(tag, _)| *tag == 2).expect("it has run");
            // Replies have the same tag.
            let call = seen.calls.iter().find(|call| call.header == sent).expect("it came");
            assert_eq!(Some(seen.done_on[inline]), call.thread, "on the thread of the header handler");
            assert_eq!(seen.done_codes, [codes::SUCCESS], "it may send to the source");
            seen.gate = true;
        }
        gfence(handle);
        let replies = lock(&seen).calls.iter().filter(|call| call.header == header(0, 2)).count();
        assert_eq!(replies, 1, "of task {me}");
        let sent = header(THEN | INLINE | CALL, 3);
        ok(send(handle, next, TAKE, &sent, &[], [null(), null(), &completion]), "calls");
        wait(handle, &completion, 1, "an inline handler that calls");
        gfence(handle);
        let mut expected = REFUSED;
        expected[6] = codes::SUCCESS;
        expected[7] = if n > 1 { codes::INVALID_SEND_REPLY_TGT } else { codes::SUCCESS };
        let seen = lock(&seen);
        assert_eq!(seen.done_codes[1..], expected, "it may neither wait nor enter a collective");
        // The other messages have a header.
        let sent = seen.calls.iter().filter(|call| call.header_len == 0).count();
        assert_eq!(sent, if n > 1 { 1 } else { 2 }, "nothing of what was refused");
    });
}

pub(super) fn l14(task: &Task) {
    with(task, |handle, me, n, next| {
        for (tag, len) in LENGTHS.into_iter().enumerate() {
            let origin = Counter::new();
            let (mut data, mut sent) = (pattern(me + len, len), header(0, tag));
            ok(send(handle, next, TAKE, &sent, &data, [null(), &origin, null()]), "send");
            wait(handle, &origin, 1, "origin");
            data.fill(0xFF);
            sent.tag = 999;
            std::hint::black_box((&data, &sent));
        }
        gfence(handle);
        let seen = seen(handle);
        let from = (me + n - 1) % n;
        for (tag, len) in LENGTHS.into_iter().enumerate() {
            assert!(lock(&seen).places[&(tag as u32)][..] == pattern(from + len, len), "{len} bytes");
        }
    });
}

pub(super) fn l15(task: &Task) {
    with(task, |handle, _, _, next| {
        let [target, completion] = [const { Counter::new() }; 2];
        let at_next = counter_at(handle, next, &target);
        let mode = if task.virtual_time { THEN | LOOK } else { THEN | GATE | LOOK };
        for data in [&[1; 10][..], &[1; 100_000]] {
            let seen = seen(handle);
            lock(&seen).gate = false;
            lock(&seen).done.clear();
            gfence(handle);
            let sent = Header { mode, tag: 1, address: at_next as u64 };
            ok(send(handle, next, TAKE, &sent, data, [at_next, null(), &completion]), "send");
            // The data has arrived, and the handler stands at its gate.
            gfence(handle);
            if !task.virtual_time {
                assert_eq!((get(handle, &target), get(handle, &completion)), (0, 0), "the handler has not returned");
            }
            // No task opens a gate before all have looked.
            gfence(handle);
            lock(&seen).gate = true;
            wait(handle, &target, 1, "the target's counter");
            assert_eq!(lock(&seen).done.len(), 1, "the handler has returned");
            assert_eq!(std::mem::take(&mut lock(&seen).looked), [0], "before its counter moves");
            wait(handle, &completion, 1, "the completion counter");
        }
        ok(send(handle, next, TAKE, &header(0, 1), &[1; 10], [at_next, null(), null()]), "no handler");
        wait(handle, &target, 1, "after the data");
    });
}

pub(super) fn l16(task: &Task) {
    with(task, |handle, me, n, _| {
        let (completion, origin) = (Counter::new(), Counter::new());
        let flags: Box<[AtomicU64]> = (0..50 * n).map(|_| AtomicU64::new(0)).collect();
        let there = all(handle, flags.as_ptr() as u64);
        for number in 0..50 {
            let to = number % n;
            let flag = there[to] + 8 * (50 * me + number) as u64;
            let mode = THEN | FLAG | if number % 3 == 0 { INLINE } else { 0 };
            let sent = Header { mode, tag: me as u32, address: flag };
            ok(send(handle, to, TAKE, &sent, &[5; 20], [null(), null(), &completion]), "send");
            wait(handle, &completion, 1, "its handler has run");
            let mut set = 0u64;
            let (from, into) = (flag as *const c_void, (&raw mut set).cast());
            // SAFETY: a word of task `to`, and our own until the counter has moved.
            ok(unsafe { raw::get(handle, to as u32, 8, from, into, null(), &origin) }, "get");
            wait(handle, &origin, 1, "the flag");
            assert_eq!(set, 1, "what the handler has done is there");
        }
        gfence(handle);
        let expected: usize = (0..n).map(|_| (0..50).filter(|number| number % n == me).count()).sum();
        assert_eq!(lock(&seen(handle)).done.len(), expected);
    });
}

pub(super) fn l17(task: &Task) {
    with(task, |handle, _, _, next| {
        let counters = [const { Counter::new() }; 3];
        let at_next = counter_at(handle, next, &counters[0]);
        let addresses: [*const Counter; 3] = [at_next, &counters[1], &counters[2]];
        for (mode, len) in [(0, 8), (THEN, 8), (THEN | INLINE, 30_000), (THEN, 30_000)] {
            let data = pattern(1, len);
            let mut expected = [0; 3];
            for set in 0..8 {
                let chosen = std::array::from_fn(|i| if set >> i & 1 == 1 { addresses[i] } else { null() });
                ok(send(handle, next, TAKE, &header(mode, set), &data, chosen), "send");
                (0..3).for_each(|i| expected[i] += (set >> i & 1) as i32);
            }
            for (counter, expected) in counters.iter().zip(expected) {
                assert_eq!(wait(handle, counter, expected, "those that were given"), 0);
            }
            // The data of a message without an origin counter is free when it is in place everywhere.
            gfence(handle);
        }
        assert_eq!([&counters[0], &counters[1], &counters[2]].map(|counter| get(handle, counter)), [0; 3]);
    });
}

pub(super) fn l18(task: &Task) {
    with(task, |handle, _, _, next| {
        let [target, completion] = [const { Counter::new() }; 2];
        let counters = [counter_at(handle, next, &target), null(), &completion];
        ok(send(handle, next, TAKE, &header(THEN | LOCAL | CALL, 1), &[1; 10], counters), "send");
        wait(handle, &target, 1, "target");
        wait(handle, &completion, 1, "completion");
        let seen = seen(handle);
        let seen = lock(&seen);
        assert_eq!(seen.done_codes, REFUSED, "it does not communicate");
        let threads: Vec<_> = seen.done_on.iter().copied().map(Some).collect();
        assert_eq!(threads, [seen.calls[0].thread], "inline");
    });
}

pub(super) fn l19(task: &Task) {
    with(task, |handle, me, n, _| {
        let own = if me.is_multiple_of(2) { take } else { take_other };
        // SAFETY: a header handler.
        ok(unsafe { raw::addr_set(handle, own as *const () as usize, 5) }, "set");
        gfence(handle);
        for to in 0..n {
            ok(send(handle, to, 5 as *const c_void, &header(0, me), &[1; 8], NONE), "by index");
        }
        gfence(handle);
        let seen = seen(handle);
        let seen = lock(&seen);
        assert_eq!(seen.calls.len(), n);
        let expected = if me.is_multiple_of(2) { 0 } else { 77 };
        assert!(seen.calls.iter().all(|call| call.header.address == expected), "the target's own function");
    });
}

/// A raw send with counters: its code, and what the counters count.
fn raw_send(
    handle: Handle,
    to: u32,
    handler: *const c_void,
    (uhdr, uhdr_len): (*const u8, usize),
    (udata, len): (*const u8, u64),
) -> (i32, [i32; 3]) {
    let counters = [const { Counter::new() }; 3];
    let (uhdr, udata) = (uhdr.cast(), udata.cast());
    let [target, origin, completion] = &counters;
    // SAFETY: what is wrong is refused; what is right is waited for.
    let code =
        unsafe { raw::amsend(handle, to, handler, uhdr, uhdr_len as u32, udata, len, target, origin, completion) };
    if code == codes::SUCCESS {
        wait(handle, completion, 1, "accepted");
        completion.set(1);
    }
    (code, counters.map(|counter| counter.value()))
}

/// Checks that a send is refused with `code`, moves nothing, and sends nothing.
#[track_caller]
pub(super) fn refused(
    handle: Handle,
    to: u32,
    handler: *const c_void,
    uhdr: (*const u8, usize),
    udata: (*const u8, u64),
    code: i32,
) {
    assert_eq!(raw_send(handle, to, handler, uhdr, udata), (code, [0; 3]));
}

pub(super) fn l20(task: &Task) {
    with(task, |handle, me, _, _| {
        let words = [0u8; MAX_UHDR_SZ + 8];
        let (to, start, own) = (me as u32, words.as_ptr(), TAKE);
        let none = (null(), 0);
        refused(handle, to, own, (null(), 8), none, codes::UHDR_NULL);
        refused(handle, to, own, (start, MAX_UHDR_SZ + 4), none, codes::UHDR_LEN);
        gfence(handle);
        assert!(lock(&seen(handle)).calls.is_empty(), "nothing was sent");
        for (uhdr, len) in [(null(), 0), (start, 0), (start, MAX_UHDR_SZ)] {
            assert_eq!(raw_send(handle, to, own, (uhdr, len), none).0, codes::SUCCESS, "{len}");
            let seen = seen(handle);
            assert_eq!(lock(&seen).calls.last().map(|call| call.header_len as usize), Some(len));
        }
    });
}

pub(super) fn l21(task: &Task) {
    with(task, |handle, me, _, _| {
        let words = [0u8; 16];
        let (to, start, own) = (me as u32, words.as_ptr(), TAKE);
        for odd in [1, 2, 3, 5, 6, 7, 9] {
            refused(handle, to, own, (start, odd), (null(), 0), codes::UHDR_LEN);
        }
        gfence(handle);
        assert!(lock(&seen(handle)).calls.is_empty(), "nothing was sent");
        for even in [4, 8, 12] {
            assert_eq!(raw_send(handle, to, own, (start, even), (null(), 0)).0, codes::SUCCESS);
        }
    });
}

pub(super) fn l22(task: &Task) {
    with(task, |handle, me, _, _| {
        let (to, own, none, byte) = (me as u32, TAKE, (null(), 0), 1u8);
        refused(handle, to, own, none, (null(), 1), codes::ORG_ADDR_NULL);
        refused(handle, to, own, none, (&byte, u64::MAX), codes::DATA_LEN);
        refused(handle, to, own, none, (&byte, raw::MAX_MSG_SZ + 1), codes::DATA_LEN);
        gfence(handle);
        assert!(lock(&seen(handle)).calls.is_empty(), "nothing was sent");
        assert_eq!(raw_send(handle, to, own, none, (null(), 0)).0, codes::SUCCESS);
        assert_eq!(raw_send(handle, to, own, none, (&byte, 0)).0, codes::SUCCESS);
    });
}

pub(super) fn l23(task: &Task) {
    with(task, |handle, _, _, next| {
        let counters = [const { Counter::new() }; 3];
        let addresses = [counter_at(handle, next, &counters[0]), &counters[1], &counters[2]];
        ok(send(handle, next, TAKE, &header(THEN, 4), &[], addresses), "nothing but a header");
        counters.iter().for_each(|counter| assert_eq!(wait(handle, counter, 1, "each counter"), 0));
        let seen = seen(handle);
        let seen = lock(&seen);
        assert_eq!((seen.calls.len(), &seen.done[..]), (1, &[(4, Vec::new())][..]));
    });
}

pub(super) fn l24(task: &Task) {
    with(task, |handle, me, n, _| {
        for to in [n as u32, n as u32 + 1, u32::MAX] {
            refused(handle, to, TAKE, (null(), 0), (null(), 0), codes::TGT);
        }
        gfence(handle);
        assert!(lock(&seen(handle)).calls.is_empty(), "nothing was sent");
        assert_eq!(raw_send(handle, me as u32, TAKE, (null(), 0), (null(), 0)).0, codes::SUCCESS, "to itself");
    });
}

pub(super) fn l25(task: &Task) {
    let handle = task.init();
    let me = place(handle).0 as u32;
    refused(handle, me, null(), (null(), 0), (null(), 0), codes::HDR_HNDLR_NULL);
    refused(0, me, TAKE, (null(), 0), (null(), 0), codes::HNDL_INVALID);
    refused(handle + 64_000, me, TAKE, (null(), 0), (null(), 0), codes::HNDL_INVALID);
    task.term(handle);
    refused(handle, me, TAKE, (null(), 0), (null(), 0), codes::HNDL_INVALID);
    assert_eq!([raw::fence(handle), raw::gfence(handle)], [codes::HNDL_INVALID; 2]);
    assert!(lock(&seen(handle)).calls.is_empty(), "nothing was sent");
}

pub(super) fn l28(task: &Task) {
    // The reference's example, with the completion counter by address.
    let handle = task.init();
    let (me, n) = place(handle);
    let handlers = all(handle, take as *const () as u64);
    let (completion, buddy) = (Counter::new(), (me + 1) % n);
    let data: [i32; 64] = std::array::from_fn(|i| i as i32);
    let is_sender = me.is_multiple_of(2);
    gfence(handle);
    if is_sender {
        let (handler, none) = (handlers[buddy] as *const c_void, null());
        let len = size_of_val(&data) as u64;
        // SAFETY: the data and the counter stay until the wait below has ended.
        let code = unsafe {
            raw::amsend(handle, buddy as u32, handler, none, 0, data.as_ptr().cast(), len, null(), null(), &completion)
        };
        ok(code, "amsend");
        wait(handle, &completion, 1, "the message is complete at its target");
    }
    gfence(handle);
    let calls = lock(&seen(handle)).calls.len();
    let senders = (0..n).filter(|task| task.is_multiple_of(2) && (task + 1) % n == me).count();
    assert_eq!(calls, senders);
    task.term(handle);
}

pub(super) fn l36(task: &Task) {
    with(task, |handle, me, n, _| {
        // Where a message has to leave before the next has room, each takes as long as tasks take turns.
        let (messages, puts) =
            (task.times(100, 5000), task.times(100, if task.attaches { 1_000_000 / n } else { 5000 }));
        let target = Counter::new();
        let at_zero = counter_at(handle, 0, &target);
        let memory = Shared::new(n);
        let there = all(handle, memory.address())[0] + me as u64;
        for number in 0..puts {
            if number < messages {
                ok(send(handle, 0, TAKE, &header(BURY, me), &[1; 8], [at_zero, null(), null()]), "send");
            }
            ok(put(handle, 0, there, &[7], [at_zero, null(), null()]), "put");
        }
        if me == 0 {
            assert_eq!(wait(handle, &target, ((messages + puts) * n) as i32, "every increment"), 0);
        }
        gfence(handle);
        assert_eq!(get(handle, &target), 0);
    });
}

pub(super) fn l54(task: &Task) {
    let handle = task.init();
    let (me, n) = place(handle);
    let next = (me + 1) % n;
    super::flow::no_function(handle, next as u32);
    let last = LOC_ADDRTBL_SZ - 1;
    let completion = Counter::new();
    let data = vec![1; 100_000];
    let told = std::cell::Cell::new(0);
    // Every call that makes progress may tell it.
    let count = |code| match code {
        codes::NO_HNDLR_SET => told.set(told.get() + 1),
        code => ok(code, "another call"),
    };
    count(raw::gfence(handle));
    for (round, (index, len)) in [(9, 8), (last, 100_000)].into_iter().enumerate() {
        let counters = [null(), null(), &raw const completion];
        ok(send(handle, next, index as *const c_void, &header(0, me), &data[..len], counters), "send");
        super::watchdog::at("an index that is not set");
        // This task hears of its own message and of that of the task before it.
        while told.get() < 2 * (round + 1) {
            count(raw::probe(handle));
            std::thread::yield_now();
        }
    }
    count(raw::gfence(handle));
    assert_eq!((told.get(), completion.value()), (4, 0), "at both ends, and no counter moves");
    assert!(lock(&seen(handle)).calls.is_empty());
    gfence(handle);
    ok(send(handle, next, TAKE, &header(0, me), &data, [null(), null(), &completion]), "it goes on");
    wait(handle, &completion, 1, "a message to a handler that is set");
    gfence(handle);
    task.term(handle);
}

/// Whether this process has a thread of this name.
fn has_thread(name: &str) -> bool {
    let threads = std::fs::read_dir("/proc/self/task").expect("a process has threads");
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.into_iter().any(|found| found.trim_end() == name)
}

pub(super) fn l59(task: &Task) {
    let handle = task.init();
    let (me, n) = place(handle);
    let next = (me + 1) % n;
    let set = |on| raw::senv(handle, raw::query::INTERRUPT_SET, on);
    let mode = || super::query(handle, raw::query::INTERRUPT_SET);
    assert_eq!((mode(), set(2)), (i32::from(!task.virtual_time), codes::SET_VAL));
    if task.virtual_time {
        assert_eq!((set(1), set(0), mode()), (codes::SET_VAL, codes::SUCCESS, 0), "ranks take turns");
        return task.term(handle);
    }
    let seen = seen(handle);
    for _ in 0..2 {
        gfence(handle);
        let completion = Counter::new();
        // Its completion handler sends a message back, and waits.
        let sent = header(THEN | REPLY | WAIT, me);
        ok(send(handle, next, TAKE, &sent, &[3; 50], [null(), null(), &completion]), "send");
        super::watchdog::at("no calls in interrupt mode");
        while completion.value() == 0 || lock(&seen).done.is_empty() {
            std::thread::yield_now();
        }
        gfence(handle);
        lock(&seen).done.clear();
        ok(set(0), "polling mode");
        assert_eq!(mode(), 0);
        ok(set(1), "interrupt mode again");
    }
    ok(set(0), "polling mode");
    let (ready, target) = (Counter::new(), Counter::new());
    let (ready_at, target_at) = (all(handle, ready.address() as u64), all(handle, target.address() as u64));
    // How task 0 tells something to task 1, which makes no call: by a file, named after the process of task 0 and an address there. Both
    // run on one host.
    let named = [u64::from(std::process::id()), ready.address() as u64].map(|part| all(handle, part)[0]);
    let sent = std::env::temp_dir().join(format!("bellwether-l59-{}-{}", named[0], named[1]));
    if n > 1 && me == 1 {
        lock(&seen).calls.clear();
        let counters = [ready_at[0] as *const Counter, null(), null()];
        ok(send(handle, 0, TAKE, &header(0, 0), &[], counters), "from now on no call");
        super::watchdog::at("the file of task 0");
        while !sent.exists() {
            std::thread::yield_now();
        }
        std::fs::remove_file(&sent).expect("a file of this test");
        // Task 0 has sent its message. Only the thread of interrupt mode could take it without a call, and this waits for the end of that.
        super::watchdog::at("the end of the thread of interrupt mode");
        while has_thread(&format!("lapi poll {handle}")) {
            assert!(lock(&seen).calls.is_empty(), "it came without a call");
            std::thread::yield_now();
        }
        assert!(lock(&seen).calls.is_empty(), "it came without a call");
        wait(handle, &target, 1, "the message");
    } else if n > 1 && me == 0 {
        wait(handle, &ready, 1, "task 1 makes no calls");
        let counters = [target_at[1] as *const Counter, null(), null()];
        ok(send(handle, 1, TAKE, &header(0, 1), &[1; 8], counters), "send");
        // Over a network it leaves in these calls, at the latest.
        (0..100).for_each(|_| ok(raw::probe(handle), "probe"));
        std::fs::write(&sent, []).expect("a file");
    }
    gfence(handle);
    task.term(handle);
}

pub(super) fn l62(task: &Task) {
    with(task, |handle, me, _, next| {
        let completion = Counter::new();
        ok(send(handle, next, TAKE, &header(CALL, me), &[1; 8], [null(), null(), &completion]), "send");
        wait(handle, &completion, 1, "a header handler that calls");
        gfence(handle);
        let seen = seen(handle);
        let seen = lock(&seen);
        assert_eq!((seen.calls.len(), &seen.calls[0].codes[..]), (1, &REFUSED[..]), "nothing was sent");
    });
}

pub(super) fn l63(task: &Task) {
    with(task, |handle, me, n, next| {
        let (to, own) = (next as u32, TAKE);
        assert_eq!([raw::purge_totask(handle, n as u32), raw::resume_totask(handle, u32::MAX)], [codes::TGT; 2]);
        assert_eq!([raw::purge_totask(0, to), raw::resume_totask(0, to)], [codes::HNDL_INVALID; 2]);
        ok(raw::purge_totask(handle, to), "purge");
        refused(handle, to, own, (null(), 0), (null(), 0), codes::TGT_PURGED);
        let (counter, mut word) = (Counter::new(), 1i32);
        let start: *mut i32 = &mut word;
        // SAFETY: all of them are refused.
        let outcomes = unsafe {
            [
                raw::put(handle, to, 4, start.cast(), start.cast(), &counter, &counter, &counter),
                raw::get(handle, to, 4, start.cast(), start.cast(), &counter, &counter),
                raw::rmw(handle, 0, to, start, start, start, &counter),
            ]
        };
        assert_eq!((outcomes, counter.value()), ([codes::TGT_PURGED; 3], 0));
        if n > 1 {
            assert_eq!(raw_send(handle, me as u32, own, (null(), 0), (null(), 0)).0, codes::SUCCESS, "another task");
        }
        gfence(handle);
        let came = lock(&seen(handle)).calls.len();
        assert_eq!(came, usize::from(n > 1), "nothing came from the task before");
        gfence(handle);
        ok(raw::resume_totask(handle, to), "resume");
        ok(send(handle, next, own, &header(0, 1), &[], [null(), null(), &counter]), "send");
        wait(handle, &counter, 1, "a task that was resumed");
    });
}
