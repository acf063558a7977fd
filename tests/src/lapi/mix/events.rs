//! The messages of a task's main thread: owned vectors to closures, with every kind of event at both ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bellwether_runtime::Completion;
use bellwether_runtime::vocabulary::lapi::raw::{self, Handle};
use bellwether_runtime::vocabulary::lapi::{Bell, Counter, Lapi, Signal};

use super::{ANSWER, CLOSURE, Header, Random, State, data, ok};
use crate::watchdog;

/// Indexes of target events. The first two serve all messages, the others one message of each round.
const COUNTER: usize = 1;
const BELL: usize = 2;
const FUTURE: usize = 3;
const FUNCTION: usize = 4;

/// The events of a task, with one handle.
pub(super) struct Events {
    /// Rung at this task by its own messages, and by messages to it.
    own: Bell,
    target: Bell,
    rings: u64,
    /// Moved by messages to this task.
    counter: Arc<Counter>,
    /// The numbers that all tasks had sent to both when the handle was made.
    before: [u64; 2],
}

impl Events {
    /// Collective. Messages with these events may come when all tasks have returned.
    pub(super) fn new(lapi: &Lapi, before: [u64; 2]) -> Events {
        let [own, target] = [(); 2].map(|()| lapi.bell().expect("makes a bell"));
        let counter = Arc::new(Counter::new());
        lapi.target_event(COUNTER, &counter).expect("an index of the table");
        lapi.target_event(BELL, Signal::ring(target, lapi.rank())).expect("an index of the table");
        Events { own, target, rings: 0, counter, before }
    }

    /// How often messages have moved the counter and rung the bell of this task, with all handles.
    pub(super) fn came(&self, lapi: &Lapi) -> [u64; 2] {
        let rung = lapi.wait_bell(self.target, 0).expect("the bell of this handle");
        [self.before[0] + self.counter.value() as u64, self.before[1] + rung]
    }

    /// Sets the events of one message. They come in this round.
    pub(super) fn once(&self, lapi: &Lapi) -> Once {
        let (future, function) = (Completion::new(), Arc::new(AtomicUsize::new(0)));
        lapi.target_event(FUTURE, &future).expect("an index of the table");
        lapi.target_event(FUNCTION, calls(&function)).expect("an index of the table");
        Once { future, function }
    }
}

/// Target events that serve one message.
pub(super) struct Once {
    future: Completion,
    function: Arc<AtomicUsize>,
}

/// A function that counts its calls. The event must not have failed.
fn calls(called: &Arc<AtomicUsize>) -> Signal {
    let called = Arc::clone(called);
    Signal::call(move |outcome| {
        outcome.expect("nothing is lost");
        called.fetch_add(1, Ordering::Relaxed);
    })
}

/// Makes progress until a function has run so often.
fn wait_for(handle: Handle, called: &AtomicUsize, times: usize, what: &str) {
    watchdog::at(what);
    while called.load(Ordering::Relaxed) < times {
        ok(raw::probe(handle), what);
    }
    assert_eq!(called.load(Ordering::Relaxed), times, "{what}: once each");
}

/// One round of messages.
pub(super) struct Sender<'a> {
    pub(super) lapi: &'a Lapi,
    pub(super) handle: Handle,
    pub(super) state: &'a State,
    pub(super) events: &'a mut Events,
    pub(super) random: Random,
    /// The number of the next message.
    pub(super) next: &'a mut u64,
    pub(super) most: usize,
}

/// The events at the origin that a round waits for.
#[derive(Default)]
struct Expected {
    counter: Arc<Counter>,
    counts: i32,
    called: Arc<AtomicUsize>,
    calls: usize,
    futures: Vec<Completion>,
    data: Vec<Arc<Vec<u8>>>,
}

impl Sender<'_> {
    fn signal(&mut self, expected: &mut Expected) -> Option<Signal> {
        match self.random.below(5) {
            0 => None,
            1 => {
                expected.counts += 1;
                Some((&expected.counter).into())
            }
            2 => {
                self.events.rings += 1;
                Some(Signal::ring(self.events.own, self.lapi.rank()))
            }
            3 => {
                expected.futures.push(Completion::new());
                expected.futures.last().map(Signal::from)
            }
            _ => {
                expected.calls += 1;
                Some(calls(&expected.called))
            }
        }
    }

    fn send(&mut self, to: usize, target: Option<usize>, expected: &mut Expected) {
        let (id, len) = (*self.next, self.random.len(self.most));
        *self.next += 1;
        let header = Header { mode: ANSWER, len: len as u32, id };
        self.state.sent[to].add(id);
        self.state.owed[to].add(id);
        let data = Arc::new(data(id, len));
        let header = header.bytes();
        let mut message = self.lapi.message(to, CLOSURE).header(&header).data(Arc::clone(&data));
        expected.data.push(data);
        if let Some(signal) = self.signal(expected) {
            message = message.origin(signal);
        }
        if let Some(signal) = self.signal(expected) {
            message = message.completion(signal);
        }
        if let Some(index) = target {
            message = message.target(index);
        }
        message.send().expect("sends");
    }

    /// Sends `messages` messages, and one with each event that serves one. Waits for the events at this end, and for the latter of `once`.
    pub(super) fn run(&mut self, messages: usize, once: Once) {
        let mut expected = Expected::default();
        let (n, next) = (self.lapi.size(), (self.lapi.rank() + 1) % self.lapi.size());
        for number in 0..messages {
            watchdog::at(format!("message {number} with events"));
            let to = self.random.below(n);
            let target = match self.random.below(3) {
                0 => None,
                1 => {
                    self.state.counted[to].add(0);
                    Some(COUNTER)
                }
                _ => {
                    self.state.rung[to].add(0);
                    Some(BELL)
                }
            };
            self.send(to, target, &mut expected);
        }
        for index in [FUTURE, FUNCTION] {
            self.send(next, Some(index), &mut expected);
        }
        watchdog::at("counters of events");
        assert_eq!(self.lapi.wait(&expected.counter, expected.counts), Ok(0), "once each");
        watchdog::at("bells of events");
        assert_eq!(self.lapi.wait_bell(self.events.own, self.events.rings), Ok(self.events.rings), "once each");
        watchdog::at("futures of events");
        for future in expected.futures.iter().chain([&once.future]) {
            self.lapi.wait_completion(future).expect("it comes");
        }
        wait_for(self.handle, &expected.called, expected.calls, "functions of events");
        wait_for(self.handle, &once.function, 1, "the function of a target event");
        watchdog::at("a fence after events");
        self.lapi.fence().expect("nothing is wrong");
        assert!(expected.data.iter().all(|data| Arc::strong_count(data) == 1), "vectors are given back");
    }
}
