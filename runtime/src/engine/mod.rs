//! The engine of a rank: it makes progress, waits, and drives the rank's memory, networks and messages.
//!
//! [`Engine::poll`] makes progress once: it delivers messages that came through lanes of mapped memory (`dispatch.rs`) or over
//! networks (`remote.rs`, `network.rs`), retries operations that met backpressure (`pending.rs`), and advances background tasks
//! and operations with events (`drive.rs`, `track.rs`). A wait (`wait.rs`) polls, yields the core, and sleeps.
//!
//! The state is that of its parts, and callers speak to the part that they need: how each peer is reached (`routes.rs`), the open
//! networks (`networks.rs`), this rank's segments (`own_segments.rs`), operations that wait for room (`outbox.rs`), tasks and operations
//! with events (`tasks.rs`), failed peers (`failures.rs`), errors to be told (`faults.rs`), the call that the program is in (`call.rs`),
//! the owner of the handlers (`dispatch.rs`), and the streams of operations of other threads (`context/`). A method that needs several
//! parts is the engine's.

mod addresses;
mod call;
mod claim;
mod context;
mod deadlock;
mod dispatch;
mod doze;
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
mod outbox;
mod own_segments;
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
mod tasks;
mod track;
mod wait;
mod wakeup;

use std::sync::Arc;

pub(crate) use self::addresses::{BY_ADDRESS, not_registered};
pub(crate) use self::call::{Call, Running, inside_collective};
pub(crate) use self::claim::Claim;
pub(crate) use self::context::{Changing, Identity, Locate, OpenStream, Outlet, Reached, Stream, StreamWakeup};
pub(crate) use self::dispatch::Dispatch;
pub(crate) use self::doze::{Doze, Dozer};
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
pub use self::tasks::Background;
pub use self::wait::Patience;
pub(crate) use self::wakeup::Wakeup;
/// Most words of a message in one cache line, behind the header.
pub(crate) use crate::transport::shm::WORDS as LINE_WORDS;

use self::operation::{Operation, drop_all};

use crate::error::{CalledAt, Error, Result};
use crate::membership::JobMemory;
use crate::membership::nodes::Nodes;
use crate::memory::blocks::Blocks;
use crate::memory::layout::SlotLayout;
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
    pub(crate) segments: own_segments::Segments,
    /// The layout of a slot.
    pub layout: SlotLayout,
    /// The settings of the job.
    pub settings: Settings,
    /// Which rank is on which node.
    pub nodes: Nodes,
    /// The lanes of messages between ranks whose memory is mapped.
    pub interface: Interface,
    /// Runs the handlers of messages, and counts messages.
    pub(crate) delivery: dispatch::Delivery,
    /// How each rank is reached.
    pub(crate) routes: Routes,
    /// The networks, where other ranks' memory is not mapped here, or not all of it.
    pub(crate) networks: Networks,
    /// State of this rank's operations over networks.
    remote: remote::Remote,
    /// Failed peers.
    pub(crate) failures: failures::Failures,
    /// The wait under way, and how this rank waits.
    pub(crate) waiting: wait::Waiting,
    /// The call that the program is in.
    pub(crate) calls: call::Calls,
    /// The descriptor of programs that wait outside this library.
    pub(crate) wakeup: wakeup::Slot,
    /// Operations that met backpressure.
    pub(crate) outbox: outbox::Outbox,
    /// Tasks that every poll advances, and operations with events.
    pub(crate) tasks: tasks::Tasks,
    /// Errors of delivered messages.
    pub(crate) faults: faults::Faults,
    /// Streams of operations beside this one.
    pub(crate) contexts: context::Contexts,
}

/// Counts the messages that were delivered before a handler panicked: the end of a world waits until as many messages are
/// delivered as were sent.
struct Unwound<'a>(&'a Engine);

impl Drop for Unwound<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.delivery.count_delivered(self.0.interface.take_unwound());
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
        let handler_limit = settings.message_memory;
        settings.message_memory = handler_limit.min(networks.largest_message());
        let outbox = outbox::Outbox::new(settings.message_memory, handler_limit);
        // Assumes one core until all ranks have arrived and tell how many there are.
        let waiting = wait::Waiting::new(Patience::new(size, 1, settings.spin, job.supervised()));
        if !sleep::register_process() {
            job.require_full_fence();
        }
        job.prepare_to_ring();
        let interface = Interface::new(place, routes.senders(), routes.all_mapped());
        let failures = failures::Failures::new(rank, &job);
        let mapped_segments = MappedSegments::new(rank, &job, &node, layout, (&routes, &nodes), failures.cuts());
        let faults = faults::Faults::new(failures.cuts(), &job);
        let wakeup = wakeup::Slot::new(*node.owner());
        Engine {
            rank,
            size,
            job,
            node,
            blocks: Blocks::default(),
            segments: own_segments::Segments::new(mapped_segments),
            layout,
            settings,
            nodes,
            interface,
            delivery: dispatch::Delivery::default(),
            routes,
            networks,
            remote: remote::Remote::default(),
            failures,
            waiting,
            calls: call::Calls::default(),
            wakeup,
            outbox,
            tasks: tasks::Tasks::default(),
            faults,
            contexts: context::Contexts::default(),
        }
    }

    /// Called when all ranks have arrived: sets how wakers fence, how long waits poll (by the number of cores), and which network
    /// reaches each rank.
    ///
    /// # Errors
    /// [`Error::Start`] if no network reaches a rank.
    pub fn note_arrivals(&self) -> Result<()> {
        let (cores, spin, supervised) = (self.job.cores(), self.settings.spin, self.job.supervised());
        let patience = Patience::new(self.job.ranks_here(), cores, spin, supervised);
        self.waiting.set_patience(patience);
        self.interface.note_fence_mode(patience.crowded);
        self.networks.decide()
    }

    /// Delivers messages, retries pending operations, and returns how much it did. Never blocks.
    ///
    /// # Errors
    /// The oldest error of a delivered message, once.
    #[inline(always)]
    pub fn poll(&self) -> Result<usize> {
        let done = self.turn();
        if self.faults.any() {
            return self.faults.take().map(|()| done);
        }
        Ok(done)
    }

    /// As [`Engine::poll`], but errors are kept for the next poll: a collective must not end on one rank alone because of a
    /// message that is unrelated to the collective.
    #[inline(always)]
    pub fn turn(&self) -> usize {
        // Most polls find nothing, and a wait calls this in every round: the path that finds nothing is short.
        let first = if self.routes.has_lanes() { self.interface.first_waiting() } else { None };
        let idle = first.is_none() && self.routes.all_mapped() && !self.outbox.any() && !self.tasks.any();
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
                let handlers = self.delivery.handlers();
                let delivered = self.interface.receive(first, |from, id, message| {
                    if let Some(handlers) = &handlers {
                        handlers.dispatch(from, id, message);
                    }
                });
                std::mem::forget(unwound);
                self.delivery.count_delivered(delivered);
                delivered
            }
        };
        if !self.routes.all_mapped() {
            self.wake_sleepers();
            done += self.remote_progress() + self.contexts.turn();
        }
        if self.outbox.any() {
            done += self.flush_pending();
        }
        if self.tasks.any() {
            done += self.turn_background();
            if done == 0 {
                done += self.end_lost_receipts();
            }
        }
        if done != 0
            && let Some(error) = self.interface.take_error()
        {
            self.faults.keep(error);
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
            || self.outbox.any()
            || !self.is_own()
            || self.job.any_lost()
            || self.job.any_left()
            || self.interface.send_short(to, id, header, payload) != Sent::Done
        {
            return false;
        }
        self.delivery.count_sent(1);
        true
    }

    /// As [`Engine::send_at_once`], for a payload that is all words of a line, none of which is loaded from memory again.
    #[inline(always)]
    pub(crate) fn send_words_at_once(&self, to: usize, id: u8, header: u64, payload: [u64; LINE_WORDS]) -> bool {
        if !self.routes.all_mapped()
            || self.outbox.any()
            || !self.is_own()
            || self.job.any_lost()
            || self.job.any_left()
            || self.interface.send_words(to, id, header, payload) != Sent::Done
        {
            return false;
        }
        self.delivery.count_sent(1);
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
        if self.outbox.keeps_for(to) {
            return Ok(Sent::NoRoom);
        }
        self.transmit(to, id, header, payload)
    }

    #[inline(always)]
    fn transmit(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        if !self.routes.all_mapped() {
            let sent = self.attempt(to, &mut Operation::Message { id, ordered: false, header, payload });
            return sent.map_err(|error| self.failures.told(error));
        }
        self.transmit_mapped(to, id, header, payload)
    }

    #[inline(always)]
    fn transmit_mapped(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        let sent = self.hand_over(to, id, header, payload)?;
        self.delivery.count_sent(usize::from(sent == Sent::Done));
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

    #[cold]
    pub(crate) fn check_alive(&self, rank: usize, doing: &'static str) -> Result<()> {
        match self.job.loss(rank) {
            None => Ok(()),
            Some(cause) => {
                let (rank, cause) = self.first_lost().filter(|_| self.job.gave_up(rank)).unwrap_or((rank, cause));
                Err(self.failures.lost(rank, cause, doing))
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

    /// Whether this process is the rank, and not a child forked from it.
    #[inline(always)]
    pub fn is_own(&self) -> bool {
        self.node.is_own()
    }

    /// # Errors
    /// [`Error::Forked`] in a forked child.
    #[inline(always)]
    pub fn check_own(&self, operation: &'static str) -> Result<()> {
        self.node.check_own(operation, self.rank)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Before any field: a function of an event may own a context, whose drop asks for the engine.
        self.contexts.end();
        // Nothing will be heard any more of operations with events.
        let mut others = self.tasks.give_up();
        others.extend(self.contexts.receipts().give_up());
        drop_all(others);
    }
}
