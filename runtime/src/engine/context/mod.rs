//! Contexts: independent streams of operations of one rank, each for one thread at a time.
//!
//! A context shares the mapped slots, the routes and the roster with its rank's own stream ([`Engine`]), and nothing else. On a
//! network it has an interface of its own, to which no rank sends messages. Delivering messages, the counts of bells and collectives
//! stay with the engine.
//!
//! The interface is under a lock. The context's thread takes it for each operation and for each turn of a wait. The rank's own
//! thread takes it only where a phase or an allocation ends ([`Engine::quiet_contexts`]): it then drives the context until
//! nothing of it is in flight; the context's thread posts nothing meanwhile. So no operation that a context posted before writes
//! memory that has been freed, or that only its owner may access in the next phase. Later operations go through a handle, which
//! borrows the allocation in its phase.

mod addresses;
mod at_once;
mod changing;
mod complete;
mod locate;
mod messages;
mod operations;
mod queued;
mod reserved;
mod segments;
mod siblings;
mod straight;
mod track;
mod wait;
mod wakeup;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::thread::ThreadId;

pub(crate) use self::changing::Changing;
pub(crate) use self::messages::Outlet;
use self::messages::Sendings;
use self::queued::Kept;
pub(super) use self::segments::{Flush, Leaving};
pub(crate) use self::segments::{Locate, Reached};
use self::segments::{Users, Using};
use self::siblings::{Siblings, Uses};
use self::wait::Ends;
use self::wakeup::Sleepers;
pub(crate) use self::wakeup::StreamWakeup;
use super::Engine;
use super::mapped_segments::MappedSegments;
use super::networks::{ApartNetworks, Networks};
use super::operation::{Receipts, drop_all};
use super::routes::Routes;
use super::segments::Answering;
use super::track::Tracking;
use super::wait::Patience;
use crate::error::{CalledAt, Error, Result};
use crate::membership::JobMemory;
use crate::membership::liveness::{Cuts, Losses};
use crate::memory::blocks::Changes;
use crate::memory::node::NodeMemory;
use crate::sleep::Fences;
use crate::transport;
use crate::transport::lock::Mutex;
use crate::transport::shm::{self, ContextLanes};

/// Identifies a rank of a world among those of all worlds of this process, also of worlds that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(u64);

/// The contexts of a rank, as its engine knows them.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    shared: Arc<Shared>,
}

/// State that an engine and its contexts share.
#[derive(Debug)]
struct Shared {
    identity: Identity,
    /// The engine is gone.
    over: AtomicBool,
    /// Receipts that peers still have to send to this rank.
    receipts: Receipts,
    sendings: Sendings,
    siblings: Siblings,
    users: Users,
    /// Number of contexts that are not in use; see [`Stream::note_used`].
    unused: AtomicIsize,
    /// In virtual time, in how many calls the rank's own thread lets time pass for other threads that use contexts.
    lent: AtomicUsize,
    /// Contexts with operations in flight whose drop could not wait: inside a handler, or, in virtual time, on another thread.
    orphans: Mutex<Vec<OpenStream>>,
}

impl Default for Shared {
    fn default() -> Shared {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the number only has to be unique.
        let identity = Identity(LAST.fetch_add(1, Ordering::Relaxed));
        Shared {
            identity,
            over: AtomicBool::new(false),
            receipts: Receipts::default(),
            sendings: Sendings::default(),
            siblings: Siblings::default(),
            users: Users::default(),
            unused: AtomicIsize::new(0),
            lent: AtomicUsize::new(0),
            orphans: Mutex::default(),
        }
    }
}

impl Contexts {
    /// Waits until no context of this rank uses a segment that it found in a mapped table before.
    pub(super) fn wait_for_users(&self) {
        self.shared.users.wait();
    }

    /// The receipts that peers still have to send to this rank.
    pub(crate) fn receipts(&self) -> &Receipts {
        &self.shared.receipts
    }

    /// Messages that contexts have sent.
    pub(super) fn sent(&self) -> u64 {
        self.shared.sendings.total()
    }

    /// Makes progress for contexts whose owner is idle. Returns how much was done.
    #[inline]
    pub(super) fn turn(&self) -> usize {
        self.shared.siblings.turn(std::ptr::null())
    }

    /// Whether no context has anything in flight, for a thread that has armed the rank's descriptor: if so, the next use of a context makes
    /// the descriptor readable.
    pub(super) fn are_at_rest(&self) -> bool {
        self.shared.siblings.are_at_rest()
    }

    /// The flushes that have to end before an owner is told that this rank no longer uses a segment.
    pub(super) fn leave(&self, answer: Answering, own: Option<Flush>) -> Leaving {
        self.shared.leave(answer, own)
    }

    /// Tells contexts that the engine is gone.
    pub(super) fn end(&self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Each orphan holds an `Arc` of the state that holds it. Taken out, they and the state are freed.
        let orphans = std::mem::take(&mut *self.shared.orphans.lock());
        drop(orphans);
    }
}

/// Other threads may use contexts in virtual time as long as this lives.
pub(crate) struct Lent<'a>(&'a AtomicUsize);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The engine of a context's rank. Only the engine's own thread can use it.
#[derive(Debug, Clone)]
struct Home {
    /// `None` for a context whose rank has no thread of its own: threads use the engine in turns, and the context never does.
    thread: Option<ThreadId>,
    engine: *const Engine,
    shared: Arc<Shared>,
}

// SAFETY: the pointer is followed on the engine's own thread only, by `Home::engine`.
unsafe impl Send for Home {}
// SAFETY: as above.
unsafe impl Sync for Home {}

impl Home {
    /// The engine. `None` on any thread but its own, and when it is gone.
    fn engine(&self) -> Option<Rc<Engine>> {
        if self.thread != Some(std::thread::current().id()) || self.shared.over.load(Ordering::Relaxed) {
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

/// A context that is open as long as this lives. The drop waits for operations in flight, then closes the interface.
#[derive(Debug)]
pub(crate) struct OpenStream(Arc<Stream>);

impl Deref for OpenStream {
    type Target = Stream;

    #[inline(always)]
    fn deref(&self) -> &Stream {
        &self.0
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if self.network.is_some() {
            self.close();
        }
    }
}

/// One context. Other threads of the rank make progress for it now and then (`siblings.rs`), so a last reference may be theirs.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    job: Arc<JobMemory>,
    node: Arc<NodeMemory>,
    routes: Routes,
    /// The engine's fences, used at each wake-up.
    fences: Fences,
    patience: Patience,
    /// The phases of the rank's blocks.
    changes: Arc<Changes>,
    mapped_segments: Arc<MappedSegments>,
    using: Arc<Using>,
    /// Ranks to which an interface of this rank has lost its connection.
    cuts: Arc<Cuts>,
    home: Home,
    /// Where in a slot the words are that count handled messages of contexts.
    handled: usize,
    sleepers: Sleepers,
    /// `None` if the memory of all ranks is mapped.
    network: Option<Network>,
}

#[derive(Debug)]
struct Network {
    driven: Mutex<Driven>,
    /// The thread that drains this context for its rank, by [`wait::token`]; 0 is none. The context's thread posts nothing meanwhile.
    draining: AtomicUsize,
    uses: Uses,
    /// Time is virtual.
    paced: bool,
}

/// The state of a context on its networks; see the module for its lock.
pub(crate) struct Driven {
    networks: ApartNetworks,
    /// Ranks that may be asleep while a ring to them is in flight, and whether they were seen asleep.
    nudges: Vec<(usize, bool)>,
    /// Ranks that its interface cannot reach, and those that other interfaces of this rank cannot.
    losses: Losses,
    /// The unposted rest of puts and rings that answered at once, by target. No queue is empty.
    kept: BTreeMap<usize, VecDeque<Kept>>,
    /// Errors of kept operations, by target, found while making progress. The next call for that target, or the next flush, returns one.
    dropped: Vec<(usize, Error)>,
    /// Ranks that were lost or left before all puts to them are known to be in effect. See [`Stream::take_unmet`].
    unmet: BTreeSet<usize>,
    /// Errors that the rank's own thread found in this context, for the context's next flush.
    faults: VecDeque<Error>,
    /// Operations with events.
    tracking: Tracking,
    /// The current operation must not block; see [`Driven::at_once`].
    is_at_once: bool,
    /// Ranks that a flush could not reach, with the name of the call: the network reports each once, and the roster has not decided yet why
    /// they cannot be reached.
    untold: Vec<(usize, &'static str)>,
    /// For tests: every post and flush fails as if the connection were lost.
    #[cfg(test)]
    is_broken: bool,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driven({})", self.networks.names())
    }
}

impl Engine {
    /// Opens a context. Other ranks need not know of it.
    ///
    /// # Errors
    /// [`Error::NoContext`] if the network has no further interface; [`Error::OutOfMemory`]; [`Error::Os`] if the system refuses a
    /// resource; [`Error::Forked`].
    pub(crate) fn open_context(self: &Rc<Engine>) -> Result<Arc<OpenStream>> {
        self.open_context_of(Some(std::thread::current().id()))
    }

    /// As [`Engine::open_context`], for a rank whose world several threads use in turns: on no thread does a wait of the context make
    /// progress for the rank's messages. In virtual time it is an ordinary context.
    ///
    /// # Errors
    /// As [`Engine::open_context`].
    pub(crate) fn open_context_apart(self: &Rc<Engine>) -> Result<Arc<OpenStream>> {
        self.open_context_of(self.networks.pace().map(|_| std::thread::current().id()))
    }

    fn open_context_of(self: &Rc<Engine>, thread: Option<ThreadId>) -> Result<Arc<OpenStream>> {
        const DOING: &str = "context";
        self.check_own(DOING)?;
        let open = |networks: &Networks| {
            let apart = networks.apart().map_err(|(network, error)| match error {
                transport::Error::Busy => Error::NoContext {
                    // One is the rank's own.
                    limit: network.most_interfaces().saturating_sub(1),
                    network: network.name().into(),
                    place: CalledAt::default(),
                },
                transport::Error::Io(why) => Error::Os {
                    doing: "making a context",
                    call: "a further interface of the network",
                    source: std::io::Error::other(why),
                },
                transport::Error::NoMemory => Error::OutOfMemory {
                    what: "memory for the network's buffers of a further context",
                    asked: 0,
                    free: 0,
                    limit: 0,
                    setting: "the memory of the machine",
                    place: CalledAt::default(),
                },
                error => error.at(DOING, self.rank),
            })?;
            let driven = Driven {
                networks: apart,
                nudges: Vec::new(),
                kept: BTreeMap::new(),
                dropped: Vec::new(),
                losses: self.failures.for_another(),
                unmet: BTreeSet::new(),
                faults: VecDeque::new(),
                tracking: Tracking::default(),
                is_at_once: false,
                untold: Vec::new(),
                #[cfg(test)]
                is_broken: false,
            };
            Ok(Network {
                driven: Mutex::new(driven),
                draining: AtomicUsize::new(0),
                uses: Uses::default(),
                paced: networks.pace().is_some(),
            })
        };
        let network = if self.networks.is_empty() { None } else { Some(open(&self.networks)?) };
        let stream = Arc::new(Stream {
            rank: self.rank,
            size: self.size,
            job: Arc::clone(&self.job),
            node: Arc::clone(&self.node),
            routes: self.routes.clone(),
            fences: self.interface.fences(),
            patience: self.waiting.patience(),
            changes: self.blocks.counts(),
            mapped_segments: Arc::clone(self.segments.mapped()),
            using: self.contexts.shared.users.add(),
            cuts: self.failures.cuts(),
            home: Home { thread, engine: Rc::as_ptr(self), shared: Arc::clone(&self.contexts.shared) },
            handled: self.layout.handled,
            sleepers: Sleepers::default(),
            network,
        });
        if stream.network.is_some() {
            self.contexts.shared.siblings.add(&stream);
        }
        Ok(Arc::new(OpenStream(stream)))
    }

    /// The sending end of a context that was just opened.
    pub(crate) fn open_outlet(&self) -> Outlet {
        let place = shm::NodeRank {
            rank: self.rank,
            job: Arc::clone(&self.job),
            node: Arc::clone(&self.node),
            layout: self.layout,
            message_memory: self.settings.message_memory,
            cross_memory_attach: false,
        };
        let sendings = &self.contexts.shared.sendings;
        Outlet::new(ContextLanes::new(place, Arc::clone(&sendings.arenas)), sendings)
    }

    /// Lets other threads use contexts in virtual time. The caller lets time pass until they have ended.
    pub(crate) fn lend_contexts(&self) -> Lent<'_> {
        let lent = &self.contexts.shared.lent;
        // Relaxed: the operation that hands a context to another thread, or waits for that thread, orders this.
        lent.fetch_add(1, Ordering::Relaxed);
        Lent(lent)
    }

    /// Whether this rank has contexts that are in use, also on mapped memory.
    pub(super) fn has_contexts(&self) -> bool {
        let shared = &self.contexts.shared;
        // Each context holds an `Arc` of `shared`. Relaxed: the operation that hands a context to another thread orders this. The count may
        // be negative briefly, while one thread takes up a context that another puts down.
        Arc::strong_count(shared) as isize - 1 > shared.unused.load(Ordering::Relaxed)
    }

    /// Whether there is any context, used or not.
    pub(super) fn has_any_context(&self) -> bool {
        Arc::strong_count(&self.contexts.shared) > 1
    }

    pub(crate) fn identity(&self) -> Identity {
        self.contexts.shared.identity
    }

    /// Waits until no operation of any context of this rank is in flight. A context's own next flush returns its errors.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died, [`Error::InsideHandler`].
    #[inline]
    pub(crate) fn quiet_contexts(&self, doing: &'static str) -> Result<()> {
        if self.networks.is_empty() { Ok(()) } else { self.drain_contexts(doing, Ends::Any) }
    }

    /// As [`Engine::quiet_contexts`], but goes on when ranks are lost, until operations in flight to the other ranks have ended.
    ///
    /// # Errors
    /// [`Error::InsideHandler`].
    pub(crate) fn end_in_flight(&self, doing: &'static str) -> Result<()> {
        if self.networks.is_empty() { Ok(()) } else { self.drain_contexts(doing, Ends::Never) }
    }

    #[cold]
    fn drain_contexts(&self, doing: &'static str, ends: Ends) -> Result<()> {
        let _happening = self.calls.happening();
        // Each wait makes progress for all of them.
        self.contexts.shared.siblings.all().iter().try_for_each(|stream| stream.drain(doing, self, ends))?;
        let orphans = std::mem::take(&mut *self.contexts.shared.orphans.lock());
        // Dropped here, on the rank's own thread.
        orphans.iter().try_for_each(|stream| stream.drain(doing, self, ends))
    }
}

impl OpenStream {
    #[cold]
    fn close(&self) {
        const DOING: &str = "dropping a context";
        // Operations in flight end before the interface closes. Errors are dropped: no call is left that could return them.
        let outcome = self.wait_unless(DOING, Ends::Never, |driven| {
            driven.faults.clear();
            driven.dropped.clear();
            match driven.is_quiet(self, DOING) {
                // The network tells each loss once. Operations on other ranks go on.
                Err(Error::PeerLost { .. }) => Ok(false),
                outcome => outcome,
            }
        });
        let shared = &self.home.shared;
        match outcome {
            // In a forked child: the interface is the parent's, and stays as it is.
            Err(Error::Forked { .. }) => std::mem::forget(Arc::clone(&self.0)),
            Err(Error::InvalidArgument { .. } | Error::InsideHandler { .. }) if shared.over.load(Ordering::Relaxed) => {
                shared.siblings.remove(self);
                std::mem::forget(Arc::clone(&self.0));
            }
            // The rank's own thread waits for the operations in flight when a phase or an allocation ends.
            Err(Error::InvalidArgument { .. } | Error::InsideHandler { .. }) => {
                shared.orphans.lock().push(OpenStream(Arc::clone(&self.0)));
            }
            _ => {
                shared.siblings.remove(self);
                let mut driven = self.driven();
                let others = driven.tracking.give_up();
                driven.nudges.clear();
                driven.kept.clear();
                // Another thread may hold the stream briefly longer; the interface ends now.
                let closed = driven.networks.close();
                drop(driven);
                drop(closed);
                drop_all(others);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use crate::Threads;
    use crate::sleep::Fences;

    /// Else a rank that sleeps by a full fence would miss a wake-up by a context.
    #[test]
    fn a_context_wakes_by_the_fences_of_its_rank() {
        let allowed = sched_getaffinity(None).expect("told");
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        // Ranks that share a core, and others if there are cores.
        for count in [1, 2] {
            let outcomes = Threads::new(2).build(|builder| {
                let mut set = CpuSet::new();
                cores.iter().take(count).for_each(|core| set.set(*core));
                sched_setaffinity(None, &set).expect("cores there are");
                let world = builder.start().expect("starts");
                let fences =
                    [world.engine().open_context().expect("mapped memory").fences, world.engine().interface.fences()];
                world.barrier().expect("all enter");
                (fences, world.engine().waiting.patience().crowded)
            });
            for ([context, engine], crowded) in outcomes.expect("runs") {
                assert_eq!(context, engine, "on {count} cores");
                assert!(!crowded || context == Fences::Full);
            }
        }
    }
}
