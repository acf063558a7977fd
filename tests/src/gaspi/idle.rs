//! The thread that makes progress for a process: it sleeps while nothing happens, and messages wake it.

use std::time::{Duration, Instant};

use bellwether_runtime::vocabulary::gaspi::Timeout::Block;

use super::{Here, Task, ok};

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
        std::thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        assert_eq!(ok("atomic_fetch_add", p.atomic_fetch_add(BOUND, 0, 1, 5, Block)), 0);
        assert!(begin.elapsed() < Duration::from_secs(2), "the other process waited {:?}", begin.elapsed());
    }
    here.barrier();
    ok("segment_delete", p.segment_delete(BOUND));
    assert_eq!(memory[0], if here.me == 1 { 5 } else { 0 });
    here.barrier();
    ok("proc_term", p.proc_term(Block));
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
