//! The thread for progress sleeps while nothing happens, and each event wakes it. A doze has no time limit here that a test could wait for:
//! without the wake-up a job runs into its deadline.

use std::sync::Barrier;

use super::super::one_sided::Part;
use super::super::process::Process;
use super::super::types::{GROUP_ALL, Timeout::Block};
use super::*;
use crate::{Settings, Threads, Transport};

const SEGMENT: u8 = 1;

/// Runs a program of two processes in their working phase, with a segment, over mapped memory and over networks.
fn each(program: impl Fn(&Process, Transport) + Sync) {
    for transport in [Transport::Auto, Transport::ShmContract, Transport::Tcp] {
        let settings = Settings { transport, ..Settings::default() };
        let ran = Threads::new(2).settings(settings).deadline(Duration::from_secs(60)).build(|builder| {
            let process = Process::start(builder).expect("starts");
            process.proc_init(Block).expect("begins");
            process.segment_create(SEGMENT, 64, GROUP_ALL, Block).expect("room");
            program(&process, transport);
            process.proc_term(Block).expect("ends");
            await_doze(&process);
            // Waits for the thread, which dozes.
            process.finish().expect("finishes");
        });
        ran.expect("runs");
    }
}

fn turns(process: &Process) -> u64 {
    process.monitor.interrupts.as_ref().expect("there is a thread").turns().load(Ordering::Relaxed)
}

/// Enters without the end of the doze, as no call does.
fn dozes(process: &Process) -> bool {
    let room = lock(&process.monitor.inside.lock);
    room.doze.as_ref().expect("descriptors").stands().load(Ordering::Relaxed)
}

fn await_doze(process: &Process) {
    await_that(|| dozes(process));
}

/// Makes no call meanwhile.
fn await_that(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn the_thread_for_progress_sleeps_while_nothing_happens() {
    let both = Barrier::new(2);
    each(|process, transport| {
        both.wait();
        await_doze(process);
        both.wait();
        let before = turns(process);
        std::thread::sleep(Duration::from_millis(300));
        let turns = turns(process) - before;
        // 300, if it wakes each millisecond.
        assert!(turns <= 20, "{turns} turns while nothing happened, {transport:?}");
        both.wait();
    });
}

#[test]
fn messages_and_posts_end_the_doze() {
    const ROUNDS: usize = 20;
    let both = Barrier::new(2);
    each(|process, transport| {
        let (me, other) = process.place();
        let other = (other - 1 - me) as u16;
        for _ in 0..ROUNDS {
            if me == 1 {
                await_doze(process);
                let before = turns(process);
                both.wait();
                // The message has woken the thread.
                await_that(|| turns(process) > before);
                assert_eq!(process.passive_receive(SEGMENT, 0, 8, Block), Ok((0, 8)));
            } else {
                both.wait();
                assert_eq!(process.passive_send(SEGMENT, 0, 1, 8, Block), Ok(()));
                // A post does not enter the monitor.
                await_doze(process);
                let before = turns(process);
                let part = Part { local: (SEGMENT, 0), remote: (SEGMENT, 8), size: 8 };
                assert_eq!(process.write(part, other, 0, Block), Ok(()));
                if transport != Transport::Auto {
                    await_that(|| turns(process) > before);
                }
                // The thread has made progress for the queue: nothing is in flight.
                await_doze(process);
                assert_eq!(process.wait(0, Block), Ok(()));
            }
        }
        both.wait();
    });
}
