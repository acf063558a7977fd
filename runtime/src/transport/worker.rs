//! A group of interfaces that one thread progresses together.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use super::Interface;

/// A progress engine. Two workers have nothing in common, so two threads can progress theirs at the same time.
#[derive(Debug)]
pub struct Worker<I>(RefCell<Vec<Weak<I>>>);

impl<I> Default for Worker<I> {
    fn default() -> Self {
        Worker(RefCell::default())
    }
}

impl<I: Interface> Worker<I> {
    /// A worker with no interface.
    pub fn new() -> Worker<I> {
        Worker::default()
    }

    /// Progresses `interface` from now on. [`super::Domain::open_interface`] calls it.
    pub fn adopt(&self, interface: &Rc<I>) {
        self.0.borrow_mut().push(Rc::downgrade(interface));
    }

    /// Makes progress for every interface that is enabled. Returns how much was done.
    pub fn progress(&self) -> usize {
        let mut done = 0;
        let mut gone = false;
        for index in 0.. {
            // No borrow is held while callbacks run: they may open interfaces.
            let Some(member) = self.0.borrow().get(index).map(Weak::upgrade) else { break };
            match member {
                Some(interface) => done += interface.progress(),
                None => gone = true,
            }
        }
        if gone {
            self.0.borrow_mut().retain(|member| member.strong_count() > 0);
        }
        done
    }
}
