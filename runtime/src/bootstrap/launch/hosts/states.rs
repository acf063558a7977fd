//! What the launcher of several hosts knows about its ranks. It shares no memory with them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::bootstrap::launch::spec::{Ended, Hooks, Membership};

#[derive(Debug, Clone, Copy)]
struct State {
    membership: Membership,
    ended: Option<Ended>,
}

/// How far each rank got.
#[derive(Debug, Clone)]
pub(in crate::bootstrap::launch) struct States {
    ranks: Rc<RefCell<Vec<State>>>,
    /// Ranks have been told to end: their ends say nothing.
    told: Rc<Cell<bool>>,
    /// The rank that was missed first. A rank that leaves names the first that was missed on its host or, before that, on the hosts of ranks
    /// that left before: reports of several hosts have no order, and the first to arrive is kept.
    missed: Rc<Cell<Option<usize>>>,
}

impl States {
    pub(in crate::bootstrap::launch) fn new(ranks: usize) -> States {
        let ranks = vec![State { membership: Membership::Absent, ended: None }; ranks];
        States { ranks: Rc::new(RefCell::new(ranks)), told: Rc::default(), missed: Rc::default() }
    }

    /// Ranks are told to end.
    pub(super) fn tell(&self) {
        self.told.set(true);
    }

    /// A rank that left names the one that was missed first.
    pub(super) fn miss(&self, rank: Option<usize>) {
        let is_rank = |rank: &usize| *rank < self.ranks.borrow().len();
        self.missed.set(self.missed.get().or(rank.filter(is_rank)));
    }

    pub(super) fn set(&self, rank: usize, membership: Membership) {
        if let Some(state) = self.ranks.borrow_mut().get_mut(rank) {
            state.membership = membership;
        }
    }
}

impl State {
    /// How little the end of a rank can have been caused by others: by a signal, in the midst of the job, after it left; `None` if it
    /// is no failure.
    ///
    /// The ends of ranks on several hosts come in any order, and a rank that notices the failure of a peer leaves before it exits.
    fn weight(&self) -> Option<u8> {
        match (self.ended?, self.membership) {
            (Ended::Signaled(_), _) => Some(0),
            (Ended::Exited(0), Membership::Joined) => Some(1),
            (Ended::Exited(0), _) => None,
            (Ended::Exited(_), Membership::Left) => Some(2),
            (Ended::Exited(_), _) => Some(1),
        }
    }
}

impl Hooks for States {
    fn rank_ended(&mut self, rank: usize, ended: &Ended) {
        if !self.told.get() {
            self.ranks.borrow_mut()[rank].ended = Some(*ended);
        }
    }

    fn membership(&mut self, rank: usize) -> Membership {
        self.ranks.borrow()[rank].membership
    }

    fn is_consequence(&mut self, rank: usize, ended: &Ended) -> bool {
        let states = self.ranks.borrow();
        let left = states[rank].membership == Membership::Left && matches!(ended, Ended::Exited(_));
        if left && self.missed.get().is_some_and(|missed| missed != rank) {
            return true;
        }
        let own = states[rank].weight();
        states.iter().filter_map(State::weight).min().is_some_and(|least| own.is_some_and(|own| least < own))
    }

    fn first_missed(&mut self) -> Option<usize> {
        self.missed.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_left_before_it_failed_is_not_the_cause() {
        let mut states = States::new(4);
        (0..4).for_each(|rank| states.set(rank, Membership::Joined));
        states.set(0, Membership::Left);
        states.rank_ended(0, &Ended::Exited(1));
        assert!(!states.is_consequence(0, &Ended::Exited(1)), "nobody else has failed");
        states.rank_ended(1, &Ended::Exited(3));
        assert!(states.is_consequence(0, &Ended::Exited(1)));
        assert!(!states.is_consequence(1, &Ended::Exited(3)));
        states.rank_ended(2, &Ended::Signaled(9));
        assert!(states.is_consequence(1, &Ended::Exited(3)));
        assert!(!states.is_consequence(2, &Ended::Signaled(9)));
    }

    #[test]
    fn ranks_that_left_because_another_had_left_are_not_the_cause() {
        let mut states = States::new(4);
        (0..4).for_each(|rank| states.set(rank, Membership::Left));
        states.miss(None);
        states.miss(Some(7));
        assert_eq!(states.first_missed(), None);
        (1..4).for_each(|rank| states.rank_ended(rank, &Ended::Exited(9)));
        assert!(!states.is_consequence(1, &Ended::Exited(9)));
        states.miss(Some(2));
        states.miss(Some(1));
        assert_eq!(states.first_missed(), Some(2));
        assert!(states.is_consequence(1, &Ended::Exited(9)));
        assert!(!states.is_consequence(2, &Ended::Exited(9)), "it was missed itself");
        assert!(!states.is_consequence(1, &Ended::Signaled(9)));
    }

    #[test]
    fn the_end_of_a_rank_that_was_told_to_end_is_no_cause() {
        let mut states = States::new(2);
        states.rank_ended(0, &Ended::Exited(3));
        states.tell();
        states.rank_ended(1, &Ended::Signaled(15));
        assert!(!states.is_consequence(0, &Ended::Exited(3)));
    }
}
