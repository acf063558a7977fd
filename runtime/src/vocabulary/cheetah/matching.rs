//! Cheetah's matching handlers: a send and a request meet by handler object, context and tag, whichever comes first.

mod large;
mod meeting;
mod request;
mod value;

use std::rc::Rc;

use serde::de::DeserializeOwned;

pub(super) use self::meeting::{Matching, install};
pub use self::request::RawRequest;
pub use self::value::Value;

use self::large::{Large, Owned};
use self::meeting::{Key, heading};
use self::request::Request;
use super::{Controller, Inner};
use crate::error::{Error, Placed, Result};
use crate::message::id;
use crate::world::World;

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
    object: u32,
}

impl MatchingHandler {
    /// Makes the next object. Collective: every context makes the same objects in the same order.
    ///
    /// # Errors
    /// As [`Controller::barrier`].
    #[track_caller]
    pub fn new(controller: &Controller) -> Result<MatchingHandler> {
        let inner = controller.inner("MatchingHandler")?;
        inner.check_may_wait("MatchingHandler")?;
        let object = inner.matching.next_object();
        controller.barrier()?;
        Ok(MatchingHandler { controller: controller.clone(), object })
    }

    /// Sends a value to `to` under `tag`. It is packed before this returns, and may be as large as memory allows. Values for one
    /// object, context and tag arrive in order.
    ///
    /// Never waits, whatever that context does: what finds no room on the way is kept without limit, and sent by later polls. Of a
    /// value above 8 KiB only an offer is sent; its bytes are kept until that context has polled and fetched them.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::PeerLost`]; [`Error::InvalidArgument`] if it cannot be packed; as [`Controller::poll`].
    #[track_caller]
    pub fn send<T: serde::Serialize + DeserializeOwned>(&self, to: usize, tag: i32, value: &T) -> Result<()> {
        self.send_with::<Postcard, T>(to, tag, value)
    }

    /// As [`MatchingHandler::send`], packed as `S` says.
    ///
    /// # Errors
    /// As [`MatchingHandler::send`].
    #[track_caller]
    pub fn send_with<S: Serialize<T>, T>(&self, to: usize, tag: i32, value: &T) -> Result<()> {
        let mut bytes = Vec::with_capacity(S::size(value));
        S::pack(value, &mut bytes).map_err(|why| Error::InvalidArgument { operation: "send", why })?;
        let (world, inner) = self.checked(to, "send").placed()?;
        if Large::is_large(&world, bytes.len()) {
            inner.offer(&world, to, heading(self.object, tag), Owned::Vec(bytes))?;
        } else {
            world.engine().send_in_order(to, id::MATCHING, heading(self.object, tag), &bytes).placed()?;
        }
        Self::after_send(&world, inner).placed()
    }

    /// As [`MatchingHandler::send`], of bytes that the program has packed. They are copied.
    ///
    /// # Errors
    /// As [`MatchingHandler::send`], and [`Error::OutOfMemory`] if there is no memory for the copy.
    #[inline]
    #[track_caller]
    pub fn send_bytes(&self, to: usize, tag: i32, bytes: &[u8]) -> Result<()> {
        let (world, inner) = self.checked(to, "send").placed()?;
        if Large::is_large(&world, bytes.len()) {
            let mut value = Value::with_len(bytes.len())?;
            // SAFETY: new room for as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.start(), bytes.len()) };
            inner.offer(&world, to, heading(self.object, tag), Owned::Value(value))?;
        } else {
            world.engine().send_in_order(to, id::MATCHING, heading(self.object, tag), bytes).placed()?;
        }
        Self::after_send(&world, inner).placed()
    }

    /// As [`MatchingHandler::send_bytes`]. The value's bytes are sent; if it is large, from where they are.
    ///
    /// # Safety
    /// All bytes of the value were written.
    ///
    /// # Errors
    /// As [`MatchingHandler::send`].
    #[track_caller]
    pub unsafe fn send_value(&self, to: usize, tag: i32, value: Value) -> Result<()> {
        let (world, inner) = self.checked(to, "send").placed()?;
        if Large::is_large(&world, value.len()) {
            inner.offer(&world, to, heading(self.object, tag), Owned::Value(value))?;
        } else {
            // SAFETY: written, by the caller.
            let bytes = unsafe { value.bytes() };
            world.engine().send_in_order(to, id::MATCHING, heading(self.object, tag), bytes).placed()?;
        }
        Self::after_send(&world, inner).placed()
    }

    /// The world, which has such a context, and the queues.
    #[inline]
    fn checked(&self, context: usize, operation: &'static str) -> Result<(Rc<World>, &Rc<Inner>)> {
        let world = self.controller.world(operation)?;
        world.engine().check_rank(context, operation)?;
        Ok((world, self.controller.inner(operation)?))
    }

    /// Makes progress, and runs no function.
    #[inline]
    fn after_send(world: &World, inner: &Inner) -> Result<()> {
        let _held = inner.matching.hold();
        world.engine().poll_alive("polling").map(drop)
    }

    /// Runs `handler` with the next value that `from` sends under `tag`: now if the value is here and no function runs, else
    /// later. The handler captures the local data that it needs.
    ///
    /// # Errors
    /// [`Error::BadMessage`] if the handler would run now and the value is not a `T`; as [`Controller::poll`], which tells of a value that
    /// comes later and is not a `T`.
    #[track_caller]
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
    #[track_caller]
    pub fn request_with<S, T, F>(&self, from: usize, tag: i32, handler: F) -> Result<()>
    where
        S: Serialize<T> + 'static,
        T: 'static,
        F: FnOnce(&mut T) + 'static,
    {
        let request = Request::Closure(Box::new(move |bytes| {
            let mut value = S::unpack(bytes)?;
            handler(&mut value);
            S::cleanup(value);
            Ok(())
        }));
        self.ask(from, tag, request)
    }

    /// As [`MatchingHandler::request`], for a function of another language, which gets the value's bytes.
    ///
    /// # Errors
    /// As [`MatchingHandler::request`].
    #[track_caller]
    pub fn request_raw(&self, from: usize, tag: i32, request: RawRequest) -> Result<()> {
        self.ask(from, tag, Request::Raw(request))
    }

    #[inline]
    #[track_caller]
    fn ask(&self, from: usize, tag: i32, request: Request) -> Result<()> {
        let (world, inner) = self.checked(from, "request").placed()?;
        world.engine().poll_alive("polling").placed()?;
        inner.request(Key::new(self.object, from, tag), request)
    }

    /// Ends the object in this context: requests that wait are dropped, and so are messages, also those that come later. Functions whose
    /// value has come still run. The other contexts may go on with it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] after [`Controller::finalize`].
    #[track_caller]
    pub fn close(self) -> Result<()> {
        self.controller.inner("MatchingHandler")?.matching.close(self.object);
        Ok(())
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
        let ours = |key: &Key| (key.object(), key.from()) == (self.object, context);
        self.controller.inner("count").map_or(0, |inner| count(&inner.matching, &ours))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
