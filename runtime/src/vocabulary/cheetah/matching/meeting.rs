//! Where values and requests meet, and the order in which functions run.
//!
//! A function runs where its value meets its request: in the handler of the message, or in the call of `request`. Three things
//! defer it, to the queue `ready`: another function or handler is running, a call polls that runs no functions (`held`), or
//! functions are in the queue already. The thread that runs a function then runs the queue; the next poll runs functions that
//! are left.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::rc::{Rc, Weak};

use super::super::Inner;
use super::large::Large;
use super::request::{Outcome, Request};
use super::value::Value;
use crate::Background;
use crate::error::{CalledAt, Error, Result};
use crate::hash::Mixer;
use crate::message::id;
use crate::world::World;

/// The key by which values and requests meet: handler object, tag, and sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    heading: u64,
    from: u32,
}

impl Key {
    #[inline]
    pub(super) fn new(object: u32, from: usize, tag: i32) -> Key {
        Key { heading: heading(object, tag), from: from as u32 }
    }

    pub(super) fn object(self) -> u32 {
        (self.heading >> 32) as u32
    }

    pub(super) fn from(self) -> usize {
        self.from as usize
    }
}

/// The header of messages: handler object and tag.
#[inline]
pub(super) fn heading(object: u32, tag: i32) -> u64 {
    u64::from(object) << 32 | u64::from(tag as u32)
}

/// Values and requests that wait for their counterparts, and functions that wait to run.
#[derive(Default)]
pub(in super::super) struct Matching {
    queues: RefCell<Queues>,
    pub(super) large: Large,
    /// A function is running.
    running: Cell<bool>,
    /// Calls that poll at present, and run no function.
    held: Cell<usize>,
    /// The engine has it as a background task.
    is_task: Cell<bool>,
}

#[derive(Default)]
struct Queues {
    objects: u32,
    /// Objects whose messages are dropped.
    closed: HashSet<u32>,
    meetings: HashMap<Key, Meeting, BuildHasherDefault<Mixer>>,
    /// How many of them nothing waits in: they stay for a while, since the same key mostly comes again soon.
    idle: usize,
    /// Meetings that were taken out: tags come and go, and their room is used again.
    spare: Vec<Meeting>,
    ready: VecDeque<Ready>,
}

/// Most spare meetings, most idle ones while there are few others, and most entries that a spare one has room for. Chosen: enough for
/// exchanges with all neighbours in three dimensions.
const SPARE: usize = 32;
const SPARE_ROOM: usize = 64;

/// The values or requests that wait under one key. Requests and a first message that has come do not wait together.
#[derive(Default)]
struct Meeting {
    messages: VecDeque<Message>,
    requests: VecDeque<Request>,
}

impl Meeting {
    fn is_idle(&self) -> bool {
        self.messages.is_empty() && self.requests.is_empty()
    }
}

/// The value that was sent.
pub(super) enum Message {
    Here(Value),
    /// A large value that is being fetched, by its number.
    Coming(u64),
}

/// A request that has met its value.
struct Ready {
    from: usize,
    request: Request,
    value: Value,
}

/// Functions are held back as long as this lives.
pub(in super::super) struct Held<'a>(&'a Cell<usize>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A function runs as long as this lives, also in a panic.
struct Running<'a>(&'a Cell<bool>);

impl<'a> Running<'a> {
    fn new(running: &'a Cell<bool>) -> Running<'a> {
        running.set(true);
        Running(running)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Sets what runs when a value arrives.
pub(in super::super) fn install(world: &Rc<World>, inner: &Rc<Inner>) {
    // A send returns whatever the receiver does.
    world.engine().outbox.set_unlimited(1 << id::MATCHING | 1 << id::MATCHING_OFFER);
    let weak = Rc::downgrade(inner);
    let handle = move |kind: u8| {
        let weak = Weak::clone(&weak);
        move |from: usize, data: &[u8]| {
            let Some(inner) = weak.upgrade() else { return };
            let Some((heading, bytes)) = data.split_first_chunk::<8>() else {
                return inner.tell(from, Err("a value without a tag".into()));
            };
            let heading = u64::from_ne_bytes(*heading);
            let key = Key { heading, from: from as u32 };
            let outcome = match kind {
                id::MATCHING => return inner.arrive_bytes(key, bytes),
                id::MATCHING_OFFER => {
                    let world = inner.world.borrow().clone();
                    world.map_or(Ok(()), |world| inner.offered(&world, key, bytes))
                }
                _ => inner.fetched(from, heading),
            };
            inner.tell(from, outcome);
        }
    };
    for kind in [id::MATCHING, id::MATCHING_OFFER, id::MATCHING_FETCHED] {
        let handle = handle(kind);
        world.messages().set_handler(kind, move |_, message| handle(message.from, message.data()));
    }
}

impl Queues {
    /// The first message, if it is here and no request is before.
    #[inline]
    fn take_message(&mut self, key: Key) -> Option<Value> {
        let meeting = self.meetings.get_mut(&key)?;
        if !meeting.requests.is_empty() || !matches!(meeting.messages.front(), Some(Message::Here(_))) {
            return None;
        }
        let first = meeting.messages.pop_front();
        if meeting.messages.is_empty() {
            self.count_idle();
        }
        match first {
            Some(Message::Here(value)) => Some(value),
            _ => None,
        }
    }

    /// The first request, if no message is before.
    #[inline]
    fn take_request(&mut self, key: Key) -> Option<Request> {
        let meeting = self.meetings.get_mut(&key)?;
        if !meeting.messages.is_empty() {
            return None;
        }
        let first = meeting.requests.pop_front()?;
        if meeting.requests.is_empty() {
            self.count_idle();
        }
        Some(first)
    }

    /// The meeting of a key, in which something is about to wait.
    #[inline]
    fn meeting(&mut self, key: Key) -> &mut Meeting {
        match self.meetings.entry(key) {
            Entry::Occupied(known) => {
                let meeting = known.into_mut();
                self.idle -= usize::from(meeting.is_idle());
                meeting
            }
            Entry::Vacant(place) => place.insert(self.spare.pop().unwrap_or_default()),
        }
    }

    /// A meeting has become idle.
    #[inline]
    fn count_idle(&mut self) {
        self.idle += 1;
        // Half of all: the work of taking them out is shared among those that became idle.
        if self.idle > SPARE && self.idle > self.meetings.len() / 2 {
            self.tidy();
        }
    }

    /// Takes idle meetings out: tags are never used up.
    #[cold]
    fn tidy(&mut self) {
        self.idle = 0;
        for (_, meeting) in self.meetings.extract_if(|_, meeting| meeting.is_idle()) {
            if self.spare.len() < SPARE && meeting.messages.capacity().max(meeting.requests.capacity()) <= SPARE_ROOM {
                self.spare.push(meeting);
            }
        }
    }
}

impl Matching {
    /// The number of the next handler object.
    pub(super) fn next_object(&self) -> u32 {
        let mut queues = self.queues.borrow_mut();
        queues.objects = queues.objects.checked_add(1).expect("no program makes four billion handler objects");
        queues.objects
    }

    /// Lets polls run no function until the result is dropped.
    #[inline]
    pub(in super::super) fn hold(&self) -> Held<'_> {
        self.held.set(self.held.get() + 1);
        Held(&self.held)
    }

    /// Forgets all that waits.
    pub(in super::super) fn clear(&self) {
        let unmet = self.queues.take();
        self.queues.borrow_mut().objects = unmet.objects;
        // Dropping requests may come back here.
        drop(unmet);
        self.large.clear();
    }

    /// Forgets what waits at an object, and drops what is sent to it from now on.
    pub(super) fn close(&self, object: u32) {
        let mut queues = self.queues.borrow_mut();
        queues.closed.insert(object);
        let unmet: Vec<Meeting> =
            queues.meetings.extract_if(|key, _| key.object() == object).map(|(_, it)| it).collect();
        queues.idle -= unmet.iter().filter(|meeting| meeting.is_idle()).count();
        drop(queues);
        // Dropping requests may come back here.
        drop(unmet);
    }

    /// Requests that wait for their message.
    pub(super) fn requests(&self, of: &dyn Fn(&Key) -> bool) -> usize {
        self.count(of, |meeting| meeting.requests.len())
    }

    /// Messages that wait for their request.
    pub(super) fn messages(&self, of: &dyn Fn(&Key) -> bool) -> usize {
        self.count(of, |meeting| meeting.messages.len().saturating_sub(meeting.requests.len()))
    }

    fn count(&self, of: &dyn Fn(&Key) -> bool, count: impl Fn(&Meeting) -> usize) -> usize {
        let queues = self.queues.borrow();
        queues.meetings.iter().filter(|(key, _)| of(key)).map(|(_, meeting)| count(meeting)).sum()
    }

    /// Whether a function that is ready now may run at once.
    #[inline]
    fn may_run(&self) -> bool {
        !self.running.get() && self.held.get() == 0 && self.queues.borrow().ready.is_empty()
    }
}

impl Inner {
    /// # Errors
    /// [`Error::InsideHandler`] if a function is running.
    pub(in super::super) fn check_may_wait(&self, operation: &'static str) -> Result<()> {
        if self.matching.running.get() {
            Err(Error::InsideHandler { operation, place: CalledAt::default() })
        } else {
            Ok(())
        }
    }

    /// A value meets its request, or waits for one. Called by the handler of the value's message.
    #[inline]
    fn arrive_bytes(self: &Rc<Self>, key: Key, bytes: &[u8]) {
        let request = self.matching.queues.borrow_mut().take_request(key);
        match request {
            Some(request) if self.matching.may_run() => {
                self.run(key.from(), || request.run_with(bytes));
            }
            Some(request) => self.defer(Ready { from: key.from(), request, value: Value::copy(bytes) }),
            None => self.wait_for_request(key, Message::Here(Value::copy(bytes))),
        }
    }

    /// As [`Inner::arrive_bytes`], of a value that is here already, or announced.
    pub(super) fn arrive(self: &Rc<Self>, key: Key, message: Message) {
        let value = match message {
            Message::Here(value) => value,
            coming => return self.wait_for_request(key, coming),
        };
        let request = self.matching.queues.borrow_mut().take_request(key);
        match request {
            Some(request) if self.matching.may_run() => self.run(key.from(), || request.run(value)),
            Some(request) => self.defer(Ready { from: key.from(), request, value }),
            None => self.wait_for_request(key, Message::Here(value)),
        }
    }

    fn wait_for_request(&self, key: Key, message: Message) {
        let mut queues = self.matching.queues.borrow_mut();
        if queues.closed.is_empty() || !queues.closed.contains(&key.object()) {
            queues.meeting(key).messages.push_back(message);
        }
    }

    /// A large value has come, or never will. It and the values behind it meet the requests that wait for them.
    pub(super) fn landed(&self, key: Key, number: u64, value: Option<Value>) {
        let mut queues = self.matching.queues.borrow_mut();
        let queues = &mut *queues;
        let Some(meeting) = queues.meetings.get_mut(&key) else { return };
        let is_it = |message: &Message| matches!(message, Message::Coming(coming) if *coming == number);
        let Some(place) = meeting.messages.iter().position(is_it) else { return };
        match value {
            Some(value) => meeting.messages[place] = Message::Here(value),
            None => drop(meeting.messages.remove(place)),
        }
        while !meeting.requests.is_empty() && matches!(meeting.messages.front(), Some(Message::Here(_))) {
            if let (Some(request), Some(Message::Here(value))) =
                (meeting.requests.pop_front(), meeting.messages.pop_front())
            {
                queues.ready.push_back(Ready { from: key.from(), request, value });
            }
        }
        if meeting.is_idle() {
            queues.count_idle();
        }
    }

    /// A request meets its value, or waits for one.
    pub(super) fn request(self: &Rc<Self>, key: Key, request: Request) -> Result<()> {
        let value = {
            let mut queues = self.matching.queues.borrow_mut();
            let Some(value) = queues.take_message(key) else {
                queues.meeting(key).requests.push_back(request);
                return Ok(());
            };
            value
        };
        let from = key.from();
        let inside =
            self.world.borrow().as_ref().is_some_and(|world| world.engine().check_outside_handler("").is_err());
        if inside || !self.matching.may_run() {
            self.defer(Ready { from, request, value });
            return Ok(());
        }
        let _running = Running::new(&self.matching.running);
        let outcome = request.run(value);
        self.run_ready();
        outcome.map_err(|why| Error::BadMessage { from, why })
    }

    /// Runs the function after those that are ready already.
    #[cold]
    fn defer(self: &Rc<Self>, ready: Ready) {
        self.matching.queues.borrow_mut().ready.push_back(ready);
        self.keep_going();
    }

    /// Lets polls run functions that are ready and make progress with values that are being fetched.
    pub(super) fn keep_going(self: &Rc<Self>) {
        if !self.matching.is_task.replace(true)
            && let Some(world) = &*self.world.borrow()
        {
            let weak: Weak<Inner> = Rc::downgrade(self);
            world.engine().tasks.add(weak);
        }
    }

    /// Runs a function, and those that are ready then.
    #[inline]
    fn run(&self, from: usize, function: impl FnOnce() -> Outcome) {
        let _running = Running::new(&self.matching.running);
        self.tell(from, function());
        self.run_ready();
    }

    /// Runs the functions that are ready, and those that become ready meanwhile. The caller has said that one runs.
    #[inline]
    fn run_ready(&self) {
        loop {
            let next = self.matching.queues.borrow_mut().ready.pop_front();
            let Some(Ready { from, request, value }) = next else { return };
            self.tell(from, request.run(value));
        }
    }

    /// Keeps an error for the next poll.
    #[inline]
    fn tell(&self, from: usize, outcome: Outcome) {
        if let Err(why) = outcome {
            self.tell_wrong(from, why);
        }
    }

    #[cold]
    fn tell_wrong(&self, from: usize, why: String) {
        if let Some(world) = &*self.world.borrow() {
            world.engine().faults.keep(Error::BadMessage { from, why });
        }
    }
}

/// Makes progress with fetches, and runs deferred functions that no other call runs.
impl Background for Inner {
    fn advance(&self) -> bool {
        let matching = &self.matching;
        if matching.large.has_incoming()
            && let Some(world) = self.world.borrow().clone()
        {
            self.advance_large(&world);
        }
        if matching.running.get() || matching.held.get() > 0 {
            return true;
        }
        let _running = Running::new(&matching.running);
        self.run_ready();
        // Not after a panic: the task stays, and runs the rest.
        let more = matching.large.has_incoming();
        matching.is_task.set(more);
        more
    }

    fn is_owed(&self) -> bool {
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    impl Matching {
        /// How many meetings there are, and how many of them nothing waits in.
        fn meetings(&self) -> (usize, usize) {
            let queues = self.queues.borrow();
            let idle = queues.meetings.values().filter(|meeting| meeting.is_idle()).count();
            assert_eq!(queues.idle, idle, "idle meetings are counted right");
            (queues.meetings.len(), idle)
        }
    }

    fn put(matching: &Matching, key: Key) {
        matching.queues.borrow_mut().meeting(key).messages.push_back(Message::Here(Value::copy(&[])));
    }

    #[test]
    fn tags_that_are_used_once_take_no_room() {
        let matching = Matching::default();
        for tag in 0..1000 {
            let key = Key::new(1, 0, tag);
            put(&matching, key);
            assert!(matching.queues.borrow_mut().take_message(key).is_some());
            assert!(matching.meetings().0 <= SPARE + 1, "after tag {tag}");
        }
    }

    #[test]
    fn an_idle_meeting_is_used_again_and_what_waits_stays() {
        const WAITING: usize = 200;
        let matching = Matching::default();
        (0..WAITING).for_each(|tag| put(&matching, Key::new(1, 0, tag as i32)));
        for round in 0..1000 {
            // One of them again and again, and others beside it.
            for key in [Key::new(2, 3, -1), Key::new(2, 3, round)] {
                put(&matching, key);
                put(&matching, key);
                let take = || matching.queues.borrow_mut().take_message(key);
                assert!(take().is_some() && take().is_some() && take().is_none());
                assert!(matching.queues.borrow_mut().take_request(key).is_none());
            }
            let (all, idle) = matching.meetings();
            assert!(all == WAITING + idle && idle <= WAITING + 1, "{idle} idle ones after round {round}");
        }
        assert_eq!(matching.messages(&|key| key.object() == 1), WAITING);
        matching.close(2);
        assert_eq!(matching.meetings(), (WAITING, 0));
    }
}
