//! Descriptors of contexts: one becomes readable when something of its context ends, for a thread that waits in poll(2) or an executor.
//!
//! It is an epoll descriptor of the descriptors of the context's networks, an eventfd, and a timer for what nothing announces. A network
//! announces what comes after it was armed, and whoever makes progress for it may take that back. So:
//! - the owner's calls take the arming back and write the eventfd: the program arms again before it sleeps;
//! - progress that finds something writes the eventfd, whoever makes it;
//! - the rank's other threads, which make progress for this context too, arm again what they have found armed;
//! - so does the poll of a future, which sleeps only if it has armed and has then checked once more.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::super::remote_access::EVENTS;
use super::super::wakeup::{LOOK, UNANNOUNCED, key, poll_one};
use super::{Driven, OpenStream, Stream};
use crate::error::{Error, Result};
use crate::memory::owner::Owner;
use crate::transport::lock::Mutex;

const DOING: &str = "waiting on the descriptor of a context";

/// Who sleeps until something of a context ends.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// Descriptors that the program has.
    handles: AtomicUsize,
    /// The context's networks are armed.
    armed: AtomicBool,
    /// What makes the descriptors readable. Made with the first of them.
    sources: OnceLock<Sources>,
    /// Tasks that wait, by what their wakers are.
    tasks: Mutex<HashMap<(usize, usize), Waker>>,
}

/// What makes the descriptors of a context readable beside its networks.
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
            // Full: it is readable.
            let _ = rustix::io::write(&sources.signals, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptors readable after `time`, and not before by an earlier expiry. Zero stops the timer.
    fn set_timer(&self, time: Duration) {
        let Some(sources) = self.sources.get() else { return };
        let it_value = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let setting = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        let set = rustix::time::timerfd_settime(&sources.alarm, TimerfdTimerFlags::empty(), &setting);
        debug_assert!(set.is_ok(), "a valid time for a timer of ours");
    }

    /// The owner uses the context. Called under its lock.
    #[inline]
    pub(super) fn disarm(&self) {
        // Relaxed: a context has one owner at a time, who arms.
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Progress has found something.
    #[inline]
    pub(super) fn found(&self, done: usize) {
        if done > 0 && self.are_there() {
            self.ring();
        }
    }

    /// Progress was made for another thread's context.
    pub(super) fn arm_again(&self, driven: &Driven) {
        if self.armed.load(Ordering::SeqCst) && !driven.networks.arm(EVENTS) {
            self.ring();
        }
    }

    fn wake_tasks(&self) {
        // Out of its place: a waker may run a task at once, which waits again.
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
    /// For tests: no timer stands for what should be announced.
    trusts: AtomicBool,
}

impl StreamWakeup {
    /// # Errors
    /// [`Error::Os`] without descriptors to be had; [`Error::Forked`]; in virtual time [`Error::InvalidArgument`].
    pub(crate) fn new(stream: &Arc<OpenStream>) -> Result<StreamWakeup> {
        const DOING: &str = "making an event descriptor of a context";
        let os = |call| move |errno: Errno| Error::os(DOING, call, errno);
        stream.check_own(DOING)?;
        if stream.network.as_ref().is_some_and(|network| network.paced) {
            let why = "on a simulated network time passes only in waits of this library: wait with the context".into();
            return Err(Error::InvalidArgument { operation: DOING, why });
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let signals = Arc::new(rustix::event::eventfd(0, flags).map_err(os("eventfd"))?);
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let alarm = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(os("timerfd_create"))?;
        let sources = stream.sleepers.sources.get_or_init(|| Sources { signals, alarm });
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

    /// What any thread writes to make the descriptor readable.
    pub(crate) fn signals(&self) -> &Arc<OwnedFd> {
        &self.signals
    }

    pub(crate) fn owner(&self) -> Owner {
        *self.stream.node.owner()
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// As that of the rank's descriptor.
    pub(crate) fn trust_announcements(&self) {
        self.trusts.store(true, Ordering::SeqCst);
    }

    /// Arms: what ends from now on makes the descriptor readable. `false`: something has ended already, or was signalled.
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
        let look = (!self.trusts.load(Ordering::SeqCst)).then_some(LOOK);
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

    /// Arms and sleeps until the descriptor is readable, for at most `limit`; whether something came.
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
        /// Wakes the tasks also where an error ends the turn.
        struct Waking<'a>(&'a Sleepers);
        impl Drop for Waking<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() { self.0.ring() } else { self.0.wake_tasks() }
            }
        }
        /// Polls before tasks have their turn. Chosen.
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
        // In a forked child tasks are the parent's.
        if sleepers.handles.fetch_sub(1, Ordering::SeqCst) == 1 && self.stream.node.is_own() {
            // From now on they poll again and again.
            sleepers.wake_tasks();
        }
    }
}

impl Stream {
    /// Arms the networks; whether nothing has come before, and the longest sleep, if something may come unannounced.
    fn arm_networks(&self) -> (bool, Option<Duration>) {
        if self.network.is_none() {
            return (true, None);
        }
        let mut driven = self.driven();
        if !self.job.supervised() {
            let Driven { networks, losses, .. } = &mut *driven;
            losses.check_for_dead(&self.view(networks));
        }
        // What nothing announces: room for what is kept, sleepers to be woken, and whether a peer is lost.
        let is_brief = !driven.kept.is_empty() || !driven.nudges.is_empty() || driven.losses.has_doubts();
        let silence = [is_brief.then_some(UNANNOUNCED), driven.networks.longest_sleep()].into_iter().flatten().min();
        let armed = driven.tracking.due.is_empty() && driven.networks.arm(EVENTS);
        self.sleepers.armed.store(armed, Ordering::SeqCst);
        (armed, silence)
    }

    /// Polls a future of this context with `ready`, for a program that has a descriptor of the context: the task of `waker` sleeps until
    /// something ends. `None`: there is no descriptor. The inner `None`: the task sleeps.
    pub(crate) fn poll_or_sleep<T>(&self, waker: &Waker, ready: impl FnOnce() -> Option<T>) -> Option<Option<T>> {
        let sleepers = &self.sleepers;
        if !sleepers.are_there() {
            return None;
        }
        // The arming that this progress takes back is renewed below, so the descriptor need not become readable.
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
        // What was found elsewhere meanwhile has written the eventfd, and what is found now does.
        let (armed, silence) = self.arm_networks();
        if !armed {
            sleepers.ring();
        } else if let Some(silence) = silence {
            sleepers.set_timer(silence);
        }
        Some(found)
    }
}
