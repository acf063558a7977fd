//! Finds ranks of this host whose process has ended, where no supervisor tells (under mpirun), by a pidfd for each.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

use super::job::JobMemory;
use crate::error::Loss;

/// Descriptors of other processes, which become readable when these end.
#[derive(Debug, Default)]
pub struct ProcessWatch(Vec<(usize, OwnedFd)>);

impl ProcessWatch {
    /// Watches the process of `rank`, which has arrived on this host, unless it is this one.
    pub fn add(&mut self, job: &JobMemory, rank: usize) {
        let pid = job.pid(rank);
        if pid == std::process::id() {
            return;
        }
        match Pid::from_raw(pid as i32).map(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(fd)) => self.0.push((rank, fd)),
            Some(Err(rustix::io::Errno::SRCH)) => job.mark_lost(rank, Loss::Unknown),
            _ => {}
        }
    }

    /// Marks ranks whose process has ended without leaving, and stops watching them.
    pub fn poll(&mut self, job: &JobMemory) {
        if self.0.is_empty() {
            return;
        }
        let mut polled: Vec<_> = self.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        if !rustix::event::poll(&mut polled, Some(&Default::default())).is_ok_and(|ready| ready > 0) {
            return;
        }
        let ended: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ended = ended.into_iter();
        self.0.retain(|(rank, _)| {
            let is_over = ended.next() == Some(true);
            if is_over {
                // Has no effect on a rank that left.
                job.mark_lost(*rank, Loss::Unknown);
            }
            !is_over
        });
    }

    /// Become readable when a process ends.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|(_, fd)| fd.as_fd())
    }
}
