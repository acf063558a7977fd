//! The engine of a rank: it makes progress, waits, and drives the rank's memory, networks and messages.
//!
//! [`Engine::poll`] makes progress once: it delivers messages that came through lanes of mapped memory (`dispatch.rs`) or over
//! networks (`remote.rs`, `network.rs`), retries operations that met backpressure (`pending.rs`), and advances background tasks
//! and operations with events (`drive.rs`, `track.rs`). A wait (`wait.rs`) polls, yields the core, and sleeps. `routes.rs` says how
//! each peer is reached, `networks.rs` holds the open networks, and `context/` the streams of operations of other threads.

mod call;
mod claim;
mod context;
mod deadlock;
mod dispatch;
mod drive;
mod failures;
mod faults;
mod mapped;
mod mapped_segments;
mod network;
mod networks;
mod open;
mod operation;
mod others;
mod pending;
mod pieces;
mod ready;
mod remote;
mod remote_access;
mod reserved_segments;
mod routes;
mod segments;
mod serve;
mod straight;
mod track;
mod wait;
mod wakeup;

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

pub(crate) use self::call::Call;
pub(crate) use self::claim::Claim;
pub(crate) use self::context::{Changing, Identity, Locate, OpenStream, Outlet, Stream, StreamWakeup};
pub(crate) use self::dispatch::Dispatch;
pub use self::drive::Background;
pub(crate) use self::mapped_segments::{Attached, MappedSegments, Memo};
pub(crate) use self::network::{Network, Surroundings};
pub(crate) use self::networks::Networks;
pub(crate) use self::open::open_networks;
pub(crate) use self::operation::{
    Atomic, Change, Event, Events, Filled, Found, Get, Group, HeapRange, Member, RECEIPT, Ring, Step, refuse,
};
pub use self::ready::Ready;
pub(crate) use self::remote_access::{Answer, Pace, RemoteAccess};
pub(crate) use self::reserved_segments::{HEAP, STATICS};
pub(crate) use self::routes::{Mapping, Routes};
pub(crate) use self::segments::{ADDRESS, Answering, Found as FoundSegment};
pub(crate) use self::straight::Local;
pub use self::wait::Patience;
pub(crate) use self::wakeup::Wakeup;
/// Most words of a message in one cache line, behind the header.
pub(crate) use crate::transport::shm::WORDS as LINE_WORDS;

use self::operation::Operation;

use crate::error::{CalledAt, Error, Loss, Result};
use crate::membership::JobMemory;
use crate::membership::liveness::Losses;
use crate::membership::nodes::Nodes;
use crate::memory::blocks::Blocks;
use crate::memory::layout::{SlotLayout, Status};
use crate::memory::node::NodeMemory;
use crate::settings::Settings;
use crate::sleep;
use crate::transport::Sent;
use crate::transport::shm::{self, Interface, SHORT_MAX};

/// Everything a rank drives: its memory, its messages, its waits. One thread owns it.
pub struct Engine {
    /// This rank.
    pub rank: usize,
    /// Ranks in the world.
    pub size: usize,
    /// The job's shared memory with the roster: which ranks have arrived, left or failed.
    pub job: Arc<JobMemory>,
    /// The slots of the ranks whose memory is mapped here.
    pub node: Arc<NodeMemory>,
    /// The blocks of the symmetric heap that this rank holds.
    pub blocks: Blocks,
    /// The segments of this rank, beside the symmetric heap.
    segments: segments::Segments,
    /// How segments of mapped ranks are found.
    pub(crate) mapped_segments: Arc<MappedSegments>,
    /// The layout of a slot.
    pub layout: SlotLayout,
    /// The settings of the job.
    pub settings: Settings,
    /// Which rank is on which node.
    pub nodes: Nodes,
    /// The lanes of messages between ranks whose memory is mapped.
    pub interface: Interface,
    /// What runs the handlers of messages.
    dispatch: OnceCell<std::rc::Weak<dyn Dispatch>>,
    /// How each rank is reached.
    pub(crate) routes: Routes,
    /// The networks, where other ranks' memory is not mapped here, or not all of it.
    pub(crate) networks: Networks,
    /// What this rank has to remember of operations over networks.
    remote: remote::Remote,
    /// Ranks that this rank can no longer reach over their network.
    losses: RefCell<Losses>,
    /// The wait under way, and how this rank waits.
    waiting: wait::Waiting,
    /// The descriptor of programs that wait outside this library.
    wakeup: wakeup::Slot,
    /// Operations that met backpressure.
    outbox: pending::Outbox,
    /// Offsets of words at rank 0 that count the ranks that dropped a block; [`Engine::hand_back`] rings them.
    releases: RefCell<Vec<usize>>,
    /// Operations with events.
    tracking: RefCell<track::Tracking>,
    /// Tasks that every poll advances.
    tasks: drive::Tasks,
    /// Messages sent and delivered, to know when all have arrived.
    traffic: Cell<[u64; 2]>,
    /// Errors of delivered messages. Each poll returns one.
    faults: faults::Faults,
    /// Streams of operations beside this one.
    contexts: context::Contexts,
    /// This rank is in a collective call.
    in_collective: Cell<bool>,
    /// Operations run inside a poll, which must not wait for what the roster tells of a peer.
    polling: Cell<bool>,
    /// This rank agrees with others on who is gone.
    ignores_losses: Cell<bool>,
    /// How many ranks that are gone this rank goes on without.
    accepted: Cell<u64>,
    /// What happens at an event runs inside a named call, which may be between two of the collective calls that it is composed of.
    between: Cell<bool>,
}

/// Counts the messages that were delivered before a handler panicked: the end of a world waits until as many messages are
/// delivered as were sent.
struct Unwound<'a>(&'a Engine);

impl Drop for Unwound<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.count(0, self.0.interface.take_unwound());
    }
}

/// A collective call that this rank is in, until it is dropped.
pub(crate) struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Engine {
    /// The engine of the rank at `place`, whose slot is committed as its layout says; no rank has arrived yet. `mapping` says
    /// which ranks are mapped; the others are reached over `networks`. `pace` is the clock of a job in virtual time.
    pub(crate) fn new(
        place: shm::NodeRank,
        mut settings: Settings,
        nodes: Nodes,
        networks: Vec<Box<dyn RemoteAccess>>,
        pace: Option<Box<dyn Pace + Send>>,
        mapping: Mapping,
    ) -> Engine {
        let shm::NodeRank { rank, job, node, layout, .. } = place.clone();
        let size = job.ranks();
        let routes = Routes::new(rank, size, mapping, &nodes, pace.is_some());
        let networks = Networks::new(networks, routes.clone(), pace);
        let outbox = pending::Outbox::new(settings.message_memory);
        settings.message_memory = settings.message_memory.min(networks.largest_message());
        // Assumes one core until all ranks have arrived and tell how many there are.
        let waiting = wait::Waiting::new(Patience::new(size, 1, settings.spin, job.supervised()));
        if !sleep::register_process() {
            job.require_full_fence();
        }
        job.prepare_to_ring();
        let interface = Interface::new(place, routes.senders(), routes.all_mapped());
        let segments = segments::Segments::new(&node, &layout);
        let mapped_segments = Arc::new(MappedSegments::new(rank, &job, &node, layout, &routes, &nodes));
        Engine {
            rank,
            size,
            job,
            node,
            blocks: Blocks::default(),
            segments,
            mapped_segments,
            layout,
            settings,
            nodes,
            interface,
            dispatch: OnceCell::new(),
            routes,
            networks,
            remote: remote::Remote::default(),
            losses: RefCell::default(),
            waiting,
            wakeup: wakeup::Slot::default(),
            outbox,
            releases: RefCell::default(),
            tracking: RefCell::default(),
            tasks: drive::Tasks::default(),
            traffic: Cell::new([0; 2]),
            faults: faults::Faults::default(),
            contexts: context::Contexts::default(),
            in_collective: Cell::new(false),
            polling: Cell::new(false),
            ignores_losses: Cell::new(false),
            accepted: Cell::new(0),
            between: Cell::new(false),
        }
    }

    /// How this rank waits.
    pub fn patience(&self) -> Patience {
        self.waiting.patience.get()
    }

    /// Called when all ranks have arrived: sets how wakers fence, how long waits poll (by the number of cores), and which network
    /// reaches each rank.
    ///
    /// # Errors
    /// [`Error::Start`] if no network reaches a rank.
    pub fn note_arrivals(&self) -> Result<()> {
        let (cores, spin, supervised) = (self.job.cores(), self.settings.spin, self.job.supervised());
        let patience = Patience::new(self.job.ranks_here(), cores, spin, supervised);
        self.waiting.patience.set(patience);
        self.interface.note_fence_mode(patience.crowded);
        self.networks.decide()
    }

    /// What a rank tells all others about itself.
    pub fn status(&self, rank: usize) -> &Status {
        self.node.status(rank)
    }

    /// Delivers messages, retries pending operations, and returns how much it did. Never blocks.
    ///
    /// # Errors
    /// The oldest error of a delivered message, once.
    #[inline(always)]
    pub fn poll(&self) -> Result<usize> {
        let done = self.turn();
        if self.faults.any.get() {
            return self.take_fault().map(|()| done);
        }
        Ok(done)
    }

    /// As [`Engine::poll`], but errors are kept for the next poll: a collective must not end on one rank alone because of a
    /// message that has nothing to do with it.
    #[inline(always)]
    pub fn turn(&self) -> usize {
        // Most polls find nothing, and a wait calls this in every round: the path that finds nothing is short.
        let first = if self.routes.has_lanes() { self.interface.first_waiting() } else { None };
        let idle = first.is_none() && self.routes.all_mapped() && !self.outbox.any.get() && !self.tasks.any.get();
        if idle { 0 } else { self.turn_busy(first) }
    }

    #[inline(never)]
    fn turn_busy(&self, first: Option<usize>) -> usize {
        // In a forked child messages are the parent's.
        if !self.is_own() {
            return 0;
        }
        let mut done = match first {
            None => 0,
            Some(first) => {
                let unwound = Unwound(self);
                let dispatch = self.dispatch();
                let delivered = self.interface.receive(first, |from, id, message| {
                    if let Some(dispatch) = &dispatch {
                        dispatch.dispatch(from, id, message);
                    }
                });
                std::mem::forget(unwound);
                self.count(0, delivered);
                delivered
            }
        };
        if !self.routes.all_mapped() {
            self.wake_sleepers();
            done += self.remote_progress() + self.contexts.turn();
        }
        if self.outbox.any.get() {
            done += self.flush_pending();
        }
        if self.tasks.any.get() {
            done += self.turn_background();
            if done == 0 {
                done += self.end_lost_receipts();
            }
        }
        if done != 0
            && let Some(error) = self.interface.take_error()
        {
            self.set_fault(error);
        }
        done
    }

    /// As [`Engine::poll`], for calls that programs make in loops of their own.
    ///
    /// # Errors
    /// As [`Engine::poll`]; [`Error::PeerLost`] if a rank has failed and this poll delivered nothing.
    #[inline]
    pub fn poll_alive(&self, doing: &'static str) -> Result<usize> {
        let done = self.poll()?;
        if done == 0 && (self.job.any_lost() || self.job.any_left() || !self.routes.all_mapped() || !self.is_own()) {
            self.nothing_came(doing)?;
        }
        Ok(done)
    }

    #[cold]
    fn nothing_came(&self, doing: &'static str) -> Result<()> {
        self.check_own(doing)?;
        // Messages that the rank sent before it failed are delivered first.
        if let Some((rank, cause)) = self.first_lost().filter(|_| !self.interface.any_waiting()) {
            return Err(Error::PeerLost { rank, cause, doing: doing.into() });
        }
        self.idle_poll();
        Ok(())
    }

    /// The fast path of [`Engine::send`]: a message that fits in a line, where all ranks are mapped, nothing is pending and no
    /// rank is lost. `false`: nothing was sent, call [`Engine::send`].
    #[inline(always)]
    pub fn send_at_once(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> bool {
        if payload.len() > SHORT_MAX - 8
            || !self.routes.all_mapped()
            || self.outbox.any.get()
            || !self.is_own()
            || self.job.any_lost()
            || self.job.any_left()
            || self.interface.send_short(to, id, header, payload) != Sent::Done
        {
            return false;
        }
        self.count(1, 0);
        true
    }

    /// As [`Engine::send_at_once`], for a payload that is all words of a line, none of which is loaded from memory again.
    #[inline(always)]
    pub(crate) fn send_words_at_once(&self, to: usize, id: u8, header: u64, payload: [u64; LINE_WORDS]) -> bool {
        if !self.routes.all_mapped()
            || self.outbox.any.get()
            || !self.is_own()
            || self.job.any_lost()
            || self.job.any_left()
            || self.interface.send_words(to, id, header, payload) != Sent::Done
        {
            return false;
        }
        self.count(1, 0);
        true
    }

    /// Sends `header` and `payload`, in a line if they fit, else in a block. [`Sent::NoRoom`] is backpressure.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] for a message that can never fit, [`Error::PeerLost`] if the target is gone.
    pub fn send(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        self.check_own("sending a message")?;
        if self.job.any_lost() || self.job.any_left() {
            self.check_alive(to, "sending a message")?;
        }
        if self.keeps_for(to) {
            return Ok(Sent::NoRoom);
        }
        self.transmit(to, id, header, payload)
    }

    /// Messages this rank has sent, those of its contexts included, and delivered.
    pub fn traffic(&self) -> [u64; 2] {
        let [sent, delivered] = self.traffic.get();
        [sent + self.contexts.sent(), delivered]
    }

    #[inline(always)]
    fn count(&self, sent: usize, delivered: usize) {
        let [s, d] = self.traffic.get();
        self.traffic.set([s + sent as u64, d + delivered as u64]);
    }

    #[inline(always)]
    fn transmit(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        if !self.routes.all_mapped() {
            return self.attempt(to, &mut Operation::Message { id, ordered: false, header, payload });
        }
        self.transmit_mapped(to, id, header, payload)
    }

    #[inline(always)]
    fn transmit_mapped(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        let sent = self.hand_over(to, id, header, payload)?;
        self.count(usize::from(sent == Sent::Done), 0);
        Ok(sent)
    }

    #[inline(always)]
    fn hand_over(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        if payload.len() <= SHORT_MAX - 8 {
            return Ok(self.interface.send_short(to, id, header, payload));
        }
        self.interface.send_block(to, id, payload.len() + 8, |body| {
            // SAFETY: the block holds header and payload.
            unsafe {
                body.cast::<u64>().write(header);
                crate::memory::copy::copy(body.add(8), payload.as_ptr(), payload.len());
            }
        })
    }

    /// The error for a peer that failed or left. If it left, this also notes for the launcher that this rank missed it.
    #[cold]
    pub(crate) fn lost(&self, rank: usize, cause: Loss, doing: &'static str) -> Error {
        if cause == Loss::Left {
            self.job.miss(rank);
        }
        Error::PeerLost { rank, cause, doing: doing.into() }
    }

    #[cold]
    pub(crate) fn check_alive(&self, rank: usize, doing: &'static str) -> Result<()> {
        match self.job.loss(rank) {
            None => Ok(()),
            // If it left because another rank died, the error names that rank.
            Some(cause) => {
                let (rank, cause) = self.first_lost().filter(|_| cause == Loss::Left).unwrap_or((rank, cause));
                Err(self.lost(rank, cause, doing))
            }
        }
    }

    /// # Errors
    /// [`Error::RankOutOfRange`].
    #[inline(always)]
    pub fn check_rank(&self, rank: usize, operation: &'static str) -> Result<()> {
        if rank < self.size { Ok(()) } else { Err(self.no_such_rank(rank, operation)) }
    }

    #[cold]
    fn no_such_rank(&self, rank: usize, operation: &'static str) -> Error {
        Error::RankOutOfRange { operation, rank, size: self.size, place: CalledAt::default() }
    }

    /// # Errors
    /// [`Error::InsideHandler`] if a handler is running; [`Error::Forked`].
    pub fn check_outside_handler(&self, operation: &'static str) -> Result<()> {
        self.check_own(operation)?;
        if self.interface.delivering() {
            Err(Error::InsideHandler { operation, place: CalledAt::default() })
        } else {
            Ok(())
        }
    }

    /// Marks this rank as in a collective call. Rejects a collective made inside another one, by an operator or an event's
    /// callback: it would match the outer call on other ranks, and ranks would allocate different memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if this rank is in a collective call, or if an event's callback runs in a call that is composed of
    /// several; [`Error::InsideHandler`]; [`Error::Forked`].
    #[inline]
    pub(crate) fn begin_collective(&self, doing: &'static str) -> Result<Running<'_>> {
        self.check_outside_handler(doing)?;
        if self.between.get() || self.in_collective.replace(true) {
            return Err(Self::inside_collective(doing));
        }
        Ok(Running(&self.in_collective))
    }

    /// The error for a collective call that is made inside another one.
    #[cold]
    pub(crate) fn inside_collective(doing: &'static str) -> Error {
        let why = "this rank is in another collective call; a function that runs inside one, of an event or an operator, can \
                   make none"
            .into();
        Error::InvalidArgument { operation: doing, why }
    }

    /// Whether this rank is in a collective call, and in no handler.
    pub(crate) fn is_in_collective(&self) -> bool {
        (self.in_collective.get() || self.between.get()) && !self.interface.delivering()
    }

    /// Whether this process is the rank, and not a child forked from it.
    #[inline(always)]
    pub fn is_own(&self) -> bool {
        self.node.is_own()
    }

    /// # Errors
    /// [`Error::Forked`] in a forked child.
    #[inline(always)]
    pub fn check_own(&self, operation: &'static str) -> Result<()> {
        if self.is_own() { Ok(()) } else { Err(self.forked(operation)) }
    }

    #[cold]
    fn forked(&self, operation: &'static str) -> Error {
        let (parent, child) = (self.node.owner().pid(), std::process::id());
        Error::Forked { operation, rank: self.rank, parent, child }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Before any field: a function of an event may own a context, whose drop asks for the engine.
        self.contexts.end();
        self.give_up_tracked();
    }
}
