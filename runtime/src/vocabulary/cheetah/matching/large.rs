//! Large values: their sender keeps them and sends an offer, and the receiver fetches them as soon as the offer comes.
//!
//! An offer has the place of its value in the order of messages. A value that has not come holds up those behind it that have the
//! same key, and no others.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::super::Inner;
use super::meeting::{Key, Message};
use super::request::Outcome;
use super::value::{INLINE, Value};
use crate::error::{Error, Loss, Result};
use crate::message::{Fetch, Offer, Offered, Unsettled, id};
use crate::world::World;

/// Values of up to this many bytes travel in their message, as the data of LAPI's messages does: below this a copy costs less than the
/// round trip.
const EAGER: usize = 8 << 10;
/// Fetches that go on at a time. Chosen, as for LAPI's.
const ACTIVE: usize = 8;

/// Large values in flight.
#[derive(Default)]
pub(super) struct Large {
    /// Offered values that were not fetched, by number.
    outgoing: RefCell<(u64, HashMap<u64, Outgoing>)>,
    incoming: RefCell<VecDeque<Incoming>>,
}

struct Outgoing {
    to: usize,
    /// Declared before the bytes, so that it is deregistered before the memory is freed.
    _offer: Offer,
    _bytes: Owned,
}

/// Bytes on the heap, which stay where they are when this is moved.
pub(super) enum Owned {
    Vec(Vec<u8>),
    Value(Value),
}

struct Incoming {
    key: Key,
    /// Among the values of the same sender.
    number: u64,
    fetch: Fetch,
    value: Value,
    _unsettled: Unsettled,
}

impl Incoming {
    /// The value, whose bytes are all there.
    fn into_value(mut self) -> Value {
        std::mem::replace(&mut self.value, Value::copy(&[]))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Pieces that come late are written to it.
        if self.fetch.may_be_written() {
            std::mem::forget(std::mem::replace(&mut self.value, Value::copy(&[])));
        }
    }
}

impl Large {
    /// Whether a value of so many bytes is offered, and not sent.
    #[inline]
    pub(super) fn is_large(world: &World, len: usize) -> bool {
        // A small one moves with its `Value`.
        len > EAGER || len > INLINE && len + 64 > world.engine().largest_message()
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        drop(self.incoming.take());
        self.outgoing.borrow_mut().1.clear();
    }

    pub(super) fn has_incoming(&self) -> bool {
        !self.incoming.borrow().is_empty()
    }
}

impl Inner {
    /// Offers a large value, whose bytes are all written. They stay here until the target has fetched them.
    pub(super) fn offer(&self, world: &World, to: usize, heading: u64, owned: Owned) -> Result<()> {
        let mut outgoing = self.matching.large.outgoing.borrow_mut();
        let (numbers, list) = &mut *outgoing;
        if world.engine().job.any_lost() || world.engine().job.any_left() {
            list.retain(|_, outgoing| world.engine().job.loss(outgoing.to).is_none());
        }
        *numbers += 1;
        let number = *numbers;
        let bytes = match &owned {
            Owned::Vec(bytes) => bytes.as_slice(),
            // SAFETY: all bytes were written, by the guarantee of the caller of `send_value`.
            Owned::Value(value) => unsafe { value.bytes() },
        };
        // SAFETY: the bytes are on the heap, where they stay as long as the offer; nobody writes them.
        let offer = unsafe { world.messages().offer(to, bytes.as_ptr(), bytes.len()) };
        let mut payload = [number, bytes.len() as u64].map(u64::to_ne_bytes).as_flattened().to_vec();
        offer.encode(&mut payload);
        list.insert(number, Outgoing { to, _offer: offer, _bytes: owned });
        drop(outgoing);
        world.engine().send_in_order(to, id::MATCHING_OFFER, heading, &payload).inspect_err(|_| {
            self.matching.large.outgoing.borrow_mut().1.remove(&number);
        })
    }

    /// An offered value was fetched.
    pub(super) fn fetched(&self, from: usize, number: u64) -> Outcome {
        let outgoing = self.matching.large.outgoing.borrow_mut().1.remove(&number);
        match outgoing.filter(|outgoing| outgoing.to == from) {
            Some(_) => Ok(()),
            None => Err("a value is said to be fetched that was not offered".into()),
        }
    }

    /// An offer comes. Called by the handler of its message.
    pub(super) fn offered(self: &Rc<Self>, world: &World, key: Key, bytes: &[u8]) -> Outcome {
        let decoded = bytes.split_first_chunk::<16>().and_then(|(words, rest)| Some((words, Offered::decode(rest)?.0)));
        let wrong = || Err("an offer of a value that cannot be read".into());
        let Some((words, offered)) = decoded else { return wrong() };
        let word = |at: usize| u64::from_ne_bytes(words[at..at + 8].try_into().expect("eight bytes"));
        let (from, number, len) = (key.from(), word(0), word(8) as usize);
        if len <= INLINE {
            return wrong();
        }
        let mut value = match Value::with_len(len) {
            Ok(value) => value,
            Err(error) => {
                self.tell_fetched(world, from, number);
                return Err(error.to_string());
            }
        };
        // SAFETY: room for `len` bytes, on the heap where it stays when the value is moved; `Incoming` keeps it as long as needed.
        let fetch = unsafe { world.messages().fetch(from, offered, value.start(), len) };
        if fetch.is_here() {
            self.tell_fetched(world, from, number);
            self.arrive(key, Message::Here(value));
            return Ok(());
        }
        let incoming = Incoming { key, number, fetch, value, _unsettled: world.messages().unsettled() };
        self.matching.large.incoming.borrow_mut().push_back(incoming);
        self.arrive(key, Message::Coming(number));
        self.keep_going();
        Ok(())
    }

    fn tell_fetched(&self, world: &World, to: usize, number: u64) {
        let engine = world.engine();
        engine.answer(to, || engine.send_or_keep(to, id::MATCHING_FETCHED, number, &[]));
    }

    /// Makes progress with values that are being fetched. A value that has come takes its place among the messages, and meets its request.
    pub(super) fn advance_large(&self, world: &World) {
        let mut place = 0;
        while place < ACTIVE {
            let Some(mut incoming) = self.matching.large.incoming.borrow_mut().remove(place) else { break };
            let (key, number) = (incoming.key, incoming.number);
            match world.messages().advance_fetch(&mut incoming.fetch) {
                Ok(true) => {
                    self.tell_fetched(world, key.from(), number);
                    self.landed(key, number, Some(incoming.into_value()));
                }
                Ok(false) => {
                    self.matching.large.incoming.borrow_mut().insert(place, incoming);
                    place += 1;
                }
                Err(error) => {
                    // The sender keeps the value until it is told.
                    if !matches!(error, Error::PeerLost { .. }) {
                        self.tell_fetched(world, key.from(), number);
                    }
                    self.landed(key, number, None);
                    // A sender that has left in good order waits for nothing.
                    if !matches!(error, Error::PeerLost { cause: Loss::Left, .. }) {
                        world.engine().faults.keep(error);
                    }
                }
            }
        }
    }
}
