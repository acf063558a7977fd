//! Rows about passive messages.

use std::time::Duration;

use bellwether_runtime::vocabulary::gaspi::Timeout::{Block, Test};
use bellwether_runtime::vocabulary::gaspi::{GROUP_ALL, codes};

use super::queues::is_complete;
use super::{Here, Task, WHILE, fails, ok, pattern, test_loop};

pub(super) fn g67(task: &Task) {
    task.works(|here| {
        if here.n == 1 {
            return;
        }
        for len in [1usize, 1000, 65535] {
            if here.me == 0 {
                // It receives when all have begun to send.
                (1..here.n).for_each(|rank| assert_eq!(here.take(rank as u32), 1));
                for _ in 1..here.n {
                    let (from, size) = ok("receive", here.p.passive_receive(super::S, 1 << 20, 65535, Block));
                    assert_eq!(size as usize, len);
                    assert_eq!(here.bytes(1 << 20, len), pattern(from.into(), len));
                }
                fails(codes::TIMEOUT, here.p.passive_receive(super::S, 1 << 20, 65535, Test));
            } else {
                here.fill(0, &pattern(here.me, len));
                fails(codes::TIMEOUT, here.p.passive_send(super::S, 0, 0, len as u64, Test));
                here.tell(0, here.me as u32, 1, 0);
                ok("wait", here.p.wait(0, Block));
                test_loop("passive_send", |timeout| here.p.passive_send(super::S, 0, 0, len as u64, timeout));
            }
            here.barrier();
        }
    });
}

/// The receiver takes the message of `quiet` before those of `busy`, which came later and of which several are in flight.
fn nobody_overtakes(here: &Here<'_>, quiet: u16, busy: u16) {
    const SEVERAL: u64 = 5;
    const SIZE: u64 = 16;
    let is = |rank| here.me == usize::from(rank);
    let send = |n: u64, timeout| here.p.passive_send(super::S, SIZE * n, 0, SIZE, timeout);
    let receive = || ok("receive", here.p.passive_receive(super::S, 1 << 20, SIZE, Block));
    // The receiver has taken a message of the busy one last. That message may be complete in the first call already.
    let is_sent = is(busy) && is_complete(send(0, Test));
    if is(0) {
        assert_eq!(receive(), (busy, SIZE));
    }
    if is(busy) && !is_sent {
        ok("send", send(0, Block));
    }
    here.barrier();
    if is(quiet) {
        fails(codes::TIMEOUT, send(0, Test));
    }
    if is(0) {
        // Only the quiet one has sent: this returns when its message is there, and leaves it.
        fails(codes::INV_SIZE, here.p.passive_receive(super::S, 1 << 20, SIZE - 1, Block));
    }
    here.barrier();
    if is(busy) {
        (0..SEVERAL).for_each(|n| fails(codes::TIMEOUT, send(n, Test)));
    }
    here.barrier();
    if is(0) {
        // Messages may come after the barrier that they were sent before.
        here.pause();
        let order: Vec<_> = (0..=SEVERAL).map(|_| receive().0).collect();
        let mut expected = vec![busy; SEVERAL as usize + 1];
        expected[0] = quiet;
        assert_eq!(order, expected, "{busy} has overtaken {quiet}");
    }
    if is(quiet) {
        ok("send", send(0, Block));
    }
    if is(busy) {
        (0..SEVERAL).for_each(|n| ok("send", send(n, Block)));
    }
    here.barrier();
}

pub(super) fn g68(task: &Task) {
    task.works(|here| {
        match here.n {
            1 => {}
            // The receiver sends to itself.
            2 => [(0, 1), (1, 0)].into_iter().for_each(|(quiet, busy)| nobody_overtakes(here, quiet, busy)),
            _ => [(1, 2), (2, 1), (0, 1)].into_iter().for_each(|(quiet, busy)| nobody_overtakes(here, quiet, busy)),
        }
        let times = task.times(20, 1000);
        if here.me == 0 {
            let mut left = vec![times; here.n];
            left[0] = 0;
            for _ in 0..times * (here.n - 1) {
                let (from, size) = ok("receive", here.p.passive_receive(super::S, 0, 8, Block));
                assert_eq!(size, 8);
                let value = u64::from_ne_bytes(here.bytes(0, 8).try_into().expect("eight bytes"));
                // In the order in which it has sent them.
                assert_eq!(value as usize, times - left[usize::from(from)]);
                left[usize::from(from)] -= 1;
            }
            assert!(left.iter().all(|left| *left == 0));
        } else {
            for time in 0..times as u64 {
                here.fill(0, &time.to_ne_bytes());
                ok("send", here.p.passive_send(super::S, 0, 0, 8, Block));
            }
        }
    });
}

pub(super) fn g69(task: &Task) {
    task.works(|here| {
        for size in [0, 65536, u64::MAX] {
            fails(codes::INV_COMMSIZE, here.p.passive_send(super::S, 0, here.next(), size, Block));
            fails(codes::INV_COMMSIZE, here.p.passive_receive(super::S, 0, size, Block));
        }
        fails(codes::TIMEOUT, here.p.passive_receive(super::S, 0, 8, Test));
        // Too long for the receiver's place: it stays until there is one.
        here.fill(0, &pattern(here.me, 100));
        fails(codes::TIMEOUT, here.p.passive_send(super::S, 0, here.me as u16, 100, Test));
        fails(codes::INV_SIZE, here.p.passive_receive(super::S, 1000, 99, Block));
        assert_eq!(here.p.passive_receive(super::S, 1000, 100, Block), Ok((here.me as u16, 100)));
        assert_eq!(here.bytes(1000, 100), pattern(here.me, 100));
        test_loop("passive_send", |timeout| here.p.passive_send(super::S, 0, here.me as u16, 100, timeout));
    });
}

pub(super) fn g67_late(task: &Task) {
    if task.process.place().1 == 1 {
        return;
    }
    task.works(|here| {
        here.barrier();
        if here.me == 0 {
            ok("proc_term", here.p.proc_term(Block));
            if !task.virtual_time {
                std::thread::sleep(Duration::from_millis(150));
            }
        } else {
            if !task.virtual_time {
                std::thread::sleep(Duration::from_millis(50));
            }
            fails(codes::TIMEOUT, here.p.passive_send(super::S, 0, 0, 8, WHILE));
            ok("proc_term", here.p.proc_term(Block));
        }
        ok("proc_init", here.p.proc_init(Block));
        ok("segment_create", here.p.segment_create(super::S, 64, GROUP_ALL, Block));
        fails(codes::TIMEOUT, here.p.passive_receive(super::S, 0, 8, WHILE));
    });
}
