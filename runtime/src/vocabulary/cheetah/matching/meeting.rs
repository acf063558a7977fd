//! Where values and requests meet, and the order in which functions run.
//!
//! A function runs where its value meets its request: in the handler of the message, or in the call of `request`. Three things
//! defer it, to the queue `ready`: another function or handler is running, a call polls that runs no functions (`held`), or
//! functions are in the queue already. Whoever runs a function then runs the queue; what is left, the next poll runs.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};

use super::super::Inner;
use crate::Background;
use crate::error::{Error, Result};
use crate::message::id;
use crate::world::World;

/// Handler object, context, tag.
pub(super) type Key = (u64, usize, i32);
/// Unpacks a value and runs the function with it.
pub(super) type Request = Box<dyn FnOnce(&[u8]) -> std::result::Result<(), String>>;

/// Bytes of the tag, before the value.
pub(super) const TAG: usize = 8;

/// What waits for its counterpart, and functions that wait to run.
#[derive(Default)]
pub(in super::super) struct Matching {
    queues: RefCell<Queues>,
    /// A function is running.
    running: Cell<bool>,
    /// Calls under way that poll and run no function.
    held: Cell<usize>,
    /// The engine has it as a background task.
    is_task: Cell<bool>,
}

#[derive(Default)]
struct Queues {
    objects: u64,
    messages: HashMap<Key, VecDeque<Box<[u8]>>>,
    requests: HashMap<Key, VecDeque<Request>>,
    ready: VecDeque<Ready>,
}

/// A request that has met its value.
struct Ready {
    from: usize,
    request: Request,
    value: Box<[u8]>,
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
    let weak = Rc::downgrade(inner);
    world.messages().set_handler(id::MATCHING, move |_, message| {
        let Some(inner) = weak.upgrade() else { return };
        let from = message.from;
        let outcome = match message.data().split_at_checked(8 + TAG) {
            Some((head, value)) => {
                let word = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().expect("eight bytes"));
                inner.arrive((word(0), from, word(8) as i32), value)
            }
            None => Err("a value without a tag".into()),
        };
        inner.tell(from, outcome);
    });
}

impl Matching {
    /// The number of the next handler object.
    pub(super) fn next_object(&self) -> u64 {
        let mut queues = self.queues.borrow_mut();
        queues.objects += 1;
        queues.objects
    }

    /// Lets polls run no function until the result is dropped.
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
    }

    /// Requests that wait for their message.
    pub(super) fn requests(&self, of: &dyn Fn(&Key) -> bool) -> usize {
        count(&self.queues.borrow().requests, of)
    }

    /// Messages that wait for their request.
    pub(super) fn messages(&self, of: &dyn Fn(&Key) -> bool) -> usize {
        count(&self.queues.borrow().messages, of)
    }

    /// Whether a function that is ready now may run at once.
    fn may_run(&self) -> bool {
        !self.running.get() && self.held.get() == 0 && self.queues.borrow().ready.is_empty()
    }
}

impl Inner {
    /// # Errors
    /// [`Error::InsideHandler`] if a function is running.
    pub(in super::super) fn check_may_wait(&self, operation: &'static str) -> Result<()> {
        if self.matching.running.get() { Err(Error::InsideHandler { operation }) } else { Ok(()) }
    }

    /// A value meets its request, or waits for it. Called by the handler of its message.
    fn arrive(self: &Rc<Self>, key: Key, value: &[u8]) -> std::result::Result<(), String> {
        let request = {
            let mut queues = self.matching.queues.borrow_mut();
            let Some(request) = take(&mut queues.requests, key) else {
                queues.messages.entry(key).or_default().push_back(value.into());
                return Ok(());
            };
            request
        };
        if !self.matching.may_run() {
            self.defer(Ready { from: key.1, request, value: value.into() });
            return Ok(());
        }
        let _running = Running::new(&self.matching.running);
        let outcome = request(value);
        self.run_ready();
        outcome
    }

    /// A request meets its value, or waits for it.
    pub(super) fn request(self: &Rc<Self>, key: Key, request: Request) -> Result<()> {
        let from = key.1;
        let value = {
            let mut queues = self.matching.queues.borrow_mut();
            let Some(value) = take(&mut queues.messages, key) else {
                queues.requests.entry(key).or_default().push_back(request);
                return Ok(());
            };
            value
        };
        let inside =
            self.world.borrow().as_ref().is_some_and(|world| world.engine().check_outside_handler("").is_err());
        if inside || !self.matching.may_run() {
            self.defer(Ready { from, request, value });
            return Ok(());
        }
        let _running = Running::new(&self.matching.running);
        let outcome = request(&value);
        self.run_ready();
        outcome.map_err(|why| Error::BadMessage { from, why })
    }

    /// Runs it after what is ready already.
    fn defer(self: &Rc<Self>, ready: Ready) {
        self.matching.queues.borrow_mut().ready.push_back(ready);
        if !self.matching.is_task.replace(true)
            && let Some(world) = &*self.world.borrow()
        {
            let weak: Weak<Inner> = Rc::downgrade(self);
            world.engine().add_background(weak);
        }
    }

    /// Runs the functions that are ready, and those that become ready meanwhile. The caller has said that one runs.
    fn run_ready(&self) {
        loop {
            let next = self.matching.queues.borrow_mut().ready.pop_front();
            let Some(Ready { from, request, value }) = next else { return };
            self.tell(from, request(&value));
        }
    }

    /// Keeps an error for the next poll.
    fn tell(&self, from: usize, outcome: std::result::Result<(), String>) {
        if let (Err(why), Some(world)) = (outcome, &*self.world.borrow()) {
            world.engine().set_fault(Error::BadMessage { from, why });
        }
    }
}

/// Runs functions that were deferred and that nobody runs.
impl Background for Inner {
    fn advance(&self) -> bool {
        let matching = &self.matching;
        if matching.running.get() || matching.held.get() > 0 {
            return true;
        }
        let _running = Running::new(&matching.running);
        self.run_ready();
        // Not after a panic: the task stays, and runs the rest.
        matching.is_task.set(false);
        false
    }

    fn is_owed(&self) -> bool {
        true
    }
}

fn count<T>(queues: &HashMap<Key, VecDeque<T>>, of: &dyn Fn(&Key) -> bool) -> usize {
    queues.iter().filter(|(key, _)| of(key)).map(|(_, queue)| queue.len()).sum()
}

fn take<T>(queues: &mut HashMap<Key, VecDeque<T>>, key: Key) -> Option<T> {
    let queue = queues.get_mut(&key)?;
    let first = queue.pop_front();
    if queue.is_empty() {
        queues.remove(&key);
    }
    first
}
