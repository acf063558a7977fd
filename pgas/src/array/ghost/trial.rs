//! Chooses the faster of two ways for borders that a neighbour could copy. The processor decides which that is: to copy them from where
//! they are moves them once and needs an answer; inboxes move them twice and need none.

use std::time::{Duration, Instant};

/// How a border gets to a neighbour whose memory is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The neighbour copies it from where it is.
    Direct,
    /// By way of the neighbour's inbox.
    Inbox,
}

/// Exchanges that try each way, one after the other: what one leaves in caches must not count for the other.
const TRIED: u64 = 16;
/// Both ways are tried again after so many exchanges.
const AGAIN: u64 = 4096;

/// Which way was faster lately. Ranks choose for themselves, but try at the same numbers: how long a rank takes depends on its
/// neighbours' ways too.
#[derive(Debug)]
pub(super) struct Trial {
    /// The way that is being tried, and since when.
    tried: Option<(Way, Instant)>,
    /// Times from one exchange to the next for each way, in the order of [`Way`]: not of the call alone, since the program's next write to
    /// its border takes longer where a neighbour has just read it.
    took: [Vec<Duration>; 2],
    faster: Way,
}

impl Trial {
    pub(super) fn new() -> Trial {
        Trial { tried: None, took: [const { Vec::new() }; 2], faster: Way::Direct }
    }

    /// The way of exchange `number`, from 1, which begins `now`.
    #[inline]
    pub(super) fn choose(&mut self, number: u64, now: impl FnOnce() -> Instant) -> Way {
        let round = (number - 1) % AGAIN;
        if round < 2 * TRIED || self.tried.is_some() {
            return self.choose_at(round, now());
        }
        self.faster
    }

    #[cold]
    fn choose_at(&mut self, round: u64, now: Instant) -> Way {
        if let Some((way, start)) = self.tried.take() {
            self.took[way as usize].push(now - start);
        }
        if round < 2 * TRIED {
            let way = if round < TRIED { Way::Direct } else { Way::Inbox };
            self.tried = Some((way, now));
            return way;
        }
        // Where the program made the others in two calls, one way was not tried.
        if self.took.iter().all(|took| !took.is_empty()) {
            // The median: some wait for a neighbour that comes late.
            let [direct, inbox] = self.took.each_mut().map(|took| {
                took.sort_unstable();
                took[took.len() / 2]
            });
            self.faster = if direct <= inbox { Way::Direct } else { Way::Inbox };
        }
        self.took.iter_mut().for_each(Vec::clear);
        self.faster
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_tried_at_the_same_numbers_and_the_faster_is_taken() {
        let (mut trial, mut now, mut number) = (Trial::new(), Instant::now(), 0);
        let mut taken = [[0; 2]; 3];
        for (times, taken) in [[50, 30], [30, 50], [50, 30]].iter().zip(&mut taken) {
            for _ in 0..AGAIN {
                number += 1;
                let way = trial.choose(number, || now);
                taken[way as usize] += 1;
                // One in three of the faster way waits for a neighbour.
                let late = if times[way as usize] == 30 && number % 3 == 0 { 1000 } else { 0 };
                now += Duration::from_nanos(times[way as usize] + late);
            }
        }
        assert_eq!(taken, [[TRIED, AGAIN - TRIED], [AGAIN - TRIED, TRIED], [TRIED, AGAIN - TRIED]]);
    }

    #[test]
    fn a_way_that_was_not_tried_changes_nothing() {
        for way in [Way::Direct, Way::Inbox] {
            let (mut trial, now) = (Trial { faster: way, ..Trial::new() }, Instant::now());
            // The first are made in two calls.
            (TRIED..2 * TRIED + 1).for_each(|round| _ = trial.choose(round + 1, || now));
            assert_eq!(trial.faster, way);
        }
    }
}
