//! An event descriptor for a rank that sleeps on a word.
//!
//! Peers know nothing of descriptors: they wake the futex of a sleeper, if its word says that it sleeps. So a helper
//! thread, started when the descriptor is first asked for, sleeps in the rank's place and then writes the descriptor.
//!
//! Arming is falling asleep as in `doze.rs`; its model is in `models.rs`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;

use super::doze::fall_asleep;
use crate::membership::job::{JobMemory, sleep_on, wake_all};
use crate::transport::error::{Error, Result};

const IDLE: u32 = 0;
const ARMED: u32 = 1;
const STOP: u32 = 2;

/// The descriptor and its helper.
#[derive(Debug)]
pub struct EventThread {
    fd: Arc<OwnedFd>,
    job: Arc<JobMemory>,
    rank: usize,
    state: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl EventThread {
    /// Starts the helper of `rank`.
    ///
    /// # Errors
    /// [`Error::Io`] without descriptors or threads to be had.
    pub fn start(job: &Arc<JobMemory>, rank: usize) -> Result<EventThread> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|_| Error::Io("no event descriptor to be had"))?;
        let (fd, state) = (Arc::new(fd), Arc::new(AtomicU32::new(IDLE)));
        let helper = (Arc::clone(&fd), Arc::clone(&state), Arc::clone(job));
        let thread = std::thread::Builder::new()
            .name(format!("bellwether event {rank}"))
            .spawn(move || {
                let (fd, state, job) = helper;
                run(&fd, &state, &job, rank);
            })
            .map_err(|_| Error::Io("no thread to be had for the event descriptor"))?;
        Ok(EventThread { fd, job: Arc::clone(job), rank, state, thread: Some(thread) })
    }

    /// The descriptor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Arms, unless `waiting` says that there is something already.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub fn arm(&self, waiting: impl Fn() -> bool) -> Result<()> {
        let mut count = [0; 8];
        // Empty or not, it is empty afterwards.
        let _ = rustix::io::read(&*self.fd, &mut count);
        let word = self.job.sleep_word(self.rank);
        let barrier = || {
            if self.job.full_fence() {
                fence(Ordering::SeqCst);
            } else {
                barrier_everywhere();
            }
        };
        if !fall_asleep(word, barrier, waiting) {
            return Err(Error::Busy);
        }
        self.state.store(ARMED, Ordering::SeqCst);
        wake_all(&self.state);
        Ok(())
    }
}

fn run(fd: &OwnedFd, state: &AtomicU32, job: &JobMemory, rank: usize) {
    loop {
        match state.load(Ordering::SeqCst) {
            STOP => return,
            IDLE => sleep_on(state, IDLE, None),
            _ => {
                let word = job.sleep_word(rank);
                while word.load(Ordering::SeqCst) == 1 && state.load(Ordering::SeqCst) == ARMED {
                    // The nap bounds how long the end of the helper takes, nothing else.
                    sleep_on(word, 1, Some(Duration::from_millis(20)));
                }
                if state.compare_exchange(ARMED, IDLE, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
                }
            }
        }
    }
}

impl Drop for EventThread {
    fn drop(&mut self) {
        self.state.store(STOP, Ordering::SeqCst);
        wake_all(&self.state);
        self.job.wake(self.rank);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
const GLOBAL_EXPEDITED: i32 = 1 << 1;

/// Lets other processes' barriers reach this one. Returns whether the kernel can; man page `membarrier(2)`.
pub(super) fn register_barrier() -> bool {
    // SAFETY: takes two integers, touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// Makes every core that runs a registered process pass a full barrier.
fn barrier_everywhere() {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) };
}
