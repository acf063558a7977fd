//! What a handler may do.

use std::rc::Rc;

use serde::{Serialize, de::DeserializeOwned};

use super::{HandlerId, Messages};
use crate::error::Result;

/// Where a handler runs: who called, and the means to answer. It can send, but neither wait nor enter a collective.
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

    /// Sends `payload` to a registered handler. Never blocks: without room the message is kept and sent later.
    ///
    /// # Errors
    /// As `World::send`.
    pub fn send(&self, to: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        self.messages.post_to_handler(to, handler, payload)
    }

    /// Runs a closure that captures nothing at rank `to`. Never blocks.
    ///
    /// # Errors
    /// As `World::invoke`.
    pub fn invoke<A, F>(&self, to: usize, arguments: A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        self.messages.invoke(to, arguments, function)
    }
}
