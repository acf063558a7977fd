//! A monitor (Hoare 1974) of the world of a process: every thread may use the world, one at a time, and a thread that waits lets
//! others in.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use super::codes;
use super::collective::Kind;
use super::state::{Arrivals, State};
use super::types::{Code, GroupId, Result, Timeout};
use crate::error::Error;
use crate::thread::token;
use crate::vocabulary::interrupt::{Idle, Interrupts, burst};
use crate::vocabulary::lock::lock;
use crate::world::{Doze, Dozer, World};

/// Longest stay of a waiting thread inside, where other threads of the process may want to enter.
const TURN: Duration = Duration::from_millis(1);
/// Sleep between two checks while a process is lost and the awaited event may still come from others. Chosen.
const NAP: Duration = Duration::from_micros(200);

/// The world, and what belongs to it. Segments end before the world.
pub(super) struct Held {
    pub(super) state: State,
    pub(super) world: World,
}

/// What only the thread inside uses.
struct Room {
    held: Held,
    /// Of the thread that makes progress while no call does. `None` without descriptors to be had: it polls.
    doze: Option<Doze>,
}

// SAFETY: a `Room` has the only handle to its world and to all that it is made of: it is made from a builder without handlers, and
// `Monitor::new` takes the world off the list of worlds of its thread. Nothing of a world depends on the thread that uses it, except on a
// simulated network, where `Monitor::enter` keeps other threads out.
unsafe impl Send for Room {}

impl Room {
    /// Called by each thread that enters.
    #[inline]
    fn end_doze(&self) {
        if let Some(doze) = &self.doze {
            doze.end(self.held.world.engine());
        }
    }
}

struct Inside {
    lock: Mutex<Room>,
    /// The thread that is inside, by [`token`]; 0 is none.
    owner: AtomicUsize,
    /// Threads that wait to enter.
    contenders: AtomicU32,
    /// Calls that made progress so far.
    polls: AtomicU64,
    /// Ends a sleep of the thread inside.
    wake: Box<dyn Fn() + Send + Sync>,
    /// On a simulated network only this thread may call: ranks take turns there.
    own_thread: Option<ThreadId>,
    /// The process that has the world. A forked child has the lock too, as it was, and none of the other threads.
    process: u32,
}

/// The world of a process, and the lock that lets one thread in at a time.
pub(super) struct Monitor {
    inside: Arc<Inside>,
    /// Makes progress while no call does. Ends before the world.
    interrupts: Option<Interrupts>,
}

/// The processes that a wait is for.
pub(super) enum Partner<'a> {
    /// Somebody; if all others are lost, a wait without limit fails.
    Any,
    /// These; if one of them is lost, the wait fails.
    Ranks(&'a [usize]),
    /// These, in a collective of their group; if one of them has died, the wait fails. If one has left, that is for the collective to tell:
    /// it may have been done with it.
    Members(&'a [usize], GroupId, Kind),
    /// No process, or the awaited condition itself says which.
    None,
}

/// The right to use the world, until it is dropped.
pub(super) struct Entered<'a> {
    room: MutexGuard<'a, Room>,
    owner: &'a AtomicUsize,
}

impl Deref for Entered<'_> {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.room.held
    }
}

impl DerefMut for Entered<'_> {
    fn deref_mut(&mut self) -> &mut Held {
        &mut self.room.held
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.owner.store(0, Ordering::Relaxed);
    }
}

impl Inside {
    fn entered<'a>(&'a self, room: MutexGuard<'a, Room>) -> Entered<'a> {
        self.owner.store(token(), Ordering::Relaxed);
        room.end_doze();
        Entered { room, owner: &self.owner }
    }

    fn try_enter(&self) -> Option<Entered<'_>> {
        match self.lock.try_lock() {
            Ok(room) => Some(self.entered(room)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.entered(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits while another thread is inside.
    ///
    /// # Errors
    /// [`codes::ERROR`] in a forked child: a thread of the parent was inside, and never leaves there.
    fn contend(&self) -> Result<Entered<'_>> {
        if self.process != std::process::id() {
            return Err(Code(codes::ERROR));
        }
        // Before the wake-up: a thread inside that announces its sleep looks here once more.
        self.contenders.fetch_add(1, Ordering::SeqCst);
        (self.wake)();
        let room = lock(&self.lock);
        self.contenders.fetch_sub(1, Ordering::SeqCst);
        Ok(self.entered(room))
    }

    fn is_contended(&self) -> bool {
        // Pairs with the SeqCst in `contend`.
        self.contenders.load(Ordering::SeqCst) != 0
    }
}

/// Makes progress once. On a simulated network time passes if nothing has come.
fn turn(world: &World) -> bool {
    let progressed = world.engine().turn() != 0;
    if !progressed {
        world.engine().idle_poll();
    }
    progressed
}

/// How often that thread finds others inside, which make no progress, before it waits to enter. Chosen.
const TRIES: u32 = 2;

/// Progress while no call makes any.
struct Idler {
    inside: Weak<Inside>,
    /// `None`: it polls.
    dozer: Option<Dozer>,
    /// How often it found others inside since calls made progress, and how many had.
    tries: Cell<(u64, u32)>,
}

impl Idler {
    fn enter<'a>(&self, inside: &'a Inside) -> Option<Entered<'a>> {
        // Another thread inside makes progress, or leaves soon, perhaps to come again at once.
        let entered = inside.try_enter();
        let (polls, (before, tries)) = (inside.polls.load(Ordering::Relaxed), self.tries.get());
        let tries = if polls == before { tries } else { 0 };
        if entered.is_some() || tries < TRIES {
            self.tries.set((polls, if entered.is_some() { 0 } else { tries + 1 }));
            return entered;
        }
        inside.contend().ok()
    }
}

impl Idle for Idler {
    fn polls(&self) -> u64 {
        self.inside.upgrade().map_or(0, |inside| inside.polls.load(Ordering::Relaxed))
    }

    fn advance(&self, over: &AtomicBool) -> bool {
        let Some(inside) = self.inside.upgrade() else { return false };
        let Some(held) = self.enter(&inside).filter(|_| !over.load(Ordering::Acquire)) else { return false };
        // Calls look for dead peers themselves.
        let look = None;
        burst(&held.world, || {}) && held.room.doze.as_ref().is_some_and(|doze| doze.begin(held.world.engine(), look))
    }

    fn doze(&self) -> bool {
        self.dozer.as_ref().is_some_and(Dozer::sleep)
    }
}

impl Monitor {
    pub(super) fn new(world: World, state: State) -> Monitor {
        let engine = world.engine();
        let own_thread = engine.networks.pace().is_some().then(|| std::thread::current().id());
        if own_thread.is_none() {
            engine.leave_thread();
        }
        let name = format!("gaspi progress {}", world.rank());
        let made = own_thread.is_none().then(|| engine.doze());
        let made = made.and_then(|made| {
            made.inspect_err(|error| tracing::warn!(%error, "the thread for progress cannot sleep: it polls")).ok()
        });
        let (doze, dozer) = made.unzip();
        let inside = Arc::new(Inside {
            wake: Box::new(engine.waker()),
            lock: Mutex::new(Room { held: Held { state, world }, doze }),
            owner: AtomicUsize::new(0),
            contenders: AtomicU32::new(0),
            polls: AtomicU64::new(0),
            own_thread,
            process: std::process::id(),
        });
        let idler = Idler { inside: Arc::downgrade(&inside), dozer, tries: Cell::default() };
        let interrupts = own_thread.is_none().then(|| Interrupts::start(name, idler));
        let interrupts = interrupts.and_then(|started| {
            started.inspect_err(|error| tracing::warn!(%error, "no thread for progress: calls make progress")).ok()
        });
        Monitor { inside, interrupts }
    }

    /// Takes the world out, with the messages that have come for it, when no thread uses it any more.
    pub(super) fn into_world(self) -> Option<(World, Rc<Arrivals>)> {
        let Monitor { inside, interrupts } = self;
        if let Some(interrupts) = interrupts {
            interrupts.end(|| {
                lock(&inside.lock).end_doze();
            });
        }
        // The only handle: the thread of the interrupts had the others.
        let room = Arc::into_inner(inside)?.lock.into_inner().unwrap_or_else(|room| room.into_inner());
        let Room { held: Held { state, world }, doze } = room;
        let arrivals = Rc::clone(&state.arrivals);
        drop((state, doze));
        Some((world, arrivals))
    }

    /// The number of the process that has the world.
    pub(super) fn process(&self) -> u32 {
        self.inside.process
    }

    /// Whether all happens on one thread, in virtual time.
    pub(super) fn is_simulated(&self) -> bool {
        self.inside.own_thread.is_some()
    }

    /// Enters; waits while another thread is inside.
    ///
    /// # Errors
    /// [`codes::ERROR`] in a function that a call of this process runs, and on another thread than the first on a simulated network; as
    /// [`Inside::contend`].
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        let inside = &*self.inside;
        if inside.own_thread.is_some_and(|own| own != std::thread::current().id())
            || inside.owner.load(Ordering::Relaxed) == token()
        {
            return Err(Code(codes::ERROR));
        }
        if inside.is_contended() {
            // A thread that leaves and comes again at once would mostly be faster than one that waits.
            std::thread::yield_now();
        }
        inside.try_enter().map_or_else(|| inside.contend(), Ok)
    }

    /// Makes progress once if no other thread is inside.
    pub(super) fn poll(&self) {
        if self.inside.own_thread.is_none_or(|own| own == std::thread::current().id())
            && self.inside.owner.load(Ordering::Relaxed) != token()
            && let Some(held) = self.inside.try_enter()
        {
            self.inside.polls.fetch_add(1, Ordering::Relaxed);
            turn(&held.world);
        }
    }

    /// Makes progress until `ready` gives something, or until the time is over. Other threads can enter meanwhile.
    ///
    /// # Errors
    /// What `ready` gives; [`codes::TIMEOUT`]; [`codes::ERROR`] if a partner is lost.
    pub(super) fn wait<R>(
        &self,
        doing: &'static str,
        timeout: Timeout,
        partner: &Partner<'_>,
        mut ready: impl FnMut(&World, &mut State) -> Option<Result<R>>,
    ) -> Result<R> {
        let mut end = None;
        loop {
            let mut entered = self.enter()?;
            let Held { world, state } = &mut *entered;
            // No progress was made, so this is not counted: the thread that makes progress has to, beside a loop of such calls.
            if let Some(outcome) = ready(world, state) {
                return outcome;
            }
            self.inside.polls.fetch_add(1, Ordering::Relaxed);
            let engine = world.engine();
            let left = match timeout {
                Timeout::Block => None,
                Timeout::Test => {
                    let progressed = turn(world);
                    return match ready(world, state) {
                        Some(outcome) => outcome,
                        None if progressed => Err(Code(codes::TIMEOUT)),
                        None => match state.lose(world, partner) {
                            Some(()) => Err(Code(codes::ERROR)),
                            None => ready(world, state).unwrap_or(Err(Code(codes::TIMEOUT))),
                        },
                    };
                }
                Timeout::After(limit) => {
                    let now = world.elapsed();
                    let left = end.get_or_insert_with(|| now.saturating_add(limit)).saturating_sub(now);
                    if left.is_zero() {
                        return Err(Code(codes::TIMEOUT));
                    }
                    Some(left)
                }
            };
            let mut outcome = None;
            let is_over = || {
                outcome = ready(world, state);
                outcome.is_some() || self.inside.is_contended()
            };
            let waited = match (self.is_simulated(), left) {
                (true, None) => engine.wait_together(doing, is_over),
                (true, Some(left)) => engine.wait_together_for(doing, left, is_over),
                (false, left) => engine.wait_together_for(doing, TURN.min(left.unwrap_or(TURN)), is_over),
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
            let mut nap = false;
            let may_have_lost = match waited {
                // The engine reports a rank that left only to a wait without a limit. This wait ran into its limit, or ended early so that
                // another thread can enter. Look here, once all messages that the rank had sent are handled.
                Ok(()) | Err(Error::TimedOut { .. }) => engine.job.any_left() && !turn(world),
                Err(Error::PeerLost { .. }) => {
                    nap = true;
                    true
                }
                Err(error) => return Err(Code(codes::of_error(&error))),
            };
            if may_have_lost {
                // All puts of a lost process are in effect by now.
                if let Some(outcome) = ready(world, state) {
                    return outcome;
                }
                let is_here = |rank| rank != world.rank() && engine.job.loss(rank).is_none();
                let is_alone =
                    matches!(partner, Partner::Any) && timeout == Timeout::Block && !(0..world.size()).any(is_here);
                if state.lose(world, partner).is_some() || is_alone {
                    return Err(Code(codes::ERROR));
                }
            }
            if nap && self.is_simulated() {
                world.sleep(NAP);
            }
            drop(entered);
            if nap && !self.is_simulated() {
                std::thread::sleep(NAP);
            } else if self.inside.is_contended() {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
