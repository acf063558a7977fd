//! Hands messages to the layer that has their handlers, whichever route they came by.

use std::cell::{Cell, OnceCell};
use std::rc::{Rc, Weak};

use smallvec::SmallVec;

use super::Engine;
use crate::transport::{Message, Retained};

/// The owner of the handlers of all messages.
pub(crate) trait Dispatch {
    /// Runs the handler of `id` for a message of rank `from`. `message` is header and payload.
    fn dispatch(&self, from: usize, id: u8, message: &Message<'_>);

    /// Gives up the data that is kept for ranks that are gone.
    fn forget_lost(&self);
}

/// A message that came over a network.
pub(crate) struct Arrival {
    pub(super) from: usize,
    pub(super) id: u8,
    payload: Payload,
    /// Room that it takes until it is handled.
    pub(super) room: Option<Taken>,
}

/// Bytes of room that a message takes until it is handled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Taken {
    /// In its sender's window: a message returns it.
    Window(usize),
    /// In the window of its sender's contexts: they read how much was handled.
    OfContext(usize),
}

enum Payload {
    /// Header and payload. A small call and its answer fit without an allocation.
    Copied(SmallVec<[u8; 128]>),
    /// Where the network has them, behind the sender's rank.
    Kept(Retained),
}

impl Arrival {
    pub(super) fn copied(from: usize, id: u8, bytes: &[u8], room: Option<Taken>) -> Arrival {
        Arrival { from, id, payload: Payload::Copied(SmallVec::from_slice(bytes)), room }
    }

    pub(super) fn kept(from: usize, id: u8, message: Retained, room: Option<Taken>) -> Arrival {
        Arrival { from, id, payload: Payload::Kept(message), room }
    }

    /// Header and payload.
    pub(super) fn data(&self) -> &[u8] {
        match &self.payload {
            Payload::Copied(bytes) => bytes,
            Payload::Kept(message) => &message[8..],
        }
    }
}

/// The [`Dispatch`] that runs the handlers of messages, and how many messages this rank has sent and delivered.
#[derive(Default)]
pub(crate) struct Delivery {
    handlers: OnceCell<Weak<dyn Dispatch>>,
    sent: Cell<u64>,
    delivered: Cell<u64>,
}

impl Delivery {
    /// Sets what takes messages from now on. Without it, or when it is gone, messages are dropped.
    ///
    /// # Panics
    /// If it was set before.
    pub(crate) fn set_handlers(&self, to: Weak<dyn Dispatch>) {
        assert!(self.handlers.set(to).is_ok(), "a rank has one table of handlers");
    }

    pub(super) fn handlers(&self) -> Option<Rc<dyn Dispatch>> {
        self.handlers.get()?.upgrade()
    }

    /// How many messages this rank's own stream has sent, and how many were delivered here.
    fn counts(&self) -> [u64; 2] {
        [self.sent.get(), self.delivered.get()]
    }

    /// Counts messages that this rank's own stream has sent.
    #[inline(always)]
    pub(super) fn count_sent(&self, count: usize) {
        self.sent.set(self.sent.get() + count as u64);
    }

    /// Counts messages that were delivered here.
    #[inline(always)]
    pub(super) fn count_delivered(&self, count: usize) {
        self.delivered.set(self.delivered.get() + count as u64);
    }
}

impl Engine {
    /// Messages this rank has sent, those of its contexts included, and delivered.
    pub(crate) fn traffic(&self) -> [u64; 2] {
        let [sent, delivered] = self.delivery.counts();
        [sent + self.contexts.sent(), delivered]
    }

    /// Runs the handler of a message that did not come through a lane. Must not be called inside a handler.
    pub(crate) fn deliver(&self, from: usize, id: u8, message: &Message<'_>) {
        let _running = self.interface.begin_handler();
        if let Some(handlers) = self.delivery.handlers() {
            handlers.dispatch(from, id, message);
        }
    }
}
