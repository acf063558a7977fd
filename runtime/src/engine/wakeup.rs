//! A descriptor that becomes readable when something comes, for ranks that wait in poll(2) or in another program's loop of events.
//!
//! It is an epoll descriptor of four kinds of sources: a socket that mapped peers ring, an eventfd that this process's own threads write,
//! the descriptors of the networks, and a timer for what nothing announces. `sleep/README.md` says how no wake-up is lost.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::remote_access::EVENTS;
use super::{Engine, Pace};
use crate::error::{Error, Result};
use crate::membership::JobMemory;
use crate::sleep::{Listener, WakeSocket, listen};
use crate::transport::Events;

/// Between looks at what nothing announces. Chosen: the latency that it may add; see `Engine::sleep`.
const UNANNOUNCED: Duration = Duration::from_millis(1);
/// Between looks for dead peers, where nobody supervises them. Chosen: 20 wake-ups a second cost nothing, and a death is told soon.
const UNSUPERVISED: Duration = Duration::from_millis(50);
/// Polls of a driver before it lets tasks run. Chosen.
const BURST: usize = 64;

const DOING: &str = "waiting on a descriptor";

/// The descriptor of an engine, if it has one now.
#[derive(Default)]
pub(super) struct Slot {
    wakeup: RefCell<Weak<Wakeup>>,
    /// The descriptor is armed: a sleep of another kind has to tell.
    armed: Cell<bool>,
}

/// The descriptor and its sources.
pub(crate) struct Wakeup {
    job: Arc<JobMemory>,
    rank: usize,
    socket: WakeSocket,
    signals: Arc<OwnedFd>,
    alarm: OwnedFd,
    is_set: Cell<bool>,
    gathered: OwnedFd,
    /// What the networks announce.
    events: Cell<Events>,
    /// Ends of ranks that an arming has told of.
    ends: Cell<u32>,
    /// Notices of virtual time when it was armed.
    notices: Cell<u64>,
    /// When dead peers were looked for.
    looked: Cell<Option<Instant>>,
    /// Drivers of tasks.
    drivers: Cell<usize>,
    /// Tasks that wait for something of this rank, by what their wakers are.
    tasks: RefCell<HashMap<(usize, usize), Waker>>,
}

impl Wakeup {
    fn new(engine: &Engine) -> Result<Wakeup> {
        let os = |call| move |errno: Errno| Error::os("making an event descriptor", call, errno);
        let socket = WakeSocket::new().map_err(|source| Error::Os {
            doing: "making an event descriptor",
            call: "socket",
            source,
        })?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let signals = Arc::new(rustix::event::eventfd(0, flags).map_err(os("eventfd"))?);
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let alarm = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(os("timerfd_create"))?;
        let gathered = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("epoll_create"))?;
        let own = [socket.descriptor(), signals.as_fd(), alarm.as_fd()];
        for descriptor in own.into_iter().chain(engine.networks.events()) {
            epoll::add(&gathered, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(os("epoll_ctl"))?;
        }
        let (job, rank) = (Arc::clone(&engine.job), engine.rank);
        job.show_socket(rank, socket.name());
        Ok(Wakeup {
            ends: Cell::new(job.ends()),
            job,
            rank,
            socket,
            signals,
            alarm,
            is_set: Cell::new(false),
            gathered,
            events: Cell::new(EVENTS),
            notices: Cell::new(0),
            looked: Cell::new(None),
            drivers: Cell::new(0),
            tasks: RefCell::default(),
        })
    }

    /// The descriptor.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.gathered.as_fd()
    }

    /// What any thread writes to make the descriptor readable.
    pub(crate) fn signals(&self) -> &Arc<OwnedFd> {
        &self.signals
    }

    /// Which events of networks it announces.
    pub(crate) fn set_events(&self, events: Events) {
        self.events.set(events);
    }

    /// Whether the descriptor becomes readable within `limit`. A signal of the system does not end the wait.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn poll(&self, limit: Option<Duration>) -> Result<bool> {
        poll_one(self.gathered.as_fd(), limit)
    }

    /// Takes the signals that came. Returns whether any did.
    fn take_signals(&self) -> bool {
        rustix::io::read(&self.signals, &mut [0; 8]).is_ok()
    }

    /// Makes the descriptor readable after `time`; `None`: not by time.
    fn set_alarm(&self, time: Option<Duration>) {
        if !self.is_set.replace(time.is_some()) && time.is_none() {
            return;
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = time.map_or(zero, |time| {
            let time = time.max(Duration::from_nanos(1));
            Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
        });
        let setting = Itimerspec { it_interval: zero, it_value };
        // Setting it also takes back an earlier expiry.
        let set = rustix::time::timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &setting);
        debug_assert!(set.is_ok(), "a valid time for a timer of ours");
    }

    /// Makes the descriptor readable now, until it is armed.
    fn make_readable(&self) {
        self.set_alarm(Some(Duration::ZERO));
    }

    /// Wakes every task that waits for something of this rank.
    pub(crate) fn wake_tasks(&self) {
        // Out of its place: a waker may run a task at once, which waits again.
        let tasks = self.tasks.take();
        tasks.into_values().for_each(Waker::wake);
    }

    fn add_task(&self, waker: &Waker) {
        let key = (waker.data() as usize, std::ptr::from_ref(waker.vtable()) as usize);
        self.tasks.borrow_mut().entry(key).or_insert_with(|| waker.clone());
    }
}

/// Whether `descriptor` becomes readable within `limit`.
fn poll_one(descriptor: BorrowedFd<'_>, limit: Option<Duration>) -> Result<bool> {
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = end.map(|end| {
            let left = end.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::os(DOING, "poll", errno)),
            Ok(ready) => return Ok(ready > 0),
        }
    }
}

impl Drop for Wakeup {
    fn drop(&mut self) {
        // Before the socket is gone: a waker that cannot ring it then knows why.
        self.job.show_socket(self.rank, 0);
        self.wake_tasks();
    }
}

/// The engine as it arms its descriptor.
struct Ears<'a>(&'a Engine, &'a Wakeup);

impl Listener for Ears<'_> {
    fn drain(&mut self) {
        self.1.socket.drain();
        self.1.set_alarm(None);
    }

    fn has_work(&mut self) -> bool {
        let Ears(engine, wakeup) = *self;
        let armed = engine.networks.arm(wakeup.events.get());
        let moved = engine.flush();
        let ends = wakeup.job.ends();
        !armed
            || moved
            || engine.interface.any_waiting()
            || engine.faults.any.get()
            || wakeup.ends.replace(ends) != ends
    }
}

impl Engine {
    /// The descriptor of this rank, made now if it has none.
    ///
    /// # Errors
    /// [`Error::Os`] without descriptors to be had; [`Error::Forked`].
    pub(crate) fn wakeup(&self) -> Result<Rc<Wakeup>> {
        self.check_own("making an event descriptor")?;
        if let Some(wakeup) = self.wakeup.wakeup.borrow().upgrade() {
            return Ok(wakeup);
        }
        let wakeup = Rc::new(Wakeup::new(self)?);
        self.wakeup.armed.set(false);
        *self.wakeup.wakeup.borrow_mut() = Rc::downgrade(&wakeup);
        Ok(wakeup)
    }

    /// Arms: what comes from now on makes the descriptor readable. `false`: something has come already, or was signalled.
    ///
    /// # Errors
    /// [`Error::InsideHandler`], [`Error::Forked`], [`Error::MemoryLost`].
    pub(crate) fn arm(&self, wakeup: &Wakeup) -> Result<bool> {
        self.check_outside_handler(DOING)?;
        if wakeup.take_signals() {
            return Ok(false);
        }
        self.arm_apart_from_signals(wakeup)
    }

    fn arm_apart_from_signals(&self, wakeup: &Wakeup) -> Result<bool> {
        // Arming takes back what made the descriptor readable, which may be what some task waits for.
        wakeup.wake_tasks();
        if !self.job.is_intact() {
            return Err(Error::MemoryLost { doing: DOING.into() });
        }
        let is_due = |looked: &Instant| looked.elapsed() >= UNSUPERVISED;
        if !self.job.supervised() && self.pace().is_none() && wakeup.looked.get().as_ref().is_none_or(is_due) {
            wakeup.looked.set(Some(Instant::now()));
            self.check_for_dead();
        }
        wakeup.notices.set(self.pace().map_or(0, Pace::notices));
        let armed = listen(self.job.sleep_word(self.rank), self.fences(), &mut Ears(self, wakeup));
        self.wakeup.armed.set(armed);
        if armed {
            self.set_alarm(wakeup);
        }
        Ok(armed)
    }

    /// Sets the timer for what may come unannounced.
    fn set_alarm(&self, wakeup: &Wakeup) {
        if self.pace().is_some() {
            return;
        }
        let is_brief = self.may_come_unseen() || self.job.may_be_deaf(self.rank);
        let brief = is_brief.then_some(UNANNOUNCED);
        let unsupervised = (!self.job.supervised() && self.size > 1).then_some(UNSUPERVISED);
        wakeup.set_alarm([brief, self.networks.longest_sleep(), unsupervised].into_iter().flatten().min());
    }

    /// Makes an armed descriptor readable, since this rank is about to sleep otherwise and takes the announcement back.
    #[inline]
    pub(super) fn disarm_aloud(&self) {
        if self.wakeup.armed.get() {
            self.disarm_now();
        }
    }

    #[cold]
    fn disarm_now(&self) {
        self.wakeup.armed.set(false);
        if let Some(wakeup) = self.wakeup.wakeup.borrow().upgrade() {
            wakeup.make_readable();
        }
    }

    /// Whether the descriptor becomes readable within `limit`. In virtual time that is a limit of it. Makes no progress.
    ///
    /// # Errors
    /// Those of the system; in virtual time [`Error::Standstill`] if nothing can come any more.
    pub(crate) fn poll_descriptor(&self, wakeup: &Wakeup, limit: Option<Duration>) -> Result<bool> {
        let Some(pace) = self.pace() else { return wakeup.poll(limit) };
        let end = limit.map(|limit| pace.now().saturating_add(limit));
        loop {
            if wakeup.poll(Some(Duration::ZERO))? {
                return Ok(true);
            }
            if self.wakeup.armed.get() && pace.notices() != wakeup.notices.get() {
                // Virtual time knows of events that the interface does not announce.
                wakeup.make_readable();
                return Ok(true);
            }
            if end.is_some_and(|end| pace.now() >= end) {
                return Ok(false);
            }
            // It is armed all the time: notices tell what came.
            let armed = self.wakeup.armed.replace(false);
            let goes_on = self.sleep_virtual(pace, end);
            self.wakeup.armed.set(armed);
            if !goes_on && end.is_none() {
                return Err(Error::Standstill { doing: DOING.into() });
            }
        }
    }

    /// Arms and sleeps until something comes, for at most `limit`; `false`: nothing did. Makes no progress. Returns at once if
    /// something waits to be handled.
    ///
    /// # Errors
    /// As [`Engine::arm`] and [`Engine::poll_descriptor`].
    pub(crate) fn wait_for_event(&self, wakeup: &Wakeup, limit: Option<Duration>) -> Result<bool> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            if !self.arm(wakeup)? {
                return Ok(true);
            }
            let left = match self.pace() {
                Some(_) => limit,
                None => end.map(|end| end.saturating_duration_since(Instant::now())),
            };
            if !self.poll_descriptor(wakeup, left)? {
                return Ok(false);
            }
            // A look for dead peers is nothing to tell of: arming looks, and tells of an end.
            let is_look = self.pace().is_none()
                && !self.may_come_unseen()
                && self.networks.is_empty()
                && !self.job.may_be_deaf(self.rank)
                && self.is_still_armed(wakeup)
                && !poll_one(wakeup.signals.as_fd(), Some(Duration::ZERO))?;
            if !is_look {
                return Ok(true);
            }
        }
    }

    /// Sleeps until something comes, for at most `limit`, without the descriptor. May return early.
    pub(crate) fn nap_until_event(&self, wakeup: &Wakeup, limit: Duration) -> Result<()> {
        self.check_outside_handler(DOING)?;
        if self.arm(wakeup)? {
            self.poll_descriptor(wakeup, Some(limit))?;
        }
        Ok(())
    }

    /// Nothing has come since it was armed.
    fn is_still_armed(&self, wakeup: &Wakeup) -> bool {
        self.wakeup.armed.get()
            && self.job.sleep_word(self.rank).is_announced()
            && (self.networks.is_empty() || matches!(wakeup.poll(Some(Duration::ZERO)), Ok(false)))
    }

    /// What drives the tasks of this rank, if there is such a driver and no wait does now.
    pub(super) fn driver(&self) -> Option<Rc<Wakeup>> {
        if self.is_driving() {
            return None;
        }
        self.wakeup.wakeup.borrow().upgrade().filter(|wakeup| wakeup.drivers.get() > 0)
    }

    /// Adds a driver of tasks, until [`Engine::end_driver`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] in virtual time.
    pub(crate) fn begin_driver(&self, wakeup: &Wakeup) -> Result<()> {
        if self.pace().is_some() {
            let why =
                "on a simulated network time passes only in waits of this library: tasks are polled again and again"
                    .into();
            return Err(Error::InvalidArgument { operation: "driver", why });
        }
        wakeup.drivers.set(wakeup.drivers.get() + 1);
        Ok(())
    }

    /// Ends a driver. Tasks that wait are polled, and without another driver again and again.
    pub(crate) fn end_driver(&self, wakeup: &Wakeup) {
        wakeup.drivers.set(wakeup.drivers.get() - 1);
        wakeup.wake_tasks();
    }

    /// What a driver does when the descriptor is readable: makes progress until nothing is left, wakes the tasks that wait, and arms.
    ///
    /// # Errors
    /// As [`Engine::arm`] and [`Engine::poll_alive`].
    pub(crate) fn drive_tasks(&self, wakeup: &Wakeup) -> Result<()> {
        let _waking = Waking(wakeup);
        for _ in 0..BURST {
            wakeup.take_signals();
            if self.poll_alive("driving tasks")? == 0 && self.arm(wakeup)? {
                return Ok(());
            }
        }
        // Others of the program's tasks have their turn first.
        wakeup.make_readable();
        Ok(())
    }

    /// What a future does that is not ready: with a driver it waits to be woken, else it asks to be polled again at once. Its last
    /// check, `ready`, comes after the arming, so nothing is missed in between.
    #[cold]
    pub(crate) fn sleep_or_again<T>(
        &self,
        context: &Context<'_>,
        ready: &mut dyn FnMut() -> Result<Option<T>>,
    ) -> Poll<Result<T>> {
        let Some(wakeup) = self.driver() else {
            context.waker().wake_by_ref();
            return Poll::Pending;
        };
        if let Err(error) = self.arm_for_task(&wakeup) {
            return Poll::Ready(Err(error));
        }
        match ready() {
            Ok(None) => {
                self.let_sleep(&wakeup, context);
                Poll::Pending
            }
            Ok(Some(value)) => Poll::Ready(Ok(value)),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Sees to it that the driver wakes a task that is about to wait and checks once more what it waits for: at what comes from now on, or,
    /// if something has come that the driver has to handle, after that.
    ///
    /// # Errors
    /// As [`Engine::arm`].
    pub(super) fn arm_for_task(&self, wakeup: &Wakeup) -> Result<()> {
        if !self.is_still_armed(wakeup) && !self.arm_apart_from_signals(wakeup)? {
            // Arming has taken back what would have told the driver.
            wakeup.make_readable();
        }
        Ok(())
    }

    /// The task sleeps until the driver wakes it. [`Engine::arm_for_task`] was called, and what the task waits for was checked since.
    pub(super) fn let_sleep(&self, wakeup: &Wakeup, context: &Context<'_>) {
        if self.wakeup.armed.get() {
            // The check may have left something to send.
            self.set_alarm(wakeup);
        }
        wakeup.add_task(context.waker());
    }

    /// Something happened to this rank by its own doing, which tasks may wait for.
    #[inline]
    pub(crate) fn wake_tasks(&self) {
        // Also in a wait of this rank, whose end lets the tasks run.
        if let Some(wakeup) = self.wakeup.wakeup.borrow().upgrade() {
            wakeup.wake_tasks();
        }
    }
}

/// Wakes tasks when a driver's turn ends, also by an error or a panic of a handler.
struct Waking<'a>(&'a Wakeup);

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        self.0.wake_tasks();
    }
}
