//! Progress for contexts whose owner is idle.
//!
//! An interface may need further progress after a call has returned: for a request that waits for credit, a message that waits for
//! the answer to an earlier put, or an acknowledgement without which the peer sends no more. A wait can depend on that: a rank waits
//! for a message whose sender computes, or a context waits for room that messages of another context hold. So each poll and each
//! wait of a rank, by the world or by a context, makes progress for the rank's other contexts too.
//!
//! Polls only try the locks. They skip a context with nothing in flight, and one that its owner has used since the previous
//! visit: the owner makes progress itself, and contention on its lock is avoided. Events are left to the owner, but for those of receipts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use super::Stream;
use crate::transport::lock::Mutex;

const DOING: &str = "making progress for a context";

/// The open contexts of a rank that have an interface.
#[derive(Debug, Default)]
pub(super) struct Siblings {
    list: Mutex<Vec<Weak<Stream>>>,
    /// How many there are. Most polls read only this.
    count: AtomicUsize,
}

impl Siblings {
    pub(super) fn add(&self, stream: &Arc<Stream>) {
        let mut list = self.list.lock();
        list.push(Arc::downgrade(stream));
        self.count.store(list.len(), Ordering::Relaxed);
    }

    pub(super) fn remove(&self, stream: &Stream) {
        let mut list = self.list.lock();
        list.retain(|other| !std::ptr::eq(other.as_ptr(), stream));
        self.count.store(list.len(), Ordering::Relaxed);
    }

    pub(super) fn all(&self) -> Vec<Arc<Stream>> {
        self.list.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes progress for all of them except `caller`. Returns how much was done.
    #[inline]
    pub(super) fn turn(&self, caller: *const Stream) -> usize {
        // Relaxed: a later poll finds a context that was just opened.
        if self.count.load(Ordering::Relaxed) == 0 { 0 } else { self.turn_each(caller) }
    }

    #[inline(never)]
    fn turn_each(&self, caller: *const Stream) -> usize {
        // Another thread does it now.
        let Some(list) = self.list.try_lock() else { return 0 };
        let others = list.iter().filter(|other| !std::ptr::eq(other.as_ptr(), caller));
        others.filter_map(Weak::upgrade).map(|other| other.turn_if_idle()).sum()
    }
}

/// Use counts of a context. Equal counts mean no use in between; all are Relaxed and order nothing.
#[derive(Debug, Default)]
pub(super) struct Uses {
    count: AtomicUsize,
    /// `count` when a visit last found a change.
    seen: AtomicUsize,
    /// `count` when a visit found nothing in flight.
    at_rest: AtomicUsize,
}

impl Uses {
    /// The owner uses the context. Called under the context's lock.
    #[inline]
    pub(super) fn note(&self) {
        self.count.store(self.count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

impl Stream {
    /// Whether anybody uses this context, from now on: waits of the rank that nothing but a context could end then end in an error.
    pub(crate) fn note_used(&self, used: bool) {
        let unused = &self.home.shared.unused;
        // Relaxed: see `Engine::has_contexts`.
        if used {
            unused.fetch_sub(1, Ordering::Relaxed);
        } else {
            unused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes progress for a context of another thread, unless that is of no use.
    fn turn_if_idle(&self) -> usize {
        let Some(network) = &self.network else { return 0 };
        let uses = &network.uses;
        let count = uses.count.load(Ordering::Relaxed);
        if uses.at_rest.load(Ordering::Relaxed) == count {
            return 0;
        }
        // In virtual time, time passes only when nothing can run: a context skipped here might never be visited again. So this
        // check skips none then.
        if !network.paced && uses.seen.load(Ordering::Relaxed) != count {
            uses.seen.store(count, Ordering::Relaxed);
            return 0;
        }
        let Some(mut driven) = self.try_driven() else { return 0 };
        let done = driven.turn(self);
        // To check for an error of a doubtful peer would wait until the roster knows.
        if done == 0 && !driven.losses.has_doubts() {
            match driven.is_quiet(self, DOING) {
                Ok(true) => uses.at_rest.store(count, Ordering::Relaxed),
                Ok(false) => {}
                Err(error) => driven.faults.push_back(error),
            }
        }
        self.sleepers.arm_again(&driven);
        done
    }
}
