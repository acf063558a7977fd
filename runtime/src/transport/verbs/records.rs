//! Requests in flight on a queue pair, oldest first: a ring of fixed size.

use std::cell::Cell;

use super::connect::DEPTH;
use super::link::{Record, Then};

/// A power of two above the number of requests that can be in flight.
const ROOM: usize = (DEPTH + 1).next_power_of_two();

#[derive(Debug)]
pub struct Records {
    ring: [Cell<Record>; ROOM],
    /// Number of the oldest, and of the one that comes next.
    first: Cell<u64>,
    next: Cell<u64>,
}

impl Default for Records {
    fn default() -> Records {
        let ring = std::array::from_fn(|_| Cell::new(Record { issue: 0, then: Then::Nothing }));
        Records { ring, first: Cell::default(), next: Cell::default() }
    }
}

impl Records {
    #[inline(always)]
    fn at(&self, number: u64) -> &Cell<Record> {
        &self.ring[number as usize % ROOM]
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        (self.next.get() - self.first.get()) as usize
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.next.get() == self.first.get()
    }

    /// The number that the next record gets.
    #[inline(always)]
    pub fn next(&self) -> u64 {
        self.next.get()
    }

    /// Adds the record of a request. The caller has checked for room.
    #[inline(always)]
    pub fn push(&self, record: Record) {
        debug_assert!(self.len() < ROOM);
        let next = self.next.get();
        self.at(next).set(record);
        self.next.set(next + 1);
    }

    /// The oldest.
    #[inline(always)]
    pub fn front(&self) -> Option<Record> {
        (!self.is_empty()).then(|| self.at(self.first.get()).get())
    }

    pub fn iter(&self) -> impl Iterator<Item = Record> {
        (self.first.get()..self.next.get()).map(|number| self.at(number).get())
    }

    /// Changes those that `change` wants otherwise.
    pub fn update(&self, mut change: impl FnMut(Record) -> Record) {
        (self.first.get()..self.next.get()).for_each(|number| self.at(number).set(change(self.at(number).get())));
    }

    /// Changes the newest.
    pub fn update_last(&self, change: impl FnOnce(Record) -> Record) {
        if let Some(last) = (!self.is_empty()).then(|| self.at(self.next.get() - 1)) {
            last.set(change(last.get()));
        }
    }

    /// Takes all.
    pub fn drain(&self) -> Vec<Record> {
        let all = self.iter().collect();
        self.first.set(self.next.get());
        all
    }

    /// Takes the next that leaves something to do, of those up to number `upto`; numbers wrap as 32 bits do on their way
    /// through the device.
    #[inline(always)]
    pub fn settle(&self, upto: u32) -> Option<Then> {
        let (mut first, next) = (self.first.get(), self.next.get());
        let mut found = None;
        while first != next && upto.wrapping_sub(first as u32) < 1 << 31 && found.is_none() {
            found = Some(self.at(first).get().then).filter(|then| !matches!(then, Then::Nothing | Then::Idle));
            first += 1;
        }
        self.first.set(first);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_in_order_and_those_without_a_buffer_do_not() {
        let records = Records::default();
        // Numbers pass what 32 bits hold.
        let start = u64::from(u32::MAX) - 100;
        records.first.set(start);
        records.next.set(start);
        let then = |number: u64| if number.is_multiple_of(3) { Then::Small(number as u32) } else { Then::Nothing };
        let mut came = Vec::new();
        for round in 0..20 {
            for _ in 0..DEPTH / 2 {
                records.push(Record { issue: records.next(), then: then(records.next()) });
            }
            assert_eq!(records.front().map(|record| record.issue), Some(records.first.get()));
            assert!(records.iter().all(|record| record.then == then(record.issue)));
            // All but some, and then these.
            let upto = records.next() - 1 - [0, 2, DEPTH as u64 / 2 - 2][round % 3];
            came.extend(std::iter::from_fn(|| records.settle(upto as u32)));
            assert_eq!(records.first.get(), upto + 1);
            came.extend(std::iter::from_fn(|| records.settle(records.next() as u32 - 1)));
            assert!(records.is_empty());
            // An old report.
            assert_eq!(records.settle(upto as u32), None);
        }
        let all = start..records.next();
        assert!(came.into_iter().eq(all.map(then).filter(|then| *then != Then::Nothing)));
    }

    #[test]
    fn all_are_taken_and_changed() {
        let records = Records::default();
        (0..5).for_each(|issue| records.push(Record { issue, then: Then::Idle }));
        records.update_last(|record| Record { issue: 77, ..record });
        records.update(|record| if record.issue == 2 { Record { then: Then::Large(1), ..record } } else { record });
        assert_eq!(records.len(), 5);
        let all = records.drain();
        assert_eq!(all.iter().map(|record| record.issue).collect::<Vec<_>>(), [0, 1, 2, 3, 77]);
        assert_eq!((all[2].then, all[3].then, records.len()), (Then::Large(1), Then::Idle, 0));
        assert_eq!((records.next(), records.front()), (5, None));
    }
}
