//! The trait that a transport implements: addresses and active messages, and optionally operations that its network does better than messages.

use std::os::fd::BorrowedFd;

use super::atomic::Atomic;
use super::attributes::{Events, Order};
use super::error::{Error, Result};
use super::iov::Piece;
use super::key::RemoteKey;
use super::message::Keep;

/// Which of three independent flows a message belongs to. A flow never waits for room in another one, so that a full
/// flow cannot hold up the messages that would empty it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Channel {
    /// The user's messages.
    Message = 0,
    /// Requests to a peer's memory, where puts, gets and atomics are emulated.
    Request = 1,
    /// Answers to them.
    Reply = 2,
}

impl Channel {
    /// The channel with this number.
    pub fn from_number(number: u8) -> Option<Channel> {
        [Channel::Message, Channel::Request, Channel::Reply].get(number as usize).copied()
    }
}

/// The agent that does puts, gets and atomics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// None: they are emulated over messages.
    Emulated,
    /// The wire, inside the call ([`Wire::put`]).
    Direct,
    /// The wire, which reports later that they are done ([`Wire::post_packed`], [`Wire::completed`]).
    Posted,
}

/// The agent that does the wire's own atomics. Atomics of different agents on one word are not atomic to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// The processor, or an agent whose atomics are atomic to the processor's.
    Processor,
    /// The network device.
    Device,
}

/// How a message is sent straight from the user's memory ([`super::Capabilities::AM_ZCOPY`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Straight {
    /// Not at all: the wire copies every message into memory of its own.
    Never,
    /// Inside the call, by one copy into memory that the receiver reads.
    Copied,
    /// By the device, which reads the memory until the ticket comes back ([`Wire::post_message`]).
    Posted {
        /// Most bytes, header included.
        bytes: usize,
        /// Most blocks.
        pieces: usize,
    },
}

/// Which way blocks of the user's memory go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the peer.
    Put,
    /// From the peer.
    Get,
}

/// The properties of a wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Facts {
    /// Most bytes that a message with an immediate header may have, header included.
    pub max_short: usize,
    /// Most bytes of any message.
    pub max_message: usize,
    /// The agent that does puts, gets and atomics.
    pub memory: Memory,
    /// The agent that does the wire's own atomics. `None`: the wire has none, and they are emulated over messages.
    pub atomics: Option<Agent>,
    /// How messages are sent straight from the user's memory.
    pub straight: Straight,
    /// Most bytes of a short put, where puts are posted.
    pub max_posted_short: usize,
    /// Most bytes of a packed put or get, where they are posted.
    pub max_posted_packed: usize,
    /// Most blocks of one posted put or get.
    pub max_pieces: usize,
    /// Most bytes of a put with a notice, where puts are posted and have notices.
    pub max_notified: Option<usize>,
    /// Native atomics reach only memory that the domain allocated.
    pub atomics_on_allocated_only: bool,
    /// A device or a thread serves requests while the target computes or sleeps.
    pub served_asleep: bool,
    /// Zero-copy memory must be registered.
    pub needs_region: bool,
    /// Endpoints can connect to endpoints.
    pub endpoint_connect: bool,
    /// Reaches other nodes.
    pub inter_node: bool,
    /// The order in which messages arrive.
    pub order: Order,
    /// The events that the event descriptor reports.
    pub events: Events,
    /// Bytes of an address.
    pub address_len: usize,
    /// Bytes kept for each peer: from the start where memory is shared, else from the first communication on.
    pub memory_per_peer: usize,
    /// Interfaces that a rank may have open at a time.
    pub max_interfaces: usize,
}

/// A posted operation that is done.
#[derive(Debug, Clone, Copy)]
pub struct Completed<'a> {
    /// The number it was posted with.
    pub ticket: u64,
    /// How it went.
    pub outcome: Result<()>,
    /// The bytes that a packed get read, or the eight bytes of the word that an atomic found.
    pub data: &'a [u8],
}

/// A message that came.
pub struct Arrival<'a> {
    /// The sender's number.
    pub from: u32,
    /// Its flow.
    pub channel: Channel,
    /// The user's id, on [`Channel::Message`].
    pub id: u8,
    /// The payload.
    pub data: &'a [u8],
    /// How to keep the payload, if that is possible.
    pub keep: Option<Keep<'a>>,
}

/// One rank's access to a network. Peers are numbers that the wire makes of addresses.
///
/// Nothing here blocks, and nothing calls back except [`Wire::receive`], whose sink may call any other function.
pub trait Wire: 'static {
    /// The properties of this wire.
    fn facts(&self) -> Facts;

    /// The bytes by which a peer can reach this.
    fn address(&self) -> Vec<u8>;

    /// The number of the peer with that address.
    ///
    /// # Errors
    /// [`Error::Unreachable`] for bytes that are no address here.
    fn resolve(&self, address: &[u8]) -> Result<u32>;

    /// Whose memory `peer` has, as keys name it. Where a rank has several interfaces, they are several peers.
    #[inline(always)]
    fn owner(&self, peer: u32) -> u32 {
        peer
    }

    /// Whether a message to `peer` would find room now.
    fn has_room(&self, peer: u32, channel: Channel) -> bool;

    /// Sends a message of at most `max` bytes, which `fill` writes and counts. If there is no room `fill` is not called.
    ///
    /// # Errors
    /// [`Error::NoResource`], [`Error::ConnectionReset`], [`Error::NoMemory`].
    fn send(
        &self,
        peer: u32,
        channel: Channel,
        id: u8,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize>;

    /// Sends a header and a few bytes, at most [`Facts::max_short`] together. Override where that can be faster.
    ///
    /// # Errors
    /// As [`Wire::send`].
    #[inline]
    fn send_short(&self, peer: u32, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        let fill = |buffer: &mut [u8]| {
            buffer[..8].copy_from_slice(&header.to_ne_bytes());
            buffer[8..8 + payload.len()].copy_from_slice(payload);
            8 + payload.len()
        };
        self.send(peer, Channel::Message, id, 8 + payload.len(), fill).map(drop)
    }

    /// Hands waiting messages to `sink`, a bounded number for each call. Returns how many.
    fn receive(&self, sink: &mut dyn FnMut(Arrival<'_>)) -> usize;

    /// Whether a message waits.
    fn has_arrivals(&self) -> bool;

    /// Messages sent to `peer` before are handed over before those sent later, on each channel.
    fn fence(&self, _peer: u32) {}

    /// Messages sent to `peer` so far.
    fn sent(&self, _peer: u32) -> u64 {
        0
    }

    /// Whether the first `count` messages sent to `peer` are in the peer's memory.
    fn arrived(&self, _peer: u32, _count: u64) -> bool {
        true
    }

    /// For a peer that is lost: `true` if its first `count` messages are known to have taken effect there, `false` if that is not known.
    fn had_arrived(&self, _peer: u32, _count: u64) -> bool {
        false
    }

    /// A number that changes whenever [`Wire::loss`] may answer otherwise than before.
    fn losses(&self) -> u64;

    /// Why `peer` cannot be reached any more, if so.
    fn loss(&self, peer: u32) -> Option<Error>;

    /// Sends queued bytes, where sending takes progress. Returns how much was done.
    fn push(&self) -> usize {
        0
    }

    /// Whether [`Wire::push`] and [`Wire::completed`] have nothing to do, so that a turn that asks first can leave them.
    fn is_idle(&self) -> bool {
        false
    }

    /// The event descriptor.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    fn event_descriptor(&self) -> Result<BorrowedFd<'_>> {
        Err(Error::Unsupported("an event descriptor"))
    }

    /// Makes the descriptor readable at the next of `events`. It may become readable at another event, too.
    ///
    /// # Errors
    /// [`Error::Busy`] if one of `events` waits; [`Error::Unsupported`].
    fn arm(&self, _events: Events) -> Result<()> {
        Err(Error::Unsupported("an event descriptor"))
    }

    /// Whether the descriptor, once armed, also becomes readable when there may be room for a post that was refused before.
    fn announces_room(&self) -> bool {
        false
    }

    /// Whether puts and gets with this key are the wire's own, unless [`Memory::Emulated`]. Else they are emulated.
    fn reaches(&self, _key: &RemoteKey) -> bool {
        true
    }

    /// Writes `len` bytes at the peer, if [`Memory::Direct`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Unsupported`], [`Error::ConnectionReset`].
    ///
    /// # Safety
    /// `from` has `len` bytes.
    unsafe fn put(&self, _peer: u32, _key: &RemoteKey, _remote: u64, _from: *const u8, _len: usize) -> Result<()> {
        Err(Error::Unsupported("native put"))
    }

    /// Reads `len` bytes of the peer, if [`Memory::Direct`].
    ///
    /// # Errors
    /// As [`Wire::put`].
    ///
    /// # Safety
    /// `to` has room for `len` bytes.
    unsafe fn get(&self, _peer: u32, _key: &RemoteKey, _remote: u64, _to: *mut u8, _len: usize) -> Result<()> {
        Err(Error::Unsupported("native get"))
    }

    /// Does an atomic at the peer, if [`Memory::Direct`]. The address is aligned.
    ///
    /// # Errors
    /// As [`Wire::put`].
    fn atomic(&self, _peer: u32, _key: &RemoteKey, _remote: u64, _atomic: Atomic) -> Result<u64> {
        Err(Error::Unsupported("native atomics"))
    }

    /// Orders native operations before later ones.
    fn fence_memory(&self) {}

    /// Starts a put of at most `max` bytes, which `fill` writes into memory of the wire's own and counts, if
    /// [`Memory::Posted`]. If there is no room `fill` is not called.
    ///
    /// # Errors
    /// [`Error::NoResource`], [`Error::ConnectionReset`].
    fn post_packed(
        &self,
        _peer: u32,
        _key: &RemoteKey,
        _remote: u64,
        _max: usize,
        _fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize> {
        Err(Error::Unsupported("posted puts"))
    }

    /// Starts a get of `len` bytes into memory of the wire's own, if [`Memory::Posted`].
    ///
    /// # Errors
    /// As [`Wire::post_packed`].
    fn post_fetch(&self, _peer: u32, _key: &RemoteKey, _remote: u64, _len: usize, _ticket: u64) -> Result<()> {
        Err(Error::Unsupported("posted gets"))
    }

    /// Starts a put from `pieces`, or a get into them, at most [`Facts::max_pieces`], if [`Memory::Posted`].
    ///
    /// # Errors
    /// As [`Wire::post_packed`].
    ///
    /// # Safety
    /// The pieces are registered until the ticket comes back, and meanwhile readable and unchanged, or, for a get, not touched by other code.
    unsafe fn post_pieces(
        &self,
        _peer: u32,
        _key: &RemoteKey,
        _remote: u64,
        _pieces: &[Piece],
        _direction: Direction,
        _ticket: u64,
    ) -> Result<()> {
        Err(Error::Unsupported("posted puts and gets"))
    }

    /// Starts a put of at most [`Facts::max_notified`] bytes, or of none, whose notice [`Wire::notices`] hands over at the
    /// peer, after it and all that was put there before.
    ///
    /// # Errors
    /// As [`Wire::post_packed`]. There is no room either while the peer has not taken many notices.
    fn post_notified(&self, _peer: u32, _key: &RemoteKey, _remote: u64, _bytes: &[u8], _notice: u32) -> Result<()> {
        Err(Error::Unsupported("puts with a notice"))
    }

    /// Starts a message that consists of `header`, which is copied, and of `pieces`, if [`Straight::Posted`].
    ///
    /// # Errors
    /// As [`Wire::post_packed`].
    ///
    /// # Safety
    /// The pieces are registered, readable and unchanged until the ticket comes back.
    unsafe fn post_message(&self, _peer: u32, _id: u8, _header: &[u8], _pieces: &[Piece], _ticket: u64) -> Result<()> {
        Err(Error::Unsupported("posted messages"))
    }

    /// Hands the notices that [`Wire::receive`] found to `sink`, which calls nothing here. Returns how many.
    fn notices(&self, _sink: &mut dyn FnMut(u32)) -> usize {
        0
    }

    /// Starts an atomic, if [`Memory::Posted`]. Without a ticket its result is not fetched. The address is
    /// aligned.
    ///
    /// # Errors
    /// As [`Wire::post_packed`].
    fn post_atomic(
        &self,
        _peer: u32,
        _key: &RemoteKey,
        _remote: u64,
        _atomic: Atomic,
        _ticket: Option<u64>,
    ) -> Result<()> {
        Err(Error::Unsupported("posted atomics"))
    }

    /// As [`Wire::post_atomic`], for a caller that waits for the former value of the word: polls a moment and returns the value. `None`:
    /// the value comes with a ticket; only then is `ticket` called. If this fails after it has called `ticket`, that ticket is not used.
    ///
    /// # Errors
    /// As [`Wire::post_packed`].
    fn atomic_now(
        &self,
        peer: u32,
        key: &RemoteKey,
        remote: u64,
        atomic: Atomic,
        ticket: impl FnOnce() -> u64,
    ) -> Result<Option<u64>> {
        self.post_atomic(peer, key, remote, atomic, Some(ticket())).map(|()| None)
    }

    /// Hands the tickets of posted operations that are done to `sink`, which calls nothing here.
    fn completed(&self, _sink: &mut dyn FnMut(Completed<'_>)) -> usize {
        0
    }

    /// Makes sure that no blocks posted to `peer` with one of `tickets` are touched any more. This is the only call in which a wire may
    /// wait for its device, for a few seconds at most; after that it gives up the connection.
    fn abandon(&self, _peer: u32, _tickets: &[u64]) {}
}
