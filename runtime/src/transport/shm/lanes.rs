//! Selects the lanes that a poll checks: those with recent messages.
//!
//! | state of a lane | a poll checks it | the writer rings the doorbell |
//! | --- | --- | --- |
//! | idle: as at the start | no | yes |
//! | polled: a message came recently | yes | no |
//! | ending: no message came for a while | yes | yes |
//!
//! A ring, a sweep or a full check that finds a message makes a lane polled. A review, every [`REVIEW`] units of work, makes a
//! polled lane without a message since the last review ending, an ending one without a message idle, and an ending one with a
//! message polled again. Some lanes always stay polled (`KEEP`).
//!
//! # The race
//! The writer stores a message and then loads the lane's mark. Between the two there may be no fence, so that the load may be done
//! first and find the lane polled, while the reader ends it and checks it before the message is there. Then the bell is not rung.
//! Therefore:
//! - a lane that ends is still checked until the next review, far longer than a store takes to become visible;
//! - one poll in [`SWEEP`] checks [`SWEPT`] lanes, in turn: a message waits for at most `SWEEP * (lanes / SWEPT + 1)` polls in every case;
//! - a rank that is about to sleep, or to report that a peer has failed, checks all lanes ([`Lanes::any_waiting`]). Before sleep the
//!   fence in `SleepWord::announce` comes first; the writer's, in `SleepWord::must_wake`, follows its message.

use super::doorbell::Doorbell;
use super::line::Reader;

/// Polls between two sweeps. Chosen: a sweep takes as long as some polls, and delays what a wait would see next.
const SWEEP: u32 = if cfg!(loom) { u32::MAX } else { 64 };
/// Lanes that a sweep checks, idle or not.
const SWEPT: usize = 16;
/// Work between two reviews: each poll counts 1 plus the lanes it checks. Chosen: about 100 us of polling, so that a lane with
/// occasional messages stays polled.
const REVIEW: usize = 1 << 16;
/// Lanes that stay polled without messages. Checking these costs less than one doorbell ring.
const KEEP: usize = if cfg!(loom) { 0 } else { 4 };

/// A lane's state; see the head of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Polled,
    Ending,
}

/// A lane, by the receiver.
pub struct Lane {
    /// Its reading end.
    pub reader: Reader,
    /// Its number in the slot and in the doorbell.
    number: u32,
    /// Messages read as of the last review, modulo 2^32.
    read: u32,
    state: State,
}

/// The lanes of a receiver.
pub struct Lanes {
    list: Vec<Lane>,
    /// Indices of those that a poll checks.
    polled: Vec<u32>,
    doorbell: Doorbell,
    /// Polls until the next sweep.
    countdown: u32,
    /// The lane that a sweep checked last.
    cursor: usize,
    /// Work since the last review, in the unit of [`REVIEW`].
    checks: usize,
}

impl Lanes {
    /// No lanes yet.
    pub fn new(doorbell: Doorbell) -> Lanes {
        Lanes { list: Vec::new(), polled: Vec::new(), doorbell, countdown: SWEEP, cursor: 0, checks: 0 }
    }

    /// Adds a lane, idle. Its `number` is larger than all before.
    pub fn add(&mut self, number: usize, reader: Reader) {
        self.list.push(Lane { reader, number: number as u32, read: 0, state: State::Idle });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// How many of them a poll checks.
    #[inline(always)]
    pub fn polled(&self) -> usize {
        self.polled.len()
    }

    /// Index of the lane at `place` among those that a poll checks, and the lane.
    #[inline(always)]
    pub fn at(&mut self, place: usize) -> (usize, &mut Lane) {
        let index = self.polled[place] as usize;
        (index, &mut self.list[index])
    }

    /// Whether [`Lanes::attend`] must be called before [`Lanes::first_waiting`]. Counts polls.
    #[inline(always)]
    pub fn is_due(&mut self) -> bool {
        // In a forked child `attend` is not called, so this wraps.
        self.countdown = self.countdown.wrapping_sub(1);
        self.doorbell.is_rung() | (self.countdown == 0)
    }

    /// Among the lanes that a poll checks, the place of the first with a message.
    #[inline(always)]
    pub fn first_waiting(&self) -> Option<usize> {
        // SAFETY: `polled` has indices of the list only, which never becomes shorter.
        self.polled.iter().position(|index| unsafe { self.list.get_unchecked(*index as usize) }.reader.peek().is_some())
    }

    /// Takes the doorbell; sweeps and reviews when due. Returns whether the doorbell names an unknown lane.
    pub fn attend(&mut self) -> bool {
        let (doorbell, mut unknown) = (self.doorbell, false);
        if doorbell.is_rung() {
            doorbell.take(|number| match self.list.binary_search_by_key(&(number as u32), |lane| lane.number) {
                Ok(index) => self.poll_lane(index),
                Err(_) => unknown = true,
            });
        }
        if self.countdown == 0 {
            self.countdown = SWEEP;
            self.sweep();
            self.checks += SWEEP as usize * (1 + self.polled.len());
            if self.checks >= REVIEW {
                self.checks = 0;
                self.review();
            }
        }
        unknown
    }

    /// Polls check the lane with this index from now on.
    pub fn poll_lane(&mut self, index: usize) {
        let lane = &mut self.list[index];
        if lane.state == State::Idle {
            self.polled.push(index as u32);
        }
        if lane.state != State::Polled {
            // One less, so that the next review sees a message and keeps the lane.
            lane.read = (lane.reader.read() as u32).wrapping_sub(1);
            lane.state = State::Polled;
            lane.reader.set_polled(true);
        }
    }

    /// Checks some lanes, in turn.
    fn sweep(&mut self) {
        if self.polled.len() == self.list.len() {
            return;
        }
        for _ in 0..self.list.len().min(SWEPT) {
            self.cursor = if self.cursor + 1 < self.list.len() { self.cursor + 1 } else { 0 };
            self.check(self.cursor);
        }
    }

    /// Checks all lanes. Whether one has a message; the next poll finds it.
    pub fn any_waiting(&mut self) -> bool {
        (0..self.list.len()).fold(false, |any, index| self.check(index) | any)
    }

    /// Returns whether the lane has a message, and if so makes it polled.
    fn check(&mut self, index: usize) -> bool {
        let waits = self.list[index].reader.peek().is_some();
        if waits {
            self.poll_lane(index);
        }
        waits
    }

    /// Makes quiet polled lanes ending, and quiet ending lanes idle. An ending lane with a message becomes polled again.
    pub fn review(&mut self) {
        let mut surplus = self.polled.len().saturating_sub(KEEP);
        let mut place = 0;
        while place < self.polled.len() {
            let lane = &mut self.list[self.polled[place] as usize];
            let read = lane.reader.read() as u32;
            let is_quiet = lane.read == read && surplus > 0;
            surplus -= usize::from(is_quiet);
            lane.read = read;
            match lane.state {
                State::Ending if is_quiet => {
                    lane.state = State::Idle;
                    self.polled.swap_remove(place);
                    continue;
                }
                _ if is_quiet => {
                    lane.state = State::Ending;
                    lane.reader.set_polled(false);
                }
                State::Ending => {
                    lane.state = State::Polled;
                    lane.reader.set_polled(true);
                }
                _ => {}
            }
            place += 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::transport::shm::line::{Credit, Kind, Line, Writer};

    const DEPTH_LOG2: u32 = 2;

    /// A receiver with some lanes, and their writers.
    struct Receiver {
        lanes: Lanes,
        writers: Vec<Writer>,
        doorbell: Doorbell,
        _memory: (Vec<Line>, Vec<Credit>, Vec<AtomicU64>),
    }

    fn receiver(count: usize) -> Receiver {
        let (mut lines, mut credits) = (Vec::new(), Vec::new());
        lines.resize_with(count << DEPTH_LOG2, Line::fresh);
        credits.resize_with(count, Credit::fresh);
        let words: Vec<AtomicU64> = (0..2 + count / 64).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: all of it lives as long as the receiver, in vectors that do not grow; one writer and one reader a lane.
        let (doorbell, ends) = unsafe {
            let at = |lane| {
                let line: *mut Line = lines.as_mut_ptr().add(lane << DEPTH_LOG2);
                (line.cast::<u8>(), credits.as_mut_ptr().add(lane).cast::<u8>())
            };
            let end = |(line, credit): (*mut u8, *mut u8)| {
                (Writer::new(line, credit, DEPTH_LOG2), Reader::new(line, credit, DEPTH_LOG2))
            };
            let ends: Vec<(Writer, Reader)> = (0..count).map(at).map(end).collect();
            (Doorbell::new(words.as_ptr().cast(), words.as_ptr().add(1).cast(), count), ends)
        };
        let mut lanes = Lanes::new(doorbell);
        let (writers, readers): (Vec<Writer>, Vec<Reader>) = ends.into_iter().unzip();
        readers.into_iter().enumerate().for_each(|(number, reader)| lanes.add(number, reader));
        Receiver { lanes, writers, doorbell, _memory: (lines, credits, words) }
    }

    impl Receiver {
        /// A message that is not announced: its writer saw the lane polled.
        fn slip(&mut self, lane: usize) {
            assert!(self.writers[lane].has_room());
            self.writers[lane].write(1, Kind::Inline, 0, |_| ());
        }

        /// Whether it had to ring.
        fn send(&mut self, lane: usize) -> bool {
            self.slip(lane);
            let rings = !self.writers[lane].is_polled();
            if rings {
                self.doorbell.ring(lane);
            }
            rings
        }

        /// The lanes of the messages that one poll finds.
        fn poll(&mut self) -> Vec<usize> {
            if self.lanes.is_due() {
                assert!(!self.lanes.attend(), "all lanes are known");
            }
            let mut found = Vec::new();
            for place in self.lanes.first_waiting().unwrap_or(usize::MAX)..self.lanes.polled() {
                let (index, lane) = self.lanes.at(place);
                while lane.reader.peek().is_some() {
                    lane.reader.advance();
                    found.push(index);
                }
            }
            found.sort_unstable();
            found
        }

        /// Polls that find nothing, until the lanes that a poll checks are so few.
        fn poll_until(&mut self, polled: usize) {
            for _ in 0..4 * REVIEW {
                assert_eq!(self.poll(), []);
                if self.lanes.polled() <= polled {
                    return;
                }
            }
            panic!("{} lanes are still polled", self.lanes.polled());
        }
    }

    #[test]
    fn polls_check_only_lanes_with_recent_messages() {
        let mut receiver = receiver(1000);
        assert_eq!((receiver.poll(), receiver.lanes.polled()), (vec![], 0));
        assert!((1..1000).all(|lane| receiver.send(lane)), "the first message of each rings");
        assert_eq!(receiver.poll(), (1..1000).collect::<Vec<_>>());
        assert_eq!(receiver.lanes.polled(), 999);
        assert!(!receiver.send(7), "a polled lane does not");
        assert_eq!(receiver.poll(), [7]);
        receiver.poll_until(KEEP);
        let quiet = (1..1000).find(|lane| !receiver.writers[*lane].is_polled()).expect("all but a few have ended");
        assert!(receiver.send(quiet));
        assert_eq!(receiver.poll(), [quiet]);
        assert_eq!(receiver.lanes.polled(), KEEP + 1);
        assert!(!receiver.send(quiet));
        assert_eq!(receiver.poll(), [quiet]);
    }

    #[test]
    fn a_lane_with_messages_stays_polled_while_others_end() {
        let mut receiver = receiver(20);
        (0..20).for_each(|lane| _ = receiver.send(lane));
        assert_eq!(receiver.poll().len(), 20);
        for round in 0..REVIEW {
            if round.is_multiple_of(100) {
                assert!(!receiver.send(13), "in round {round}");
                assert_eq!(receiver.poll(), [13]);
            }
            receiver.poll();
        }
        assert_eq!(receiver.lanes.polled(), KEEP);
    }

    #[test]
    fn a_lane_that_ends_is_still_checked_for_a_while() {
        let mut receiver = receiver(6);
        (0..6).for_each(|lane| _ = receiver.send(lane));
        receiver.poll();
        // The first review sees the messages, the second lets two lanes end.
        (0..2).for_each(|_| receiver.lanes.review());
        let ending: Vec<usize> = (0..6).filter(|lane| !receiver.writers[*lane].is_polled()).collect();
        assert_eq!(ending.len(), 6 - KEEP);
        // Its writer loaded the mark before.
        receiver.slip(ending[0]);
        assert_eq!(receiver.poll(), [ending[0]]);
        receiver.lanes.review();
        assert!(receiver.writers[ending[0]].is_polled(), "and stays polled for that message");
        assert_eq!(receiver.lanes.polled(), 5);
    }

    #[test]
    fn a_message_that_nobody_rang_for_waits_no_longer_than_a_round_of_sweeps() {
        let mut receiver = receiver(70);
        for lane in [0, 33, 69] {
            receiver.slip(lane);
            let polls = (1..1000).find(|_| receiver.poll() == [lane]).expect("a sweep finds it");
            assert!(polls <= SWEEP as usize * (70 / SWEPT + 1), "lane {lane} after {polls} polls");
        }
    }

    #[test]
    fn a_check_of_all_lanes_finds_what_nobody_rang_for() {
        let mut receiver = receiver(300);
        assert!(!receiver.lanes.any_waiting());
        for lane in [299, 5] {
            receiver.slip(lane);
        }
        assert!(receiver.lanes.any_waiting());
        assert_eq!(receiver.poll(), [5, 299]);
        assert!(!receiver.lanes.any_waiting());
    }
}
