//! The process's job: joined by the first `gaspi_proc_init`, left when the process exits.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use bellwether_runtime::World;
use bellwether_runtime::memory::statics;
use bellwether_runtime::vocabulary::gaspi::{Code, Process, Result, Statistics, Timeout, codes};

use super::settings::{self, Settings};
use super::statistics::VERBOSITY;
use super::{calls, failed, store};

/// Longest wait at exit for threads that are in a call. Threads return from calls within milliseconds after `gaspi_proc_term`.
const LAST_CALLS: Duration = Duration::from_secs(1);

/// The process in its working phase; null in the other phases. Calls read only this.
static WORKING: AtomicPtr<Process> = AtomicPtr::new(null_mut());
/// Threads in calls that can wait.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// This process is a child that a process of the job has forked.
static CHILD: AtomicBool = AtomicBool::new(false);

static HELD: Mutex<Held> = Mutex::new(Held { process: null_mut(), watches: false, starts: false, settings: None });

/// The state of this process across its phases.
pub(super) struct Held {
    /// From `Box::into_raw`; null before the first `gaspi_proc_init`, and after the process has left the job.
    process: *mut Process,
    /// The functions that run at exit and at a fork are registered.
    watches: bool,
    /// A `gaspi_proc_init` has begun, and none has ended it.
    pub(super) starts: bool,
    /// The configuration: set by `gaspi_config_set`, or the default once it was needed. `None` before that.
    pub(super) settings: Option<Settings>,
}

// SAFETY: the pointer is the only owner of a `Process`, which may go to other threads and is used by several at a time.
unsafe impl Send for Held {}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Process>();
};

/// # Errors
/// [`codes::NOINIT`] in a forked child, which has only a copy of the lock.
pub(super) fn held() -> Result<MutexGuard<'static, Held>> {
    if CHILD.load(Ordering::Relaxed) {
        return Err(Code(codes::NOINIT));
    }
    Ok(HELD.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Does `act` with the counters of the process, in every phase. `None` before there is one, and in a forked child.
pub(super) fn with_statistics<R>(act: impl FnOnce(&Statistics) -> R) -> Option<R> {
    let held = held().ok()?;
    // SAFETY: null, or a process that is freed only in `at_exit`, which has the lock then.
    unsafe { held.process.as_ref() }.map(|process| act(process.statistics()))
}

/// The process.
///
/// # Errors
/// [`codes::NOINIT`] outside of the working phase.
#[inline(always)]
pub(super) fn working() -> Result<&'static Process> {
    working_by(Ordering::Acquire)
}

/// As [`working`], with this order of the load, Acquire at least.
#[inline(always)]
fn working_by(order: Ordering) -> Result<&'static Process> {
    // Pairs with the Release in `init`.
    let process = WORKING.load(order);
    // SAFETY: null, or a process that is freed only in `at_exit`, after `term` has stored null and the calls that wait are over.
    // `GASPI.h` asks that no thread is in a call that posts when another calls `gaspi_proc_term`.
    unsafe { process.as_ref() }.ok_or(Code(codes::NOINIT))
}

/// Whether the process is in its working phase.
pub(super) fn is_working() -> bool {
    !WORKING.load(Ordering::Acquire).is_null()
}

/// A thread is in a call that can wait, until this is dropped.
struct Waiting;

impl Waiting {
    fn begin() -> Waiting {
        // Before the load of `WORKING`. Pairs with the SeqCst in `at_exit`.
        WAITING.fetch_add(1, Ordering::SeqCst);
        Waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Pairs with the SeqCst in `at_exit`, which then sees all effects of the call.
        WAITING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs a call that can wait.
///
/// # Errors
/// [`codes::NOINIT`] outside of the working phase; what the call returns.
#[inline]
pub(super) fn waiting<R>(call: impl FnOnce(&'static Process) -> Result<R>) -> Result<R> {
    let _waiting = Waiting::begin();
    // After the count: either this sees the null of `term`, or `at_exit` sees the count.
    call(working_by(Ordering::SeqCst)?)
}

/// Registers what runs at exit and at a fork.
fn watch(held: &mut Held) -> Result<()> {
    if held.watches {
        return Ok(());
    }
    // The runtime's first: before them, a store of `in_child` would be the parent's where static data is symmetric.
    if !statics::watch() {
        return Err(Code(codes::MEMALLOC));
    }
    // SAFETY: `in_child` only stores to atomics, which a child may do; `at_exit` may run at any exit.
    if unsafe { libc::pthread_atfork(None, None, Some(in_child)) != 0 || libc::atexit(at_exit) != 0 } {
        return Err(Code(codes::MEMALLOC));
    }
    held.watches = true;
    Ok(())
}

unsafe extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
    WORKING.store(null_mut(), Ordering::Relaxed);
}

/// Leaves the job, together with all processes. A process that exits in its working phase does not leave: to the others it is lost, like
/// one that was killed.
extern "C" fn at_exit() {
    if CHILD.load(Ordering::Relaxed) || is_working() {
        return;
    }
    let end = Instant::now() + LAST_CALLS;
    // Another thread may read a counter, or be in `gaspi_proc_init`, from which it does not come back.
    let mut held = loop {
        match HELD.try_lock() {
            Ok(held) => break held,
            Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::yield_now(),
            Err(_) => return,
        }
    };
    let process = std::mem::replace(&mut held.process, null_mut());
    if process.is_null() {
        return;
    }
    while WAITING.load(Ordering::SeqCst) != 0 {
        if Instant::now() > end {
            return;
        }
        std::thread::yield_now();
    }
    // SAFETY: from `Box::into_raw`, once; `WORKING` is null, and no thread is in a call.
    let process = unsafe { Box::from_raw(process) };
    // Ignore errors: calls have reported lost ranks, and at exit no call is left to report to. A panic has printed its text.
    let _ = crate::fault::catch(|| process.finish());
}

/// # Errors
/// As [`Process::proc_init`]; a code of [`codes::of_start`] if the job cannot be joined, whose reason `gaspi_print_error` gives.
fn init(timeout: Timeout) -> Result<()> {
    let _waiting = Waiting::begin();
    let process = {
        let mut held = held()?;
        if is_working() {
            return Err(Code(codes::INITED));
        }
        if held.process.is_null() {
            watch(&mut held)?;
            let process = Process::start(World::builder())
                .map_err(|error| failed(codes::of_start(&error), &error.to_string()))?;
            process.statistics().set_verbosity(VERBOSITY.load(Ordering::Relaxed));
            held.process = Box::into_raw(Box::new(process));
        }
        let config = settings::config(held.settings.get_or_insert_default());
        // SAFETY: from `Box::into_raw`; only `at_exit` frees it, when no thread is between `Waiting::begin` and its end.
        let process = unsafe { &*held.process };
        if !held.starts {
            process.config_set(config)?;
            held.starts = true;
        }
        process
    };
    let outcome = process.proc_init(timeout);
    if outcome != Err(Code(codes::TIMEOUT)) {
        held()?.starts = false;
    }
    outcome?;
    // Pairs with the Acquire in `working`.
    WORKING.store(std::ptr::from_ref(process).cast_mut(), Ordering::Release);
    Ok(())
}

fn term(timeout: Timeout) -> Result<()> {
    waiting(|process| {
        let outcome = process.proc_term(timeout);
        // Another thread may have ended the working phase, and begun the next one. Until this thread has stored null, no other can.
        let ended = match outcome {
            Ok(()) => true,
            Err(Code(codes::NOINIT | codes::TIMEOUT)) => false,
            // A segment could not be closed, or nothing was done.
            Err(_) => process.initialized() == Ok(false),
        };
        if ended {
            WORKING.store(null_mut(), Ordering::SeqCst);
        }
        outcome
    })
}

calls! {
    gaspi_proc_init, pgaspi_proc_init(timeout: u64) { init(Timeout::from_millis(timeout)) }

    gaspi_proc_term, pgaspi_proc_term(timeout: u64) { term(Timeout::from_millis(timeout)) }

    gaspi_initialized, pgaspi_initialized(initialized: *mut u32) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(initialized, u32::from(is_working())) }
    }
}
