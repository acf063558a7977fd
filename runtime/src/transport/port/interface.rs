//! An interface over a wire: arrivals, operations in flight, and progress.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use super::endpoint::Endpoint;
use super::ends::{self, Ends, Heard};
use super::flight::Flights;
use crate::transport::attributes::{AtomicSet, Attributes, Capabilities as Can, Directions, Events, Limits, Order};
use crate::transport::emulate::{Client, Event, Server};
use crate::transport::error::{Error, Posted, Result};
use crate::transport::memory::Registry;
use crate::transport::message::{HandlerTable, Message, MessageHandler, Retained};
use crate::transport::pending::Queues;
use crate::transport::wire::{Agent, Arrival, Channel, Facts, Memory, Straight, Wire};
use crate::transport::{AtomicOp, Completion, Confined, ErrorHandler, InterfaceOptions, NoticeHandler};

/// No peer yet, or one whose endpoint has not connected to this one yet.
pub(super) const UNCONNECTED: u32 = u32::MAX;

/// The state of an interface for an endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) used: bool,
    pub(super) peer: u32,
    pub(super) failed: Option<Error>,
    /// Emulated operations numbered below this must be answered before a message or an operation of the wire's own may go.
    /// 0: none.
    pub(super) fence: u64,
    /// The next emulated operation begins with a fence on the wire.
    pub(super) fence_next: bool,
    /// The turn in which a send found no room.
    pub(super) starved: u64,
    /// The number of operations that the wire had taken for the peer when this endpoint posted last.
    pub(super) posted: u64,
    /// Emulated operations were in flight when this endpoint failed: whether they took effect is not known.
    pub(super) was_busy: bool,
}

pub(super) struct FlushWait {
    pub(super) endpoint: u32,
    /// Emulated operations numbered below this.
    pub(super) before: u64,
    /// Posted operations numbered below this.
    pub(super) before_posted: u64,
    pub(super) remote: bool,
    pub(super) sent: u64,
    pub(super) completion: Completion,
}

/// An error handler that may go on running when it has been replaced.
type HeardOf = Rc<dyn Fn(u32, Error)>;

/// An interface over a [`Wire`].
pub struct Interface<W: Wire> {
    pub(super) wire: W,
    pub(super) attributes: Attributes,
    pub(super) needs_region: bool,
    pub(super) memory: Memory,
    /// Which agent does atomics, the wire or the processor, on memory that the wire reaches.
    pub(super) atomics: Memory,
    pub(super) straight: Straight,
    /// The wire reports a posted operation when it has completed.
    posts: bool,
    pub(super) max_pieces: usize,
    pub(super) flights: RefCell<Flights>,
    pub(super) queues: Queues,
    pub(super) client: RefCell<Client>,
    pub(super) slots: RefCell<Vec<Slot>>,
    pub(super) ends: Ends,
    pub(super) flushes: RefCell<Vec<FlushWait>>,
    pub(super) events: RefCell<Vec<Event>>,
    pub(super) turn: Cell<u64>,
    server: RefCell<Server>,
    table: HandlerTable,
    enabled: Cell<Directions>,
    running: Cell<bool>,
    /// Messages that came while no callback could run.
    inbox: RefCell<VecDeque<(u8, Retained)>>,
    error_handler: RefCell<Option<HeardOf>>,
    notice_handler: RefCell<Option<NoticeHandler>>,
    losses: Cell<u64>,
}

// SAFETY: all state is inside; wires share with others only through atomics and locks, and what users put in are
// handlers and callbacks, for which `Coarse::new` makes them answer.
unsafe impl<W: Wire + Send> Confined for Interface<W> {}
// SAFETY: as above; the count of the `Rc` is inside the group too, by the word given to `Coarse::new`.
unsafe impl<W: Wire + Send> Confined for Rc<Interface<W>> {}

impl<W: Wire> Interface<W> {
    pub(super) fn new(wire: W, registry: Arc<Registry>, options: InterfaceOptions) -> Interface<W> {
        let facts = wire.facts();
        Interface {
            attributes: attributes(&facts, &options),
            needs_region: facts.needs_region,
            memory: memory(&facts, &options),
            atomics: atomics(&facts, &options),
            straight: facts.straight,
            posts: memory(&facts, &options) == Memory::Posted || matches!(facts.straight, Straight::Posted { .. }),
            max_pieces: facts.max_pieces,
            flights: RefCell::default(),
            queues: Queues::default(),
            client: RefCell::new(Client::new(facts.max_message, options.window)),
            server: RefCell::new(Server::new(registry, facts.max_message)),
            slots: RefCell::default(),
            ends: Ends::default(),
            flushes: RefCell::default(),
            events: RefCell::default(),
            turn: Cell::new(0),
            table: HandlerTable::default(),
            enabled: Cell::new(Directions::NONE),
            running: Cell::new(false),
            inbox: RefCell::default(),
            error_handler: RefCell::default(),
            notice_handler: RefCell::default(),
            losses: Cell::new(wire.losses()),
            wire,
        }
    }

    pub(super) fn add_slot(&self, peer: u32) -> u32 {
        let (fence, fence_next, was_busy) = (0, false, false);
        let slot = Slot { used: true, peer, failed: None, fence, fence_next, starved: u64::MAX, posted: 0, was_busy };
        let mut slots = self.slots.borrow_mut();
        // A linear look is fine: endpoints are made on first use and kept.
        let index = match slots.iter().rposition(|slot| !slot.used) {
            Some(free) => {
                slots[free] = slot;
                free as u32
            }
            None => {
                slots.push(slot);
                (slots.len() - 1) as u32
            }
        };
        self.ends.open(index);
        index
    }

    /// Requests and answers that can go, go.
    pub(super) fn advance(&self) -> usize {
        let wire = &self.wire;
        let mut done = 0;
        {
            let (mut client, mut events) = (self.client.borrow_mut(), self.events.borrow_mut());
            done += client.poll(
                |peer, fenced, len, fill| {
                    if fenced && wire.has_room(peer, Channel::Request) {
                        wire.fence(peer);
                    }
                    let fill = |buffer: &mut [u8]| {
                        fill(buffer);
                        buffer.len()
                    };
                    wire.send(peer, Channel::Request, 0, len, fill).is_ok()
                },
                &mut events,
            );
        }
        let mut server = self.server.borrow_mut();
        if server.has_replies() {
            done += server.poll(|peer, bytes| {
                let fill = |buffer: &mut [u8]| {
                    buffer.copy_from_slice(bytes);
                    bytes.len()
                };
                // To a peer that is gone there is nothing to answer.
                !matches!(wire.send(peer, Channel::Reply, 0, bytes.len(), fill), Err(Error::NoResource))
            });
        }
        drop(server);
        if !self.ends.is_idle() {
            done += self.ends.advance(|peer, word| {
                let fill = |buffer: &mut [u8]| {
                    buffer.copy_from_slice(word);
                    word.len()
                };
                // Words to a peer that is gone are dropped.
                !matches!(wire.send(peer, Channel::Reply, 0, word.len(), fill), Err(Error::NoResource))
            });
        }
        if self.memory == Memory::Posted {
            let mut events = self.events.borrow_mut();
            done += self.flights.borrow_mut().post(wire, self.max_pieces, &mut events);
        }
        done + wire.push()
    }

    /// Whether a turn that has taken the arrivals has nothing else to do: no operation has an end to report, and none
    /// waits for room.
    #[inline]
    fn is_idle(&self) -> bool {
        self.wire.is_idle()
            && self.wire.losses() == self.losses.get()
            && self.events.borrow().is_empty()
            && self.flushes.borrow().is_empty()
            && self.queues.is_idle()
            && !self.flights.borrow().has_unsent()
            && !self.client.borrow().has_unsent()
            && !self.server.borrow().has_replies()
            && self.ends.is_idle()
    }

    /// Takes the arrivals. Messages run their handlers if `deliver`, else they wait.
    fn receive(&self, deliver: bool) -> usize {
        let mut done = 0;
        if deliver {
            loop {
                let Some((id, payload)) = self.inbox.borrow_mut().pop_front() else { break };
                done += 1;
                let payload = Rc::new(payload);
                let keep = || Retained::new(Shared(Rc::clone(&payload)));
                self.table.dispatch(id, &Message::new(&payload, Some(&keep)));
            }
        }
        done + self.wire.receive(&mut |arrival: Arrival<'_>| match arrival.channel {
            Channel::Message if deliver => self.table.dispatch(arrival.id, &Message::new(arrival.data, arrival.keep)),
            Channel::Message => {
                let payload = match arrival.keep {
                    Some(keep) => keep(),
                    None => Retained::new(Box::<[u8]>::from(arrival.data)),
                };
                self.inbox.borrow_mut().push_back((arrival.id, payload));
            }
            Channel::Request => self.server.borrow_mut().serve(arrival.from, arrival.data),
            Channel::Reply if self.hear(arrival.from, arrival.data) => {}
            Channel::Reply => {
                let (mut client, mut events) = (self.client.borrow_mut(), self.events.borrow_mut());
                client.answer(arrival.from, arrival.data, &mut events);
            }
        })
    }

    /// Handles a peer's notice about an endpoint, if the message is one.
    fn hear(&self, from: u32, word: &[u8]) -> bool {
        let Some(heard) = self.ends.hear(from, word) else { return false };
        match heard {
            Some(Heard::Joined { endpoint, peer }) => self.slots.borrow_mut()[endpoint as usize].peer = peer,
            Some(Heard::Gone { endpoint }) => {
                self.events.borrow_mut().push(Event::Failed { endpoint, error: Error::ConnectionReset });
            }
            None => {}
        }
        true
    }

    /// Runs the events of operations that have ended.
    fn run_events(&self) -> usize {
        let mut done = 0;
        loop {
            let mut events = std::mem::take(&mut *self.events.borrow_mut());
            if events.is_empty() {
                return done;
            }
            for event in events.drain(..) {
                done += 1;
                match event {
                    Event::Complete(completion, outcome) => completion.complete(outcome),
                    Event::Unpack(unpack, bytes) => unpack(&bytes),
                    Event::Failed { endpoint, error } => self.fail(endpoint, error),
                }
            }
            // The next events need no allocation.
            let mut next = self.events.borrow_mut();
            if next.capacity() == 0 {
                *next = events;
            }
        }
    }

    /// Ends an endpoint: its operations in flight end with `error`, and the error handler is called, once.
    pub(super) fn fail(&self, endpoint: u32, error: Error) {
        match self.slots.borrow_mut().get_mut(endpoint as usize) {
            Some(slot) if slot.used && slot.failed.is_none() => {
                slot.failed = Some(error);
                slot.was_busy = self.client.borrow().busy(endpoint, u64::MAX, true);
            }
            _ => return,
        }
        self.end_operations(endpoint, error);
        let handler = self.error_handler.borrow().clone();
        match handler {
            Some(handler) => handler(endpoint, error),
            None => tracing::warn!(endpoint, %error, "an endpoint failed and no error handler is set"),
        }
    }

    pub(super) fn end_operations(&self, endpoint: u32, error: Error) {
        let mut events = self.events.borrow_mut();
        self.client.borrow_mut().fail(endpoint, error, &mut events);
        let mut end = |completion| events.push(Event::Complete(completion, Err(error)));
        self.flights.borrow_mut().end(endpoint, &mut end);
        self.flushes.borrow_mut().retain(|wait| {
            if wait.endpoint == endpoint {
                events.push(Event::Complete(wait.completion.clone(), Err(error)));
            }
            wait.endpoint != endpoint
        });
    }

    fn check_for_losses(&self) {
        let losses = self.wire.losses();
        if self.losses.replace(losses) == losses {
            return;
        }
        let mut lost: Vec<(u32, u32, Error)> = self
            .slots
            .borrow()
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.used && slot.failed.is_none() && slot.peer != UNCONNECTED)
            .filter_map(|(index, slot)| Some((index as u32, slot.peer, self.wire.loss(slot.peer)?)))
            .collect();
        let waits = |(endpoint, _): &(u32, u32)| self.slots.borrow()[*endpoint as usize].peer == UNCONNECTED;
        let connecting = self.ends.connected().into_iter().filter(waits);
        lost.extend(connecting.filter_map(|(endpoint, peer)| Some((endpoint, peer, self.wire.loss(peer)?))));
        for (endpoint, peer, error) in lost {
            self.server.borrow_mut().forget(peer);
            self.fail(endpoint, error);
        }
    }

    fn finish_flushes(&self) {
        let mut waits = self.flushes.borrow_mut();
        if waits.is_empty() {
            return;
        }
        let (client, flights, slots) = (self.client.borrow(), self.flights.borrow(), self.slots.borrow());
        let mut events = self.events.borrow_mut();
        waits.retain(|wait| {
            let peer = slots[wait.endpoint as usize].peer;
            let busy = client.busy(wait.endpoint, wait.before, wait.remote)
                || flights.busy(wait.endpoint, wait.before_posted)
                || (wait.remote && !self.wire.arrived(peer, wait.sent));
            if !busy {
                events.push(Event::Complete(wait.completion.clone(), Ok(())));
            }
            busy
        });
    }

    /// Messages dropped because no handler was set for them.
    pub fn dropped(&self) -> u64 {
        self.table.dropped()
    }

    /// The wire.
    pub fn wire(&self) -> &W {
        &self.wire
    }
}

/// A retained payload that several may hold.
struct Shared(Rc<Retained>);

impl std::ops::Deref for Shared {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<W: Wire> crate::transport::Interface for Interface<W> {
    type Endpoint = Endpoint<W>;

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn address(&self) -> Vec<u8> {
        self.wire.address()
    }

    fn is_reachable(&self, address: &[u8]) -> bool {
        self.wire.resolve(address).is_ok()
    }

    fn connect(self: &Rc<Self>, address: &[u8]) -> Result<Endpoint<W>> {
        if !self.attributes.capabilities.has(Can::CONNECT_TO_IFACE) {
            return Err(Error::Unsupported("connecting to an interface"));
        }
        let peer = self.wire.resolve(address)?;
        // The next turn looks whether this one is lost already.
        self.losses.set(u64::MAX);
        Ok(Endpoint::new(Rc::clone(self), self.add_slot(peer)))
    }

    fn endpoint(self: &Rc<Self>) -> Result<Endpoint<W>> {
        if !self.attributes.capabilities.has(Can::CONNECT_TO_EP) {
            return Err(Error::Unsupported("connecting to an endpoint"));
        }
        self.losses.set(u64::MAX);
        Ok(Endpoint::new(Rc::clone(self), self.add_slot(UNCONNECTED)))
    }

    fn set_handler(&self, id: u8, handler: Option<MessageHandler>) -> Result<()> {
        self.table.set(id, handler)
    }

    fn set_error_handler(&self, handler: Option<ErrorHandler>) {
        *self.error_handler.borrow_mut() = handler.map(Rc::from);
    }

    fn set_notice_handler(&self, handler: Option<NoticeHandler>) {
        *self.notice_handler.borrow_mut() = handler;
    }

    fn progress_enable(&self, directions: Directions) {
        self.enabled.set(self.enabled.get().and(directions));
    }

    fn progress_disable(&self, directions: Directions) {
        self.enabled.set(self.enabled.get().without(directions));
    }

    #[inline]
    fn progress(&self) -> usize {
        let (send, receive) = (self.enabled.get().has(Directions::SEND), self.enabled.get().has(Directions::RECEIVE));
        if !(send || receive) || self.running.replace(true) {
            return 0;
        }
        let _running = Running(&self.running);
        self.turn.set(self.turn.get() + 1);
        let mut done = self.receive(receive);
        if self.attributes.max_notified.is_some()
            && let Some(handler) = &*self.notice_handler.borrow()
        {
            done += self.wire.notices(&mut |notice| handler(notice));
        }
        // Most turns are those of a wait.
        if self.is_idle() {
            return done;
        }
        if self.posts {
            // Nowhere else: an operation is not done before its completion can be called.
            let mut events = self.events.borrow_mut();
            done += self.flights.borrow_mut().land(&self.wire, &mut events);
        }
        done += self.advance();
        if send {
            self.check_for_losses();
            self.finish_flushes();
            // Pending requests go before any operation that a completion's callback sends.
            let more = self.queues.serve() + self.run_events();
            if more > 0 {
                done += more + self.advance();
            }
        }
        done
    }

    fn serve(&self) -> usize {
        if self.running.replace(true) {
            return 0;
        }
        let _running = Running(&self.running);
        self.receive(false) + self.advance()
    }

    fn flush(&self) -> Result<Posted> {
        if !self.queues.is_idle() {
            return Err(Error::NoResource);
        }
        self.advance();
        let busy = self.client.borrow().uses_memory() || !self.flights.borrow().is_empty();
        Ok(if busy { Posted::InProgress } else { Posted::Done })
    }

    fn fence(&self) -> Result<()> {
        self.wire.fence_memory();
        let client = self.client.borrow();
        let connected = |slot: &Slot| slot.used && slot.peer != UNCONNECTED;
        for (index, slot) in self.slots.borrow_mut().iter_mut().enumerate().filter(|(_, slot)| connected(slot)) {
            slot.fence = client.fence(index as u32);
            slot.fence_next = true;
            self.wire.fence(slot.peer);
        }
        Ok(())
    }

    fn event_descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.wire.event_descriptor()
    }

    fn announces_room(&self) -> bool {
        self.wire.announces_room()
    }

    fn arm(&self, events: Events) -> Result<()> {
        if !self.attributes.events.has(events) {
            return Err(Error::Unsupported("announcing these events"));
        }
        let (send, receive) = (events.has(Events::SEND_COMPLETION), events.has(Events::RECEIVE));
        if !send && !receive {
            return Err(Error::InvalidParam("no event to announce"));
        }
        if receive && !self.inbox.borrow().is_empty() || send && !self.events.borrow().is_empty() {
            return Err(Error::Busy);
        }
        // The answer that completes an emulated operation comes as a message.
        let by_message = send && self.attributes.emulated != Can::NONE;
        self.wire.arm(if by_message { events.and(Events::RECEIVE) } else { events })
    }
}

struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Every put, get and atomic there is.
const MEMORY: Can = Can(Can::PUT_SHORT.0 | Can::PUT_BCOPY.0 | Can::PUT_ZCOPY.0 | Can::GET_BCOPY.0 | Can::GET_ZCOPY.0);

/// Which agent does puts and gets: the wire, or the target's processor by messages.
fn memory(facts: &Facts, options: &InterfaceOptions) -> Memory {
    if options.emulate { Memory::Emulated } else { facts.memory }
}

/// The agent that does atomics.
fn atomics(facts: &Facts, options: &InterfaceOptions) -> Memory {
    if facts.atomics.is_none() { Memory::Emulated } else { memory(facts, options) }
}

fn attributes(facts: &Facts, options: &InterfaceOptions) -> Attributes {
    let memory = memory(facts, options);
    let (emulate, emulates_atomics) = (memory == Memory::Emulated, atomics(facts, options) == Memory::Emulated);
    let atomic = match facts.atomics {
        Some(Agent::Device) if !emulate => Can::ATOMIC_DEVICE,
        _ => Can::ATOMIC_CPU,
    };
    let emulated = match (emulate, emulates_atomics) {
        (true, _) => MEMORY.and(atomic),
        (false, true) => atomic,
        (false, false) => Can::NONE,
    };
    let mut can = MEMORY
        .and(atomic)
        .and(Can::AM_SHORT)
        .and(Can::AM_BCOPY)
        .and(Can::PENDING)
        .and(Can::ERRHANDLE_PEER_FAILURE)
        .and(Can::EP_CHECK)
        .and(Can::CONNECT_TO_IFACE)
        .and(Can::CB_SYNC);
    for (there, flag) in [
        (memory == Memory::Direct, Can::GET_SHORT),
        (facts.endpoint_connect, Can::CONNECT_TO_EP),
        (facts.inter_node, Can::INTER_NODE),
        (facts.straight != Straight::Never, Can::AM_ZCOPY),
    ] {
        if there {
            can = can.and(flag);
        }
    }
    let can = can.without(options.without);
    let if_can = |flag: Can, limit: usize| if can.has(flag) { limit } else { 0 };
    let packed = match memory {
        Memory::Posted => options.max_bcopy.min(facts.max_posted_packed),
        _ => options.max_bcopy,
    };
    let short = match memory {
        Memory::Emulated => 256.min(packed),
        Memory::Direct => packed,
        Memory::Posted => facts.max_posted_short.min(packed),
    };
    let straight = match facts.straight {
        Straight::Posted { bytes, .. } => bytes.min(facts.max_message),
        _ => facts.max_message,
    };
    let header = (straight / 2).min(256);
    let atomics = if can.has(atomic) {
        let (post, fetch) = (AtomicOp::POST, AtomicOp::FETCH);
        AtomicSet { post32: post, post64: post, fetch32: fetch, fetch64: fetch }
    } else {
        AtomicSet::default()
    };
    Attributes {
        capabilities: can,
        emulated: Can(emulated.0 & can.0),
        put: Limits {
            max_short: if_can(Can::PUT_SHORT, short),
            max_bcopy: if_can(Can::PUT_BCOPY, packed),
            max_zcopy: if_can(Can::PUT_ZCOPY, options.max_zcopy),
            max_iov: if_can(Can::PUT_ZCOPY, options.max_iov),
            ..Limits::default()
        },
        get: Limits {
            max_short: if_can(Can::GET_SHORT, short),
            max_bcopy: if_can(Can::GET_BCOPY, packed),
            max_zcopy: if_can(Can::GET_ZCOPY, options.max_zcopy),
            max_iov: if_can(Can::GET_ZCOPY, options.max_iov),
            ..Limits::default()
        },
        am: Limits {
            max_short: if_can(Can::AM_SHORT, facts.max_short),
            max_bcopy: if_can(Can::AM_BCOPY, facts.max_message),
            min_zcopy: 0,
            max_zcopy: if_can(Can::AM_ZCOPY, straight - header),
            max_header: if_can(Can::AM_ZCOPY, header),
            max_iov: if_can(Can::AM_ZCOPY, options.max_iov),
        },
        max_notified: if emulate { None } else { facts.max_notified },
        atomics,
        atomics_on_allocated_only: !emulates_atomics && facts.atomics_on_allocated_only,
        needs_target_progress: emulates_atomics && !facts.served_asleep,
        message_order: facts.order,
        memory_order: if emulate {
            facts.order
        } else if memory == Memory::Posted || emulates_atomics {
            // A device may answer a get after it has done operations that were posted later; a message may come after a store.
            Order::Any
        } else if cfg!(target_arch = "x86_64") {
            // Stores of one core become visible in their order.
            Order::Posted
        } else {
            Order::Any
        },
        events: if emulated == Can::NONE { facts.events } else { facts.events.and(Events::SEND_COMPLETION) },
        address_len: facts.address_len,
        endpoint_address_len: if can.has(Can::CONNECT_TO_EP) { ends::ADDRESS_LEN } else { 0 },
        memory_per_peer: facts.memory_per_peer,
        max_interfaces: facts.max_interfaces,
    }
}
