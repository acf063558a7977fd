//! The errors of calls of the transport layer.

/// The result of a call of the transport layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not start, or did not end well.
///
/// Small and `Copy`, so that it fits in a completion. [`Error::code`] gives the number of this error in UCS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was started; make progress and try again, or queue the request as pending.
    #[error("no room now; make progress and try again, or add the request to the pending queue")]
    NoResource,
    /// An argument that can never be right.
    #[error("invalid argument: {0}")]
    InvalidParam(&'static str),
    /// This interface cannot do that, and says so in its capabilities.
    #[error("not supported by this interface: {0}; look at its capabilities first")]
    Unsupported(&'static str),
    /// Longer than the interface's limit for this kind of operation.
    #[error("{what}: {length} bytes, but the limit is {limit}")]
    ExceedsLimit {
        /// Which limit.
        what: &'static str,
        /// The length that was asked for.
        length: usize,
        /// The longest that is allowed.
        limit: usize,
    },
    /// A remote range that is not all inside the memory that the key is for.
    #[error("the remote range is not all inside the registered memory that the key is for")]
    OutOfRange,
    /// Resources are there (`pending_add`), or events wait (`arm`): go on instead of waiting.
    #[error("busy: resources or events are available now; make progress instead of waiting")]
    Busy,
    /// The operation was cancelled by a flush.
    #[error("cancelled by a flush")]
    Canceled,
    /// The endpoint was made, but never connected.
    #[error("the endpoint is not connected")]
    NotConnected,
    /// The peer is gone, or the connection to it broke.
    #[error("the connection to the peer is lost")]
    ConnectionReset,
    /// No interface of this transport has that address.
    #[error("no interface can be reached at that address")]
    Unreachable,
    /// Memory is short.
    #[error("out of memory")]
    NoMemory,
    /// The network device may not keep so much in memory.
    #[error("{asked} bytes to pin for the network device, but {free} free of {limit}; raise `ulimit -l`")]
    LockedMemory {
        /// Bytes asked.
        asked: usize,
        /// Bytes that may still be pinned.
        free: usize,
        /// Bytes that may be pinned in all, `RLIMIT_MEMLOCK`.
        limit: usize,
    },
    /// The target holds no memory with that key (any more).
    #[error("the target has no registered memory with that key, or no longer")]
    Rejected,
    /// The operating system, or bytes from the peer, were not as they should be.
    #[error("input or output failed: {0}")]
    Io(&'static str),
}

impl Error {
    /// The number UCS has for this: negative, never 0.
    pub const fn code(self) -> i8 {
        match self {
            Error::NoResource => -2,
            Error::Io(_) => -3,
            Error::NoMemory | Error::LockedMemory { .. } => -4,
            // A wrong length is an invalid parameter to UCT, not a limit of UCP's (-21).
            Error::InvalidParam(_) | Error::ExceedsLimit { .. } => -5,
            Error::Unreachable => -6,
            Error::Busy => -15,
            Error::Canceled => -16,
            Error::OutOfRange => -19,
            Error::Unsupported(_) => -22,
            Error::Rejected => -23,
            Error::NotConnected => -24,
            Error::ConnectionReset => -25,
        }
    }

    /// The error a peer reported as a number. Unknown numbers become [`Error::Io`].
    pub const fn from_code(code: i8) -> Error {
        match code {
            -2 => Error::NoResource,
            -4 => Error::NoMemory,
            -5 => Error::InvalidParam("the target refused it"),
            -6 => Error::Unreachable,
            -15 => Error::Busy,
            -16 => Error::Canceled,
            -19 => Error::OutOfRange,
            -22 => Error::Unsupported("the target refused it"),
            -23 => Error::Rejected,
            -24 => Error::NotConnected,
            -25 => Error::ConnectionReset,
            _ => Error::Io("the target reported a failure"),
        }
    }

    /// The runtime's error for the same thing, with where and what added.
    pub fn at(self, operation: &'static str, rank: usize) -> crate::Error {
        match self {
            Error::NoResource | Error::Busy => {
                crate::Error::WouldBlock { operation, rank, place: crate::CalledAt::default() }
            }
            // Waits cancel only operations in flight to a rank that counts as lost.
            Error::ConnectionReset | Error::Canceled => {
                crate::Error::PeerLost { rank, cause: crate::error::Loss::Disconnected, doing: operation.into() }
            }
            Error::LockedMemory { asked, free, limit } => crate::Error::OutOfMemory {
                what: "memory that may be pinned for the network device",
                asked,
                free,
                limit,
                setting: "the limit on locked memory (ulimit -l)",
                place: crate::CalledAt::default(),
            },
            other => crate::Error::InvalidArgument { operation, why: format!("rank {rank}: {other}") },
        }
    }
}

/// The answer of an operation that may take time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// Locally complete: the buffer may be reused. The completion was ignored and keeps its count.
    Done,
    /// Under way: the completion, if one was given, is counted down later.
    InProgress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_negative_and_come_back() {
        for code in i8::MIN..0 {
            let error = Error::from_code(code);
            assert!(error.code() < 0);
            if !matches!(error, Error::Io(_)) {
                assert_eq!(error.code(), code);
            }
        }
    }
}
