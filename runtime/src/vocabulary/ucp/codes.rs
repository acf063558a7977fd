//! The status codes of UCX, with their numbers and texts: those that calls of this vocabulary return, and those that callers compare with.

use crate::error::Error;
use crate::vocabulary::code_table::codes;

codes! {
    OK = 0, "The call succeeded.";
    INPROGRESS = 1, "The operation is in progress.";
    NO_MESSAGE = -1, "There is no message.";
    NO_RESOURCE = -2, "There is no room now.";
    IO_ERROR = -3, "A call of the system failed.";
    NO_MEMORY = -4, "There is not enough memory.";
    INVALID_PARAM = -5, "An argument is not valid, or the worker was created without the feature.";
    UNREACHABLE = -6, "The destination cannot be reached.";
    INVALID_ADDR = -7, "The address is not valid.";
    NOT_IMPLEMENTED = -8, "The call is not implemented.";
    MESSAGE_TRUNCATED = -9, "The message is longer than the buffer.";
    NO_PROGRESS = -10, "There was no progress.";
    BUFFER_TOO_SMALL = -11, "The buffer is too small.";
    NO_ELEM = -12, "There is no such element.";
    NO_DEVICE = -14, "There is no such device.";
    BUSY = -15, "Events wait to be handled: make progress first.";
    CANCELED = -16, "The operation was cancelled.";
    SHMEM_SEGMENT = -17, "A segment of shared memory failed.";
    ALREADY_EXISTS = -18, "It exists already.";
    OUT_OF_RANGE = -19, "The value is out of range.";
    TIMED_OUT = -20, "The time is over.";
    EXCEEDS_LIMIT = -21, "A limit is exceeded.";
    UNSUPPORTED = -22, "This is not supported, or not as the worker was created.";
    REJECTED = -23, "The connection was rejected.";
    NOT_CONNECTED = -24, "There is no connection.";
    CONNECTION_RESET = -25, "The connection was reset by the peer.";
    ENDPOINT_TIMEOUT = -80, "The peer does not answer any more.";
}

/// A status that is not [`OK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("UCX status {0}: {text}", text = text(*.0).unwrap_or("no status of UCX"))]
pub struct Status(pub i32);

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        Status(match error {
            Error::PeerLost { .. } => ENDPOINT_TIMEOUT,
            Error::OutOfMemory { .. } => NO_MEMORY,
            Error::InvalidArgument { .. } | Error::InsideHandler { .. } | Error::Forked { .. } => INVALID_PARAM,
            Error::TimedOut { .. } => TIMED_OUT,
            Error::WouldBlock { .. } | Error::NoContext { .. } => NO_RESOURCE,
            _ => IO_ERROR,
        })
    }
}
