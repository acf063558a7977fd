//! Cheetah's matching handlers: a send and a request meet by handler object, context and tag, whichever comes first.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use serde::de::DeserializeOwned;

use super::{Controller, Inner};
use crate::error::{Error, Result};
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

/// Handler object, context, tag.
type Key = (u64, usize, i32);
type Request = Box<dyn FnOnce(&[u8]) -> std::result::Result<(), String>>;

/// What waits for its counterpart.
#[derive(Default)]
pub(super) struct Matching {
    objects: u64,
    messages: HashMap<Key, VecDeque<Box<[u8]>>>,
    requests: HashMap<Key, VecDeque<Request>>,
}

/// Bytes of the tag, before the value.
const TAG: usize = 8;

/// Sets what runs when a value arrives.
pub(super) fn install(world: &Rc<World>, inner: &Rc<Inner>) {
    let weak = Rc::downgrade(inner);
    world.messages().set_handler(id::MATCHING, move |_, message| {
        let Some(inner) = weak.upgrade() else { return };
        let from = message.from;
        let outcome = match message.data().split_at_checked(8 + TAG) {
            Some((head, value)) => {
                let word = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().expect("eight bytes"));
                arrive(&inner, (word(0), from, word(8) as i32), value)
            }
            None => Err("a value without a tag".into()),
        };
        if let (Err(why), Some(world)) = (outcome, &*inner.world.borrow()) {
            world.engine().set_fault(Error::BadMessage { from, why });
        }
    });
}

/// A value meets its request, or waits for it.
fn arrive(inner: &Inner, key: Key, value: &[u8]) -> std::result::Result<(), String> {
    let request = {
        let mut matching = inner.matching.borrow_mut();
        let request = take(&mut matching.requests, key);
        if request.is_none() {
            matching.messages.entry(key).or_default().push_back(value.into());
        }
        request
    };
    request.map_or(Ok(()), |request| request(value))
}

/// A meeting point: messages sent through one object meet only requests made through the same object.
///
/// Objects are the same on all contexts by the order in which they are made.
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
        let object = {
            let mut matching = controller.inner("MatchingHandler")?.matching.borrow_mut();
            matching.objects += 1;
            matching.objects
        };
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
        world.poll().map(drop)
    }

    /// Runs `handler` with the next value that `from` sends under `tag`: now if it is here, else when it comes. What
    /// the handler needs locally it captures.
    ///
    /// # Errors
    /// [`Error::BadMessage`] if the value is here and is not a `T`; as [`Controller::poll`].
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
        let key = (self.object, from, tag);
        let message = {
            let mut matching = self.controller.inner("request")?.matching.borrow_mut();
            match take(&mut matching.messages, key) {
                Some(message) => message,
                None => {
                    matching.requests.entry(key).or_default().push_back(request);
                    return Ok(());
                }
            }
        };
        request(&message).map_err(|why| Error::BadMessage { from, why })
    }

    /// Requests to `context` that wait for their message, over all tags.
    pub fn actions(&self, context: usize) -> usize {
        self.count(context, |matching| matching.requests.iter().map(|(key, queue)| (*key, queue.len())).collect())
    }

    /// Messages from `context` that wait for their request, over all tags.
    pub fn messages(&self, context: usize) -> usize {
        self.count(context, |matching| matching.messages.iter().map(|(key, queue)| (*key, queue.len())).collect())
    }

    fn count(&self, context: usize, lengths: impl Fn(&Matching) -> Vec<(Key, usize)>) -> usize {
        let Ok(inner) = self.controller.inner("count") else { return 0 };
        let lengths = lengths(&inner.matching.borrow());
        lengths.iter().filter(|(key, _)| (key.0, key.1) == (self.object, context)).map(|(_, length)| length).sum()
    }
}

fn take<T>(queues: &mut HashMap<Key, VecDeque<T>>, key: Key) -> Option<T> {
    let queue = queues.get_mut(&key)?;
    let first = queue.pop_front();
    if queue.is_empty() {
        queues.remove(&key);
    }
    first
}
