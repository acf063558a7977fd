//! Progress for contexts whose owner is idle.
//!
//! An interface may need further progress after a call has returned: for a request that waits for credit, a message that waits for
//! the answer to an earlier put, or an acknowledgement without which the peer sends no more. A wait can depend on that: a rank waits
//! for a message whose sender computes, or a context waits for room that messages of another context hold. So each poll and each
//! wait of a rank, by the world or by a context, makes progress for the rank's other contexts too.
//!
//! Polls only try the locks. They skip a context with nothing in flight, and one that its owner has used since the previous
//! visit: the owner makes progress itself, and contention on its lock is avoided. Events are left to the owner, but for those of receipts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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

    /// Whether none of them has anything in flight. If so, the next use of one of them wakes the rank.
    pub(super) fn are_at_rest(&self) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return true;
        }
        // Another thread makes progress for them now.
        let Some(list) = self.list.try_lock() else { return false };
        list.iter().filter_map(Weak::upgrade).all(|stream| stream.is_at_rest())
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
    /// The rank's thread for progress dozes, or is about to: the owner's next use wakes it. Changed under the context's lock, read there too.
    watched: AtomicBool,
}

impl Uses {
    /// The owner uses the context. Called under the context's lock. Calls `wake` if the rank's thread for progress dozes.
    #[inline]
    pub(super) fn note(&self, wake: impl FnOnce()) {
        self.count.store(self.count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.watched.load(Ordering::Relaxed) {
            self.watched.store(false, Ordering::Relaxed);
            wake();
        }
    }
}

impl Stream {
    /// Notes whether this context is in use from now on. If no context is, waits of the rank that only a context could end fail.
    pub(crate) fn note_used(&self, used: bool) {
        let unused = &self.home.shared.unused;
        // Relaxed: see `Engine::has_contexts`.
        if used {
            unused.fetch_sub(1, Ordering::Relaxed);
        } else {
            unused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether nothing of it is in flight. If so, its owner's next use wakes the rank.
    fn is_at_rest(&self) -> bool {
        let Some(network) = &self.network else { return true };
        let uses = &network.uses;
        // Its owner uses it now.
        let Some(_driven) = self.try_driven() else { return false };
        let is_at_rest = uses.at_rest.load(Ordering::Relaxed) == uses.count.load(Ordering::Relaxed);
        uses.watched.store(is_at_rest, Ordering::Relaxed);
        is_at_rest
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
        if done == 0 {
            match driven.at_once(|driven| driven.is_quiet(self, DOING)) {
                Ok(true) => uses.at_rest.store(count, Ordering::Relaxed),
                Ok(false) => {}
                Err(error) => driven.faults.push_back(error),
            }
        }
        self.sleepers.arm_again(&driven);
        done
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::super::operation::{Event, Group, Member, Operation, Step, Tracked};
    use super::super::super::remote_access::Answer;
    use super::super::queued::Kept;
    use crate::error::{Error, Result};
    use crate::{Settings, Threads, Transport, transport};

    /// The network of a context has lost a connection, and the roster does not know the cause yet. The owner of the context makes no calls,
    /// so polls of the world find the loss.
    #[test]
    fn a_poll_does_not_wait_for_what_the_roster_may_tell_a_context() {
        let settings = Settings { transport: Transport::ShmContract, ..Settings::default() };
        let job = Threads::new(2).settings(settings).deadline(Duration::from_secs(60));
        let ranks = job.run(|world| -> Result<()> {
            world.barrier()?;
            if world.rank() == 0 {
                // Puts that wait for room; an operation with events; operations that only have to be flushed.
                for in_flight in ["kept", "tracked", "flushed"] {
                    let context = world.engine().open_context()?;
                    let done = Arc::new(Group::default());
                    let mut driven = context.driven();
                    driven.is_broken = true;
                    if in_flight == "kept" {
                        // A word that only contexts change.
                        let offset = context.handled;
                        let put =
                            Operation::Put { offset, bytes: vec![0; 8].into(), done: 0, after: false, tell: false };
                        driven.kept.insert(1, VecDeque::from([Kept::Own(put)]));
                    }
                    if in_flight == "tracked" {
                        let answer = Arc::new(Answer::default());
                        answer.finish(Err(transport::Error::ConnectionReset));
                        let events = vec![Event::End(Member::new(&done))];
                        driven.tracking.operations.push(Tracked::new(1, "put", Step::Flushing(answer), events));
                    }
                    drop(driven);
                    // The first poll after a use leaves a context alone.
                    for _ in 0..3 {
                        world.engine().turn();
                        let mut driven = context.try_driven().expect("nobody else is there");
                        assert!(driven.losses.cuts().is_empty(), "{in_flight}: waited until the roster had its time");
                        assert!(driven.faults.is_empty() && driven.dropped.is_empty(), "{in_flight}: told");
                        assert!(in_flight != "tracked" || done.outcome().is_none());
                        driven.losses.doubt_for_long(1);
                    }
                    let mut driven = context.driven();
                    assert_eq!(driven.kept.len(), usize::from(in_flight == "kept"));
                    assert_eq!(driven.tracking.operations.len(), usize::from(in_flight == "tracked"));
                    let is_quiet = driven.at_once(|driven| driven.is_quiet(&context, "a test"));
                    assert!(matches!(is_quiet, Ok(false)), "{is_quiet:?}");
                    driven.is_broken = false;
                    driven.losses = world.engine().failures.for_another();
                    drop(driven.tracking.give_up());
                    driven.turn(&context);
                    assert!(driven.kept.is_empty(), "what was kept goes out");
                    // The network reports a loss once; it is returned after the roster has had time to tell the cause.
                    let told = driven.next_fault();
                    assert!(matches!(told, Some(Error::PeerLost { rank: 1, .. })), "{in_flight}: {told:?}");
                    assert!(driven.next_fault().is_none());
                    drop(driven);
                    context.flush_all("a test")?;
                }
            }
            world.barrier()
        });
        ranks.expect("ranks start").into_iter().for_each(|rank| rank.expect("runs"));
    }
}
