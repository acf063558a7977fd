//! The lock around an interface, and the thread that serves its peers while its program computes or sleeps.
//!
//! The thread waits for callers, and for frames as long as the program does not poll. Where it finds frames and the program has
//! polled since it looked last, it leaves them to the program and looks again after [`NAP`]: so it takes no core from a rank that
//! polls, and a rank that stops polling is served after that time.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::sockets::{self, Interest};
use super::state::State;
use crate::transport::lock::{Guard, Mutex};

/// How long the thread leaves frames to a program that polls. Chosen: ten times what the thread costs when it looks, so that it costs a
/// polling rank one per cent of a core.
const NAP: Duration = Duration::from_millis(1);
/// The numbers of descriptors in the thread's set.
const WAKE: u64 = 1;
const DATA: u64 = 2;

/// State that the program and the thread share.
pub struct Shared {
    state: Mutex<State>,
    /// Polls of the program.
    pub polls: AtomicU64,
    /// The program sleeps, or is about to: the thread serves at once, and rings the bell when an event comes that the program may wait for.
    armed: AtomicBool,
    /// The thread leaves frames to the program.
    naps: AtomicBool,
    /// Frames wait for the end of a burst, which the thread ends if the program does not.
    watches: AtomicBool,
    stops: AtomicBool,
    /// Wakes the thread.
    wake: OwnedFd,
    /// Wakes the program.
    pub bell: OwnedFd,
}

impl Shared {
    pub fn new(state: State) -> std::io::Result<Shared> {
        let (wake, bell) = (sockets::bell()?, sockets::bell()?);
        state.calls.set.add(&wake, WAKE, Interest::Input)?;
        state.calls.set.add(&state.data, DATA, Interest::Input)?;
        let no = || AtomicBool::new(false);
        let (armed, naps, watches, stops) = (no(), no(), no(), no());
        Ok(Shared { state: Mutex::new(state), polls: AtomicU64::new(0), armed, naps, watches, stops, wake, bell })
    }

    /// The interface.
    #[inline]
    pub fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        sockets::ring(&self.wake);
    }

    /// Wakes the thread if the program has found that a peer is to be called: only the thread makes calls. Each function of the program
    /// that reads or writes a socket ends with this.
    #[inline]
    pub fn wake_for_calls(&self, state: &mut State) {
        if std::mem::take(&mut state.has_calls) {
            self.wake();
        }
    }

    /// Something was pushed for `peer`.
    #[inline]
    pub fn pushed(&self, state: &mut State, peer: u32) {
        let waits = state.pushed(peer);
        if waits && !self.watches.load(Relaxed) {
            self.watches.store(true, Relaxed);
            self.wake();
        }
        self.wake_for_calls(state);
    }

    /// The program polls.
    #[inline]
    pub fn poll(&self, state: &mut State) -> usize {
        self.polls.store(self.polls.load(Relaxed) + 1, Relaxed);
        if self.armed.load(Relaxed) {
            self.poll_armed(state);
        } else {
            state.read_all();
        }
        let sent = state.end_bursts();
        self.wake_for_calls(state);
        sent
    }

    /// A poll between arming and sleep. What it finds makes the descriptor readable: the program may sleep without another look.
    #[cold]
    fn poll_armed(&self, state: &mut State) {
        let before = news(state);
        state.read_all();
        if news(state) != before {
            self.announce();
        }
    }

    /// Called when the program is about to sleep, and no event waits for it. A poll that finds nothing leaves it armed.
    pub fn arm(&self) {
        sockets::hush(&self.bell);
        // The lock that the caller holds orders this with what the thread brings.
        self.armed.store(true, SeqCst);
        if self.naps.load(SeqCst) {
            self.wake();
        }
    }

    /// Whether the thread leaves frames to the program.
    #[cfg(test)]
    pub fn naps(&self) -> bool {
        self.naps.load(SeqCst)
    }

    /// Whether the thread was woken and has not seen it. Takes it back.
    #[cfg(test)]
    pub fn was_woken(&self) -> bool {
        rustix::io::read(&self.wake, &mut [0u8; 8]).is_ok()
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stops.store(true, SeqCst);
        self.wake();
    }

    /// Rings the bell if the program sleeps.
    pub fn announce(&self) {
        if self.armed.swap(false, SeqCst) {
            sockets::ring(&self.bell);
        }
    }
}

/// The counts that change with each event that the program may wait for.
fn news(state: &State) -> (usize, usize, usize, u64, u64) {
    let core = &state.core;
    (core.arrivals.len(), core.done.len(), core.notices.len(), core.changes, core.losses)
}

/// The thread.
pub fn serve(shared: &Arc<Shared>) {
    sockets::block_signals();
    let mut next: Option<Instant> = None;
    let (mut polls, mut rests) = (0, None::<Instant>);
    let set = shared.lock().calls.set.clone();
    loop {
        let now = Instant::now();
        let until = |at: Instant| at.saturating_duration_since(now);
        let is_watching = shared.watches.load(Relaxed);
        let limits = [next.map(until), rests.map(until), is_watching.then_some(NAP)];
        let limit = limits.into_iter().flatten().min();
        let ready = set.wait(limit);
        if shared.stops.load(SeqCst) {
            return;
        }
        // A program that goes on polling keeps its frames: nothing else is to be done, so the lock is left to it.
        if let Some(until) = rests
            && ready.is_empty()
            && !shared.armed.load(SeqCst)
            && shared.polls.load(Relaxed) != polls
            && next.is_none_or(|next| next > until)
        {
            polls = shared.polls.load(Relaxed);
            rests = Some(Instant::now() + NAP);
            continue;
        }
        let mut guard = shared.lock();
        // Behind the lock, which may have taken time: what the program has noted meanwhile is not later than this.
        let now = Instant::now();
        let state = &mut *guard;
        let before = news(state);
        let mut has_data = false;
        for number in ready {
            match number {
                WAKE => sockets::hush(&shared.wake),
                DATA => has_data = true,
                number => state.call_event(number, now),
            }
        }
        let is_armed = shared.armed.load(SeqCst);
        let was_polled = shared.polls.load(Relaxed) != polls;
        polls = shared.polls.load(Relaxed);
        if has_data {
            if is_armed || !was_polled {
                state.read_all();
            } else if rests.is_none() {
                rests = Some(now + NAP);
                shared.naps.store(true, SeqCst);
                // Out of the set, not only without interest: each frame would call on the set.
                state.calls.set.remove(&state.data);
            }
        }
        // A program that armed in a nap has woken the thread: it serves from now on.
        if rests.is_some_and(|until| until <= now || shared.armed.load(SeqCst)) {
            if state.calls.set.add(&state.data, DATA, Interest::Input).is_ok() {
                rests = None;
                shared.naps.store(false, SeqCst);
            } else {
                // No room, though it was in the set before: others of this user may have taken it. Serves without, and tries again.
                state.read_all();
                rests = Some(Instant::now() + NAP);
            }
        }
        if is_watching && !was_polled && state.end_bursts() == 0 {
            shared.watches.store(false, Relaxed);
        }
        next = state.keep_time(now, next);
        if news(state) != before {
            shared.announce();
        }
    }
}
