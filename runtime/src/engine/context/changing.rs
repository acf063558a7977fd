//! Atomics of a context on segments whose result is fetched later.

use super::super::operation::{Atomic, Change};
use super::Stream;
use super::segments::{Locate, WordAccess};
use crate::error::Result;

/// An atomic of a context on a word of a segment.
pub(crate) enum Changing {
    /// The processor did it in the call; the former value.
    Done(u64),
    /// The network does it later.
    Posted(Atomic),
}

impl Stream {
    /// As [`Stream::change_segment`], but does not wait for the former value. Blocks until there is room.
    ///
    /// # Errors
    /// As [`Stream::change_segment`].
    pub(crate) fn begin_change_segment(
        &self,
        locate: Locate,
        doing: &'static str,
        place: (usize, u32, usize),
        change: Change,
        at_once: impl FnOnce(*mut u8) -> u64,
    ) -> Result<Changing> {
        let post = |at| self.post_atomic(doing, place.0, at, change).map(Changing::Posted);
        self.change_word(locate, doing, place, change, |at| Changing::Done(at_once(at)), post)
    }

    /// Finds a word of a segment by `locate`, and does an atomic on the word: `at_once` where the processor does it, else `by_network`.
    ///
    /// # Errors
    /// As [`Stream::change_segment`]; those of `by_network`.
    pub(super) fn change_word<R>(
        &self,
        locate: Locate,
        doing: &'static str,
        (rank, number, offset): (usize, u32, usize),
        change: Change,
        at_once: impl FnOnce(*mut u8) -> R,
        by_network: impl FnOnce(usize) -> Result<R>,
    ) -> Result<R> {
        match self.locate_word(locate, doing, (rank, number, offset), change.width as usize)? {
            WordAccess::Here(at, _using) => Ok(at_once(at)),
            WordAccess::Network(at) => self.unless_closed(doing, rank, number, by_network(at)),
        }
    }
}
