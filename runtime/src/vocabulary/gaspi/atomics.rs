//! Atomic operations on words of segments.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use super::codes;
use super::look_up::place;
use super::monitor::{Held, Partner};
use super::process::Process;
use super::queues::recent;
use super::segments::number_of;
use super::types::{Code, Rank, Result, SegmentId, Timeout};
use crate::AtomicOp;
use crate::error::Error;
use crate::world::Completion;

const ATOMIC: &str = "an atomic operation";

/// The operation: add a value, or store `new` where `expected` is.
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
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::INV_SEG`], also if the owner or its network refuses the operation, as when the
    /// segment is deleted during the call; [`codes::INV_REM_OFF`]; [`codes::UNALIGN_OFF`] unless the word's offset and its address are
    /// multiples of 8; [`codes::TIMEOUT`]; [`codes::ERROR`] if the process is lost. After all but the last two the word is as it was.
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

    #[inline]
    fn change(&self, segment: SegmentId, offset: u64, rank: Rank, change: Change, timeout: Timeout) -> Result<u64> {
        match self.change_mapped(segment, offset, rank, change) {
            Some(before) => Ok(before),
            None => self.change_by_world(segment, offset, rank, change, timeout),
        }
    }

    /// Does an operation on a word of mapped memory, beside other threads of this process. `None` if the word is not in mapped memory, or if an
    /// argument may be wrong: [`Process::change_by_world`] then does it or returns the error.
    #[inline]
    fn change_mapped(&self, segment: SegmentId, offset: u64, rank: Rank, change: Change) -> Option<u64> {
        let to = usize::from(rank);
        let offset = usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(size_of::<u64>()))?;
        let mut entry = self.shared().enter_atomics()?;
        let context = entry.as_mut()?;
        let reached = context.stream.reach(to)?;
        let number = number_of(segment);
        let memo = &mut context.recent[0][recent(to, number)];
        let word = place(self.shared(), &reached, memo, (to, segment), number, (offset, size_of::<u64>()))?;
        if !word.addr().is_multiple_of(size_of::<u64>()) {
            return None;
        }
        // SAFETY: an aligned word in bounds of a segment, which stays while `reached` lives, and is only touched by copies and atomics. In a job
        // without a network all atomic operations on it are the processor's.
        let word = unsafe { AtomicU64::from_ptr(word.cast()) };
        let before = match change {
            Change::Add(value) => word.fetch_add(value, Ordering::SeqCst),
            Change::Swap { expected, new } => {
                word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|before| before)
            }
        };
        drop(reached);
        entry.leave();
        Some(before)
    }

    /// Does an operation over a network, or on memory that only its owner reaches.
    fn change_by_world(
        &self,
        segment: SegmentId,
        offset: u64,
        rank: Rank,
        change: Change,
        timeout: Timeout,
    ) -> Result<u64> {
        let words = match change {
            Change::Add(value) => [0, value, 0],
            Change::Swap { expected, new } => [1, expected, new],
        };
        let key = (rank, segment, offset, words);
        let (to, begun) = (usize::from(rank), self.elapsed()?);
        {
            let Held { state, world } = &mut *self.monitor.enter()?;
            state.check_works()?;
            state.check_partner(world, rank)?;
        }
        if !offset.is_multiple_of(8) {
            return Err(Code(codes::UNALIGN_OFF));
        }
        if to != self.place().0 && !self.shared().is_registered(to, segment) {
            return Err(Code(codes::INV_SEG));
        }
        let at = usize::try_from(offset).map_err(|_| Code(codes::INV_REM_OFF))?;
        // The world's own look-up waits for the owner.
        self.monitor.wait(ATOMIC, timeout, &Partner::Ranks(&[to]), |world, state| {
            if let Err(code) = state.check_works() {
                return Some(Err(code));
            }
            if state.atomics.get(&key).is_some_and(|begun| !begun.is_empty()) {
                return Some(Ok(()));
            }
            let found = state.look_up(world, ATOMIC, (to, segment))?;
            Some(found.and_then(|found| if found { Ok(()) } else { Err(Code(codes::INV_SEG)) }))
        })?;
        let left = || match timeout {
            Timeout::After(limit) => Ok(Timeout::After(limit.saturating_sub(self.elapsed()?.saturating_sub(begun)))),
            timeout => Ok(timeout),
        };
        let (done, fetched) = self.monitor.wait(ATOMIC, left()?, &Partner::Ranks(&[to]), |world, state| {
            if let Err(code) = state.check_works() {
                return Some(Err(code));
            }
            if let Some(begun) = state.atomics.get_mut(&key).and_then(VecDeque::pop_front) {
                return Some(Ok(begun));
            }
            let (done, number, engine) = (Completion::new(), number_of(segment), world.engine());
            let begin = || {
                let operation = world.operation().effect(&done);
                match change {
                    Change::Add(value) => operation.fetch_segment(AtomicOp::Add, to, number, at, value),
                    Change::Swap { expected, new } => operation.compare_swap_segment(to, number, at, expected, new),
                }
            };
            // A network begins it when it has room. A message that finds no room would wait here, and other threads for it.
            let by_network = engine.networks.change_segments_of(to);
            match if by_network { begin() } else { engine.outbox.at_once(begin) } {
                Err(Error::WouldBlock { .. }) => None,
                fetched => Some(fetched.map(|fetched| (done, fetched)).map_err(|error| state.failed(&error, to))),
            }
        })?;
        let outcome = self.monitor.wait(ATOMIC, left()?, &Partner::Ranks(&[to]), |_, state| {
            Some(done.outcome()?.map_err(|error| match error {
                // The owner or its network rejects it, as when the segment was deleted after this process had looked it up.
                Error::InvalidArgument { .. } => Code(codes::INV_SEG),
                error => state.failed(&error, rank.into()),
            }))
        });
        if outcome.is_err_and(Code::is_timeout) {
            self.monitor.enter()?.state.atomics.entry(key).or_default().push_back((done, fetched));
            return Err(Code(codes::TIMEOUT));
        }
        outcome?;
        fetched.value().ok_or(Code(codes::ERROR))
    }
}
