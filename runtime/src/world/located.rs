//! Where bytes of a segment are, and how they are reached.

use super::World;
use crate::engine::{ADDRESS, Engine, FoundSegment};
use crate::error::{CalledAt, Error, Result, check_range};
use crate::memory::layout::SEGMENTS_FIRST;

/// Where bytes of a segment are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Located {
    /// Their address in the owner.
    pub(crate) address: usize,
    /// Their offset as a network takes it.
    pub(crate) remote: usize,
}

impl Located {
    /// # Errors
    /// [`Error::Misaligned`] for a word of so many bytes.
    pub(super) fn check_aligned(&self, operation: &'static str, rank: usize, alignment: usize) -> Result<()> {
        if self.address.is_multiple_of(alignment) {
            return Ok(());
        }
        Err(Error::Misaligned { operation, rank, address: self.address, alignment, place: CalledAt::default() })
    }
}

/// How located bytes of a segment are reached: the route to their owner.
#[derive(Debug, Clone, Copy)]
pub(super) enum Access {
    /// By loads and stores here.
    Here(*mut u8),
    /// The owner is mapped and these bytes are not: by the kernel, or, where it copies nothing, by a message.
    Elsewhere,
    /// Over the network, which takes this offset.
    Network(usize),
}

/// How the engine looks a segment up.
pub(super) type LookUp = fn(&Engine, &'static str, usize, u32) -> Result<Option<FoundSegment>>;

impl World {
    /// How located bytes of `rank` are reached.
    pub(super) fn access(&self, rank: usize, Located { address, remote }: Located, len: usize) -> Access {
        if !self.engine.routes.is_mapped(rank) {
            return Access::Network(remote);
        }
        self.mapped_here(rank, address, len).map_or(Access::Elsewhere, Access::Here)
    }

    /// Where bytes at an address of `rank`, which is mapped, are in this process, if anywhere.
    pub(super) fn mapped_here(&self, rank: usize, address: usize, len: usize) -> Option<*mut u8> {
        let place = self.engine.segments.mapped().place(rank, address, len);
        place.or_else(|| self.in_segment(rank, address, len))
    }

    /// The address of bytes of a segment, in its owner.
    pub(crate) fn find_segment(
        &self,
        operation: &'static str,
        rank: usize,
        number: u32,
        offset: usize,
        len: usize,
    ) -> Result<usize> {
        self.locate_segment(operation, rank, number, offset, len).map(|located| located.address)
    }

    /// Where bytes of a segment are.
    pub(super) fn locate_segment(
        &self,
        operation: &'static str,
        rank: usize,
        number: u32,
        offset: usize,
        len: usize,
    ) -> Result<Located> {
        self.locate_segment_by(operation, (rank, number), offset, len, Engine::find_segment)
    }

    /// As [`World::locate_segment`], by one of the engine's ways to look a segment up.
    pub(super) fn locate_segment_by(
        &self,
        operation: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        len: usize,
        find: LookUp,
    ) -> Result<Located> {
        self.engine.check_own(operation)?;
        self.engine.check_rank(rank, operation)?;
        // Safe calls do not reach the heap and the static data.
        if (number as usize) < SEGMENTS_FIRST {
            return Err(Error::NoSegment { operation, rank, number, place: CalledAt::default() });
        }
        let found = find(&self.engine, operation, rank, number)?;
        let found = found.ok_or_else(|| self.engine.no_segment(operation, rank, number))?;
        check_range(operation, rank, offset, len, found.len)?;
        Ok(Located { address: found.start + offset, remote: ADDRESS + found.start + offset })
    }
}
