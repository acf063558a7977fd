//! Ports: what a handle names. A fixed table of them, each with one lock.
//!
//! A port holds a [`Domain`]: the world and all that belongs to it, none of which may be used by two threads at a time. A thread enters
//! with the port's lock, or as its favourite. It may enter again: handlers run inside a poll, and may call.
//!
//! # Without the lock
//!
//! Mostly one thread calls, and locked instructions would be most of what a short message costs: each waits until the line of the
//! message before is there. A thread that has entered [`STREAK`] times in a row gets a seat, and becomes the port's favourite (biased
//! locking, Kawachiya et al. 2002): it enters by a store to `inside` of its seat and a load of `favourite`. Another thread takes the lock, clears
//! `favourite`, runs a barrier on the cores of all threads of the process (membarrier(2)), and waits until `inside` is 0. After the barrier
//! either the favourite has seen that it is none any more, or its store to `inside` is seen. A favourite that leaves looks again, and
//! wakes who waits. A seat never changes its thread: one that was interrupted between its first look and its store then disturbs nobody.
//!
//! A handle is `generation * 64 + slot`. Each `Init` and each `Term` increments the generation of its slot, so a handle that was
//! used up is never taken for a live one before the generation wraps.

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::codes;
use super::domain::Domain;
use crate::sleep::{self, futex};
pub(super) use crate::vocabulary::lock::lock;

/// Wakes the thread that sleeps in a port.
pub(super) type Waker = Box<dyn Fn() + Send + Sync>;

/// Most handles at a time.
pub(super) const SLOTS: usize = 64;
/// Times that a thread enters by the lock, no other between, before it becomes the favourite. Chosen: making one costs a store, ending
/// it a few microseconds.
const STREAK: u32 = 64;
/// Threads that can become favourites of one port. Chosen.
const SEATS: usize = 4;
/// Longest sleep until the favourite has left; it also wakes who waits. Chosen.
const LEAVES: Duration = Duration::from_millis(5);

/// The place of a thread that is or was the favourite of a port.
struct Seat {
    /// Whose it is, by [`token`]; 0 is nobody's yet. Changed once, under the lock.
    token: AtomicUsize,
    /// 1 while the thread is in the port as its favourite, or finds out whether it still is that.
    inside: AtomicU32,
}

/// What a handle names.
pub(super) struct Port {
    lock: Mutex<()>,
    /// That of the thread which is in the port by the lock, and only touched by it.
    guard: UnsafeCell<Option<MutexGuard<'static, ()>>>,
    /// The thread that is inside, by [`token`]; 0 is none.
    owner: AtomicUsize,
    /// The seat of the thread that enters without the lock, plus one; 0 is none. Changed under the lock.
    favourite: AtomicUsize,
    seats: [Seat; SEATS],
    /// The seat of the last favourite. Changed under the lock.
    recent: AtomicUsize,
    /// The thread that entered last by the lock, and how many times in a row. Changed under the lock.
    last: AtomicUsize,
    streak: AtomicU32,
    /// Calls that made progress so far.
    polls: AtomicU64,
    /// Threads that wait for the lock: a waiting owner gives it up.
    contenders: AtomicU32,
    /// Of the handle that is valid now, if `domain` is there.
    generation: AtomicU32,
    /// Whether `domain` is there, for threads that are not in the port.
    occupied: AtomicBool,
    domain: UnsafeCell<Option<Rc<Domain>>>,
    /// Ends a sleep of the owner.
    waker: Mutex<Option<Waker>>,
}

// SAFETY:
// - `domain` is only touched by the thread that is in the port: the one that holds `lock` when no seat is `inside`, or the favourite
//   (see the module);
// - a domain holds the only handles to its world and to what that is made of (`Domain::new` starts the world itself, from a builder
//   without handlers, and takes it off the list of worlds of its thread), so no part of it is in use elsewhere;
// - nothing of a world depends on the thread that uses it, except on a simulated network, where `Domain::on_own_thread` keeps
//   other threads out.
unsafe impl Sync for Port {}
// SAFETY: as above.
unsafe impl Send for Port {}

static PORTS: [Port; SLOTS] = [const { Port::new() }; SLOTS];

/// A number of this thread that no other living thread has. Not 0.
fn token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|token| std::ptr::from_ref(token) as usize)
}

/// How a thread is in a port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It had entered before, further out.
    Nested,
    /// With the lock; its guard is in the port.
    Locked,
    /// As the favourite; its seat is the recent one.
    Favoured,
}

/// The right to use a port, until it is dropped. Two words, which are passed in registers: where it was stored in parts and loaded as a
/// whole, each call waited until the message before had left the store buffer.
pub(super) struct Entered {
    /// Keeps it on its thread.
    domain: *const Domain,
    way: Way,
}

impl Entered {
    /// Whether this is inside another call of this thread: in a handler that a poll runs.
    #[inline(always)]
    pub(super) fn is_nested(&self) -> bool {
        self.way == Way::Nested
    }
}

impl Deref for Entered {
    type Target = Domain;

    #[inline(always)]
    fn deref(&self) -> &Domain {
        // SAFETY: `enter` found it there; only `take`, which needs the outermost right, removes it.
        unsafe { &*self.domain }
    }
}

impl Drop for Entered {
    #[inline(always)]
    fn drop(&mut self) {
        split(self.handle).0.exit(self.way);
    }
}

impl Port {
    const fn new() -> Port {
        Port {
            lock: Mutex::new(()),
            guard: UnsafeCell::new(None),
            owner: AtomicUsize::new(0),
            favourite: AtomicUsize::new(0),
            seats: [const { Seat { token: AtomicUsize::new(0), inside: AtomicU32::new(0) } }; SEATS],
            recent: AtomicUsize::new(0),
            last: AtomicUsize::new(0),
            streak: AtomicU32::new(0),
            polls: AtomicU64::new(0),
            contenders: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            occupied: AtomicBool::new(false),
            domain: UnsafeCell::new(None),
            waker: Mutex::new(None),
        }
    }

    /// Takes the lock, and waits until nobody is inside.
    #[cold]
    #[inline(never)]
    fn acquire(&self) -> MutexGuard<'_, ()> {
        let lock = self.try_acquire().unwrap_or_else(|| {
            // Before the wake-up: an owner that announces its sleep looks here once more.
            self.contenders.fetch_add(1, Ordering::SeqCst);
            if let Some(wake) = &*lock(&self.waker) {
                wake();
            }
            let lock = lock(&self.lock);
            self.contenders.fetch_sub(1, Ordering::SeqCst);
            lock
        });
        if !self.end_favour() {
            self.contenders.fetch_add(1, Ordering::SeqCst);
            let inside = &self.recent().inside;
            // Acquire: pairs with the Release in `leave`.
            while inside.load(Ordering::Acquire) != 0 {
                if let Some(wake) = &*self::lock(&self.waker) {
                    wake();
                }
                match cfg!(bellwether_tsan) {
                    true => std::thread::yield_now(),
                    false => futex::wait(inside, 1, Some(LEAVES)),
                }
            }
            self.contenders.fetch_sub(1, Ordering::SeqCst);
        }
        lock
    }

    fn try_acquire(&self) -> Option<MutexGuard<'_, ()>> {
        // A panic of a handler leaves the domain as it was between two messages.
        match self.lock.try_lock() {
            Ok(lock) => Some(lock),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn recent(&self) -> &Seat {
        &self.seats[self.recent.load(Ordering::Relaxed)]
    }

    /// There is no favourite from now on; whether none is inside. The calling thread has the lock.
    fn end_favour(&self) -> bool {
        if self.favourite.load(Ordering::Relaxed) != 0 {
            self.favourite.store(0, Ordering::Relaxed);
            self.last.store(0, Ordering::Relaxed);
            // Pairs with the compiler fences in `enter_favoured` and `leave`.
            sleep::run_barrier();
        }
        // Acquire: pairs with the Release in `leave`.
        self.recent().inside.load(Ordering::Acquire) == 0
    }

    /// Whether this thread, of token `me`, is the favourite; it is inside then, and its seat stays the recent one until it leaves.
    #[inline(always)]
    fn enter_favoured(&self, me: usize) -> bool {
        // Acquire: pairs with the Release in `end_turn`, of a thread that has ended and had the same token.
        let favourite = self.favourite.load(Ordering::Acquire);
        let Some(seat) = self.seats.get(favourite.wrapping_sub(1)) else { return false };
        if seat.token.load(Ordering::Relaxed) != me {
            return false;
        }
        seat.inside.store(1, Ordering::Relaxed);
        // Pairs with the barrier in `end_favour`.
        compiler_fence(Ordering::SeqCst);
        // Only this thread makes its own seat the favourite's, so it is so since the first look, and nobody has entered meanwhile.
        if self.favourite.load(Ordering::Relaxed) == favourite {
            return true;
        }
        self.leave(seat);
        false
    }

    /// The thread that is in the port leaves.
    #[inline(always)]
    fn exit(&self, way: Way) {
        match way {
            Way::Nested => {}
            Way::Favoured => {
                self.owner.store(0, Ordering::Relaxed);
                self.leave(self.recent());
            }
            Way::Locked => self.end_turn(),
        }
    }

    /// The thread of this seat leaves.
    #[inline(always)]
    fn leave(&self, seat: &Seat) {
        // Pairs with the Acquire loads in `end_favour` and `acquire`.
        seat.inside.store(0, Ordering::Release);
        // Pairs with the barrier in `end_favour`.
        compiler_fence(Ordering::SeqCst);
        if self.favourite.load(Ordering::Relaxed) == 0 {
            Self::wake_next(seat);
        }
    }

    #[cold]
    fn wake_next(seat: &Seat) {
        futex::wake_all(&seat.inside);
    }

    /// The thread that is in the port by the lock leaves.
    #[inline(never)]
    fn end_turn(&self) {
        let me = self.owner.load(Ordering::Relaxed);
        self.owner.store(0, Ordering::Relaxed);
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
        // SAFETY: this thread has the lock, and put its guard there.
        drop(unsafe { (*self.guard.get()).take() });
    }

    /// The thread of token `me`, which has the lock, becomes the favourite, if there is a seat for it.
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
    pub(super) fn is_contended(&self) -> bool {
        // Pairs with the SeqCst in `acquire`.
        self.contenders.load(Ordering::SeqCst) != 0
    }
}

/// The port and the generation that a handle names.
fn split(handle: u32) -> (&'static Port, u32) {
    (&PORTS[handle as usize % SLOTS], handle / SLOTS as u32)
}

/// Enters the port of a handle; waits while another thread is in it.
///
/// # Errors
/// [`codes::HNDL_INVALID`].
#[inline(always)]
pub(super) fn enter(handle: u32) -> Result<Entered, i32> {
    let (port, generation) = split(handle);
    // Before the lock too: the handle in use now may be another rank's, which waits in its port.
    if port.generation.load(Ordering::Relaxed) != generation {
        return Err(codes::HNDL_INVALID);
    }
    let me = token();
    // Only this thread stores its own token.
    if port.owner.load(Ordering::Relaxed) == me {
        port.admit(Way::Nested, generation, me)
    } else if port.enter_favoured(me) {
        port.admit(Way::Favoured, generation, me)
    } else {
        port.enter_locked(port.acquire(), generation, me)
    }
}

impl Port {
    #[cold]
    #[inline(never)]
    fn enter_locked(&'static self, lock: MutexGuard<'static, ()>, generation: u32, me: usize) -> Result<Entered, i32> {
        // SAFETY: this thread has the lock.
        unsafe { *self.guard.get() = Some(lock) };
        self.admit(Way::Locked, generation, me)
    }

    /// The right to this port, for the thread of token `me` that is in it.
    #[inline(always)]
    fn admit(&self, way: Way, generation: u32, me: usize) -> Result<Entered, i32> {
        // SAFETY: this thread has the right to look.
        match unsafe { (*self.domain.get()).as_deref() } {
            Some(domain) if self.generation.load(Ordering::Relaxed) == generation && domain.may_enter() => {
                if way != Way::Nested {
                    self.owner.store(me, Ordering::Relaxed);
                }
                Ok(Entered { domain, way })
            }
            _ => {
                self.exit(way);
                Err(codes::HNDL_INVALID)
            }
        }
    }
}

/// Enters the port of a handle if no thread is in it.
pub(super) fn try_enter(handle: u32) -> Option<Entered> {
    let (port, generation) = split(handle);
    // A favourite that is inside stays one.
    if port.recent().inside.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let lock = port.try_acquire()?;
    if !port.end_favour() {
        return None;
    }
    port.enter_locked(lock, generation, token()).ok()
}

/// Counts a call of this handle that makes progress. The calling thread is in the port.
#[inline(always)]
pub(super) fn count_poll(handle: u32) {
    let polls = &split(handle).0.polls;
    polls.store(polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// Calls of this handle that made progress so far.
pub(super) fn polls(handle: u32) -> u64 {
    split(handle).0.polls.load(Ordering::Relaxed)
}

/// As [`enter`], but where another thread is in the port, `None`.
///
/// # Errors
/// [`codes::HNDL_INVALID`].
pub(super) fn enter_unless_busy(handle: u32) -> Result<Option<Entered>, i32> {
    let (port, generation) = split(handle);
    if port.generation.load(Ordering::Relaxed) != generation {
        return Err(codes::HNDL_INVALID);
    }
    match port.owner.load(Ordering::Relaxed) {
        0 => {}
        owner if owner == token() => {}
        _ => return Ok(None),
    }
    enter(handle).map(Some)
}

/// Whether another thread waits to enter the port of this handle.
pub(super) fn is_contended(handle: u32) -> bool {
    split(handle).0.is_contended()
}

/// Which ports a start has marked: starting a world takes long, and other threads may start theirs meanwhile.
static TAKEN: Mutex<[bool; SLOTS]> = Mutex::new([false; SLOTS]);

/// A mark, which is given back also when the start panics.
struct Marked(usize);

impl Drop for Marked {
    fn drop(&mut self) {
        lock(&TAKEN)[self.0] = false;
    }
}

/// Marks a free port.
fn mark() -> Option<Marked> {
    let mut taken = lock(&TAKEN);
    // Pairs with the Release in `vacate`. A favourite is in the port without its lock, so `domain` itself tells nothing here.
    let is_free = |slot: usize| !PORTS[slot].occupied.load(Ordering::Acquire);
    let slot = (0..SLOTS).find(|slot| !taken[*slot] && is_free(*slot))?;
    taken[slot] = true;
    Some(Marked(slot))
}

/// Ends the sleep of the thread that is in the port of this handle.
pub(super) fn wake(handle: u32) {
    if let Some(wake) = &*lock(&split(handle).0.waker) {
        wake();
    }
}

/// Takes a free port for the domain that `make` makes of its handle.
///
/// # Errors
/// [`codes::ALL_HNDL_IN_USE`]; those of `make`.
pub(super) fn occupy(make: impl FnOnce(u32) -> Result<(Rc<Domain>, Waker), i32>) -> Result<u32, i32> {
    let marked = mark().ok_or(codes::ALL_HNDL_IN_USE)?;
    let slot = marked.0;
    let port = &PORTS[slot];
    // Handles are not 0, which programs take for none.
    let generation = (port.generation.load(Ordering::Relaxed) + 1) % (u32::MAX / SLOTS as u32);
    let generation = generation.max(1);
    let handle = generation * SLOTS as u32 + slot as u32;
    let (domain, waker) = make(handle)?;
    let _lock = port.acquire();
    *lock(&port.waker) = Some(waker);
    // SAFETY: this thread has the lock, and `acquire` has waited until nobody is inside.
    unsafe { *port.domain.get() = Some(domain) };
    port.occupied.store(true, Ordering::Relaxed);
    port.generation.store(generation, Ordering::Relaxed);
    Ok(handle)
}

/// Ends a handle, and gives the domain that it named.
///
/// # Errors
/// [`codes::HNDL_INVALID`]; [`codes::IN_HANDLER`].
pub(super) fn vacate(handle: u32) -> Result<Rc<Domain>, i32> {
    let entered = enter(handle)?;
    if entered.is_nested() {
        return Err(codes::IN_HANDLER);
    }
    let port = split(handle).0;
    let domain = entered.domain;
    port.generation.fetch_add(1, Ordering::Relaxed);
    // SAFETY: this thread is in the port, and has no other right to the domain: it is not nested, and `entered` is not used any more.
    let taken = unsafe { (*port.domain.get()).take() };
    // Pairs with the Acquire in `mark`.
    port.occupied.store(false, Ordering::Release);
    debug_assert!(taken.as_deref().is_some_and(|taken| std::ptr::eq(taken, domain)));
    *lock(&port.waker) = None;
    drop(entered);
    taken.ok_or(codes::HNDL_INVALID)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn handles_never_made_are_refused() {
        for handle in [0, 1, 63, 64, u32::MAX] {
            assert_eq!(enter(handle).err().map(|code| code == codes::HNDL_INVALID), Some(true), "{handle}");
        }
    }
}
