//! Answers that other tasks owe this one, counted for each task. If a task leaves before it has given them, this task's waits end.

use std::cell::{Cell, OnceCell};

/// Tasks whose counts share an allocation. The allocation is made when the first of these tasks owes an answer.
const BLOCK: usize = 64;

/// The answers that one task owes.
#[derive(Default)]
struct Peer {
    /// Data of gets, results of atomics, and notices that the data of a vector message may be changed.
    requests: Cell<u32>,
    /// Increments of completion counters. Completion signals of `Lapi::message` are deferred events, which have a list of their own.
    counters: Cell<u32>,
}

/// The answers that all tasks owe.
pub(super) struct Owed {
    blocks: Box<[OnceCell<Box<[Peer; BLOCK]>>]>,
    /// Sums over all tasks.
    requests: Cell<u64>,
    counters: Cell<u64>,
}

/// Subtracts one from a count of a task and from the sum. Does nothing if the count is 0, because it was given up.
fn take(count: &Cell<u32>, sum: &Cell<u64>) {
    if let Some(left) = count.get().checked_sub(1) {
        count.set(left);
        sum.set(sum.get() - 1);
    }
}

impl Owed {
    pub(super) fn new(tasks: usize) -> Owed {
        let blocks = (0..tasks.div_ceil(BLOCK)).map(|_| OnceCell::new()).collect();
        Owed { blocks, requests: Cell::new(0), counters: Cell::new(0) }
    }

    #[inline]
    fn of(&self, task: usize) -> &Peer {
        let block = self.blocks[task / BLOCK].get_or_init(|| Box::new(std::array::from_fn(|_| Peer::default())));
        &block[task % BLOCK]
    }

    /// Counts a request of this task to `task`.
    pub(super) fn ask(&self, task: usize) {
        let count = &self.of(task).requests;
        count.set(count.get() + 1);
        self.requests.set(self.requests.get() + 1);
    }

    /// Ends a request to `task`: its answer has come, or cannot come.
    pub(super) fn answered(&self, task: usize) {
        take(&self.of(task).requests, &self.requests);
    }

    /// Whether all requests of this task have been answered.
    pub(super) fn is_answered(&self) -> bool {
        self.requests.get() == 0
    }

    /// Counts a message to `task` that names a completion counter.
    #[inline]
    pub(super) fn expect(&self, task: usize) {
        let count = &self.of(task).counters;
        count.set(count.get() + 1);
        self.counters.set(self.counters.get() + 1);
    }

    /// Ends such a message: `task` has reported that the completion counter moves, or never will.
    #[inline]
    pub(super) fn completed(&self, task: usize) {
        take(&self.of(task).counters, &self.counters);
    }

    /// Whether any task owes an answer.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.requests.get() | self.counters.get() != 0
    }

    /// The tasks that owe an answer.
    pub(super) fn tasks(&self) -> impl Iterator<Item = usize> {
        self.tasks_that(|peer| peer.requests.get() | peer.counters.get() != 0)
    }

    /// The tasks that have not answered a request of this task.
    pub(super) fn asked(&self) -> impl Iterator<Item = usize> {
        self.tasks_that(|peer| peer.requests.get() != 0)
    }

    fn tasks_that(&self, owes: fn(&Peer) -> bool) -> impl Iterator<Item = usize> {
        let made = self.blocks.iter().enumerate().filter_map(|(place, block)| Some((place, block.get()?)));
        made.flat_map(move |(place, block)| {
            let peers = block.iter().enumerate().filter(move |(_, peer)| owes(peer));
            peers.map(move |(number, _)| BLOCK * place + number)
        })
    }

    /// Drops the counts of `task`, which will not answer any more. Returns whether it owed an answer.
    #[cold]
    pub(super) fn give_up(&self, task: usize) -> bool {
        let Some(block) = self.blocks[task / BLOCK].get() else { return false };
        let Peer { requests, counters } = &block[task % BLOCK];
        let (requests, counters) = (requests.take(), counters.take());
        self.requests.set(self.requests.get() - u64::from(requests));
        self.counters.set(self.counters.get() - u64::from(counters));
        requests | counters != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_counted_by_task_and_given_up_once() {
        let owed = Owed::new(130);
        assert!(owed.is_answered() && !owed.any() && owed.tasks().next().is_none());
        owed.ask(129);
        owed.ask(129);
        owed.expect(129);
        owed.expect(3);
        assert_eq!(owed.tasks().collect::<Vec<_>>(), [3, 129]);
        assert_eq!(owed.asked().collect::<Vec<_>>(), [129]);
        owed.completed(3);
        assert_eq!(owed.tasks().collect::<Vec<_>>(), [129]);
        owed.answered(129);
        assert!(!owed.is_answered(), "one of two");
        assert!(owed.give_up(129) && !owed.give_up(129) && !owed.give_up(64));
        assert!(owed.is_answered() && !owed.any());
        // An answer that comes late.
        owed.answered(129);
        owed.completed(129);
        assert!(owed.is_answered() && !owed.any());
    }
}
