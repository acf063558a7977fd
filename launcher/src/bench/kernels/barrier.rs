//! The barrier of all ranks.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bellwether_runtime::{Result, Symmetric, Team, World};

use super::{LINE, spin_until, word};
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// Our barrier, beside the best of the bare ones.
///
/// # Errors
/// Of the runtime.
pub fn barrier(session: &Session, _: usize) -> Result<Vec<Measured>> {
    Ok(vec![session.in_places(|| barrier_here(session, || session.world.barrier()))?])
}

/// The same by a barrier of the team of all ranks.
///
/// # Errors
/// Of the runtime.
pub fn of_team(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let team = Team::world(&session.world)?;
    Ok(vec![session.in_places(|| barrier_here(session, || team.barrier()))?])
}

fn barrier_here(session: &Session, barrier: impl Fn() -> Result<()>) -> Result<Measured> {
    let world = &session.world;
    let operations = session.operations(2000, usize::MAX, 1);
    let ours = |n| (0..n).try_for_each(|_| barrier());
    if !session.mapped {
        return session.alternate(operations, ours, |_| Ok(()));
    }
    let (mut flags, mut counter, mut futex) = (Flags::new(world)?, Counter::new(world)?, Counter::new(world)?);
    let mut by_flags = |n| {
        (0..n).for_each(|_| flags.meet());
        Ok(())
    };
    let mut by_counter = |n| {
        (0..n).for_each(|_| counter.meet());
        Ok(())
    };
    let mut by_futex = |n| {
        (0..n).for_each(|_| futex.meet_asleep());
        Ok(())
    };
    let best = session.quickest(operations, [&mut by_flags, &mut by_counter, &mut by_futex])?;
    session.alternate(operations, ours, |n| match best {
        0 => by_flags(n),
        1 => by_counter(n),
        _ => by_futex(n),
    })
}

/// The dissemination barrier (Hensgen, Finkel, Manber 1988) of stores and loads: of two ranks one exchange.
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
    /// Of [`World::alloc`].
    pub fn new(world: &World) -> Result<Flags> {
        let words = world.alloc((rounds(world.size()) * LINE).max(1))?;
        Ok(Flags { words, rank: world.rank(), ranks: world.size(), epoch: 0 })
    }

    /// Returns when all ranks have called it as often.
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

    /// Counts; whether it is the last one, who has told the others.
    #[inline]
    fn count(&mut self) -> bool {
        self.epoch += 1;
        // AcqRel: the last one has seen what came before everyone's count.
        let last = word(&self.words, 0, 0).fetch_add(1, Ordering::AcqRel) + 1 == self.epoch * self.ranks;
        if last {
            // Pairs with the Acquire loads of who waits.
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

    /// As [`Counter::meet`]; who has to wait sleeps at once.
    fn meet_asleep(&mut self) {
        // The half of the word that changes first.
        let half = self.gate().as_ptr().cast::<u32>().wrapping_add(usize::from(cfg!(target_endian = "big")));
        if self.count() {
            // SAFETY: an aligned word in shared memory; wakes whoever waits there.
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
