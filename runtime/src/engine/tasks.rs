//! Background work of a rank, advanced while the rank polls or waits: tasks, and operations with events.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Weak;

use super::operation::{Due, Event, Filled, Step, Tracked};
use super::track::Tracking;

/// A task that advances while its rank polls or waits for anything.
pub trait Background {
    /// Advances as far as possible without waiting. Returns whether there is more to do. Runs within a poll, so it neither polls nor waits itself.
    fn advance(&self) -> bool;
    /// Whether other ranks wait for this task: then it advances also in a wait inside a future. The task polls no future itself.
    fn is_owed(&self) -> bool {
        false
    }
    /// Whether it does nothing that other ranks see but as steps that `Waiting::note_step` counts.
    fn notes_steps(&self) -> bool {
        false
    }
}

/// The tasks of a rank, and the operations with events of its own stream.
#[derive(Default)]
pub(crate) struct Tasks {
    list: RefCell<Vec<Weak<dyn Background>>>,
    tracking: RefCell<Tracking>,
    /// Whether there may be one of either: every poll reads this.
    any: Cell<bool>,
    /// A wait of this engine is polling a future now, and makes progress meanwhile.
    driving: Cell<bool>,
}

/// As long as this lives, a wait drives futures. The drop restores the state before, also if a future panics.
pub(super) struct Driving<'a> {
    flag: &'a Cell<bool>,
    outer: bool,
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        self.flag.set(self.outer);
    }
}

impl Tasks {
    /// Whether there may be background work for a poll.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        self.any.get()
    }

    /// Makes the next poll look for background work.
    pub(super) fn mark(&self) {
        self.any.set(true);
    }

    /// Advances `task` in every poll, until it has nothing more to do or is dropped.
    pub(crate) fn add(&self, task: Weak<dyn Background>) {
        self.list.borrow_mut().push(task);
        self.any.set(true);
    }

    /// Whether all tasks [note their steps](Background::notes_steps).
    pub(super) fn all_note_steps(&self) -> bool {
        self.list.borrow().iter().all(|task| task.upgrade().is_none_or(|task| task.notes_steps()))
    }

    /// Takes the tasks out, so that tasks that are being advanced can add others.
    pub(super) fn take(&self) -> Vec<Weak<dyn Background>> {
        self.list.take()
    }

    /// Puts back the tasks that [`Tasks::take`] gave, in front of those added since. `more`: polls also have other work.
    pub(super) fn put_back(&self, mut list: Vec<Weak<dyn Background>>, more: impl FnOnce() -> bool) {
        let mut added = self.list.borrow_mut();
        list.append(&mut added);
        let rest = !list.is_empty();
        *added = list;
        drop(added);
        self.any.set(rest || more());
    }

    /// As long as the result lives, a wait of this engine polls futures and makes progress for them.
    #[inline]
    pub(super) fn begin_driving(&self) -> Driving<'_> {
        Driving { flag: &self.driving, outer: self.driving.replace(true) }
    }

    /// Whether a wait of this engine polls a future now, and makes progress meanwhile.
    #[inline]
    pub(super) fn is_driving(&self) -> bool {
        self.driving.get()
    }

    /// Tracks `step`, which concerns `rank`. When it ends, `events` happen.
    pub(crate) fn track(&self, rank: usize, doing: &'static str, step: Step, events: Vec<Event>) {
        if !events.is_empty() || !matches!(step, Step::Flush { .. } | Step::Message) {
            self.tracking.borrow_mut().operations.push(Tracked::new(rank, doing, step, events));
            self.any.set(true);
        }
    }

    /// Takes out the operation that was tracked last.
    pub(super) fn take_last(&self) -> Option<Tracked> {
        self.tracking.borrow_mut().operations.pop()
    }

    /// Puts back what [`Tasks::take_last`] gave.
    pub(super) fn put_back_last(&self, last: Tracked) {
        self.tracking.borrow_mut().operations.push(last);
    }

    /// Takes all operations with events out, and the events that are due.
    pub(super) fn take_tracked(&self) -> (Vec<Tracked>, VecDeque<Due>) {
        let Tracking { operations, due } = self.tracking.take();
        (operations, due)
    }

    /// Adds operations and events, behind those that were added since they were taken out.
    pub(super) fn add_tracked(&self, mut operations: Vec<Tracked>, mut due: VecDeque<Due>) {
        let mut tracking = self.tracking.borrow_mut();
        tracking.operations.append(&mut operations);
        tracking.due.append(&mut due);
    }

    /// Lets `add` add events that have happened. A poll runs their actions.
    pub(super) fn add_due(&self, add: impl FnOnce(&mut VecDeque<Due>)) {
        add(&mut self.tracking.borrow_mut().due);
        self.any.set(true);
    }

    /// The next event whose action is due. Nothing is borrowed while that runs: it may start further operations.
    pub(super) fn next_due(&self) -> Option<Due> {
        self.tracking.borrow_mut().due.pop_front()
    }

    /// Whether there are operations with events, or events that are due.
    pub(super) fn any_tracked(&self) -> bool {
        !self.tracking.borrow().is_empty()
    }

    /// Whether a get or an atomic with events waits for room.
    pub(super) fn any_unposted(&self) -> bool {
        self.tracking.borrow().has_unposted()
    }

    /// Whether a get in flight fills this segment of this rank.
    pub(super) fn fill(&self, number: u32, generation: u64) -> bool {
        self.tracking.borrow().fills(Filled { number, generation })
    }

    /// As [`Tracking::give_up`].
    #[must_use]
    pub(super) fn give_up(&self) -> Vec<Event> {
        self.tracking.take().give_up()
    }
}
