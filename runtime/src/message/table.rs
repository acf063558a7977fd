//! The handler table: numbers that mean the same function on every rank, because every rank registered the same
//! functions in the same order. Each rank shows its table to the others, and they look before they trust it. The first message
//! closes it, unless it is open (`open.rs`).

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use super::code::CodeOffset;
use super::open::OpenTable;
use super::panic::Caller;
use super::{Context, Messages, id, words};
use crate::error::{Error, Result};
use crate::hash;
use crate::memory::copy;
use crate::memory::layout::{HANDLER_ENTRY, MAX_HANDLERS};

/// The function that runs when a message for a registered handler arrives. It gets the context to answer in, and the payload.
pub type HandlerFn = Rc<dyn Fn(&Context<'_>, &[u8])>;

/// A registered handler's number, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId(pub(crate) u32);

impl HandlerId {
    /// The number itself, counted from 0 in the order of registration.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The handler with this number. A number that nobody registered is an error at the target, not a wild jump.
    pub fn from_number(number: u32) -> HandlerId {
        HandlerId(number)
    }
}

/// Grows until the rank seals it; from then on messages read it without a lock or a count.
#[derive(Default)]
pub(super) struct HandlerRegistry {
    growing: RefCell<Vec<HandlerFn>>,
    sealed: OnceCell<Box<[HandlerFn]>>,
    /// Of the sealed table: see [`id::HANDLER_AND_DIGEST`].
    pub(super) digest: Cell<u32>,
    pub(super) open: OpenTable,
}

const NAME_MAX: usize = HANDLER_ENTRY - 16;
pub(super) const SAME_ORDER: &str = "register the same handlers in the same order on every rank";

impl Messages {
    pub(super) fn install_table(&self) {
        self.set_handler(id::HANDLER_AND_DIGEST, |messages, message| {
            messages.handle_checked(message.from, message.data());
        });
    }

    /// Runs the handler whose number comes first in `data`.
    #[inline(always)]
    pub(super) fn handle(&self, from: usize, data: &[u8]) {
        // Nothing here is built that only an error needs: its room on the stack would cost every message.
        if let Some(([number], payload)) = words(data)
            && self.verified.get(from)
            && let Some(handlers) = self.table.sealed.get()
            && let Some(handler) = handlers.get(number as usize)
        {
            return self.run(from, number, handler, payload);
        }
        self.handle_first(from, data);
    }

    #[inline(always)]
    fn run(&self, from: usize, number: u64, handler: &HandlerFn, payload: &[u8]) {
        let name = || self.entry(self.engine.rank, number as usize).name;
        self.run_for(from, Caller::Nothing, name, || handler(&self.context(from), payload));
    }

    /// As [`Messages::handle`], for the first message of a sender, and for messages that no sender of ours writes.
    #[cold]
    #[inline(never)]
    fn handle_first(&self, from: usize, data: &[u8]) {
        let Some(([number], payload)) = words(data) else {
            return self.fault(from, "a message without a handler's number");
        };
        if let Err(error) = self.ready_for(from) {
            return self.engine.faults.keep(error);
        }
        self.run_known(from, number, payload);
    }

    /// Runs the handler of a message whose sender's table this rank may not see yet: the digest says whether it equals this rank's.
    #[cold]
    #[inline(never)]
    fn handle_checked(&self, from: usize, data: &[u8]) {
        let Some(([word], payload)) = words(data) else {
            return self.fault(from, "a message without a handler's number");
        };
        match self.check_digest(from, word) {
            Ok(number) => self.run_known(from, number, payload),
            Err(error) => self.engine.faults.keep(error),
        }
    }

    /// The handler's number in a word that has a digest too, if the sender's table equals this rank's.
    pub(super) fn check_digest(&self, from: usize, word: u64) -> Result<u64> {
        let (number, theirs) = (word & u64::from(u32::MAX), (word >> 32) as u32);
        // With the names of the handlers that differ, if they are known here.
        self.ready_for(from)?;
        let ours = self.table.digest.get();
        if theirs != ours {
            return Err(Error::RanksDiffer {
                what: "the handler table",
                rank: from,
                reference: self.engine.rank,
                theirs: format!("a table with digest {theirs:#010x}"),
                ours: format!("{} handlers with digest {ours:#010x}", self.handlers()),
                advice: SAME_ORDER,
            });
        }
        self.verified.set(from, true);
        Ok(number)
    }

    /// Runs the handler of this number. The table is sealed.
    fn run_known(&self, from: usize, number: u64, payload: &[u8]) {
        if let Err(error) = self.run_numbered(from, Caller::Nothing, number, payload) {
            self.engine.faults.keep(error);
        }
    }

    /// As [`Messages::run_known`]; `caller` hears of a panic.
    ///
    /// # Errors
    /// [`Error::UnknownHandler`].
    pub(super) fn run_numbered(&self, from: usize, caller: Caller, number: u64, payload: &[u8]) -> Result<()> {
        let handlers = self.table.sealed.get().expect("ready_for seals the table");
        let unknown = || Error::UnknownHandler { from, rank: self.engine.rank, id: number, known: handlers.len() };
        let handler = handlers.get(number as usize).ok_or_else(unknown)?;
        let name = || self.entry(self.engine.rank, number as usize).name;
        self.run_for(from, caller, name, || handler(&self.context(from), payload));
        Ok(())
    }

    /// Handlers registered here.
    pub fn handlers(&self) -> usize {
        if self.table.open.is_open.get() {
            return self.table.open.functions.borrow().len();
        }
        self.table.sealed.get().map_or_else(|| self.table.growing.borrow().len(), |handlers| handlers.len())
    }

    /// Registers a handler under the next number. `code` is what makes it the same handler on another rank.
    ///
    /// # Errors
    /// [`Error::RegistrationClosed`] once this rank has sent or taken its first message, if the table is not open;
    /// [`Error::InvalidArgument`] if the table is full.
    pub fn register(&self, name: &str, code: usize, handler: HandlerFn) -> Result<HandlerId> {
        let (open, sealed) = (self.table.open.is_open.get(), self.table.sealed.get().is_some());
        if sealed && !open {
            return Err(Error::RegistrationClosed { name: name.into() });
        }
        let number = self.handlers();
        if number >= MAX_HANDLERS && !open {
            return Err(Error::InvalidArgument {
                operation: "registering a handler",
                why: format!("the table holds {MAX_HANDLERS} handlers, and `{name}` is one more"),
            });
        }
        let place = CodeOffset::of(code).map_or(0, CodeOffset::to_bits);
        let digest = hash::mix(hash::of(name.as_bytes()), place);
        if open {
            self.enter(name, digest, Rc::clone(&handler))?;
        }
        if !sealed && number < MAX_HANDLERS {
            self.show(number, name, digest);
            self.table.growing.borrow_mut().push(handler);
        }
        Ok(HandlerId(number as u32))
    }

    /// Writes an entry of the table that others look at.
    fn show(&self, number: usize, name: &str, digest: u64) {
        let mut entry = [0u8; HANDLER_ENTRY];
        let shown = name.floor_char_boundary(NAME_MAX);
        entry[..8].copy_from_slice(&digest.to_ne_bytes());
        entry[8..16].copy_from_slice(&(shown as u64).to_ne_bytes());
        entry[16..16 + shown].copy_from_slice(&name.as_bytes()[..shown]);
        // SAFETY: below MAX_HANDLERS, inside our own table; nobody reads it before it is sealed.
        unsafe { copy::copy(self.entry_address(self.engine.rank, number), entry.as_ptr(), HANDLER_ENTRY) };
    }

    fn entry_address(&self, rank: usize, number: usize) -> *mut u8 {
        // SAFETY: inside the table of a rank, which has room for MAX_HANDLERS.
        unsafe { self.engine.node.handlers(&self.engine.layout, rank).add(number * HANDLER_ENTRY) }
    }

    /// Closes registration, unless the table is open, and shows the table to all as it is.
    pub fn seal(&self) {
        self.table.sealed.get_or_init(|| {
            let handlers: Box<[_]> = self.table.growing.take().into();
            let digests = (0..handlers.len()).map(|number| self.entry(self.engine.rank, number).digest);
            let digest = digests.fold(0, hash::mix);
            self.table.digest.set((digest ^ digest >> 32) as u32);
            // Count plus one. Release pairs with the Acquire load in `verify`.
            let sealed = &self.engine.node.status(self.engine.rank).sealed;
            sealed.store(handlers.len() as u64 + 1, Ordering::Release);
            handlers
        });
    }

    /// Compares the table of `rank` with ours, if both are closed, or open ones as far as both went when they were shown.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] with the first handler that differs.
    pub fn verify(&self, rank: usize) -> Result<()> {
        if self.table.sealed.get().is_none() {
            return Ok(());
        }
        // Pairs with the Release store in `seal`.
        let sealed = self.engine.node.status(rank).sealed.load(Ordering::Acquire);
        if sealed == 0 {
            return Ok(());
        }
        let own = self.table.sealed.get().map_or(0, |handlers| handlers.len());
        let (theirs, ours) = (sealed as usize - 1, own);
        // Open tables may have had different lengths when they were shown: compare the common part.
        let compared = if self.table.open.is_open.get() { theirs.min(ours) } else { theirs.max(ours) };
        for number in 0..compared.min(MAX_HANDLERS) {
            let a = (number < theirs).then(|| self.entry(rank, number));
            let b = (number < ours).then(|| self.entry(self.engine.rank, number));
            if a != b {
                let show = |entry: Option<Entry>| entry.map_or("no handler".into(), |e| format!("`{}`", e.name));
                return Err(Error::RanksDiffer {
                    what: "the handler table",
                    rank,
                    reference: self.engine.rank,
                    theirs: format!("{} as handler {number} of {theirs}", show(a)),
                    ours: format!("{} of {ours}", show(b)),
                    advice: SAME_ORDER,
                });
            }
        }
        self.verified.set(rank, true);
        Ok(())
    }

    fn entry(&self, rank: usize, number: usize) -> Entry {
        let mut bytes = [0u8; HANDLER_ENTRY];
        // SAFETY: inside the committed control area of `rank`.
        unsafe { copy::copy(bytes.as_mut_ptr(), self.entry_address(rank, number), HANDLER_ENTRY) };
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let len = (word(8) as usize).min(NAME_MAX);
        Entry { digest: word(0), name: String::from_utf8_lossy(&bytes[16..16 + len]).into_owned() }
    }

    /// Sends `payload` to handler `handler` of rank `to`. The payload may be changed on return.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; [`Error::PeerLost`]; [`Error::OutOfMemory`] if the message can never fit;
    /// [`Error::RanksDiffer`] if the target's table is another one.
    #[inline]
    pub fn send_to_handler(&self, to: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        self.engine.check_rank(to, "sending a message")?;
        if !self.verified.get(to) {
            let (id, header) = self.first_to(to, handler)?;
            return self.send_or_wait(to, id, header, payload);
        }
        self.send(to, id::HANDLER, handler.0.into(), payload)
    }

    /// As [`Messages::send_to_handler`], but never waits for room: what finds none is kept and sent later.
    pub fn post_to_handler(&self, to: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        self.engine.check_rank(to, "sending a message")?;
        let (id, header) = match self.verified.get(to) {
            true => (id::HANDLER, handler.0.into()),
            false => self.first_to(to, handler)?,
        };
        self.engine.send_or_keep(to, id, header, payload)
    }

    /// Id and header of a message to a rank whose table was not found equal to ours so far. A rank of this host sees our table; one of
    /// another host learns of it from its leader, which may be later than the message.
    #[cold]
    fn first_to(&self, to: usize, handler: HandlerId) -> Result<(u8, u64)> {
        self.get_ready_for(to)?;
        if self.verified.get(to) || self.engine.job.is_here(to) || self.table.open.is_open.get() {
            return Ok((id::HANDLER, handler.0.into()));
        }
        Ok((id::HANDLER_AND_DIGEST, self.header_with_digest(to, handler)?))
    }

    /// A handler's number, and this rank's digest above it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the table is open; as [`Messages::send_to_handler`].
    pub(super) fn header_with_digest(&self, to: usize, handler: HandlerId) -> Result<u64> {
        if self.table.open.is_open.get() {
            let why = "functions of an open table send no receipt".into();
            return Err(Error::InvalidArgument { operation: "sending a message", why });
        }
        self.get_ready_for(to)?;
        Ok(u64::from(self.table.digest.get()) << 32 | u64::from(handler.0))
    }

    #[inline(always)]
    pub(super) fn ready_for(&self, peer: usize) -> Result<()> {
        if self.verified.get(peer) { Ok(()) } else { self.get_ready_for(peer) }
    }

    #[cold]
    fn get_ready_for(&self, peer: usize) -> Result<()> {
        self.seal();
        self.verify(peer)
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    digest: u64,
    name: String,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Threads;

    /// Rank 0 sends as it does to a rank of another host, with a digest; `change` may spoil it. Gives the messages that rank 1 received, and its
    /// error.
    fn by_digest(change: fn(u64) -> u64) -> (Vec<u8>, Option<Error>) {
        let outcomes = Threads::new(2).deadline(Duration::from_secs(20)).build(|mut builder| {
            let heard = Rc::new(RefCell::new(Vec::new()));
            let sink = Rc::clone(&heard);
            let handler = builder.handler("hear", move |_, bytes| sink.borrow_mut().extend_from_slice(bytes));
            let world = builder.start().expect("starts");
            let messages = world.messages();
            if world.rank() == 0 {
                let header = u64::from(messages.table.digest.get()) << 32 | u64::from(handler.number());
                messages.send(1, id::HANDLER_AND_DIGEST, change(header), b"digest").expect("sends");
                world.finish().expect("finishes");
                return (Vec::new(), None);
            }
            let error = world.wait_until(|| !heard.borrow().is_empty()).err();
            assert!(error.is_some() || messages.verified.get(0), "the next message needs no look at the table");
            world.finish().expect("finishes");
            (heard.take(), error)
        });
        outcomes.expect("runs").pop().expect("two ranks")
    }

    #[test]
    fn a_digest_of_the_same_table_lets_the_handler_run() {
        let (heard, error) = by_digest(|header| header);
        assert!(heard == b"digest" && error.is_none(), "{heard:?} {error:?}");
    }

    #[test]
    fn a_digest_of_another_table_is_an_error() {
        let (heard, error) = by_digest(|header| header ^ 1 << 40);
        assert!(heard.is_empty() && matches!(error, Some(Error::RanksDiffer { rank: 0, .. })), "{heard:?} {error:?}");
    }

    #[test]
    fn a_number_that_nobody_registered_is_an_error() {
        let (heard, error) = by_digest(|header| header + 1);
        assert!(heard.is_empty() && matches!(error, Some(Error::UnknownHandler { id: 1, .. })), "{heard:?} {error:?}");
    }
}
