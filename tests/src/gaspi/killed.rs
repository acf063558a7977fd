//! The rows about a process that is lost: one of four is killed or leaves, and the others go on.

use std::time::{Duration, Instant};

use bellwether_runtime::vocabulary::gaspi::Timeout::{After, Block, Test};
use bellwether_runtime::vocabulary::gaspi::{
    Code, Config, Datatype, GROUP_ALL, Gaspi, Operation, Outcome, Segment, State, codes,
};

use super::{FREE, Here, S, Task, fails, note, ok, part};
use crate::watchdog;

/// The rank that is killed, or that leaves.
const VICTIM: u16 = 2;
/// The notification that tells the victim to leave.
const GO: u32 = 50;
/// Longest time that a call with a short limit takes, on a crowded machine.
const SOON: Duration = Duration::from_secs(20);
const SHORT: super::Timeout = After(Duration::from_millis(200));

/// How the victim is lost.
#[derive(Clone, Copy)]
pub enum End<'a> {
    /// Another process kills it by `proc_kill`: it is no thread of the same process.
    Killed,
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
    // Requests to the victim, which nobody has waited for when it is gone.
    for queue in [&dropped, &closed] {
        ok("write", queue.write(segment.here(0..8), segment.there(VICTIM, 8)));
        ok("read", queue.read(segment.here(16..24), segment.there(VICTIM, 16)));
    }
    if here.me == usize::from(VICTIM) {
        match end {
            End::Killed => {
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
    fails(codes::ERROR, dropped.write(segment.here(0..8), segment.there(VICTIM, 8)));
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
    match end {
        End::Killed => {
            ok("proc_kill", here.p.proc_kill(VICTIM, After(SOON)));
            // It is gone, and stays so.
            ok("proc_kill", here.p.proc_kill(VICTIM, Test));
            // No operation has failed yet.
            assert_eq!(here.p.state_vec_get(), Ok(vec![State::Healthy; 4]));
        }
        End::Leaves => here.tell(VICTIM, GO, 1, 0),
        End::By(kill) => g53_purge_after_kill(here, kill),
    }
    is_gone(here);
    fails(codes::ERROR, here.p.write(part(0, 0, 8), VICTIM, 0, Block));
    check_states(here);
}

/// The victim is killed while requests to it are under way: no time passes between posting them and the kill.
fn g53_purge_after_kill(here: &Here<'_>, kill: &dyn Fn()) {
    let p = here.p;
    let [read, written] = [(); 2].map(|()| ok("queue_create", p.queue_create(Block)));
    // The first request of a queue waits until it knows the segment.
    for queue in [read, written] {
        ok("write", p.write(part(0, 1024, 8), VICTIM, queue, Block));
        ok("wait", p.wait(queue, Block));
    }
    ok("read", p.read(part(1024, 0, 512), VICTIM, read, Block));
    ok("write", p.write(part(0, 1024, 512), VICTIM, written, Block));
    kill();
    watchdog::at("requests to a rank that was killed");
    for (what, queue) in [("read", read), ("write", written)] {
        // Until it is purged.
        assert_eq!(p.wait(queue, Block), Err(Code(codes::ERROR)), "a {what}");
        fails(codes::ERROR, p.wait(queue, Test));
        assert_eq!(p.queue_size(queue), Ok(1));
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
    for outcome in [
        p.write(part(0, 0, 8), VICTIM, queue, Block),
        p.read(part(0, 0, 8), VICTIM, queue, Block),
        p.notify(note(1, 1), VICTIM, queue, Block),
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
