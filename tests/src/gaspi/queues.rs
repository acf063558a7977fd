//! Rows about queues.

use bellwether_runtime::vocabulary::gaspi::Timeout::{Block, Test};
use bellwether_runtime::vocabulary::gaspi::{Config, GROUP_ALL, QUEUE_MAX, Result, codes};

use super::{Here, S, Task, fails, note, ok, part, pattern, test_loop};

/// Writes to the next process on this queue, and checks what the one before writes.
fn use_queue(here: &Here<'_>, queue: u8, seed: usize) {
    here.fill(0, &pattern(seed + here.me, 100));
    ok("write_notify", here.p.write_notify(part(0, 5000, 100), here.next(), note(9, 1), queue, Block));
    ok("wait", here.p.wait(queue, Block));
    here.take(9);
    assert_eq!(here.bytes(5000, 100), pattern(seed + usize::from(here.before()), 100));
    here.barrier();
}

fn num(here: &Here<'_>) -> u32 {
    ok("queue_num", here.p.queue_num())
}

pub(super) fn g01(task: &Task) {
    task.works(|here| {
        let queue = ok("queue_create", here.p.queue_create(Block));
        assert_eq!(queue, 8, "the first new id is the old number of queues");
        use_queue(here, queue, 1);
    });
}

pub(super) fn g03(task: &Task) {
    task.works(|here| {
        let queues: Vec<_> =
            (0..if here.me == 0 { 3 } else { 0 }).map(|_| ok("create", here.p.queue_create(Block))).collect();
        here.barrier();
        assert_eq!(num(here), if here.me == 0 { 11 } else { 8 });
        if here.me == 0 {
            here.fill(0, &pattern(4, 64));
            for (i, queue) in queues.into_iter().enumerate() {
                ok(
                    "write",
                    here.p.write_notify(part(0, 64 * i as u64, 64), here.next(), note(i as u32, 1), queue, Block),
                );
            }
        }
        if here.before() == 0 {
            for i in 0..3 {
                here.take(i);
                assert_eq!(here.bytes(64 * u64::from(i), 64), pattern(4, 64));
            }
        }
    });
}

pub(super) fn g04(task: &Task) {
    task.works(|here| {
        let (queue, _) = test_loop("queue_create", |timeout| here.p.queue_create(timeout));
        assert_eq!((queue, num(here)), (8, 9));
        use_queue(here, queue, 2);
    });
}

pub(super) fn g05(task: &Task) {
    task.works(|here| {
        let most = ok("queue_max", here.p.queue_max());
        assert_eq!(most, QUEUE_MAX);
        while let Ok(queue) = here.p.queue_create(Block) {
            assert!(u32::from(queue) < most);
        }
        assert_eq!(num(here), most);
        fails(codes::ERROR, here.p.queue_create(Block));
        assert_eq!(num(here), most);
        for queue in [0, 15] {
            use_queue(here, queue, 3);
        }
        ok("delete", here.p.queue_delete(11));
        assert_eq!(ok("create", here.p.queue_create(Block)), 11);
    });
}

pub(super) fn g07(task: &Task) {
    ok("config_set", task.process.config_set(Config { build_infrastructure: false, ..Config::default() }));
    task.works_as_set(|here| {
        ok("segment_create", here.p.segment_create(S, 1 << 16, GROUP_ALL, Block));
        ok("connect", here.p.connect(here.next(), Block));
        let queue = ok("create", here.p.queue_create(Block));
        use_queue(here, queue, 5);
    });
}

pub(super) fn g09(task: &Task) {
    task.works(|here| {
        let queue = ok("create", here.p.queue_create(Block));
        here.post_often(queue);
        ok("delete", here.p.queue_delete(queue));
        for gone in [queue, QUEUE_MAX as u8, 255] {
            fails(codes::INV_QUEUE, here.p.write(part(0, 0, 8), here.next(), gone, Block));
            fails(codes::INV_QUEUE, here.p.read(part(0, 0, 8), here.next(), gone, Block));
            fails(codes::INV_QUEUE, here.p.notify(note(1, 1), here.next(), gone, Block));
            fails(codes::INV_QUEUE, here.p.write_list(&[part(0, 0, 8)], here.next(), gone, Block));
            fails(codes::INV_QUEUE, here.p.wait(gone, Block));
            fails(codes::INV_QUEUE, here.p.queue_size(gone));
            fails(codes::INV_QUEUE, here.p.queue_purge(gone, Block));
        }
        here.barrier();
        fails(codes::TIMEOUT, here.p.notify_waitsome(S, 0, 10, Test));
    });
}

pub(super) fn g10(task: &Task) {
    task.works(|here| {
        here.fill(0, &pattern(here.me, 1 << 20));
        here.barrier();
        let queue = ok("create", here.p.queue_create(Block));
        ok("read", here.p.read(part(2 << 20, 0, 1 << 20), here.next(), queue, Block));
        ok("delete", here.p.queue_delete(queue));
        assert_eq!(here.bytes(2 << 20, 1 << 20), pattern(here.next().into(), 1 << 20), "nothing is lost");
    });
}

pub(super) fn g12(task: &Task) {
    ok("config_set", task.process.config_set(Config { queue_num: 3, ..Config::default() }));
    task.works_as_set(|here| {
        assert_eq!(num(here), 3);
        fails(codes::INV_QUEUE, here.p.queue_delete(200));
        fails(codes::INV_QUEUE, here.p.queue_delete(3));
        assert_eq!(ok("create", here.p.queue_create(Block)), 3);
        assert_eq!(num(here), 4);
        ok("delete", here.p.queue_delete(3));
        fails(codes::INV_QUEUE, here.p.queue_delete(3));
        assert_eq!(num(here), 3);
    });
}

pub(super) fn g14(task: &Task) {
    task.works(|here| {
        let create = || ok("create", here.p.queue_create(Block));
        for _ in 0..3 {
            assert_eq!(create(), 8);
            ok("delete", here.p.queue_delete(8));
        }
        let (a, b) = (create(), create());
        ok("delete", here.p.queue_delete(a));
        let c = create();
        assert_eq!((a, b, c), (8, 9, 8));
        use_queue(here, b, 6);
        use_queue(here, c, 7);
        assert_eq!((10..16).map(|_| create()).collect::<Vec<_>>(), [10, 11, 12, 13, 14, 15]);
        fails(codes::ERROR, here.p.queue_create(Block));
        // One of the first.
        ok("delete", here.p.queue_delete(2));
        fails(codes::INV_QUEUE, here.p.wait(2, Block));
        assert_eq!(create(), 2);
    });
}

pub(super) fn g15(task: &Task) {
    task.works(|here| {
        here.fill(0, &pattern(here.me, 1 << 20));
        here.barrier();
        for _ in 0..4 {
            ok("read", here.p.read(part(1 << 20, 0, 1 << 20), here.next(), 2, Block));
        }
        // Over a network the reads are under way, and this wait lets no time pass.
        ok("wait for the other queue, which is empty", here.p.wait(1, Test));
        ok("write", here.p.write(part(0, 3 << 20, 8), here.next(), 1, Block));
        ok("wait for the other queue", here.p.wait(1, Block));
        assert_eq!(ok("queue_size", here.p.queue_size(2)), 4);
        ok("wait", here.p.wait(2, Block));
        assert_eq!(here.bytes(1 << 20, 1 << 20), pattern(here.next().into(), 1 << 20));
        small_before_large(&mut || {
            for _ in 0..4 {
                ok("read", here.p.read(part(1 << 20, 0, 1 << 20), here.next(), 2, Block));
            }
            let at_once = is_complete(here.p.wait(2, Test));
            ok("write", here.p.write(part(0, 3 << 20, 8), here.next(), 1, Block));
            ok("wait for the other queue", here.p.wait(1, Block));
            let in_time = is_complete(here.p.wait(2, Test));
            ok("wait", here.p.wait(2, Block));
            [at_once, in_time]
        });
    });
}

/// Whether a wait with [`Test`] found its requests complete.
pub(super) fn is_complete(outcome: Result<()>) -> bool {
    match outcome {
        Err(code) if code.is_timeout() => false,
        outcome => {
            ok("wait", outcome);
            true
        }
    }
}

/// Checks that a wait for a small request ends before large ones on another queue are complete. `round` posts large ones, tests whether they
/// are complete, posts the small one and waits for it, and tests again; it returns both results.
///
/// This thread may lose its processor until the large ones are complete, so one good round of many is enough. Where the first test finds
/// them complete in most rounds, posting completes them, and there is nothing to check.
pub(super) fn small_before_large(round: &mut dyn FnMut() -> [bool; 2]) {
    const ROUNDS: usize = 50;
    // If no request was under way in this many rounds, posting completes all requests: it is a copy between mapped memory.
    const FEW: usize = 5;
    let mut under_way = 0;
    for done in 1..=ROUNDS {
        let [at_once, in_time] = round();
        if !in_time {
            return;
        }
        under_way += usize::from(!at_once);
        if done == FEW && under_way == 0 {
            return;
        }
    }
    assert!(under_way <= ROUNDS / 2, "each wait for a small request took as long as the large ones");
}

pub(super) fn g16(task: &Task) {
    task.works(|here| {
        let cycles = task.times(100, 10_000);
        for cycle in 0..cycles {
            let queue = ok("create", here.p.queue_create(Block));
            assert_eq!(queue, 8, "cycle {cycle}");
            if cycle % 100 == 0 {
                ok("write", here.p.write(part(0, 1 << 20, 8), here.next(), queue, Block));
            }
            ok("delete", here.p.queue_delete(queue));
        }
        use_queue(here, 0, 8);
    });
}

pub(super) fn g17(task: &Task) {
    task.works(|here| {
        if task.virtual_time {
            // Calls are for one thread.
            let queues: Vec<u8> = (0..4).map(|_| ok("create", here.p.queue_create(Block))).collect();
            assert_eq!(queues, [8, 9, 10, 11]);
            return queues.into_iter().for_each(|queue| use_queue(here, queue, queue.into()));
        }
        let mut queues: Vec<u8> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| ok("create", here.p.queue_create(Block)))).collect();
            threads.into_iter().map(|thread| thread.join().expect("does not panic")).collect()
        });
        queues.sort_unstable();
        assert_eq!(queues, [8, 9, 10, 11]);
        // Each thread posts and waits on its own.
        std::thread::scope(|scope| {
            for queue in queues {
                scope.spawn(move || {
                    // Each thread has its own part of both halves.
                    let (at, len) = (10_000 * u64::from(queue), 3000);
                    for round in 1..=200 {
                        let seed = round as usize + usize::from(queue);
                        here.fill(at, &pattern(seed + here.me, len));
                        let data = part(at, (2 << 20) + at, len as u64);
                        ok("write", here.p.write_notify(data, here.next(), note(queue.into(), round), queue, Block));
                        ok("wait", here.p.wait(queue, Block));
                        while ok("reset", here.p.notify_reset(S, queue.into())) != round {
                            ok("waitsome", here.p.notify_waitsome(S, queue.into(), 1, Block));
                        }
                        let came = here.bytes((2 << 20) + at, len);
                        assert!(
                            came == pattern(seed + usize::from(here.before()), len),
                            "queue {queue}, round {round}"
                        );
                        // The one before may send the next.
                        ok("notify", here.p.notify(note(100 + u32::from(queue), round), here.before(), queue, Block));
                        let answer = 100 + u32::from(queue);
                        ok("waitsome", here.p.notify_waitsome(S, answer, 1, Block));
                        assert_eq!(ok("reset", here.p.notify_reset(S, answer)), round);
                    }
                });
            }
        });
    });
}
