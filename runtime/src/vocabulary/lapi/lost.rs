//! Tasks that are lost: what this task waits for from them ends.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use super::codes;
use super::domain::Domain;
use super::event::NOBODY;

/// How often the thread of interrupt mode looks for dead peers where no supervisor does. Chosen: as waits do between two sleeps, at most.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// A task's knowledge about lost tasks.
#[derive(Default)]
pub(super) struct Lost {
    /// Tasks found lost by the last poll without result. Messages that they had sent before may still have been in a queue.
    seen: RefCell<Vec<usize>>,
    /// When this task looked for dead peers.
    looked: Cell<Option<Instant>>,
}

impl Domain {
    /// Whether something that this task keeps waits for another task.
    fn owes(&self) -> bool {
        !self.deferred.borrow().is_empty() || !self.outgoing.borrow().is_empty() || !self.groups.borrow().is_empty()
    }

    /// As [`Domain::end_lost`], for the thread of interrupt mode, where perhaps no other thread checks for dead peers.
    pub(super) fn look_for_lost(&self) {
        let is_due = || self.lost.looked.get().is_none_or(|looked| looked.elapsed() >= CHECK_EVERY);
        if self.owes() {
            if is_due() {
                self.lost.looked.set(Some(Instant::now()));
                self.world.engine().look_for_dead_peers();
            }
            self.end_lost();
        }
    }

    /// Ends what waits for tasks that two consecutive calls have found lost. Call it when a poll has found nothing: between the two calls
    /// there was a poll that would have delivered what such a task had sent.
    pub(super) fn end_lost(&self) {
        if self.owes() && self.world.engine().failures.any_gone() {
            let before = std::mem::replace(&mut *self.lost.seen.borrow_mut(), self.lost_tasks());
            self.end_for(&before);
        }
    }

    /// The lost tasks for which something waits.
    #[cold]
    fn lost_tasks(&self) -> Vec<usize> {
        let mut tasks: Vec<usize> =
            self.deferred.borrow().values().map(|(by, _)| *by).filter(|by| *by != NOBODY).collect();
        tasks.extend(self.outgoing.borrow().values().map(|(to, _)| *to));
        tasks.extend(self.groups.borrow().keys().map(|(from, _)| *from));
        tasks.sort_unstable();
        tasks.dedup();
        tasks.retain(|task| self.world.engine().failures.is_gone(*task));
        tasks
    }

    /// Ends what waits for these tasks, one after the other: a function that panics leaves the rest to the next call.
    #[cold]
    fn end_for(&self, lost: &[usize]) {
        if lost.is_empty() {
            return;
        }
        let is_lost = |task: usize| lost.contains(&task);
        // Functions of events can neither send nor wait.
        let _running = self.world.engine().interface.begin_handler();
        loop {
            let number = self.outgoing.borrow().iter().find(|(_, (to, _))| is_lost(*to)).map(|(number, _)| *number);
            let Some(number) = number else { break };
            self.fetched(number, Err(codes::PEER_LOST));
        }
        while self.end_lost_group(is_lost) {}
        while self.fail_lost(is_lost) {}
    }
}
