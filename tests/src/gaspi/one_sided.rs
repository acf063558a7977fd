//! Rows about writes, reads and atomic operations.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use bellwether_runtime::vocabulary::gaspi::Timeout::{Block, Test};
use bellwether_runtime::vocabulary::gaspi::{Config, GROUP_ALL, Note, Part, codes};

use super::{S, Sets, Task, fails, note, ok, part, pattern, test_loop};
use crate::watchdog;

pub(super) fn g45(task: &Task) {
    // The first byte of a write that follows the others.
    const LAST: u64 = (1 << 20) + 8000;
    task.works(|here| {
        here.fill(0, &pattern(here.me, 5000));
        here.fill(6000, &[99; 8]);
        here.barrier();
        if here.me == 0 {
            ok("write", here.p.write(part(0, 1 << 20, 5000), here.next(), 0, Block));
            ok("read", here.p.read(part(2 << 20, 0, 5000), here.next(), 0, Block));
            ok("wait", here.p.wait(0, Block));
            assert_eq!(here.bytes(2 << 20, 5000), pattern(here.next().into(), 5000));
            ok("write", here.p.write(part(6000, LAST, 8), here.next(), 0, Block));
            here.tell(here.next(), 1, 1, 0);
        }
        if here.before() == 0 {
            if !task.virtual_time {
                // This process makes no call until all of rank 0's writes and reads have ended.
                let start = ok("ptr", here.p.segment_ptr(S)).wrapping_add(LAST as usize);
                // SAFETY: a byte of the segment, which a write stores.
                let last = unsafe { AtomicU8::from_ptr(start) };
                watchdog::at("writes and reads without a call of the target");
                while last.load(Ordering::Acquire) != 99 {
                    std::thread::yield_now();
                }
            }
            here.take(1);
            assert_eq!(here.bytes(1 << 20, 5000), pattern(0, 5000));
        }
    });
}

pub(super) fn g46(task: &Task) {
    task.works(|here| {
        let len = 300_000;
        for round in 0..4usize {
            here.fill(0, &pattern(round + here.me, len));
            ok("write", here.p.write(part(0, 1 << 20, len as u64), here.next(), 3, Block));
            ok("wait", here.p.wait(3, Block));
            here.fill(0, &[0xEE; 300_000]);
            here.tell(here.next(), 4, 1, 3);
            here.take(4);
            assert_eq!(here.bytes(1 << 20, len), pattern(round + usize::from(here.before()), len));
            ok("read", here.p.read(part(2 << 20, 1 << 20, len as u64), here.next(), 4, Block));
            ok("wait", here.p.wait(4, Block));
            assert_eq!(here.bytes(2 << 20, len), pattern(round + here.me, len));
            here.barrier();
        }
    });
}

pub(super) fn g47(task: &Task) {
    task.works(|here| {
        let p = here.p;
        ok("wait for nothing", p.wait(0, Test));
        for n in 1..=5 {
            ok("write", p.write(part(0, 4096, 8), here.next(), 0, Block));
            assert_eq!(p.queue_size(0), Ok(n));
        }
        ok("read", p.read(part(8192, 4096, 8), here.next(), 0, Block));
        assert_eq!((p.queue_size(0), p.queue_size(1)), (Ok(6), Ok(0)));
        ok("wait", p.wait(0, Block));
        assert_eq!(p.queue_size(0), Ok(0));
        ok("wait for nothing", p.wait(0, Test));
    });
}

pub(super) fn g48(task: &Task) {
    const PLACE: u64 = 1 << 20;
    const WORDS: u8 = 3;
    task.works(|here| {
        for round in 0..task.times(20, 250u8) {
            // Words that differ in every byte, all to one place.
            let byte = |word: u8| round.wrapping_mul(WORDS).wrapping_add(word);
            for word in 0..WORDS {
                let from = 8 * u64::from(word);
                here.fill(from, &[byte(word); 8]);
                ok("write", here.p.write(part(from, PLACE, 8), here.next(), 0, Block));
            }
            here.tell(here.next(), 1, 1, 0);
            here.take(1);
            // Whichever came last, it came whole.
            let came = here.bytes(PLACE, 8);
            assert!((0..WORDS).any(|word| came == [byte(word); 8]), "round {round}: {came:?}");
            ok("wait", here.p.wait(0, Block));
            here.tell(here.before(), 4, 1, 1);
            here.take(4);
            ok("wait", here.p.wait(1, Block));
        }
    });
}

pub(super) fn g49(task: &Task) {
    const SIZES: [u64; 7] = [8, 1, 24, 4096, 70_001, 8, 1 << 20];
    task.works(|here| {
        // Writes of these sizes, then a notification; the one before does the same.
        let round = |round: usize, sizes: &mut dyn Iterator<Item = u64>| {
            let mut end = 0;
            let places: Vec<_> = sizes
                .map(|size| {
                    end += size;
                    (end - size, size)
                })
                .collect();
            here.fill(0, &pattern(round + here.me, end as usize));
            for (at, size) in places {
                ok("write", here.p.write(part(at, (2 << 20) + at, size), here.next(), 0, Block));
            }
            here.tell(here.next(), 3, round as u32 + 1, 0);
            assert_eq!(here.take(3), round as u32 + 1);
            assert_eq!(here.bytes(2 << 20, end as usize), pattern(round + usize::from(here.before()), end as usize));
            ok("wait", here.p.wait(0, Block));
            // The one before writes there again.
            here.tell(here.before(), 4, 1, 1);
            here.take(4);
            ok("wait", here.p.wait(1, Block));
        };
        // The large ones are rare.
        let some = |number: usize| (0..20).map(move |i| if i == 7 { SIZES[number % 7] } else { SIZES[i % 3] });
        (0..task.times(10, 300)).for_each(|number| round(number, &mut some(number)));
        let many = task.times(100, 1000);
        round(300, &mut (0..many).map(|i| if i == many / 2 { 1 << 20 } else { 8 + i % 1000 }));
        // Ten thousand short ones, of which ten are under way at a time.
        for ten in 0..task.times(3, 1000u32) {
            let (len, value) = (116, ten + 1);
            let seed = |rank: usize, slot: u32| rank + 7 * slot as usize + ten as usize;
            for slot in 0..10 {
                let at = 1024 * u64::from(slot);
                here.fill(at, &pattern(seed(here.me, slot), len as usize));
                for (start, size) in [(0, 8), (8, 100), (108, 8)] {
                    let part = part(at + start, (2 << 20) + at + start, size);
                    ok("write", here.p.write(part, here.next(), 0, Block));
                }
                here.tell(here.next(), 10 + slot, value, 0);
            }
            for slot in 0..10 {
                assert_eq!(here.take(10 + slot), value);
                let came = here.bytes((2 << 20) + 1024 * u64::from(slot), len as usize);
                assert_eq!(came, pattern(seed(here.before().into(), slot), len as usize));
            }
            ok("wait", here.p.wait(0, Block));
            here.tell(here.before(), 4, 1, 1);
            here.take(4);
            ok("wait", here.p.wait(1, Block));
        }
    });
}

pub(super) fn g50(task: &Task) {
    task.works(|here| {
        let rounds = task.times(20, 1000);
        for round in 0..rounds {
            let len = [8, 100, 65_000][round % 3];
            here.fill(0, &pattern(round + here.me, len));
            ok("write", here.p.write_notify(part(0, 1 << 20, len as u64), here.next(), note(5, 77), 2, Block));
            assert_eq!(here.take(5), 77);
            assert_eq!(here.bytes(1 << 20, len), pattern(round + usize::from(here.before()), len));
            ok("wait", here.p.wait(2, Block));
            here.tell(here.before(), 6, 1, 2);
            here.take(6);
        }
    });
}

pub(super) fn g51(task: &Task) {
    ok("config_set", task.process.config_set(Config { queue_size_max: 6, ..Config::default() }));
    task.works_as_set(|here| {
        let p = here.p;
        ok("create", p.segment_create(S, 1 << 16, GROUP_ALL, Block));
        let next = here.next();
        ok("write", p.write(part(0, 100, 8), next, 0, Block));
        ok("write_notify", p.write_notify(part(0, 100, 8), next, note(0, 1), 0, Block));
        ok("read", p.read(part(200, 0, 8), next, 0, Block));
        ok("notify", p.notify(note(1, 1), next, 0, Block));
        ok("list", p.write_list(&[part(0, 100, 8), part(0, 108, 8)], next, 0, Block));
        assert_eq!(p.queue_size(0), Ok(6), "one request each");
        fails(codes::QUEUE_FULL, p.write(part(0, 100, 8), next, 0, Block));
        fails(codes::QUEUE_FULL, p.write_notify(part(0, 100, 8), next, note(2, 1), 0, Block));
        fails(codes::QUEUE_FULL, p.read_notify(part(0, 100, 8), next, (S, 2), 0, Block));
        fails(codes::QUEUE_FULL, p.notify(note(2, 1), next, 0, Block));
        // Another queue has room.
        ok("notify", p.notify(note(3, 1), next, 1, Block));
        ok("wait", p.wait(0, Block));
        ok("write", p.write(part(0, 100, 8), next, 0, Block));
        let four = [part(0, 100, 8); 4];
        ok("list", p.write_list(&four, next, 0, Block));
        fails(codes::QUEUE_FULL, p.write_list(&four[..2], next, 0, Block));
        ok("list", p.write_list_notify(&four[..1], next, note(4, 1), 0, Block));
        // With a list of several parts the notification is a request of its own.
        ok("wait", p.wait(0, Block));
        ok("list", p.write_list_notify(&four[..2], next, note(4, 1), 0, Block));
        ok("list", p.read_list_notify(&[part(200, 0, 8), part(208, 8, 8)], next, (S, 4), 0, Block));
        assert_eq!(p.queue_size(0), Ok(6));
        ok("wait", p.wait(0, Block));
        // A barrier completes no request.
        ok("wait", p.wait(1, Block));
        here.barrier();
        assert_eq!((p.notify_reset(S, 0), p.notify_reset(S, 1)), (Ok(1), Ok(1)));
        assert_eq!((p.notify_reset(S, 2), p.notify_reset(S, 3)), (Ok(0), Ok(1)), "what was refused is not there");
    });
    // The longest queue, and what a queue has without a configuration.
    let longest = Config { queue_size_max: 4096, ..Config::default() };
    for config in [longest, Config::default()].into_iter().take(if task.virtual_time || task.emulated { 1 } else { 2 })
    {
        ok("config_set", task.process.config_set(config));
        task.works_as_set(|here| {
            let (p, next) = (here.p, here.next());
            ok("create", p.segment_create(S, 1 << 16, GROUP_ALL, Block));
            for number in 0..config.queue_size_max {
                // From where nobody writes.
                ok("write", p.write(part(40_000, 8 * u64::from(number), 8), next, 0, Block));
            }
            assert_eq!(p.queue_size(0), Ok(config.queue_size_max));
            fails(codes::QUEUE_FULL, p.write(part(40_000, 100, 8), next, 0, Block));
            fails(codes::QUEUE_FULL, p.notify(note(2, 1), next, 0, Block));
            ok("wait", p.wait(0, Block));
            ok("write", p.write(part(40_000, 100, 8), next, 0, Block));
            ok("wait", p.wait(0, Block));
        });
    }
}

pub(super) fn g53(task: &Task) {
    task.works(|here| {
        ok("read", here.p.read(part(0, 2 << 20, 1 << 20), here.next(), 5, Block));
        ok("write", here.p.write(part(0, 3 << 20, 8), here.next(), 5, Block));
        ok("purge", here.p.queue_purge(5, Block));
        assert_eq!(here.p.queue_size(5), Ok(0));
        ok("wait", here.p.wait(5, Test));
        ok("write", here.p.write(part(0, 3 << 20, 8), here.next(), 5, Block));
        ok("wait", here.p.wait(5, Block));
    });
}

pub(super) fn g54(task: &Task) {
    task.works(|here| {
        // The first request of a queue finds the segment, which may take its time.
        here.tell(here.next(), 0, 1, 0);
        assert_eq!(here.take(0), 1);
        here.barrier();
        for round in 0..5 {
            for i in 0..200u64 {
                ok("write", here.p.write(part(8 * i, (1 << 20) + 8 * i, 8), here.next(), 0, Test));
                ok("notify", here.p.notify(note(i as u32, round + 1), here.next(), 0, Test));
            }
            ok("wait", here.p.wait(0, Block));
            for i in 0..200 {
                assert_eq!(here.take(i), round + 1);
            }
            here.barrier();
        }
    });
}

pub(super) fn g55(task: &Task) {
    task.works(|here| {
        let p = here.p;
        ok("write", p.write(part(0, 0, 0), here.next(), 0, Block));
        ok("read", p.read(part(0, 0, 0), here.next(), 0, Block));
        ok("list", p.write_list(&[part(0, 0, 0), part(8, 8, 0)], here.next(), 0, Block));
        assert_eq!(p.queue_size(0), Ok(0));
        ok("write_notify", p.write_notify(part(0, 0, 0), here.next(), note(8, 3), 0, Block));
        ok("read_notify", p.read_notify(part(0, 0, 0), here.next(), (S, 9), 0, Block));
        assert_eq!(p.queue_size(0), Ok(2));
        assert_eq!((here.take(8), here.take(9)), (3, 1));
    });
}

pub(super) fn g56(task: &Task) {
    task.works(|here| {
        let (p, me) = (here.p, here.me as u16);
        here.fill(0, &pattern(3, 1000));
        ok("write_notify", p.write_notify(part(0, 2000, 1000), me, note(1, 4), 0, Block));
        assert_eq!(here.take(1), 4);
        assert_eq!(here.bytes(2000, 1000), pattern(3, 1000));
        ok("read_notify", p.read_notify(part(4000, 2000, 1000), me, (S, 2), 0, Block));
        here.take(2);
        assert_eq!(here.bytes(4000, 1000), pattern(3, 1000));
        ok("notify", p.notify(note(3, 9), me, 0, Block));
        assert_eq!(here.take(3), 9);
        ok("wait", p.wait(0, Block));
        assert_eq!(ok("add", p.atomic_fetch_add(S, 8000, me, 5, Block)), 0);
        assert_eq!(ok("swap", p.atomic_compare_swap(S, 8000, me, 5, 7, Block)), 5);
        assert_eq!(ok("add", p.atomic_fetch_add(S, 8000, me, 0, Block)), 7);
        let group = ok("group", p.group_create());
        ok("add", p.group_add(group, me));
        ok("commit", p.group_commit(group, Test));
        ok("barrier", p.barrier(group, Test));
        // The message comes to this process while it sends.
        here.fill(0, &[5; 8]);
        fails(codes::TIMEOUT, p.passive_send(S, 0, me, 8, Test));
        assert_eq!(ok("receive", p.passive_receive(S, 100, 8, Block)), (me, 8));
        test_loop("passive_send", |timeout| p.passive_send(S, 0, me, 8, timeout));
        fails(codes::TIMEOUT, p.passive_receive(S, 100, 8, Test));
    });
}

pub(super) fn g57(task: &Task) {
    task.works(|here| {
        let p = here.p;
        ok("create", p.segment_create(70, 1 << 16, GROUP_ALL, Block));
        let len = 64u64;
        here.fill(0, &pattern(here.me, 255 * len as usize));
        // To two segments there, in turns.
        let there = |i: u64| if i.is_multiple_of(2) { (70, i * len) } else { (S, (1 << 20) + i * len) };
        let list: Vec<_> = (0..255).map(|i| Part { local: (S, i * len), remote: there(i), size: len }).collect();
        ok("write_list", p.write_list_notify(&list, here.next(), Note { segment: 70, id: 6, value: 8 }, 0, Block));
        assert_eq!(p.queue_size(0), Ok(256), "with the notification");
        assert_eq!(p.notify_waitsome(70, 0, 100, Block), Ok(Some(6)));
        assert_eq!(p.notify_reset(70, 6), Ok(8));
        let theirs = pattern(here.before().into(), 255 * len as usize);
        for i in 0..255 {
            let (segment, offset) = there(i);
            let mut came = [0; 64];
            ok("segment_read", p.segment_read(segment, offset, &mut came));
            assert_eq!(came, theirs[(i * len) as usize..][..64]);
        }
        let back: Vec<_> =
            (0..255).map(|i| Part { local: (S, (2 << 20) + i * len), remote: there(i), size: len }).collect();
        ok("wait", p.wait(0, Block));
        ok("read_list", p.read_list_notify(&back, here.next(), (S, 7), 0, Block));
        assert_eq!(here.take(7), 1);
        assert_eq!(here.bytes(2 << 20, 255 * 64), pattern(here.me, 255 * 64));
        ok("wait", p.wait(0, Block));
        ok("read_list", p.read_list(&back[..3], here.next(), 0, Block));
        ok("wait", p.wait(0, Block));
        here.barrier();
        let many = vec![list[0]; 256];
        for list in [&many[..], &[]] {
            fails(codes::INV_NUM, p.write_list(list, here.next(), 0, Block));
            fails(codes::INV_NUM, p.read_list(list, here.next(), 0, Block));
            fails(codes::INV_NUM, p.write_list_notify(list, here.next(), note(1, 1), 0, Block));
            fails(codes::INV_NUM, p.read_list_notify(list, here.next(), (S, 1), 0, Block));
        }
        // The last one is wrong: none is done.
        let wrong = [part(0, 3 << 20, 8), part(0, 4 << 20, 8)];
        fails(codes::INV_REM_OFF, p.write_list_notify(&wrong, here.next(), note(1, 1), 0, Block));
        here.barrier();
        assert_eq!((here.bytes(3 << 20, 8), p.notify_reset(S, 1), p.queue_size(0)), (vec![0; 8], Ok(0), Ok(0)));
    });
}

pub(super) fn g58(task: &Task) {
    task.works(|here| {
        let len = 100_000;
        here.fill(0, &pattern(here.me, len));
        here.barrier();
        for id in 10..15 {
            ok("read_notify", here.p.read_notify(part(1 << 20, 0, len as u64), here.next(), (S, id), 0, Block));
            assert_eq!(here.take(id), 1);
            assert_eq!(here.bytes(1 << 20, len), pattern(here.next().into(), len));
            here.fill(1 << 20, &vec![0; len]);
        }
        fails(codes::INV_SEG, here.p.read_notify(part(0, 0, 8), here.next(), (99, 1), 0, Block));
        fails(codes::INV_NOTIF_ID, here.p.read_notify(part(0, 0, 8), here.next(), (S, 1 << 16), 0, Block));
    });
}

pub(super) fn g59(task: &Task) {
    task.works(|here| {
        let p = here.p;
        // Through a network each add is waited for; elsewhere fewer would be over before the other ranks begin.
        let is_slow = task.virtual_time || task.emulated;
        let (times, locks) = match (is_slow, p.has_network()) {
            (true, _) => (30, 5),
            (_, true) => (task.times(30, 5_000), task.times(5, 200)),
            _ => (100_000, 200),
        };
        let mut last = None;
        for _ in 0..times {
            let before = ok("add", p.atomic_fetch_add(S, 64, 0, 3, Block));
            assert!(before.is_multiple_of(3) && last.is_none_or(|last| last < before));
            last = Some(before);
        }
        here.barrier();
        assert_eq!(ok("add", p.atomic_fetch_add(S, 64, 0, 0, Block)), 3 * times * here.n as u64);
        // A lock, and a word that it protects.
        let word = |offset| part(offset, offset, 8);
        for _ in 0..locks {
            while ok("swap", p.atomic_compare_swap(S, 128, 0, 0, here.me as u64 + 1, Block)) != 0 {}
            ok("read", p.read(word(256), 0, 0, Block));
            ok("wait", p.wait(0, Block));
            let value = u64::from_ne_bytes(here.bytes(256, 8).try_into().expect("eight bytes"));
            here.fill(256, &(value + 1).to_ne_bytes());
            ok("write", p.write(word(256), 0, 0, Block));
            ok("wait", p.wait(0, Block));
            // The write is in effect where a read of the same queue has what it wrote.
            ok("read", p.read(word(256), 0, 0, Block));
            ok("wait", p.wait(0, Block));
            assert_eq!(ok("swap", p.atomic_compare_swap(S, 128, 0, here.me as u64 + 1, 0, Block)), here.me as u64 + 1);
        }
        here.barrier();
        if here.me == 0 {
            let value = u64::from_ne_bytes(here.bytes(256, 8).try_into().expect("eight bytes"));
            assert_eq!(value, here.n as u64 * locks);
        }
        for offset in [1, 4, 7, 65] {
            fails(codes::UNALIGN_OFF, p.atomic_fetch_add(S, offset, here.next(), 1, Block));
            fails(codes::UNALIGN_OFF, p.atomic_compare_swap(S, offset, here.next(), 0, 1, Block));
        }
        fails(codes::INV_REM_OFF, p.atomic_fetch_add(S, 4 << 20, here.next(), 1, Block));
    });
}

pub(super) fn g59_threads(task: &Task) {
    task.works(|here| {
        let p = here.p;
        if here.n == 1 || p.has_network() {
            return;
        }
        // The function of a reduction runs while its thread has the world, and returns when another thread has changed words.
        let (inside, changed, over) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let combine = |_: &mut [u8], _: &[u8]| {
            inside.store(true, Ordering::Release);
            watchdog::at("atomic operations of another thread");
            while !changed.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                let _changed = Sets(&changed);
                while !inside.load(Ordering::Acquire) && !over.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                for rank in [here.me as u16, here.next()] {
                    for _ in 0..100 {
                        ok("add", p.atomic_fetch_add(S, 512, rank, 1, Block));
                    }
                    assert_ne!(ok("swap", p.atomic_compare_swap(S, 512, rank, 0, 7, Block)), 0);
                }
            });
            let ends = Sets(&over);
            let mut result = [0; 4];
            ok("allreduce_user", p.allreduce_user(&[1; 4], &mut result, 4, GROUP_ALL, Block, combine));
            drop(ends);
            // The end of a scope alone is an order that the thread sanitizer does not see.
            changes.join().expect("atomic operations");
        });
        here.barrier();
        assert_eq!(ok("add", p.atomic_fetch_add(S, 512, here.me as u16, 0, Block)), 200, "each added once");
    });
}

pub(super) fn g59_lock(task: &Task) {
    const BRIEF: u8 = 97;
    task.works(|here| {
        if here.n == 1 || task.virtual_time {
            return;
        }
        let p = here.p;
        let swap = |old, new| ok("swap", p.atomic_compare_swap(S, 128, 1, old, new, Block));
        for _ in 0..9 {
            ok("alloc", p.segment_alloc(BRIEF, 64));
            ok("register", p.segment_register(BRIEF, here.before(), Block));
            here.barrier();
            match here.me {
                0 => {
                    // Rank 1 has to be told when nothing goes there any more.
                    ok("write", p.write(Part { local: (S, 0), remote: (BRIEF, 0), size: 8 }, 1, 0, Block));
                    ok("wait", p.wait(0, Block));
                    here.tell(1, 2, 1, 0);
                    here.take(1);
                    watchdog::at("a lock that is free when a message was let in");
                    while swap(0, 1) != 0 {
                        // Takes the lock of the process, and makes no progress.
                        ok("config_get", p.config_get());
                    }
                    assert_eq!(swap(1, 0), 1);
                }
                1 => {
                    here.take(2);
                    assert_eq!(swap(0, 2), 0);
                    here.tell(0, 1, 1, 0);
                    here.pause();
                    // Ends when rank 0 has answered.
                    ok("delete", p.segment_delete(BRIEF));
                    assert_eq!(swap(2, 0), 2);
                }
                _ => {}
            }
            here.barrier();
            if here.me != 1 {
                ok("delete", p.segment_delete(BRIEF));
            }
        }
    });
}
