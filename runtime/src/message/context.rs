//! What a handler may do.

use std::rc::Rc;

use serde::{Serialize, de::DeserializeOwned};

use super::{HandlerId, Messages};
use crate::error::Result;

/// The environment of a handler: the calling rank, and the means to answer. A handler can send, but neither wait nor enter a collective.
pub struct Context<'a> {
    messages: &'a Messages,
    from: usize,
}

impl<'a> Context<'a> {
    pub(super) fn new(messages: &'a Messages, from: usize) -> Context<'a> {
        Context { messages, from }
    }

    pub(super) fn messages(&self) -> &'a Messages {
        self.messages
    }

    /// The rank that sent the message.
    pub fn from(&self) -> usize {
        self.from
    }

    /// The rank at which the handler runs.
    pub fn rank(&self) -> usize {
        self.messages.engine.rank
    }

    /// Ranks in the world.
    pub fn size(&self) -> usize {
        self.messages.engine.size
    }

    /// The value attached to the world with `World::set_state`, if there is one of this type.
    pub fn state<T: 'static>(&self) -> Option<Rc<T>> {
        self.messages.state()
    }

    /// Sends `payload` to a registered handler. Never blocks: without room the message is kept and sent later. Results of calls
    /// are always kept.
    ///
    /// # Errors
    /// As `World::send`; [`Error::WouldBlock`](crate::Error::WouldBlock) if `BELLWETHER_MESSAGE_MEMORY` bytes are kept already: nothing
    /// was sent, and room comes only after the handler has returned.
    pub fn send(&self, to: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        self.messages.engine.outbox.bounded(|| self.messages.post_to_handler(to, handler, payload))
    }

    /// Runs a closure that captures nothing at rank `to`. Never blocks, as [`Context::send`].
    ///
    /// # Errors
    /// As `World::invoke`; as [`Context::send`].
    pub fn invoke<A, F>(&self, to: usize, arguments: A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        self.messages.engine.outbox.bounded(|| self.messages.invoke(to, &arguments, function))
    }

    /// As [`Context::invoke`], but a message without room is always kept: for protocols that bound themselves.
    ///
    /// # Errors
    /// As `World::invoke`.
    #[doc(hidden)]
    pub fn invoke_kept<A, F>(&self, to: usize, arguments: A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        self.messages.invoke(to, &arguments, function)
    }
}
