//! An event descriptor for a rank that sleeps on a word.
//!
//! Peers know nothing of descriptors: they wake the futex of a sleeper, if its word says that it sleeps. So a helper
//! thread, started when the descriptor is first asked for, sleeps in the rank's place and then writes the descriptor.
//!
//! Arming is the announcement of a sleep; see `sleep/README.md`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;

use crate::membership::JobMemory;
use crate::sleep::futex;
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
        if !self.job.sleep_word(self.rank).announce(self.job.allowed_fences(), waiting) {
            return Err(Error::Busy);
        }
        self.state.store(ARMED, Ordering::SeqCst);
        futex::wake_all(&self.state);
        Ok(())
    }
}

fn run(fd: &OwnedFd, state: &AtomicU32, job: &JobMemory, rank: usize) {
    loop {
        match state.load(Ordering::SeqCst) {
            STOP => return,
            IDLE => futex::wait(state, IDLE, None),
            _ => {
                let word = job.sleep_word(rank);
                while word.is_announced() && state.load(Ordering::SeqCst) == ARMED {
                    // The nap bounds how long the end of the helper takes, nothing else.
                    word.block(Duration::from_millis(20));
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
        futex::wake_all(&self.state);
        self.job.wake(self.rank);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
