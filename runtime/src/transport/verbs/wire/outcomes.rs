//! Results of operations, on their way from the device to the caller.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::transport::error::Result;

/// What an operation brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    Word(u64),
    /// The first `len` bytes of a large buffer, which the reader gives back.
    Large {
        buffer: u32,
        len: u32,
    },
}

/// An operation that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    pub ticket: u64,
    pub outcome: Result<()>,
    pub data: Data,
}

/// Results that the caller has not read.
#[derive(Debug, Default)]
pub struct Outcomes {
    done: RefCell<VecDeque<Done>>,
    /// The word that the caller polls for: it waits for one atomic at a time.
    awaited: Cell<Option<Result<u64>>>,
}

impl Outcomes {
    pub fn tell(&self, ticket: u64, outcome: Result<()>, data: Data) {
        self.done.borrow_mut().push_back(Done { ticket, outcome, data });
    }

    /// The oldest.
    pub fn next(&self) -> Option<Done> {
        self.done.borrow_mut().pop_front()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.done.borrow().is_empty()
    }

    /// The word that the caller polls for, or why there is none.
    #[inline(always)]
    pub fn answer(&self, word: Result<u64>) {
        self.awaited.set(Some(word));
    }

    #[inline(always)]
    pub fn take_answer(&self) -> Option<Result<u64>> {
        self.awaited.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::error::Error;

    #[test]
    fn results_come_in_order_and_an_answer_comes_once() {
        let outcomes = Outcomes::default();
        assert!(outcomes.is_empty() && outcomes.take_answer().is_none());
        outcomes.tell(3, Ok(()), Data::Word(1));
        outcomes.tell(2, Err(Error::ConnectionReset), Data::Large { buffer: 1, len: 5 });
        outcomes.answer(Ok(9));
        assert_eq!((outcomes.take_answer(), outcomes.take_answer()), (Some(Ok(9)), None));
        let tickets = std::iter::from_fn(|| outcomes.next()).map(|done| (done.ticket, done.outcome.is_ok()));
        assert_eq!(tickets.collect::<Vec<_>>(), [(3, true), (2, false)]);
        assert!(outcomes.is_empty());
    }
}
