//! The word that one rank sleeps on.

use std::time::Duration;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

use super::Fences;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// As ASLEEP, of a rank that may sleep in poll(2): a waker also rings its socket.
const LISTENING: u32 = 2;

/// The word that a rank sleeps on, in memory that all ranks of its host have mapped. Zeros are a rank that is awake.
///
/// One thread sleeps at a time; any number may wake it.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct SleepWord {
    state: AtomicU32,
    /// Stands for the kernel's queue in models.
    #[cfg(loom)]
    queue: loom::sync::Notify,
}

impl SleepWord {
    /// Announces that this thread is about to sleep, then calls `anything_there`. If there is something, the announcement is
    /// withdrawn and the result is `false`. Else everything stored from now on by a thread that then calls
    /// [`SleepWord::must_wake`] ends the sleep.
    pub fn announce(&self, fences: Fences, anything_there: impl FnOnce() -> bool) -> bool {
        self.announce_as(ASLEEP, fences, anything_there)
    }

    /// As [`SleepWord::announce`], for a rank that may sleep in poll(2), on a descriptor that wakers make readable. The announcement stands
    /// until a waker or the rank takes it back.
    pub fn announce_listening(&self, fences: Fences, anything_there: impl FnOnce() -> bool) -> bool {
        self.announce_as(LISTENING, fences, anything_there)
    }

    fn announce_as(&self, state: u32, fences: Fences, anything_there: impl FnOnce() -> bool) -> bool {
        self.state.store(state, Ordering::SeqCst);
        fences.of_sleeper();
        let sleeps = !anything_there();
        if !sleeps {
            self.withdraw();
        }
        sleeps
    }

    /// Sleeps in the kernel while the announcement stands, for at most `limit`. May return early.
    pub fn block(&self, limit: Duration) {
        #[cfg(not(loom))]
        super::futex::wait(&self.state, ASLEEP, Some(limit));
        // A futex sleeps only if the word is unchanged, and loom reports a sleep that nothing ends.
        #[cfg(loom)]
        while self.is_announced() {
            let _ = limit;
            self.queue.wait();
        }
    }

    /// The sleeper is awake again.
    pub fn withdraw(&self) {
        self.state.store(AWAKE, Ordering::SeqCst);
    }

    /// Whether the rank sleeps or is about to. Not ordered after this thread's stores: wakers call [`SleepWord::must_wake`].
    pub fn is_announced(&self) -> bool {
        self.state.load(Ordering::SeqCst) != AWAKE
    }

    /// Whether the announcement of a rank that listens stands: no waker has taken it back.
    pub fn listens(&self) -> bool {
        self.state.load(Ordering::SeqCst) == LISTENING
    }

    /// Whether the rank has to be woken. Called after the store that the rank waits for.
    #[inline(always)]
    pub fn must_wake(&self, fences: Fences) -> bool {
        fences.of_waker();
        self.state.load(Ordering::Relaxed) != AWAKE
    }

    /// Wakes the rank if it sleeps. Of several wakers one enters the kernel. Calls `ring` if the rank listens: it has to make the rank's
    /// descriptor readable.
    #[cold]
    pub fn wake(&self, ring: impl FnOnce()) {
        match self.state.swap(AWAKE, Ordering::SeqCst) {
            AWAKE => {}
            LISTENING => ring(),
            _ => {
                #[cfg(not(loom))]
                super::futex::wake_all(&self.state);
                #[cfg(loom)]
                self.queue.notify();
            }
        }
    }

    /// As [`SleepWord::wake`], and calls `ring` in any case: another waker may have taken the announcement back and died before it rang.
    #[cold]
    pub fn wake_after_death(&self, ring: impl FnOnce()) {
        self.wake(|| {});
        ring();
    }

    /// The word of a rank that is awake.
    #[cfg(test)]
    pub fn awake() -> SleepWord {
        SleepWord {
            state: AtomicU32::new(AWAKE),
            #[cfg(loom)]
            queue: loom::sync::Notify::new(),
        }
    }
}
