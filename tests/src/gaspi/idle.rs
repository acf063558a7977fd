//! What is measured of a whole process: how often its thread for progress wakes, what queues leave behind, and what a receiver takes.

use std::time::{Duration, Instant};

use bellwether_runtime::vocabulary::gaspi::GROUP_ALL;
use bellwether_runtime::vocabulary::gaspi::Timeout::Block;

use super::{Here, S, Task, ok, part};

/// A segment of the program's memory.
const BOUND: u8 = 92;

/// The program of one of two processes, where the kernel allows no cross-memory attach: an atomic operation on bound memory is a message.
///
/// # Panics
/// If the thread does not sleep, or is not woken.
pub fn two(task: &Task) {
    let p = &task.process;
    ok("proc_init", p.proc_init(Block));
    let here = Here { p, me: ok("rank", p.proc_rank()).into(), n: ok("num", p.proc_num()).into() };
    let mut memory = vec![0u64; 8];
    // SAFETY: it stays until the segment is deleted, and only calls touch it until then.
    unsafe { ok("segment_bind", p.segment_bind(BOUND, memory.as_mut_ptr().cast(), 64)) };
    here.barrier();
    std::thread::sleep(Duration::from_millis(100));
    let before = sleeps();
    std::thread::sleep(Duration::from_secs(1));
    let times = sleeps() - before;
    assert!(times <= 20, "the thread woke {times} times in a second");
    here.barrier();
    if here.me == 1 {
        // Computes, and makes no call.
        std::thread::sleep(Duration::from_secs(4));
    } else {
        // Of three, one on a machine that others use too.
        let times = [0, 5, 10].map(|before| {
            std::thread::sleep(Duration::from_millis(300));
            let begin = Instant::now();
            assert_eq!(ok("atomic_fetch_add", p.atomic_fetch_add(BOUND, 0, 1, 5, Block)), before);
            begin.elapsed()
        });
        // The thread looks by itself when it has slept for a second.
        let shortest = times.iter().min().expect("three");
        assert!(*shortest < Duration::from_millis(200), "the answers took {times:?}");
    }
    here.barrier();
    ok("segment_delete", p.segment_delete(BOUND));
    assert_eq!(memory[0], if here.me == 1 { 15 } else { 0 });
    here.barrier();
    ok("proc_term", p.proc_term(Block));
}

/// The program of one of two processes: makes and ends 10,000 queues.
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
    (0..100).for_each(|_| cycle());
    let before = grown();
    (0..10_000).for_each(|_| cycle());
    let after = grown();
    assert_eq!(before.0, after.0, "open files");
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
            assert!(taken < LATE / 2, "the receiver was busy for {taken:?}");
        }
    });
}

/// The time for which this thread has had a processor.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Open files, and resident KiB.
fn grown() -> (usize, u64) {
    let files = std::fs::read_dir("/proc/self/fd").expect("Linux has it").count();
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells it");
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
