//! Questions of a process about another one.

use super::codes;
use super::monitor::{Held, Partner};
use super::process::Process;
use super::segments::number_of;
use super::types::{Code, Rank, Result, SegmentId, Timeout};

impl Process {
    /// The bytes of a segment of any process, also of this one. Not collective; over a network the first call for a process asks it.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::INV_SEG`]; [`codes::ERROR`] if the process is lost.
    pub fn segment_size_at(&self, segment: SegmentId, rank: Rank) -> Result<u64> {
        const DOING: &str = "the size of a segment";
        let at = {
            let Held { state, world } = &mut *self.monitor.enter()?;
            state.check_works()?;
            state.check_partner(world, rank)?
        };
        // Other threads enter the monitor meanwhile.
        self.monitor.wait(DOING, Timeout::Block, &Partner::Ranks(&[at]), |world, state| {
            match state.look_up(world, DOING, (at, segment))? {
                Ok(true) => {}
                Ok(false) => return Some(Err(Code(codes::INV_SEG))),
                Err(code) => return Some(Err(code)),
            }
            let found = match world.engine().find_segment(DOING, at, number_of(segment)) {
                Ok(found) => found.map(|found| found.len as u64).ok_or(Code(codes::INV_SEG)),
                Err(error) => Err(state.failed(&error, at)),
            };
            Some(found)
        })
    }
}
