//! Contexts: independent streams of operations of one rank, each for one thread at a time.
//!
//! A context shares with its rank's own stream ([`Engine`]) the mapped slots and the roster, and nothing else: on a network it
//! has an interface of its own, to which nobody sends. Messages, bells' counts and collectives stay with the engine.
//!
//! The interface is under a lock. The context's thread takes it for each operation and for each turn of a wait. The rank's own
//! thread takes it only where a phase or an allocation ends ([`Engine::quiet_contexts`]): it then drives the context until
//! nothing of it is in flight; the context's thread posts nothing meanwhile. So memory that is freed, or becomes its owner's
//! alone, is not written by what a context has posted before. What a context posts later is posted through a handle that
//! borrows the allocation in its phase.

mod operations;
mod track;
mod wait;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use super::Engine;
use super::liveness::Losses;
use super::networks::{ApartNetworks, Networks};
use super::operation::Receipts;
use super::routes::Routes;
use super::track::Tracking;
use super::wait::Patience;
use crate::bootstrap::job::JobMemory;
use crate::error::{Error, Result};
use crate::memory::node::NodeMemory;
use crate::transport;
use crate::transport::lock::Mutex;

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
    /// What handlers of other ranks owe this one.
    receipts: Receipts,
    /// Contexts that were dropped where nobody could wait for what they had in flight.
    orphans: Mutex<Vec<Stream>>,
}

impl Contexts {
    pub(super) fn receipts(&self) -> &Receipts {
        &self.shared.receipts
    }
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
    routes: Routes,
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
    /// The rank's own thread waits until nothing is in flight: others post nothing meanwhile.
    draining: AtomicBool,
    /// Time is virtual.
    paced: bool,
}

/// What a context does over the network.
pub(crate) struct Driven {
    far: ApartNetworks,
    /// Ranks that may sleep while a ring is on its way to them, and whether they were seen asleep.
    nudges: Vec<(usize, bool)>,
    /// Ranks that its interface cannot reach.
    losses: Losses,
    /// Errors that the rank's own thread met here, for the context's next flush.
    faults: VecDeque<Error>,
    /// Operations with events.
    tracking: Tracking,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driven({})", self.far.names())
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
        let open = |networks: &Networks| {
            let apart = networks.apart().map_err(|error| match error {
                transport::Error::Busy | transport::Error::NoMemory => full(error),
                error => error.at(DOING, self.rank),
            })?;
            let driven = Driven {
                far: apart,
                nudges: Vec::new(),
                losses: self.losses.borrow().for_another(),
                faults: VecDeque::new(),
                tracking: Tracking::default(),
            };
            Ok(Network {
                driven: Mutex::new(driven),
                draining: AtomicBool::new(false),
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

    /// Whether this rank has contexts, also on mapped memory.
    pub(super) fn has_contexts(&self) -> bool {
        // Each holds it.
        Arc::strong_count(&self.contexts.shared) > 1
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
        if self.networks.is_empty() { Ok(()) } else { self.drain_contexts(doing) }
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
    /// Leaves what is in flight to the rank's own thread, which waits for it where a phase or an allocation ends.
    #[cold]
    fn abandon(&mut self) {
        let network = self.network.take();
        if self.home.shared.over.load(Ordering::Relaxed) {
            return std::mem::forget(network);
        }
        let (job, node, home) = (Arc::clone(&self.job), Arc::clone(&self.node), self.home.clone());
        let orphan = Stream { job, node, home, network, routes: self.routes.clone(), ..*self };
        self.home.shared.orphans.lock().push(orphan);
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
