//! No wake-up is lost, however progress, arming and arrivals meet.

use std::time::Duration;

use bellwether_runtime::vocabulary::ucp::Status;
use bellwether_runtime::vocabulary::ucp::codes::BUSY;

use super::{Run, Task, send};

/// A little of everything: which of the steps a message meets is by chance.
struct Delay(u64);

impl Delay {
    fn pass(&mut self) {
        // Marsaglia's xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        match self.0 % 16 {
            0 => std::thread::yield_now(),
            shift @ 1..8 => (0..self.0 % (1 << (shift + 3))).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }
}

pub fn w06(task: &Task<'_>) {
    let rounds = if task.virtual_time { 100 } else { 1_000_000 * task.share / 1000 };
    ping_pong(task, rounds as u64);
}

/// Rank 0 and rank 1 send each other a message in turn, and sleep by their descriptors in between.
pub fn ping_pong(task: &Task<'_>, rounds: u64) {
    let here = Run::new(task);
    let (me, mut delay) = (task.rank(), Delay(0x9E37_79B9_7F4A_7C15 ^ task.rank() as u64));
    if me < 2 && task.size() > 1 {
        for round in 1..=rounds {
            if me == 0 {
                send(task, 1);
            }
            // Strictly: progress until nothing is left, arm, poll.
            while here.came() < round {
                if here.worker.progress().expect("makes progress") > 0 {
                    continue;
                }
                delay.pass();
                match here.worker.arm() {
                    Ok(()) => here.sleep(round),
                    Err(status) => assert_eq!(status, Status(BUSY)),
                }
            }
            if me == 1 {
                send(task, 0);
            }
        }
    }
    here.end();
}

/// The loop of UCX's reference, literally, for one message at a time.
pub fn w24(task: &Task<'_>) {
    let rounds = if task.virtual_time { 50 } else { 100_000 * task.share / 1000 } as u64;
    let here = Run::new(task);
    if task.rank() == 0 && task.size() > 1 {
        for round in 1..=rounds {
            here.go_on();
            loop {
                // check_for_events()
                if here.came() >= round {
                    break;
                } else if here.worker.progress().expect("makes progress") > 0 {
                    continue;
                }
                match here.worker.arm() {
                    Ok(()) => here.sleep(round),
                    Err(Status(BUSY)) => {}
                    Err(status) => panic!("{status}"),
                }
            }
        }
    }
    here.answer(rounds as usize);
    // Whatever is left wakes nobody for ever.
    here.worker.signal().expect("signals");
    assert!(here.readable(Duration::ZERO));
    here.end();
}
