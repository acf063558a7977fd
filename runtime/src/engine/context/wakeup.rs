//! Descriptors of contexts, for a thread that waits in poll(2) or an executor: a descriptor becomes readable when an operation of its
//! context ends.
//!
//! It is an epoll descriptor of the descriptors of the context's networks, an eventfd, and a timer for events that nothing announces. A
//! network announces events that come after it was armed, and progress may consume that announcement. So:
//! - a call of the owner disarms and writes the eventfd: the program arms again before it sleeps;
//! - progress that finds something writes the eventfd, on any thread;
//! - the rank's other threads, which make progress for this context too, arm it again if they found it armed;
//! - the poll of a future arms again too; the future waits to be woken only if it has armed and found nothing in a check afterwards.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::super::remote_access::EVENTS;
use super::super::wakeup::{CHECK_EVERY, UNANNOUNCED, key, poll_one};
use super::{Driven, OpenStream, Stream};
use crate::error::{Error, Result};
use crate::memory::owner::Owner;
use crate::transport::lock::Mutex;

const DOING: &str = "waiting on the descriptor of a context";

/// Descriptors and tasks that wait until an operation of a context ends.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// How many descriptors the program has.
    handles: AtomicUsize,
    /// Whether the context's networks are armed.
    armed: AtomicBool,
    /// The sources that make the descriptors readable. Made with the first descriptor.
    sources: OnceCell<Sources>,
    /// Tasks that wait, by data and vtable of their wakers.
    tasks: Mutex<HashMap<(usize, usize), Waker>>,
}

/// The sources, beside its networks, that make the descriptors of a context readable.
#[derive(Debug)]
struct Sources {
    signals: Arc<OwnedFd>,
    alarm: OwnedFd,
}

impl Sleepers {
    fn are_there(&self) -> bool {
        self.handles.load(Ordering::SeqCst) > 0
    }

    /// Makes the descriptors readable.
    #[cold]
    fn ring(&self) {
        if let Some(sources) = self.sources.get() {
            // An eventfd that is full is readable already.
            let _ = rustix::io::write(&sources.signals, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptors readable after `time`, and clears an earlier expiry. Zero stops the timer.
    fn set_timer(&self, time: Duration) {
        let Some(sources) = self.sources.get() else { return };
        let it_value = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let setting = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        let set = rustix::time::timerfd_settime(&sources.alarm, TimerfdTimerFlags::empty(), &setting);
        debug_assert!(set.is_ok(), "a valid time for a timer of ours");
    }

    /// Called under the context's lock, when the owner uses the context.
    #[inline]
    pub(super) fn disarm(&self) {
        // Relaxed: a context has one owner at a time, and only the owner arms.
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Called when progress has found something.
    #[inline]
    pub(super) fn found(&self, done: usize) {
        if done > 0 && self.are_there() {
            self.ring();
        }
    }

    /// Called when a thread has made progress for another thread's context.
    pub(super) fn arm_again(&self, driven: &Driven) {
        if self.armed.load(Ordering::SeqCst) && !driven.networks.arm(EVENTS) {
            self.ring();
        }
    }

    fn wake_tasks(&self) {
        // Taken out first: a waker may run its task at once, and the task may wait again.
        let tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.into_values().for_each(Waker::wake);
    }
}

/// A descriptor of a context, and its sources.
#[derive(Debug)]
pub(crate) struct StreamWakeup {
    stream: Arc<OpenStream>,
    signals: Arc<OwnedFd>,
    gathered: OwnedFd,
    /// For tests: no timer for events that should be announced.
    trusts: AtomicBool,
}

impl StreamWakeup {
    /// # Errors
    /// [`Error::Os`] if no descriptor can be made; [`Error::Forked`]; in virtual time [`Error::InvalidArgument`].
    pub(crate) fn new(stream: &Arc<OpenStream>) -> Result<StreamWakeup> {
        const DOING: &str = "making an event descriptor of a context";
        let os = |call| move |errno: Errno| Error::os(DOING, call, errno);
        stream.check_own(DOING)?;
        if stream.network.as_ref().is_some_and(|network| network.paced) {
            let why = "on a simulated network time passes only in waits of this library: wait with the context".into();
            return Err(Error::InvalidArgument { operation: DOING, why });
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let sources = stream.sleepers.sources.get_or_try_init(|| {
            let signals = Arc::new(rustix::event::eventfd(0, flags).map_err(os("eventfd"))?);
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let alarm = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(os("timerfd_create"))?;
            Ok::<_, Error>(Sources { signals, alarm })
        })?;
        let gathered = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("epoll_create"))?;
        let add = |descriptor: BorrowedFd<'_>| {
            epoll::add(&gathered, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(os("epoll_ctl"))
        };
        add(sources.signals.as_fd())?;
        add(sources.alarm.as_fd())?;
        if stream.network.is_some() {
            stream.driven().networks.events().try_for_each(add)?;
        }
        stream.sleepers.handles.fetch_add(1, Ordering::SeqCst);
        let signals = Arc::clone(&sources.signals);
        Ok(StreamWakeup { stream: Arc::clone(stream), signals, gathered, trusts: AtomicBool::new(false) })
    }

    /// The descriptor.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.gathered.as_fd()
    }

    /// The eventfd that any thread may write to make the descriptor readable.
    pub(crate) fn signals(&self) -> &Arc<OwnedFd> {
        &self.signals
    }

    pub(crate) fn owner(&self) -> Owner {
        *self.stream.node.owner()
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// For tests: from now on no timer, except for events that nothing announces.
    pub(crate) fn trust_announcements(&self) {
        self.trusts.store(true, Ordering::SeqCst);
    }

    /// Arms: an operation that ends from now on makes the descriptor readable. `false`: one has ended already, or a signal came.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::MemoryLost`].
    pub(crate) fn arm(&self) -> Result<bool> {
        let stream = &self.stream;
        stream.check_own(DOING)?;
        if !stream.job.is_intact() {
            return Err(Error::MemoryLost { doing: DOING.into() });
        }
        stream.sleepers.armed.store(false, Ordering::SeqCst);
        if rustix::io::read(&self.signals, &mut [0; 8]).is_ok() {
            return Ok(false);
        }
        let (armed, silence) = stream.arm_networks();
        let look = (!self.trusts.load(Ordering::SeqCst)).then_some(CHECK_EVERY);
        stream.sleepers.set_timer([silence, look].into_iter().flatten().min().unwrap_or_default());
        Ok(armed)
    }

    /// Whether the descriptor becomes readable within `limit`.
    ///
    /// # Errors
    /// Those of poll(2); [`Error::Forked`].
    pub(crate) fn poll(&self, limit: Option<Duration>) -> Result<bool> {
        self.stream.check_own(DOING)?;
        poll_one(self.gathered.as_fd(), limit)
    }

    /// Arms and sleeps until the descriptor is readable, for at most `limit`. Returns whether it is, also if only the timer has expired.
    ///
    /// # Errors
    /// As [`StreamWakeup::arm`] and [`StreamWakeup::poll`].
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Result<bool> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        if !self.arm()? {
            return Ok(true);
        }
        self.poll(end.map(|end| end.saturating_duration_since(Instant::now())))
    }

    /// Makes progress until nothing is left, arms, and wakes the tasks that wait.
    ///
    /// # Errors
    /// As [`StreamWakeup::arm`]. The tasks are woken.
    pub(crate) fn turn(&self) -> Result<()> {
        /// Wakes the tasks also if an error ends the turn.
        struct Waking<'a>(&'a Sleepers);
        impl Drop for Waking<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() { self.0.ring() } else { self.0.wake_tasks() }
            }
        }
        /// Polls before the tasks run. Chosen.
        const BURST: usize = 64;
        let _waking = Waking(&self.stream.sleepers);
        for _ in 0..BURST {
            self.stream.sleepers.armed.store(false, Ordering::SeqCst);
            let done = self.stream.poll("driving tasks")?;
            if done == 0 && self.arm()? {
                return Ok(());
            }
        }
        self.stream.sleepers.ring();
        Ok(())
    }
}

impl Drop for StreamWakeup {
    fn drop(&mut self) {
        let sleepers = &self.stream.sleepers;
        // In a forked child the tasks belong to the parent.
        if sleepers.handles.fetch_sub(1, Ordering::SeqCst) == 1 && self.stream.node.is_own() {
            // Without a descriptor they ask to be polled again at once.
            sleepers.wake_tasks();
        }
    }
}

impl Stream {
    /// Arms the networks. Returns whether nothing had come before, and the longest sleep if something may come unannounced.
    fn arm_networks(&self) -> (bool, Option<Duration>) {
        if self.network.is_none() {
            return (true, None);
        }
        let mut driven = self.driven();
        if !self.job.supervised() {
            let Driven { networks, losses, .. } = &mut *driven;
            losses.check_for_dead(&self.view(networks));
        }
        // Nothing announces room for kept operations, targets that fall asleep, and why a peer cannot be reached.
        let is_brief = !driven.kept.is_empty() || !driven.nudges.is_empty() || driven.losses.has_doubts();
        let silence = [is_brief.then_some(UNANNOUNCED), driven.networks.longest_sleep()].into_iter().flatten().min();
        let armed = driven.tracking.due.is_empty() && driven.networks.arm(EVENTS);
        self.sleepers.armed.store(armed, Ordering::SeqCst);
        (armed, silence)
    }

    /// Polls a future of this context by `ready`. If that returns `None`, the task of `waker` waits until an operation of the context ends.
    /// Returns `None` if the program has no descriptor of the context, and `Some(None)` if the task waits.
    pub(crate) fn poll_or_sleep<T>(&self, waker: &Waker, ready: impl FnOnce() -> Option<T>) -> Option<Option<T>> {
        let sleepers = &self.sleepers;
        if !sleepers.are_there() {
            return None;
        }
        // Armed again below, so this progress need not make the descriptor readable.
        let was_armed = sleepers.armed.swap(false, Ordering::SeqCst);
        let found = ready();
        if found.is_some() && !was_armed {
            return Some(found);
        }
        if found.is_none() {
            let waker = waker.clone();
            let former = sleepers.tasks.lock().insert(key(&waker), waker);
            // The program's code runs outside the lock.
            drop(former);
        }
        // Progress on another thread has written the eventfd if it found something; so does the arming here.
        let (armed, silence) = self.arm_networks();
        if !armed {
            sleepers.ring();
        } else if let Some(silence) = silence {
            sleepers.set_timer(silence);
        }
        Some(found)
    }
}
