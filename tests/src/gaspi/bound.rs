//! The rows about time limits, beside a process of the same node that is stopped. It has bound memory, and where the kernel allows no
//! cross-memory attach all that goes there is a message, which a stopped process does not take. And bound memory that goes away.

use std::time::Duration;

use bellwether_runtime::vocabulary::gaspi::Timeout::{self, After, Block, Test};
use bellwether_runtime::vocabulary::gaspi::{Config, Gaspi, Note, Part, Process, Segment, codes};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::killed::Stopped;
use super::{FREE, GO, Here, S, Task, fails, note, ok, part, pattern};
use crate::watchdog;

/// The segment of the memory that is bound, and its bytes.
const BOUND: u8 = 93;
const SIZE: u64 = 1 << 17;
/// Bytes that take several messages.
const LONG: u64 = 100_000;
/// Words behind them, which only atomic operations change.
const WORDS: u64 = 20;
const FIRST: u64 = 120_000;
/// A notification of the bound memory. The next one has the value that this one is to have.
const LAST: u32 = 5;
/// More writes than there is room for.
const MANY: usize = 100_000;
const SHORT: [Timeout; 2] = [Test, After(Duration::from_millis(10))];

/// The program of one of two processes.
///
/// # Panics
/// If a row does not hold.
pub fn its_process_is_stopped(task: &Task) {
    let mut memory = vec![0u64; SIZE as usize / 8];
    task.works(|here| {
        let p = here.p;
        if here.me == 1 {
            // SAFETY: it stays until the working phase has ended, and only calls touch it until then.
            unsafe { ok("segment_bind", p.segment_bind(BOUND, memory.as_mut_ptr().cast(), SIZE)) };
            ok("segment_register", p.segment_register(BOUND, 0, Block));
            here.fill(0, &std::process::id().to_ne_bytes());
            here.tell(0, GO, 1, 0);
            ok("wait", p.wait(0, Block));
            assert_eq!(here.take(GO), 2);
            let mut came = vec![0; LONG as usize];
            ok("segment_read", p.segment_read(BOUND, 0, &mut came));
            assert_eq!(came, pattern(3, LONG as usize));
            assert_eq!(p.notify_waitsome(BOUND, LAST + 1, 1, Block), Ok(Some(LAST + 1)));
            assert_eq!(p.notify_reset(BOUND, LAST), p.notify_reset(BOUND, LAST + 1), "what has timed out");
            return;
        }
        assert_eq!(here.take(GO), 1);
        ok("read", p.read(part(2 << 20, 0, 4), 1, 0, Block));
        ok("wait", p.wait(0, Block));
        let pid = i32::from_ne_bytes(here.bytes(2 << 20, 4).try_into().expect("four bytes"));
        calls_end(here, Stopped::new(pid));
        watchdog::at("a process that goes on");
        assert_eq!(p.queue_size(2), Ok(3), "the post that waited, and two of the other thread");
        [1, 2].into_iter().for_each(|queue| ok("wait", p.wait(queue, Block)));
        assert_eq!(p.queue_size(2), Ok(0));
        for word in 0..WORDS {
            let place = FIRST + 8 * word;
            assert_eq!(p.atomic_fetch_add(BOUND, place, 1, 5, Block), Ok(0));
            assert_eq!(p.atomic_fetch_add(BOUND, place, 1, 0, Block), Ok(5), "added once");
        }
        here.fill(0, &pattern(3, LONG as usize));
        ok("write_notify", p.write_notify(to(0, LONG), 1, note(GO, 2), 1, Block));
        ok("read", p.read(Part { local: (S, 1 << 20), ..to(0, LONG) }, 1, 1, Block));
        ok("wait", p.wait(1, Block));
        assert_eq!(here.bytes(1 << 20, LONG as usize), pattern(3, LONG as usize));
        the_last_notification_stays(p, Stopped::new(pid));
    });
    drop(memory);
}

/// Notifies until a notification times out, and tells the process there which was the last that did not.
fn the_last_notification_stays(p: &Process, stopped: Stopped) {
    watchdog::at("notifications of a process that is stopped");
    let posted = (1..=MANY as u32).take_while(|value| {
        match p.notify(Note { segment: BOUND, id: LAST, value: *value }, 1, 1, Test) {
            Err(code) if code.is_timeout() => false,
            outcome => {
                ok("notify", outcome);
                true
            }
        }
    });
    let value = posted.last().expect("the first finds room");
    drop(stopped);
    ok("notify", p.notify(Note { segment: BOUND, id: LAST + 1, value }, 1, 1, Block));
}

/// A part of the bound memory there, from the rows' segment here.
fn to(offset: u64, size: u64) -> Part {
    Part { local: (S, 0), remote: (BOUND, offset), size }
}

fn calls_end(here: &Here<'_>, stopped: Stopped) {
    let p = here.p;
    watchdog::at("the memory of a process that is stopped");
    let notified = Note { segment: BOUND, id: 4, value: 1 };
    // This finds room, and no answer comes.
    fails(codes::TIMEOUT, p.read(to(0, LONG), 1, 1, Test));
    fails(codes::TIMEOUT, p.atomic_fetch_add(BOUND, FIRST, 1, 5, Test));
    for timeout in SHORT {
        // Until there is no room.
        let posted = (0..MANY).take_while(|_| match p.write(to(0, 64), 1, 1, timeout) {
            Err(code) if code.is_timeout() => false,
            outcome => {
                ok("write", outcome);
                true
            }
        });
        assert!(posted.count() < MANY, "writes to a process that takes none");
        let open = p.queue_size(1);
        fails(codes::TIMEOUT, p.write_notify(to(0, 8), 1, notified, 1, timeout));
        fails(codes::TIMEOUT, p.write_list(&[to(0, 8), to(8, LONG / 2)], 1, 1, timeout));
        fails(codes::TIMEOUT, p.read(to(0, LONG), 1, 1, timeout));
        fails(codes::TIMEOUT, p.read_notify(to(0, 8), 1, (S, FREE), 1, timeout));
        fails(codes::TIMEOUT, p.notify(notified, 1, 1, timeout));
        assert_eq!(p.queue_size(1), open, "what has timed out is not posted");
        for word in 0..WORDS {
            fails(codes::TIMEOUT, p.atomic_fetch_add(BOUND, FIRST + 8 * word, 1, 5, timeout));
        }
    }
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            ok("write", p.write(to(0, 8), 1, 2, Block));
            ok("add", p.atomic_fetch_add(BOUND, FIRST + 8 * WORDS, 1, 5, Block))
        });
        watchdog::at("calls beside one that waits for a process that is stopped");
        for _ in 0..100 {
            assert_eq!(ok("rank", p.proc_rank()), 0);
            fails(codes::TIMEOUT, p.notify_waitsome(S, FREE, 1, Test));
            ok("wait", p.wait(3, Test));
        }
        while p.queue_size(2) == Ok(0) {
            std::thread::yield_now();
        }
        others_use_the_queue(p);
        assert!(!waits.is_finished(), "a process that is stopped takes nothing");
        drop(stopped);
        assert_eq!(waits.join().expect("no panic"), 0);
    });
}

/// Calls for queue 2, on which a post of another thread waits for room: it counts until it has ended, and the queue stays.
fn others_use_the_queue(p: &Process) {
    watchdog::at("calls for a queue on which another thread posts");
    let own = || p.write(part(0, 64, 8), 0, 2, Block);
    let most = ok("config_get", p.config_get()).queue_size_max;
    ok("wait", p.wait(2, Test));
    assert_eq!(p.queue_size(2), Ok(1), "after a wait");
    (1..most).for_each(|_| ok("write", own()));
    fails(codes::QUEUE_FULL, own());
    fails(codes::QUEUE_FULL, p.write(to(0, 8), 1, 2, Test));
    fails(codes::TIMEOUT, p.queue_purge(2, Test));
    assert_eq!(p.queue_size(2), Ok(most), "after a purge that has timed out");
    fails(codes::ERROR, p.queue_delete(2));
    assert_eq!(p.queue_size(2), Ok(1), "a queue that cannot be deleted yet");
    (0..2).for_each(|_| ok("write", own()));
    fails(codes::TIMEOUT, p.write(to(0, 8), 1, 2, Test));
    assert_eq!(p.queue_size(2), Ok(3), "after a post that has timed out");
}

/// The second of two processes binds a file, and makes the file empty: reads of its memory fail until the file has its bytes again.
///
/// # Panics
/// If a row does not hold.
pub fn its_memory_is_gone(task: &Task) {
    let file = rustix::fs::memfd_create("bound", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    let has = |size| rustix::fs::ftruncate(&file, size).expect("a file of this process");
    has(SIZE);
    let (size, access) = (SIZE as usize, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping.
    let memory = unsafe { mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, &file, 0) }.expect("maps");
    task.works(|here| {
        let p = here.p;
        if here.me == 1 {
            // SAFETY: it stays until the working phase has ended. While the file is empty this process does not touch it: others ask the
            // kernel for its bytes.
            unsafe { ok("segment_bind", p.segment_bind(BOUND, memory.cast(), SIZE)) };
            ok("segment_register", p.segment_register(BOUND, 0, Block));
            ok("segment_write", p.segment_write(BOUND, 0, &pattern(5, LONG as usize)));
            [0, SIZE].into_iter().for_each(|size| {
                (0..2).for_each(|_| here.barrier());
                has(size);
            });
            (0..2).for_each(|_| here.barrier());
            return;
        }
        let comes = |bytes: &[u8]| {
            ok("read", p.read(to(0, LONG), 1, 1, Block));
            ok("wait", p.wait(1, Block));
            assert!(here.bytes(0, LONG as usize) == bytes, "what is read");
        };
        here.barrier();
        comes(&pattern(5, LONG as usize));
        (0..2).for_each(|_| here.barrier());
        watchdog::at("reads of memory that is gone");
        for timeout in [After(Duration::from_secs(60)), Block] {
            fails(codes::ERROR, p.read(to(0, 8), 1, 1, timeout));
            fails(codes::ERROR, p.read(to(0, LONG), 1, 1, timeout));
            fails(codes::ERROR, p.read_notify(to(0, LONG), 1, (S, FREE), 1, timeout));
            fails(codes::ERROR, p.read_list(&[to(0, 8), to(8, LONG / 2)], 1, 1, timeout));
        }
        assert_eq!(p.queue_size(1), Ok(0), "what has failed is not posted");
        fails(codes::TIMEOUT, p.notify_waitsome(S, FREE, 1, Test));
        (0..2).for_each(|_| here.barrier());
        comes(&[0; LONG as usize]);
        here.barrier();
    });
    // SAFETY: the mapping from above; the working phase has ended.
    unsafe { munmap(memory, size) }.expect("a mapping");
}

/// As [`its_process_is_stopped`], of queues with an owner, over a network.
///
/// # Panics
/// If a row does not hold.
pub fn owned_posts_have_a_limit(task: &Task) {
    let gaspi = ok("begin", Gaspi::begin(&task.process, Config::default()).block());
    let segment = ok("segment", gaspi.segment(4096).block());
    owned_calls_end(&gaspi, &task.process, &segment);
    ok("barrier", gaspi.all().barrier(Block));
    drop(segment);
    ok("finish", gaspi.finish().block());
}

fn owned_calls_end(gaspi: &Gaspi<'_>, p: &Process, segment: &Segment<'_>) {
    let mut go = ok("notification", segment.notification(1));
    let queue = ok("queue", gaspi.queue(Block));
    let mut limited = ok("queue", gaspi.queue(Block));
    if gaspi.rank() == 1 {
        ok("write", segment.write(0, &std::process::id().to_ne_bytes()));
        ok("write_notify", queue.write_notify(segment.here(0..4), segment.there(0, 8), go.signal(), 1));
        ok("wait", queue.wait(Block));
        assert_eq!(go.wait(Block), Ok(2));
        return;
    }
    assert_eq!(go.wait(Block), Ok(1));
    let mut pid = [0; 4];
    ok("read", segment.read(8, &mut pid));
    let stopped = Stopped::new(i32::from_ne_bytes(pid));
    watchdog::at("owned queues beside a process that is stopped");
    let (here, there) = (segment.here(0..8), segment.there(1, 16));
    let arrived = ok("notification", segment.notification(2));
    for timeout in SHORT {
        limited.limit_posts(timeout);
        // The first request of a queue finds the segment.
        fails(codes::TIMEOUT, limited.write(here, there));
        fails(codes::TIMEOUT, limited.read(here, there));
        fails(codes::TIMEOUT, limited.notify(1, go.signal(), 2));
        fails(codes::TIMEOUT, limited.write_notify(here, there, go.signal(), 2));
        fails(codes::TIMEOUT, limited.read_notify(here, there, &arrived));
        fails(codes::TIMEOUT, limited.write_list(&[(here, there); 2], None));
        fails(codes::TIMEOUT, limited.write_list(&[(here, there); 2], Some((go.signal(), 2))));
        fails(codes::TIMEOUT, limited.read_list(&[(here, there); 2], None));
        fails(codes::TIMEOUT, limited.read_list(&[(here, there); 2], Some(&arrived)));
        assert_eq!(limited.open_requests(), Ok(0), "nothing is posted");
    }
    assert_eq!(p.proc_ping(1), Ok(()));
    drop(stopped);
    limited.limit_posts(Block);
    ok("write_notify", limited.write_notify(here, there, go.signal(), 2));
    ok("wait", limited.wait(Block));
}
