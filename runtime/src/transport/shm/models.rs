//! Models for loom: every order in which two threads can meet in the ring and in the sleep protocol.
//!
//! `ci/loom` runs them.

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

use super::claim::Claim;
use super::doze::{SleepWord, fall_asleep, must_wake};
use super::line::{Kind, Line, Reader, Writer};

impl SleepWord for AtomicU32 {
    fn set(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
    fn get(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }
}

struct Ring {
    lines: Vec<Line>,
    credit: AtomicU64,
}

/// A pointer to a ring that both threads keep alive.
struct Shared(Arc<Ring>);

// SAFETY: lines are written by one thread and read by one, as `Writer` and `Reader` ask; loom checks that.
unsafe impl Send for Shared {}

fn ring(depth_log2: u32, messages: u64) {
    let mut lines = Vec::new();
    lines.resize_with(1 << depth_log2, Line::fresh);
    // SAFETY: see `Shared`.
    #[expect(clippy::arc_with_non_send_sync, reason = "wrapped in Shared")]
    let ring = Arc::new(Ring { lines, credit: AtomicU64::new(0) });
    let other = Shared(Arc::clone(&ring));
    let sender = thread::spawn(move || {
        let other = other;
        let at = (other.0.lines.as_ptr().cast_mut().cast(), (&raw const other.0.credit).cast());
        // SAFETY: the only writer of a fresh ring that is kept alive.
        let mut writer = unsafe { Writer::new(at.0, at.1, depth_log2) };
        for number in 0..messages {
            while !writer.has_room() {
                thread::yield_now();
            }
            // SAFETY: 8 bytes of a body.
            writer.write(3, Kind::Inline, 8, |body| unsafe { body.cast::<u64>().write(number) });
        }
    });
    let at = (ring.lines.as_ptr().cast(), (&raw const ring.credit).cast_mut().cast());
    // SAFETY: the only reader of a ring that is kept alive.
    let mut reader = unsafe { Reader::new(at.0, at.1, depth_log2) };
    for number in 0..messages {
        let body = loop {
            match reader.peek() {
                Some((head, body)) => {
                    assert_eq!((head.id(), head.length()), (3, 8));
                    break body;
                }
                None => thread::yield_now(),
            }
        };
        // SAFETY: 8 bytes of a message's body.
        assert_eq!(unsafe { body.cast::<u64>().read() }, number);
        reader.advance();
    }
    sender.join().expect("no panic");
}

#[test]
fn a_ring_of_one_line_hands_over_each_message() {
    loom::model(|| ring(0, 3));
}

#[test]
fn a_ring_of_two_lines_hands_over_each_message() {
    loom::model(|| ring(1, 4));
}

/// A lane of contexts: its lines, their credit, and its claim.
struct Claimed {
    ring: Ring,
    claim: Claim,
}

/// A pointer to one that all threads keep alive.
struct SharedClaimed(Arc<Claimed>);

// SAFETY: as `Shared`; a line is written by the one thread that has the claim.
unsafe impl Send for SharedClaimed {}

/// A context that claims the lane, writes a message, and gives the lane back.
fn write_once(lane: &Claimed, depth_log2: u32, rank: usize) {
    let mut next = None;
    while next.is_none() {
        next = lane.claim.take(rank);
        if next.is_none() {
            thread::yield_now();
        }
    }
    let at = (lane.ring.lines.as_ptr().cast_mut().cast(), (&raw const lane.ring.credit).cast());
    // SAFETY: the only writer, as long as it has the claim.
    let mut writer = unsafe { Writer::resume(at.0, at.1, depth_log2, next.expect("claimed above")) };
    while !writer.has_room() {
        thread::yield_now();
    }
    // SAFETY: 8 bytes of a body.
    writer.write_from(rank, 3, Kind::Inline, 8, |body| unsafe { body.cast::<u64>().write(rank as u64) });
    lane.claim.give_back(writer.written());
}

fn claimed(depth_log2: u32) {
    let mut lines = Vec::new();
    lines.resize_with(1 << depth_log2, Line::fresh);
    // SAFETY: see `SharedClaimed`.
    #[expect(clippy::arc_with_non_send_sync, reason = "wrapped in SharedClaimed")]
    let lane = Arc::new(Claimed { ring: Ring { lines, credit: AtomicU64::new(0) }, claim: Claim::fresh() });
    let senders = [5, 9].map(|rank| {
        let other = SharedClaimed(Arc::clone(&lane));
        thread::spawn(move || {
            let other = other;
            write_once(&other.0, depth_log2, rank);
        })
    });
    let at = (lane.ring.lines.as_ptr().cast(), (&raw const lane.ring.credit).cast_mut().cast());
    // SAFETY: the only reader of a lane that is kept alive.
    let mut reader = unsafe { Reader::new(at.0, at.1, depth_log2) };
    let mut seen = 0;
    for _ in 0..2 {
        let (head, body) = loop {
            match reader.peek() {
                Some(line) => break line,
                None => thread::yield_now(),
            }
        };
        // SAFETY: 8 bytes of a message's body.
        let rank = unsafe { body.cast::<u64>().read() };
        assert_eq!((head.sender() as u64, head.without_sender().length()), (rank, 8));
        seen += rank;
        reader.advance();
    }
    assert_eq!(seen, 5 + 9);
    senders.map(|sender| sender.join().expect("no panic"));
}

#[test]
fn contexts_that_claim_a_lane_in_turn_hand_over_each_message() {
    loom::model(|| claimed(0));
}

#[test]
fn contexts_that_claim_a_lane_of_two_lines_hand_over_each_message() {
    loom::model(|| claimed(1));
}

fn sleep(sender_fences: bool, sleeper_fences: bool) {
    let shared = Arc::new((AtomicU32::new(0), AtomicU32::new(0), Notify::new()));
    let other = Arc::clone(&shared);
    let sender = thread::spawn(move || {
        let (message, word, futex) = &*other;
        message.store(1, Ordering::Release);
        let barrier = || {
            if sender_fences {
                fence(Ordering::SeqCst);
            }
        };
        if must_wake(word, barrier) && word.swap(0, Ordering::AcqRel) != 0 {
            futex.notify();
        }
    });
    let (message, word, futex) = &*shared;
    let barrier = || {
        if sleeper_fences {
            fence(Ordering::SeqCst);
        }
    };
    if fall_asleep(word, barrier, || message.load(Ordering::Acquire) == 1) {
        // A futex returns at once if the word has changed; loom reports a sleep that nothing ends.
        while word.load(Ordering::Acquire) == 1 {
            futex.wait();
        }
    }
    assert_eq!(message.load(Ordering::Acquire), 1, "awake, and nothing there");
    sender.join().expect("no panic");
}

#[test]
fn nobody_sleeps_through_a_message() {
    loom::model(|| sleep(true, true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_senders_barrier_somebody_does() {
    loom::model(|| sleep(false, true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_sleepers_barrier_somebody_does() {
    loom::model(|| sleep(true, false));
}
