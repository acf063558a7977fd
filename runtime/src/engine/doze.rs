//! The doze of a thread that makes progress for a rank while no call of the program does. The thread leaves the engine to other threads, and
//! sleeps in the rank's descriptor until there is something to do.
//!
//! Each row is an event that gives the thread something to do, and why the thread does not sleep through it. "Inside" is the thread that has
//! the rank's lock.
//!
//! | event | what makes the descriptor readable | if it comes before the thread sleeps |
//! | --- | --- | --- |
//! | a message, or room, from a mapped rank | the sender swaps the word, which is LISTENING, and rings the socket | `listen` checks the lanes after it has announced |
//! | a message, an answer or a lost connection of a network | the network's descriptor, armed after the last progress | the arming fails, and the thread does not doze |
//! | a post on a context | the context's owner sees `watched`, and wakes the rank | the context is not at rest, and the thread does not doze |
//! | a call enters | it ends the doze: it may consume what a network has announced, sleep itself, or leave something to send | it has the lock first |
//! | the end of a rank | whoever enters the end in the roster rings every descriptor of the host | the count of ends differs from that of the last arming |
//! | the end of the thread | the thread that asks for it enters first | the thread checks that inside, before it dozes |
//!
//! Some work goes on without an event: operations that are kept for lack of room, tasks of the engine, ranks to be woken when a put is in effect,
//! peers that the network cannot reach for a reason that the roster does not tell yet. With any of these the thread does not doze, and polls.
//! Puts over a silent network give the thread nothing to do: the call that waits for such a put polls by itself.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Engine;
use super::wakeup::{UNANNOUNCED, Wakeup, poll_one};
use crate::error::{Error, Result};

/// Longest doze. Every event above ends it earlier; this bounds how long a ring that failed, for lack of kernel memory, delays the thread, and
/// how long the thread outlives the rank. In tests it is so long that they run into their limits if an event does not wake the thread.
const LONGEST: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 1 });

/// The doze of a rank's thread, for the thread inside.
pub(crate) struct Doze {
    wakeup: Rc<Wakeup>,
    stands: Arc<AtomicBool>,
}

/// The same, for the thread that dozes.
pub(crate) struct Dozer {
    /// The descriptor of the rank. Another one for the same set: the rank may close its own meanwhile.
    gathered: OwnedFd,
    /// Kept open, so that it stays in the set.
    _signals: Arc<OwnedFd>,
    stands: Arc<AtomicBool>,
}

impl Engine {
    /// For a thread that makes progress for this rank.
    ///
    /// # Errors
    /// As [`Engine::wakeup`].
    pub(crate) fn doze(&self) -> Result<(Doze, Dozer)> {
        let wakeup = self.wakeup()?;
        let gathered = wakeup.descriptor().try_clone_to_owned().map_err(|source| Error::Os {
            doing: "making an event descriptor",
            call: "fcntl",
            source,
        })?;
        let (_signals, stands) = (Arc::clone(wakeup.signals()), Arc::new(AtomicBool::new(false)));
        Ok((Doze { wakeup, stands: Arc::clone(&stands) }, Dozer { gathered, _signals, stands }))
    }

    /// As [`Engine::arm`], for a thread that dozes. `look`: the descriptor becomes readable after this time, too. `false` also for an error.
    fn arm_to_doze(&self, wakeup: &Wakeup, look: Option<Duration>) -> bool {
        if !self.is_own() || !self.job.is_intact() {
            return false;
        }
        self.look_for_dead(wakeup);
        // What a call has signalled was done under the rank's lock, which this thread has now.
        wakeup.take_signals();
        let armed = self.listen(wakeup, true);
        if armed {
            let unreachable = self.job.may_be_unreachable(self.rank).then_some(UNANNOUNCED);
            match [unreachable, self.networks.longest_sleep(), look].into_iter().flatten().min() {
                Some(silence) => wakeup.restart_alarm(silence),
                None => wakeup.stop_alarm(),
            }
        }
        armed
    }

    /// Takes back [`Engine::arm_to_doze`], and makes the descriptor readable.
    fn take_back(&self, wakeup: &Wakeup) {
        // In a forked child the thread that dozes is the parent's.
        if self.is_own() {
            self.wakeup.note_disarmed();
            self.job.sleep_word(self.rank).withdraw();
            // A full eventfd is readable, too.
            let _ = rustix::io::write(wakeup.signals(), &1u64.to_ne_bytes());
        }
    }

    /// Whether something is to be done that no event announces.
    fn has_unannounced_work(&self) -> bool {
        self.outbox.any() || self.tasks.any() || self.remote.owes_nudges() || self.failures.has_doubts()
    }
}

impl Doze {
    /// Lets the thread, which is inside and has found nothing to do, doze once it is outside. `look`: it also has to look for something that
    /// nothing announces, so often. `false`: there is something to do, and the thread has to poll again.
    pub(crate) fn begin(&self, engine: &Engine, look: Option<Duration>) -> bool {
        let mut dozes = !engine.has_unannounced_work() && engine.arm_to_doze(&self.wakeup, look);
        // Behind the arming: a post that comes later makes the descriptor readable.
        if dozes && !engine.contexts.are_at_rest() {
            engine.take_back(&self.wakeup);
            dozes = false;
        }
        // Read by the thread inside, and by the dozing thread as a hint.
        self.stands.store(dozes, Ordering::Relaxed);
        dozes
    }

    /// Whether it stands, for threads outside.
    #[cfg(test)]
    pub(crate) fn stands(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stands)
    }

    /// Ends the doze, if one stands: called first by each thread that enters.
    #[inline]
    pub(crate) fn end(&self, engine: &Engine) {
        if self.stands.load(Ordering::Relaxed) {
            self.end_standing(engine);
        }
    }

    #[cold]
    fn end_standing(&self, engine: &Engine) {
        self.stands.store(false, Ordering::Relaxed);
        engine.take_back(&self.wakeup);
    }
}

impl Dozer {
    /// Sleeps while the doze stands and nothing comes. Whether it stands still: then something has come, and no other thread is inside.
    pub(crate) fn sleep(&self) -> bool {
        poll_one(std::os::fd::AsFd::as_fd(&self.gathered), Some(LONGEST)).is_ok() && self.stands.load(Ordering::Relaxed)
    }
}
