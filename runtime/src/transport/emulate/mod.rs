//! Puts, gets and atomics over active messages alone.
//!
//! Two state machines with no socket and no clock in them: the [`Client`] turns operations into requests and takes
//! answers, the [`Server`] does what requests ask and makes the answers. Each request has exactly one answer. Long
//! operations are cut into requests that fit the wire; requests of one peer leave in the order of their operations.
//!
//! At the target, the progress of the interface or a progress thread takes requests off the wire and calls the server.

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
