//! `gaspi_threads_*`: a number of threads of this process, with identifiers and a barrier.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::num::NonZero;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, available_parallelism};

use bellwether_runtime::vocabulary::gaspi::{Code, Result, Timeout, codes};

use super::life::waiting;
use super::{check, failed, run, store};

/// A function of the program.
type Function = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

struct Pool {
    /// Threads that take part; 0 before `gaspi_threads_init` and after `gaspi_threads_term`.
    total: c_int,
    registered: c_int,
    /// The number of this pool: identifiers of earlier pools are not valid any more.
    number: u64,
    arrived: c_int,
    /// Barriers that are done.
    barriers: u64,
    running: Vec<JoinHandle<()>>,
}

static POOL: Mutex<Pool> =
    Mutex::new(Pool { total: 0, registered: 0, number: 0, arrived: 0, barriers: 0, running: Vec::new() });
static ALL_ARRIVED: Condvar = Condvar::new();

thread_local! {
    /// The pool that this thread is registered with, and its identifier there.
    static OWN: Cell<Option<(u64, c_int)>> = const { Cell::new(None) };
}

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cores() -> c_int {
    available_parallelism().map_or(1, NonZero::get) as c_int
}

fn begin(total: c_int) -> Result<()> {
    let mut pool = pool();
    if total < 1 || pool.total != 0 {
        return Err(Code(codes::ERROR));
    }
    (pool.total, pool.registered, pool.arrived, pool.number) = (total, 0, 0, pool.number + 1);
    Ok(())
}

fn register() -> Result<c_int> {
    let mut pool = pool();
    if let Some((number, id)) = OWN.get()
        && number == pool.number
    {
        return Ok(id);
    }
    if pool.registered >= pool.total {
        return Err(Code(codes::ERROR));
    }
    let id = pool.registered;
    pool.registered += 1;
    OWN.set(Some((pool.number, id)));
    Ok(id)
}

/// This thread's identifier.
fn own() -> Result<c_int> {
    let number = pool().number;
    OWN.get().filter(|(of, _)| *of == number).map(|(_, id)| id).ok_or(Code(codes::ERROR))
}

/// Waits until all threads of the pool are here.
fn barrier() {
    let mut pool = pool();
    if pool.total <= 1 {
        return;
    }
    pool.arrived += 1;
    if pool.arrived == pool.total {
        (pool.arrived, pool.barriers) = (0, pool.barriers + 1);
        ALL_ARRIVED.notify_all();
        return;
    }
    let (barriers, number) = (pool.barriers, pool.number);
    while pool.barriers == barriers && pool.number == number && pool.total != 0 {
        pool = ALL_ARRIVED.wait(pool).unwrap_or_else(PoisonError::into_inner);
    }
}

fn start(function: Option<Function>, argument: *mut c_void) -> Result<()> {
    /// The function and argument for the thread.
    struct Work(Function, *mut c_void);
    // SAFETY: the program gives both to the thread.
    unsafe impl Send for Work {}
    let work = Work(function.ok_or(Code(codes::NULLPTR))?, argument);
    let mut pool = pool();
    if pool.total == 0 {
        return Err(Code(codes::ERROR));
    }
    let body = move || {
        let Work(function, argument) = { work };
        // SAFETY: the program's function with its argument.
        unsafe { function(argument) };
    };
    let started = std::thread::Builder::new().spawn(body);
    pool.running
        .push(started.map_err(|error| failed(codes::ERROR, &format!("gaspi_threads_run: no thread: {error}")))?);
    Ok(())
}

/// Waits for the threads that `gaspi_threads_run` has started.
fn end() -> Result<()> {
    let running = {
        let mut pool = pool();
        if pool.total == 0 {
            return Err(Code(codes::ERROR));
        }
        std::mem::take(&mut pool.running)
    };
    let this = std::thread::current().id();
    for thread in running.into_iter().filter(|thread| thread.thread().id() != this) {
        // Ignore the result: a panic in the program's function ends the process.
        let _ = thread.join();
    }
    pool().total = 0;
    ALL_ARRIVED.notify_all();
    Ok(())
}

/// Defines calls, which have no profiling names.
macro_rules! thread_calls {
    ($($name:ident($($arg:ident: $type:ty),*) $body:block)+) => {$(
        /// See `GASPI_Threads.h`.
        ///
        /// # Safety
        /// Pointers are null or valid, as the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            run(move || $body)
        }
    )+};
}

thread_calls! {
    gaspi_threads_get_tid(id: *mut c_int) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(id, own()?) }
    }

    gaspi_threads_get_total(number: *mut c_int) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(number, pool().total) }
    }

    gaspi_threads_get_num_cores(number: *mut c_int) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(number, cores()) }
    }

    gaspi_threads_init(number: *mut c_int) {
        check([number.cast_const().cast()])?;
        let total = cores();
        begin(total)?;
        // SAFETY: not null, and valid by the caller.
        unsafe { store(number, total) }
    }

    gaspi_threads_init_user(number: c_uint) { begin(c_int::try_from(number).map_err(|_| Code(codes::ERROR))?) }

    gaspi_threads_register(id: *mut c_int) {
        check([id.cast_const().cast()])?;
        // SAFETY: not null, and valid by the caller.
        unsafe { store(id, register()?) }
    }

    gaspi_threads_run(function: Option<Function>, argument: *mut c_void) { start(function, argument) }

    gaspi_threads_term() { end() }

    gaspi_threads_sync_all(group: u8, timeout: u64) {
        barrier();
        // One thread of each process makes the call; the others wait until it has.
        let outcome = if own()? == 0 {
            waiting(|process| process.barrier(group, Timeout::from_millis(timeout)))
        } else {
            Ok(())
        };
        barrier();
        outcome
    }
}

/// Waits until all threads of the pool are here.
#[unsafe(no_mangle)]
pub extern "C" fn gaspi_threads_sync() {
    // It does not fail.
    let _ = crate::fault::catch(barrier);
}
