//! Large messages: the header goes first, and the receiver names the place where the data lands.
//!
//! The sender keeps the data and sends an announcement: an ordinary message for a handler of the table, which carries the user's header
//! and says where the data is. At the receiver the first function of the handler names a place. The receiver then fetches the
//! data to that place: by the kernel's cross-memory attach from a peer whose memory is mapped (one copy), by RDMA get over a
//! network (none), and by messages in pieces where neither is possible. When the data is there the second function runs, and the
//! sender gets the answer that ends its call, or lets the events of its operation happen, and gives up the data.
//!
//! A sender has at most [`MOST`] announced messages at one receiver and blocks until one of them has landed, so a slow receiver
//! slows its senders down.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use super::closure::{Call, DONE, REFUSED};
use super::fetch::{Fetch, Offer, Offered};
use super::panic::Caller;
use super::{Context, HandlerFn, HandlerId, Messages, id, words};
use crate::engine::{Background, Events};
use crate::error::{CalledAt, Error, Result};

/// Bytes of an announcement beside its header, at least: four words of it, and two of what it offers.
const LEAST: usize = 6 * size_of::<u64>();
/// Data of up to this many bytes travels with its header. Chosen: below this a copy costs less than the round trip.
const EAGER: usize = 8 << 10;
/// Most announced messages of one sender at one receiver. Chosen: enough that one is fetched while the next is announced.
const MOST: usize = 16;
const DOING: &str = "receiving a large message";

/// The third word of an announcement: whether the data follows the header, or an offer does.
const WITH_HEADER: u64 = 0;
const OFFERED: u64 = 1;

/// A registered handler of large messages, the same on every rank; see [`Builder::landing_handler`](crate::Builder::landing_handler).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LandingId(pub(crate) HandlerId);

/// A large message whose data has not come yet.
#[derive(Debug)]
pub struct Announced<'a> {
    from: usize,
    header: &'a [u8],
    len: usize,
}

impl Announced<'_> {
    /// The sending rank.
    pub fn from(&self) -> usize {
        self.from
    }

    /// The header that the sender gave.
    pub fn header(&self) -> &[u8] {
        self.header
    }

    /// Bytes of data.
    #[expect(clippy::len_without_is_empty, reason = "a size, not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Where the data of a large message lands.
pub struct Landing(Destination);

enum Destination {
    Vec(Vec<u8>),
    /// Memory that stays valid as long as `keep` lives, and may be written by peers at any time.
    Memory {
        start: *mut u8,
        room: usize,
        #[expect(dead_code, reason = "keeps the memory")]
        keep: Rc<dyn Any>,
    },
    Nowhere,
}

impl Landing {
    /// In this vector, in place of its contents. Its memory is used if it suffices, so that one vector can serve many
    /// messages. [`Landed::into_vec`] gives it back.
    pub fn vec(vec: Vec<u8>) -> Landing {
        Landing(Destination::Vec(vec))
    }

    /// Nowhere: the data is not fetched, the second function does not run, and the sender's call ends without an error.
    pub fn discard() -> Landing {
        Landing(Destination::Nowhere)
    }

    /// In the `room` bytes at `start`.
    ///
    /// # Safety
    /// The bytes are valid as long as `keep` lives, and no reference to them exists that excludes writes of peers.
    pub(crate) unsafe fn memory(start: *mut u8, room: usize, keep: Rc<dyn Any>) -> Landing {
        Landing(Destination::Memory { start, room, keep })
    }
}

impl std::fmt::Debug for Landing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Destination::Vec(_) => "Landing in a vector",
            Destination::Memory { .. } => "Landing in symmetric memory",
            Destination::Nowhere => "Landing nowhere",
        })
    }
}

impl Destination {
    /// Makes room for `len` bytes, and returns the address.
    fn prepare(&mut self, len: usize) -> std::result::Result<*mut u8, String> {
        match self {
            Destination::Vec(vec) => {
                vec.clear();
                let reserved = vec.try_reserve_exact(len);
                reserved.map_err(|_| format!("there is no memory for a vector of {len} bytes"))?;
                Ok(vec.as_mut_ptr())
            }
            Destination::Memory { room, .. } if *room < len => {
                Err(format!("{len} bytes do not fit where they should land, which has {room}"))
            }
            Destination::Memory { start, .. } => Ok(*start),
            Destination::Nowhere => Ok(std::ptr::null_mut()),
        }
    }
}

/// A large message whose data has landed.
#[derive(Debug)]
pub struct Landed {
    header: Box<[u8]>,
    len: usize,
    vec: Vec<u8>,
}

impl Landed {
    /// The header that the sender gave.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Bytes of data.
    #[expect(clippy::len_without_is_empty, reason = "a size, not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The data, if it landed in a vector; else an empty vector.
    pub fn into_vec(self) -> Vec<u8> {
        self.vec
    }
}

/// The first function of a handler: names the place.
type Places = dyn Fn(&Context<'_>, &Announced<'_>) -> Landing;
/// The second function: runs when the data is there.
type Lands = dyn Fn(&Context<'_>, Landed);

/// The two functions of a handler of large messages.
struct Functions {
    name: String,
    place: Box<Places>,
    landed: Box<Lands>,
}

/// The entry of the handler table for a handler of large messages.
pub(crate) fn handler(
    name: &str,
    place: impl Fn(&Context<'_>, &Announced<'_>) -> Landing + 'static,
    landed: impl Fn(&Context<'_>, Landed) + 'static,
) -> HandlerFn {
    let functions = Rc::new(Functions { name: name.into(), place: Box::new(place), landed: Box::new(landed) });
    Rc::new(move |context, bytes| context.messages().announced(context, bytes, &functions))
}

/// Large messages in flight.
#[derive(Default)]
pub(super) struct Landings {
    /// Data that this rank has announced, by the number of the call or the receipt.
    outgoing: RefCell<BTreeMap<u64, Outgoing>>,
    incoming: RefCell<VecDeque<Incoming>>,
    task: OnceCell<Rc<Task>>,
    /// The number of the call whose place is being named.
    announced: Cell<Option<u64>>,
    /// For tests: how often data was registered.
    #[cfg(test)]
    pub(super) offers: Cell<u32>,
}

impl Landings {
    /// The number of the call whose place was being named, once: that function has panicked.
    pub(super) fn take_announced(&self) -> Option<u64> {
        self.announced.take()
    }
}

struct Outgoing {
    to: usize,
    /// Declared before the data, so that it is deregistered before the data is freed.
    _offer: Option<Offer>,
    /// `None`: it travels with its header.
    _data: Option<Rc<Vec<u8>>>,
}

/// A large message whose data is being fetched.
struct Incoming {
    from: usize,
    number: u64,
    header: Box<[u8]>,
    len: usize,
    /// `None`: the data is in its place. Declared before the place, which a device may write to until this is dropped.
    fetch: Option<Fetch>,
    place: Destination,
    functions: Rc<Functions>,
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Pieces may still arrive, and are written to the place: it is leaked.
        if self.fetch.as_ref().is_some_and(Fetch::may_be_written) {
            std::mem::forget(std::mem::replace(&mut self.place, Destination::Nowhere));
        }
    }
}

/// Advances the fetches at every poll.
struct Task(Weak<Messages>);

impl Background for Task {
    fn advance(&self) -> bool {
        self.0.upgrade().is_some_and(|messages| messages.advance_landings())
    }

    fn is_owed(&self) -> bool {
        true
    }
}

impl Messages {
    pub(super) fn install_landings(self: &Rc<Self>) {
        let task = Rc::new(Task(Rc::downgrade(self)));
        assert!(self.landings.task.set(task).is_ok(), "once");
    }

    /// Announces `data`; see `World::send_large`.
    #[track_caller]
    pub fn send_large(
        self: &Rc<Self>,
        to: usize,
        handler: LandingId,
        header: &[u8],
        data: Rc<Vec<u8>>,
    ) -> Result<Call<()>> {
        self.await_room_to_announce(to, header)?;
        let call = self.open_call(to, |_| Ok(()));
        self.announce(call.number(), to, handler, header, data)?;
        Ok(call)
    }

    /// As [`Messages::send_large`], with events in place of a call. Takes those that happen when the receiver has answered. Left are those
    /// for the source, if the data is copied: the caller lets them happen.
    ///
    /// # Errors
    /// As [`Messages::send_large`]. Then no event happens, and all are left with the caller, unless the world has ended. If the peer is lost
    /// while the announcement waits for room, the events end with [`Error::PeerLost`], and none is left.
    pub(crate) fn send_large_with(
        &self,
        to: usize,
        handler: LandingId,
        header: &[u8],
        data: Rc<Vec<u8>>,
        events: &mut Events,
    ) -> Result<()> {
        self.await_room_to_announce(to, header)?;
        let source = if self.travels_with(header, &data) { Vec::new() } else { std::mem::take(&mut events.source) };
        let (sources, effects) = (source.len(), events.effect.len());
        let mut answered = source;
        answered.append(&mut events.effect);
        answered.append(&mut events.handled);
        let number = self.engine.open_receipt(to, answered)?;
        self.announce(number, to, handler, header, data).inspect_err(|_| {
            // A message that was not sent has no receipt.
            let mut left = self.engine.contexts.receipts().close(number, to).unwrap_or_default();
            events.handled = left.split_off(left.len().min(sources + effects));
            events.effect = left.split_off(left.len().min(sources));
            events.source.append(&mut left);
        })
    }

    /// Checks that a large message may be sent to `to` from here, and waits until one more may be announced there. A call that answers at once
    /// also looks for room for the announcement: the registration of its data costs more than a refusal should.
    ///
    /// # Errors
    /// As [`Messages::send_large`].
    fn await_room_to_announce(&self, to: usize, header: &[u8]) -> Result<()> {
        const DOING: &str = "sending a large message";
        let engine = &self.engine;
        engine.check_rank(to, DOING)?;
        engine.check_outside_handler(DOING)?;
        let is_at_once = engine.outbox.is_at_once();
        if self.may_announce(to) && (!is_at_once || engine.may_have_room(to, LEAST + header.len())) {
            return Ok(());
        }
        if is_at_once {
            return Err(Error::WouldBlock { operation: DOING, rank: to, place: CalledAt::default() });
        }
        engine.wait_until("waiting for a rank to fetch large messages", None, || self.may_announce(to))
    }

    /// Whether such data is so short that it travels with its header.
    fn travels_with(&self, header: &[u8], data: &[u8]) -> bool {
        data.len() <= EAGER && header.len() + data.len() + EAGER / 8 <= self.engine.largest_message()
    }

    /// Sends the announcement. The receiver's answer has this number, of a call or of a receipt.
    fn announce(&self, number: u64, to: usize, handler: LandingId, header: &[u8], data: Rc<Vec<u8>>) -> Result<()> {
        let (len, is_short) = (data.len(), self.travels_with(header, &data));
        // SAFETY: the data stays where it is until `_offer` is dropped, before it.
        let offer = (!is_short).then(|| unsafe { self.offer(to, data.as_ptr(), len) });
        #[cfg(test)]
        self.landings.offers.set(self.landings.offers.get() + u32::from(!is_short));
        let way = if is_short { WITH_HEADER } else { OFFERED };
        let words = [number, len as u64, way, header.len() as u64].map(u64::to_ne_bytes);
        let mut bytes = words.as_flattened().to_vec();
        if let Some(offer) = &offer {
            offer.encode(&mut bytes);
        }
        bytes.extend_from_slice(header);
        if is_short {
            bytes.extend_from_slice(&data);
        }
        let outgoing = Outgoing { to, _offer: offer, _data: (!is_short).then_some(data) };
        self.landings.outgoing.borrow_mut().insert(number, outgoing);
        self.send_to_handler(to, handler.0, &bytes).inspect_err(|_| {
            self.landings.outgoing.borrow_mut().remove(&number);
        })
    }

    /// Whether fewer than [`MOST`] messages are announced to `to`.
    fn may_announce(&self, to: usize) -> bool {
        self.forget_lost_landings();
        self.landings.outgoing.borrow().values().filter(|outgoing| outgoing.to == to).count() < MOST
    }

    /// Drops the data announced to peers that are gone, which fetch nothing any more.
    pub(super) fn forget_lost_landings(&self) {
        let failures = &self.engine.failures;
        if failures.any_gone() {
            self.landings.outgoing.borrow_mut().retain(|_, outgoing| !failures.is_gone(outgoing.to));
        }
    }

    /// Drops the data of a call or a receipt that `by` has answered.
    pub(super) fn end_outgoing(&self, number: u64, by: usize) {
        if self.landings.outgoing.borrow().is_empty() {
            return;
        }
        if let Entry::Occupied(outgoing) = self.landings.outgoing.borrow_mut().entry(number)
            && outgoing.get().to == by
        {
            outgoing.remove();
        }
    }

    /// Whether no large message of this rank, or for it, is in flight.
    pub fn has_no_landings(&self) -> bool {
        self.forget_lost_landings();
        self.landings.outgoing.borrow().is_empty() && self.landings.incoming.borrow().is_empty()
    }

    fn announced(&self, context: &Context<'_>, bytes: &[u8], functions: &Rc<Functions>) {
        let from = context.from();
        let wrong = || self.fault(from, "a large message without its place");
        let Some(([number, len, kind, header_len], rest)) = words::<4>(bytes) else { return wrong() };
        let (offered, rest) = match kind {
            WITH_HEADER => (None, rest),
            OFFERED => match Offered::decode(rest) {
                Some((offered, rest)) => (Some(offered), rest),
                None => return wrong(),
            },
            _ => return wrong(),
        };
        let Some((header, data)) = rest.split_at_checked(header_len as usize) else { return wrong() };
        let len = len as usize;
        if kind == WITH_HEADER && data.len() != len {
            return wrong();
        }
        self.landings.announced.set(Some(number));
        let Landing(mut place) = (functions.place)(context, &Announced { from, header, len });
        self.landings.announced.set(None);
        if let Destination::Nowhere = place {
            return self.answer_landing(from, number, &[DONE]);
        }
        let start = match place.prepare(len) {
            Ok(start) => start,
            Err(why) => {
                self.answer_landing(from, number, &[&[REFUSED], why.as_bytes()].concat());
                return self.engine.faults.keep(Error::InvalidArgument { operation: DOING, why });
            }
        };
        let fetch = match offered {
            None => {
                // SAFETY: `prepare` made room for `len` bytes at `start`.
                unsafe { crate::memory::copy::put(start, data.as_ptr(), len) };
                None
            }
            // SAFETY: as above; the place stays until the fetch is dropped, and longer where that is needed: see the drop of
            // `Incoming`.
            Some(offered) => Some(unsafe { self.fetch(from, offered, start, len) }),
        };
        let incoming =
            Incoming { from, number, header: header.into(), len, fetch, place, functions: Rc::clone(functions) };
        let mut list = self.landings.incoming.borrow_mut();
        if list.is_empty() {
            let task: Rc<dyn Background> = Rc::<Task>::clone(self.landings.task.get().expect("installed"));
            self.engine.tasks.add(Rc::downgrade(&task));
        }
        list.push_back(incoming);
    }

    /// Advances the fetches, and runs the second functions of those that have ended. Returns whether fetches are left.
    fn advance_landings(&self) -> bool {
        // The second functions are handlers: while this lives, a call that would wait is an error.
        let _running = self.engine.interface.begin_handler();
        let count = self.landings.incoming.borrow().len();
        for _ in 0..count {
            // Taken out of the list first: the function may panic.
            let Some(mut incoming) = self.landings.incoming.borrow_mut().pop_front() else { break };
            let advanced = incoming.fetch.as_mut().map_or(Ok(true), |fetch| self.advance_fetch(fetch));
            match advanced {
                Ok(true) => self.landed(incoming),
                Ok(false) => self.landings.incoming.borrow_mut().push_back(incoming),
                Err(error) => {
                    // The sender waits for an answer.
                    if !matches!(error, Error::PeerLost { .. }) {
                        let why = error.to_string();
                        self.answer_landing(incoming.from, incoming.number, &[&[REFUSED], why.as_bytes()].concat());
                    }
                    self.engine.faults.keep(error);
                }
            }
        }
        !self.landings.incoming.borrow().is_empty()
    }

    /// Runs the second function.
    fn landed(&self, mut incoming: Incoming) {
        let (from, number, len) = (incoming.from, incoming.number, incoming.len);
        let functions = Rc::clone(&incoming.functions);
        let vec = match std::mem::replace(&mut incoming.place, Destination::Nowhere) {
            Destination::Vec(mut vec) => {
                // SAFETY: `prepare` made room for `len` bytes, and all were written.
                unsafe { vec.set_len(len) };
                vec
            }
            _ => Vec::new(),
        };
        let landed = Landed { header: std::mem::take(&mut incoming.header), len, vec };
        drop(incoming);
        let name = || functions.name.clone();
        self.run_for(from, Caller::Call(number), name, || (functions.landed)(&self.context(from), landed));
        self.answer_landing(from, number, &[DONE]);
    }

    fn answer_landing(&self, to: usize, number: u64, answer: &[u8]) {
        self.engine.answer(to, || self.engine.send_or_keep(to, id::ANSWER, number, answer));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::rc::Rc;
    use std::sync::Barrier;
    use std::time::Duration;

    use crate::{Error, Landing, Result, Settings, Threads};

    /// Rank 1 takes nothing meanwhile, and small messages fill all room.
    #[test]
    fn a_large_message_that_is_refused_for_lack_of_room_registers_nothing() {
        let both = Barrier::new(2);
        let settings = Settings { message_memory: 4096, lane_depth: Some(1), ..Settings::default() };
        let ran = Threads::new(2).settings(settings).deadline(Duration::from_secs(60)).build(|mut builder| {
            let landed = builder.landing_handler("large", |_, _| Landing::vec(Vec::new()), |_, _| {});
            let small = builder.handler("small", |_, _| {});
            let world = builder.start()?;
            both.wait();
            if world.rank() == 0 {
                let (offers, data) = (|| world.messages().landings.offers.get(), Rc::new(vec![7; 100_000]));
                while let Ok(()) = world.try_send(1, small, &[7; 100]) {}
                while let Ok(()) = world.try_send(1, small, &[7]) {}
                for _ in 0..3 {
                    let refused = world.try_send_large(1, landed, b"", &data);
                    assert!(matches!(refused, Err(Error::WouldBlock { rank: 1, .. })), "{refused:?}");
                }
                let registered = (offers(), Rc::strong_count(&data));
                both.wait();
                assert_eq!(registered, (0, 1));
                let call = loop {
                    match world.try_send_large(1, landed, b"", &data) {
                        Err(Error::WouldBlock { .. }) => drop(world.poll()?),
                        outcome => break outcome?,
                    }
                };
                assert_eq!(offers(), 1);
                call.wait()?;
            } else {
                both.wait();
            }
            world.finish()
        });
        ran.expect("starts").into_iter().for_each(|outcome: Result<()>| outcome.expect("runs"));
    }
}
