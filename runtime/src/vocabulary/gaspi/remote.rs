//! What a process asks about another one.

use super::codes;
use super::monitor::Held;
use super::process::Process;
use super::segments::number_of;
use super::types::{Code, Rank, Result, SegmentId};

impl Process {
    /// The bytes of a segment of any process, also of this one. Not collective; over a network the first call for a process asks it.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::INV_SEG`]; [`codes::ERROR`] if the process is lost.
    pub fn segment_size_at(&self, segment: SegmentId, rank: Rank) -> Result<u64> {
        let Held { state, world } = &mut *self.monitor.enter()?;
        state.check_works()?;
        let at = state.check_partner(world, rank)?;
        match world.engine().find_segment("the size of a segment", at, number_of(segment)) {
            Ok(found) => found.map(|found| found.len as u64).ok_or(Code(codes::INV_SEG)),
            Err(error) => Err(state.failed(&error, at)),
        }
    }
}
