//! A rank's current activity and its totals so far, which other ranks can ask for while it computes.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A rank's activity. Its number travels in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Doing {
    /// It computes.
    Computes,
    /// It waits for rows of its neighbours.
    AwaitsRows,
    /// It waits for the largest change of all ranks.
    AwaitsChange,
    /// It waits for all to have sent their part of the plate to rank 0.
    AwaitsGather,
    /// It answers what it is asked between two exchanges.
    Answers,
}

impl Doing {
    const ALL: [Doing; 5] =
        [Doing::Computes, Doing::AwaitsRows, Doing::AwaitsChange, Doing::AwaitsGather, Doing::Answers];

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Doing::Computes => "computes",
            Doing::AwaitsRows => "waits for rows of its neighbours",
            Doing::AwaitsChange => "waits for the largest change of all ranks",
            Doing::AwaitsGather => "waits for the plate to be gathered",
            Doing::Answers => "answers requests",
        }
    }
}

/// One moment of a rank, as it travels.
pub type Moment = (u8, u64, u64, u64, u64);

/// Time spent in each [`Doing`].
type Spent = [Duration; Doing::ALL.len()];

/// A rank's current activity and its totals so far. The rank itself writes them.
#[derive(Debug)]
pub struct Live {
    doing: Cell<Doing>,
    steps: Cell<u64>,
    rings: Cell<u64>,
    begun: Instant,
    /// Up to `since`, when `doing` began.
    spent: Cell<Spent>,
    since: Cell<Instant>,
    /// `spent` at the last call.
    looked: Cell<Spent>,
}

impl Default for Live {
    fn default() -> Self {
        let begun = Instant::now();
        Live {
            doing: Cell::new(Doing::Computes),
            steps: Cell::default(),
            rings: Cell::default(),
            begun,
            spent: Cell::default(),
            since: Cell::new(begun),
            looked: Cell::default(),
        }
    }
}

impl Live {
    /// Runs `body`, in which the rank waits, or answers.
    pub fn during<R>(&self, doing: Doing, body: impl FnOnce() -> R) -> R {
        let outer = self.switch(doing);
        let result = body();
        self.switch(outer);
        result
    }

    /// Changes the activity to `doing`. Returns the former one.
    fn switch(&self, doing: Doing) -> Doing {
        let (before, now) = (self.doing.replace(doing), Instant::now());
        let mut spent = self.spent.get();
        spent[before as usize] += now - self.since.replace(now);
        self.spent.set(spent);
        before
    }

    /// Sets the number of time steps done.
    pub fn set_steps(&self, steps: u64) {
        self.steps.set(steps);
    }

    /// Adds to the number of bells rung.
    pub fn count_rings(&self, rings: u64) {
        self.rings.set(self.rings.get() + rings);
    }

    /// The state of this rank: the activity that took most time since the last call, apart from answers; steps, rings, nanoseconds in waits,
    /// and nanoseconds since the start. Ranks are asked while they wait or answer, so the activity at that moment says nothing.
    pub fn look(&self) -> Moment {
        self.switch(self.doing.get());
        let spent = self.spent.get();
        let doing = most(&spent, &self.looked.replace(spent));
        let waits = [Doing::AwaitsRows, Doing::AwaitsChange, Doing::AwaitsGather];
        let waited: Duration = waits.iter().map(|wait| spent[*wait as usize]).sum();
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let all = nanoseconds(self.begun.elapsed());
        (doing as u8, self.steps.get(), self.rings.get(), nanoseconds(waited), all)
    }
}

/// The activity that took most of the time between `before` and `now`, apart from answers. If several took the same time, the first.
fn most(now: &Spent, before: &Spent) -> Doing {
    let time = |doing: Doing| now[doing as usize] - before[doing as usize];
    let all = Doing::ALL.into_iter().filter(|doing| *doing != Doing::Answers);
    all.reduce(|most, doing| if time(doing) > time(most) { doing } else { most }).unwrap_or(Doing::Computes)
}

/// The activity for the first number of a [`Moment`].
pub fn doing(number: u8) -> Option<Doing> {
    Doing::ALL.into_iter().find(|doing| *doing as u8 == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_since_the_last_look_is_told_and_never_answers() {
        let ms = |times: [u64; 5]| times.map(Duration::from_millis);
        let before = ms([100, 5, 0, 0, 0]);
        assert_eq!(most(&before, &before), Doing::Computes);
        assert_eq!(most(&ms([103, 9, 0, 0, 0]), &before), Doing::AwaitsRows);
        assert_eq!(most(&ms([103, 9, 0, 6, 50]), &before), Doing::AwaitsGather);
        assert_eq!(most(&ms([101, 5, 0, 0, 50]), &before), Doing::Computes);
    }
}
