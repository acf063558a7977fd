//! The waits in collective calls that ranks show, and those found to be ones that no rank can end.

use std::sync::atomic::Ordering;

use super::{DOING_LEN, JobMemory, show};

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

    /// Says that `rank` is in its collective wait of this number, and had sent and delivered so many messages before; 0: in none.
    pub fn set_together(&self, rank: usize, wait: u64, traffic: [u64; 2]) {
        let record = self.record(rank);
        record.traffic.iter().zip(traffic).for_each(|(to, count)| to.store(count, Ordering::Relaxed));
        // Release pairs with the Acquire load in `together`: the text of `set_doing` was written before, too.
        record.together.store(wait, Ordering::Release);
    }

    /// The messages that `rank` had sent, and delivered, before the collective wait that it is in.
    pub fn traffic_together(&self, rank: usize) -> [u64; 2] {
        self.record(rank).traffic.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// The number of the collective wait that `rank` is in; 0: none.
    pub fn together(&self, rank: usize) -> u64 {
        self.record(rank).together.load(Ordering::Acquire)
    }

    /// Says that no rank can end the collective waits that all ranks are in, of these numbers. Keeps what two of them wait in:
    /// rank 0, and the first that waits in something else, if there is one. By one rank at a time.
    pub fn set_deadlocked(&self, waits: &[u64]) {
        let doing = |rank| self.doing_words(rank);
        let other = (1..self.ranks()).find(|rank| doing(*rank) != doing(0)).unwrap_or(0);
        self.end_together(waits.iter().copied().enumerate(), other, [0, other].map(doing));
    }

    /// The same of a job on several hosts, by the agent of this one. `other` is the rank that waits in something else than rank 0,
    /// which is 0 if none does; with what both wait in, as [`JobMemory::doing_words`].
    pub fn set_deadlocked_hosts(&self, waits: &[(usize, u64)], other: usize, doing: [[u64; DOING_LEN / 8]; 2]) {
        let here = waits.iter().copied().filter(|(rank, _)| *rank < self.ranks() && self.is_here(*rank));
        self.end_together(here, other, doing);
    }

    fn end_together(
        &self,
        waits: impl Iterator<Item = (usize, u64)> + Clone,
        other: usize,
        doing: [[u64; DOING_LEN / 8]; 2],
    ) {
        let header = self.header();
        header.deadlocked.store(other as u64, Ordering::Relaxed);
        for (to, word) in header.deadlocked_in.iter().flatten().zip(doing.iter().flatten()) {
            to.store(*word, Ordering::Relaxed);
        }
        // All before the first wakes: what it does then would look to the others like the cause.
        // Release pairs with the Acquire load in `deadlocked_wait`.
        waits.clone().for_each(|(rank, wait)| self.record(rank).deadlocked.store(wait, Ordering::Release));
        waits.for_each(|(rank, _)| self.wake(rank));
    }

    /// The collective wait of `rank` that was found last to be one that no rank can end; 0: none.
    pub fn deadlocked_wait(&self, rank: usize) -> u64 {
        self.record(rank).deadlocked.load(Ordering::Acquire)
    }

    /// What `rank` says that it waits in, as words of text.
    pub fn doing_words(&self, rank: usize) -> [u64; DOING_LEN / 8] {
        self.record(rank).doing.words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// What rank 0 waited in when all were found deadlocked last, and a rank that waited in something else, if there was one. For a
    /// rank whose wait was [found so](JobMemory::deadlocked_wait).
    pub fn deadlocked(&self) -> (String, Option<(usize, String)>) {
        let header = self.header();
        let [ours, theirs] = header.deadlocked_in.each_ref().map(show);
        let other = header.deadlocked.load(Ordering::Relaxed) as usize;
        (ours, (other > 0).then_some((other, theirs)))
    }
}
