//! LAPI's calls: active messages with counters, thin over the engine.
//!
//! [`raw`] has the calls as C has them: handles by value, raw pointers, and codes, which [`codes`] lists. A [`Job`] is this task's place
//! in a job; `Init` makes a handle on it, `Term` ends the handle.
//!
//! [`Lapi`] is for Rust: handlers are closures, buffers are owned, and each of the three events of a message moves a counter, rings a bell,
//! ends a future or runs a function: see [`Signal`]. All other calls take its [`Lapi::handle`].
//!
//! This module does not use the engine's fences and barriers, since these belong to one thread. LAPI's calls come from every thread, run
//! handlers while they wait, and complete when data is in a place that the target has named. So fences count messages by tickets, barriers
//! are made of messages, and vectors travel as groups of parts.
//!
//! # Rows that stand
//!
//! | rows | what | where |
//! | --- | --- | --- |
//! | L1, L2, L14, L16, L17, L23, L28 | `Amsend` and its three counters | [`raw::amsend`] |
//! | L3, L4, L5, L6, L19 | header handlers, by address or by index; one at a time, once for each message | [`raw::HeaderHandler`] |
//! | L7, L8, L9 | data consumed in the header handler, buried, or dropped; [`raw::ReturnInfo`] | [`raw::ReturnInfo`] |
//! | L10, L15 | completion handlers | [`raw::CompletionHandler`] |
//! | L11 | on the handler thread, which sends and waits, also while no other thread of the task calls | [`raw::NORMAL`] |
//! | L12, L18 | inline on request, with and without a reply | [`raw::SEND_REPLY`], [`raw::LOCAL_STATE`] |
//! | L13 | the user header is valid until the header handler has returned, and, of a message that came with its data, until an inline completion handler has | |
//! | L20, L21, L22, L24, L25, L26, L54 | what is refused, with nothing sent | [`codes`] |
//! | L27, L49, L50, L51 | `Fence`, `Gfence`: a ticket for each message whose data is not in place | [`raw::fence`], [`raw::gfence`] |
//! | L29, L47, L48 | `Xfer`: the transfers above and below by one call, with functions in the place of origin counters; lightweight messages | [`raw::xfer`] |
//! | L31, L32, L33, L34, L35, L36 | counters: `Waitcntr`, `Getcntr`, `Setcntr` | [`raw::waitcntr`], [`raw::getcntr`], [`raw::setcntr`] |
//! | L37 | `Setcntr_wstatus`, and `Nopoll_wait`, which sleeps until the increment | [`raw::setcntr_wstatus`], [`raw::nopoll_wait`] |
//! | L38, L39, L40, L41 | `Put`, `Get`: one-sided where the memory can be reached, else messages that the target serves when it makes progress | [`raw::put`], [`raw::get`] |
//! | L42, L43, L44, L45 | `Rmw`, `Rmw64`: by the processor on mapped memory, else by the target when it makes progress | [`raw::rmw`], [`raw::rmw64`] |
//! | L46 | `Amsendv`, `Putv`, `Getv`: lists, strided places, lists of different shapes | [`raw::amsendv`], [`raw::putv`], [`raw::getv`] |
//! | L52 | `Address_init64` | [`raw::address_init`] |
//! | L53 | `Addr_set`, `Addr_get` | [`raw::addr_set`], [`raw::addr_get`] |
//! | L55, L56 | `Init`, `Term`, and `Init` again | [`raw::init`], [`raw::term`], [`Lapi::restart`] |
//! | L57, L58 | `Qenv`, `Senv` of `ERROR_CHK`, `TIMEOUT`, `INTERRUPT_SET` and `ACK_THRESHOLD` | [`raw::qenv`], [`raw::senv`] |
//! | L59 | interrupt mode, the default, and polling mode | [`raw::query::INTERRUPT_SET`] |
//! | L60 | `Probe` | [`raw::probe`] |
//! | L62 | a call in a header handler is [`codes::IN_HANDLER`], and nothing is sent | |
//! | L61 | `Msgpoll` | [`raw::msgpoll`] |
//! | L63 | `Purge_totask`, `Resume_totask`; waits for counters end | [`raw::purge_totask`] |
//! | L64 | `Msg_string` | [`raw::msg_string`] |
//! | L65 | every call from any thread | one lock for each handle; a thread that calls alone takes it without a locked instruction |
//!
//! Not there: Fortran (L30), and the types of `Xfer` that have no row of their own: data described by a program, RDMA, multicast.
//!
//! # Progress
//!
//! In polling mode messages move while a thread of the task is in a call. In interrupt mode a thread of the runtime moves them too, when no
//! call has for 1 ms; header handlers may then run on that thread. The calls that make progress are the waits, `Getcntr`, `Probe`,
//! the fences, and what sends while it waits for room. Each of them returns, once, the code of something that was wrong with a message:
//! [`codes::NO_HNDLR_SET`] at the target and at the origin, [`codes::HANDLER_PANICKED`]. [`Failure::last`] has the task, the kind of
//! transfer and the text. Calls that send leave the code to the next call.
//!
//! A task that dies ends every wait of the others with [`codes::PEER_LOST`]. One that leaves without `Term` does so for the tasks that it owes an
//! answer to a message or a request, and for waits for a counter for which [`raw::setcntr_wstatus`] has named it; for others it is no error of a
//! wait, unless it was the last other task.
//!
//! Data of up to 8 KiB travels with the header; a message with 24 bytes of user header and data fits in a cache line. Longer data stays at
//! its origin until the target fetches it to its place: from a task of the same node by a copy, if it is mapped static data, and by the
//! kernel's cross-memory attach; by RDMA get over a network; and else by messages in pieces. Puts and gets are described with [`raw::put`].
//! Short parts of vectors travel packed. If there is no room on the way to a target, a call that sends blocks and makes progress meanwhile,
//! so tasks that flood each other go on.
//!
//! # Threads
//!
//! Every call may be made from every thread of the task. A handle has one lock; a thread that waits gives it up for others. The
//! first completion handler that is not inline starts the handler thread, which runs them one after the other. On a simulated network, where ranks
//! take turns, calls are for the thread that called `Init`, and others get [`codes::HNDL_INVALID`]; completion handlers run
//! there, in the calls that make progress.
//!
//! A forked child is no task. If another thread was in a call when the process forked, or the runtime's thread moved messages, the child's
//! calls are [`codes::HNDL_INVALID`]; otherwise those that send, wait or make progress are [`codes::RUNTIME`].

mod arrive;
mod calls;
mod closures;
pub mod codes;
mod counter;
mod domain;
mod event;
mod exchange;
mod face;
mod failure;
mod interrupt;
mod job;
mod lost;
#[cfg(all(test, loom))]
mod models;
mod one_sided;
mod owed;
mod parts;
mod poll;
mod port;
mod queue;
pub mod raw;
mod send;
mod shape;
mod signal;
#[cfg(all(test, not(loom)))]
mod tests;
mod traffic;
mod types;
mod vectors;
mod xfer;

pub use self::closures::{Announced, Answer, HandlerContext, Landed};
pub use self::counter::Counter;
pub use self::domain::{LOC_ADDRTBL_SZ, MAX_UHDR_SZ};
pub use self::face::{Code, Lapi, Message};
pub use self::failure::{Failure, What};
pub use self::job::Job;
pub use self::signal::{Bell, Signal};

/// The kinds of control messages.
mod kind {
    /// An active message whose data stays at its origin: handler, target counter, completion counter, length, number, offer, user header.
    pub(super) const ANNOUNCED: u64 = 0;
    /// The data of the message with this number may be changed.
    pub(super) const FETCHED: u64 = 1;
    /// Lets this completion event happen.
    pub(super) const COMPLETED: u64 = 2;
    /// A message was refused: the code; its number plus one if it was announced, else 0; the kind of transfer; and the index, address or
    /// length that was wrong.
    pub(super) const REFUSED: u64 = 3;
    /// Asks for an answer when so many messages of the sender are in place.
    pub(super) const FENCE: u64 = 4;
    /// That answer.
    pub(super) const FENCED: u64 = 5;
    /// A round of a barrier; `SUCCESS`, or the code because of which the sender gives the barrier up; with a code, the task that it is about
    /// plus one, or 0.
    pub(super) const BARRIER: u64 = 6;
    /// The answer to an atomic operation: its result, the result's length and address, and the address of the origin counter.
    pub(super) const CHANGED: u64 = 7;
    /// The data of a vector message may be changed: the event, and `SUCCESS` or the code because of which it cannot happen.
    pub(super) const FREED: u64 = 8;
    /// This completion event cannot happen, because of this code.
    pub(super) const FAILED: u64 = 9;
    /// So many bytes of a group of the receiver cannot be sent: number and bytes of the group, those bytes, the code.
    pub(super) const MISSING: u64 = 10;
}

/// Values in the place of a header handler in messages of other calls. No function has such an address.
mod own {
    /// The least of these values.
    pub(super) const FIRST: u64 = u64::MAX - 15;
    /// Data for an address, which is the user header.
    pub(super) const PUT: u64 = FIRST;
    /// The same, as the answer to a get.
    pub(super) const ANSWER: u64 = FIRST + 1;
    /// Asks for data: address, length, the address where it goes, the counters there and here.
    pub(super) const GET: u64 = FIRST + 2;
    /// An atomic operation: operation and size, address, two operands, the address of the result, the origin counter.
    pub(super) const RMW: u64 = FIRST + 3;
    /// A long part of a transfer: its place, and the number and bytes of its group.
    pub(super) const PART: u64 = FIRST + 4;
    /// Short parts of one: number and bytes of the group. The data is how many, the address and length of each, and their bytes.
    pub(super) const PARTS: u64 = FIRST + 5;
    /// Asks for parts: number and bytes of the group. The data is, for each, the address, the address where it goes, and the length.
    pub(super) const GETV: u64 = FIRST + 6;
    /// A vector message: handler, event, how many places, their type and whether the data is here, the length of the user header. The
    /// data is the length of each place, the addresses or nothing, the user header, and the data of the places or nothing.
    pub(super) const AMV: u64 = FIRST + 7;
}
