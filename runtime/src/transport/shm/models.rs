//! Models for loom: every order in which threads can meet in the ring.
//!
//! `ci/loom` runs them.

use std::mem::ManuallyDrop;
use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::claim::Claim;
use super::doorbell::Doorbell;
use super::lanes::Lanes;
use super::line::{Credit, Kind, Line, Reader, Writer};
use crate::sleep::{Fences, SleepWord};

struct Ring {
    lines: Vec<Line>,
    credit: Credit,
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
    let ring = Arc::new(Ring { lines, credit: Credit::fresh() });
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
    let lane = Arc::new(Claimed { ring: Ring { lines, credit: Credit::fresh() }, claim: Claim::fresh() });
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
    senders.into_iter().for_each(|sender| sender.join().expect("no panic"));
}

#[test]
fn contexts_that_claim_a_lane_in_turn_hand_over_each_message() {
    loom::model(|| claimed(0));
}

#[test]
fn contexts_that_claim_a_lane_of_two_lines_hand_over_each_message() {
    loom::model(|| claimed(1));
}

/// A receiver's lanes of one line each, its doorbell, and the word it sleeps on.
struct Node {
    rings: Vec<Ring>,
    top: AtomicU64,
    groups: Vec<AtomicU64>,
    word: SleepWord,
}

/// The number of the lane at each index: in two groups of the doorbell.
const NUMBERS: [usize; 2] = [3, 64];

/// A pointer to one that all threads keep alive.
struct SharedNode(Arc<Node>);

// SAFETY: as `Shared`; all else is atomics.
unsafe impl Send for SharedNode {}

impl Node {
    fn new() -> SharedNode {
        let ring = || Ring { lines: vec![Line::fresh()], credit: Credit::fresh() };
        #[expect(clippy::arc_with_non_send_sync, reason = "wrapped in SharedNode")]
        SharedNode(Arc::new(Node {
            rings: NUMBERS.map(|_| ring()).into(),
            top: AtomicU64::new(0),
            groups: vec![AtomicU64::new(0), AtomicU64::new(0)],
            word: SleepWord::awake(),
        }))
    }

    fn doorbell(&self) -> Doorbell {
        // SAFETY: the words live as long as the node, which every thread keeps alive.
        unsafe { Doorbell::new((&raw const self.top).cast(), self.groups.as_ptr().cast(), 128) }
    }

    /// The receiver's side.
    fn lanes(&self) -> Lanes {
        let mut lanes = Lanes::new(self.doorbell());
        for (ring, number) in self.rings.iter().zip(NUMBERS) {
            let at = (ring.lines.as_ptr().cast(), (&raw const ring.credit).cast_mut().cast());
            // SAFETY: the only reader of a fresh lane that is kept alive.
            lanes.add(number, unsafe { Reader::new(at.0, at.1, 0) });
        }
        lanes
    }

    /// A sender writes one message to the lane at `index` and announces it in the order of `Interface::announce`.
    fn send(&self, index: usize) {
        let ring = &self.rings[index];
        let at = (ring.lines.as_ptr().cast_mut().cast(), (&raw const ring.credit).cast());
        // SAFETY: the only writer of a fresh lane that is kept alive.
        let mut writer = unsafe { Writer::new(at.0, at.1, 0) };
        assert!(writer.has_room());
        writer.write(3, Kind::Inline, 0, |_| ());
        let sleeps = self.word.must_wake(Fences::Full);
        if !writer.is_polled() {
            self.doorbell().ring(NUMBERS[index]);
        }
        if sleeps {
            self.word.wake(|| panic!("nobody listens"));
        }
    }
}

/// One poll. Returns how many messages it finds.
fn poll(lanes: &mut Lanes) -> usize {
    if lanes.is_due() {
        lanes.attend();
    }
    let mut found = 0;
    for place in lanes.first_waiting().unwrap_or(usize::MAX)..lanes.polled() {
        let (_, lane) = lanes.at(place);
        if lane.reader.peek().is_some() {
            lane.reader.advance();
            found += 1;
        }
    }
    found
}

#[test]
fn the_doorbell_tells_of_each_message() {
    loom::model(|| {
        let node = Node::new();
        let senders = [0, 1].map(|index| {
            let other = SharedNode(Arc::clone(&node.0));
            thread::spawn(move || {
                let other = other;
                other.0.send(index);
            })
        });
        let mut lanes = node.0.lanes();
        let mut found = 0;
        // No sweep comes to its aid: loom reports a loop without end.
        while found < 2 {
            found += poll(&mut lanes);
            thread::yield_now();
        }
        senders.into_iter().for_each(|sender| sender.join().expect("no panic"));
    });
}

/// A receiver that ends a lane and falls asleep, while its first message comes.
fn sleep_beside_an_ended_lane(checks_all: bool) {
    // Loom aborts where a panic drops its types, and a deadlock is a panic.
    let node = ManuallyDrop::new(Node::new());
    let mut lanes = node.0.lanes();
    lanes.poll_lane(0);
    let other = SharedNode(Arc::clone(&node.0));
    let sender = thread::spawn(move || {
        let other = other;
        other.0.send(0);
    });
    // Sees the message that `poll_lane` waits for as read; ends the lane; takes it from those that polls check.
    let mut found = 0;
    for _ in 0..3 {
        lanes.review();
    }
    found += poll(&mut lanes);
    let Node { word, .. } = &*node.0;
    if found == 0 {
        let waits = || if checks_all { lanes.any_waiting() } else { lanes.first_waiting().is_some() };
        if word.announce(Fences::Full, waits) {
            word.block(Duration::MAX);
            word.withdraw();
        }
        assert!(lanes.any_waiting(), "awake, and nothing there");
        found += poll(&mut lanes);
    }
    assert_eq!(found, 1);
    sender.join().expect("no panic");
    drop(ManuallyDrop::into_inner(node));
}

#[test]
fn nobody_sleeps_through_a_message_in_a_lane_that_polls_do_not_check() {
    loom::model(|| sleep_beside_an_ended_lane(true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_check_of_all_lanes_somebody_does() {
    loom::model(|| sleep_beside_an_ended_lane(false));
}
