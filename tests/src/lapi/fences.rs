//! Rows about fences.

use std::sync::atomic::{AtomicU64, Ordering};

use bellwether_runtime::vocabulary::lapi::raw;

use super::handlers::{DROP, GATE, INLINE, REPLY, TAKE, THEN, lock, seen, send};
use super::messages::{NONE, header, pattern, with};
use super::one_sided::{Shared, put};
use super::{Task, all, gfence, ok};

pub(super) fn l27(task: &Task) {
    with(task, |handle, me, _, next| {
        let data = pattern(me, 20_000);
        for round in 0..20 {
            ok(send(handle, next, TAKE, &header(0, 2 * round), &data, NONE), "first");
            ok(raw::fence(handle), "fence");
            ok(send(handle, next, TAKE, &header(0, 2 * round + 1), &data[..8], NONE), "second");
            ok(raw::fence(handle), "fence");
        }
        gfence(handle);
        let seen = seen(handle);
        let tags: Vec<u32> = lock(&seen).calls.iter().map(|call| call.header.tag).collect();
        assert_eq!(tags, (0..40).collect::<Vec<_>>(), "a fence between two messages orders them");
    });
}

pub(super) fn l49(task: &Task) {
    with(task, |handle, me, n, _| {
        let mode = if task.virtual_time { THEN } else { THEN | GATE };
        let data = pattern(me, 100_000);
        for to in 0..n {
            ok(send(handle, to, TAKE, &header(mode, me), &data, NONE), "long");
            ok(send(handle, to, TAKE, &header(mode, 100 + me), &data[..100], NONE), "short");
        }
        // The handlers stand at their gates: a fence that waited for them would never end.
        ok(raw::fence(handle), "fence");
        gfence(handle);
        let seen = seen(handle);
        for from in 0..n {
            assert!(lock(&seen).places[&(from as u32)][..] == pattern(from, 100_000), "in place");
        }
        lock(&seen).gate = true;
    });
}

/// Tasks in pairs: one fences a message that the other does not take yet; meanwhile it answers the other's messages, from its handlers.
pub(super) fn later_messages(task: &Task) {
    const ASKS: u32 = 50;
    const OVER: u32 = 51;
    with(task, |handle, me, n, _| {
        let partner = me ^ 1;
        let seen = seen(handle);
        let count = |tag| lock(&seen).calls.iter().filter(|call| call.header.tag == tag).count();
        let until = |come: &dyn Fn() -> bool| {
            while !come() {
                ok(raw::probe(handle), "probe");
                std::thread::yield_now();
            }
        };
        for (tag, len) in [(1, 8), (2, 1000), (3, 100_000)] {
            let data = pattern(me & !1, len);
            lock(&seen).gate = false;
            gfence(handle);
            if partner < n && me < partner {
                ok(send(handle, partner, TAKE, &header(DROP | GATE, tag), &data, NONE), "send");
                ok(raw::fence(handle), "fence");
                ok(send(handle, partner, TAKE, &header(0, OVER as usize), &[], NONE), "the fence is over");
            } else if partner < n {
                super::watchdog::at(format!("a message of {len} bytes that is not taken yet"));
                until(&|| count(tag as u32) != 0);
                for round in 0..10 {
                    let before = count(ASKS);
                    let mode = REPLY | THEN | INLINE;
                    ok(send(handle, partner, TAKE, &header(mode, ASKS as usize), &[], NONE), "a question");
                    super::watchdog::at(format!("answer {round}, {len} bytes"));
                    until(&|| count(ASKS) > before);
                }
                assert_eq!(count(OVER), tag - 1, "the fence ended for messages that were sent after it began");
                lock(&seen).gate = true;
                super::watchdog::at(format!("the end of the fence, {len} bytes"));
                until(&|| count(OVER) == tag);
                assert!(lock(&seen).places[&(tag as u32)][..] == data, "in place");
            }
            gfence(handle);
        }
    });
}

/// A task that sees a put made after a fence also sees the puts made before it.
pub(super) fn order_of_puts(task: &Task) {
    const LEN: usize = 20_000;
    with(task, |handle, me, n, next| {
        // Data comes in calls of this thread only.
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
        let (memory, flag) = (Shared::new(LEN), AtomicU64::new(0));
        let there = all(handle, memory.address())[next];
        let flag_there = all(handle, flag.as_ptr() as u64)[next];
        let rounds = task.times(10, 100);
        for round in 1..=rounds {
            // Long data is fetched, and short data comes with its message.
            let len = if round % 2 == 0 { LEN } else { 100 };
            let (data, word) = (pattern(me + round, len), (round as u64).to_ne_bytes());
            ok(put(handle, next, there, &data, NONE), "the first put");
            ok(raw::fence(handle), "fence");
            ok(put(handle, next, flag_there, &word, NONE), "the second put");
            super::watchdog::at(format!("the second put of round {round}"));
            while flag.load(Ordering::Acquire) != round as u64 {
                ok(raw::probe(handle), "probe");
                std::thread::yield_now();
            }
            assert!(memory.bytes()[..len] == pattern((me + n - 1) % n + round, len), "round {round}");
            gfence(handle);
        }
    });
}

pub(super) fn l51(task: &Task) {
    with(task, |handle, me, n, _| {
        for round in 0..20 {
            let data = pattern(me + round, 300_001);
            for to in 0..n {
                ok(send(handle, to, TAKE, &header(0, me), &data, NONE), "long");
                ok(send(handle, to, TAKE, &header(0, n + me), &data[..50], NONE), "short");
            }
            gfence(handle);
            let seen = seen(handle);
            assert_eq!(lock(&seen).calls.len(), 2 * n * (round + 1), "all that was sent before has arrived");
            for from in 0..n {
                let expected = pattern(from + round, 300_001);
                assert!(lock(&seen).places[&(from as u32)][..] == expected, "long data is in place");
                assert!(lock(&seen).places[&((n + from) as u32)][..] == expected[..50], "short data is in place");
            }
            gfence(handle);
        }
    });
}
