//! The reserved segments through contexts: the symmetric heap and the static data.

use super::super::reserved_segments::{HEAP, STATICS};
use super::super::segments::ADDRESS;
use super::Stream;
use super::segments::Access;
use crate::error::{CalledAt, Error, Result, check_range};

impl Stream {
    /// Where bytes of a reserved segment are reached: a [`Locate`](super::segments::Locate). No reserved segment is ever closed.
    ///
    /// # Errors
    /// As [`Stream::put_segment`].
    pub(crate) fn locate_reserved(
        &self,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        len: usize,
        by_network: bool,
    ) -> Result<Access<'_>> {
        self.check_own(doing)?;
        self.check_rank(doing, rank)?;
        let none = || Error::NoSegment { operation: doing, rank, number, place: CalledAt::default() };
        let (segments, by_network) = (&*self.mapped_segments, by_network || !self.is_mapped(rank));
        // The first byte, as an offset in the slot, or as the network takes it.
        let (start, available) = match number {
            HEAP => (segments.layout.heap, segments.heap(rank).len),
            STATICS if by_network => {
                let found = self.find_over_network(doing, rank, STATICS)?.ok_or_else(none)?;
                (ADDRESS + found.start, found.len)
            }
            STATICS => (segments.layout.statics, segments.find(rank, STATICS).ok_or_else(none)?.len),
            _ => return Err(none()),
        };
        check_range(doing, rank, offset, len, available)?;
        if by_network {
            return Ok(Access::Network(start + offset));
        }
        // SAFETY: inside a part of the slot of a rank that is mapped, as just checked.
        Ok(Access::Here(unsafe { self.node.slot(rank).add(start + offset) }, self.using.begin()))
    }
}
