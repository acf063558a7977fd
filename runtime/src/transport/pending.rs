//! Requests that wait for room, a queue for each endpoint, served in turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;

use super::error::Error;

/// The answer of a pending request that was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// Done: take it off the queue.
    Done,
    /// Keep it, and go on with other endpoints.
    Keep,
    /// Keep it, and stop: there is no room for anyone.
    Stop,
}

/// A request that tries to send when it is called. Owned by the interface until it says [`Resume::Done`].
pub type Request = Box<dyn FnMut() -> Resume>;

/// A request that was not queued, handed back.
pub struct Refused {
    /// Why: [`Error::Busy`] means that there is room, so send instead.
    pub error: Error,
    /// The request.
    pub request: Request,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refused({:?})", self.error)
    }
}

/// The queues of one interface.
#[derive(Default)]
pub struct Queues {
    queues: RefCell<Vec<VecDeque<Request>>>,
    /// Endpoints with a queue that is not empty, next one first.
    turn: RefCell<VecDeque<u32>>,
    /// The endpoint whose request runs right now.
    serving: Cell<Option<u32>>,
}

impl Queues {
    /// Whether a new send on `endpoint` would overtake a queued one.
    #[inline(always)]
    pub fn holds_back(&self, endpoint: u32) -> bool {
        !self.is_idle() && self.serving.get() != Some(endpoint) && self.waiting(endpoint) > 0
    }

    /// Whether nothing is queued and nothing is being served.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.serving.get().is_none() && self.turn.borrow().is_empty()
    }

    /// Requests queued on `endpoint`.
    pub fn waiting(&self, endpoint: u32) -> usize {
        let own = usize::from(self.serving.get() == Some(endpoint));
        own + self.queues.borrow().get(endpoint as usize).map_or(0, VecDeque::len)
    }

    /// Queues a request.
    pub fn add(&self, endpoint: u32, request: Request) {
        let mut queues = self.queues.borrow_mut();
        if queues.len() <= endpoint as usize {
            queues.resize_with(endpoint as usize + 1, VecDeque::new);
        }
        let queue = &mut queues[endpoint as usize];
        if queue.is_empty() && self.serving.get() != Some(endpoint) {
            self.turn.borrow_mut().push_back(endpoint);
        }
        queue.push_back(request);
    }

    /// Calls one request of each endpoint in turn, round after round, until none gets on. Returns how many ended.
    pub fn serve(&self) -> usize {
        if self.serving.get().is_some() || self.turn.borrow().is_empty() {
            return 0;
        }
        let mut done = 0;
        let mut stuck = 0;
        // Each endpoint that does not get on counts until one does; when all are stuck the round is over.
        while stuck < self.turn.borrow().len() {
            let Some(endpoint) = self.turn.borrow_mut().pop_front() else { break };
            let Some(mut request) = self.queues.borrow_mut()[endpoint as usize].pop_front() else { continue };
            self.serving.set(Some(endpoint));
            // No borrow is held here: the request may add others.
            let outcome = request();
            self.serving.set(None);
            let mut queues = self.queues.borrow_mut();
            let queue = &mut queues[endpoint as usize];
            let mut dead = None;
            match outcome {
                Resume::Done => {
                    done += 1;
                    stuck = 0;
                    dead = Some(request);
                }
                Resume::Keep | Resume::Stop => {
                    queue.push_front(request);
                    stuck += 1;
                }
            }
            if !queue.is_empty() {
                self.turn.borrow_mut().push_back(endpoint);
            }
            drop(queues);
            // May be the last owner of an endpoint, whose end looks at the queues.
            drop(dead);
            if outcome == Resume::Stop {
                break;
            }
        }
        done
    }

    /// Takes every request off the queue of `endpoint`.
    pub fn purge(&self, endpoint: u32) -> Vec<Request> {
        let Some(queue) = self.queues.borrow_mut().get_mut(endpoint as usize).map(std::mem::take) else {
            return Vec::new();
        };
        self.turn.borrow_mut().retain(|other| *other != endpoint);
        queue.into()
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queues({} endpoints wait)", self.turn.borrow().len())
    }
}
