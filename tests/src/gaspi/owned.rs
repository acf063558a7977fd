//! Rows about owned values: what a drop does, and calls that are resumed.

use bellwether_runtime::vocabulary::gaspi::Timeout::{self, Block, Test};
use bellwether_runtime::vocabulary::gaspi::{
    Config, Gaspi, Operation, Outcome, Process, QUEUE_MAX, Queue, Result, Resumable, Segment, codes,
};

use super::queues::{is_complete, small_before_large};
use super::{Task, fails, ok, pattern};
use crate::watchdog;

/// A working phase, with a segment that others write to until all have ended.
fn works(task: &Task, body: impl FnOnce(&Gaspi<'_>, &Process, &Segment<'_>)) {
    let gaspi = ok("begin", Gaspi::begin(&task.process, Config::default()).block());
    let segment = segment(&gaspi);
    body(&gaspi, &task.process, &segment);
    ok("barrier", gaspi.all().barrier(Block));
    drop(segment);
    ok("finish", gaspi.finish().block());
}

fn next(gaspi: &Gaspi<'_>) -> u16 {
    (gaspi.rank() + 1) % gaspi.size()
}

fn before(gaspi: &Gaspi<'_>) -> u16 {
    (gaspi.rank() + gaspi.size() - 1) % gaspi.size()
}

fn segment<'g>(gaspi: &'g Gaspi<'_>) -> Segment<'g> {
    ok("segment", gaspi.segment(4 << 20).block())
}

fn bytes(segment: &Segment<'_>, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ok("read", segment.read(offset, &mut bytes));
    bytes
}

/// Completes a call with [`Test`] alone; its result, and how many times the time was over.
fn tested<R>(what: &str, mut call: Resumable<'_, R>) -> (R, usize) {
    watchdog::at(format!("{what} in a loop"));
    let mut times = 0;
    loop {
        match ok(what, call.within(Test)) {
            Outcome::Done(done) => return (done, times),
            Outcome::Later(rest) => call = rest,
        }
        times += 1;
    }
}

pub(super) fn g02(task: &Task) {
    works(task, |gaspi, p, segment| {
        ok("write", segment.write(0, &pattern(gaspi.rank().into(), 1 << 20)));
        ok("barrier", gaspi.all().barrier(Block));
        let each: u64 = task.times(1 << 10, 1 << 16);
        // Those of the start come first, and are given back as the others are.
        let queues: Vec<_> = (0..QUEUE_MAX).map(|_| ok("queue", gaspi.queue(Block))).collect();
        fails(codes::ERROR, gaspi.queue(Block));
        assert_eq!(p.queue_num(), Ok(QUEUE_MAX));
        for (n, queue) in (0..).zip(&queues) {
            ok(
                "read",
                queue.read(
                    segment.here((2 << 20) + n * each..(2 << 20) + (n + 1) * each),
                    segment.there(next(gaspi), n * each),
                ),
            );
        }
        // The drop of each queue waits for the requests that were posted on that queue.
        drop(queues);
        assert_eq!(p.queue_num(), Ok(0));
        let came = bytes(segment, 2 << 20, (u64::from(QUEUE_MAX) * each) as usize);
        assert!(came == pattern(next(gaspi).into(), 1 << 20)[..came.len()], "nothing is lost");
        let queue = ok("queue", gaspi.queue(Block));
        ok("write", queue.write(segment.here(0..8), segment.there(next(gaspi), 3 << 20)));
        assert_eq!(queue.open_requests(), Ok(1));
        ok("close", queue.close().block());
        assert_eq!(p.queue_num(), Ok(0));
    });
}

/// A library that has a queue, and nothing else of the program's.
fn library(queue: &Queue<'_>, segment: &Segment<'_>, to: u16) -> Result<()> {
    queue.write(segment.here(0..8), segment.there(to, 3 << 20))?;
    queue.wait(Block)?;
    assert_eq!(queue.open_requests(), Ok(0));
    Ok(())
}

pub(super) fn g15(task: &Task) {
    works(task, |gaspi, _, segment| {
        ok("write", segment.write(0, &pattern(gaspi.rank().into(), 1 << 20)));
        ok("barrier", gaspi.all().barrier(Block));
        let [own, lent] = [(); 2].map(|()| ok("queue", gaspi.queue(Block)));
        for _ in 0..4 {
            ok("read", own.read(segment.here(1 << 20..2 << 20), segment.there(next(gaspi), 0)));
        }
        // Over a network the reads are under way, and this wait lets no time pass.
        ok("wait for the other queue, which is empty", lent.wait(Test));
        ok("library", library(&lent, segment, next(gaspi)));
        assert_eq!(own.open_requests(), Ok(4), "the library has waited for its own request alone");
        ok("wait", own.wait(Block));
        assert_eq!(bytes(segment, 1 << 20, 1 << 20), pattern(next(gaspi).into(), 1 << 20));
        small_before_large(&mut || {
            for _ in 0..4 {
                ok("read", own.read(segment.here(1 << 20..2 << 20), segment.there(next(gaspi), 0)));
            }
            let at_once = is_complete(own.wait(Test));
            ok("library", library(&lent, segment, next(gaspi)));
            let in_time = is_complete(own.wait(Test));
            ok("wait", own.wait(Block));
            [at_once, in_time]
        });
    });
}

pub(super) fn g19(task: &Task) {
    let (gaspi, _) = tested("begin", Gaspi::begin(&task.process, Config::default()));
    let (me, n) = (u64::from(gaspi.rank()), u64::from(gaspi.size()));
    fails(codes::INITED, Gaspi::begin(&task.process, Config::default()).block());
    let (segment, _) = tested("segment", gaspi.segment(4096));
    assert_eq!(task.process.segment_list().map(|list| list.len()), Ok(1));
    let everyone: Vec<u16> = (0..gaspi.size()).collect();
    let (group, _) = tested("group", ok("group", gaspi.group(&everyone)));
    assert_eq!(group.ranks(), Ok(everyone));
    let (sum, _) = tested("allreduce", group.allreduce(&[me, 1, 10 * me], Operation::Sum));
    assert_eq!(sum, [n * (n - 1) / 2, n, 5 * n * (n - 1)]);
    let (most, _) = tested("allreduce", gaspi.all().allreduce(&[-1.5 * me as f64], Operation::Min));
    assert_eq!(most, [-1.5 * (n - 1) as f64]);
    // Each process adds once, however often its call times out.
    for round in 0..20 {
        let (old, _) = tested("fetch_add", segment.fetch_add(0, 8, 1));
        assert!(old < 20 * n, "round {round}: {old}");
    }
    ok("barrier", group.barrier(Block));
    let (old, _) = tested("compare_swap", segment.compare_swap(0, 8, 20 * n, 20 * n));
    assert_eq!(old, 20 * n);
    // A message is received once.
    ok("write", segment.write(0, &me.to_ne_bytes()));
    if gaspi.rank() == 0 {
        let mut came = vec![false; n as usize];
        for _ in 1..n {
            let (from, len) = receive(&gaspi, &segment);
            assert_eq!((len, bytes(&segment, 64, 8)), (8, u64::from(from).to_ne_bytes().to_vec()));
            assert!(!std::mem::replace(&mut came[usize::from(from)], true), "twice of {from}");
        }
    } else {
        tested("send", gaspi.send(segment.here(0..8), 0));
    }
    ok("barrier", group.barrier(Block));
    fails(codes::TIMEOUT, gaspi.receive(segment.here(64..128), Test));
    drop(group);
    ok("close", segment.close());
    tested("finish", gaspi.finish());
    assert_eq!(task.process.initialized(), Ok(false));
}

fn receive(gaspi: &Gaspi<'_>, segment: &Segment<'_>) -> (u16, u64) {
    watchdog::at("receive in a loop");
    loop {
        match gaspi.receive(segment.here(64..128), Test) {
            Err(code) if code.is_timeout() => {}
            outcome => return ok("receive", outcome),
        }
    }
}

pub(super) fn g23(task: &Task) {
    for _ in 0..2 {
        let gaspi = ok("begin", Gaspi::begin(&task.process, Config::default()).block());
        let (segment, queue) = (segment(&gaspi), ok("queue", gaspi.queue(Block)));
        ok("write", queue.write(segment.here(0..8), segment.there(next(&gaspi), 64)));
        drop(queue);
        ok("barrier", gaspi.all().barrier(Block));
        drop(segment);
        // Without `finish`: it ends the phase of this process.
        drop(gaspi);
        fails(codes::NOINIT, task.process.proc_rank());
    }
}

/// Makes a call anew each time that its time is over; how many times it was.
fn dropped<'a, R>(what: &str, mut call: impl FnMut() -> Resumable<'a, R>) -> (R, usize) {
    watchdog::at(format!("{what}, dropped in a loop"));
    let mut times = 0;
    loop {
        match ok(what, call().within(Test)) {
            Outcome::Done(done) => return (done, times),
            Outcome::Later(rest) => drop(rest),
        }
        times += 1;
    }
}

pub(super) fn g19_start(task: &Task) {
    let p = &task.process;
    for _ in 0..2 {
        let other = Config { queue_num: 1, ..Config::default() };
        let first = match ok("begin", Gaspi::begin(p, Config::default()).within(Test)) {
            Outcome::Done(gaspi) => gaspi,
            Outcome::Later(rest) => {
                drop(rest);
                fails(codes::INITED, Gaspi::begin(p, other).within(Test));
                dropped("begin", || Gaspi::begin(p, Config::default())).0
            }
        };
        assert_eq!(p.queue_num(), Ok(Config::default().queue_num));
        ok("finish", first.finish().block());
    }
}

pub(super) fn g19_segment(task: &Task) {
    works(task, |gaspi, p, first| {
        let queue = ok("queue", gaspi.queue(Block));
        let mut begun = ok("notification", first.notification(0));
        if gaspi.rank() != 0 {
            assert_eq!(begun.wait(Block), Ok(1));
        } else if gaspi.size() > 1 {
            // No other process has begun the call, and the number that is free now is not free later.
            assert!(matches!(gaspi.segment(4096).within(Test), Ok(Outcome::Later(_))));
            fails(codes::ACTIVE_COLL, gaspi.segment(8192).within(Test));
            ok("segment_alloc", p.segment_alloc(1, 64));
            for rank in 1..gaspi.size() {
                ok("notify", queue.notify(rank, begun.signal(), 1));
            }
        }
        let (second, _) = dropped("segment", || gaspi.segment(4096));
        let own = usize::from(gaspi.rank() == 0 && gaspi.size() > 1);
        assert_eq!(p.segment_list().map(|list| list.len()), Ok(2 + own), "each is made once");
        let mut came = ok("notification", second.notification(3));
        ok("write_notify", queue.write_notify(first.here(0..8), second.there(next(gaspi), 8), came.signal(), 9));
        assert_eq!(came.wait(Block), Ok(9));
        ok("wait", queue.wait(Block));
        let (third, _) = dropped("segment", || gaspi.segment(64));
        assert_eq!(third.size(), 64);
        ok("barrier", gaspi.all().barrier(Block));
    });
}

pub(super) fn g19_group(task: &Task) {
    works(task, |gaspi, p, _| {
        let everyone: Vec<u16> = (0..gaspi.size()).collect();
        let backwards: Vec<u16> = everyone.iter().rev().copied().collect();
        let commit = |ranks: &[u16]| dropped("group", || ok("group", gaspi.group(ranks))).0;
        let first = commit(if gaspi.rank() == 0 { &backwards } else { &everyone });
        assert_eq!(p.group_num(), Ok(2), "it is made once");
        let second = commit(&everyone);
        ok("barrier", second.barrier(Block));
        ok("barrier", first.barrier(Block));
        drop((first, second));
        assert_eq!(p.group_num(), Ok(1));
    });
}

pub(super) fn g23_ended(task: &Task) {
    let p = &task.process;
    let old = ok("begin", Gaspi::begin(p, Config::default()).block());
    let old_segment = segment(&old);
    let (old_queue, mut old_note) = (ok("queue", old.queue(Block)), ok("notification", old_segment.notification(5)));
    let everyone: Vec<u16> = (0..old.size()).collect();
    let old_group = ok("commit", ok("group", old.group(&everyone)).block());
    ok("barrier", old.all().barrier(Block));
    ok("proc_term", p.proc_term(Block));
    // They have the same numbers.
    let gaspi = ok("begin", Gaspi::begin(p, Config::default()).block());
    let segment = segment(&gaspi);
    let queue = ok("queue", gaspi.queue(Block));
    let group = ok("commit", ok("group", gaspi.group(&everyone)).block());
    let note = ok("notification", segment.notification(5));
    let (to, here) = (next(&gaspi), segment.here(0..8));
    fails(codes::NOINIT, old_queue.wait(Test));
    fails(codes::NOINIT, old_queue.write(old_segment.here(0..8), old_segment.there(to, 0)));
    fails(codes::NOINIT, old_note.wait(Test));
    fails(codes::NOINIT, old_segment.write(0, &[1]));
    fails(codes::NOINIT, old_segment.fetch_add(0, 0, 1).block());
    fails(codes::NOINIT, old_group.barrier(Test));
    fails(codes::NOINIT, old.segment(64).block());
    fails(codes::INV_SEG, queue.write(old_segment.here(0..8), segment.there(to, 0)));
    fails(codes::INV_SEG, queue.write(here, old_segment.there(to, 0)));
    fails(codes::INV_SEG, queue.notify(to, old_note.signal(), 1));
    fails(codes::INV_SEG, gaspi.receive(old_segment.here(0..8), Test));
    let groups = p.group_num();
    drop((old_note, old_queue, old_group));
    drop(old_segment);
    drop(old);
    assert_eq!(p.initialized(), Ok(true));
    assert_eq!((p.queue_num(), p.group_num()), (Ok(Config::default().queue_num), groups));
    assert_eq!(p.segment_list().map(|list| list.len()), Ok(1));
    ok("write_notify", queue.write_notify(here, segment.there(to, 64), note.signal(), 3));
    ok("barrier", group.barrier(Block));
    drop((note, queue, group));
    drop(segment);
    ok("finish", gaspi.finish().block());
}

pub(super) fn g40(task: &Task) {
    let p = &task.process;
    let config = Config { segment_max: 2, ..Config::default() };
    let gaspi = ok("begin", Gaspi::begin(p, config).block());
    let last = gaspi.rank() + 1 == gaspi.size();
    if last {
        [50, 51].into_iter().for_each(|id| ok("segment_alloc", p.segment_alloc(id, 64)));
    }
    watchdog::at("a segment that one has no room for");
    // One process has no room for a segment, and all get the error.
    fails(codes::MANY_SEG, gaspi.segment(64).block());
    fails(codes::INV_SEGSIZE, gaspi.segment(0).block());
    assert_eq!(p.segment_list(), Ok(if last { vec![50, 51] } else { vec![] }), "nobody has a part");
    if last {
        [50, 51].into_iter().for_each(|id| ok("segment_delete", p.segment_delete(id)));
    }
    let made = ok("segment", gaspi.segment(64).block());
    assert_eq!(p.segment_list().map(|list| list.len()), Ok(1));
    ok("barrier", gaspi.all().barrier(Block));
    drop(made);
    ok("finish", gaspi.finish().block());
}

pub(super) fn g42(task: &Task) {
    works(task, |gaspi, p, first| {
        // Not all have the same numbers in use, and they agree on one.
        let last = gaspi.size() - 1;
        let alone = (gaspi.rank() == last).then(|| ok("group", gaspi.group(&[last])));
        let alone = alone.map(|group| {
            let group = ok("commit", group.block());
            ok("segment", group.segment(64).block())
        });
        let second = segment(gaspi);
        let queue = ok("queue", gaspi.queue(Block));
        ok("write", first.write(0, &pattern(gaspi.rank().into(), 100)));
        let mut came = ok("notification", second.notification(3));
        ok("write_notify", queue.write_notify(first.here(0..100), second.there(next(gaspi), 500), came.signal(), 9));
        assert_eq!(came.wait(Block), Ok(9));
        assert_eq!(bytes(&second, 500, 100), pattern(before(gaspi).into(), 100));
        drop(came);
        ok("wait", queue.wait(Block));
        ok("barrier", gaspi.all().barrier(Block));
        ok("close", second.close());
        assert_eq!(p.segment_list().map(|list| list.len()), Ok(1 + usize::from(alone.is_some())));
        // Outside, and backwards.
        let third = segment(gaspi);
        assert_eq!(third.size(), 4 << 20);
        let to = third.there(next(gaspi), 0);
        fails(codes::INV_LOC_OFF, queue.write(third.here((4 << 20) - 1..(4 << 20) + 1), to));
        #[allow(clippy::reversed_empty_ranges, reason = "it is refused")]
        let backwards = third.here(8..0);
        fails(codes::INV_LOC_OFF, queue.write(backwards, to));
        fails(codes::INV_REM_OFF, queue.write(third.here(0..8), third.there(next(gaspi), u64::MAX - 3)));
        // Another process may still look there.
        ok("barrier", gaspi.all().barrier(Block));
    });
}

pub(super) fn g57(task: &Task) {
    works(task, |gaspi, _, segment| {
        let queue = ok("queue", gaspi.queue(Block));
        ok("write", segment.write(0, &pattern(gaspi.rank().into(), 64)));
        ok("barrier", gaspi.all().barrier(Block));
        let mut arrived = ok("notification", segment.notification(1));
        let mut fetched = ok("notification", segment.notification(2));
        let parts =
            |to: u16| [0, 1].map(|n| (segment.here(32 * n..32 * n + 32), segment.there(to, (1 << 20) + 64 * n)));
        ok("write_list", queue.write_list(&parts(next(gaspi)), Some((arrived.signal(), 5))));
        assert_eq!(arrived.wait(Block), Ok(5));
        let expected = pattern(before(gaspi).into(), 64);
        assert_eq!(bytes(segment, 1 << 20, 32), expected[..32]);
        assert_eq!(bytes(segment, (1 << 20) + 64, 32), expected[32..]);
        let from =
            |n: u64| (segment.here((2 << 20) + 32 * n..(2 << 20) + 32 * n + 32), segment.there(next(gaspi), 32 * n));
        ok("read_list", queue.read_list(&[from(0), from(1)], Some(&fetched)));
        assert_eq!(fetched.wait(Block), Ok(1));
        assert_eq!(bytes(segment, 2 << 20, 64), pattern(next(gaspi).into(), 64));
        ok(
            "read_notify",
            queue.read_notify(segment.here(3 << 20..(3 << 20) + 8), segment.there(next(gaspi), 0), &fetched),
        );
        assert_eq!(fetched.wait(Block), Ok(1));
        ok("wait", queue.wait(Block));
        fails(codes::INV_NUM, queue.write_list(&[], None));
        if gaspi.size() > 1 {
            let several = [(segment.here(0..8), segment.there(0, 0)), (segment.here(0..8), segment.there(1, 0))];
            fails(codes::INV_RANK, queue.read_list(&several, None));
        }
    });
}

pub(super) fn g61(task: &Task) {
    works(task, |gaspi, _, segment| {
        let queue = ok("queue", gaspi.queue(Block));
        let mut all = ok("notifications", segment.notifications(100..300));
        // These notifications cannot be taken a second time.
        for taken in [100..101, 299..400, 0..101, 150..160] {
            fails(codes::INV_NOTIF_ID, segment.notifications(taken));
        }
        fails(codes::INV_NOTIF_ID, segment.notification(200));
        fails(codes::INV_NOTIF_ID, segment.notifications(65_000..65_537));
        fails(codes::INV_NUM, segment.notifications(5..5));
        assert!(all.signal(200).is_none());
        let other = ok("notification", segment.notification(300));
        ok("barrier", gaspi.all().barrier(Block));
        for index in [7, 0, 199] {
            let signal = all.signal(index).expect("there are 200");
            ok("notify", queue.notify(next(gaspi), signal, index + 1));
        }
        let mut came: Vec<_> = (0..3).map(|_| ok("wait_some", all.wait_some(Block))).collect();
        came.sort_unstable();
        assert_eq!(came, [(0, 1), (7, 8), (199, 200)]);
        fails(codes::TIMEOUT, all.wait_some(Test));
        ok("barrier", gaspi.all().barrier(Block));
        // Given back, they are reset, and free.
        ok("notify", queue.notify(next(gaspi), other.signal(), 1));
        ok("notify", queue.notify(next(gaspi), all.signal(9).expect("there are 200"), 4));
        ok("wait", queue.wait(Block));
        ok("barrier", gaspi.all().barrier(Block));
        drop((all, other));
        let mut again = ok("notifications", segment.notifications(0..65_536));
        fails(codes::TIMEOUT, again.wait_some(Timeout::Test));
    });
}

pub(super) fn g61_wide(task: &Task) {
    const FROM_EACH: u32 = 40;
    works(task, |gaspi, _, segment| {
        let queue = ok("queue", gaspi.queue(Block));
        let mut all = ok("notifications", segment.notifications(0..65_536));
        fails(codes::TIMEOUT, all.wait_some(Test));
        ok("barrier", gaspi.all().barrier(Block));
        // Far apart, and side by side.
        let index = |i: u32| if i.is_multiple_of(2) { i * 1_600 } else { 65_535 - i };
        for i in 0..FROM_EACH {
            ok("notify", queue.notify(next(gaspi), all.signal(index(i)).expect("there are so many"), i + 1));
        }
        watchdog::at("a wide range in a loop");
        let mut came = Vec::new();
        while came.len() < FROM_EACH as usize {
            match all.wait_some(Test) {
                Err(code) if code.is_timeout() => {}
                outcome => came.push(ok("wait_some", outcome)),
            }
        }
        came.sort_unstable();
        let mut sent: Vec<_> = (0..FROM_EACH).map(|i| (index(i), i + 1)).collect();
        sent.sort_unstable();
        assert_eq!(came, sent, "each once, with its own value");
        fails(codes::TIMEOUT, all.wait_some(Test));
        ok("wait", queue.wait(Block));
        ok("barrier", gaspi.all().barrier(Block));
        fails(codes::TIMEOUT, all.wait_some(Test));
    });
}

pub(super) fn g61_drop(task: &Task) {
    works(task, |gaspi, _, segment| {
        let queue = ok("queue", gaspi.queue(Block));
        let mut stop = ok("notification", segment.notification(65_535));
        let mut all = ok("notifications", segment.notifications(0..65_535));
        ok("barrier", gaspi.all().barrier(Block));
        if gaspi.rank() != 0 {
            // Until rank 0 reports that the drop has ended.
            watchdog::at("notifying beside a drop");
            let mut round = 0;
            loop {
                for index in [round, round * 64 % 65_535, 65_534 - round % 8] {
                    ok("notify", queue.notify(0, all.signal(index).expect("there are so many"), 1));
                }
                round = (round + 1) % 65_535;
                if round.is_multiple_of(64) {
                    ok("wait", queue.wait(Block));
                    match stop.wait(Test) {
                        Err(code) if code.is_timeout() => {}
                        outcome => {
                            assert_eq!(outcome, Ok(1));
                            break;
                        }
                    }
                }
            }
        } else if gaspi.size() > 1 {
            for _ in 0..10 {
                ok("wait_some", all.wait_some(Block));
            }
            watchdog::at("a drop beside others that notify");
            drop(all);
            // The range is free, and what comes is the next owner's.
            let mut again = ok("notifications", segment.notifications(0..65_535));
            ok("wait_some", again.wait_some(Block));
            for rank in 1..gaspi.size() {
                ok("notify", queue.notify(rank, stop.signal(), 1));
            }
            ok("wait", queue.wait(Block));
            // After this no process notifies any more.
            ok("barrier", gaspi.all().barrier(Block));
            drop(again);
            return;
        }
        ok("wait", queue.wait(Block));
        ok("barrier", gaspi.all().barrier(Block));
    });
}
