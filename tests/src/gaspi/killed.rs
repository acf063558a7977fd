//! The rows about a process that is lost: one of four is killed or leaves, and the others go on.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use bellwether_runtime::vocabulary::gaspi::Timeout::{After, Block, Test};
use bellwether_runtime::vocabulary::gaspi::{
    Code, Config, Datatype, GROUP_ALL, Gaspi, Operation, Outcome, Process, Segment, State, codes,
};

use super::{FREE, Here, S, Task, fails, note, ok, part};
use crate::watchdog;

/// The rank that is killed, or that leaves.
const VICTIM: u16 = 2;
/// The notification that tells the victim to leave.
const GO: u32 = 50;
/// Longest time that a call with a short limit takes, on a crowded machine.
const SOON: Duration = Duration::from_secs(20);
/// Bytes that a network takes a while to carry.
const LONG: u64 = 1 << 20;
/// Bytes of a write that a network does not copy, and where the last one goes.
const STRAIGHT: u64 = 300_000;
const LAST: u64 = 3_500_000;
/// A word that nothing else changes.
const COUNT: u64 = 3_900_000;
/// A text that another process is to print.
const TEXT: &str = "to be printed there";
const SHORT: super::Timeout = After(Duration::from_millis(200));

/// How the victim is lost.
#[derive(Clone, Copy)]
pub enum End<'a> {
    /// Another process kills it by `proc_kill`: it is no thread of the same process.
    Killed {
        /// Requests to it are in flight then, over a network.
        in_flight: bool,
    },
    /// It leaves the job without finishing.
    Leaves,
    /// Another process calls this.
    By(&'a dyn Fn()),
}

/// The program of one of four processes. The victim does not return if it is killed.
///
/// # Panics
/// If a row does not hold.
pub fn one_of_four(task: Task, end: End<'_>) {
    let p = &task.process;
    let gaspi = ok("begin", Gaspi::begin(p, Config::default()).block());
    let here = Here { p, me: ok("rank", p.proc_rank()).into(), n: ok("num", p.proc_num()).into() };
    assert_eq!(here.n, 4);
    ok("segment_create", p.segment_create(S, 4 << 20, GROUP_ALL, Block));
    let queue = ok("queue_create", p.queue_create(Block));
    // Those of the start: the first one is used by number.
    let [by_number, dropped, closed] = [(); 3].map(|()| ok("queue", gaspi.queue(Block)));
    let segment = ok("segment", gaspi.segment(4096).block());
    here.post_often(queue);
    here.barrier();
    // Requests to the victim, which no wait has covered when the victim is gone.
    for queue in [&dropped, &closed] {
        ok("write", queue.write(segment.here(0..8), segment.there(VICTIM, 8)));
        ok("read", queue.read(segment.here(16..24), segment.there(VICTIM, 16)));
    }
    if here.me == usize::from(VICTIM) {
        match end {
            End::Killed { .. } => {
                // Computes, and makes no call.
                std::thread::sleep(Duration::from_secs(100));
                panic!("it was not killed");
            }
            End::Leaves => assert_eq!(here.take(GO), 1),
            End::By(_) => fails(codes::ERROR, p.notify_waitsome(S, FREE, 1, Block)),
        }
        // It gives nothing back.
        std::mem::forget((by_number, dropped, closed, segment));
        std::mem::forget(gaspi);
        return drop(task);
    }
    if here.me == 0 {
        // The victim hands the end of the barrier on to another one.
        [1, 3].into_iter().for_each(|rank| assert_eq!(here.take(rank), 1));
        g25_kill(&here, end);
    } else {
        // The victim receives nothing. The message is under way before the victim is lost; the same call goes on with it.
        watchdog::at("a message that is never received");
        fails(codes::TIMEOUT, p.passive_send(S, 8, VICTIM, 8, Test));
        here.tell(0, here.me as u32, 1, 0);
        fails(codes::ERROR, p.passive_send(S, 8, VICTIM, 8, Block));
        check_states(&here);
    }
    is_gone(&here);
    g70_state(&here, queue);
    g71_limits(&here);
    let queues = ok("queue_num", p.queue_num());
    ok("write", dropped.write(segment.here(0..8), segment.there(VICTIM, 8)));
    fails(codes::ERROR, dropped.wait(Block));
    drop(dropped);
    // Whether the requests were complete before depends on the network.
    let _ = closed.close().block();
    assert_eq!(p.queue_num(), Ok(queues - 2), "both are given back");
    segment_of_all(&gaspi, segment);
    group_of_the_others(&here);
    waits_for_anybody(&here, task.virtual_time);
    drop(by_number);
    drop(gaspi);
    fails(codes::NOINIT, p.proc_rank());
    // It needs all, and another call begins anew.
    for _ in 0..2 {
        ok("config_set", p.config_set(Config::default()));
        fails(codes::ERROR, p.proc_init(Block));
    }
}

/// Waits until the victim is known to be lost, which is no operation that fails.
fn is_gone(here: &Here<'_>) {
    watchdog::at("the loss of the victim");
    while here.p.proc_ping(VICTIM).is_ok() {
        fails(codes::TIMEOUT, here.p.notify_waitsome(S, FREE, 1, After(Duration::from_millis(1))));
    }
}

fn g25_kill(here: &Here<'_>, end: End<'_>) {
    assert_eq!(here.p.state_vec_get(), Ok(vec![State::Healthy; 4]));
    let kill = || {
        ok("proc_kill", here.p.proc_kill(VICTIM, After(SOON)));
        // It is gone, and stays so.
        ok("proc_kill", here.p.proc_kill(VICTIM, Test));
    };
    match end {
        End::Killed { in_flight: false } => {
            kill();
            // No operation has failed yet.
            assert_eq!(here.p.state_vec_get(), Ok(vec![State::Healthy; 4]));
        }
        // Each request may be complete before the kill.
        End::Killed { in_flight: true } => g53_purge_after_kill(here, &kill, LONG, false),
        End::Leaves => {
            here.tell(VICTIM, GO, 1, 0);
            // The victim leaves when it has taken it.
            ok("wait", here.p.wait(0, Block));
        }
        // No time passes between posting the requests and the kill.
        End::By(kill) => g53_purge_after_kill(here, kill, 512, true),
    }
    is_gone(here);
    is_refused(here, 0, 1, &mut || here.p.write(part(0, 0, 8), VICTIM, 0, Block));
    check_states(here);
}

/// Requests to the victim, which is known to be lost, are of their queue, and the next wait tells, once.
fn is_refused(here: &Here<'_>, queue: u8, number: u32, post: &mut dyn FnMut() -> super::Result<()>) {
    let p = here.p;
    ok("posting", post());
    assert_eq!(p.queue_size(queue), Ok(number));
    fails(codes::ERROR, p.wait(queue, Block));
    ok("wait", p.wait(queue, Test));
    assert_eq!(p.queue_size(queue), Ok(0));
}

/// The victim is killed right after a read and a write of `size` bytes are posted to it. `all_fail` if neither can be complete before.
fn g53_purge_after_kill(here: &Here<'_>, kill: &dyn Fn(), size: u64, all_fail: bool) {
    let p = here.p;
    let [read, written] = [(); 2].map(|()| ok("queue_create", p.queue_create(Block)));
    // The first request of a queue waits until it knows the segment.
    for queue in [read, written] {
        ok("write", p.write(part(0, 1024, 8), VICTIM, queue, Block));
        ok("wait", p.wait(queue, Block));
    }
    ok("read", p.read(part(size, 0, size), VICTIM, read, Block));
    ok("write", p.write(part(0, 2 * size, size), VICTIM, written, Block));
    kill();
    watchdog::at("requests to a rank that was killed");
    for (what, queue) in [("read", read), ("write", written)] {
        let outcome = p.wait(queue, Block);
        if all_fail || outcome.is_err() {
            // Until it is purged.
            assert_eq!(outcome, Err(Code(codes::ERROR)), "a {what}");
            (0..100).for_each(|_| fails(codes::ERROR, p.wait(queue, Test)));
            assert_eq!(p.queue_size(queue), Ok(1));
        }
        ok("queue_purge", p.queue_purge(queue, Block));
        assert_eq!(p.queue_size(queue), Ok(0));
        ok("wait", p.wait(queue, Test));
        // It takes requests as before.
        ok("write", p.write(part(0, 2048, 8), 1, queue, Block));
        ok("wait", p.wait(queue, Block));
        ok("queue_delete", p.queue_delete(queue));
    }
}

/// Waits for a notification, and resets it.
fn take(here: &Here<'_>, id: u32) -> u32 {
    assert_eq!(ok("waitsome", here.p.notify_waitsome(S, id, 1, After(SOON))), Some(id));
    ok("reset", here.p.notify_reset(S, id))
}

/// Only the process that an operation has failed with is marked.
fn check_states(here: &Here<'_>) {
    let expected: Vec<_> = (0..4).map(|rank| if rank == VICTIM { State::Corrupt } else { State::Healthy }).collect();
    assert_eq!(here.p.state_vec_get(), Ok(expected));
}

fn g70_state(here: &Here<'_>, queue: u8) {
    let p = here.p;
    check_states(here);
    is_refused(here, queue, 4, &mut || {
        p.write(part(0, 0, 8), VICTIM, queue, Block)?;
        p.read(part(0, 0, 8), VICTIM, queue, Block)?;
        p.notify(note(1, 1), VICTIM, queue, Block)?;
        // One to a process that lives is complete all the same.
        p.write_notify(part(0, 192, 8), here.me as u16, note(3, 2), queue, Block)
    });
    assert_eq!(take(here, 3), 2);
    for outcome in [
        p.connect(VICTIM, Block),
        p.atomic_fetch_add(S, 0, VICTIM, 1, Block).map(drop),
        p.passive_send(S, 0, VICTIM, 8, Block),
    ] {
        fails(codes::ERROR, outcome);
    }
    // The own memory is a target as before.
    ok("write_notify", p.write_notify(part(0, 64, 8), here.me as u16, note(1, 6), queue, Block));
    assert_eq!(take(here, 1), 6);
    ok("wait", p.wait(queue, SHORT));
    ok("queue_purge", p.queue_purge(queue, SHORT));
    assert_eq!(p.queue_size(queue), Ok(0));
    check_states(here);
}

fn g71_limits(here: &Here<'_>) {
    let p = here.p;
    let comes_back = |what: &str, outcome: &mut dyn FnMut() -> super::Result<()>| {
        let begin = Instant::now();
        let code = outcome().expect_err("a process is gone");
        assert!([codes::TIMEOUT, codes::ERROR].contains(&code.0), "{what}: {code}");
        assert!(begin.elapsed() < SOON, "{what} took {:?}", begin.elapsed());
    };
    comes_back("barrier", &mut || p.barrier(GROUP_ALL, SHORT));
    let mut sum = [0; 8];
    comes_back("allreduce", &mut || p.allreduce(&[0; 8], &mut sum, Operation::Sum, Datatype::Ulong, GROUP_ALL, SHORT));
    comes_back("segment_create", &mut || p.segment_create(90, 64, GROUP_ALL, SHORT));
    comes_back("waitsome", &mut || p.notify_waitsome(S, FREE, 1, SHORT).map(drop));
    comes_back("passive_receive", &mut || p.passive_receive(S, 0, 8, SHORT).map(drop));
    comes_back("passive_send", &mut || p.passive_send(S, 0, VICTIM, 8, SHORT));
    comes_back("fetch_add", &mut || p.atomic_fetch_add(S, 0, VICTIM, 1, SHORT).map(drop));
    comes_back("compare_swap", &mut || p.atomic_compare_swap(S, 0, VICTIM, 0, 1, SHORT).map(drop));
    comes_back("connect", &mut || p.connect(VICTIM, SHORT));
    let group = ok("group_create", p.group_create());
    (0..4).for_each(|rank| ok("group_add", p.group_add(group, rank)));
    comes_back("group_commit", &mut || p.group_commit(group, SHORT));
}

/// Nothing is left of a segment that a lost process should have a part of.
fn segment_of_all(gaspi: &Gaspi<'_>, before: Segment<'_>) {
    let begin = Instant::now();
    let outcome = gaspi.segment(64).within(SHORT);
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert!(!matches!(outcome, Ok(Outcome::Done(_))), "one has no part");
    ok("close", before.close());
}

fn group_of_the_others(here: &Here<'_>) {
    let p = here.p;
    let group = ok("group_create", p.group_create());
    for rank in (0..4).filter(|rank| *rank != VICTIM) {
        ok("group_add", p.group_add(group, rank));
    }
    ok("group_commit", p.group_commit(group, Block));
    for round in 1..=100 {
        let mut sum = [0; 8];
        ok(
            "allreduce",
            p.allreduce(&[1, 0, 0, 0, 0, 0, 0, 0], &mut sum, Operation::Sum, Datatype::Ulong, group, Block),
        );
        assert_eq!(u64::from_ne_bytes(sum), 3, "round {round}");
    }
    // A ring of the three.
    let next = [1, 3, 0, 0][here.me];
    ok("write_notify", p.write_notify(part(0, 128, 8), next, note(2, 7), 0, Block));
    assert_eq!(take(here, 2), 7);
    ok("wait", p.wait(0, Block));
    ok("segment_create", p.segment_create(91, 64, group, Block));
    ok("barrier", p.barrier(group, Block));
    check_states(here);
}

/// Waits without a limit go on while another process lives.
fn waits_for_anybody(here: &Here<'_>, virtual_time: bool) {
    let p = here.p;
    if here.me == 0 {
        let mut came: Vec<_> = (0..2).map(|_| ok("passive_receive", p.passive_receive(S, 256, 8, Block)).0).collect();
        came.sort_unstable();
        assert_eq!(came, [1, 3]);
        [1, 3].into_iter().for_each(|rank| here.tell(rank, 4, 1, 0));
        ok("wait", p.wait(0, Block));
        // Until the others have ended.
        fails(codes::ERROR, p.notify_waitsome(S, FREE, 1, Block));
        fails(codes::ERROR, p.passive_receive(S, 0, 8, Block));
    } else {
        // Rank 0 waits already, most often.
        if !virtual_time {
            std::thread::sleep(Duration::from_millis(100));
        }
        ok("passive_send", p.passive_send(S, 0, 0, 8, Block));
        assert_eq!(here.take(4), 1);
    }
}

/// Each process but the first leaves when it has the notification that tells it to. It has taken it, so the wait for it succeeds.
///
/// # Panics
/// If a wait does not.
pub fn each_leaves(task: Task) {
    let p = &task.process;
    ok("proc_init", p.proc_init(Block));
    let here = Here { p, me: ok("rank", p.proc_rank()).into(), n: ok("num", p.proc_num()).into() };
    ok("segment_create", p.segment_create(S, 4 << 20, GROUP_ALL, Block));
    here.barrier();
    if here.me != 0 {
        assert_eq!(here.take(GO), 1);
        return drop(task);
    }
    for rank in 1..here.n as u16 {
        let queue = ok("queue_create", p.queue_create(Block));
        ok("write", p.write(part(0, 1 << 20, 100_000), rank, queue, Block));
        ok("write_notify", p.write_notify(part(0, 0, 8), rank, note(GO, 1), queue, Block));
        watchdog::at(format!("requests to rank {rank}, which leaves"));
        ok("wait", p.wait(queue, Block));
        assert_eq!(p.queue_size(queue), Ok(0));
    }
    assert_eq!(p.state_vec_get(), Ok(vec![State::Healthy; here.n]));
}

/// The second of two processes is stopped while the first posts more than a network takes. Calls end within their limits, and calls that do
/// not need the queue go on meanwhile. The standard output of the second takes nothing, and its calls go on.
///
/// # Panics
/// If a row does not hold.
pub fn one_is_stopped(task: &Task) {
    let p = &task.process;
    task.works(|here| {
        here.fill(0, &vec![here.me as u8 + 1; 2 << 20]);
        if here.me == 1 {
            here.fill(0, &std::process::id().to_ne_bytes());
            let output = FullOutput::new();
            here.tell(0, GO, 1, 0);
            ok("wait", p.wait(0, Block));
            // The write before the notification is there.
            assert_eq!(here.take(GO), 2);
            assert_eq!(here.bytes(LAST, STRAIGHT as usize), vec![1; STRAIGHT as usize]);
            assert_eq!(here.take(GO + 1), 3);
            watchdog::at("a text of another process");
            output.read_until(TEXT);
            return;
        }
        here.take(GO);
        ok("read", p.read(part(2 << 20, 0, 4), 1, 1, Block));
        ok("wait", p.wait(1, Block));
        let pid = i32::from_ne_bytes(here.bytes(2 << 20, 4).try_into().expect("four bytes"));
        ok("segment_alloc", p.segment_alloc(S + 1, 64));
        let stopped = Stopped::new(pid);
        watchdog::at("a process that is stopped");
        posts_end(p);
        for timeout in [Test, After(Duration::from_millis(10))] {
            fails(codes::TIMEOUT, p.wait(1, timeout));
            // The first request of a queue finds the segment.
            fails(codes::TIMEOUT, p.write(part(0, LAST, 8), 1, 2, timeout));
            fails(codes::TIMEOUT, p.write_list_notify(&[part(0, LAST, 8); 2], 1, note(GO, 3), 2, timeout));
            assert_eq!(p.queue_size(2), Ok(0), "nothing is posted");
            ok("wait", p.wait(2, Test));
            // The first operation of the process there finds the segment.
            fails(codes::TIMEOUT, p.atomic_fetch_add(S, COUNT, 1, 5, timeout));
            fails(codes::TIMEOUT, p.connect(1, timeout));
            fails(codes::TIMEOUT, p.disconnect(1, timeout));
            fails(codes::TIMEOUT, p.segment_register(S + 1, 1, timeout));
        }
        watchdog::at("the end of a queue that looks up a segment of a stopped process");
        ok("queue_delete", p.queue_delete(2));
        assert_eq!(p.queue_create(Test), Ok(2));
        let text = format!("{TEXT:1900}\n");
        let is_bounded = (0..20_000).any(|_| match p.print_to(1, text.as_bytes()) {
            Ok(()) => false,
            full => {
                fails(codes::QUEUE_FULL, full);
                true
            }
        });
        assert!(is_bounded, "texts for a stopped process are kept");
        for _ in 0..100 {
            assert_eq!(p.queue_num(), Ok(8));
            let queue = ok("queue_create", p.queue_create(Test));
            assert_eq!(queue, 8);
            ok("queue_delete", p.queue_delete(queue));
        }
        drop(stopped);
        watchdog::at("a process that goes on");
        ok("wait", p.wait(1, Block));
        ok("connect", p.connect(1, Block));
        ok("connect", p.connect(1, Test));
        ok("segment_register", p.segment_register(S + 1, 1, Block));
        assert_eq!(p.atomic_fetch_add(S, COUNT, 1, 5, Block), Ok(0));
        assert_eq!(p.atomic_fetch_add(S, COUNT, 1, 0, Block), Ok(5), "added once");
        for _ in 0..2 {
            ok("write", p.write(part(0, 0, 8), 1, 2, Block));
            ok("disconnect", p.disconnect(1, Block));
            ok("wait", p.wait(2, Test));
        }
        ok("write_notify", p.write_notify(part(0, 0, 8), 1, note(GO + 1, 3), 2, Block));
        ok("wait", p.wait(2, Block));
    });
}

/// In place of the standard output of this process a pipe that is full, until this is dropped; then what takes everything.
struct FullOutput {
    pipe: std::fs::File,
}

impl FullOutput {
    fn new() -> FullOutput {
        use rustix::fs::OFlags;

        let (read, write) = rustix::pipe::pipe().expect("descriptors are free");
        rustix::fs::fcntl_setfl(&write, OFlags::NONBLOCK).expect("a pipe");
        for len in [4096, 1] {
            while rustix::io::write(&write, &[b'.'; 4096][..len]).is_ok() {}
        }
        rustix::fs::fcntl_setfl(&write, OFlags::empty()).expect("a pipe");
        replace_output(write.as_raw_fd());
        FullOutput { pipe: read.into() }
    }

    /// Reads what is printed until this text has come.
    fn read_until(mut self, text: &str) {
        let mut came = Vec::new();
        while !came.windows(text.len()).any(|part| part == text.as_bytes()) {
            let mut bytes = [0; 4096];
            let len = self.pipe.read(&mut bytes).expect("a pipe");
            came.drain(..came.len().saturating_sub(text.len()));
            came.extend_from_slice(&bytes[..len]);
        }
    }
}

impl Drop for FullOutput {
    fn drop(&mut self) {
        let all = std::fs::File::create("/dev/null").expect("it is there");
        replace_output(all.as_raw_fd());
    }
}

fn replace_output(by: i32) {
    // SAFETY: both are open descriptors, and no other code relies on the identity of the standard output.
    assert_ne!(unsafe { libc::dup2(by, 1) }, -1, "{}", std::io::Error::last_os_error());
}

/// A process that is stopped, and goes on when this is dropped, also by a panic.
pub(super) struct Stopped(rustix::process::Pid);

impl Stopped {
    /// Returns when all threads of the process have stopped.
    pub(super) fn new(pid: i32) -> Stopped {
        let id = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(id, rustix::process::Signal::STOP).expect("a process of this user");
        let stopped = Stopped(id);
        let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(thread.expect("a thread").path().join("stat"));
            // The state is behind the name, which is in parentheses.
            stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
        };
        while !std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").all(is_stopped) {
            std::thread::yield_now();
        }
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

/// Posts that do not wait for room, of bytes that a network copies and of bytes that it does not; then a notification.
fn posts_end(p: &Process) {
    let to = |offset, size| part(0, offset, size);
    let mut posted = 0;
    while posted < 150 {
        ok("write", p.write(to(2 << 20, 1 << 20), 1, 1, Test));
        ok("write", p.write(to(2 << 20, 100_000), 1, 1, Test));
        ok("list", p.write_list(&[to(2 << 20, 4096), to(3 << 20, STRAIGHT)], 1, 1, After(Duration::from_millis(1))));
        ok("read", p.read(part(1 << 20, 8, 4096), 1, 1, Test));
        posted += 5;
    }
    ok("write_notify", p.write_notify(to(LAST, STRAIGHT), 1, note(GO, 2), 1, Test));
    assert_eq!(p.queue_size(1), Ok(posted + 1));
}

/// The second of two processes is stopped while the first deletes a segment that it has used, and while the first ends its working
/// phase. Other calls go on meanwhile.
///
/// # Panics
/// If a row does not hold.
pub fn others_go_on_beside_an_end(task: &Task) {
    const USED: u8 = S + 1;
    let p = &task.process;
    let uses = |here: &Here<'_>, segment| {
        here.fill(0, &std::process::id().to_ne_bytes());
        let pid = super::Part { local: (S, 0), remote: (segment, 0), size: 4 };
        ok("write_notify", p.write_notify(pid, 0, note(GO, 1), 0, Block));
        ok("wait", p.wait(0, Block));
    };
    let stop = |segment| {
        let mut pid = [0; 4];
        ok("segment_read", p.segment_read(segment, 0, &mut pid));
        Stopped::new(i32::from_ne_bytes(pid))
    };
    task.works(|here| {
        ok("segment_create", p.segment_create(USED, 4096, GROUP_ALL, Block));
        if here.me == 1 {
            return uses(here, USED);
        }
        here.take(GO);
        let stopped = stop(USED);
        std::thread::scope(|scope| {
            let deletes = scope.spawn(|| p.segment_delete(USED));
            watchdog::at("a segment that a stopped process has used");
            while p.segment_list() != Ok(vec![S]) {
                std::thread::yield_now();
            }
            for _ in 0..100 {
                fails(codes::INV_SEG, p.segment_alloc(USED, 64));
                fails(codes::TIMEOUT, p.passive_receive(S, 0, 8, Test).map(drop));
                fails(codes::TIMEOUT, p.notify_waitsome(S, FREE, 1, Test));
                ok("wait", p.wait(1, Test));
                assert_eq!(ok("rank", p.proc_rank()), 0);
            }
            assert!(!deletes.is_finished(), "a process may use the segment");
            drop(stopped);
            ok("segment_delete", deletes.join().expect("no panic"));
        });
        ok("segment_alloc", p.segment_alloc(USED, 64));
    });
    ok("proc_init", p.proc_init(Block));
    let here = Here { p, me: ok("rank", p.proc_rank()).into(), n: ok("num", p.proc_num()).into() };
    ok("segment_create", p.segment_create(S, 4096, GROUP_ALL, Block));
    if here.me == 1 {
        uses(&here, S);
    } else {
        here.take(GO);
        let stopped = stop(S);
        watchdog::at("an end beside a stopped process");
        for timeout in [Test, After(Duration::from_millis(10))] {
            fails(codes::TIMEOUT, p.proc_term(timeout));
            fails(codes::NOINIT, p.proc_rank());
            fails(codes::INITED, p.proc_init(Test));
        }
        drop(stopped);
    }
    ok("proc_term", p.proc_term(Block));
    fails(codes::NOINIT, p.proc_term(Test));
}
