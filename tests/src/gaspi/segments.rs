//! Rows about segments.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bellwether_runtime::vocabulary::gaspi::Timeout::{After, Block, Test};
use bellwether_runtime::vocabulary::gaspi::{Code, Config, Datatype, GROUP_ALL, Note, Operation, Part, Result, codes};

use super::{FREE, S, Sets, Task, fails, note, ok, part, pattern, test_loop};

pub(super) fn g38(task: &Task) {
    ok("config_set", task.process.config_set(Config { segment_max: 3, ..Config::default() }));
    task.works_as_set(|here| {
        let p = here.p;
        ok("alloc", p.segment_alloc(7, 1000));
        fails(codes::INV_SEG, p.segment_alloc(7, 1000));
        for size in [0, u64::MAX, 1 << 63] {
            fails(codes::INV_SEGSIZE, p.segment_alloc(8, size));
        }
        let mut bytes = [1; 1000];
        ok("read", p.segment_read(7, 0, &mut bytes));
        assert_eq!(bytes, [0; 1000]);
        ok("alloc", p.segment_alloc(0, 1));
        ok("alloc", p.segment_alloc(255, 1));
        fails(codes::MANY_SEG, p.segment_alloc(9, 1));
        ok("delete", p.segment_delete(0));
        ok("alloc", p.segment_alloc(9, 1));
        ok("delete", p.segment_delete(9));
        // More than there is: an error, and the id stays free.
        fails(codes::MEMALLOC, p.segment_alloc(9, 1 << 60));
        ok("alloc", p.segment_alloc(9, 1));
    });
}

pub(super) fn g39(task: &Task) {
    task.works(|here| {
        let p = here.p;
        ok("alloc", p.segment_alloc(20, 64));
        here.barrier();
        let there = Part { local: (S, 0), remote: (20, 0), size: 64 };
        if here.n > 1 {
            // It is there, and this process may not reach it.
            let note = Note { segment: 20, id: 0, value: 1 };
            fails(codes::INV_SEG, p.write(there, here.next(), 0, Block));
            fails(codes::INV_SEG, p.read(there, here.next(), 0, Block));
            fails(codes::INV_SEG, p.notify(note, here.next(), 0, Block));
            fails(codes::INV_SEG, p.write_notify(super::part(0, 0, 8), here.next(), note, 0, Block));
            fails(codes::INV_SEG, p.write_list(&[super::part(0, 0, 8), there], here.next(), 0, Block));
            fails(codes::INV_SEG, p.atomic_fetch_add(20, 0, here.next(), 1, Block));
            assert_eq!(p.queue_size(0), Ok(0));
        }
        here.barrier();
        test_loop("register", |timeout| p.segment_register(20, here.before(), timeout));
        ok("register", p.segment_register(20, here.before(), Block));
        ok("register", p.segment_register(20, here.me as u16, Block));
        fails(codes::INV_SEG, p.segment_register(21, here.before(), Block));
        fails(codes::INV_RANK, p.segment_register(20, here.n as u16, Block));
        here.tell(here.before(), 1, 1, 0);
        here.take(1);
        here.fill(0, &pattern(here.me, 64));
        let part = Part { local: (S, 0), remote: (20, 0), size: 64 };
        ok("write", p.write(part, here.next(), 0, Block));
        ok("wait", p.wait(0, Block));
        here.tell(here.next(), 2, 1, 0);
        here.take(2);
        let own = ok("add", p.atomic_fetch_add(20, 0, here.next(), 0, Block));
        assert_eq!(own.to_ne_bytes()[..], pattern(here.me, 64)[..8]);
        let mut came = [0; 64];
        ok("read", p.segment_read(20, 0, &mut came));
        assert_eq!(came[..], pattern(here.before().into(), 64));
    });
}

pub(super) fn g40(task: &Task) {
    task.works(|here| {
        let p = here.p;
        if here.me == 0 {
            // The last to begin.
            (1..here.n as u32).for_each(|rank| assert_eq!(here.take(rank), 1));
        } else {
            fails(codes::TIMEOUT, p.segment_create(30, 4096, GROUP_ALL, Test));
            here.tell(0, here.me as u32, 1, 0);
        }
        test_loop("segment_create", |timeout| p.segment_create(30, 4096, GROUP_ALL, timeout));
        fails(codes::INV_SEG, p.segment_create(30, 4096, GROUP_ALL, Block));
        here.fill(0, &pattern(here.me, 100));
        for rank in 0..here.n {
            let part = Part { local: (S, 0), remote: (30, 100 * here.me as u64), size: 100 };
            ok("write", p.write(part, rank as u16, 0, Block));
            here.tell(rank as u16, here.me as u32, 1, 0);
        }
        for rank in 0..here.n {
            here.take(rank as u32);
            let mut came = [0; 100];
            ok("read", p.segment_read(30, 100 * rank as u64, &mut came));
            assert_eq!(came[..], pattern(rank, 100));
        }
    });
}

pub(super) fn g41(task: &Task) {
    task.works(|here| {
        let p = here.p;
        let mut heap = vec![0u64; 1000];
        let mut stack = [0u64; 100];
        // SAFETY: both live until the segments are deleted, and only this program's calls touch them until then.
        unsafe {
            ok("use", p.segment_use(40, heap.as_mut_ptr().cast(), 8000, GROUP_ALL, Block));
            ok("bind", p.segment_bind(41, stack.as_mut_ptr().cast(), 800));
            fails(codes::NULLPTR, p.segment_bind(42, std::ptr::null_mut(), 8));
            fails(codes::INV_SEGSIZE, p.segment_bind(42, heap.as_mut_ptr().cast(), 0));
        }
        ok("register", p.segment_register(41, here.before(), Block));
        assert_eq!(p.segment_ptr(40), Ok(heap.as_mut_ptr().cast()));
        here.barrier();
        here.fill(0, &pattern(here.me, 4096));
        for (segment, len) in [(40, 4096), (41, 800)] {
            let part = Part { local: (S, 0), remote: (segment, 0), size: len };
            ok("write", p.write_notify(part, here.next(), note(segment.into(), 1), 0, Block));
            here.take(segment.into());
            let mut came = vec![0; len as usize];
            ok("read", p.segment_read(segment, 0, &mut came));
            assert_eq!(came, pattern(here.before().into(), 4096)[..len as usize]);
            // Requests of two queues have no order.
            ok("wait", p.wait(0, Block));
            let back = Part { local: (S, 8192), remote: (segment, 0), size: len };
            ok("read", p.read(back, here.next(), 1, Block));
            ok("wait", p.wait(1, Block));
            assert_eq!(here.bytes(8192, len as usize), pattern(here.me, 4096)[..len as usize]);
        }
        here.barrier();
        ok("delete", p.segment_delete(40));
        ok("delete", p.segment_delete(41));
        assert_eq!(heap[0].to_ne_bytes(), pattern(here.before().into(), 8)[..], "the memory stays the program's");
        assert_eq!(stack[0].to_ne_bytes(), pattern(here.before().into(), 8)[..]);
    });
}

pub(super) fn g42(task: &Task) {
    task.works(|here| {
        let p = here.p;
        for round in 0..3 {
            let size = 1000 + 1000 * round;
            ok("create", p.segment_create(50, size, GROUP_ALL, Block));
            assert_eq!(p.segment_size(50), Ok(size));
            let part = Part { local: (50, 0), remote: (50, size - 8), size: 8 };
            ok("write", p.write(part, here.next(), 0, Block));
            ok("wait", p.wait(0, Block));
            here.post_often(0);
            here.barrier();
            ok("delete", p.segment_delete(50));
            fails(codes::INV_SEG, p.segment_delete(50));
            fails(codes::INV_SEG, p.segment_ptr(50));
            fails(codes::INV_SEG, p.segment_size(50));
            fails(codes::INV_SEG, p.notify_waitsome(50, 0, 1, Test));
            fails(codes::INV_SEG, p.notify_reset(50, 0));
            fails(codes::INV_SEG, p.write(part, here.next(), 0, Block));
            here.barrier();
            // There it is deleted too.
            let part = Part { local: (S, 0), remote: (50, 0), size: 8 };
            fails(codes::INV_SEG, p.write(part, here.next(), 0, Block));
            fails(codes::INV_SEG, p.read(part, here.next(), 0, Block));
            fails(codes::INV_SEG, p.atomic_fetch_add(50, 0, here.next(), 1, Block));
            assert_eq!(p.queue_size(0), Ok(0));
            here.barrier();
        }
    });
}

pub(super) fn g43(task: &Task) {
    task.works(|here| {
        let p = here.p;
        ok("alloc", p.segment_alloc(1, 10));
        assert_eq!(p.segment_list(), Ok(vec![1, S]));
        assert_eq!((p.segment_size(1), p.segment_size(S)), (Ok(10), Ok(4 << 20)));
        assert!(!ok("ptr", p.segment_ptr(1)).is_null());
        fails(codes::INV_SEG, p.segment_ptr(2));
        fails(codes::INV_SEG, p.segment_size(2));
    });
}

pub(super) fn g44(task: &Task) {
    let most = 1 << 20;
    ok("config_set", task.process.config_set(Config { transfer_size_max: most, ..Config::default() }));
    task.works_as_set(|here| {
        let p = here.p;
        // Another size at each process.
        ok("alloc", p.segment_alloc(S, 4 << 20));
        ok("alloc", p.segment_alloc(60, 100 + here.me as u64));
        [S, 60].into_iter().for_each(|id| ok("register", p.segment_register(id, here.before(), Block)));
        here.barrier();
        here.post_often(0);
        let next = here.next();
        let there = 100 + u64::from(next);
        let both = |local: (u64, u64), remote: u64, code| {
            let part = Part { local: (S, local.0), remote: (60, remote), size: local.1 };
            fails(code, p.write(part, next, 0, Block));
            fails(code, p.read(part, next, 0, Block));
            fails(code, p.write_notify(part, next, note(1, 1), 0, Block));
            fails(code, p.write_list(&[super::part(0, 0, 8), part], next, 0, Block));
        };
        let own = 4 << 20;
        for (offset, size) in
            [(own, 1), (own - 7, 8), (u64::MAX, 1), (8, u64::MAX), (0, u64::MAX), (1 << 63, 1 << 63), (own, 0)]
        {
            both((offset, size), 0, codes::INV_LOC_OFF);
        }
        for (offset, size) in [(there, 1), (there - 7, 8), (u64::MAX, 1), (u64::MAX - 7, 8), (1, there), (there, 0)] {
            both((0, size), offset, codes::INV_REM_OFF);
        }
        both((0, most + 1), 0, codes::INV_COMMSIZE);
        let part = Part { local: (S, 0), remote: (60, there - 8), size: 8 };
        ok("write", p.write(part, next, 0, Block));
        assert_eq!(p.queue_size(0), Ok(1), "nothing of the others was posted");
        for offset in [there, u64::MAX - 7, 1 << 63] {
            let offset = offset.next_multiple_of(8);
            fails(codes::INV_REM_OFF, p.atomic_fetch_add(60, offset, next, 1, Block));
        }
        fails(codes::INV_LOC_OFF, p.passive_send(60, 100 + here.me as u64, next, 1, Block));
        fails(codes::INV_LOC_OFF, p.passive_receive(60, 1, 100 + here.me as u64, Block));
        for rank in [here.n as u16, u16::MAX] {
            fails(codes::INV_RANK, p.write(super::part(0, 0, 8), rank, 0, Block));
            fails(codes::INV_RANK, p.atomic_fetch_add(S, 0, rank, 1, Block));
            fails(codes::INV_RANK, p.passive_send(S, 0, rank, 1, Block));
        }
        for segment in [61, 0, 255] {
            let from = Part { local: (segment, 0), remote: (S, 0), size: 8 };
            let to = Part { local: (S, 0), remote: (segment, 0), size: 8 };
            fails(codes::INV_SEG, p.write(from, next, 0, Block));
            fails(codes::INV_SEG, p.write(to, next, 0, Block));
        }
    });
}

pub(super) fn g42_threads(task: &Task) {
    const BRIEF: u8 = 95;
    task.works(|here| {
        if task.virtual_time {
            return;
        }
        let (p, me) = (here.p, here.me as u16);
        let over = AtomicBool::new(false);
        let gone_or = |result: Result<()>, others: &[i32]| {
            let Err(Code(code)) = result else { return };
            assert!(code == codes::INV_SEG || others.contains(&code), "{code}");
            if code == codes::QUEUE_FULL {
                ok("wait", p.wait(0, Block));
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..3u32 {
                let (over, gone_or) = (&over, &gone_or);
                // Two share a queue.
                let queue = (thread / 2) as u8;
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let from = Part { local: (BRIEF, 0), remote: (S, 1 << 20), size: 64 };
                        gone_or(p.write(from, here.next(), queue, Block), &[codes::QUEUE_FULL]);
                        let to = Part { local: (S, 0), remote: (BRIEF, 64), size: 64 };
                        let note = Note { segment: BRIEF, id: thread, value: 1 };
                        gone_or(p.write_notify(to, me, note, queue, Block), &[codes::QUEUE_FULL]);
                        let found = p.notify_waitsome(BRIEF, 0, 65536, Test);
                        gone_or(found.map(drop), &[codes::TIMEOUT]);
                        gone_or(p.notify_reset(BRIEF, thread).map(drop), &[]);
                        ok("write", p.write(part(0, 2 << 20, 8), here.next(), 2 + thread as u8, Block));
                        ok("wait", p.wait(2 + thread as u8, Block));
                        if queue == 1 {
                            ok("wait", p.wait(1, Block));
                        }
                    }
                });
            }
            for round in 0..task.times(20, 100) {
                ok("alloc", p.segment_alloc(BRIEF, 4096 + round));
                std::thread::yield_now();
                ok("delete", p.segment_delete(BRIEF));
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}

pub(super) fn g42_own(task: &Task) {
    const BOUND: u8 = 96;
    const LEN: usize = 1 << 20;
    task.works(|here| {
        if task.virtual_time {
            return;
        }
        let (p, me) = (here.p, here.me as u16);
        here.fill(0, &vec![0x55; LEN]);
        let mut memory = vec![0u8; LEN];
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let to = Part { local: (S, 0), remote: (BOUND, 0), size: LEN as u64 };
                    match p.write(to, me, 0, Block) {
                        Ok(()) => ok("wait", p.wait(0, Block)),
                        gone => fails(codes::INV_SEG, gone),
                    }
                }
            });
            for round in 0..task.times(20, 200) {
                // SAFETY: it stays, and until the segment is deleted only calls touch it.
                unsafe { ok("bind", p.segment_bind(BOUND, memory.as_mut_ptr(), LEN as u64)) };
                std::thread::sleep(Duration::from_micros(50 * (round % 8)));
                ok("delete", p.segment_delete(BOUND));
                // The program's again.
                memory.fill(0xCA);
                let is_whole = memory.iter().all(|byte| *byte == 0xCA);
                if !is_whole {
                    over.store(true, Ordering::Relaxed);
                }
                assert!(is_whole, "round {round}: the memory of a deleted segment was written to");
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}

pub(super) fn g42_atomics(task: &Task) {
    const BRIEF: u8 = 98;
    const BOUND: u8 = 99;
    task.works(|here| {
        if task.virtual_time {
            return;
        }
        let (p, me, next) = (here.p, here.me as u16, here.next());
        let mut memory = vec![0u64; 8];
        let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
        // A change is made, or the segment is not there.
        let is_done = |result: Result<u64>| match result {
            Ok(_) => true,
            gone => {
                fails(codes::INV_SEG, gone);
                false
            }
        };
        let mut found = 0;
        std::thread::scope(|scope| {
            let changes = || {
                while !over.load(Ordering::Acquire) {
                    for rank in [me, next] {
                        is_done(p.atomic_fetch_add(BRIEF, 8, rank, 1, Block));
                        is_done(p.atomic_compare_swap(BRIEF, 16, rank, 0, 1, Block));
                        let added = is_done(p.atomic_fetch_add(BOUND, 8, rank, 1, Block));
                        done.fetch_add(added.into(), Ordering::Relaxed);
                    }
                }
            };
            let threads = [(); 2].map(|()| scope.spawn(changes));
            let ends = Sets(&over);
            for round in 0..task.times(20, 100) {
                ok("alloc", p.segment_alloc(BRIEF, 64));
                // SAFETY: it stays, and until the segment is deleted only calls touch it.
                unsafe { ok("bind", p.segment_bind(BOUND, memory.as_mut_ptr().cast(), 64)) };
                if round == 0 {
                    // This registers later segments with these ids, too.
                    [BRIEF, BOUND]
                        .into_iter()
                        .for_each(|id| ok("register", p.segment_register(id, here.before(), Block)));
                }
                // The others make progress meanwhile.
                fails(codes::TIMEOUT, p.notify_waitsome(S, FREE, 1, After(Duration::from_micros(200))));
                ok("delete", p.segment_delete(BRIEF));
                ok("delete", p.segment_delete(BOUND));
                // The program's again.
                found += memory[1];
                memory.fill(1 << 60);
                std::thread::yield_now();
                assert_eq!(memory, [1 << 60; 8], "the memory of a deleted segment was changed");
                memory.fill(0);
            }
            // The others may still change words here, and this process theirs.
            here.barrier();
            drop(ends);
            for thread in threads {
                thread.join().expect("atomic operations");
            }
        });
        let all = |mine: u64| {
            let (mine, mut sum) = (mine.to_ne_bytes(), [0; 8]);
            ok("allreduce", p.allreduce(&mine, &mut sum, Operation::Sum, Datatype::Ulong, GROUP_ALL, Block));
            u64::from_ne_bytes(sum)
        };
        assert_eq!(all(found), all(done.into_inner()), "each that succeeded has changed its word once, no other has");
    });
}
