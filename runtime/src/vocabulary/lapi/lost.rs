//! Lost tasks: everything that this task waits for from them ends.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use super::codes;
use super::domain::Domain;
use super::event::NOBODY;
use super::failure::Failure;
use crate::error::Loss;

/// Least time between two checks for dead peers by the thread of interrupt mode, where no supervisor checks. Chosen: a wait
/// checks at most this often between two sleeps.
pub(super) const CHECK_EVERY: Duration = Duration::from_millis(50);

/// A task's knowledge about lost tasks.
#[derive(Default)]
pub(super) struct Lost {
    /// Tasks that were found lost after the last poll that delivered nothing. Their earlier messages may still have been in a queue.
    seen: RefCell<Vec<usize>>,
    /// When this task last checked for dead peers.
    looked: Cell<Option<Instant>>,
    /// The first task that was found to have left while it owed this task an answer. This task treats it as failed.
    owing: Cell<Option<usize>>,
    /// Whether the wait in progress has found that a task that it waits for is gone.
    pub(super) is_awaited: Cell<bool>,
    /// Whether all other tasks had ended after the last poll that delivered nothing.
    is_alone: Cell<bool>,
    /// The first task that left. Set once two such polls have found that all others have ended.
    alone_since: Cell<Option<usize>>,
}

impl Domain {
    /// Whether this task waits for anything from another task.
    pub(super) fn waits_for_others(&self) -> bool {
        self.owed.any()
            || !self.deferred.borrow().is_empty()
            || !self.transfers.outgoing.borrow().is_empty()
            || !self.transfers.groups.borrow().is_empty()
    }

    /// Whether [`Domain::end_lost`] has to be called again: it ends things in the second call.
    pub(super) fn is_about_to_lose(&self) -> bool {
        let engine = self.world.engine();
        let is_alone = || engine.job.count_ended() + 1 == self.world.size();
        engine.failures.any_gone()
            && (self.waits_for_others() && !self.lost_tasks().is_empty()
                || self.lost.alone_since.get().is_none() && is_alone())
    }

    /// As [`Domain::end_lost`], for the thread of interrupt mode, where perhaps no other thread checks for dead peers.
    pub(super) fn look_for_lost(&self) {
        let is_due = || self.lost.looked.get().is_none_or(|looked| looked.elapsed() >= CHECK_EVERY);
        if self.waits_for_others() && is_due() {
            self.lost.looked.set(Some(Instant::now()));
            self.world.engine().look_for_dead_peers();
        }
        self.end_lost();
    }

    /// Ends everything that waits for tasks that two consecutive calls have found lost. Call it when a poll has delivered nothing: between
    /// two calls there is a poll that delivers what such a task had sent.
    pub(super) fn end_lost(&self) {
        let engine = self.world.engine();
        if !engine.failures.any_gone() {
            return;
        }
        let is_alone = engine.job.count_ended() + 1 == self.world.size();
        if self.lost.is_alone.replace(is_alone) && self.lost.alone_since.get().is_none() {
            self.lost.alone_since.set(engine.job.first_to_leave(|_| true));
        }
        let now = if self.waits_for_others() { self.lost_tasks() } else { Vec::new() };
        self.end_for(&self.lost.seen.replace(now));
    }

    /// Whether something here waits for a lost task and has not ended yet.
    pub(super) fn awaits_lost(&self) -> bool {
        self.world.engine().failures.any_gone()
            && (self.lost.is_awaited.get() || self.waits_for_others() && !self.lost_tasks().is_empty())
    }

    /// The lost tasks for which something waits.
    #[cold]
    fn lost_tasks(&self) -> Vec<usize> {
        let mut tasks: Vec<usize> =
            self.deferred.borrow().values().map(|(by, _)| *by).filter(|by| *by != NOBODY).collect();
        tasks.extend(self.transfers.outgoing.borrow().values().map(|(to, _)| *to));
        tasks.extend(self.transfers.groups.borrow().keys().map(|(from, _)| *from));
        tasks.extend(self.owed.tasks());
        tasks.sort_unstable();
        tasks.dedup();
        tasks.retain(|task| self.world.engine().failures.is_gone(*task));
        tasks
    }

    /// Notes that `task` will never move a counter, ring a bell or answer a request that depends on it. If it died, each wait ends by
    /// itself. If it left, this task treats it as failed: this wait and each later one ends, also for other counters, since the library
    /// does not know which counters depend on it.
    #[cold]
    pub(super) fn note_owing(&self, task: usize) {
        let engine = self.world.engine();
        // Nothing is expected of a task that is purged.
        let is_first = self.lost.owing.get().is_none_or(|before| self.purged[before].get());
        if engine.job.loss(task) == Some(Loss::Left) && is_first && !self.purged[task].get() {
            self.lost.owing.set(Some(task));
            self.fail(Failure::of_error(&engine.gone(task, "a LAPI message")));
        }
    }

    /// # Errors
    /// [`codes::PEER_LOST`] if a task has left while it owed this task an answer.
    pub(super) fn check_not_left(&self, doing: &'static str) -> Result<(), i32> {
        let owing = self.lost.owing.get().filter(|task| !self.purged[*task].get());
        owing.map_or(Ok(()), |task| Err(codes::of_error(&self.world.engine().gone(task, doing))))
    }

    /// As [`Domain::check_not_left`], for a wait that any task may end, also another thread of this one.
    ///
    /// # Errors
    /// [`codes::PEER_LOST`], also if all other tasks have left and this task has nothing in flight.
    pub(super) fn check_not_alone(&self, doing: &'static str) -> Result<(), i32> {
        self.check_not_left(doing)?;
        match self.lost.alone_since.get() {
            Some(task) if self.is_idle() => Err(codes::of_error(&self.world.engine().gone(task, doing))),
            _ => Ok(()),
        }
    }

    /// Ends everything that waits for these tasks, one item after the other: if a function panics, the next call ends the rest.
    #[cold]
    fn end_for(&self, lost: &[usize]) {
        if lost.is_empty() {
            return;
        }
        for task in lost.iter().filter(|task| self.owed.give_up(**task)) {
            self.note_owing(*task);
        }
        let is_lost = |task: usize| lost.contains(&task);
        // Functions of events can neither send nor wait.
        let _running = self.world.engine().interface.begin_handler();
        loop {
            let number =
                self.transfers.outgoing.borrow().iter().find(|(_, (to, _))| is_lost(*to)).map(|(number, _)| *number);
            let Some(number) = number else { break };
            self.fetched(number, Err(codes::PEER_LOST));
        }
        while self.end_lost_group(is_lost) {}
        while self.fail_lost(is_lost) {}
    }
}
