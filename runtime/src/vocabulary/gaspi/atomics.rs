//! Atomic operations on words of segments.

use std::collections::VecDeque;

use super::codes;
use super::place::{Held, Partner};
use super::process::Process;
use super::segments::number_of;
use super::types::{Code, Rank, Result, SegmentId, Timeout};
use crate::AtomicOp;
use crate::world::Completion;

/// What is done: add a value, or store `new` where `expected` is.
#[derive(Clone, Copy)]
enum Change {
    Add(u64),
    Swap { expected: u64, new: u64 },
}

impl Process {
    /// Adds `value` to the word of 8 bytes at `offset` of a segment of `rank`, and returns what it was before. Atomic to all processes'
    /// atomic operations on it. Resumable; it adds once.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::INV_SEG`]; [`codes::INV_REM_OFF`]; [`codes::UNALIGN_OFF`] unless the word's offset and its
    /// address are multiples of 8; [`codes::TIMEOUT`]; [`codes::ERROR`] if the process is lost.
    pub fn atomic_fetch_add(
        &self,
        segment: SegmentId,
        offset: u64,
        rank: Rank,
        value: u64,
        timeout: Timeout,
    ) -> Result<u64> {
        self.change(segment, offset, rank, Change::Add(value), timeout)
    }

    /// Stores `new` in the word at `offset` of a segment of `rank` if `expected` is there; returns what was there before. As
    /// [`Process::atomic_fetch_add`].
    ///
    /// # Errors
    /// As [`Process::atomic_fetch_add`].
    pub fn atomic_compare_swap(
        &self,
        segment: SegmentId,
        offset: u64,
        rank: Rank,
        expected: u64,
        new: u64,
        timeout: Timeout,
    ) -> Result<u64> {
        self.change(segment, offset, rank, Change::Swap { expected, new }, timeout)
    }

    fn change(&self, segment: SegmentId, offset: u64, rank: Rank, change: Change, timeout: Timeout) -> Result<u64> {
        let words = match change {
            Change::Add(value) => [0, value, 0],
            Change::Swap { expected, new } => [1, expected, new],
        };
        let key = (rank, segment, offset, words);
        let (done, fetched) = {
            let Held { state, world } = &mut *self.place.enter()?;
            state.check_works()?;
            let to = state.check_partner(world, rank)?;
            if !offset.is_multiple_of(8) {
                return Err(Code(codes::UNALIGN_OFF));
            }
            let at = usize::try_from(offset).map_err(|_| Code(codes::INV_REM_OFF))?;
            match state.atomics.get_mut(&key).and_then(VecDeque::pop_front) {
                Some(begun) => begun,
                None => {
                    let done = Completion::new();
                    let (operation, number) = (world.operation().effect(&done), number_of(segment));
                    let fetched = match change {
                        Change::Add(value) => operation.fetch_segment(AtomicOp::Add, to, number, at, value),
                        Change::Swap { expected, new } => operation.compare_swap_segment(to, number, at, expected, new),
                    };
                    (done, fetched.map_err(|error| state.failed(&error, to))?)
                }
            }
        };
        let outcome = self.place.wait("an atomic operation", timeout, &Partner::Ranks(&[rank.into()]), |_, state| {
            Some(done.outcome()?.map_err(|error| state.failed(&error, rank.into())))
        });
        if outcome.is_err_and(Code::is_timeout) {
            self.place.enter()?.state.atomics.entry(key).or_default().push_back((done, fetched));
            return Err(Code(codes::TIMEOUT));
        }
        outcome?;
        fetched.value().ok_or(Code(codes::ERROR))
    }
}
