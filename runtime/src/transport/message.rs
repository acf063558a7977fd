//! An active message under its handler's eyes, and the table of handlers.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

use super::MESSAGE_IDS;
use super::error::{Error, Result};

/// A function that runs for a message. It may call any communication function but not progress. An operation that finds no room
/// there belongs in the endpoint's pending queue.
pub type MessageHandler = Box<dyn Fn(&Message<'_>)>;

/// Whether a message, or another operation, was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Sent {
    /// In flight; the source may be reused.
    Done,
    /// Not accepted: no room now. Poll and try again.
    NoRoom,
}

/// How a wire lets a payload outlive its handler.
pub type Keep<'a> = &'a dyn Fn() -> Retained;

/// A message as its handler sees it. When the handler returns the payload is gone, unless it was retained.
pub struct Message<'a> {
    data: &'a [u8],
    keep: Option<Keep<'a>>,
    kept: Cell<bool>,
}

impl<'a> Message<'a> {
    /// A message with this payload, header first. For implementations.
    #[inline(always)]
    pub fn new(data: &'a [u8], keep: Option<Keep<'a>>) -> Message<'a> {
        Message { data, keep, kept: Cell::new(false) }
    }

    /// The payload, header first.
    #[inline(always)]
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The header word and the rest, of a short message.
    pub fn short(&self) -> Option<(u64, &'a [u8])> {
        let (header, rest) = self.data.split_first_chunk()?;
        Some((u64::from_ne_bytes(*header), rest))
    }

    /// Whether the payload may be retained where it is.
    pub fn retainable(&self) -> bool {
        self.keep.is_some() && !self.kept.get()
    }

    /// Keeps the payload where it is, without a copy, until the value is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] unless [`Message::retainable`].
    pub fn retain(&self) -> Result<Retained> {
        match self.keep {
            Some(keep) if !self.kept.replace(true) => Ok(keep()),
            _ => Err(Error::InvalidParam("this message cannot be retained (again); copy it")),
        }
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.data.len())
    }
}

/// A payload that outlives its handler. Dropping it, at any later time, gives the memory back.
pub struct Retained(Box<dyn Deref<Target = [u8]>>);

impl Retained {
    /// Wraps what holds the bytes. For implementations.
    pub fn new(holder: impl Deref<Target = [u8]> + 'static) -> Retained {
        Retained(Box::new(holder))
    }
}

impl Deref for Retained {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Retained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Retained({} bytes)", self.len())
    }
}

/// A handler that may go on running when it has been replaced.
type Shared = Rc<dyn Fn(&Message<'_>)>;

/// The handlers of one interface.
#[derive(Default)]
pub struct HandlerTable {
    handlers: RefCell<[Option<Shared>; MESSAGE_IDS]>,
    dropped: Cell<u64>,
}

impl HandlerTable {
    /// Sets, replaces or removes what runs for `id`.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] for an id that is not below [`MESSAGE_IDS`].
    pub fn set(&self, id: u8, handler: Option<MessageHandler>) -> Result<()> {
        let mut handlers = self.handlers.borrow_mut();
        let entry = handlers.get_mut(id as usize).ok_or(Error::InvalidParam("message ids are 0 to 31"))?;
        *entry = handler.map(Rc::from);
        Ok(())
    }

    /// Runs the handler of `id`. A message without one is counted and dropped.
    pub fn dispatch(&self, id: u8, message: &Message<'_>) {
        // A clone, so that a handler may set handlers, its own included.
        let handler = self.handlers.borrow().get(id as usize).cloned().flatten();
        match handler {
            Some(handler) => handler(message),
            None => self.no_handler(id),
        }
    }

    #[cold]
    fn no_handler(&self, id: u8) {
        if self.dropped.replace(self.dropped.get() + 1) == 0 {
            tracing::warn!(id, "no handler for this message id: messages with it are dropped");
        }
    }

    /// Messages dropped for want of a handler.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }
}

impl fmt::Debug for HandlerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandlerTable({} dropped)", self.dropped.get())
    }
}
