//! A biased lock (Kawachiya et al. 2002): the thread that takes it almost always takes it without a locked instruction.
//!
//! Mostly one thread calls. A locked instruction waits until the core's earlier stores are visible, among them those of the previous message;
//! for short messages that wait would be most of the cost. So a thread that has taken the mutex [`STREAK`] times in a row becomes the
//! *favourite* and gets a seat. From then on it enters by a store and a load, until another thread wants to enter and revokes this:
//!
//! ```text
//!    favourite                        another thread, which holds the mutex
//!    F1  inside = 1                   R1  favourite = 0
//!    F2  compiler fence               R2  membarrier(2)
//!    F3  favourite unchanged?         R3  inside == 0?
//!    F4  yes: enter                   R4  yes: enter; no: sleep on `inside`
//! ```
//!
//! R2 is a full barrier on the core of every thread of the process. If F3 comes after it, F3 sees R1. If F3 comes before it, so does
//! F1, and R3 sees F1. So at most one of them enters. The favourite leaves in the same way: it stores 0 to `inside`, then loads
//! `favourite`, and wakes the sleeper if that is 0.
//!
//! A seat belongs to one thread for good. A thread may be interrupted between its first load of `favourite` and F1, for so long that another
//! thread becomes the favourite. F1 then changes a seat that nobody else uses, and F3 fails.
//!
//! `lapi/models.rs` runs this code under loom.

use std::cell::UnsafeCell;
use std::sync::TryLockError;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicUsize};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicUsize};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};

use crate::sleep;

/// Times that a thread takes the mutex, no other between, before it becomes the favourite. Chosen: making a favourite costs one store,
/// revoking it a few microseconds.
const STREAK: u32 = if cfg!(loom) { 1 } else { 64 };
/// Threads that can become favourites of one lock. Chosen.
const SEATS: usize = 4;
/// Longest sleep of a thread that revokes; after each it wakes the favourite again. Chosen.
#[cfg(not(any(loom, bellwether_tsan)))]
const LEAVES: std::time::Duration = std::time::Duration::from_millis(5);

/// Shows that a thread holds the mutex of a lock.
pub(in crate::vocabulary) type Guard<'a> = MutexGuard<'a, ()>;

/// The place of a thread that is or was the favourite of a lock.
#[cfg_attr(loom, derive(Default))]
struct Seat {
    /// The thread's token; 0 until the seat is given. Changed once, under the mutex.
    token: AtomicUsize,
    /// 1 while the thread is in as the favourite, or checks whether it still is the favourite.
    inside: AtomicU32,
    /// Stands for the kernel's queue in models.
    #[cfg(loom)]
    queue: loom::sync::Notify,
}

impl Seat {
    /// Sleeps while the thread is inside. May return early.
    fn wait(&self) {
        #[cfg(bellwether_tsan)]
        std::thread::yield_now();
        #[cfg(not(any(loom, bellwether_tsan)))]
        sleep::futex::wait(&self.inside, 1, Some(LEAVES));
        // No limit: loom reports a sleep that nothing ends.
        #[cfg(loom)]
        self.queue.wait();
    }

    #[cold]
    fn wake(&self) {
        #[cfg(not(loom))]
        sleep::futex::wake_all(&self.inside);
        #[cfg(loom)]
        self.queue.notify();
    }
}

/// A lock with a favourite. Threads are told apart by tokens: numbers that no other living thread has, and not 0.
#[cfg_attr(loom, derive(Default))]
pub(in crate::vocabulary) struct BiasedLock {
    mutex: Mutex<()>,
    /// The guard of the thread that holds the mutex for a whole turn.
    guard: UnsafeCell<Option<Guard<'static>>>,
    /// The favourite's seat, plus one; 0 is none. Changed under the mutex.
    favourite: AtomicUsize,
    seats: [Seat; SEATS],
    /// The seat of the last favourite. Changed under the mutex.
    recent: AtomicUsize,
    /// The thread that took the mutex last, and how many times in a row. Changed under the mutex.
    last: AtomicUsize,
    streak: AtomicU32,
    /// Threads that wait to enter: an owner that waits gives the lock up for these threads.
    contenders: AtomicU32,
}

// SAFETY: `guard` is only touched by the thread that holds `mutex`; all else is atomics.
unsafe impl Sync for BiasedLock {}

impl BiasedLock {
    #[cfg(not(loom))]
    pub(in crate::vocabulary) const fn new() -> BiasedLock {
        BiasedLock {
            mutex: Mutex::new(()),
            guard: UnsafeCell::new(None),
            favourite: AtomicUsize::new(0),
            seats: [const { Seat { token: AtomicUsize::new(0), inside: AtomicU32::new(0) } }; SEATS],
            recent: AtomicUsize::new(0),
            last: AtomicUsize::new(0),
            streak: AtomicU32::new(0),
            contenders: AtomicU32::new(0),
        }
    }

    /// Takes the mutex, revokes the favourite, and waits until it has left. `wake` ends the sleep of a thread that is in.
    #[cold]
    #[inline(never)]
    pub(in crate::vocabulary) fn acquire(&self, wake: &dyn Fn()) -> Guard<'_> {
        let guard = self.try_lock().unwrap_or_else(|| {
            // Before the wake-up: an owner that has announced its sleep checks `contenders` once more.
            self.contenders.fetch_add(1, Ordering::SeqCst);
            wake();
            let guard = self.lock();
            self.contenders.fetch_sub(1, Ordering::SeqCst);
            guard
        });
        if !self.revoke() {
            self.contenders.fetch_add(1, Ordering::SeqCst);
            let seat = self.recent();
            // Acquire: pairs with the Release in `leave`.
            while seat.inside.load(Ordering::Acquire) != 0 {
                wake();
                seat.wait();
            }
            self.contenders.fetch_sub(1, Ordering::SeqCst);
        }
        guard
    }

    /// Takes the mutex if no thread is in. A favourite that is in stays the favourite.
    pub(in crate::vocabulary) fn try_acquire(&self) -> Option<Guard<'_>> {
        if self.recent().inside.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.try_lock().filter(|_| self.revoke())
    }

    fn lock(&self) -> Guard<'_> {
        #[cfg(not(loom))]
        return super::lock::lock(&self.mutex);
        #[cfg(loom)]
        self.mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<Guard<'_>> {
        // A panic of a handler leaves the domain as it was between two messages.
        match self.mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline(always)]
    fn recent(&self) -> &Seat {
        &self.seats[self.recent.load(Ordering::Relaxed)]
    }

    /// Ends the favourite's right to enter. Returns whether no favourite is inside. The calling thread holds the mutex.
    fn revoke(&self) -> bool {
        if self.favourite.load(Ordering::Relaxed) != 0 {
            self.favourite.store(0, Ordering::Relaxed);
            self.last.store(0, Ordering::Relaxed);
            // Pairs with the light barriers in `enter_favoured` and `leave`.
            sleep::run_barrier();
        }
        // Acquire: pairs with the Release in `leave`.
        self.recent().inside.load(Ordering::Acquire) == 0
    }

    /// Enters if the thread of token `me` is the favourite. Its seat is the recent one, and stays so until it leaves.
    #[inline(always)]
    pub(in crate::vocabulary) fn enter_favoured(&self, me: usize) -> bool {
        // Acquire: pairs with the Release in `favour`, of a thread that has ended and had the same token.
        let favourite = self.favourite.load(Ordering::Acquire);
        let Some(seat) = self.seats.get(favourite.wrapping_sub(1)) else { return false };
        if seat.token.load(Ordering::Relaxed) != me {
            return false;
        }
        seat.inside.store(1, Ordering::Relaxed);
        // Pairs with the barrier in `revoke`.
        sleep::light_barrier();
        // Only this thread makes its own seat the favourite's. So if nothing changed, nobody has revoked it since the first load.
        if self.favourite.load(Ordering::Relaxed) == favourite {
            return true;
        }
        self.leave(seat);
        false
    }

    /// The thread that is in as the favourite leaves.
    #[inline(always)]
    pub(in crate::vocabulary) fn leave_favoured(&self) {
        self.leave(self.recent());
    }

    /// The thread of this seat is not inside any more.
    #[inline(always)]
    fn leave(&self, seat: &Seat) {
        // Release: pairs with the Acquire loads in `revoke` and `acquire`.
        seat.inside.store(0, Ordering::Release);
        // Pairs with the barrier in `revoke`: either this sees that the thread there may sleep, or that thread sees the store.
        sleep::light_barrier();
        if self.favourite.load(Ordering::Relaxed) == 0 {
            seat.wake();
        }
    }

    /// Keeps the guard of this lock until [`BiasedLock::end_turn`].
    pub(in crate::vocabulary) fn keep(&'static self, guard: Guard<'static>) {
        // SAFETY: this thread holds the mutex: it has its guard.
        unsafe { *self.guard.get() = Some(guard) };
    }

    /// The thread of token `me` leaves, whose guard is kept here. It becomes the favourite if it has taken the mutex often enough in a row;
    /// not if `me` is 0.
    ///
    /// # Safety
    /// The calling thread has called [`BiasedLock::keep`], and not this since.
    #[inline(always)]
    pub(in crate::vocabulary) unsafe fn end_turn(&self, me: usize) {
        self.count_turn(me);
        // SAFETY: this thread holds the mutex, whose guard it has put there.
        drop(unsafe { (*self.guard.get()).take() });
    }

    /// The thread of token `me` leaves, which has this guard. As [`BiasedLock::end_turn`].
    pub(in crate::vocabulary) fn release(&self, guard: Guard<'_>, me: usize) {
        self.count_turn(me);
        drop(guard);
    }

    #[inline(always)]
    fn count_turn(&self, me: usize) {
        if self.last.load(Ordering::Relaxed) == me {
            let streak = self.streak.load(Ordering::Relaxed).saturating_add(1);
            self.streak.store(streak, Ordering::Relaxed);
            if streak >= STREAK && me != 0 && !self.is_contended() && sleep::has_barrier() {
                self.favour(me);
            }
        } else {
            self.last.store(me, Ordering::Relaxed);
            self.streak.store(0, Ordering::Relaxed);
        }
    }

    /// The thread of token `me`, which holds the mutex, becomes the favourite if a seat is free.
    #[cold]
    fn favour(&self, me: usize) {
        self.streak.store(0, Ordering::Relaxed);
        let is_free = |seat: &Seat| matches!(seat.token.load(Ordering::Relaxed), token if token == 0 || token == me);
        if let Some(place) = self.seats.iter().position(is_free) {
            self.seats[place].token.store(me, Ordering::Relaxed);
            self.recent.store(place, Ordering::Relaxed);
            // Release: see `enter_favoured`.
            self.favourite.store(place + 1, Ordering::Release);
        }
    }

    /// Whether another thread waits to enter.
    pub(in crate::vocabulary) fn is_contended(&self) -> bool {
        // Pairs with the SeqCst in `acquire`.
        self.contenders.load(Ordering::SeqCst) != 0
    }
}
