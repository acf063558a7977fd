//! How bytes move: one contract, and the wires under it.
//!
//! ```text
//! Transport ── resources() ──▶ Resource          what there is, with figures to choose by
//!    │ open
//! Domain ── register, allocate ──▶ Region ── key().pack() ──▶ bytes ── unpack_key ──▶ RemoteKey
//!    │ open_interface
//! Interface ── address(), handlers, progress      one device, one address, one table of 32 handlers
//!    │ connect
//! Endpoint ── put, get, atomics, messages, flush, fence, pending
//! ```
//!
//! The contract follows the design of UCT, the lower layer of UCX. [`Attributes`] say which optional operations there are, so callers
//! need not try: a call whose capability bit is clear answers [`Error::Unsupported`]. An operation that takes a
//! [`Completion`] answers [`Posted::Done`] (buffer reusable, completion ignored), [`Posted::InProgress`] (completion
//! comes later, inside progress), [`Error::NoResource`] (nothing happened, try again), or another error.
//!
//! A new transport implements [`Wire`]: addresses, active messages, and the operations that its network does better than messages could.
//! [`port`] builds the whole contract on the wire, and emulates the other puts, gets and atomics over messages. One line of macro then runs
//! every test of the conformance suite on the transport. A transport whose hardware does everything may implement the traits here itself.
//! For jobs to use a transport, its folder has a `Provider`, which finds and opens its devices, and `providers.rs` has one line that names
//! the provider; nothing else does, unless users are to choose the transport by `BELLWETHER_TRANSPORT`.
//!
//! None of this is thread-safe by itself: one thread drives an interface and its endpoints, and interfaces are
//! independent of each other. [`Coarse`] puts one lock around a group of them.
//!
//! On one node the engine does not pass through here: a put is a store, a message a line in a lane ([`shm`]). Where other
//! ranks' memory is not mapped, or `BELLWETHER_TRANSPORT` says so, it does, and needs nothing beyond this contract.

mod atomic;
mod attributes;
mod coarse;
mod completion;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
#[cfg(any(test, fuzzing))]
pub mod decoders;
mod emulate;
mod error;
mod iov;
mod key;
pub(crate) mod lock;
mod memory;
mod message;
pub mod peers;
mod pending;
pub mod port;
pub(crate) mod providers;
#[cfg(all(test, not(loom)))]
pub(crate) mod rigs;
pub mod shm;
pub mod sim;
mod stream;
mod survey;
pub mod tcp;

pub mod verbs;
mod wire;
mod worker;

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

pub use self::atomic::{Atomic, AtomicOp, Width, Word};
pub use self::attributes::{
    AtomicSet, Attributes, Capabilities, Directions, Events, Flush, Limits, Locality, Order, Protection, Resource,
    SHORT_LEAST,
};
pub use self::coarse::{Coarse, Confined};
pub use self::completion::Completion;
pub use self::error::{Error, Posted, Result};
pub use self::iov::Iov;
pub use self::key::{Opaque, PACKED_KEY_LEN, RemoteKey};
pub use self::memory::{Allocation, Method, Pinned, Pinner, Region};
pub(crate) use self::message::Sent;
pub use self::message::{HandlerTable, Keep, Message, MessageHandler, Retained};
pub use self::pending::{Queues, Refused, Request, Resume};
pub use self::survey::survey;
pub use self::wire::{Agent, Arrival, Channel, Completed, Facts, Memory, Straight, Wire};
pub use self::worker::Worker;

/// Active-message ids an interface knows.
pub const MESSAGE_IDS: usize = 32;

/// A function that gets the index of an endpoint whose peer is gone, and why. Called once for each endpoint.
pub type ErrorHandler = Box<dyn Fn(u32, Error)>;

/// A function that takes the notices of puts ([`Endpoint::put_notify`]).
pub type NoticeHandler = Box<dyn Fn(u32)>;

/// Notices are below this.
pub const NOTICES: u32 = (1 << 26) - 1;

/// A way to reach others, with the devices it finds.
pub trait Transport: 'static {
    /// Its memory domain.
    type Domain: Domain;

    /// The devices there are, with figures to choose by.
    fn resources(&self) -> Vec<Resource>;

    /// Opens the memory domain of a device.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] for a device that is not this transport's.
    fn open(&self, resource: &Resource) -> Result<Self::Domain>;
}

/// The attributes of a memory domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DomainAttributes {
    /// Bytes of a packed key.
    pub packed_key_len: usize,
    /// Zero-copy operations need the local memory registered ([`Iov::with`]).
    pub needs_region: bool,
    /// [`Domain::key_pointer`] gives a pointer for keys of allocated memory.
    pub key_pointer: bool,
    /// Most bytes of one allocation from the domain itself.
    pub max_alloc: usize,
    /// Most bytes of one registration.
    pub max_register: usize,
}

/// Memory that the wire can reach, and the keys to it.
pub trait Domain: 'static {
    /// The interfaces of this domain.
    type Interface: Interface;

    /// The needs and limits of this domain.
    fn attributes(&self) -> DomainAttributes;

    /// Allocates zeroed, registered memory by the first of `methods` that works. The result says which one did.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] for length 0 or no method; else the last method's error.
    fn allocate(&self, len: usize, methods: &[Method]) -> Result<Allocation>;

    /// Lets peers that hold the key read and write `len` bytes at `address`, until the region is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] for length 0.
    ///
    /// # Safety
    /// The memory stays valid until the region is dropped, and what touches it meanwhile other than through this
    /// layer or atomics is separated from peers' accesses by the program's own synchronisation.
    unsafe fn register(&self, address: *mut u8, len: usize) -> Result<Region>;

    /// The bytes to send to a peer that shall reach `region`.
    fn pack_key(&self, region: &Region) -> [u8; PACKED_KEY_LEN] {
        region.key().pack()
    }

    /// The key in bytes that a peer packed.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] for bytes that are no key of this domain's network.
    ///
    /// # Safety
    /// A key is the right to write: `bytes` come from a peer's [`Domain::pack_key`], and the key is used only while that
    /// peer's region lives. A wire that reaches the memory directly does not look again.
    unsafe fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey>;

    /// A pointer through which this process reaches the peer's memory at `remote` directly.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where that is impossible, [`Error::OutOfRange`].
    fn key_pointer(&self, key: &RemoteKey, remote: u64) -> Result<*mut u8>;

    /// Opens an interface, progressed by `worker` once [`Interface::progress_enable`] was called.
    ///
    /// # Errors
    /// [`Error::Busy`] if the device has no further interface.
    fn open_interface(
        &self,
        worker: &Worker<Self::Interface>,
        options: InterfaceOptions,
    ) -> Result<Rc<Self::Interface>>;

    /// Opens a further interface, to which peers only send answers: its puts, gets and atomics go to the interfaces whose addresses peers
    /// have published, and it may have no messages. A device that allows one ordinary interface for each rank can have these beside it.
    /// The owner of the further interface makes progress for it.
    ///
    /// # Errors
    /// [`Error::Busy`] if the device has no further interface.
    fn open_private(&self) -> Result<Rc<Self::Interface>>;
}

/// How an interface is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceOptions {
    /// Capabilities not to offer.
    pub without: Capabilities,
    /// Serve puts, gets and atomics through messages even where the wire does better.
    pub emulate: bool,
    /// Most bytes of a packed put or get.
    pub max_bcopy: usize,
    /// Most bytes of a zero-copy put or get.
    pub max_zcopy: usize,
    /// Most entries of a scatter/gather list.
    pub max_iov: usize,
    /// Most emulated operations in flight for each endpoint.
    pub window: usize,
}

impl Default for InterfaceOptions {
    fn default() -> Self {
        InterfaceOptions {
            without: Capabilities::NONE,
            emulate: false,
            max_bcopy: 64 << 10,
            max_zcopy: 1 << 40,
            max_iov: 64,
            window: 64,
        }
    }
}

/// One device used by one worker: an address, a table of handlers, and the endpoints that leave from it.
pub trait Interface: 'static {
    /// Its endpoints.
    type Endpoint: Endpoint;

    /// The abilities and limits of this interface.
    fn attributes(&self) -> &Attributes;

    /// The bytes by which a peer can connect to this interface.
    fn address(&self) -> Vec<u8>;

    /// Whether those bytes may be the address of an interface that this one can reach. A local check.
    fn is_reachable(&self, address: &[u8]) -> bool;

    /// An endpoint to the interface with that address. One side is enough. Success does not mean that the peer lives.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capabilities::CONNECT_TO_IFACE`]; [`Error::Unreachable`].
    fn connect(self: &Rc<Self>, address: &[u8]) -> Result<Self::Endpoint>;

    /// An endpoint that waits for [`Endpoint::connect_to_endpoint`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capabilities::CONNECT_TO_EP`].
    fn endpoint(self: &Rc<Self>) -> Result<Self::Endpoint>;

    /// Sets, replaces or (with `None`) removes the handler of messages with this id.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] for an id that is not below [`MESSAGE_IDS`].
    fn set_handler(&self, id: u8, handler: Option<MessageHandler>) -> Result<()>;

    /// Sets the function that is called when a peer is lost.
    fn set_error_handler(&self, handler: Option<ErrorHandler>);

    /// Sets the function that takes the notices of puts, during progress. It may read memory, and must call nothing of this interface.
    fn set_notice_handler(&self, handler: Option<NoticeHandler>);

    /// Lets the worker progress these directions. A new interface is not progressed at all.
    fn progress_enable(&self, directions: Directions);

    /// The reverse of [`Interface::progress_enable`].
    fn progress_disable(&self, directions: Directions);

    /// Delivers messages, runs completions, serves pending requests. Returns how much was done. Inside a callback this does
    /// nothing and returns 0: callbacks do not nest.
    fn progress(&self) -> usize;

    /// For a progress thread: serves peers' puts, gets and atomics. Runs no callback of the user: messages and
    /// completions wait for [`Interface::progress`].
    fn serve(&self) -> usize;

    /// Whether every buffer handed to any endpoint may be reused.
    ///
    /// # Errors
    /// [`Error::NoResource`] while requests are pending.
    fn flush(&self) -> Result<Posted>;

    /// A fence on every endpoint: operations posted before take effect at the target before those posted later.
    ///
    /// # Errors
    /// None on the transports there are.
    fn fence(&self) -> Result<()>;

    /// A descriptor that becomes readable when an event comes after [`Interface::arm`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Events::DESCRIPTOR`].
    fn event_descriptor(&self) -> Result<BorrowedFd<'_>>;

    /// Asks for the next of `events` to be announced by the descriptor. An event of another kind may be announced, too;
    /// nothing is announced that came before the call.
    ///
    /// # Errors
    /// [`Error::Busy`] if one of `events` waits to be progressed: do that first. [`Error::Unsupported`] for events that are
    /// not in [`Attributes::events`]; [`Error::InvalidParam`] for no event.
    fn arm(&self, events: Events) -> Result<()>;

    /// Whether room for a post that was refused before the arming is announced, too.
    fn announces_room(&self) -> bool {
        false
    }
}

/// Takes the bytes of a get ([`Endpoint::get_to`]).
pub trait GetSink: Send + Sync {
    /// Takes `bytes`, which are those from `offset` on. Called for each part of the get, inside progress, before the completion; it calls
    /// nothing of the transport.
    fn take(&self, offset: usize, bytes: &[u8]);
}

/// A connection to one peer.
///
/// Addresses are the peer's own; keys come from [`Domain::unpack_key`]. Short and packed operations have copied their
/// data when they answer; `unsafe` ones use the caller's memory until their completion.
pub trait Endpoint: 'static {
    /// Number of this endpoint at its interface.
    fn index(&self) -> u32;

    /// The bytes by which a peer's endpoint can connect to this one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capabilities::CONNECT_TO_EP`].
    fn address(&self) -> Result<Vec<u8>>;

    /// Connects to the endpoint of a peer that has that address. Both sides do it, in any order, and until both have, sends
    /// answer [`Error::NoResource`]. The error handler gets [`Error::ConnectionReset`] if that endpoint is gone, is dropped later, or
    /// is connected to another one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capabilities::CONNECT_TO_EP`], [`Error::Unreachable`],
    /// [`Error::InvalidParam`] if it is connected already.
    fn connect_to_endpoint(&self, interface: &[u8], endpoint: &[u8]) -> Result<()>;

    /// Whether the peer is believed alive.
    ///
    /// # Errors
    /// Why not.
    fn check(&self) -> Result<()>;

    /// Writes a few bytes.
    ///
    /// # Errors
    /// [`Error::NoResource`], [`Error::ExceedsLimit`], [`Error::OutOfRange`], and those of a lost peer.
    fn put_short(&self, data: &[u8], remote: u64, key: &RemoteKey) -> Result<()>;

    /// Writes a few bytes, or none, and hands `notice` to the peer's notice handler, which runs in the peer's progress,
    /// when these bytes and all that was put there before are in effect. Where the peer has not progressed for a while
    /// there is no room; a put and an atomic need no progress.
    ///
    /// # Errors
    /// As [`Endpoint::put_short`]; [`Error::Unsupported`] without [`Attributes::max_notified`];
    /// [`Error::InvalidParam`] for a notice that is not below [`NOTICES`].
    fn put_notify(&self, data: &[u8], remote: u64, key: &RemoteKey, notice: u32) -> Result<()>;

    /// Writes what `pack` puts into a buffer of `len` bytes; `pack` gives how many it filled, and so does this. It runs
    /// once, and not at all if the answer is an error.
    ///
    /// # Errors
    /// As [`Endpoint::put_short`].
    fn put_bcopy(
        &self,
        len: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize>;

    /// Writes the blocks of `iov`, one after the other, to contiguous memory at the peer.
    ///
    /// # Errors
    /// As [`Endpoint::put_short`]; [`Error::InvalidParam`] for a missing region.
    ///
    /// # Safety
    /// The blocks are readable and unchanged until the completion, or a flush where none was given.
    unsafe fn put_zcopy(
        &self,
        iov: &[Iov<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted>;

    /// Reads a few bytes, before it returns.
    ///
    /// # Errors
    /// As [`Endpoint::put_short`].
    fn get_short(&self, to: &mut [u8], remote: u64, key: &RemoteKey) -> Result<()>;

    /// Reads `len` bytes and hands them to `unpack`, inside this call or later inside progress.
    ///
    /// # Errors
    /// As [`Endpoint::put_short`].
    fn get_bcopy(
        &self,
        len: usize,
        unpack: impl FnOnce(&[u8]) + 'static,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted>;

    /// As [`Endpoint::get_bcopy`], but the bytes go to `sink`, straight from memory of the transport. Nothing is allocated where the wire
    /// itself does gets.
    ///
    /// # Errors
    /// As [`Endpoint::put_short`].
    fn get_to(
        &self,
        len: usize,
        sink: Arc<dyn GetSink>,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted>;

    /// Reads contiguous memory of the peer into the blocks of `iov`.
    ///
    /// # Errors
    /// As [`Endpoint::put_zcopy`].
    ///
    /// # Safety
    /// The blocks are writable, and not touched by other code, until the completion or a flush.
    unsafe fn get_zcopy(
        &self,
        iov: &[Iov<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted>;

    /// Does an atomic (not [`AtomicOp::CompareSwap`] nor [`AtomicOp::Swap`]) without fetching its result.
    ///
    /// # Errors
    /// As [`Endpoint::put_short`]; [`Error::Unsupported`]; [`Error::InvalidParam`] for a misaligned address.
    fn atomic_post<T: Word>(&self, op: AtomicOp, value: T, remote: u64, key: &RemoteKey) -> Result<()>;

    /// Does an atomic (not [`AtomicOp::CompareSwap`]). The former value of the word is in `result` at completion. The
    /// result needs no registration.
    ///
    /// # Errors
    /// As [`Endpoint::atomic_post`].
    ///
    /// # Safety
    /// `result` is writable until the completion or a flush.
    unsafe fn atomic_fetch<T: Word>(
        &self,
        op: AtomicOp,
        value: T,
        result: *mut T,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted>;

    /// Stores `swap` if the word equals `compare`. The former value of the word is in `result` at completion.
    ///
    /// # Errors
    /// As [`Endpoint::atomic_post`].
    ///
    /// # Safety
    /// As [`Endpoint::atomic_fetch`].
    unsafe fn atomic_compare_swap<T: Word>(
        &self,
        compare: T,
        swap: T,
        result: *mut T,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted>;

    /// Does an atomic for a caller that waits for the result. Returns the former value of the word if it comes in a moment. Else calls
    /// `later`, which gives the place for the value and the completion. `compare` is for [`AtomicOp::CompareSwap`].
    ///
    /// # Errors
    /// As [`Endpoint::atomic_post`].
    ///
    /// # Safety
    /// The result that `later` gives is writable until the completion or a flush.
    unsafe fn atomic_now<T: Word>(
        &self,
        op: AtomicOp,
        value: T,
        compare: T,
        remote: u64,
        key: &RemoteKey,
        later: impl FnOnce() -> (*mut T, Completion),
    ) -> Result<Option<T>>;

    /// Sends a header word and a few bytes.
    ///
    /// # Errors
    /// [`Error::NoResource`], [`Error::ExceedsLimit`], [`Error::InvalidParam`] for the id, and those of a lost peer.
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<()>;

    /// Sends what `pack` puts into a buffer of `len` bytes; see [`Endpoint::put_bcopy`].
    ///
    /// # Errors
    /// As [`Endpoint::am_short`].
    fn am_bcopy(&self, id: u8, len: usize, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize>;

    /// Sends `header`, which is copied, and the blocks of `iov`, without a copy on the way out. Where the device reads the
    /// blocks it answers [`Posted::InProgress`] and they stay as they are until the completion. Where the one copy is into
    /// the receiver's memory, or a list has more blocks than the device gathers, it answers [`Posted::Done`].
    ///
    /// # Errors
    /// As [`Endpoint::am_short`]; [`Error::InvalidParam`] for a missing region.
    ///
    /// # Safety
    /// The blocks are readable and unchanged until the completion, or a flush where none was given.
    unsafe fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        iov: &[Iov<'_>],
        completion: Option<&Completion>,
    ) -> Result<Posted>;

    /// Waits, with a completion or by asking again, for all that was posted on this endpoint so far. With
    /// [`Flush::CANCEL`] all of it ends with [`Error::Canceled`], and the endpoint takes nothing more; that call waits while
    /// a device works on blocks of the user's memory, and does not affect operations of other endpoints.
    ///
    /// # Errors
    /// [`Error::NoResource`] while requests are pending on this endpoint: queue the flush behind them.
    fn flush(&self, flags: Flush, completion: Option<&Completion>) -> Result<Posted>;

    /// For an endpoint that has failed: `true` if all earlier puts are known to be in effect at the peer, `false` if that is not known.
    fn had_arrived(&self) -> bool {
        false
    }

    /// Operations posted before take effect at the target before those posted later.
    ///
    /// Puts, gets and atomics are in effect when the target's memory shows it. A message is ordered after earlier
    /// operations of any kind; operations after a message may be in effect before its handler runs.
    ///
    /// # Errors
    /// Those of a lost peer.
    fn fence(&self) -> Result<()>;

    /// Queues `request`, to be called by progress until it says [`Resume::Done`]. While an endpoint's queue is not
    /// empty every new send on it answers [`Error::NoResource`], so nothing is overtaken.
    ///
    /// # Errors
    /// [`Error::Busy`] if there is room: send instead. The request comes back.
    fn pending_add(&self, request: Request) -> Result<(), Refused>;

    /// Empties the queue of this endpoint into `each`.
    fn pending_purge(&self, each: impl FnMut(Request));
}
