//! The state behind a handle: the world, the handler tables, the errors not reported yet, the messages in flight.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use super::arrive;
use super::calls::Calls;
use super::event::Deferred;
use super::failure::{Failure, What};
use super::job::Home;
use super::lost::{self, Lost};
use super::owed::Owed;
use super::parts::{Bells, Done, Entries, Options, Transfers};
use super::poll::Statuses;
use super::port::{self, Entered, Waker};
use super::queue::{self, Queue, Work};
use super::traffic::{Apart, Collective, Place, Traffic};
use super::types::Handle;
use super::{codes, interrupt, kind};
use crate::Background;
use crate::error::{Error, Result};
use crate::message::told_of;
use crate::world::World;

/// Indexes of the address table are below this. Handler values below it are indexes, not addresses.
pub const LOC_ADDRTBL_SZ: usize = 256;
/// Most bytes of a user header.
pub const MAX_UHDR_SZ: usize = 1024;
/// Longest time that a waiting thread stays in the port before it lets other threads of the rank enter. Chosen.
const TURN: Duration = Duration::from_millis(1);
/// Most rounds of progress (`Engine::turn`) that a wait makes at its end, until one of them delivers nothing: a lost task may have sent
/// more.
const TURNS: usize = 16;
/// Most faults that are kept; later ones are dropped. Chosen: the first ones show the cause.
const FAULTS: usize = 64;

/// Which handler runs in the port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Running {
    Nothing,
    Header,
    /// An inline completion handler that does not communicate.
    Local,
    /// An inline completion handler that may send to this task.
    Reply(usize),
}

/// Marks that a handler runs. Dropping it restores the previous mark.
pub(super) struct Runs<'a>(&'a Cell<Running>, Running);

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Runs a function when it is dropped, which undoes what a call has begun: the call returns early, or a handler's panic unwinds through it.
/// A call with nothing to undo `forget`s it. `nopoll_wait` drops it on every path.
pub(super) struct Undo<F: FnMut(&Domain)>(pub(super) Handle, pub(super) F);

impl<F: FnMut(&Domain)> Drop for Undo<F> {
    #[cold]
    fn drop(&mut self) {
        // A handle that has ended has nothing to undo.
        let Ok(domain) = port::enter(self.0) else { return };
        // The values that an event holds may panic when they are dropped. A handler's panic may be unwinding already: a second one would
        // abort.
        if catch_unwind(AssertUnwindSafe(|| (self.1)(&domain))).is_err() {
            domain.fault(codes::HANDLER_PANICKED, domain.world.rank());
        }
    }
}

/// The state behind a handle. One thread uses it at a time: the one in the port.
pub(super) struct Domain {
    pub(super) handle: Handle,
    /// This domain, for the functions that polls call.
    pub(super) me: Weak<Domain>,
    pub(super) world: World,
    /// On a simulated network only this thread may call: ranks take turns there.
    own_thread: Option<ThreadId>,
    pub(super) entries: Entries,
    pub(super) bells: Bells,
    pub(super) options: Options,
    /// Messages that failed. The next calls that make progress return their codes.
    faults: RefCell<VecDeque<Failure>>,
    pub(super) running: Cell<Running>,
    pub(super) interrupts: RefCell<Option<interrupt::Mode>>,
    /// For each task, whether it is purged: nothing is sent to it.
    pub(super) purged: Box<[Cell<bool>]>,
    /// Calls of `Purge_totask` so far.
    pub(super) purges: Cell<u64>,
    /// For each task that was purged, the number of the last such call.
    pub(super) last_purges: RefCell<BTreeMap<usize, u64>>,
    /// Functions that run as events, by the event's word; with each, the task that triggers the event.
    pub(super) deferred: RefCell<BTreeMap<u64, (usize, Deferred)>>,
    /// See [`Domain::end_lost`].
    pub(super) lost: Lost,
    /// States of the tasks that a counter waits for, by the counter's address.
    pub(super) statuses: RefCell<BTreeMap<u64, Statuses>>,
    /// Addresses of counters on which a thread sleeps.
    pub(super) sleepers: RefCell<BTreeSet<usize>>,
    pub(super) done: Done,
    pub(super) traffic: Traffic,
    pub(super) transfers: Transfers,
    /// Answers that other tasks owe, to messages and requests of this task.
    pub(super) owed: Owed,
    /// Time slices of waits ([`TURN`]) that ran out, after which no message was left to deliver.
    turns: Cell<u64>,
    /// Whether polls catch the panics of handlers: see [`Domain::exchange`].
    pub(super) catches: Cell<bool>,
    /// Whether polls call `advance`, which works through [`Transfers::incoming`] and [`Transfers::dropped`].
    goes_on: Cell<bool>,
    pub(super) queue: Arc<Queue>,
    /// How handlers are called.
    pub(super) calls: Calls,
    thread: RefCell<Option<JoinHandle<()>>>,
    /// Whether calls that make progress run the completion handlers: on a simulated network, or if the handler thread could not be started.
    runs_own: Cell<bool>,
    /// Receives the world when the handle ends.
    pub(super) home: Home,
}

impl Background for Domain {
    fn advance(&self) -> bool {
        let advance = || Domain::advance(self);
        // After a panic the next poll continues with the rest.
        let more = if self.catches.get() { self.caught(self.world.rank(), advance).unwrap_or(true) } else { advance() };
        self.goes_on.set(more);
        more
    }

    fn is_owed(&self) -> bool {
        true
    }
}

impl Domain {
    /// Sets up a world for a handle.
    pub(super) fn new(handle: Handle, world: World, home: Home) -> (Rc<Domain>, Waker) {
        let engine = world.engine();
        let own_thread = engine.networks.pace().is_some().then(|| std::thread::current().id());
        if own_thread.is_none() {
            engine.leave_thread();
        }
        let waker = Box::new(engine.waker());
        let calls = home.calls();
        let domain = Rc::new_cyclic(|me| Domain {
            handle,
            me: Weak::clone(me),
            own_thread,
            entries: Entries::default(),
            bells: Bells::default(),
            options: Options::default(),
            faults: RefCell::default(),
            running: Cell::new(Running::Nothing),
            interrupts: RefCell::default(),
            purged: vec![Cell::new(false); world.size()].into(),
            purges: Cell::new(0),
            last_purges: RefCell::default(),
            deferred: RefCell::default(),
            lost: Lost::default(),
            statuses: RefCell::default(),
            sleepers: RefCell::default(),
            done: Done::default(),
            traffic: Traffic::new(world.size()),
            transfers: Transfers::default(),
            owed: Owed::new(world.size()),
            turns: Cell::new(0),
            catches: Cell::new(false),
            goes_on: Cell::new(false),
            queue: Arc::new(Queue::new(calls)),
            calls,
            thread: RefCell::default(),
            runs_own: Cell::new(own_thread.is_some()),
            home,
            world,
        });
        arrive::install(&domain);
        (domain, waker)
    }

    /// Whether interrupt mode is on: a thread makes progress while no call does.
    pub(super) fn has_interrupts(&self) -> bool {
        self.interrupts.borrow().is_some()
    }

    /// Ends the doze of the thread of interrupt mode. Called by each thread that enters the port with the mutex; a favourite never finds
    /// that thread dozing: the thread has revoked it, and who became the favourite since has entered with the mutex before.
    pub(super) fn end_doze(&self) {
        if let Some(mode) = &*self.interrupts.borrow() {
            mode.end_doze(&self.world);
        }
    }

    /// Whether the thread of interrupt mode, which has found nothing to do, may doze once it is outside the port.
    pub(super) fn begin_doze(&self) -> bool {
        let engine = self.world.engine();
        let look = (!engine.job.supervised() && self.waits_for_others()).then_some(lost::CHECK_EVERY);
        !self.is_about_to_lose()
            && self.interrupts.borrow().as_ref().is_some_and(|mode| mode.begin_doze(&self.world, look))
    }

    /// Switches interrupt mode on or off.
    ///
    /// # Errors
    /// [`codes::SET_VAL`] on a simulated network, where ranks take turns; [`codes::MEMORY_EXHAUSTED`] if there is no thread.
    pub(super) fn set_interrupts(&self, on: bool) -> Result<(), i32> {
        if !on {
            drop(self.interrupts.take());
        } else if self.is_simulated() {
            return Err(codes::SET_VAL);
        } else if !self.has_interrupts() {
            let started = interrupt::start(self.handle, &self.world);
            let started = started.map_err(|error| {
                tracing::warn!(%error, "no thread for interrupt mode");
                codes::MEMORY_EXHAUSTED
            })?;
            *self.interrupts.borrow_mut() = Some(started);
        }
        Ok(())
    }

    /// Notes which handler runs, until the result is dropped.
    pub(super) fn runs(&self, running: Running) -> Runs<'_> {
        Runs(&self.running, self.running.replace(running))
    }

    /// Makes polls continue fetches and deliver dropped messages again.
    pub(super) fn keep_going(&self) {
        if !self.goes_on.replace(true) {
            let me: Weak<dyn Background> = Weak::<Domain>::clone(&self.me);
            self.world.engine().tasks.add(me);
        }
    }

    /// Queues a completion handler for the handler thread. The first one starts the thread.
    pub(super) fn enqueue(&self, work: Work) {
        self.queue.push(work);
        if !self.runs_own.get() && self.thread.borrow().is_none() {
            match queue::start(&self.queue, self.handle) {
                Ok(thread) => *self.thread.borrow_mut() = Some(thread),
                Err(error) => {
                    tracing::warn!(%error, "no handler thread: calls that make progress run the completion handlers");
                    self.runs_own.set(true);
                }
            }
        }
    }

    /// Ends interrupt mode, and tells the handler thread to end when the handler that it runs has returned. Returns that thread, to
    /// join.
    pub(super) fn end_thread(&self) -> Option<JoinHandle<()>> {
        drop(self.interrupts.take());
        self.queue.end();
        self.thread.borrow_mut().take()
    }

    fn has_own_work(&self) -> bool {
        self.runs_own.get() && !self.queue.is_done() && !self.queue.running.load(Ordering::Relaxed)
    }

    /// Whether no message from or to this task, and no completion handler, has anything left to do here.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_done()
            && self.transfers.outgoing.borrow().is_empty()
            && self.transfers.incoming.borrow().is_empty()
            && self.owed.is_answered()
            && self.transfers.dropped.borrow().is_empty()
            && self.bells.rings.borrow().is_empty()
    }

    /// Whether the calling thread may use this domain.
    #[inline(always)]
    pub(super) fn may_enter(&self) -> bool {
        self.own_thread.is_none() || self.is_own_thread()
    }

    /// Out of line: a call in the middle would make every message store its arguments.
    #[cold]
    #[inline(never)]
    fn is_own_thread(&self) -> bool {
        self.own_thread == Some(std::thread::current().id())
    }

    /// Whether the network is simulated: one thread calls, in virtual time.
    pub(super) fn is_simulated(&self) -> bool {
        self.own_thread.is_some()
    }

    /// Records that a message from or to task `peer` failed. The next call that makes progress returns the code.
    #[cold]
    pub(super) fn fault(&self, code: i32, peer: usize) {
        self.fail(Failure::of_code(code, What::Message, peer));
    }

    /// Records a failure. The next call that makes progress returns its code.
    #[cold]
    pub(super) fn fail(&self, failure: Failure) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < FAULTS {
            faults.push_back(failure);
        }
    }

    /// Records that a handler of this task panicked in this thread, on a message of task `from`. That task has been told already.
    #[cold]
    pub(super) fn panicked(&self, from: usize) {
        match told_of(self.world.rank()) {
            Some(error) => self.fail(Failure::of_error(&error)),
            None => self.fault(codes::HANDLER_PANICKED, from),
        }
    }

    pub(super) fn has_fault(&self) -> bool {
        !self.faults.borrow().is_empty()
    }

    /// Takes the oldest fault; if there is none, the engine's.
    ///
    /// # Errors
    /// The code of that fault.
    pub(super) fn take_fault(&self) -> Result<(), i32> {
        match self.faults.borrow_mut().pop_front() {
            Some(failure) => Err(failure.keep()),
            None => self.world.engine().faults.take().map_err(|error| codes::of_error(&error)),
        }
    }

    /// Logs the faults that no call has returned, when the handle ends.
    pub(super) fn log_faults(&self) {
        self.faults.take().into_iter().for_each(|fault| {
            fault.keep();
        });
    }

    /// Makes progress once.
    ///
    /// # Errors
    /// The code of a message that failed.
    pub(super) fn poll(&self) -> Result<usize, i32> {
        port::count_poll(self.handle);
        let polled = self.world.poll();
        if matches!(polled, Ok(0)) {
            self.end_lost();
        }
        let done = polled.map_err(|error| codes::of_error(&error))?;
        self.take_fault().map(|()| done)
    }
}

impl Domain {
    /// Whether no fence of this task waits for an answer. A purged task that is gone does not count: it does not answer.
    fn is_fenced(&self) -> bool {
        let answers = |task: usize| !(self.purged[task].get() && self.world.engine().failures.is_gone(task));
        self.traffic.is_fenced() || self.traffic.first_asked(answers).is_none()
    }

    /// Whether a fence waits only for tasks that are purged now, or were purged after the first `purges`. A request to a task that is gone
    /// makes it `false`: that request is about to be given up.
    fn is_fenced_but_for_purged(&self, purges: u64) -> bool {
        if self.purges.get() == 0 {
            return false;
        }
        let last = self.last_purges.borrow();
        let is_awaited = |task: usize| !self.purged[task].get() && last.get(&task).is_none_or(|purge| *purge <= purges);
        let is_gone = |task: usize| self.world.engine().failures.is_gone(task);
        self.traffic.first_asked(is_awaited).is_none()
            && !self.owed.asked().any(|task| is_awaited(task) || is_gone(task))
    }

    /// Ends a wait for a task that is gone: returns the error when `find` names the same task two turns after the wait first saw it gone
    /// (`seen`). Between two turns everything that the task had sent is delivered.
    pub(super) fn is_left_alone<R>(
        &self,
        doing: &'static str,
        seen: &mut Option<(usize, u64)>,
        find: impl FnOnce(&dyn Fn(usize) -> bool) -> Option<usize>,
    ) -> Option<Result<R, i32>> {
        let engine = self.world.engine();
        if !engine.failures.any_gone() {
            return None;
        }
        let task = find(&|task| engine.failures.is_gone(task))?;
        let turns = self.turns.get();
        self.lost.is_awaited.set(true);
        match seen {
            Some((before, since)) if *before == task => {
                (turns >= *since + 2).then(|| Err(codes::of_error(&engine.gone(task, doing))))
            }
            _ => {
                *seen = Some((task, turns));
                None
            }
        }
    }
}

impl Domain {
    /// Gives up an interrupted barrier, and tells the tasks that still wait in it for this one.
    #[cold]
    fn give_up(&self, Place { call, round, is_told, why, .. }: Place) {
        tracing::warn!(
            ?call,
            "a panic or a purge interrupted a collective call, and another one was made instead of the same: the calls of the tasks that wait fail"
        );
        let (me, n) = (self.world.rank(), self.world.size());
        for round in (round + usize::from(is_told)..).take_while(|round| 1 << round < n) {
            self.tell((me + (1 << round)) % n, kind::BARRIER, &[round as u64, call as u64, why as u64, 0]);
        }
        self.traffic.sent_before.take();
    }
}

/// Enters the port of `handle` for a call that may block.
///
/// # Errors
/// [`codes::HNDL_INVALID`]; [`codes::IN_HANDLER`] in a handler that a poll runs.
#[inline(always)]
pub(super) fn enter_outside(handle: u32) -> Result<Entered, i32> {
    let entered = port::enter(handle)?;
    if entered.is_nested() { Err(codes::IN_HANDLER) } else { Ok(entered) }
}

/// Makes progress until `ready` returns `Some`. Other threads of the rank can enter meanwhile.
///
/// # Errors
/// The code of a message that failed; [`codes::PEER_LOST`].
#[inline]
pub(super) fn wait<R>(domain: Entered, doing: &'static str, ready: impl FnMut(&Domain) -> Option<R>) -> Result<R, i32> {
    wait_for::<true, R>(domain, doing, ready)
}

/// As [`wait`], but leaves codes of messages that failed to the next call that makes progress. The calling thread is in no port.
///
/// # Errors
/// As [`enter_outside`]; [`codes::PEER_LOST`].
pub(super) fn wait_apart<R>(
    handle: Handle,
    doing: &'static str,
    ready: impl FnMut(&Domain) -> Option<R>,
) -> Result<R, i32> {
    wait_for::<false, R>(enter_outside(handle)?, doing, ready)
}

#[inline]
fn wait_for<const TELL: bool, R>(
    mut entered: Entered,
    doing: &'static str,
    mut ready: impl FnMut(&Domain) -> Option<R>,
) -> Result<R, i32> {
    entered.lost.is_awaited.set(false);
    loop {
        let domain = &*entered;
        let handle = domain.handle;
        port::count_poll(handle);
        // In virtual time a wait without a limit ends when no task can make progress. A wait that only a lost task may end keeps its limit,
        // so that turns pass.
        let endless = domain.is_simulated() && !domain.awaits_lost();
        let mut outcome = None;
        let is_over = || {
            outcome = ready(domain);
            outcome.is_some()
                || TELL && domain.has_fault()
                || domain.has_own_work()
                || port::is_contended(handle)
                || endless && domain.awaits_lost()
        };
        let engine = domain.world.engine();
        let waited = match (TELL, endless) {
            (true, true) => engine.wait_until(doing, None, is_over),
            (true, false) => engine.wait_until(doing, Some(TURN), is_over),
            (false, true) => engine.wait_together(doing, is_over),
            (false, false) => engine.wait_together_for(doing, TURN, is_over),
        };
        if let Some(outcome) = outcome {
            return Ok(outcome);
        }
        match waited {
            Ok(()) | Err(Error::TimedOut { .. }) => {
                // A task that left does not fail the wait by itself. Between two turns everything that it had sent is delivered.
                // The limit may have passed while messages were arriving: deliver them first.
                let is_over = waited.is_err();
                if is_over && (0..TURNS).any(|_| engine.turn() == 0) {
                    domain.turns.set(domain.turns.get() + 1);
                    domain.end_lost();
                }
                // These rounds may have delivered what the wait is for.
                if is_over && let Some(outcome) = ready(domain) {
                    return Ok(outcome);
                }
                if TELL {
                    domain.take_fault()?;
                    if is_over { domain.check_not_alone(doing) } else { domain.check_not_left(doing) }?;
                }
            }
            Err(error) => {
                // The wait may have ended before all messages of a lost task were delivered.
                if !matches!(error, Error::Forked { .. }) {
                    domain.end_lost();
                    // If more is left to deliver, a later poll continues.
                    if (0..TURNS).any(|_| engine.turn() == 0) {
                        domain.end_lost();
                    }
                }
                return Err(codes::of_error(&error));
            }
        }
        drop(entered);
        run_own(handle);
        if port::is_contended(handle) {
            std::thread::yield_now();
        }
        entered = enter_outside(handle)?;
    }
}

/// Runs the queued completion handlers if the handle has no handler thread. Call it outside the port, or inside a handler, where it does
/// nothing.
pub(super) fn run_own(handle: Handle) {
    /// Resets `running`, also if a handler panics.
    struct Ends(Arc<Queue>);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.running.store(false, Ordering::Relaxed);
        }
    }
    let queue = match port::enter(handle) {
        Ok(domain) if !domain.is_nested() && domain.has_own_work() => Arc::clone(&domain.queue),
        _ => return,
    };
    // A handler that waits calls this too. The next handler must not run before that one has returned.
    if queue.running.swap(true, Ordering::Relaxed) {
        return;
    }
    let ends = Ends(queue);
    while let Some(work) = ends.0.pop() {
        ends.0.run(handle, work);
    }
}

/// The number of purges so far. A call reads it when it begins: later purges may end the call.
///
/// # Errors
/// As [`enter_outside`].
pub(super) fn purges(handle: Handle) -> Result<u64, i32> {
    Ok(enter_outside(handle)?.purges.get())
}

/// Waits until the data that this task has sent is in place at its targets, and its gets and atomics are answered. Does not wait for completion
/// handlers.
///
/// # Errors
/// As [`wait_apart`]; [`codes::TGT_PURGED`] if the only tasks without an answer are purged, or were purged during the call. `Purge_totask`
/// ends waits for its task, and later calls do not start to wait for it.
pub(super) fn fence(handle: Handle) -> Result<(), i32> {
    let purges = purges(handle)?;
    let purged = |domain: &Domain| domain.is_fenced_but_for_purged(purges).then_some(Err(codes::TGT_PURGED));
    match fence_or(handle, purged) {
        Err(codes::TGT_PURGED) => {
            // A purged task may have answered: a program that makes the call again and again makes progress.
            enter_outside(handle)?.world.engine().turn();
            fence_or(handle, purged)
        }
        fenced => fenced,
    }
}

/// The fence inside a collective call. Purged tasks make that call too, so it waits for them.
///
/// # Errors
/// As [`wait_apart`]; [`codes::TGT_PURGED`] if a task is purged after the first `purges`.
pub(super) fn fence_together(handle: Handle, purges: u64) -> Result<(), i32> {
    fence_or(handle, |domain| domain.is_purged_since(purges))
}

/// A fence that also ends when `purged` returns an outcome.
///
/// # Errors
/// As [`wait_apart`]; the error of `purged`.
fn fence_or(handle: Handle, mut purged: impl FnMut(&Domain) -> Option<Result<(), i32>>) -> Result<(), i32> {
    let domain = enter_outside(handle)?;
    // Makes this task's stores to mapped memory visible before its later ones.
    std::sync::atomic::fence(Ordering::SeqCst);
    for (to, number) in domain.traffic.questions() {
        domain.tell(to, kind::FENCE, &[number.into()]);
    }
    drop(domain);
    let mut seen = None;
    wait_apart(handle, "fence", |domain| {
        if domain.is_fenced() && domain.owed.is_answered() {
            return Some(domain.check_not_left("fence"));
        }
        let left = domain.is_left_alone("fence", &mut seen, |is_gone| {
            let is_missed = |task: usize| is_gone(task) && !domain.purged[task].get();
            domain.traffic.first_asked(is_missed).or_else(|| domain.owed.tasks().find(|task| is_missed(*task)))
        });
        left.or_else(|| purged(domain))
    })?
}

/// Waits until every task has made this call. Collective. A message that failed does not end it, so that no task is left waiting alone.
///
/// # Errors
/// As [`barrier_after`].
pub(super) fn barrier(handle: Handle, call: Collective) -> Result<(), i32> {
    barrier_after(handle, call, purges(handle)?, |_| Ok(()))
}

/// As [`barrier`], for a collective call that runs `first` before it. If `first` fails, this task sends the code in every round and waits
/// for nobody: the other tasks' barriers fail with that code. A purge after the first `purges`, or a handler's panic that unwinds out of
/// this, interrupts the barrier: the other tasks wait, and the same call, made again, resumes it. Another collective call gives it up, so
/// that the barriers of the tasks that wait for this one fail, or is refused.
///
/// # Errors
/// The error of `first`; as [`wait_apart`]; the code of a task that gave this barrier up; [`codes::TGT_PURGED`] after such a purge;
/// [`codes::RUNTIME`] if another task is in another call, or if another call has to be resumed first.
pub(super) fn barrier_after(
    handle: Handle,
    call: Collective,
    purges: u64,
    first: impl FnOnce(&Place) -> Result<(), i32>,
) -> Result<(), i32> {
    let domain = enter_outside(handle)?;
    let (me, n) = (domain.world.rank(), domain.world.size());
    let mut place = domain.traffic.enter_barrier(call);
    while place.call != call {
        if !place.can_be_given_up() {
            domain.traffic.leave_behind(place);
            return Err(must_be_called_again(place.call, call));
        }
        domain.give_up(place);
        place = domain.traffic.enter_barrier(call);
    }
    drop(domain);
    let at = Cell::new(place);
    // Without this, a retry would begin a new barrier while the other tasks wait in this one.
    let left = Undo(handle, |domain| domain.traffic.leave_behind(at.get()));
    let purged = || {
        at.set(Place { why: codes::RUNTIME, ..at.get() });
        Err(codes::TGT_PURGED)
    };
    let mut outcome = first(&place);
    if outcome == Err(codes::TGT_PURGED) {
        return purged();
    }
    while 1 << at.get().round < n {
        let Place { round, is_told, .. } = at.get();
        if !is_told {
            let domain = enter_outside(handle)?;
            let about = |code| Failure::last(code).and_then(|failure| failure.task).map_or(0, |task| task + 1);
            let [code, about] = outcome.err().map_or([0; 2], |code| [code as u64, about(code) as u64]);
            domain.tell((me + (1 << round)) % n, kind::BARRIER, &[round as u64, call as u64, code, about]);
            at.set(Place { is_told: true, ..at.get() });
        }
        if outcome.is_ok() {
            let from = (me + n - (1 << round) % n) % n;
            outcome = await_round(handle, at.get(), from, purges);
        }
        if outcome == Err(codes::TGT_PURGED) {
            return purged();
        }
        at.set(Place { round: round + 1, is_told: false, ..at.get() });
    }
    std::mem::forget(left);
    outcome
}

/// The code of a call that is refused, because the interrupted call `ended` must be made again first.
#[cold]
fn must_be_called_again(ended: Collective, call: Collective) -> i32 {
    let (ended, call) = (ended.name(), call.name());
    let text = format!(
        "a purge or the panic of a handler interrupted {ended}, and the other tasks wait in it: call {ended} again before {call}"
    );
    Failure { code: codes::RUNTIME, what: What::Job, task: None, text }.keep()
}

/// Waits for the message of task `from` for a round of a barrier.
///
/// # Errors
/// As [`barrier_after`].
fn await_round(handle: Handle, place: Place, from: usize, purges: u64) -> Result<(), i32> {
    let mut seen = None;
    wait_apart(handle, "barrier", |domain| match domain.traffic.has_round(place) {
        Ok(true) => Some(Ok(())),
        Ok(false) => {
            let left = domain.is_left_alone("barrier", &mut seen, |is_gone| is_gone(from).then_some(from));
            left.or_else(|| domain.is_purged_since(purges))
        }
        Err(Apart::Differs(other)) => {
            let text = format!(
                "the collective calls differ between tasks: task {from} is in {}, this task in {}; each task must make the same ones in the same order",
                other.name(),
                place.call.name()
            );
            Some(Err(Failure { code: codes::RUNTIME, what: What::Job, task: Some(from), text }.keep()))
        }
        Err(Apart::GivenUp((code, about))) => {
            let engine = domain.world.engine();
            let is_gone = |task: &usize| code == codes::PEER_LOST && engine.failures.is_gone(*task);
            Some(Err(match about.checked_sub(1).filter(is_gone) {
                Some(task) => codes::of_error(&engine.gone(task, "barrier")),
                None => {
                    let why = codes::text(code).unwrap_or("An unknown code.");
                    let text = format!("task {from} gave up a barrier: {why}");
                    Failure { code, what: What::Job, task: Some(about.checked_sub(1).unwrap_or(from)), text }.keep()
                }
            }))
        }
    })?
}
