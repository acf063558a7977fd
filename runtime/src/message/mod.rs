//! Active messages: code that runs at another rank, named by a handler number or by a closure.

mod broadcast;
mod calls;
mod closure;
pub mod code;
mod confirmed;
mod context;
mod dispatch;
mod encoding;
mod exchange;
mod fetch;
mod landing;
mod memory_service;
mod open;
mod outgoing;
mod panic;
mod receipt;
mod segment_service;
mod table;

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

pub use self::closure::Call;
#[cfg(any(test, fuzzing))]
pub(crate) use self::closure::{feed_closures, name_code};
pub use self::context::Context;
pub(crate) use self::fetch::{Fetch, Offer, Offered, Unsettled, answers};
pub(crate) use self::landing::handler as landing;
pub use self::landing::{Announced, Landed, Landing, LandingId};
pub(crate) use self::memory_service::OF_FETCH;
pub(crate) use self::outgoing::{SealedTable, closure, closure_with_receipt, plain_closure};
pub(crate) use self::panic::told_of;
pub use self::table::{HandlerFn, HandlerId};
pub(crate) use crate::engine::LINE_WORDS;

use self::broadcast::Broadcasts;
use self::calls::Calls;
use self::dispatch::Handlers;
use self::exchange::Exchanges;
use self::table::HandlerRegistry;
use crate::engine::{Dispatch, Engine};
use crate::error::{CalledAt, Error, Result};
use crate::transport::Sent;
use crate::transport::peers::Verified;

/// The ids that the runtime gives to its own kinds of message.
pub(crate) mod id {
    /// A registered handler; the header is its number.
    pub const HANDLER: u8 = 0;
    /// A closure without answer; the header is its code offset.
    pub const INVOKE: u8 = 1;
    /// A closure with an answer; as above, and the payload begins with the call's number.
    pub const CALL: u8 = 2;
    /// The answer; the header is the call's number.
    pub const ANSWER: u8 = 3;
    /// Bytes for an address outside segments.
    pub const WRITE: u8 = 4;
    /// A request for bytes at such an address.
    pub const READ: u8 = 5;
    /// The answer to it.
    pub const READ_DONE: u8 = 6;
    /// Adds one to a counter at such an address; the header is the address.
    pub const RING: u8 = 7;
    /// Tells the asker that memory it named is not there; the header is what it asked for.
    pub const REFUSED: u8 = 8;
    /// A value for a Cheetah matching handler; the header is the tag, and above it the handler object.
    pub const MATCHING: u8 = 9;
    /// A piece of a broadcast on its way down the tree; the header is its number.
    pub const BROADCAST: u8 = 10;
    /// Tells a caller that waits for no answer that its handler panicked.
    pub const PANICKED: u8 = 11;
    /// As `HANDLER`, to a rank that may not see the sender's table yet; above the number the header has a digest of that table.
    pub const HANDLER_AND_DIGEST: u8 = 12;
    /// Takes the right to reach a segment away from a rank that may hold its entry; the header is its number.
    pub const REVOKE: u8 = 13;
    /// Says that nothing of the sender is in flight to that segment any more.
    pub const REVOKED: u8 = 14;
    /// A function of an open table; the header is its number, and above it 32 bits of its digest.
    pub const FUNCTION: u8 = 15;
    /// Says how many functions of an open table the sender has; the header is their number.
    pub const CONFIRMED: u8 = 16;
    /// As `HANDLER_AND_DIGEST`, and the payload begins with the number of the receipt that is sent back when the handler has run.
    pub const HANDLER_AND_RECEIPT: u8 = 17;
    /// Asks about a piece of a broadcast that does not come; the header is its number.
    pub const BROADCAST_QUESTION: u8 = 18;
    /// Says that the sender is in another collective call; the header is the number of the piece that it was asked about.
    pub const BROADCAST_ELSEWHERE: u8 = 19;
    /// A part of the message of one rank to another in an exchange; the header is the number of the exchange.
    pub const EXCHANGE: u8 = 20;
    /// A LAPI active message with its data; the header is the header handler.
    pub const LAPI: u8 = 21;
    /// Any other message of LAPI; the header is its kind.
    pub const LAPI_CONTROL: u8 = 22;
    /// An offer of a large value for a Cheetah matching handler; the header is as that of `MATCHING`.
    pub const MATCHING_OFFER: u8 = 23;
    /// Says that an offered value was fetched; the header is its number.
    pub const MATCHING_FETCHED: u8 = 24;
    /// An atomic on a word of a segment of the target; the header is the segment's number.
    pub const SEGMENT_ATOMIC: u8 = 25;
    /// A message of GASPI; the header is its kind.
    pub const GASPI: u8 = 26;
    /// A message of the agreement on which ranks are gone.
    pub const AGREEMENT: u8 = 27;
}

/// The messages of one rank: their handlers, its open calls, and what handlers share.
pub struct Messages {
    engine: Rc<Engine>,
    handlers: Handlers,
    table: HandlerRegistry,
    /// Peers whose table was found equal to ours.
    verified: Verified,
    calls: Calls,
    landings: landing::Landings,
    /// Transfers to memory outside segments so far that went by message.
    transfers: Cell<u64>,
    /// Messages that came, of which data is still to be fetched: see [`Messages::unsettled`].
    unsettled: Rc<Cell<usize>>,
    broadcasts: Broadcasts,
    exchanges: Exchanges,
    /// Few, so a search from the front is the quickest.
    state: RefCell<Vec<(TypeId, Rc<dyn Any>)>>,
}

impl Messages {
    /// The messages of `engine`'s rank, to which the engine hands messages as long as both live.
    pub fn new(engine: Rc<Engine>) -> Rc<Messages> {
        let size = engine.size;
        let messages = Rc::new(Messages {
            engine,
            handlers: Handlers::default(),
            table: HandlerRegistry::default(),
            verified: Verified::idle(0..size),
            calls: Calls::default(),
            landings: landing::Landings::default(),
            transfers: Cell::new(0),
            unsettled: Rc::default(),
            broadcasts: Broadcasts::default(),
            exchanges: Exchanges::default(),
            state: RefCell::default(),
        });
        let weak: std::rc::Weak<dyn Dispatch> = Rc::<Messages>::downgrade(&messages);
        messages.engine.delivery.set_handlers(weak);
        messages.install_table();
        messages.engine.outbox.set_answers(
            1 << id::ANSWER
                | 1 << id::READ_DONE
                | 1 << id::REFUSED
                | 1 << id::PANICKED
                | 1 << id::REVOKED
                | 1 << id::CONFIRMED
                | 1 << id::BROADCAST_QUESTION
                | 1 << id::BROADCAST_ELSEWHERE
                | 1 << id::MATCHING_FETCHED,
        );
        closure::install(&messages);
        panic::install(&messages);
        messages.install_receipts();
        memory_service::install(&messages);
        segment_service::install(&messages);
        messages.install_broadcast();
        messages.install_exchange();
        messages.install_landings();
        messages
    }

    /// A context for code that runs outside a handler, as if `from` had called.
    fn context(&self, from: usize) -> Context<'_> {
        Context::new(self, from)
    }

    /// Attaches a value that handlers find by its type. Replaces an earlier one of the same type.
    pub fn set_state<T: 'static>(&self, value: T) {
        let mut state = self.state.borrow_mut();
        let old = state.iter().position(|(id, _)| *id == TypeId::of::<T>()).map(|at| state.swap_remove(at));
        state.push((TypeId::of::<T>(), Rc::new(value)));
        // Dropping it may come back here.
        drop(state);
        drop(old);
    }

    /// The attached value of this type.
    pub fn state<T: 'static>(&self) -> Option<Rc<T>> {
        let state = self.state.borrow();
        let (_, value) = state.iter().find(|(id, _)| *id == TypeId::of::<T>())?;
        Rc::clone(value).downcast().ok()
    }

    #[cold]
    fn fault(&self, from: usize, why: impl ToString) {
        self.engine.faults.keep(Error::BadMessage { from, why: why.to_string() });
    }

    /// Sends for the program, and polls until there is room. Inside a handler, which cannot poll, the message is kept instead; it is refused
    /// once `BELLWETHER_MESSAGE_MEMORY` bytes are kept.
    #[inline(always)]
    fn send(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        if self.engine.send_at_once(to, id, header, payload) {
            return Ok(());
        }
        self.send_or_wait(to, id, header, payload)
    }

    #[inline(never)]
    fn send_or_wait(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        if self.engine.interface.delivering() {
            return self.engine.outbox.bounded(|| self.engine.send_or_keep(to, id, header, payload));
        }
        if self.engine.send(to, id, header, payload)? == Sent::Done {
            return Ok(());
        }
        self.send_when_room(to, id, header, payload)
    }

    /// Sends if there is room; whether there was.
    ///
    /// # Errors
    /// As [`Engine::send`].
    #[inline]
    pub(crate) fn try_send(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<bool> {
        Ok(self.engine.send_at_once(to, id, header, payload)
            || self.engine.send(to, id, header, payload)? == Sent::Done)
    }

    #[cold]
    fn send_when_room(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        if self.engine.outbox.is_at_once() {
            return Err(Error::WouldBlock { operation: "sending a message", rank: to, place: CalledAt::default() });
        }
        let mut outcome = Ok(Sent::NoRoom);
        self.engine.wait_until("waiting for room to send a message", None, || {
            outcome = self.engine.send(to, id, header, payload);
            !matches!(outcome, Ok(Sent::NoRoom))
        })?;
        outcome.map(drop)
    }
}

/// The first `N` words of a message, and the rest.
#[inline]
fn words<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let (head, rest) = bytes.split_at_checked(8 * N)?;
    let word = |i: usize| u64::from_ne_bytes(head[8 * i..8 * i + 8].try_into().expect("eight bytes"));
    Some((std::array::from_fn(word), rest))
}
