//! UCP's wake-up: event descriptor, arm, wait, signal and progress of a worker, with UCX's names and status codes; thin over
//! [`WakeUp`].
//!
//! A [`Worker`] is a world as UCP sees it. Its rows are W1 to W24.
//!
//! | call | is |
//! | --- | --- |
//! | `ucp_worker_get_efd` | [`Worker::efd`] |
//! | `ucp_worker_arm` | [`Worker::arm`] |
//! | `ucp_worker_wait` | [`Worker::wait`] |
//! | `ucp_worker_wait_mem` | [`Worker::wait_mem`] |
//! | `ucp_worker_signal` | [`Worker::signal`], and from other threads [`Signal::signal`] |
//! | `ucp_worker_progress` | [`Worker::progress`] |
//!
//! # What differs
//! - Events are messages, answers, ends of operations and of ranks, and everything that is rung. A ring is a store: a worker that is not armed
//!   does not notice it. So a program that waits for a bell or a signal checks it after arming, before it sleeps, which [`WakeUp::arm_unless`]
//!   does. UCP has no such events.
//! - Workers of one world share its descriptor, its events and its signals: each wakes all, and one arming, which takes the signals, arms all.
//!   So W16, W21 and W22 hold for workers of different worlds, and for the one worker of a world. Contexts have no worker.
//! - The mask can leave out what completes, not what arrives: completions may come as messages. See [`Params::events`].
//! - A timer makes an armed descriptor readable after 50 ms at most; see [`WakeUp`].
//! - Errors of peers, which UCP tells to an endpoint, come from [`Worker::progress`].

pub mod codes;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use rustix::event::epoll;

pub use self::codes::Status;
use crate::error::Result;
use crate::world::{Progress, Signaller, WakeOn, WakeUp, World};

/// Feature bit of `ucp_params_t`: wake-up.
pub const FEATURE_WAKEUP: u64 = 1 << 4;

/// Bits of the mask of events, as UCX has them: remote memory access.
pub const WAKEUP_RMA: u32 = 1 << 0;
/// Atomic operations.
pub const WAKEUP_AMO: u32 = 1 << 1;
/// Tagged sends.
pub const WAKEUP_TAG_SEND: u32 = 1 << 2;
/// Tagged receives.
pub const WAKEUP_TAG_RECV: u32 = 1 << 3;
/// Whatever this worker has sent.
pub const WAKEUP_TX: u32 = 1 << 10;
/// Whatever is sent to this worker.
pub const WAKEUP_RX: u32 = 1 << 11;

/// How a worker is created: the fields of `ucp_params_t` and `ucp_worker_params_t` that wake-up needs.
#[derive(Debug, Clone, Copy)]
pub struct Params<'a> {
    /// Features, of which [`FEATURE_WAKEUP`] matters.
    pub features: u64,
    /// Mask of events. With [`WAKEUP_RX`] and [`WAKEUP_TAG_RECV`] alone, what completes over a network need not wake; any other mask stands for
    /// all events. The descriptor announces what any worker of the world asks for.
    pub events: u32,
    /// An epoll descriptor of the program, and the data that it finds there with an event of this worker.
    pub event_fd: Option<(BorrowedFd<'a>, u64)>,
}

impl Default for Params<'_> {
    /// With the feature, all events, and a descriptor of the worker's own.
    fn default() -> Self {
        Params { features: FEATURE_WAKEUP, events: 0, event_fd: None }
    }
}

/// A worker. Belongs to the thread of its world. Dropping it closes its descriptor.
#[derive(Debug)]
pub struct Worker {
    progress: Progress,
    /// `None` without the feature.
    wake_up: Option<WakeUp>,
    /// The program's epoll descriptor, and the copy of the worker's descriptor that it has. Each worker adds a copy: an epoll takes a
    /// descriptor once.
    outer: Option<(OwnedFd, OwnedFd)>,
}

impl Worker {
    /// Makes a worker of `world`. Local.
    ///
    /// # Errors
    /// [`codes::INVALID_PARAM`] for an epoll descriptor without the feature, or one that takes no descriptor; [`codes::IO_ERROR`] without
    /// descriptors to be had.
    #[track_caller]
    pub fn create(world: &World, params: &Params<'_>) -> std::result::Result<Worker, Status> {
        let has_feature = params.features & FEATURE_WAKEUP != 0;
        if !has_feature && params.event_fd.is_some() {
            return Err(Status(codes::INVALID_PARAM));
        }
        let wake_up = has_feature.then(|| world.wake_up()).transpose()?;
        let mut worker = Worker { progress: world.progress(), wake_up, outer: None };
        if let Some(wake_up) = &worker.wake_up {
            wake_up.wake_on(kinds(params.events));
            if let Some((outer, data)) = params.event_fd {
                let copy = |of: BorrowedFd<'_>| of.try_clone_to_owned().map_err(|_| Status(codes::IO_ERROR));
                let (outer, inner) = (copy(outer)?, copy(wake_up.as_fd())?);
                epoll::add(&outer, &inner, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
                    .map_err(|_| Status(codes::INVALID_PARAM))?;
                worker.outer = Some((outer, inner));
            }
        }
        Ok(worker)
    }

    fn wake_up(&self) -> std::result::Result<&WakeUp, Status> {
        self.wake_up.as_ref().ok_or(Status(codes::INVALID_PARAM))
    }

    /// The event descriptor. The worker owns it, and closes it.
    ///
    /// # Errors
    /// [`codes::INVALID_PARAM`] without the feature; [`codes::UNSUPPORTED`] if the program gave an epoll descriptor.
    #[track_caller]
    pub fn efd(&self) -> std::result::Result<BorrowedFd<'_>, Status> {
        let wake_up = self.wake_up()?;
        if self.outer.is_some() { Err(Status(codes::UNSUPPORTED)) } else { Ok(wake_up.as_fd()) }
    }

    /// Arms the descriptor: a new event makes it readable.
    ///
    /// # Errors
    /// [`codes::BUSY`] if events wait to be handled, or one was signalled: it is not armed; [`codes::INVALID_PARAM`] without the feature;
    /// those of [`WakeUp::arm`].
    #[track_caller]
    pub fn arm(&self) -> std::result::Result<(), Status> {
        match self.wake_up()?.arm()? {
            crate::world::Arm::Armed => Ok(()),
            crate::world::Arm::Busy => Err(Status(codes::BUSY)),
        }
    }

    /// Waits for an event, without progress. Returns at once if the worker cannot be armed since events wait.
    ///
    /// # Errors
    /// [`codes::INVALID_PARAM`] without the feature; those of [`WakeUp::wait`].
    #[track_caller]
    pub fn wait(&self) -> std::result::Result<(), Status> {
        Ok(self.wake_up()?.wait()?)
    }

    /// Waits until `address` is written or an event comes, without progress. It may return earlier.
    pub fn wait_mem(&self, address: &AtomicU64) {
        // The next progress reports errors.
        if let Ok(wake_up) = self.wake_up() {
            let _ = wake_up.wait_mem(address);
        }
    }

    /// Causes an event of the worker.
    ///
    /// # Errors
    /// [`codes::INVALID_PARAM`] without the feature; [`codes::IO_ERROR`].
    #[track_caller]
    pub fn signal(&self) -> std::result::Result<(), Status> {
        Ok(self.wake_up()?.signal()?)
    }

    /// A handle that causes an event of the worker, from any thread.
    ///
    /// # Errors
    /// [`codes::INVALID_PARAM`] without the feature.
    #[track_caller]
    pub fn signaller(&self) -> std::result::Result<Signal, Status> {
        Ok(Signal { signaller: self.wake_up()?.signaller() })
    }

    /// Makes progress. Returns how much was done: 0 when nothing is left.
    ///
    /// # Errors
    /// As [`World::poll`].
    #[track_caller]
    pub fn progress(&self) -> Result<usize> {
        self.progress.poll()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // In a forked child the epoll is the parent's, which still has the worker.
        if let (Some((outer, inner)), Some(wake_up)) = (&self.outer, &self.wake_up)
            && wake_up.is_own()
        {
            let _ = epoll::delete(outer, inner);
        }
    }
}

/// `ucp_worker_signal` for any thread, whatever the thread mode.
#[derive(Debug, Clone)]
pub struct Signal {
    signaller: Signaller,
}

impl Signal {
    /// Causes an event of the worker. Several before the next arming are one.
    ///
    /// # Errors
    /// [`codes::IO_ERROR`].
    #[track_caller]
    pub fn signal(&self) -> std::result::Result<(), Status> {
        Ok(self.signaller.signal()?)
    }
}

/// The events that a mask asks for.
fn kinds(mask: u32) -> WakeOn {
    let arrives = mask & (WAKEUP_RX | WAKEUP_TAG_RECV) != 0;
    let completes = mask & (WAKEUP_RMA | WAKEUP_AMO | WAKEUP_TAG_SEND | WAKEUP_TX) != 0;
    match (arrives, completes) {
        (true, false) => WakeOn::Arrivals,
        _ => WakeOn::All,
    }
}
