//! Puts, gets and atomics over active messages alone.
//!
//! Two state machines with no socket and no clock in them: the [`Client`] turns operations into requests and takes
//! answers, the [`Server`] does what requests ask and makes the answers. Each request has exactly one answer. Long
//! operations are cut into requests that fit the wire; requests of one peer leave in the order of their operations.
//!
//! The server is called by whoever takes requests off the wire at the target: its progress, or a progress thread.

mod client;
mod codec;
mod server;

pub use self::client::{Client, Event, Operation, Sink, Source, Unpack};
pub use self::codec::REPLY_HEADER;
#[cfg(any(test, fuzzing))]
pub use self::codec::{Reply, RequestHead};
#[cfg(test)]
pub use self::codec::{ReplyKind, RequestKind};
pub use self::server::Server;
