//! What a rank does now and has done, so that others can ask while it computes.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// What a rank does. The numbers travel.
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

/// What a rank does and has done. The rank itself writes it.
#[derive(Debug)]
pub struct Live {
    doing: Cell<Doing>,
    steps: Cell<u64>,
    rings: Cell<u64>,
    waited: Cell<Duration>,
    begun: Instant,
}

impl Default for Live {
    fn default() -> Self {
        Live {
            doing: Cell::new(Doing::Computes),
            steps: Cell::new(0),
            rings: Cell::new(0),
            waited: Cell::new(Duration::ZERO),
            begun: Instant::now(),
        }
    }
}

impl Live {
    /// Runs `body`, in which the rank waits, or answers.
    pub fn during<R>(&self, doing: Doing, body: impl FnOnce() -> R) -> R {
        let (outer, begun) = (self.doing.replace(doing), Instant::now());
        let result = body();
        self.doing.set(outer);
        if doing != Doing::Answers {
            self.waited.set(self.waited.get() + begun.elapsed());
        }
        result
    }

    /// It has done so many time steps.
    pub fn set_steps(&self, steps: u64) {
        self.steps.set(steps);
    }

    /// It has rung so many bells more.
    pub fn count_rings(&self, rings: u64) {
        self.rings.set(self.rings.get() + rings);
    }

    /// What it does; its steps, its rings, nanoseconds in waits, and nanoseconds since it began.
    pub fn moment(&self) -> Moment {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let all = nanoseconds(self.begun.elapsed());
        (self.doing.get() as u8, self.steps.get(), self.rings.get(), nanoseconds(self.waited.get()), all)
    }
}

/// What the first number of a [`Moment`] means.
pub fn doing(number: u8) -> Option<Doing> {
    Doing::ALL.into_iter().find(|doing| *doing as u8 == number)
}
