//! Ports: what a handle names. A fixed table of them, each with one lock.
//!
//! A port holds a [`Domain`]: the world and all that belongs to it, none of which may be used by two threads at a time. Every use
//! takes the port's lock. The lock's owner may enter again: handlers run inside a poll, which holds the lock, and may call.
//!
//! A handle is `generation * 64 + slot`. Each `Init` and each `Term` increments the generation of its slot, so a handle that was
//! used up is never taken for a live one before the generation wraps.

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::codes;
use super::domain::Domain;

/// Wakes the thread that sleeps in a port.
pub(super) type Waker = Box<dyn Fn() + Send + Sync>;

/// Most handles at a time.
pub(super) const SLOTS: usize = 64;

/// What a handle names.
pub(super) struct Port {
    lock: Mutex<()>,
    /// The thread that holds the lock, by [`token`]; 0 is none.
    owner: AtomicUsize,
    /// Threads that wait for the lock: a waiting owner gives it up.
    contenders: AtomicU32,
    /// Of the handle that is valid now, if `domain` is there.
    generation: AtomicU32,
    domain: UnsafeCell<Option<Rc<Domain>>>,
    /// Ends a sleep of the owner.
    waker: Mutex<Option<Waker>>,
}

// SAFETY:
// - `domain` is only touched by the thread that holds `lock`, see `enter` and `put`;
// - a domain holds the only handles to its world and to what that is made of (`Domain::new` starts the world itself, from a builder
//   without handlers, and takes it off the list of worlds of its thread), so no part of it is in use elsewhere;
// - nothing of a world depends on the thread that uses it, except on a simulated network, where `Domain::on_own_thread` keeps
//   other threads out.
unsafe impl Sync for Port {}
// SAFETY: as above.
unsafe impl Send for Port {}

static PORTS: [Port; SLOTS] = [const { Port::new() }; SLOTS];

/// Locks. Where std's locks wait they run precompiled code, without the marks that the thread sanitizer looks for: in its builds this
/// tries until it has the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(bellwether_tsan)]
    loop {
        match mutex.try_lock() {
            Ok(lock) => return lock,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    #[cfg(not(bellwether_tsan))]
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number of this thread that no other living thread has. Not 0.
fn token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|token| std::ptr::from_ref(token) as usize)
}

/// The right to use a port, until it is dropped.
pub(super) struct Entered {
    port: &'static Port,
    /// `None`: this thread had entered before, further out.
    lock: Option<MutexGuard<'static, ()>>,
    /// Keeps it on its thread.
    domain: *const Domain,
}

impl Entered {
    /// Whether this is inside another call of this thread: in a handler that a poll runs.
    pub(super) fn is_nested(&self) -> bool {
        self.lock.is_none()
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
        if self.lock.is_some() {
            self.port.owner.store(0, Ordering::Relaxed);
        }
    }
}

impl Port {
    const fn new() -> Port {
        Port {
            lock: Mutex::new(()),
            owner: AtomicUsize::new(0),
            contenders: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            domain: UnsafeCell::new(None),
            waker: Mutex::new(None),
        }
    }

    fn acquire(&self) -> MutexGuard<'_, ()> {
        // A panic of a handler leaves the domain as it was between two messages.
        match self.lock.try_lock() {
            Ok(lock) => lock,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Before the wake-up: an owner that announces its sleep looks here once more.
                self.contenders.fetch_add(1, Ordering::SeqCst);
                if let Some(wake) = &*lock(&self.waker) {
                    wake();
                }
                let lock = lock(&self.lock);
                self.contenders.fetch_sub(1, Ordering::SeqCst);
                lock
            }
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
#[inline]
pub(super) fn enter(handle: u32) -> Result<Entered, i32> {
    let (port, generation) = split(handle);
    // Before the lock too: the handle in use now may be another rank's, which waits in its port.
    if port.generation.load(Ordering::Relaxed) != generation {
        return Err(codes::HNDL_INVALID);
    }
    let me = token();
    // Only this thread stores its own token.
    let lock = if port.owner.load(Ordering::Relaxed) == me { None } else { Some(port.acquire()) };
    if port.generation.load(Ordering::Relaxed) != generation {
        return Err(codes::HNDL_INVALID);
    }
    // SAFETY: this thread has the lock.
    match unsafe { (*port.domain.get()).as_deref() } {
        None => Err(codes::HNDL_INVALID),
        Some(domain) if !domain.may_enter() => Err(codes::HNDL_INVALID),
        Some(domain) => {
            port.owner.store(me, Ordering::Relaxed);
            Ok(Entered { port, lock, domain })
        }
    }
}

/// Enters the port of a handle if no thread is in it.
pub(super) fn try_enter(handle: u32) -> Option<Entered> {
    let (port, generation) = split(handle);
    let lock = match port.lock.try_lock() {
        Ok(lock) => lock,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    if port.generation.load(Ordering::Relaxed) != generation {
        return None;
    }
    // SAFETY: this thread has the lock.
    let domain = unsafe { (*port.domain.get()).as_deref() }?;
    port.owner.store(token(), Ordering::Relaxed);
    Some(Entered { port, lock: Some(lock), domain })
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
    let is_free = |slot: usize| {
        let Ok(_lock) = PORTS[slot].lock.try_lock() else { return false };
        // SAFETY: this thread has the lock.
        unsafe { (*PORTS[slot].domain.get()).is_none() }
    };
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
    // SAFETY: this thread has the lock.
    unsafe { *port.domain.get() = Some(domain) };
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
    let port = entered.port;
    let domain = entered.domain;
    port.generation.fetch_add(1, Ordering::Relaxed);
    // SAFETY: this thread has the lock, and no other right to the domain: it is not nested, and `entered` is not used any more.
    let taken = unsafe { (*port.domain.get()).take() };
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
