//! The waits in collective calls that ranks show, and those found to be ones that no rank can end.

use std::sync::atomic::Ordering;

use super::{JobMemory, show};

impl JobMemory {
    /// Notes that `rank` is in its wait number `wait`, for an event that no rank can cause any more.
    pub fn set_hopeless(&self, rank: usize, wait: u64) {
        self.record(rank).hopeless.store(wait, Ordering::Release);
        self.wake(rank);
    }

    /// The wait of `rank` of which that was said last; 0: none.
    pub fn hopeless(&self, rank: usize) -> u64 {
        self.record(rank).hopeless.load(Ordering::Acquire)
    }

    /// Says that `rank` is in its collective wait of this number; 0: in none.
    pub fn set_together(&self, rank: usize, wait: u64) {
        // Release pairs with the Acquire load in `together`: the text of `set_doing` was written before.
        self.record(rank).together.store(wait, Ordering::Release);
    }

    /// The number of the collective wait that `rank` is in; 0: none.
    pub fn together(&self, rank: usize) -> u64 {
        self.record(rank).together.load(Ordering::Acquire)
    }

    /// Says that no rank can end the collective waits that all ranks are in, of these numbers. Keeps what two of them wait in:
    /// rank 0, and the first that waits in something else, if there is one. By one rank at a time.
    pub fn set_deadlocked(&self, waits: &[u64]) {
        let words = |rank: usize| self.record(rank).doing.words.iter().map(|word| word.load(Ordering::Relaxed));
        let other = (1..self.ranks()).find(|rank| !words(*rank).eq(words(0))).unwrap_or(0);
        let header = self.header();
        header.deadlocked.store(other as u64, Ordering::Relaxed);
        for (text, rank) in header.deadlocked_in.iter().zip([0, other]) {
            text.iter().zip(words(rank)).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        }
        // All before the first wakes: what it does then would look to the others like the cause.
        // Release pairs with the Acquire load in `hopeless`.
        waits.iter().enumerate().for_each(|(rank, wait)| self.record(rank).hopeless.store(*wait, Ordering::Release));
        (0..self.ranks()).for_each(|rank| self.wake(rank));
    }

    /// What rank 0 waited in when all were found deadlocked last, and a rank that waited in something else, if there was one. For a
    /// rank whose wait was said to be [hopeless](JobMemory::hopeless).
    pub fn deadlocked(&self) -> (String, Option<(usize, String)>) {
        let header = self.header();
        let [ours, theirs] = header.deadlocked_in.each_ref().map(show);
        let other = header.deadlocked.load(Ordering::Relaxed) as usize;
        (ours, (other > 0).then_some((other, theirs)))
    }
}
