//! Cheetah's matching handlers: a send and a request meet by handler object, context and tag, whichever comes first.

mod meeting;

use serde::de::DeserializeOwned;

pub(super) use self::meeting::{Matching, install};

use self::meeting::{Key, Request, TAG};
use super::Controller;
use crate::error::{Error, Result};
use crate::message::id;

/// How a value of type `T` travels, chosen by a tag type, so that one type may have several ways.
pub trait Serialize<T> {
    /// Bytes that [`Serialize::pack`] will write, as far as that is known before.
    fn size(value: &T) -> usize;
    /// Appends the value to `bytes`.
    ///
    /// # Errors
    /// Why it cannot be packed.
    fn pack(value: &T, bytes: &mut Vec<u8>) -> std::result::Result<(), String>;
    /// Makes the value again.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    fn unpack(bytes: &[u8]) -> std::result::Result<T, String>;
    /// Called with the value when the request's handler is done with it.
    fn cleanup(value: T) {
        drop(value);
    }
}

/// The default way: serde with postcard.
#[derive(Debug, Clone, Copy)]
pub struct Postcard;

impl<T: serde::Serialize + DeserializeOwned> Serialize<T> for Postcard {
    fn size(value: &T) -> usize {
        postcard::experimental::serialized_size(value).unwrap_or(0)
    }

    fn pack(value: &T, bytes: &mut Vec<u8>) -> std::result::Result<(), String> {
        *bytes = postcard::to_extend(value, std::mem::take(bytes)).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn unpack(bytes: &[u8]) -> std::result::Result<T, String> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => {
                let name = std::any::type_name::<T>();
                Err(format!("{name} requested, but another type was sent: {} bytes are left over", rest.len()))
            }
            Err(error) => Err(format!("{} requested: {error}", std::any::type_name::<T>())),
        }
    }
}

/// A meeting point: messages sent through one object meet only requests made through the same object.
///
/// Objects are the same on all contexts by the order in which they are made.
///
/// The functions of requests run inside [`MatchingHandler::request`], [`Controller::poll`], [`Controller::wait`] and
/// [`Controller::barrier`], one after the other and never inside another function: a function whose value is here when another
/// function requests it runs when that one has returned. They may send and request, but not wait.
#[derive(Debug, Clone)]
pub struct MatchingHandler {
    controller: Controller,
    object: u64,
}

impl MatchingHandler {
    /// Makes the next object. Collective: every context makes the same objects in the same order.
    ///
    /// # Errors
    /// As [`Controller::barrier`].
    pub fn new(controller: &Controller) -> Result<MatchingHandler> {
        let inner = controller.inner("MatchingHandler")?;
        inner.check_may_wait("MatchingHandler")?;
        let object = inner.matching.next_object();
        controller.barrier()?;
        Ok(MatchingHandler { controller: controller.clone(), object })
    }

    /// Sends a value to `to` under `tag`. Never waits. Values for one object, context and tag arrive in order.
    ///
    /// # Errors
    /// As [`Controller::ainvoke`].
    pub fn send<T: serde::Serialize + DeserializeOwned>(&self, to: usize, tag: i32, value: &T) -> Result<()> {
        self.send_with::<Postcard, T>(to, tag, value)
    }

    /// As [`MatchingHandler::send`], packed as `S` says.
    ///
    /// # Errors
    /// As [`Controller::ainvoke`].
    pub fn send_with<S: Serialize<T>, T>(&self, to: usize, tag: i32, value: &T) -> Result<()> {
        let mut bytes = Vec::with_capacity(TAG + S::size(value));
        bytes.extend_from_slice(&i64::from(tag).to_ne_bytes());
        S::pack(value, &mut bytes).map_err(|why| Error::InvalidArgument { operation: "send", why })?;
        let world = self.controller.world("send")?;
        world.engine().check_rank(to, "send")?;
        world.engine().send_in_order(to, id::MATCHING, self.object, &bytes)?;
        let _held = self.controller.inner("send")?.matching.hold();
        world.poll().map(drop)
    }

    /// Runs `handler` with the next value that `from` sends under `tag`: now if it is here and no function runs, else later. What
    /// the handler needs locally it captures.
    ///
    /// # Errors
    /// [`Error::BadMessage`] if the handler would run now and the value is not a `T`; as [`Controller::poll`], which tells of a value that
    /// comes later and is not a `T`.
    pub fn request<T, F>(&self, from: usize, tag: i32, handler: F) -> Result<()>
    where
        T: serde::Serialize + DeserializeOwned + 'static,
        F: FnOnce(&mut T) + 'static,
    {
        self.request_with::<Postcard, T, F>(from, tag, handler)
    }

    /// As [`MatchingHandler::request`], unpacked as `S` says.
    ///
    /// # Errors
    /// As [`MatchingHandler::request`].
    pub fn request_with<S, T, F>(&self, from: usize, tag: i32, handler: F) -> Result<()>
    where
        S: Serialize<T> + 'static,
        T: 'static,
        F: FnOnce(&mut T) + 'static,
    {
        let world = self.controller.world("request")?;
        world.engine().check_rank(from, "request")?;
        world.poll()?;
        let request: Request = Box::new(move |bytes| {
            let mut value = S::unpack(bytes)?;
            handler(&mut value);
            S::cleanup(value);
            Ok(())
        });
        self.controller.inner("request")?.request((self.object, from, tag), request)
    }

    /// Requests to `context` that wait for their message, over all tags.
    pub fn actions(&self, context: usize) -> usize {
        self.count(context, Matching::requests)
    }

    /// Messages from `context` that wait for their request, over all tags.
    pub fn messages(&self, context: usize) -> usize {
        self.count(context, Matching::messages)
    }

    fn count(&self, context: usize, count: impl Fn(&Matching, &dyn Fn(&Key) -> bool) -> usize) -> usize {
        let ours = |key: &Key| (key.0, key.1) == (self.object, context);
        self.controller.inner("count").map_or(0, |inner| count(&inner.matching, &ours))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
