//! Waiting outside this library: a descriptor for poll(2), epoll(7) and loops of events, and drivers that wake tasks of async Rust.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use super::{OneThread, World};
use crate::engine::{Engine, Pace, Wakeup};
use crate::error::{Error, Placed, Result};
use crate::memory::owner::Owner;
use crate::transport::lock::Mutex as Lock;

/// Polls of a word, with a pause after each, before a wait for it sleeps. Chosen: a store of another core is seen within a few.
const SPINS: u32 = 1000;
/// Longest sleep of [`WakeUp::wait_mem`]: a plain store wakes nobody.
const STORED: Duration = Duration::from_millis(1);

/// The result of [`WakeUp::arm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a descriptor that is not armed announces nothing"]
pub enum Arm {
    /// It is armed: an event from now on makes the descriptor readable.
    Armed,
    /// Something has come already, or [`Signaller::signal`] was called. The descriptor is not armed and may announce nothing: make progress
    /// first.
    Busy,
}

/// Kinds of events that make a descriptor readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeOn {
    /// All.
    All,
    /// Events from other ranks: messages and rings. The ends of this rank's own operations over a network need not wake it, unless they come as
    /// messages, as answers and receipts do.
    Arrivals,
}

/// A rank's event descriptor: it becomes readable when something comes for the rank, so that a program can wait in poll(2), epoll(7) or its
/// own loop of events, beside other descriptors. Made by [`World::wake_up`]; belongs to the thread of its world.
///
/// ```text
/// loop {
///     if what_i_wait_for() { break }
///     if wake_up.progress()? > 0 { continue }
///     match wake_up.arm()? {
///         Arm::Busy => continue,
///         Arm::Armed => poll(the descriptor, and others),
///     }
/// }
/// ```
///
/// # What is announced
/// After [`WakeUp::arm`] has returned [`Arm::Armed`], each of these makes the descriptor readable, and it stays so until it is armed again:
/// a message, a bell, a signal, the flags of a collective, an answer, the end of an operation over a network, the end of another rank, and
/// [`Signaller::signal`]. It may become readable without a cause, and it does when the rank has waited in a call meanwhile. A timer makes an
/// armed descriptor readable after 50 ms at most, since a ring may fail; after 1 ms on a network that announces nothing.
/// [`WakeUp::poll`] and [`WakeUp::wait`] sleep on where only that timer has expired.
///
/// Completions of a [`ThreadContext`](super::ThreadContext) are not announced here: a context has its own
/// [descriptor](super::ContextWakeUp).
///
/// An event that came before the arming, and is delivered by progress, makes [`WakeUp::arm`] return [`Arm::Busy`]. [`WakeUp::arm`] cannot
/// know of an event that is only a store in this rank's memory (a [bell](super::Bell), a [signal](super::Symmetric::signals)): check for it
/// after arming and before the sleep, or let [`WakeUp::arm_unless`] do it.
///
/// # Cost
/// Ranks that ring or send pay a system call for an armed rank, and none for a rank that is awake. An arming takes some system calls: it reads the
/// sources, and runs the sleeper's fence. The descriptor and its sources are four descriptors. All wake-ups of a world share them, and one
/// arming arms all. They are closed with the last wake-up; a [`Signaller`] keeps one of them.
///
/// # Security
/// Each user of the machine can ring the socket behind the descriptor, in the same network namespace. That is a spurious wake-up, and
/// costs time.
///
/// # Fork
/// In a forked child all calls fail with [`Error::Forked`], and drops do nothing.
///
/// # On a simulated network
/// Time passes only in waits of this library. Use [`WakeUp::poll`] in place of poll(2): a rank that sleeps in the kernel keeps all
/// others from running.
pub struct WakeUp {
    engine: OneThread<Rc<Engine>, World>,
    wakeup: OneThread<Rc<Wakeup>, World>,
    events: Cell<WakeOn>,
}

impl World {
    /// This rank's event descriptor. Local.
    ///
    /// # Errors
    /// [`Error::Os`] without descriptors to be had; [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::Arm;
    ///
    /// bellwether::threads(2, |world| {
    ///     let bell = world.bell()?;
    ///     if world.rank() == 1 {
    ///         bell.ring(0)?;
    ///     } else {
    ///         let wake_up = world.wake_up()?;
    ///         while bell.count()? == 0 {
    ///             // Rung meanwhile, it does not arm.
    ///             if wake_up.arm_unless(|| bell.count().is_ok_and(|count| count > 0))? == Arm::Armed {
    ///                 wake_up.poll(None)?;
    ///             }
    ///         }
    ///     }
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn wake_up(&self) -> Result<WakeUp> {
        WakeUp::of(self.engine()).placed()
    }
}

impl WakeUp {
    fn of(engine: &Rc<Engine>) -> Result<WakeUp> {
        let wakeup = engine.wakeup()?;
        wakeup.count_handle(true);
        let events = Cell::new(WakeOn::All);
        Ok(WakeUp { engine: OneThread::new(Rc::clone(engine)), wakeup: OneThread::new(wakeup), events })
    }

    /// Chooses the events that make the descriptor readable, from the next arming on; all, if this is not called. The descriptor announces
    /// what any wake-up of the world asks for, and everything while there is a [`Reactor`]. Others may make it readable too.
    pub fn wake_on(&self, events: WakeOn) {
        if self.events.replace(events) != events {
            self.wakeup.count_arrivals_only(events == WakeOn::Arrivals);
        }
    }

    /// Delivers messages and makes progress with operations in flight, as [`World::poll`]. Returns how much was done: 0 when nothing is left.
    ///
    /// # Errors
    /// As [`World::poll`].
    #[inline]
    #[track_caller]
    pub fn progress(&self) -> Result<usize> {
        self.engine.poll_alive("making progress").placed()
    }

    /// Arms the descriptor. Needed before each sleep; it takes back that the descriptor is readable. Makes no progress, other than to send
    /// what had to wait. This takes a signal that came while no thread waited, and then returns [`Arm::Busy`] once.
    ///
    /// # Errors
    /// [`Error::InsideHandler`], [`Error::Forked`], [`Error::MemoryLost`].
    #[track_caller]
    pub fn arm(&self) -> Result<Arm> {
        Ok(if self.engine.arm(&self.wakeup).placed()? { Arm::Armed } else { Arm::Busy })
    }

    /// As [`WakeUp::arm`], and [`Arm::Busy`] if `ready` holds when it is armed: for events that are a store in this rank's memory.
    ///
    /// # Errors
    /// As [`WakeUp::arm`].
    #[track_caller]
    pub fn arm_unless(&self, ready: impl FnOnce() -> bool) -> Result<Arm> {
        Ok(match self.arm()? {
            Arm::Armed if ready() => Arm::Busy,
            arm => arm,
        })
    }

    /// Sleeps until the descriptor is readable, for at most `limit`; whether it is. A signal of the system does not end the sleep, nor does
    /// the timer of 50 ms. Makes no progress. On a simulated network time is virtual.
    ///
    /// # Errors
    /// Those of poll(2), as [`Error::Os`]; [`Error::Forked`]; on a simulated network [`Error::Standstill`].
    #[track_caller]
    pub fn poll(&self, limit: Option<Duration>) -> Result<bool> {
        self.engine.poll_descriptor(&self.wakeup, limit).placed()
    }

    /// Arms and sleeps until something comes. Returns at once if something has come already. Makes no progress: no handler runs in it.
    ///
    /// # Errors
    /// As [`WakeUp::arm`] and [`WakeUp::poll`].
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.engine.wait_for_event(&self.wakeup, None).map(drop).placed()
    }

    /// As [`WakeUp::wait`], for at most `limit`; whether something came.
    ///
    /// # Errors
    /// As [`WakeUp::wait`].
    #[track_caller]
    pub fn wait_for(&self, limit: Duration) -> Result<bool> {
        self.engine.wait_for_event(&self.wakeup, Some(limit)).placed()
    }

    /// Returns soon after `word` has been changed, by a put of another rank or by any thread, or when something comes. It may return
    /// earlier: call it in a loop. Polls the word for a few microseconds, then sleeps for at most a millisecond. Makes no progress.
    ///
    /// # Errors
    /// As [`WakeUp::arm`] and [`WakeUp::poll`].
    #[track_caller]
    pub fn wait_mem(&self, word: &AtomicU64) -> Result<()> {
        let before = word.load(Ordering::Acquire);
        // In virtual time no other rank runs meanwhile.
        let spins =
            if self.engine.waiting.patience().crowded || self.engine.networks.pace().is_some() { 1 } else { SPINS };
        for _ in 0..spins {
            if word.load(Ordering::Acquire) != before {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.engine.nap_until_event(&self.wakeup, STORED).placed()
    }

    /// For tests: from now on neither a timer nor a notice of virtual time makes the descriptor readable instead of an announcement.
    #[doc(hidden)]
    pub fn trust_announcements(&self) {
        self.wakeup.trust_announcements();
    }

    /// Makes the descriptor readable from any thread of this process.
    pub fn signaller(&self) -> Signaller {
        Signaller::of(&self.engine, &self.wakeup)
    }

    /// Whether this process is the rank, and not a child forked from it.
    pub(crate) fn is_own(&self) -> bool {
        self.engine.is_own()
    }

    /// As [`Signaller::signal`].
    ///
    /// # Errors
    /// As [`Signaller::signal`].
    pub fn signal(&self) -> Result<()> {
        self.signaller().signal()
    }

    /// Takes over the tasks that await something of this rank: from now on they sleep until something comes. See [`Reactor`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on a simulated network.
    #[track_caller]
    pub fn reactor(self) -> Result<Reactor> {
        self.engine.begin_driver().placed()?;
        let reactor = Reactor { wake_up: self };
        // Readable: its first turn is due.
        reactor.wake_up.signal()?;
        Ok(reactor)
    }
}

impl Drop for WakeUp {
    fn drop(&mut self) {
        self.wake_on(WakeOn::All);
        self.wakeup.count_handle(false);
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.descriptor()
    }
}

impl AsRawFd for WakeUp {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl std::fmt::Debug for WakeUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WakeUp(rank {}, descriptor {})", self.engine.rank, self.as_raw_fd())
    }
}

/// Makes the descriptor of a [`WakeUp`] readable, from any thread of the process.
#[derive(Clone)]
pub struct Signaller {
    signals: Arc<OwnedFd>,
    owner: Owner,
    rank: usize,
    /// In virtual time a rank that waits does not sleep in the kernel.
    pace: Option<Arc<Lock<Box<dyn Pace + Send>>>>,
}

impl std::fmt::Debug for Signaller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signaller(rank {})", self.rank)
    }
}

impl Signaller {
    pub(super) fn of(engine: &Engine, wakeup: &Wakeup) -> Signaller {
        let pace = engine.networks.pace().map(|pace| Arc::new(Lock::new(pace.apart())));
        Signaller { signals: Arc::clone(wakeup.signals()), owner: wakeup.owner(), rank: engine.rank, pace }
    }

    pub(super) fn of_context(signals: &Arc<OwnedFd>, owner: Owner, rank: usize) -> Signaller {
        Signaller { signals: Arc::clone(signals), owner, rank, pace: None }
    }

    /// Makes the descriptor readable: ends a wait or a poll, or makes the next [`WakeUp::arm`] [`Arm::Busy`]. Several signals before that
    /// count as one. Does nothing when the last wake-up of the world is gone. Never blocks, except that on a simulated network it takes
    /// the network's lock. There, virtual time does not wait for threads that are not ranks: a wait that only such a thread would end fails with
    /// [`Error::Standstill`].
    ///
    /// # Errors
    /// [`Error::Os`]; [`Error::Forked`].
    pub fn signal(&self) -> Result<()> {
        const DOING: &str = "signalling";
        if !self.owner.is_current() {
            let (parent, child) = (self.owner.pid(), std::process::id());
            return Err(Error::Forked { operation: DOING, rank: self.rank, parent, child });
        }
        match rustix::io::write(&self.signals, &1u64.to_ne_bytes()) {
            // Full: it is readable.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(errno) => return Err(Error::os(DOING, "write", errno)),
        }
        if let Some(pace) = &self.pace {
            pace.lock().notify(self.rank);
        }
        Ok(())
    }
}

/// Drives the tasks that await something of this rank, from a program's own loop of events. Made by [`WakeUp::reactor`].
///
/// While there is one, the futures of this library that are not ready wait to be woken, so that the executor's thread can sleep. Without one
/// they ask to be polled again at once. Call [`Reactor::turn`] once at the beginning and each time the descriptor is readable: it makes
/// progress, arms the descriptor and wakes the tasks. Everything stays on the thread of the world. [`Driver`] is such a
/// loop as a future. Futures of [contexts](super::ThreadContext) over a network are polled each
/// millisecond, unless their context has a [descriptor](super::ContextWakeUp).
///
/// When something comes all tasks that wait are woken, and each checks what it waits for.
///
/// Dropping it leaves the tasks to poll again and again, as before.
#[derive(Debug)]
pub struct Reactor {
    wake_up: WakeUp,
}

impl Reactor {
    /// Makes progress until nothing is left, arms the descriptor, and wakes the tasks that wait. Never blocks.
    ///
    /// # Errors
    /// As [`World::poll`] and [`WakeUp::arm`]. The tasks are woken, and meet the error themselves. [`Error::PeerLost`] comes from each turn that
    /// finds nothing else; the descriptor is armed all the same, so that a program that goes on sleeps until something comes.
    #[track_caller]
    pub fn turn(&self) -> Result<()> {
        self.wake_up.engine.drive_tasks(&self.wake_up.wakeup).placed()
    }

    /// Makes the descriptor readable, from any thread.
    pub fn signaller(&self) -> Signaller {
        self.wake_up.signaller()
    }

    /// A future that turns this whenever the descriptor is readable, for an executor that has no way to wait for descriptors.
    ///
    /// # Errors
    /// [`Error::Os`] without a thread or a descriptor to be had.
    #[track_caller]
    pub fn into_driver(self) -> Result<Driver> {
        Ok(Driver { watch: Watch::start(self.as_fd(), self.wake_up.wakeup.owner())?, reactor: self }).placed()
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.wake_up.engine.wakeup.end_driver(&self.wake_up.wakeup);
    }
}

impl AsFd for Reactor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_up.as_fd()
    }
}

impl AsRawFd for Reactor {
    fn as_raw_fd(&self) -> RawFd {
        self.wake_up.as_raw_fd()
    }
}

/// A future that drives the tasks of a rank in any executor of one thread; made by [`Reactor::into_driver`]. It is never ready but with an
/// error: give it to the executor beside the tasks, or `select` it with them. A thread of its own sleeps in poll(2) and wakes it.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Driver {
    reactor: Reactor,
    watch: Watch,
}

impl Future for Driver {
    type Output = Result<Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Infallible>> {
        if let Err(error) = self.reactor.wake_up.engine.check_own("driving tasks") {
            return Poll::Ready(Err(error));
        }
        // Not each time that its task is polled: a turn wakes tasks, of which its own may be one.
        let turned = match self.reactor.wake_up.wakeup.poll(Some(Duration::ZERO)) {
            Ok(true) => self.reactor.turn(),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = turned {
            return Poll::Ready(Err(error));
        }
        self.watch.wake_when_readable(context.waker());
        Poll::Pending
    }
}

/// The thread that sleeps in poll(2).
#[derive(Debug)]
struct Watch {
    shared: Arc<WatchShared>,
    thread: Option<JoinHandle<()>>,
    owner: Owner,
}

#[derive(Debug)]
struct WatchShared {
    /// The waker to wake when the descriptor is readable; whether the thread is to end.
    waker: Mutex<(Option<Waker>, bool)>,
    changed: Condvar,
    stop: OwnedFd,
}

impl Watch {
    fn start(descriptor: BorrowedFd<'_>, owner: Owner) -> Result<Watch> {
        const DOING: &str = "driving tasks";
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::os(DOING, "eventfd", errno))?;
        let descriptor =
            descriptor.try_clone_to_owned().map_err(|source| Error::Os { doing: DOING, call: "dup", source })?;
        let shared = Arc::new(WatchShared { waker: Mutex::default(), changed: Condvar::new(), stop });
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("bellwether driver".into());
        let thread = thread.spawn(move || watched.run(descriptor.as_fd())).map_err(|source| Error::Os {
            doing: DOING,
            call: "clone",
            source,
        })?;
        Ok(Watch { shared, thread: Some(thread), owner })
    }

    fn wake_when_readable(&self, waker: &Waker) {
        let waker = waker.clone();
        let former = self.shared.lock().0.replace(waker);
        self.shared.changed.notify_one();
        // The program's code runs outside the lock.
        drop(former);
    }
}

impl WatchShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Option<Waker>, bool)> {
        self.waker.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn run(&self, descriptor: BorrowedFd<'_>) {
        let mut state = self.lock();
        loop {
            if state.1 {
                return;
            }
            if state.0.is_none() {
                state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            }
            drop(state);
            let mut polled = [descriptor, self.stop.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let _ = rustix::event::poll(&mut polled, None);
            let is_readable = polled[0].revents().intersects(PollFlags::IN | PollFlags::ERR);
            state = self.lock();
            // An interrupted poll says nothing: the thread polls again.
            if is_readable && let Some(waker) = state.0.take() {
                drop(state);
                waker.wake();
                state = self.lock();
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // A forked child has no such thread, and the descriptor that stops it is the parent's.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.lock().1 = true;
        self.shared.changed.notify_one();
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
