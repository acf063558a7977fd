//! The handlers of all kinds of message, by id: one table, whichever route a message came by.

use std::cell::RefCell;

use super::{Messages, id};
use crate::engine::Dispatch;
use crate::transport::{MESSAGE_IDS, Message};

/// A message as its handler sees it. The payload is gone after the handler.
pub(crate) struct Delivery<'a> {
    /// The sending rank.
    pub from: usize,
    message: &'a Message<'a>,
}

impl<'a> Delivery<'a> {
    /// The payload, header first.
    #[inline(always)]
    pub fn data(&self) -> &'a [u8] {
        self.message.data()
    }
}

/// The function that runs for a message of one id.
type Handler = Box<dyn Fn(&Messages, &Delivery<'_>)>;

/// Handlers by message id.
#[derive(Default)]
pub(super) struct Handlers([RefCell<Option<Handler>>; MESSAGE_IDS]);

impl Messages {
    /// Sets what runs for messages with this id. Outside handlers of that id.
    pub(crate) fn set_handler(&self, id: u8, handler: impl Fn(&Messages, &Delivery<'_>) + 'static) {
        self.handlers.0[id as usize].replace(Some(Box::new(handler)));
    }
}

impl Dispatch for Messages {
    #[inline]
    fn dispatch(&self, from: usize, id: u8, message: &Message<'_>) {
        // The kind of message that must be fast needs no second indirect call.
        if id == id::HANDLER {
            return self.handle(from, message.data());
        }
        match self.handlers.0.get(id as usize).map(RefCell::borrow).as_deref() {
            Some(Some(handler)) => handler(self, &Delivery { from, message }),
            _ => self.fault(from, format!("no handler for message id {id}")),
        }
    }

    #[cold]
    fn forget_lost(&self) {
        self.forget_lost_landings();
    }
}
