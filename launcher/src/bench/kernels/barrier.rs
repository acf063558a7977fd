//! The barrier of all ranks, the world's and a team's.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bellwether::Team;
use bellwether_runtime::{Result, Symmetric, World};

use super::{LINE, spin_until, word};
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// Our barrier, beside the best of the bare ones.
///
/// # Errors
/// Those of the runtime.
pub fn barrier(session: &Session, _: usize) -> Result<Vec<Measured>> {
    Ok(vec![session.in_places(|| barrier_here(session))?])
}

fn barrier_here(session: &Session) -> Result<Measured> {
    let operations = operations(session);
    let ours = |n| (0..n).try_for_each(|_| session.world.barrier());
    let mut bare = Bare::new(session, operations)?;
    session.alternate(operations, ours, |n| bare.meet(n))
}

/// The barrier of the team of all ranks, beside the world's and the best of the bare ones.
///
/// # Errors
/// Those of the runtime.
pub fn of_team(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let team = Team::world(&session.world)?;
    let operations = operations(session);
    let ours = |n| (0..n).try_for_each(|_| team.barrier());
    let worlds = |n| (0..n).try_for_each(|_| session.world.barrier());
    let measured = session.in_places(|| {
        let mut bare = Bare::new(session, operations)?;
        session.alternate_beside(operations, ours, |n| bare.meet(n), worlds)
    })?;
    Ok(vec![measured])
}

/// Barriers of a batch.
fn operations(session: &Session) -> usize {
    session.operations(2000, usize::MAX, 1)
}

/// The bare barriers, and which of them is the quickest on this machine.
pub struct Bare {
    flags: Flags,
    counter: Counter,
    futex: Counter,
    best: usize,
}

impl Bare {
    /// Collective; tries each with batches of `operations` where memory is mapped. Elsewhere none may be used.
    ///
    /// # Errors
    /// Those of the runtime.
    pub fn new(session: &Session, operations: usize) -> Result<Bare> {
        let world = &session.world;
        let (flags, counter, futex) = (Flags::new(world)?, Counter::new(world)?, Counter::new(world)?);
        let mut bare = Bare { flags, counter, futex, best: 0 };
        if session.mapped {
            let Bare { flags, counter, futex, .. } = &mut bare;
            let mut by_flags = |n| repeated(n, || flags.meet());
            let mut by_counter = |n| repeated(n, || counter.meet());
            let mut by_futex = |n| repeated(n, || futex.meet_asleep());
            bare.best = session.quickest(operations, [&mut by_flags, &mut by_counter, &mut by_futex])?;
        }
        Ok(bare)
    }

    /// Does `count` barriers in the quickest way.
    ///
    /// # Errors
    /// None.
    pub fn meet(&mut self, count: usize) -> Result<()> {
        match self.best {
            0 => repeated(count, || self.flags.meet()),
            1 => repeated(count, || self.counter.meet()),
            _ => repeated(count, || self.futex.meet_asleep()),
        }
    }
}

fn repeated(count: usize, mut meet: impl FnMut()) -> Result<()> {
    (0..count).for_each(|_| meet());
    Ok(())
}

/// The dissemination barrier (Hensgen, Finkel, Manber 1988) of stores and loads. With two ranks it is one exchange.
pub struct Flags {
    words: Symmetric<u64>,
    rank: usize,
    ranks: usize,
    epoch: u64,
}

impl Flags {
    /// Collective.
    ///
    /// # Errors
    /// Those of [`World::alloc`].
    pub fn new(world: &World) -> Result<Flags> {
        let words = world.alloc((rounds(world.size()) * LINE).max(1))?;
        Ok(Flags { words, rank: world.rank(), ranks: world.size(), epoch: 0 })
    }

    /// Returns when all ranks have called it equally often.
    #[inline]
    pub fn meet(&mut self) {
        self.epoch += 1;
        for round in 0..rounds(self.ranks) {
            let partner = (self.rank + (1 << round)) % self.ranks;
            // Pairs with the Acquire load at the partner.
            word(&self.words, partner, round * LINE).store(self.epoch, Ordering::Release);
            let own = word(&self.words, self.rank, round * LINE);
            // The partner may be one barrier ahead.
            spin_until(|| own.load(Ordering::Acquire) >= self.epoch);
        }
    }
}

fn rounds(ranks: usize) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}

/// A barrier of one counter at rank 0, and a word there that the last one changes.
struct Counter {
    words: Symmetric<u64>,
    ranks: u64,
    epoch: u64,
}

impl Counter {
    fn new(world: &World) -> Result<Counter> {
        Ok(Counter { words: world.alloc(2 * LINE)?, ranks: world.size() as u64, epoch: 0 })
    }

    /// Counts this rank. Returns whether it is the last one; the last one has opened the gate for the others.
    #[inline]
    fn count(&mut self) -> bool {
        self.epoch += 1;
        // AcqRel: the last one has seen what came before everyone's count.
        let last = word(&self.words, 0, 0).fetch_add(1, Ordering::AcqRel) + 1 == self.epoch * self.ranks;
        if last {
            // Pairs with the Acquire loads of the ranks that wait.
            self.gate().store(self.epoch, Ordering::Release);
        }
        last
    }

    fn gate(&self) -> &AtomicU64 {
        word(&self.words, 0, LINE)
    }

    #[inline]
    fn meet(&mut self) {
        if !self.count() {
            spin_until(|| self.gate().load(Ordering::Acquire) >= self.epoch);
        }
    }

    /// As [`Counter::meet`], but a rank that has to wait sleeps at once.
    fn meet_asleep(&mut self) {
        // The half of the word that changes first.
        let half = self.gate().as_ptr().cast::<u32>().wrapping_add(usize::from(cfg!(target_endian = "big")));
        if self.count() {
            // SAFETY: an aligned word in shared memory; wakes the ranks that wait there.
            unsafe { libc::syscall(libc::SYS_futex, half, libc::FUTEX_WAKE, i32::MAX) };
            return;
        }
        while self.gate().load(Ordering::Acquire) < self.epoch {
            // SAFETY: half of a live word, which is touched as an atomic only.
            let seen = unsafe { AtomicU32::from_ptr(half) }.load(Ordering::Acquire);
            if self.gate().load(Ordering::Acquire) < self.epoch {
                // SAFETY: as above, without a time limit; returns at once if the word has changed since it was seen.
                unsafe {
                    libc::syscall(libc::SYS_futex, half, libc::FUTEX_WAIT, seen, std::ptr::null::<libc::timespec>())
                };
            }
        }
    }
}
