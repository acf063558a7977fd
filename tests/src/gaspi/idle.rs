//! Measurements of a whole process: how often its thread for progress wakes, what queues leave behind, and what a receiver takes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bellwether_runtime::vocabulary::gaspi::GROUP_ALL;
use bellwether_runtime::vocabulary::gaspi::Timeout::Block;

use super::{Here, S, Task, ok, part};
use crate::watchdog;

/// A segment of the program's memory.
const BOUND: u8 = 92;

/// The program of one of two processes, where the kernel allows no cross-memory attach: an atomic operation on bound memory is a message.
///
/// # Panics
/// If the thread does not sleep, or is not woken.
pub fn two(task: &Task) {
    const ADDS: u64 = 20;
    let p = &task.process;
    ok("proc_init", p.proc_init(Block));
    let here = Here { p, me: ok("rank", p.proc_rank()).into(), n: ok("num", p.proc_num()).into() };
    let mut memory = vec![0u64; 8];
    let start = memory.as_mut_ptr();
    // SAFETY: it stays until the segment is deleted, and only calls and atomic loads touch it until then.
    unsafe { ok("segment_bind", p.segment_bind(BOUND, start.cast(), 64)) };
    ok("segment_register", p.segment_register(BOUND, 1 - here.me as u16, Block));
    here.barrier();
    std::thread::sleep(Duration::from_millis(100));
    let before = sleeps();
    std::thread::sleep(Duration::from_secs(1));
    let times = sleeps() - before;
    // It sleeps for a second, or for a millisecond if it does not know how to.
    assert!(times <= 200, "the thread woke {times} times in a second");
    here.barrier();
    if here.me == 1 {
        // Makes no call until the last one has come.
        // SAFETY: an aligned word, which stays; atomic operations change it.
        let word = unsafe { AtomicU64::from_ptr(start) };
        watchdog::at("atomic operations on memory of a process that makes no call");
        while word.load(Ordering::Acquire) != 5 * ADDS {
            std::thread::sleep(Duration::from_millis(1));
        }
    } else {
        let mut times: Vec<_> = (0..ADDS)
            .map(|add| {
                std::thread::sleep(Duration::from_millis(50));
                let begin = Instant::now();
                assert_eq!(ok("atomic_fetch_add", p.atomic_fetch_add(BOUND, 0, 1, 5, Block)), 5 * add);
                begin.elapsed()
            })
            .collect();
        // A thread that no message wakes polls when it has slept for a second: ten answers then take almost ten seconds.
        times.sort_unstable();
        assert!(times[..10].iter().sum::<Duration>() < Duration::from_secs(5), "the answers took {times:?}");
    }
    here.barrier();
    ok("segment_delete", p.segment_delete(BOUND));
    assert_eq!(memory[0], if here.me == 1 { 5 * ADDS } else { 0 });
    here.barrier();
    ok("proc_term", p.proc_term(Block));
}

/// The program of one of two processes: makes and ends 10,000 queues, over a network 1,000.
///
/// # Panics
/// If the process grows.
pub fn queues_come_and_go(task: &Task) {
    let p = &task.process;
    ok("proc_init", p.proc_init(Block));
    let here = Here { p, me: ok("rank", p.proc_rank()).into(), n: ok("num", p.proc_num()).into() };
    ok("segment_create", p.segment_create(S, 4096, GROUP_ALL, Block));
    let cycle = || {
        let queue = ok("queue_create", p.queue_create(Block));
        assert_eq!(queue, 8);
        ok("write", p.write(part(0, 1024, 8), here.next(), queue, Block));
        ok("queue_delete", p.queue_delete(queue));
    };
    // Until as much is set aside as cycles need.
    (0..if p.has_network() { 1_000 } else { 100 }).for_each(|_| cycle());
    let before = grown();
    // Over a network each queue makes connections, which takes a hundred times as long.
    (0..if p.has_network() { 1_000 } else { 10_000 }).for_each(|_| cycle());
    let after = grown();
    // Ends of connections that the other process has closed may still be there.
    let ending = if p.has_network() { 20 } else { 0 };
    assert!(after.0 <= before.0 + ending, "{} open files before, {} after", before.0, after.0);
    assert!(after.1 <= before.1 + 256, "{} KiB before, {} KiB after", before.1, after.1);
    here.barrier();
    ok("proc_term", p.proc_term(Block));
}

/// The program of one of two processes: a receiver of passive messages waits for a late sender.
///
/// # Panics
/// If the receiver takes the processor for a good part of the time.
pub fn a_receiver_sleeps(task: &Task) {
    const LATE: Duration = Duration::from_secs(2);
    task.works(|here| {
        if here.me == 0 {
            std::thread::sleep(LATE);
            here.fill(0, &[7; 8]);
            ok("passive_send", here.p.passive_send(S, 0, 1, 8, Block));
        } else {
            let before = processor_time();
            assert_eq!(here.p.passive_receive(S, 0, 8, Block), Ok((0, 8)));
            let taken = processor_time() - before;
            assert_eq!(here.bytes(0, 8), [7; 8]);
            assert!(taken < LATE / 4, "the receiver was busy for {taken:?}");
        }
    });
}

/// The time for which this thread has had a processor.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Open files, and resident KiB of anonymous memory. Pages of files are left out: they come and go with the machine's free memory.
fn grown() -> (usize, u64) {
    let files = std::fs::read_dir("/proc/self/fd").expect("Linux has it").count();
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux tells it");
    (files, line.trim().trim_end_matches(" kB").parse().expect("a number"))
}

/// How often the thread has slept so far.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it");
    let status = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.expect("a thread").path().join("status")).unwrap_or_default()
    };
    let threads: Vec<_> = tasks.map(status).filter(|status| status.contains("gaspi progress")).collect();
    assert_eq!(threads.len(), 1, "one thread makes progress");
    let line =
        threads[0].lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("Linux tells it");
    line.trim().parse().expect("a number")
}
