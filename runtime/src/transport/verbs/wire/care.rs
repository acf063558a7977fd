//! When to probe idle connections: the device reports a failed peer for requests only.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Polls without result before the clock is read. Chosen: the clock is wanted once a second only.
const IDLE_POLLS: u32 = 1000;
/// How often an idle connection is probed. Chosen: a failed peer shows within seconds.
const INTERVAL: Duration = Duration::from_secs(1);

/// The clock of probes.
#[derive(Debug)]
pub struct Care {
    /// Polls in a row that found nothing.
    idle: Cell<u32>,
    last: Cell<Instant>,
}

impl Care {
    pub fn new(now: Instant) -> Care {
        Care { idle: Cell::new(0), last: Cell::new(now) }
    }

    /// Counts a poll that found so many messages. Returns whether it is time to read the clock.
    #[inline(always)]
    pub fn polled(&self, found: usize) -> bool {
        let idle = if found > 0 { 0 } else { self.idle.get() + 1 };
        let is_time = idle >= IDLE_POLLS;
        self.idle.set(if is_time { 0 } else { idle });
        is_time
    }

    /// Whether a probe is due; the next one is due an interval later.
    pub fn is_due(&self, now: Instant) -> bool {
        let is_due = now.duration_since(self.last.get()) >= INTERVAL;
        if is_due {
            self.last.set(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_come_after_idle_polls_and_an_interval_apart() {
        let start = Instant::now();
        let care = Care::new(start);
        assert!((1..IDLE_POLLS).all(|_| !care.polled(0)));
        assert!(!care.polled(1), "something came");
        assert!((1..IDLE_POLLS).all(|_| !care.polled(0)));
        assert!(care.polled(0) && !care.polled(0));
        let at = |share: u32| start + INTERVAL / 2 * share;
        assert_eq!([1, 2, 3, 4].map(|share| care.is_due(at(share))), [false, true, false, true]);
    }
}
