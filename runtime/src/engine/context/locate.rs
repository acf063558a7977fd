//! How operations through a context find the bytes of a segment, and what they say where it is gone.

use super::super::addresses::BY_ADDRESS;
use super::super::segments::ADDRESS;
use super::Stream;
use super::segments::Access;
use crate::error::{CalledAt, Error, Result, check_range};
use crate::memory::layout::SEGMENTS_FIRST;

impl Stream {
    /// Where bytes of a segment are reached, but for a reserved one: a [`Locate`](super::segments::Locate).
    #[inline]
    pub(crate) fn locate_segment(
        &self,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        len: usize,
        by_network: bool,
    ) -> Result<Access<'_>> {
        match self.reach_at_once((rank, number), offset, len, by_network) {
            Some(access) => Ok(access),
            None => self.locate_apart(doing, (rank, number), offset, len, by_network),
        }
    }

    /// As [`Stream::locate_segment`], for GASPI: of a missing segment the error is always [`Error::NoSegment`], also if its owner is gone, and
    /// nothing waits for the roster.
    #[inline]
    pub(super) fn locate_plainly(
        &self,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        len: usize,
        by_network: bool,
    ) -> Result<Access<'_>> {
        match self.reach_at_once((rank, number), offset, len, by_network) {
            Some(access) => Ok(access),
            None => self.look_up(doing, (rank, number), offset, len, by_network),
        }
    }

    #[inline(always)]
    fn reach_at_once(
        &self,
        (rank, number): (usize, u32),
        offset: usize,
        len: usize,
        by_network: bool,
    ) -> Option<Access<'_>> {
        if by_network || !self.node.is_own() {
            return None;
        }
        let using = self.using.begin();
        self.mapped_segments.reach(rank, number, offset, len).map(|place| Access::Here(place, using))
    }

    /// [`Stream::locate_segment`] where [`MappedSegments::reach`](super::super::mapped_segments::MappedSegments::reach) does not find the bytes.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::NoSegment`], [`Error::OutOfBounds`]; as [`Stream::check_own`] and [`Stream::find_over_network`].
    #[cold]
    pub(super) fn look_up(
        &self,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        len: usize,
        by_network: bool,
    ) -> Result<Access<'_>> {
        self.check_own(doing)?;
        self.check_rank(doing, rank)?;
        let none = Error::NoSegment { operation: doing, rank, number, place: CalledAt::default() };
        if (number as usize) < SEGMENTS_FIRST {
            return Err(none);
        }
        if by_network || !self.is_mapped(rank) {
            let found = self.find_over_network(doing, rank, number)?.ok_or(none)?;
            check_range(doing, rank, offset, len, found.len)?;
            return Ok(Access::Network(ADDRESS + found.start + offset));
        }
        let using = self.using.begin();
        let found = self.mapped_segments.find(rank, number).ok_or(none)?;
        check_range(doing, rank, offset, len, found.len)?;
        let address = found.start + offset;
        Ok(match self.mapped_segments.place(rank, address, len) {
            Some(place) => Access::Here(place, using),
            None => Access::Attached(address, using),
        })
    }

    /// The outcome of an operation on a segment that was found before. If the segment was closed between look-up and post, the error says so.
    pub(super) fn unless_closed<T>(
        &self,
        doing: &'static str,
        rank: usize,
        number: u32,
        outcome: Result<T>,
    ) -> Result<T> {
        match outcome {
            Err(error) if self.was_closed(rank, number, &error) => Err(self.no_segment(doing, rank, number)),
            outcome => outcome,
        }
    }

    /// As [`Stream::unless_closed`], with the error of [`Stream::locate_plainly`].
    pub(super) fn unless_closed_plainly<T>(
        &self,
        operation: &'static str,
        rank: usize,
        number: u32,
        outcome: Result<T>,
    ) -> Result<T> {
        match outcome {
            Err(error) if self.was_closed(rank, number, &error) => {
                Err(Error::NoSegment { operation, rank, number, place: CalledAt::default() })
            }
            outcome => outcome,
        }
    }

    /// Whether `error` of an operation says that its segment was closed after the look-up.
    #[cold]
    fn was_closed(&self, rank: usize, number: u32, error: &Error) -> bool {
        matches!(error, Error::InvalidArgument { .. })
            && number as usize >= SEGMENTS_FIRST
            && number != BY_ADDRESS
            && self.driven().networks.to(rank).known(rank, number).is_none()
    }
}
