//! The reserved segments through contexts: the symmetric heap and the static data.

use super::super::operation::Change;
use super::super::reserved_segments::{HEAP, STATICS};
use super::super::segments::ADDRESS;
use super::Stream;
use super::segments::{Place, change_at, misaligned};
use crate::error::{CalledAt, Error, Result, check_range};

impl Stream {
    fn no_reserved(doing: &'static str, rank: usize, number: u32) -> Error {
        Error::NoSegment { operation: doing, rank, number, place: CalledAt::default() }
    }

    /// Where bytes of a reserved segment are reached. None is ever closed.
    fn locate_reserved(
        &self,
        doing: &'static str,
        rank: usize,
        number: u32,
        offset: usize,
        len: usize,
    ) -> Result<Place<'_>> {
        self.check_own(doing)?;
        self.check_rank(doing, rank)?;
        if !self.is_mapped(rank) {
            return self.reserved_over_network(doing, rank, number, offset, len).map(Place::Network);
        }
        let (segments, using) = (&self.mapped_segments, self.using.begin());
        let (start, available) = match number {
            HEAP => (segments.layout.heap, segments.heap(rank).len),
            STATICS => {
                let found = segments.find(rank, STATICS).ok_or_else(|| Self::no_reserved(doing, rank, number))?;
                (segments.layout.statics, found.len)
            }
            _ => return Err(Self::no_reserved(doing, rank, number)),
        };
        check_range(doing, rank, offset, len, available)?;
        // SAFETY: inside a part of the slot of a rank that is mapped, as just checked.
        Ok(Place::Here(unsafe { self.node.slot(rank).add(start + offset) }, using))
    }

    /// The offset of bytes of a reserved segment, as the network takes it.
    fn reserved_over_network(
        &self,
        doing: &'static str,
        rank: usize,
        number: u32,
        offset: usize,
        len: usize,
    ) -> Result<usize> {
        let (start, available) = match number {
            HEAP => (self.mapped_segments.layout.heap, self.mapped_segments.heap(rank).len),
            STATICS => {
                let found = self.find_over_network(doing, rank, STATICS)?;
                let found = found.ok_or_else(|| Self::no_reserved(doing, rank, number))?;
                (ADDRESS + found.start, found.len)
            }
            _ => return Err(Self::no_reserved(doing, rank, number)),
        };
        check_range(doing, rank, offset, len, available)?;
        Ok(start + offset)
    }

    /// As [`Stream::put_segment`], to a reserved segment.
    ///
    /// # Errors
    /// As [`Stream::put_segment`].
    pub(crate) fn put_reserved(
        &self,
        doing: &'static str,
        rank: usize,
        number: u32,
        offset: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let place = self.locate_reserved(doing, rank, number, offset, bytes.len())?;
        self.put_at(doing, (rank, number), place, bytes)?;
        if self.is_mapped(rank) {
            self.stored(rank);
        }
        Ok(())
    }

    /// As [`Stream::get_segment`], from a reserved segment.
    ///
    /// # Errors
    /// As [`Stream::get_segment`].
    pub(crate) fn get_reserved(
        &self,
        doing: &'static str,
        rank: usize,
        number: u32,
        offset: usize,
        into: &mut [u8],
    ) -> Result<()> {
        let place = self.locate_reserved(doing, rank, number, offset, into.len())?;
        self.get_at(doing, (rank, number), place, into)
    }

    /// As [`Stream::change_segment`], of a word of a reserved segment. What changes a word of the heap is what changes it for arrays.
    ///
    /// # Errors
    /// As [`Stream::change_segment`].
    pub(crate) fn change_reserved(
        &self,
        doing: &'static str,
        (rank, number, offset): (usize, u32, usize),
        change: Change,
        at_once: impl FnOnce(*mut u8) -> u64,
    ) -> Result<u64> {
        let width = change.width as usize;
        self.check_own(doing)?;
        self.check_rank(doing, rank)?;
        let by_network =
            self.network.is_some() && (number == HEAP || self.driven().networks.to(rank).changes_segments());
        if by_network {
            let at = self.reserved_over_network(doing, rank, number, offset, width)?;
            // Slots begin at a page, and so do heaps.
            return match (at & !ADDRESS).is_multiple_of(width) {
                true => self.atomic(doing, rank, at, change),
                false => Err(misaligned(doing, rank, at & !ADDRESS, width)),
            };
        }
        let place = self.locate_reserved(doing, rank, number, offset, width)?;
        change_at(doing, (rank, width), place, "World::reserved_segments", at_once)
    }
}
