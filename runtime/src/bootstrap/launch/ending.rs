//! The way from the first failure to the end of the last rank. Pure: times in, steps out.

use std::time::{Duration, Instant};

/// How long ranks have to heed SIGTERM.
const HEED_TERM: Duration = Duration::from_millis(300);

/// How far the job is on its way to an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing has failed.
    Running,
    /// Ranks may end by themselves until then.
    Grace(Instant),
    /// SIGTERM has been sent; SIGKILL follows then.
    Terminated(Instant),
    /// SIGKILL has been sent.
    Killed,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Terminate,
    Kill,
}

/// The clock of a job's end.
#[derive(Debug)]
pub(super) struct Ending {
    phase: Phase,
}

impl Ending {
    pub(super) fn new() -> Ending {
        Ending { phase: Phase::Running }
    }

    /// Whether the end has begun.
    pub(super) fn begun(&self) -> bool {
        self.phase != Phase::Running
    }

    /// Whether ranks have been told to end, so that their ends say nothing about the cause.
    pub(super) fn told(&self) -> bool {
        matches!(self.phase, Phase::Terminated(_) | Phase::Killed)
    }

    /// Begins the end, unless it has begun: `grace` from now, SIGTERM is due.
    pub(super) fn begin(&mut self, now: Instant, grace: Duration) {
        if self.phase == Phase::Running {
            // A grace too long for the clock is as good as a year.
            let year = Duration::from_secs(365 * 24 * 3600);
            self.phase = Phase::Grace(now + grace.min(year));
        }
    }

    /// Ends the grace: SIGTERM is due at once.
    pub(super) fn shorten(&mut self, now: Instant) {
        if let Phase::Running | Phase::Grace(_) = self.phase {
            self.phase = Phase::Grace(now);
        }
    }

    /// Skips what is left of the way: SIGKILL is due at once.
    pub(super) fn hurry(&mut self, now: Instant) {
        if self.phase != Phase::Killed {
            self.phase = Phase::Terminated(now);
        }
    }

    /// When `due` will next have something to say.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Grace(until) | Phase::Terminated(until) => Some(until),
            Phase::Running | Phase::Killed => None,
        }
    }

    /// What is to be done at this time; each step is named once.
    pub(super) fn due(&mut self, now: Instant) -> Step {
        match self.phase {
            Phase::Grace(until) if now >= until => {
                self.phase = Phase::Terminated(now + HEED_TERM);
                Step::Terminate
            }
            Phase::Terminated(until) if now >= until => {
                self.phase = Phase::Killed;
                Step::Kill
            }
            _ => Step::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_then_term_then_kill_within_a_second() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut ending = Ending::new();
        assert_eq!(ending.due(at(0)), Step::Nothing);
        ending.begin(at(0), Duration::from_millis(500));
        ending.begin(at(400), Duration::from_millis(500));
        assert_eq!(ending.due(at(499)), Step::Nothing);
        assert!(!ending.told());
        assert_eq!(ending.due(at(500)), Step::Terminate);
        assert!(ending.told());
        assert_eq!(ending.due(at(799)), Step::Nothing);
        assert_eq!(ending.due(at(800)), Step::Kill);
        assert_eq!(ending.due(at(9000)), Step::Nothing);
        assert_eq!(ending.deadline(), None);
    }

    #[test]
    fn in_a_hurry_it_kills_at_once_and_once() {
        let now = Instant::now();
        let mut ending = Ending::new();
        ending.begin(now, Duration::MAX);
        ending.hurry(now);
        assert_eq!(ending.due(now), Step::Kill);
        ending.hurry(now);
        assert_eq!(ending.due(now), Step::Nothing);
    }
}
