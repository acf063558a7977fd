//! Contexts: independent streams of operations of one rank, each for one thread at a time.
//!
//! A context shares with its rank's own stream ([`Engine`]) the mapped slots and the roster, and nothing else: on a network it
//! has an interface of its own, to which nobody sends. Messages, bells' counts and collectives stay with the engine.
//!
//! The interface is under a lock. The context's thread takes it for each operation and for each turn of a wait. The rank's own
//! thread takes it only where a phase or an allocation ends ([`Engine::quiet_contexts`]): it then drives the context until
//! nothing of it is in flight, whatever the context's thread does meanwhile. So memory that is freed, or becomes its owner's
//! alone, is not written by what a context has posted before. What a context posts later is posted through a handle that
//! borrows the allocation in its phase.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::Engine;
use super::far::{Answer, Apart, Asked, Far, Soon};
use super::liveness::GRACE;
use super::wait::Patience;
use crate::bootstrap::job::JobMemory;
use crate::bootstrap::nodes::Nodes;
use crate::bootstrap::watch::Watch;
use crate::error::{Error, Loss, Result};
use crate::memory::copy;
use crate::memory::node::NodeMemory;
use crate::transport;
use crate::transport::lock::{Guard, Mutex};
use crate::transport::shm::Sent;

/// Requests of one get that are in flight at a time, at most.
const WINDOW: usize = 16;

/// Longest sleep of a wait. What ends it need not wake anybody.
const NAP: Duration = Duration::from_millis(1);

/// The contexts of a rank, as its engine knows them.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    shared: Arc<Shared>,
    open: RefCell<Vec<Weak<Stream>>>,
}

/// What an engine and its contexts share. Its address tells the rank from all others.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The engine is gone.
    over: AtomicBool,
    /// Contexts that were dropped where nobody could wait for what they had in flight.
    orphans: Mutex<Vec<Stream>>,
}

impl Drop for Contexts {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Each holds what it is in.
        let orphans = std::mem::take(&mut *self.shared.orphans.lock());
        drop(orphans);
    }
}

/// The engine of a context's rank, for whoever is on its thread.
#[derive(Debug, Clone)]
struct Home {
    thread: ThreadId,
    engine: *const Engine,
    shared: Arc<Shared>,
}

// SAFETY: the pointer is followed on the engine's own thread only, by `Home::engine`.
unsafe impl Send for Home {}
// SAFETY: as above.
unsafe impl Sync for Home {}

impl Home {
    /// The engine, on its own thread.
    fn engine(&self) -> Option<Rc<Engine>> {
        if std::thread::current().id() != self.thread || self.shared.over.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY:
        // - the pointer came from `Rc::as_ptr`, and the engine lives: it sets `over` when it is dropped;
        // - that happens on this thread, on which counts of the `Rc` may be changed.
        unsafe {
            Rc::increment_strong_count(self.engine);
            Some(Rc::from_raw(self.engine))
        }
    }
}

/// One context.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    job: Arc<JobMemory>,
    node: Arc<NodeMemory>,
    nodes: Nodes,
    /// Ranks of the own node are reached directly though others are not.
    shares: bool,
    /// Whoever wakes a rank passes a full fence first.
    full_fence: bool,
    patience: Patience,
    home: Home,
    /// Where other ranks' memory is not mapped here, or not all of it.
    network: Option<Network>,
}

#[derive(Debug)]
struct Network {
    driven: Mutex<Driven>,
    /// Time is virtual.
    paced: bool,
}

/// What a context does over the network.
pub(crate) struct Driven {
    far: Apart,
    /// Ranks that may sleep while a ring is on its way to them, and whether they were seen asleep.
    nudges: Vec<(usize, bool)>,
    /// Ranks to which this interface has no connection any more, though they may live.
    cut: Vec<usize>,
    /// Ranks that the network cannot reach, since when, and of which the roster has not told.
    doubts: Vec<(usize, Instant)>,
    /// Errors that the rank's own thread met here, for the context's next flush.
    faults: VecDeque<Error>,
    watch: Option<Watch>,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driven({})", self.far.name())
    }
}

impl Engine {
    /// Opens a context. Nothing is told to other ranks.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the network has no further interface; [`Error::Forked`].
    pub(crate) fn open_context(self: &Rc<Engine>) -> Result<Arc<Stream>> {
        const DOING: &str = "context";
        self.check_own(DOING)?;
        let full = |_| Error::OutOfMemory {
            what: "interfaces of the network, one for each context",
            asked: 1,
            free: 0,
            limit: 0,
            setting: "how many there can be by dropping contexts that are not in use",
        };
        let open = |far: &dyn Far| {
            let apart = far.apart().map_err(|error| match error {
                transport::Error::Busy | transport::Error::NoMemory => full(error),
                error => error.at(DOING, self.rank),
            })?;
            let driven = Driven {
                far: apart,
                nudges: Vec::new(),
                cut: self.cut.borrow().clone(),
                doubts: Vec::new(),
                faults: VecDeque::new(),
                watch: None,
            };
            Ok(Network { driven: Mutex::new(driven), paced: far.pace().is_some() })
        };
        let network = self.far().map(open).transpose()?;
        let stream = Arc::new(Stream {
            rank: self.rank,
            size: self.size,
            job: Arc::clone(&self.job),
            node: Arc::clone(&self.node),
            nodes: self.nodes.clone(),
            shares: self.shares,
            // With a network sleepers leave the fence to those who wake them.
            full_fence: network.is_some() || self.job.full_fence(),
            patience: self.patience(),
            home: Home {
                thread: std::thread::current().id(),
                engine: Rc::as_ptr(self),
                shared: Arc::clone(&self.contexts.shared),
            },
            network,
        });
        if stream.network.is_some() {
            let mut open = self.contexts.open.borrow_mut();
            open.retain(|stream| stream.strong_count() > 0);
            open.push(Arc::downgrade(&stream));
        }
        Ok(stream)
    }

    /// What tells this rank of this world from all others, as long as its engine lives.
    pub(crate) fn identity(&self) -> *const Shared {
        Arc::as_ptr(&self.contexts.shared)
    }

    /// Waits until nothing that a context of this rank has posted is in flight. An error of a context is for its own next flush.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died, [`Error::InsideHandler`].
    #[inline]
    pub(crate) fn quiet_contexts(&self, doing: &'static str) -> Result<()> {
        if self.far().is_some() { self.drain_contexts(doing) } else { Ok(()) }
    }

    #[cold]
    fn drain_contexts(&self, doing: &'static str) -> Result<()> {
        let open: Vec<_> = self.contexts.open.borrow().iter().filter_map(Weak::upgrade).collect();
        open.iter().try_for_each(|stream| stream.drain(doing))?;
        let orphans = std::mem::take(&mut *self.contexts.shared.orphans.lock());
        // Dropped here, on the rank's own thread.
        orphans.iter().try_for_each(|stream| stream.drain(doing))
    }
}

impl Stream {
    /// Whether this is a context of the rank with that [identity](Engine::identity).
    #[inline]
    pub(crate) fn is_of(&self, identity: *const Shared) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.home.shared), identity)
    }

    /// Whether the memory of `rank` is mapped here.
    #[inline]
    pub(crate) fn is_near(&self, rank: usize) -> bool {
        self.network.is_none() || rank == self.rank || self.shares && self.nodes.of(rank) == self.nodes.of(self.rank)
    }

    /// # Errors
    /// [`Error::RankOutOfRange`].
    pub(crate) fn check_rank(&self, operation: &'static str, rank: usize) -> Result<()> {
        if rank < self.size { Ok(()) } else { Err(Error::RankOutOfRange { operation, rank, size: self.size }) }
    }

    /// # Errors
    /// [`Error::Forked`]; in virtual time [`Error::InvalidArgument`] on another thread than that of the world.
    fn check_own(&self, operation: &'static str) -> Result<()> {
        if !self.node.is_own() {
            let (parent, child) = (self.node.owner().pid(), std::process::id());
            return Err(Error::Forked { operation, rank: self.rank, parent, child });
        }
        let is_paced = self.network.as_ref().is_some_and(|network| network.paced);
        let is_home =
            || std::thread::current().id() == self.home.thread && !self.home.shared.over.load(Ordering::Relaxed);
        if is_paced && !is_home() {
            let why =
                "on a simulated network a context is used on the thread of its world, as long as that lives".into();
            return Err(Error::InvalidArgument { operation, why });
        }
        Ok(())
    }

    fn check_alive(&self, rank: usize, doing: &'static str) -> Result<()> {
        if !self.job.any_lost() && !self.job.any_left() {
            return Ok(());
        }
        let Some(cause) = self.job.loss(rank) else { return Ok(()) };
        if cause == Loss::Left {
            self.job.miss(rank);
        }
        let (rank, cause) = self.job.first_lost().filter(|_| cause == Loss::Left).unwrap_or((rank, cause));
        Err(Error::PeerLost { rank, cause, doing: doing.into() })
    }

    fn driven(&self) -> Guard<'_, Driven> {
        self.network.as_ref().expect("only called where ranks are not all mapped here").driven.lock()
    }

    /// Makes progress once; tells how much was done.
    ///
    /// # Errors
    /// As [`Stream::check_own`].
    pub(crate) fn poll(&self, doing: &'static str) -> Result<usize> {
        self.check_own(doing)?;
        let done = if self.network.is_some() { self.driven().turn(self) } else { 0 };
        if done == 0 {
            self.idle_poll();
        }
        Ok(done)
    }

    /// Where time is virtual, a look that found nothing lets it pass.
    pub(crate) fn idle_poll(&self) {
        if self.network.as_ref().is_some_and(|network| network.paced)
            && let Some(engine) = self.home.engine()
            && engine.check_outside_handler("").is_ok()
        {
            // A target without a card that serves it makes progress in its own polls.
            engine.turn();
            engine.idle_poll();
        }
    }

    /// Makes progress until `ready` holds. On the thread of the world messages are delivered meanwhile.
    ///
    /// # Errors
    /// Of `ready`; [`Error::PeerLost`] if a rank died; [`Error::InsideHandler`], if it has to wait; as [`Stream::check_own`].
    fn wait(&self, doing: &'static str, mut ready: impl FnMut(&mut Driven) -> Result<bool>) -> Result<()> {
        self.check_own(doing)?;
        if ready(&mut self.driven())? {
            return Ok(());
        }
        self.wait_long(doing, &mut ready)
    }

    /// As [`Stream::wait`], for what makes progress here itself.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn wait_for(&self, doing: &'static str, mut ready: impl FnMut() -> bool) -> Result<()> {
        let home = self.home.engine();
        if let Some(engine) = &home {
            engine.check_outside_handler(doing)?;
        }
        let mut idle = 0;
        while !ready() {
            let done = self.driven().turn(self) + home.as_ref().map_or(0, |engine| engine.turn());
            if done != 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            self.pass_time(doing, idle, home.as_deref())?;
        }
        Ok(())
    }

    #[cold]
    fn wait_long(&self, doing: &'static str, ready: &mut dyn FnMut(&mut Driven) -> Result<bool>) -> Result<()> {
        let home = self.home.engine();
        if let Some(engine) = &home {
            engine.check_outside_handler(doing)?;
        }
        let mut idle = 0;
        loop {
            let mut driven = self.driven();
            let done = driven.turn(self);
            if ready(&mut driven)? {
                return Ok(());
            }
            drop(driven);
            // Without the lock: handlers may use contexts.
            let came = home.as_ref().map_or(0, |engine| engine.turn());
            if done + came != 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            self.pass_time(doing, idle, home.as_deref())?;
        }
    }

    /// One wait that found nothing lets others go on.
    fn pass_time(&self, doing: &'static str, idle: u32, home: Option<&Engine>) -> Result<()> {
        let mut driven = self.driven();
        if let Some((rank, cause)) = self.first_lost(&driven) {
            return Err(Error::PeerLost { rank, cause, doing: doing.into() });
        }
        let Patience { spins, yields, .. } = self.patience;
        if let (Some(pace), Some(engine)) = (driven.far.pace(), home) {
            if !engine.sleep_virtual(pace, None) {
                return Err(match self.job.any_left().then(|| self.job.first_to_leave(|_| true)).flatten() {
                    Some(rank) => engine.lost(rank, Loss::Left, doing),
                    None => Error::Standstill { doing: doing.into() },
                });
            }
        } else if idle < spins {
            std::hint::spin_loop();
        } else if idle < spins.saturating_add(yields) {
            drop(driven);
            rustix::thread::sched_yield();
        } else {
            if !self.job.is_intact() {
                return Err(Error::MemoryLost { doing: doing.into() });
            }
            if !self.job.supervised() {
                self.look_for_dead(&mut driven);
            }
            if driven.far.arm() {
                driven.far.sleep(NAP);
            }
        }
        Ok(())
    }

    /// The rank that died first, or to which the connection is lost.
    fn first_lost(&self, driven: &Driven) -> Option<(usize, Loss)> {
        self.job.first_lost().or_else(|| driven.cut.first().map(|rank| (*rank, Loss::Disconnected)))
    }

    /// Marks ranks of this host whose process has ended, where no supervisor does.
    fn look_for_dead(&self, driven: &mut Driven) {
        let watch = driven.watch.get_or_insert_with(|| {
            let mut watch = Watch::default();
            let here = (0..self.size).filter(|rank| *rank != self.rank && self.job.is_here(*rank));
            here.for_each(|rank| watch.add(&self.job, rank));
            watch
        });
        watch.look(&self.job);
    }

    /// The network says that `rank` cannot be reached, which an operation on it has met. Waits for what the roster knows of it.
    #[cold]
    fn lose(&self, driven: &mut Driven, rank: usize) {
        let start = Instant::now();
        while !self.is_decided(driven, rank, start) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether it is known what became of `rank`. The roster has a while to tell: it knows more than a network can. Then the
    /// connection counts as lost, though to others the rank may be well.
    fn is_decided(&self, driven: &mut Driven, rank: usize, since: Instant) -> bool {
        if let Some(pace) = driven.far.pace() {
            match [self.rank, rank].into_iter().find(|rank| pace.is_dead(*rank)) {
                Some(dead) => self.job.mark_lost(dead, Loss::Unknown),
                None => driven.cut.push(rank),
            }
            (0..self.size).filter(|other| *other != self.rank).for_each(|other| pace.notify(other));
            return true;
        }
        if !self.job.supervised() {
            self.look_for_dead(driven);
        }
        if self.job.loss(rank).is_some() {
            return true;
        }
        let is_over = since.elapsed() > GRACE;
        if is_over {
            driven.cut.push(rank);
        }
        is_over
    }

    #[cold]
    fn failed(&self, driven: &mut Driven, error: transport::Error, rank: usize, doing: &'static str) -> Error {
        match error.at(doing, rank) {
            Error::PeerLost { cause, .. } => {
                self.lose(driven, rank);
                let known = self.job.loss(rank).map(|cause| (rank, cause));
                let (rank, cause) = self.first_lost(driven).or(known).unwrap_or((rank, cause));
                Error::PeerLost { rank, cause, doing: doing.into() }
            }
            // Its memory is taken away when a rank leaves.
            other => match self.job.loss(rank) {
                Some(cause) => Error::PeerLost { rank, cause, doing: doing.into() },
                None => other,
            },
        }
    }

    /// Posts something at `rank` as soon as there is room.
    fn insist<T>(
        &self,
        doing: &'static str,
        rank: usize,
        mut post: impl FnMut(&dyn Far) -> transport::Result<Option<T>>,
    ) -> Result<T> {
        self.check_alive(rank, doing)?;
        let mut posted = None;
        self.wait(doing, |driven| {
            posted = post(&*driven.far).map_err(|error| self.failed(driven, error, rank, doing))?;
            Ok(posted.is_some())
        })?;
        Ok(posted.expect("the wait ends with something that was posted"))
    }

    /// Writes `bytes` at `offset` of the slot of `rank`, in bounds. They may be changed when it returns.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn put(&self, doing: &'static str, rank: usize, mut offset: usize, mut bytes: &[u8]) -> Result<()> {
        if self.is_near(rank) {
            // SAFETY: a mapped slot, in bounds by the caller's word.
            unsafe { copy::put(self.node.slot(rank).add(offset), bytes.as_ptr(), bytes.len()) };
            self.announce(rank);
            return Ok(());
        }
        self.check_alive(rank, doing)?;
        self.wait(doing, |driven| {
            while !bytes.is_empty() {
                let len = bytes.len().min(driven.far.largest_put());
                match driven.far.put(rank, offset, &bytes[..len]) {
                    Ok(0) => return Ok(false),
                    Ok(done) => (offset, bytes) = (offset + done, &bytes[done..]),
                    Err(error) => return Err(self.failed(driven, error, rank, doing)),
                }
            }
            Ok(true)
        })
    }

    /// In virtual time a store is an event that has to be announced.
    fn announce(&self, rank: usize) {
        if self.network.as_ref().is_some_and(|network| network.paced)
            && let Some(pace) = self.driven().far.pace()
        {
            pace.notify(rank);
        }
    }

    /// Reads bytes at `offset` of the slot of `rank`, in bounds.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn get(&self, doing: &'static str, rank: usize, offset: usize, into: &mut [u8]) -> Result<()> {
        if self.is_near(rank) {
            // SAFETY: a mapped slot, in bounds by the caller's word.
            unsafe { copy::get(into.as_mut_ptr(), self.node.slot(rank).add(offset), into.len()) };
            return Ok(());
        }
        self.check_alive(rank, doing)?;
        let mut fetch = Fetch::new(rank, offset, into.len());
        self.wait(doing, |driven| fetch.advance(self, driven, doing, into))
    }

    /// As [`Stream::get`], but only goes on with it as far as it can now; tells whether that is all.
    ///
    /// # Errors
    /// As [`Stream::get`], except that it never waits.
    pub(crate) fn go_on(&self, doing: &'static str, fetch: &mut Fetch, into: &mut [u8]) -> Result<bool> {
        self.check_own(doing)?;
        let mut driven = self.driven();
        driven.turn(self);
        let done = fetch.advance(self, &mut driven, doing, into)?;
        if !done {
            self.check_none_lost(&driven, doing)?
        }
        Ok(done)
    }

    /// # Errors
    /// [`Error::PeerLost`] if a rank died.
    fn check_none_lost(&self, driven: &Driven, doing: &'static str) -> Result<()> {
        match self.first_lost(driven) {
            Some((rank, cause)) => Err(Error::PeerLost { rank, cause, doing: doing.into() }),
            None => Ok(()),
        }
    }

    /// Does an atomic at `offset` of the slot of `rank`, in bounds, by the network; tells what was there before.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn atomic(&self, doing: &'static str, rank: usize, offset: usize, asked: Asked) -> Result<u64> {
        match self.insist(doing, rank, |far| far.atomic_now(rank, offset, asked))? {
            Soon::Now(word) => Ok(word),
            Soon::Later(answer) => {
                self.wait(doing, |driven| self.answered(driven, doing, rank, &answer))?;
                Ok(answer.word.load(Ordering::Relaxed))
            }
        }
    }

    /// Posts an atomic, and gives what will hold the answer. Waits for room.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn post_atomic(
        &self,
        doing: &'static str,
        rank: usize,
        offset: usize,
        asked: Asked,
    ) -> Result<Arc<Answer>> {
        self.insist(doing, rank, |far| far.atomic(rank, offset, asked))
    }

    /// What an atomic at `rank` found, if that has come.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn found(&self, doing: &'static str, rank: usize, answer: &Answer) -> Result<Option<u64>> {
        self.check_own(doing)?;
        let mut driven = self.driven();
        driven.turn(self);
        if self.answered(&mut driven, doing, rank, answer)? {
            return Ok(Some(answer.word.load(Ordering::Relaxed)));
        }
        self.check_none_lost(&driven, doing).map(|()| None)
    }

    fn answered(&self, driven: &mut Driven, doing: &'static str, rank: usize, answer: &Answer) -> Result<bool> {
        match answer.outcome() {
            None => Ok(false),
            Some(outcome) => outcome.map(|()| true).map_err(|error| self.failed(driven, error, rank, doing)),
        }
    }

    /// Adds one to a word of the slot of `rank`, after all that this context has put there: to the one at `mapped`, which
    /// processors add to, or to the one at `remote`, which the network adds to.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    #[inline]
    pub(crate) fn ring(&self, doing: &'static str, rank: usize, mapped: usize, remote: usize) -> Result<()> {
        if self.network.is_some() {
            return self.ring_network(doing, rank, mapped, remote);
        }
        self.ring_mapped(rank, mapped);
        Ok(())
    }

    #[inline(always)]
    fn ring_mapped(&self, rank: usize, offset: usize) {
        // SAFETY: an aligned word of a mapped slot, in bounds by the caller's word, only touched as this atomic.
        let word = unsafe { AtomicU64::from_ptr(self.node.slot(rank).add(offset).cast()) };
        // Other contexts add to it too. Release pairs with the Acquire load of whoever counts.
        word.fetch_add(1, Ordering::Release);
        if self.sleeps(rank) {
            self.wake(rank);
        }
    }

    #[cold]
    fn ring_network(&self, doing: &'static str, rank: usize, mapped: usize, remote: usize) -> Result<()> {
        if self.is_near(rank) {
            // What the network does there comes first.
            self.wait(doing, |driven| driven.is_settled(self, doing, rank))?;
            self.ring_mapped(rank, mapped);
            return Ok(());
        }
        self.insist(doing, rank, |far| far.ring(rank, remote).map(|sent| (sent == Sent::Done).then_some(())))?;
        let mut driven = self.driven();
        if driven.far.is_silent() && self.job.is_here(rank) {
            driven.nudges.push((rank, false));
            driven.nudge(self);
        }
        Ok(())
    }

    /// Whether `rank` is asleep, or about to be; asked after what it may wait for is stored.
    #[inline(always)]
    fn sleeps(&self, rank: usize) -> bool {
        // Either we see that it sleeps, or it sees what was stored: pairs with the sleeper's barrier in `Engine::sleep`.
        if self.full_fence {
            fence(Ordering::SeqCst)
        } else {
            compiler_fence(Ordering::SeqCst)
        }
        self.job.sleep_word(rank).load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn wake(&self, rank: usize) {
        self.job.wake(rank);
        if self.network.is_some() {
            let mut driven = self.driven();
            if let Some(pace) = driven.far.pace() {
                return pace.notify(rank);
            }
            driven.nudges.push((rank, true));
            driven.nudge(self);
        }
    }

    /// Waits until all that this context has put and rung at `rank` is in effect there.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(crate) fn flush(&self, doing: &'static str, rank: usize) -> Result<()> {
        fence(Ordering::SeqCst);
        if self.network.is_none() || rank == self.rank {
            return self.check_own(doing);
        }
        self.wait(doing, |driven| driven.is_settled(self, doing, rank))
    }

    /// Whether all that this context has put and rung at `rank` is in effect there. Makes progress once.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn is_flushed(&self, doing: &'static str, rank: usize) -> Result<bool> {
        self.check_own(doing)?;
        if self.network.is_none() || rank == self.rank {
            return Ok(true);
        }
        let mut driven = self.driven();
        driven.turn(self);
        let done = driven.is_settled(self, doing, rank)?;
        if !done {
            self.check_none_lost(&driven, doing)?
        }
        Ok(done)
    }

    /// Waits until nothing of this context is in flight.
    ///
    /// # Errors
    /// As [`Stream::wait`]; what could not be done of what was put before, once.
    pub(crate) fn flush_all(&self, doing: &'static str) -> Result<()> {
        fence(Ordering::SeqCst);
        if self.network.is_none() {
            return self.check_own(doing);
        }
        self.wait(doing, |driven| match driven.faults.pop_front() {
            Some(error) => Err(error),
            None => driven.is_quiet(self, doing),
        })
    }

    /// What this context has put to a rank before is in effect there before what it puts there later.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn order(&self, doing: &'static str) -> Result<()> {
        fence(Ordering::SeqCst);
        self.check_own(doing)?;
        if self.network.is_some() {
            let driven = self.driven();
            // A rank that cannot be reached any more is told of by a flush.
            let _ = driven.far.order();
        }
        Ok(())
    }

    /// Leaves what is in flight to the rank's own thread, which waits for it where a phase or an allocation ends.
    #[cold]
    fn abandon(&mut self) {
        let network = self.network.take();
        if self.home.shared.over.load(Ordering::Relaxed) {
            return std::mem::forget(network);
        }
        let (job, node, home) = (Arc::clone(&self.job), Arc::clone(&self.node), self.home.clone());
        let orphan = Stream { job, node, home, network, nodes: self.nodes.clone(), ..*self };
        self.home.shared.orphans.lock().push(orphan);
    }

    /// As [`Stream::flush_all`], by the rank's own thread: what could not be done is told to the context.
    fn drain(&self, doing: &'static str) -> Result<()> {
        self.wait(doing, |driven| match driven.is_quiet(self, doing) {
            Ok(quiet) => Ok(quiet),
            Err(error) => {
                driven.faults.push_back(error);
                Ok(false)
            }
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.network.is_none() {
            return;
        }
        // What is in flight ends before the interface does. What cannot be done any more is not told to anybody.
        let outcome = loop {
            match self.flush_all("dropping a context") {
                Err(Error::PeerLost { .. }) if !self.driven().faults.is_empty() => {}
                outcome => break outcome,
            }
        };
        match outcome {
            // The parent's interface stays as it is.
            Err(Error::Forked { .. }) => std::mem::forget(self.network.take()),
            Err(Error::InvalidArgument { .. } | Error::InsideHandler { .. }) => self.abandon(),
            _ => {}
        }
    }
}

impl Driven {
    /// Makes progress; tells how much was done.
    fn turn(&mut self, stream: &Stream) -> usize {
        let (done, has_news) = self.far.progress();
        if has_news {
            // Nobody sends here.
            while self.far.arrival().is_some() {}
            let now = Instant::now();
            self.doubts.extend(self.far.take_lost().into_iter().map(|rank| (rank, now)));
        }
        if !self.doubts.is_empty() {
            let doubts = std::mem::take(&mut self.doubts);
            let open = doubts.into_iter().filter(|(rank, since)| !stream.is_decided(self, *rank, *since)).collect();
            self.doubts = open;
        }
        if !self.nudges.is_empty() {
            self.nudge(stream);
        }
        done
    }

    /// Wakes ranks that sleep although something was rung there.
    fn nudge(&mut self, stream: &Stream) {
        let Driven { far, nudges, .. } = self;
        nudges.retain_mut(|(rank, due)| {
            if !*due {
                // A rank that is gone sleeps no more.
                let Ok(settled) = far.settled(*rank) else { return false };
                fence(Ordering::SeqCst);
                if stream.job.sleep_word(*rank).load(Ordering::Relaxed) == 0 {
                    return !settled;
                }
                stream.job.wake(*rank);
                *due = true;
            }
            matches!(far.wake(*rank), Ok(Sent::NoRoom))
        });
    }

    fn is_settled(&mut self, stream: &Stream, doing: &'static str, rank: usize) -> Result<bool> {
        self.far.settled(rank).map_err(|error| stream.failed(self, error, rank, doing))
    }

    fn is_quiet(&mut self, stream: &Stream, doing: &'static str) -> Result<bool> {
        match self.far.flush() {
            Ok(all) => Ok(all && self.far.is_answered()),
            // Nobody misses what was put to a rank that left.
            Err((rank, _)) if stream.job.loss(rank) == Some(Loss::Left) => Ok(false),
            Err((rank, error)) => match stream.failed(self, error, rank, doing) {
                Error::PeerLost { rank, cause: Loss::Left, .. } if stream.job.loss(rank) == Some(Loss::Left) => {
                    Ok(false)
                }
                error => Err(error),
            },
        }
    }
}

/// A get of bytes of one rank's slot, in as many requests as the network needs.
#[derive(Debug)]
pub(crate) struct Fetch {
    rank: usize,
    offset: usize,
    /// Not asked for yet: start and length, from `offset`.
    rest: Vec<(usize, usize)>,
    /// Asked for.
    flying: VecDeque<(usize, usize, Arc<Answer>)>,
}

impl Fetch {
    /// Of `len` bytes at `offset`. Nothing is asked for yet.
    pub(crate) fn new(rank: usize, offset: usize, len: usize) -> Fetch {
        let rest = if len == 0 { Vec::new() } else { vec![(0, len)] };
        Fetch { rank, offset, rest, flying: VecDeque::new() }
    }

    /// Writes what has come to `into`, asks for more, and tells whether all is there.
    fn advance(&mut self, stream: &Stream, driven: &mut Driven, doing: &'static str, into: &mut [u8]) -> Result<bool> {
        while let Some((start, len, answer)) = self.flying.front()
            && stream.answered(driven, doing, self.rank, answer)?
        {
            let bytes = answer.bytes().expect("data comes before its completion");
            into[*start..*start + bytes.len()].copy_from_slice(bytes);
            if bytes.len() < *len {
                // A registration ended there.
                self.rest.push((start + bytes.len(), len - bytes.len()));
            }
            self.flying.pop_front();
        }
        while self.flying.len() < WINDOW
            && let Some((start, left)) = self.rest.pop()
        {
            let len = left.min(driven.far.largest_get());
            let asked = driven.far.get(self.rank, self.offset + start, len);
            match asked.map_err(|error| stream.failed(driven, error, self.rank, doing))? {
                Some(answer) => self.flying.push_back((start, len, answer)),
                None => {
                    self.rest.push((start, left));
                    break;
                }
            }
            if len < left {
                self.rest.push((start + len, left - len));
            }
        }
        Ok(self.rest.is_empty() && self.flying.is_empty())
    }
}
