//! A descriptor that becomes readable when something comes, for ranks that wait in poll(2) or in another program's loop of events.
//!
//! It is an epoll descriptor of four kinds of sources: a socket that mapped peers ring, an eventfd that this process's own threads write,
//! the descriptors of the networks, and a timer for events that no source announces. `sleep/README.md` says how no wake-up is lost.

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
use crate::memory::owner::Owner;
use crate::sleep::{Fences, Listener, WakeSocket, listen};
use crate::transport::Events;

/// Between looks at what nothing announces. Chosen: the latency that it may add; see `Engine::sleep`.
pub(super) const UNANNOUNCED: Duration = Duration::from_millis(1);
/// Longest time that an armed descriptor stays silent. Then its rank looks for dead peers where they have no supervisor, and for events
/// that a failed ring did not announce. Chosen: 20 wake-ups a second cost nothing.
pub(super) const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Tasks that wait before those of dropped futures are looked for. Chosen.
const TASKS: usize = 64;
/// Polls of a driver before it lets tasks run. Chosen.
const BURST: usize = 64;

const DOING: &str = "waiting on a descriptor";

/// The descriptor of an engine, if it has one now.
pub(crate) struct Slot {
    owner: Owner,
    wakeup: RefCell<Weak<Wakeup>>,
    /// The descriptor is armed: a sleep of another kind has to tell.
    armed: Cell<bool>,
    /// Drivers of tasks.
    drivers: Cell<usize>,
}

impl Slot {
    /// None yet, of a rank of this process.
    pub(super) fn new(owner: Owner) -> Slot {
        Slot { owner, wakeup: RefCell::default(), armed: Cell::new(false), drivers: Cell::new(0) }
    }

    fn current(&self) -> Option<Rc<Wakeup>> {
        self.wakeup.borrow().upgrade()
    }

    fn has_drivers(&self) -> bool {
        self.drivers.get() > 0
    }

    /// Makes an armed descriptor readable, since this rank is about to sleep otherwise and takes the announcement back.
    #[inline]
    pub(super) fn disarm(&self) {
        if self.armed.get() {
            self.disarm_now();
        }
    }

    #[cold]
    fn disarm_now(&self) {
        if !self.owner.is_current() {
            return;
        }
        self.armed.set(false);
        if let Some(wakeup) = self.current() {
            wakeup.make_readable();
        }
    }

    /// The descriptor is no longer armed, and is made readable otherwise.
    pub(super) fn note_disarmed(&self) {
        self.armed.set(false);
    }

    /// Adds a driver of tasks, until [`Slot::end_driver`].
    fn add_driver(&self) {
        self.drivers.set(self.drivers.get() + 1);
        let _ = DRIVERS.try_with(|drivers| drivers.set(drivers.get() + 1));
    }

    /// Ends a driver. Tasks that wait are polled, and without another driver again and again.
    pub(crate) fn end_driver(&self, wakeup: &Wakeup) {
        self.drivers.set(self.drivers.get() - 1);
        let _ = DRIVERS.try_with(|drivers| drivers.set(drivers.get() - 1));
        if self.owner.is_current() {
            wakeup.wake_tasks();
        }
    }

    /// Something happened to this rank by its own doing, which tasks may wait for.
    #[inline]
    pub(crate) fn wake_tasks(&self) {
        if !self.has_drivers() {
            return;
        }
        // Also in a wait of this rank, whose end lets the tasks run.
        if let Some(wakeup) = self.current() {
            wakeup.wake_tasks();
        }
    }
}

thread_local! {
    /// Drivers of tasks of all worlds of this thread.
    static DRIVERS: Cell<usize> = const { Cell::new(0) };
}

/// Whether any world of this thread has a driver.
pub(super) fn has_drivers() -> bool {
    DRIVERS.try_with(Cell::get).unwrap_or(0) > 0
}

/// The descriptor and its sources.
pub(crate) struct Wakeup {
    job: Arc<JobMemory>,
    owner: Owner,
    rank: usize,
    socket: WakeSocket,
    signals: Arc<OwnedFd>,
    alarm: OwnedFd,
    /// When the timer expires, and how long before that it was set.
    due: Cell<Option<(Instant, Duration)>>,
    gathered: OwnedFd,
    /// Handles of programs, and those of them that ask for arrivals alone.
    handles: Cell<usize>,
    arrivals_only: Cell<usize>,
    /// The count of ended ranks that the last arming has reported.
    ends: Cell<u64>,
    /// Notices of virtual time when it was armed.
    notices: Cell<u64>,
    /// When dead peers were looked for.
    looked: Cell<Option<Instant>>,
    /// For tests: see [`Wakeup::trust_announcements`].
    trusts: Cell<bool>,
    /// Tasks that wait for an event of this rank, by the [`key`] of their wakers.
    tasks: RefCell<HashMap<(usize, usize), Waker>>,
    /// With so many all are woken: those of dropped futures do not come back.
    tasks_max: Cell<usize>,
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
            owner: *engine.node.owner(),
            rank,
            socket,
            signals,
            alarm,
            due: Cell::new(None),
            gathered,
            handles: Cell::new(0),
            arrivals_only: Cell::new(0),
            notices: Cell::new(0),
            looked: Cell::new(None),
            trusts: Cell::new(false),
            tasks: RefCell::default(),
            tasks_max: Cell::new(TASKS),
        })
    }

    /// The descriptor.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.gathered.as_fd()
    }

    /// The eventfd that any thread writes to make the descriptor readable.
    pub(crate) fn signals(&self) -> &Arc<OwnedFd> {
        &self.signals
    }

    /// For tests: from now on no timer for events that should be announced, so that a lost announcement leaves the rank asleep for ever.
    /// Events that nothing announces keep their timer, such as room for kept operations.
    pub(crate) fn trust_announcements(&self) {
        self.trusts.set(true);
    }

    /// The process that has it, and not a child forked from that.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// A handle of the program begins, which asks for all events, or ends.
    pub(crate) fn count_handle(&self, begins: bool) {
        let handles = self.handles.get();
        self.handles.set(if begins { handles + 1 } else { handles - 1 });
    }

    /// A handle of the program begins to ask for arrivals alone, or ends to.
    pub(crate) fn count_arrivals_only(&self, begins: bool) {
        let handles = self.arrivals_only.get();
        self.arrivals_only.set(if begins { handles + 1 } else { handles - 1 });
    }

    /// The events of networks that some handle asks for. Tasks wait for all.
    fn events(&self, has_drivers: bool) -> Events {
        let narrow = self.arrivals_only.get();
        let is_narrow = !has_drivers && narrow > 0 && narrow == self.handles.get();
        if is_narrow { Events::RECEIVE } else { EVENTS }
    }

    /// Whether the descriptor becomes readable within `limit`. A signal of the system does not end the wait.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn poll(&self, limit: Option<Duration>) -> Result<bool> {
        poll_one(self.gathered.as_fd(), limit)
    }

    /// Takes the signals that came. Returns whether any did.
    pub(super) fn take_signals(&self) -> bool {
        rustix::io::read(&self.signals, &mut [0; 8]).is_ok()
    }

    /// Makes the descriptor readable after `time`, and not before.
    fn set_alarm(&self, time: Duration) {
        let time = time.max(Duration::from_nanos(1));
        self.due.set(Some((Instant::now() + time, time)));
        self.set_timer(time);
    }

    /// Stops the timer, so that an earlier expiry no longer makes the descriptor readable. Virtual time uses no timer.
    pub(super) fn stop_alarm(&self) {
        if self.due.take().is_some() {
            self.set_timer(Duration::ZERO);
        }
    }

    /// Zero stops it.
    fn set_timer(&self, time: Duration) {
        let it_value = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let setting = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // Setting it also takes back an earlier expiry.
        let set = rustix::time::timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &setting);
        debug_assert!(set.is_ok(), "a valid time for a timer of ours");
    }

    /// Makes the descriptor readable after at most `time`, and not at once. A timer that expires in that time, but not soon, is left as it
    /// is: most armings then need no system call.
    pub(super) fn restart_alarm(&self, time: Duration) {
        let now = Instant::now();
        let fits = |(due, _): (Instant, Duration)| due >= now + time / 2 && due <= now + time;
        if !self.due.get().is_some_and(fits) {
            self.set_alarm(time);
        }
    }

    /// Sets the timer if it was set for longer than `time`. Called again and again it expires all the same.
    fn shorten_alarm(&self, time: Duration) {
        if self.due.get().is_none_or(|(_, set)| set > time) {
            self.set_alarm(time);
        }
    }

    /// Makes the descriptor readable now, until it is armed.
    fn make_readable(&self) {
        self.set_alarm(Duration::ZERO);
    }

    /// Whether a ring or a signal makes the descriptor readable.
    fn is_rung(&self) -> bool {
        let sources = [self.socket.descriptor(), self.signals.as_fd()];
        sources.into_iter().any(|source| !matches!(poll_one(source, Some(Duration::ZERO)), Ok(false)))
    }

    /// Wakes every task that waits for something of this rank.
    pub(crate) fn wake_tasks(&self) {
        // Out of its place: a waker may run a task at once, which waits again.
        let tasks = self.tasks.take();
        if tasks.is_empty() {
            return;
        }
        if tasks.len() < self.tasks_max.get() / 4 {
            self.tasks_max.set((self.tasks_max.get() / 2).max(TASKS));
        }
        let mut rest = Rest { wakeup: self, tasks: tasks.into_values() };
        for waker in rest.tasks.by_ref() {
            waker.wake();
        }
    }

    /// Runs code of the program: clones and drops wakers, and may wake tasks.
    fn add_task(&self, waker: &Waker) {
        if self.tasks.borrow().contains_key(&key(waker)) {
            return;
        }
        if self.tasks.borrow().len() >= self.tasks_max.get() {
            self.tasks_max.set(self.tasks_max.get() * 2);
            self.wake_tasks();
        }
        let waker = waker.clone();
        let former = self.tasks.borrow_mut().insert(key(&waker), waker);
        drop(former);
    }
}

/// The key that tells tasks apart.
pub(super) fn key(waker: &Waker) -> (usize, usize) {
    (waker.data() as usize, std::ptr::from_ref(waker.vtable()) as usize)
}

/// Tasks that are being woken. If a waker panics, the others wait on, and the driver is told.
struct Rest<'a> {
    wakeup: &'a Wakeup,
    tasks: std::collections::hash_map::IntoValues<(usize, usize), Waker>,
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        let mut left = false;
        for waker in self.tasks.by_ref() {
            left = true;
            let former = self.wakeup.tasks.borrow_mut().insert(key(&waker), waker);
            drop(former);
        }
        if left {
            self.wakeup.make_readable();
        }
    }
}

/// Whether `descriptor` becomes readable within `limit`.
pub(super) fn poll_one(descriptor: BorrowedFd<'_>, limit: Option<Duration>) -> Result<bool> {
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
        // In a forked child the socket and the tasks are the parent's.
        if !self.owner.is_current() {
            return;
        }
        // Before the socket is gone: a waker that cannot ring it then knows why.
        self.job.show_socket(self.rank, 0);
        self.wake_tasks();
    }
}

/// The engine as it arms its descriptor.
struct Arms<'a> {
    engine: &'a Engine,
    wakeup: &'a Wakeup,
    /// For a thread that dozes: errors wait for a call of the program.
    dozes: bool,
}

impl Listener for Arms<'_> {
    fn drain(&mut self) -> bool {
        self.wakeup.socket.drain()
    }

    fn has_work(&mut self) -> bool {
        let Arms { engine, wakeup, dozes } = *self;
        let armed = engine.networks.arm(wakeup.events(engine.wakeup.has_drivers()));
        let moved = engine.flush();
        let ends = wakeup.job.ends();
        let faulty = !dozes && engine.faults.any();
        !armed || moved || engine.interface.any_waiting() || faulty || wakeup.ends.replace(ends) != ends
    }
}

impl Engine {
    /// The descriptor of this rank, made now if it has none.
    ///
    /// # Errors
    /// [`Error::Os`] without descriptors to be had; [`Error::Forked`].
    pub(crate) fn wakeup(&self) -> Result<Rc<Wakeup>> {
        self.check_own("making an event descriptor")?;
        if let Some(wakeup) = self.wakeup.current() {
            return Ok(wakeup);
        }
        let wakeup = Rc::new(Wakeup::new(self)?);
        self.wakeup.armed.set(false);
        *self.wakeup.wakeup.borrow_mut() = Rc::downgrade(&wakeup);
        Ok(wakeup)
    }

    /// Arms: events that come from now on make the descriptor readable. `false`: an event has come already, or was signalled.
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
        // The descriptor, and what makes it readable, are the parent's.
        self.check_own(DOING)?;
        if !self.job.is_intact() {
            return Err(Error::MemoryLost { doing: DOING.into() });
        }
        // Arming takes back what made the descriptor readable, which may be what some task waits for. Behind it: also what tasks waited for
        // that were added meanwhile.
        let _waking = Waking(wakeup);
        self.look_for_dead(wakeup);
        wakeup.notices.set(self.networks.pace().map_or(0, Pace::notices));
        let armed = self.listen(wakeup, false);
        if armed {
            match self.networks.pace() {
                None => match self.longest_silence(wakeup) {
                    Some(silence) => wakeup.restart_alarm(silence),
                    None => wakeup.stop_alarm(),
                },
                Some(_) => wakeup.stop_alarm(),
            }
        }
        Ok(armed)
    }

    /// Arms, for this rank or for a thread of it that dozes.
    pub(super) fn listen(&self, wakeup: &Wakeup, dozes: bool) -> bool {
        self.wakeup.armed.set(false);
        let mut arms = Arms { engine: self, wakeup, dozes };
        let armed = listen(self.job.sleep_word(self.rank), self.interface.fences(), &mut arms);
        self.wakeup.armed.set(armed);
        armed
    }

    /// Looks for dead peers where no supervisor does, if that is due.
    pub(super) fn look_for_dead(&self, wakeup: &Wakeup) {
        let is_due = |looked: &Instant| looked.elapsed() >= CHECK_EVERY;
        if !self.job.supervised() && self.networks.pace().is_none() && wakeup.looked.get().as_ref().is_none_or(is_due) {
            wakeup.looked.set(Some(Instant::now()));
            self.failures.check_for_dead(&self.networks);
        }
    }

    /// The timer of an armed descriptor: for events that may come unannounced, and for rings that failed.
    fn longest_silence(&self, wakeup: &Wakeup) -> Option<Duration> {
        let is_brief = self.may_come_unseen() || self.job.may_be_unreachable(self.rank);
        let brief = is_brief.then_some(UNANNOUNCED);
        let look = (!wakeup.trusts.get()).then_some(CHECK_EVERY);
        [brief, self.networks.longest_sleep(), look].into_iter().flatten().min()
    }

    /// Whether the descriptor becomes readable within `limit`, for another reason than the regular look for dead peers. In virtual time
    /// `limit` is a virtual time too. Makes no progress.
    ///
    /// # Errors
    /// Those of the system; [`Error::Forked`]; in virtual time [`Error::Standstill`] if nothing can come any more.
    pub(crate) fn poll_descriptor(&self, wakeup: &Wakeup, limit: Option<Duration>) -> Result<bool> {
        self.check_own(DOING)?;
        match self.networks.pace() {
            Some(pace) => self.poll_virtual(wakeup, pace, limit),
            None => self.poll_real(wakeup, limit),
        }
    }

    fn poll_real(&self, wakeup: &Wakeup, limit: Option<Duration>) -> Result<bool> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if !wakeup.poll(left)? {
                return Ok(false);
            }
            if !self.is_look(wakeup) {
                return Ok(true);
            }
            self.look_for_dead(wakeup);
            // It stays armed, and nothing that was announced is taken back: only the timer goes on.
            wakeup.set_alarm(CHECK_EVERY);
            if self.interface.any_waiting() || wakeup.ends.get() != wakeup.job.ends() {
                wakeup.make_readable();
                return Ok(true);
            }
        }
    }

    /// Whether the descriptor is readable only because its timer has expired: the rank is armed, and the announcement still stands.
    fn is_look(&self, wakeup: &Wakeup) -> bool {
        let is_silent = self.networks.is_empty() && !self.may_come_unseen() && !self.job.may_be_unreachable(self.rank);
        is_silent
            && self.job.sleep_word(self.rank).listens()
            && self.is_still_armed(wakeup)
            && wakeup.due.get().is_some_and(|(_, set)| set == CHECK_EVERY)
            && !wakeup.is_rung()
    }

    fn poll_virtual(&self, wakeup: &Wakeup, pace: &dyn Pace, limit: Option<Duration>) -> Result<bool> {
        let end = limit.map(|limit| pace.now().saturating_add(limit));
        loop {
            if wakeup.poll(Some(Duration::ZERO))? {
                return Ok(true);
            }
            let has_notice = self.wakeup.armed.get() && pace.notices() != wakeup.notices.get();
            // A rank of the same node rings no descriptor in virtual time; the sleep below waits for its announcement.
            if has_notice && (!wakeup.trusts.get() || self.may_come_unseen() || self.routes.is_mixed()) {
                // Virtual time knows of events that the interface does not announce.
                wakeup.make_readable();
                return Ok(true);
            }
            if end.is_some_and(|end| pace.now() >= end) {
                return Ok(false);
            }
            // In virtual time the descriptor counts as armed all the time: notices announce each event.
            let armed = self.wakeup.armed.replace(false);
            let goes_on = self.sleep_virtual(pace, end);
            if armed {
                // The sleep has taken the announcement back. No other rank runs meanwhile.
                self.job.sleep_word(self.rank).announce_listening(Fences::Full, || false);
                self.wakeup.armed.set(true);
            }
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
        if !self.arm(wakeup)? {
            return Ok(true);
        }
        self.poll_descriptor(wakeup, limit)
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

    /// The wake-up of the driver of this rank's tasks, if there is a driver and no wait drives them now.
    pub(super) fn driver(&self) -> Option<Rc<Wakeup>> {
        if !self.wakeup.has_drivers() || self.tasks.is_driving() || !self.is_own() {
            return None;
        }
        self.wakeup.current()
    }

    /// Adds a driver of tasks, until [`Slot::end_driver`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] in virtual time.
    pub(crate) fn begin_driver(&self) -> Result<()> {
        if self.networks.pace().is_some() {
            let why =
                "on a simulated network time passes only in waits of this library: tasks are polled again and again"
                    .into();
            return Err(Error::InvalidArgument { operation: "driver", why });
        }
        self.wakeup.add_driver();
        Ok(())
    }

    /// Called by a driver when the descriptor is readable: makes progress until nothing is left, wakes the tasks that wait, and arms.
    ///
    /// # Errors
    /// As [`Engine::arm`] and [`Engine::poll_alive`]. It arms before it returns an error of the latter: the next turn is due when something comes.
    pub(crate) fn drive_tasks(&self, wakeup: &Wakeup) -> Result<()> {
        self.check_outside_handler("driving tasks")?;
        let _waking = Waking(wakeup);
        for _ in 0..BURST {
            wakeup.take_signals();
            let polled = self.poll_alive("driving tasks");
            if matches!(polled, Ok(1..)) {
                continue;
            }
            let armed = self.arm(wakeup)?;
            if let Err(error) = polled {
                if !armed {
                    wakeup.make_readable();
                }
                return Err(error);
            }
            if armed {
                return Ok(());
            }
        }
        // The program's other tasks have their turn first.
        wakeup.make_readable();
        Ok(())
    }

    /// For a future that is not ready: with a driver it waits to be woken, else it asks to be polled again at once. Its last check,
    /// `ready`, comes after the arming, so no event in between is missed.
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

    /// Makes sure that the driver wakes a task that is about to wait: when an event comes from now on, or, if an event has come that the
    /// driver has to handle, after it has. After this call the task checks once more whether it has to wait.
    ///
    /// # Errors
    /// As [`Engine::arm`].
    pub(super) fn arm_for_task(&self, wakeup: &Wakeup) -> Result<()> {
        let armed = match self.is_still_armed(wakeup) {
            // The task may have made progress since, after which some networks announce nothing. Their arming alone wakes no task.
            true => self.networks.arm(wakeup.events(true)) && !self.has_unseen(wakeup),
            false => self.arm_apart_from_signals(wakeup)?,
        };
        if !armed {
            // Arming has taken back what would have told the driver.
            wakeup.make_readable();
        }
        Ok(())
    }

    /// Whether something came since the last arming that the driver has to handle, and of which only the roster or this rank's own progress
    /// knows: the end of a rank, or an error of a message.
    fn has_unseen(&self, wakeup: &Wakeup) -> bool {
        self.faults.any() || wakeup.ends.get() != wakeup.job.ends()
    }

    /// The task sleeps until the driver wakes it. [`Engine::arm_for_task`] was called, and the task has checked since that it has to wait.
    pub(super) fn let_sleep(&self, wakeup: &Wakeup, context: &Context<'_>) {
        if self.wakeup.armed.get() {
            // The check may have left something to send.
            if let Some(silence) = self.longest_silence(wakeup) {
                wakeup.shorten_alarm(silence);
            }
        }
        wakeup.add_task(context.waker());
    }
}

/// Wakes tasks when a driver's turn or an arming ends, also by an error. Behind a panic the descriptor is readable, and the next turn wakes
/// them.
struct Waking<'a>(&'a Wakeup);

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A second panic, of a waker, would abort: the next turn wakes them.
            self.0.make_readable();
        } else {
            self.0.wake_tasks();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use crate::sleep::calls;
    use crate::{Arm, Error, Result, Threads};

    /// Neither rings: the rank itself has found them in the progress that its task has made.
    #[test]
    fn a_task_that_arms_again_leaves_errors_and_ends_of_ranks_to_the_driver() {
        let ran = Threads::new(1).run(|world| -> Result<()> {
            let engine = world.engine();
            let wakeup = engine.wakeup()?;
            wakeup.trust_announcements();
            let again = |wakeup: &super::Wakeup| -> Result<[bool; 2]> {
                let before = wakeup.poll(Some(Duration::ZERO))?;
                engine.arm_for_task(wakeup)?;
                Ok([before, wakeup.poll(Some(Duration::ZERO))?])
            };
            assert!(engine.arm(&wakeup)?);
            assert_eq!(again(&wakeup)?, [false; 2], "nothing has come");
            wakeup.ends.set(wakeup.ends.get() + 1);
            assert_eq!(again(&wakeup)?, [false, true], "a rank has ended");
            assert!(!engine.arm(&wakeup)? && engine.arm(&wakeup)?, "the driver is told, once");
            engine.faults.keep(Error::MemoryLost { doing: "a test".into() });
            assert_eq!(again(&wakeup)?, [false, true], "a message has failed");
            assert!(engine.faults.take().is_err() && engine.arm(&wakeup)?);
            Ok(())
        });
        ran.expect("starts").into_iter().for_each(|outcome| outcome.expect("runs"));
    }

    #[test]
    fn a_ring_makes_a_system_call_only_for_a_rank_that_may_sleep() {
        const RINGS: u64 = 10_000;
        // How often rank 1 has been ready: first awake, then armed.
        let ready = AtomicU64::new(0);
        let program = |world: &crate::World| -> Result<()> {
            let bell = world.bell()?;
            world.barrier()?;
            if world.rank() == 1 {
                let await_rings = |target| -> Result<()> {
                    while bell.count()? < target {
                        std::thread::yield_now();
                    }
                    Ok(())
                };
                ready.store(1, Ordering::SeqCst);
                await_rings(RINGS)?;
                let wake_up = world.wake_up()?;
                for round in 1..=100 {
                    while wake_up.arm()? == Arm::Busy {
                        wake_up.progress()?;
                    }
                    ready.store(1 + round, Ordering::SeqCst);
                    await_rings(RINGS + 2 * round)?;
                }
            } else {
                let await_ready = |times| {
                    while ready.load(Ordering::SeqCst) < times {
                        std::thread::yield_now();
                    }
                };
                await_ready(1);
                let before = calls();
                (0..RINGS).try_for_each(|_| bell.ring(1))?;
                assert_eq!(calls() - before, 0, "rank 1 is awake");
                for round in 1..=100 {
                    await_ready(1 + round);
                    let before = calls();
                    bell.ring(1)?;
                    assert_eq!(calls() - before, 1, "rank 1 is armed");
                    bell.ring(1)?;
                    assert_eq!(calls() - before, 1, "rank 1 was told");
                }
            }
            world.barrier()
        };
        let ran = Threads::new(2).run(program).expect("starts");
        ran.into_iter().for_each(|outcome| outcome.expect("runs"));
    }
}
