//! Ports: the objects that handles name. There is a fixed table of them, each with one lock.
//!
//! A port holds a [`Domain`]: the world and all that belongs to it. Only one thread at a time may use a domain. A thread enters the port
//! with its [`BiasedLock`]. A thread that is in the port may enter it again: handlers run inside a poll, and may make calls.
//!
//! A handle is `generation * 64 + slot`. Each `Init` and each `Term` increments the generation of its slot, so an ended handle is not
//! taken for a live one before the generation wraps.

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::codes;
use super::domain::Domain;
use crate::thread::token;
use crate::vocabulary::bias::{BiasedLock, Guard};
pub(super) use crate::vocabulary::lock::lock;

/// Wakes the thread that sleeps in a port.
pub(super) type Waker = Box<dyn Fn() + Send + Sync>;

/// Most handles at a time.
pub(super) const SLOTS: usize = 64;
/// The object that a handle names.
#[cfg_attr(loom, derive(Default))]
pub(super) struct Port {
    lock: BiasedLock,
    /// The thread that is in the port, by [`token`]; 0 is none.
    owner: AtomicUsize,
    /// Calls that made progress so far.
    polls: AtomicU64,
    /// The generation of the handle that is valid now, if `domain` is there.
    generation: AtomicU32,
    /// Whether `domain` is there, for threads that are not in the port.
    occupied: AtomicBool,
    domain: UnsafeCell<Option<Rc<Domain>>>,
    /// Ends a sleep of the owner.
    waker: Mutex<Option<Waker>>,
    /// The process that occupies the port. A forked child has a copy of the port, but none of the other threads.
    process: AtomicU32,
}

// SAFETY:
// - `domain` is only touched by the thread that is in the port, and `lock` lets one in at a time;
// - a domain holds the only handles to its world and to the world's parts (`Domain::new` starts the world itself, from a builder
//   without handlers, and takes it off the list of worlds of its thread), so no part of it is in use elsewhere;
// - nothing of a world depends on the thread that uses it, except on a simulated network, where `Domain::may_enter` keeps
//   other threads out.
unsafe impl Sync for Port {}
// SAFETY: as above.
unsafe impl Send for Port {}

#[cfg(not(loom))]
static PORTS: [Port; SLOTS] = [const { Port::new() }; SLOTS];
// No model uses it.
#[cfg(loom)]
static PORTS: std::sync::LazyLock<[Port; SLOTS]> = std::sync::LazyLock::new(|| [(); SLOTS].map(|()| Port::default()));

/// How a thread is in a port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// An outer call of this thread has entered the port.
    Nested,
    /// With the mutex of the lock. The lock keeps the guard.
    Locked,
    /// As the favourite of the lock.
    Favoured,
}

/// The right to use a port, until it is dropped. It has two words, so that it is passed in registers: when it was stored in parts and
/// loaded as a whole, each call waited until the previous message had left the store buffer.
pub(super) struct Entered {
    /// The pointer keeps an `Entered` on its thread.
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
    #[cfg(not(loom))]
    const fn new() -> Port {
        Port {
            lock: BiasedLock::new(),
            owner: AtomicUsize::new(0),
            polls: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            occupied: AtomicBool::new(false),
            domain: UnsafeCell::new(None),
            waker: Mutex::new(None),
            process: AtomicU32::new(0),
        }
    }

    /// Takes the lock, and waits until no thread is in the port.
    ///
    /// # Errors
    /// [`codes::HNDL_INVALID`] in a forked child, if a thread of the parent was in the port: in the child that thread never leaves.
    #[cold]
    #[inline(never)]
    fn acquire(&self) -> Result<Guard<'_>, i32> {
        match self.lock.try_acquire() {
            Some(guard) => Ok(guard),
            // Checked only before a wait: it costs a system call.
            None if self.is_child() => Err(codes::HNDL_INVALID),
            None => Ok(self.lock.acquire(&|| self.wake())),
        }
    }

    /// Whether this process is a forked child of the one that occupies the port.
    fn is_child(&self) -> bool {
        self.process.load(Ordering::Relaxed) != std::process::id()
    }

    /// Ends the sleep of the thread that is in the port.
    fn wake(&self) {
        if let Some(wake) = &*lock(&self.waker) {
            wake();
        }
    }

    /// The thread that is in the port leaves.
    #[inline(always)]
    fn exit(&self, way: Way) {
        match way {
            Way::Nested => {}
            Way::Favoured => {
                self.owner.store(0, Ordering::Relaxed);
                self.lock.leave_favoured();
            }
            Way::Locked => self.end_turn(),
        }
    }

    /// The thread that is in the port with the mutex leaves.
    #[inline(never)]
    fn end_turn(&self) {
        let me = self.owner.load(Ordering::Relaxed);
        self.owner.store(0, Ordering::Relaxed);
        // SAFETY: `enter_locked` has kept the guard of this thread; only `exit` by `Way::Locked` calls this.
        unsafe { self.lock.end_turn(me) };
    }
}

/// The port and the generation that a handle names.
fn split(handle: u32) -> (&'static Port, u32) {
    (&PORTS[handle as usize % SLOTS], handle / SLOTS as u32)
}

/// Enters the port of a handle; waits while another thread is in it.
///
/// # Errors
/// [`codes::HNDL_INVALID`], as [`Port::acquire`] too.
#[inline(always)]
pub(super) fn enter(handle: u32) -> Result<Entered, i32> {
    let (port, generation) = split(handle);
    // Check before the lock too: the present handle of this slot may be another rank's, which waits in the port.
    if port.generation.load(Ordering::Relaxed) != generation {
        return Err(codes::HNDL_INVALID);
    }
    let me = token();
    // Only this thread stores its own token.
    if port.owner.load(Ordering::Relaxed) == me {
        port.admit(Way::Nested, generation, me)
    } else if port.lock.enter_favoured(me) {
        port.admit(Way::Favoured, generation, me)
    } else {
        port.enter_locked(port.acquire()?, generation, me)
    }
}

impl Port {
    #[cold]
    #[inline(never)]
    fn enter_locked(&'static self, lock: Guard<'static>, generation: u32, me: usize) -> Result<Entered, i32> {
        self.lock.keep(lock);
        let entered = self.admit(Way::Locked, generation, me)?;
        entered.end_doze();
        Ok(entered)
    }

    /// The right to this port, for the thread of token `me` that is in it.
    #[inline(always)]
    fn admit(&self, way: Way, generation: u32, me: usize) -> Result<Entered, i32> {
        // SAFETY: this thread is in the port, so no other thread changes `domain`.
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
    let lock = port.lock.try_acquire()?;
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

/// As [`enter`], but returns `None` if another thread is in the port.
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
        _ if port.is_child() => return Err(codes::HNDL_INVALID),
        _ => return Ok(None),
    }
    enter(handle).map(Some)
}

/// Whether another thread waits to enter the port of this handle.
pub(super) fn is_contended(handle: u32) -> bool {
    split(handle).0.lock.is_contended()
}

/// Which ports are reserved by a start in progress: starting a world takes long, and other threads may start theirs meanwhile.
static TAKEN: Mutex<[bool; SLOTS]> = Mutex::new([false; SLOTS]);

/// A reserved port. Dropping it ends the reservation, also when the start panics.
struct Marked(usize);

impl Drop for Marked {
    fn drop(&mut self) {
        lock(&TAKEN)[self.0] = false;
    }
}

/// Reserves a free port.
fn mark() -> Option<Marked> {
    let mut taken = lock(&TAKEN);
    // Pairs with the Release in `vacate`. A favourite is in the port without its lock, so `domain` itself must not be read here.
    let is_free = |slot: usize| !PORTS[slot].occupied.load(Ordering::Acquire);
    let slot = (0..SLOTS).find(|slot| !taken[*slot] && is_free(*slot))?;
    taken[slot] = true;
    Some(Marked(slot))
}

/// Ends the sleep of the thread that is in the port of this handle.
pub(super) fn wake(handle: u32) {
    split(handle).0.wake();
}

/// Takes a free port, and puts the domain there that `make` makes for its handle.
///
/// # Errors
/// [`codes::ALL_HNDL_IN_USE`].
pub(super) fn occupy(make: impl FnOnce(u32) -> (Rc<Domain>, Waker)) -> Result<u32, i32> {
    let marked = mark().ok_or(codes::ALL_HNDL_IN_USE)?;
    let slot = marked.0;
    let port = &PORTS[slot];
    // A handle is never 0: programs take 0 for no handle.
    let generation = (port.generation.load(Ordering::Relaxed) + 1) % (u32::MAX / SLOTS as u32);
    let generation = generation.max(1);
    let handle = generation * SLOTS as u32 + slot as u32;
    let (domain, waker) = make(handle);
    let _lock = port.lock.acquire(&|| port.wake());
    *lock(&port.waker) = Some(waker);
    port.process.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: this thread has the lock, which it got when nobody was inside.
    unsafe { *port.domain.get() = Some(domain) };
    port.occupied.store(true, Ordering::Relaxed);
    port.generation.store(generation, Ordering::Relaxed);
    Ok(handle)
}

/// Ends a handle, and returns the domain that it named.
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
