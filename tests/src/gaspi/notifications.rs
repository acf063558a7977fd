//! Rows about notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bellwether_runtime::vocabulary::gaspi::Timeout::{Block, Test};
use bellwether_runtime::vocabulary::gaspi::{GROUP_ALL, Note, codes};

use super::{S, Task, WHILE, fails, note, ok, part};
use crate::watchdog;

pub(super) fn g60(task: &Task) {
    task.works(|here| {
        let p = here.p;
        here.post_often(0);
        fails(codes::INV_NOTIF_VAL, p.notify(note(1, 0), here.next(), 0, Block));
        fails(codes::INV_NOTIF_VAL, p.write_notify(part(0, 0, 8), here.next(), note(1, 0), 0, Block));
        for id in [1 << 16, u32::MAX] {
            fails(codes::INV_NOTIF_ID, p.notify(note(id, 1), here.next(), 0, Block));
            fails(codes::INV_NOTIF_ID, p.write_notify(part(0, 0, 8), here.next(), note(id, 1), 0, Block));
            fails(codes::INV_NOTIF_ID, p.notify_reset(S, id));
        }
        assert_eq!(p.queue_size(0), Ok(0));
        for (id, value) in [(0, 1), (65535, u32::MAX)] {
            here.tell(here.next(), id, value, 0);
            assert_eq!(here.take(id), value);
        }
    });
}

pub(super) fn g61(task: &Task) {
    task.works(|here| {
        let p = here.p;
        assert_eq!(p.notify_waitsome(S, 0, 0, Block), Ok(None));
        fails(codes::TIMEOUT, p.notify_waitsome(S, 0, 65536, Test));
        fails(codes::TIMEOUT, p.notify_waitsome(S, 0, 65536, WHILE));
        for (begin, number) in [(0, 65537), (65535, 2), (65536, 1), (u32::MAX, 2), (1, u32::MAX)] {
            fails(codes::INV_NOTIF_ID, p.notify_waitsome(S, begin, number, Test));
        }
        here.barrier();
        here.tell(here.next(), 7, 3, 0);
        for _ in 0..2 {
            assert_eq!(p.notify_waitsome(S, 0, 10, Block), Ok(Some(7)));
        }
        fails(codes::TIMEOUT, p.notify_waitsome(S, 0, 7, Test));
        fails(codes::TIMEOUT, p.notify_waitsome(S, 8, 10_000, Test));
        // The process that sets a notification stores it first and marks it for wide searches later.
        assert_eq!(p.notify_waitsome(S, 0, 65536, Block), Ok(Some(7)));
        assert_eq!((p.notify_reset(S, 7), p.notify_reset(S, 7)), (Ok(3), Ok(0)));
        fails(codes::TIMEOUT, p.notify_waitsome(S, 0, 65536, Test));
    });
}

pub(super) fn g62(task: &Task) {
    const THREADS: usize = 8;
    const IDS: u32 = 100;
    task.works(|here| {
        if task.virtual_time {
            // Calls are for one thread: each value is there once.
            for round in 0..10 {
                (0..IDS).for_each(|id| here.tell(here.next(), id, round * IDS + id + 1, 0));
                for id in 0..IDS {
                    assert_eq!(here.take(id), round * IDS + id + 1);
                    assert_eq!(here.p.notify_reset(S, id), Ok(0), "it was taken");
                }
                ok("wait", here.p.wait(0, Block));
                here.barrier();
            }
            return;
        }
        let rounds = task.times(10, 1000);
        // Not on the stack: the thread sanitizer does not see that a scope has ended, and what comes there next.
        let got = Arc::new(AtomicU32::new(0));
        let mut values: Vec<u32> = std::thread::scope(|scope| {
            let resets = || {
                let mut values = Vec::new();
                while got.load(Ordering::Acquire) < rounds * IDS {
                    let found = (0..IDS).map(|id| ok("reset", here.p.notify_reset(S, id))).filter(|value| *value != 0);
                    let before = values.len();
                    values.extend(found);
                    got.fetch_add((values.len() - before) as u32, Ordering::Release);
                    if values.len() == before {
                        std::thread::yield_now();
                    }
                }
                values
            };
            let threads = [(); THREADS].map(|()| scope.spawn(resets));
            watchdog::at("threads that reset the same notifications");
            for round in 0..rounds {
                (0..IDS).for_each(|id| here.tell(here.me as u16, id, round * IDS + id + 1, 0));
                ok("wait", here.p.wait(0, Block));
                while got.load(Ordering::Acquire) < (round + 1) * IDS {
                    std::thread::yield_now();
                }
            }
            threads.into_iter().flat_map(|thread| thread.join().expect("resets")).collect()
        });
        values.sort_unstable();
        assert!(values.into_iter().eq(1..=rounds * IDS), "each value goes to one thread");
    });
}

pub(super) fn g63(task: &Task) {
    task.works(|here| {
        here.tell(here.next(), 20, 5, 0);
        here.tell(here.next(), 20, 9, 0);
        here.tell(here.next(), 21, 1, 0);
        here.take(21);
        assert_eq!(here.take(20), 9);
        fails(codes::TIMEOUT, here.p.notify_waitsome(S, 20, 1, Test));
    });
}

pub(super) fn g65(task: &Task) {
    task.works(|here| {
        let p = here.p;
        ok("create", p.segment_create(80, 64, GROUP_ALL, Block));
        if here.me == 0 {
            ok("delete", p.segment_delete(80));
            let notified = p.notify(Note { segment: 80, id: 3, value: 2 }, here.next(), 0, Block);
            if here.n > 1 {
                ok("notify", notified);
            } else {
                fails(codes::INV_SEG, notified);
            }
        }
        if here.before() == 0 && here.n > 1 {
            assert_eq!(p.notify_waitsome(80, 0, 10, Block), Ok(Some(3)));
        }
    });
}

pub(super) fn g66(task: &Task) {
    task.works(|here| {
        let p = here.p;
        ok("create", p.segment_create(81, 1, GROUP_ALL, Block));
        ok("notify", p.notify(Note { segment: 81, id: 100, value: 6 }, here.next(), 0, Block));
        assert_eq!(p.notify_waitsome(81, 0, 65536, Block), Ok(Some(100)));
        assert_eq!(p.notify_reset(S, 100), Ok(0));
        assert_eq!(p.notify_reset(81, 100), Ok(6));
    });
}
