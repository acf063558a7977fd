//! Who still lives, where no supervisor says so (under mpirun): one process descriptor for each node-mate.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

use super::Engine;
use crate::bootstrap::job::RankState;
use crate::error::Loss;

/// Descriptors that become readable when their process ends.
#[derive(Debug)]
pub(super) struct Watch(Vec<(usize, OwnedFd)>);

impl Engine {
    /// Marks ranks whose process has ended.
    pub(super) fn look_for_dead(&self) {
        let own = std::process::id();
        let watch = self.watch.get_or_init(|| {
            let here = (0..self.size).filter(|rank| *rank != self.rank && self.job.is_here(*rank));
            let others = here.filter(|rank| self.job.pid(*rank) != own);
            Watch(others.filter_map(|rank| Some((rank, self.descriptor(rank)?))).collect())
        });
        if watch.0.is_empty() {
            return;
        }
        let mut polled: Vec<_> = watch.0.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)).collect();
        if rustix::event::poll(&mut polled, Some(&Default::default())).is_ok_and(|ready| ready > 0) {
            for (fd, (rank, _)) in polled.iter().zip(&watch.0) {
                if !fd.revents().is_empty() && self.job.rank_state(*rank) == RankState::Running {
                    self.job.mark_lost(*rank, Loss::Unknown);
                }
            }
        }
    }

    fn descriptor(&self, rank: usize) -> Option<OwnedFd> {
        let pid = Pid::from_raw(self.job.pid(rank) as i32)?;
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Some(fd),
            Err(rustix::io::Errno::SRCH) => {
                if self.job.rank_state(rank) == RankState::Running {
                    self.job.mark_lost(rank, Loss::Unknown);
                }
                None
            }
            Err(_) => None,
        }
    }
}
