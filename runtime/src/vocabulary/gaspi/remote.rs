//! What a process asks about another one, and does to it.

use super::codes;
use super::place::{Held, Partner};
use super::process::Process;
use super::segments::number_of;
use super::types::{Code, Rank, Result, SegmentId, Timeout};

impl Process {
    /// The bytes of a segment of any process, also of this one. Not collective; over a network the first call for a process asks it.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`]; [`codes::INV_SEG`]; [`codes::ERROR`] if the process is lost.
    pub fn segment_size_at(&self, segment: SegmentId, rank: Rank) -> Result<u64> {
        let Held { state, world } = &mut *self.place.enter()?;
        state.check_works()?;
        let at = state.check_partner(world, rank)?;
        match world.engine().find_segment("the size of a segment", at, number_of(segment)) {
            Ok(found) => found.map(|found| found.len as u64).ok_or(Code(codes::INV_SEG)),
            Err(error) => Err(state.failed(&error, at)),
        }
    }

    /// Ends another process of this host at once, as SIGKILL does. Complete when this process knows that it is gone; resumable.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_RANK`], also for the own rank; [`codes::TIMEOUT`]; [`codes::ERROR`] for a process of another host, if
    /// the system does not allow it, and if the two are threads of one process.
    pub fn proc_kill(&self, rank: Rank, timeout: Timeout) -> Result<()> {
        let victim = usize::from(rank);
        {
            let Held { state, world } = &mut *self.place.enter()?;
            state.check_works()?;
            if victim == world.rank() || victim >= world.size() {
                return Err(Code(codes::INV_RANK));
            }
            let job = &world.engine().job;
            if job.loss(victim).is_none() {
                let pid = job.is_here(victim).then(|| job.pid(victim)).filter(|pid| *pid != std::process::id());
                let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).ok_or(Code(codes::ERROR))?;
                match rustix::process::kill_process(pid, rustix::process::Signal::KILL) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                    Err(_) => return Err(Code(codes::ERROR)),
                }
            }
        }
        self.place.wait("proc_kill", timeout, &Partner::None, |world, _| {
            world.engine().job.loss(victim).is_some().then_some(Ok(()))
        })
    }
}
