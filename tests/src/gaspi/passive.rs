//! Rows about passive messages.

use std::time::Duration;

use bellwether_runtime::vocabulary::gaspi::Timeout::{Block, Test};
use bellwether_runtime::vocabulary::gaspi::{GROUP_ALL, codes};

use super::{Task, WHILE, fails, ok, pattern, test_loop};

pub(super) fn g67(task: &Task) {
    task.works(|here| {
        if here.n == 1 {
            return;
        }
        for len in [1usize, 1000, 65535] {
            if here.me == 0 {
                here.pause();
                for _ in 1..here.n {
                    let (from, size) = ok("receive", here.p.passive_receive(super::S, 1 << 20, 65535, Block));
                    assert_eq!(size as usize, len);
                    assert_eq!(here.bytes(1 << 20, len), pattern(from.into(), len));
                }
                fails(codes::TIMEOUT, here.p.passive_receive(super::S, 1 << 20, 65535, Test));
            } else {
                here.fill(0, &pattern(here.me, len));
                test_loop("passive_send", |timeout| here.p.passive_send(super::S, 0, 0, len as u64, timeout));
            }
            here.barrier();
        }
    });
}

pub(super) fn g68(task: &Task) {
    task.works(|here| {
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
