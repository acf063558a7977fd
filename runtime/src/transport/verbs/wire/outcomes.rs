//! Results of operations, on their way from the device to the caller.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::transport::error::Result;

/// Data that an operation returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    Word(u64),
    /// The result is in the first `len` bytes of this buffer; the reader returns the buffer to the pool.
    Large {
        buffer: u32,
        len: u32,
    },
}

/// A completed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Number that the caller chose when it posted the operation.
    pub ticket: u64,
    pub outcome: Result<()>,
    pub data: Data,
}

/// Results that the caller has not read.
#[derive(Debug, Default)]
pub struct Outcomes {
    done: RefCell<VecDeque<Done>>,
    /// Result of the atomic that the caller polls for. At most one is outstanding.
    awaited: Cell<Option<Result<u64>>>,
}

impl Outcomes {
    pub fn push(&self, ticket: u64, outcome: Result<()>, data: Data) {
        self.done.borrow_mut().push_back(Done { ticket, outcome, data });
    }

    /// Removes the oldest result.
    pub fn next(&self) -> Option<Done> {
        self.done.borrow_mut().pop_front()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.done.borrow().is_empty()
    }

    /// Sets the result of the atomic that the caller polls for.
    #[inline(always)]
    pub fn set_awaited(&self, word: Result<u64>) {
        self.awaited.set(Some(word));
    }

    #[inline(always)]
    pub fn take_awaited(&self) -> Option<Result<u64>> {
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
        assert!(outcomes.is_empty() && outcomes.take_awaited().is_none());
        outcomes.push(3, Ok(()), Data::Word(1));
        outcomes.push(2, Err(Error::ConnectionReset), Data::Large { buffer: 1, len: 5 });
        outcomes.set_awaited(Ok(9));
        assert_eq!((outcomes.take_awaited(), outcomes.take_awaited()), (Some(Ok(9)), None));
        let tickets = std::iter::from_fn(|| outcomes.next()).map(|done| (done.ticket, done.outcome.is_ok()));
        assert_eq!(tickets.collect::<Vec<_>>(), [(3, true), (2, false)]);
        assert!(outcomes.is_empty());
    }
}
