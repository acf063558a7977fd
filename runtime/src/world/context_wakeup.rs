//! Waiting for contexts outside this library: an event descriptor for each context, for poll(2), epoll(7) and event loops.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use super::{Arm, Signaller, ThreadContext};
use crate::engine::StreamWakeup;
use crate::error::{Placed, Result};

/// The event descriptor of a [`ThreadContext`]: it becomes readable when an operation of the context ends that was in flight. A thread can
/// wait for several contexts at a time, in poll(2), epoll(7) or its own event loop. Made by [`ThreadContext::wake_up`].
///
/// The order of calls is that of a [`WakeUp`](super::WakeUp): make progress until nothing is left, arm, check what you wait for, and sleep on
/// the descriptor. It stays readable until it is armed again, and may become readable without a cause. Over a network any other call of the
/// context disarms it and makes it readable. Progress of the rank's other threads makes it readable if it finds something.
///
/// Over RDMA and TCP it announces the end of gets, puts, rings and atomics. A timer makes it readable after 50 ms at most, since deaths
/// are not announced; after 1 ms while the network has no room for operations that the context keeps, and on a network that announces
/// nothing. Where memory is mapped, operations are done at once, and only signals and the timer make it readable. Messages, bells and the
/// *handled* events of messages come to the world: use its [`WakeUp`](super::WakeUp).
///
/// While a context has a descriptor, its futures that are not ready wait until [`ContextWakeUp::turn`] wakes them.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// use bellwether::Arm;
/// bellwether::threads(2, |world| {
///     let numbers = world.alloc::<u64>(1)?;
///     numbers.store(0, 10 + world.rank() as u64);
///     world.barrier()?;
///     let context = world.context()?;
///     let wake_up = context.wake_up()?;
///     let mut got = context.get_slice_async(&numbers.for_threads(), 1 - world.rank(), 0, 1);
///     while !got.is_done() {
///         if wake_up.progress()? == 0 && wake_up.arm()? == Arm::Armed {
///             // Or poll(2) with `wake_up.as_fd()` and the descriptors of other contexts.
///             wake_up.poll(None)?;
///         }
///     }
///     assert_eq!(got.wait()?, [11 - world.rank() as u64]);
///     world.barrier()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
#[derive(Debug)]
pub struct ContextWakeUp {
    wakeup: StreamWakeup,
}

impl ThreadContext {
    /// Makes an event descriptor of this context. A context may have several: arming one arms all of them, and a signal to one makes all
    /// readable. The context stays open as long as one of them lives.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os) if no descriptor can be made; [`Error::Forked`](crate::Error::Forked);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) on a simulated network.
    #[track_caller]
    pub fn wake_up(&self) -> Result<ContextWakeUp> {
        Ok(ContextWakeUp { wakeup: StreamWakeup::new(self.open_stream()).placed()? })
    }
}

impl ContextWakeUp {
    /// Makes progress of the context, as [`ThreadContext::poll`]. Returns how much was done: 0 when nothing is left.
    ///
    /// # Errors
    /// As [`ThreadContext::poll`].
    #[track_caller]
    pub fn progress(&self) -> Result<usize> {
        self.wakeup.stream().poll("making progress").placed()
    }

    /// Arms the descriptor, so that it is no longer readable. Call it before each sleep. [`Arm::Busy`]: an operation has ended already, or a
    /// signal came; make progress first.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked), [`Error::MemoryLost`](crate::Error::MemoryLost).
    #[track_caller]
    pub fn arm(&self) -> Result<Arm> {
        Ok(if self.wakeup.arm().placed()? { Arm::Armed } else { Arm::Busy })
    }

    /// Sleeps until the descriptor is readable, for at most `limit`. Returns whether it is. Makes no progress.
    ///
    /// # Errors
    /// Those of poll(2), as [`Error::Os`](crate::Error::Os); [`Error::Forked`](crate::Error::Forked).
    #[track_caller]
    pub fn poll(&self, limit: Option<Duration>) -> Result<bool> {
        self.wakeup.poll(limit).placed()
    }

    /// Arms and sleeps until the descriptor is readable, which may be by its timer. Returns at once if an operation has ended already. Makes
    /// no progress.
    ///
    /// # Errors
    /// As [`ContextWakeUp::arm`] and [`ContextWakeUp::poll`].
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.wakeup.wait(None).map(drop).placed()
    }

    /// As [`ContextWakeUp::wait`], for at most `limit`. Returns whether the descriptor is readable, also if only its timer has expired.
    ///
    /// # Errors
    /// As [`ContextWakeUp::wait`].
    #[track_caller]
    pub fn wait_for(&self, limit: Duration) -> Result<bool> {
        self.wakeup.wait(Some(limit)).placed()
    }

    /// Makes progress until nothing is left, arms, and wakes the tasks that await something of the context. Never blocks. Call it once at the
    /// beginning, and each time the descriptor is readable.
    ///
    /// # Errors
    /// As [`ContextWakeUp::progress`] and [`ContextWakeUp::arm`]. The tasks are woken, and their own polls return the error.
    #[track_caller]
    pub fn turn(&self) -> Result<()> {
        self.wakeup.turn().placed()
    }

    /// Makes the descriptor readable from any thread of this process.
    pub fn signaller(&self) -> Signaller {
        Signaller::of_context(self.wakeup.signals(), self.wakeup.owner(), self.wakeup.stream().rank)
    }

    /// For tests: from now on no timer makes the descriptor readable instead of an announcement.
    #[doc(hidden)]
    pub fn trust_announcements(&self) {
        self.wakeup.trust_announcements();
    }
}

impl AsFd for ContextWakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.descriptor()
    }
}

impl AsRawFd for ContextWakeUp {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
