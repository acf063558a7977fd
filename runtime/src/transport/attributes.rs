//! The abilities of an interface: capability bits, limits, and the figures of a resource.

use std::fmt;

macro_rules! flags {
    ($(#[$meta:meta])* $name:ident: $word:ty { $($(#[$doc:meta])* $flag:ident = $bit:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub $word);

        impl $name {
            $($(#[$doc])* pub const $flag: $name = $name(1 << $bit);)*
            /// No flag.
            pub const NONE: $name = $name(0);

            /// Whether all of `other` are set here.
            pub const fn has(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any of `other` is set here.
            pub const fn any(self, other: $name) -> bool {
                self.0 & other.0 != 0
            }

            /// These flags and those.
            pub const fn and(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }

            /// These flags without those.
            pub const fn without(self, other: $name) -> $name {
                $name(self.0 & !other.0)
            }

            /// The names of the flags that are set.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                [$((stringify!($flag), $name::$flag)),*].into_iter().filter(move |(_, flag)| self.has(*flag)).map(|(name, _)| name)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_set().entries(self.names()).finish()
            }
        }
    };
}

flags! {
    /// The operations that an interface offers. The bit numbers are those of UCT's interface flags.
    Capabilities: u64 {
        /// Active messages of a header word and a few bytes.
        AM_SHORT = 0,
        /// Active messages packed by a callback.
        AM_BCOPY = 1,
        /// Active messages straight from the user's memory.
        AM_ZCOPY = 2,
        /// Requests can be queued until there is room.
        PENDING = 3,
        /// Puts of a few bytes.
        PUT_SHORT = 4,
        /// Puts packed by a callback.
        PUT_BCOPY = 5,
        /// Puts straight from the user's memory.
        PUT_ZCOPY = 6,
        /// Gets of a few bytes that complete inside the call.
        GET_SHORT = 8,
        /// Gets that hand the data to a callback.
        GET_BCOPY = 9,
        /// Gets straight into the user's memory.
        GET_ZCOPY = 10,
        /// Atomics that are atomic towards the processor's own.
        ATOMIC_CPU = 30,
        /// Atomics that are atomic towards the same device only.
        ATOMIC_DEVICE = 31,
        /// Errors of short puts reach the error handler.
        ERRHANDLE_SHORT = 32,
        /// Errors of bcopy operations reach the error handler.
        ERRHANDLE_BCOPY = 33,
        /// Errors of zcopy operations reach the error handler.
        ERRHANDLE_ZCOPY = 34,
        /// A message id that the peer does not know reaches the error handler.
        ERRHANDLE_AM_ID = 35,
        /// An access to memory that the peer has not registered reaches the error handler.
        ERRHANDLE_REMOTE_MEM = 36,
        /// A packed operation of a wrong length reaches the error handler.
        ERRHANDLE_BCOPY_LEN = 37,
        /// The death of a peer reaches the error handler.
        ERRHANDLE_PEER_FAILURE = 38,
        /// An endpoint can be asked whether its peer lives.
        EP_CHECK = 39,
        /// An endpoint connects to an interface; one side is enough.
        CONNECT_TO_IFACE = 40,
        /// An endpoint connects to an endpoint; both sides do it.
        CONNECT_TO_EP = 41,
        /// An endpoint connects through a socket address.
        CONNECT_TO_SOCKADDR = 42,
        /// A message may arrive twice.
        AM_DUP = 43,
        /// Callbacks run inside progress only.
        CB_SYNC = 44,
        /// Callbacks may run on another thread.
        CB_ASYNC = 45,
        /// Endpoints can keep their connection alive.
        EP_KEEPALIVE = 46,
        /// Tag matching, eager, short.
        TAG_EAGER_SHORT = 50,
        /// Tag matching, eager, packed.
        TAG_EAGER_BCOPY = 51,
        /// Tag matching, eager, straight.
        TAG_EAGER_ZCOPY = 52,
        /// Tag matching, rendezvous.
        TAG_RNDV_ZCOPY = 53,
        /// Reaches other nodes.
        INTER_NODE = 54,
    }
}

flags! {
    /// The events that an event descriptor can report. Bit numbers as UCT's event flags.
    Events: u32 {
        /// A send completed.
        SEND_COMPLETION = 0,
        /// A message came.
        RECEIVE = 1,
        /// A message came that asked to be announced.
        RECEIVE_SIGNALED = 2,
        /// The interface has a descriptor for `poll(2)`.
        DESCRIPTOR = 3,
        /// The interface can call back from another thread instead.
        ASYNC_CALLBACK = 4,
    }
}

flags! {
    /// Which directions a worker progresses for an interface.
    Directions: u32 {
        /// Completions and pending requests.
        SEND = 0,
        /// Incoming messages.
        RECEIVE = 1,
        /// The caller holds a lock, so that several threads may progress in turn.
        THREAD_SAFE = 7,
    }
}

flags! {
    /// How to flush.
    Flush: u32 {
        /// Outstanding operations end with [`super::Error::Canceled`], and the endpoint with them.
        CANCEL = 0,
        /// Wait until effects are visible to everyone, not only until buffers are reusable.
        REMOTE = 1,
    }
}

impl Flush {
    /// Until every buffer may be reused.
    pub const LOCAL: Flush = Flush(0);
}

/// Limits of one family of operations, in bytes unless said otherwise. A limit of an unsupported shape is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Most bytes of a short operation. For messages, the 8-byte header counts.
    pub max_short: usize,
    /// Most bytes of a packed operation.
    pub max_bcopy: usize,
    /// Fewest bytes of a zero-copy operation.
    pub min_zcopy: usize,
    /// Most bytes of a zero-copy operation. For messages, without the header.
    pub max_zcopy: usize,
    /// Most bytes of a zero-copy message's header.
    pub max_header: usize,
    /// Most entries of a scatter/gather list.
    pub max_iov: usize,
}

/// Bytes of a short put or message that every transport must take.
pub const SHORT_LEAST: usize = 40;

/// Atomic operations, as a set. Bit numbers are those of [`super::AtomicOp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AtomicSet {
    /// 32-bit operations without result.
    pub post32: u32,
    /// 64-bit operations without result.
    pub post64: u32,
    /// 32-bit operations with result.
    pub fetch32: u32,
    /// 64-bit operations with result.
    pub fetch64: u32,
}

/// The order in which the operations of one endpoint take effect at the target, when no fence is between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As they were posted.
    Posted,
    /// In any order.
    Any,
}

/// All that an interface says about itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attributes {
    /// The operations that can be called.
    pub capabilities: Capabilities,
    /// Those of them that are emulated over active messages rather than done by the wire.
    pub emulated: Capabilities,
    /// Limits of puts.
    pub put: Limits,
    /// Limits of gets.
    pub get: Limits,
    /// Limits of active messages.
    pub am: Limits,
    /// Most bytes of a put with a notice ([`super::Endpoint::put_notify`]), where there are any.
    pub max_notified: Option<usize>,
    /// Which atomics.
    pub atomics: AtomicSet,
    /// Atomics reach only memory that the domain allocated, not all that is registered.
    pub atomics_on_allocated_only: bool,
    /// Emulated operations complete only if the target makes progress, or has a thread that calls
    /// [`super::Interface::serve`].
    pub needs_target_progress: bool,
    /// Messages among themselves.
    pub message_order: Order,
    /// Puts, gets and atomics among themselves.
    pub memory_order: Order,
    /// The events that the event descriptor reports.
    pub events: Events,
    /// Bytes of an interface address.
    pub address_len: usize,
    /// Bytes of an endpoint address; 0 where endpoints connect to interfaces only.
    pub endpoint_address_len: usize,
    /// Bytes kept for each peer, without memory of the kernel: from the start where memory is shared, else from the first communication on.
    pub memory_per_peer: usize,
    /// Interfaces that a rank may have open at a time, each with queues and connections of its own.
    pub max_interfaces: usize,
}

/// The peers that a device reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locality {
    /// The same process.
    Process,
    /// The same node.
    Node,
    /// Anywhere on the network.
    Network,
}

/// The protection of data between hosts against others that can reach the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protection {
    /// The data does not leave the host.
    Host,
    /// Nothing.
    Nothing,
    /// Data that was changed, left out or repeated is refused. The data can be read.
    Authenticated,
    /// The same, and the data cannot be read.
    Encrypted,
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protection::Host => "data stays on the host, where it is not encrypted",
            Protection::Nothing => "data is neither authenticated nor encrypted",
            Protection::Authenticated => "data is authenticated (GMAC), not encrypted",
            Protection::Encrypted => "data is authenticated and encrypted (AES-256-GCM)",
        })
    }
}

/// A device that a transport can use, with figures to choose by. Figures are estimates, never measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    /// The transport's name.
    pub transport: &'static str,
    /// The device's name.
    pub device: String,
    /// Bytes a second.
    pub bandwidth: f64,
    /// Seconds for the smallest message.
    pub latency: f64,
    /// Seconds the sender's processor is busy with a message.
    pub overhead: f64,
    /// Messages a second.
    pub message_rate: f64,
    /// Which peers it reaches.
    pub locality: Locality,
    /// Operations that the device executes itself, and which processor its atomics are atomic with. The target's processor emulates
    /// all others.
    pub capabilities: Capabilities,
    /// How data between hosts is protected.
    pub protection: Protection,
}
