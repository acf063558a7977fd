//! The process's job: joined by the first `LAPI_Init`, left when the process exits.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bellwether_runtime::World;
use bellwether_runtime::memory::statics;
use bellwether_runtime::vocabulary::lapi::raw::{self, ErrorHandler, Handle};
use bellwether_runtime::vocabulary::lapi::{Failure, Job, What, codes};

use super::{calls, runtime_error};

/// `lapi_info_t`.
#[repr(C)]
pub struct Info {
    protocol: c_int,
    lib_vers: c_int,
    _epoch_num: c_uint,
    _num_compl_hndlr_thr: c_int,
    _instance_no: c_uint,
    info6: c_int,
    err_hndlr: Option<ErrorHandler>,
    lapi_thread_attr: *const c_void,
    adapter_name: *const c_void,
    add_info: *const c_void,
}

/// `L1_LIB` to `L4_LIB`.
const LIBRARIES: std::ops::RangeInclusive<c_int> = 0..=3;

/// The process's place in a job.
struct Held(Job);

// SAFETY: a process has at most one job, made from a builder without handlers, and every thread that uses it has the lock of
// `PROCESS`. A job depends on its thread only on a simulated network, whose ranks are threads and not processes.
unsafe impl Send for Held {}

/// The job, from the first `LAPI_Init` to the end of the process.
static PROCESS: Mutex<Process> = Mutex::new(Process { job: None, handle: 0, watches: false });

struct Process {
    job: Option<Held>,
    /// The handle in use; 0 if there is none.
    handle: Handle,
    /// The functions that run at exit and at a fork are registered.
    watches: bool,
}

/// The process exits: the job is left as soon as there is no handle.
static EXITING: AtomicBool = AtomicBool::new(false);
/// This process is a child that a task has forked.
static CHILD: AtomicBool = AtomicBool::new(false);
/// The error handler of the handle in use; 0 if there is none.
static ERROR_HANDLER: AtomicUsize = AtomicUsize::new(0);

fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process is a child that a task has forked.
#[inline(always)]
pub(super) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// # Safety
/// `info` is null or valid.
unsafe fn checked<'a>(info: *const Info) -> Result<&'a Info, i32> {
    // SAFETY: the caller guarantees it.
    let info = unsafe { info.as_ref() }.ok_or(codes::INFO_NULL)?;
    let pointers = [info.lapi_thread_attr, info.adapter_name, info.add_info];
    let is_zero = info.protocol == 0 && info.info6 == 0 && pointers.iter().all(|pointer| pointer.is_null());
    if is_zero && LIBRARIES.contains(&info.lib_vers) { Ok(info) } else { Err(codes::INFO_NONZERO) }
}

/// # Safety
/// Both are null or valid.
unsafe fn start(handle: *mut Handle, info: *const Info) -> Result<(), i32> {
    // SAFETY: the caller guarantees it.
    let info = unsafe { checked(info) }?;
    if handle.is_null() {
        return Err(codes::RET_PTR_NULL);
    }
    let mut process = process();
    if process.job.is_none() {
        watch(&mut process)?;
        process.job =
            Some(Held(Job::start_foreign(World::builder()).map_err(|error| runtime_error(error.to_string()))?));
    }
    let Some(Held(job)) = &process.job else { return Err(codes::RUNTIME) };
    let made = job.init()?;
    ERROR_HANDLER.store(info.err_hndlr.map_or(0, |handler| handler as usize), Ordering::Release);
    process.handle = made;
    // SAFETY: not null, and valid by the caller.
    unsafe { *handle = made };
    Ok(())
}

/// Registers what runs at exit and at a fork.
fn watch(process: &mut Process) -> Result<(), i32> {
    if process.watches {
        return Ok(());
    }
    // The runtime's first: before them, a store of `in_child` would be the parent's where static data is symmetric.
    if !statics::watch() {
        return Err(codes::MEMORY_EXHAUSTED);
    }
    // SAFETY: `in_child` only stores to an atomic, which a child may do; `at_exit` may run at any exit.
    if unsafe { libc::pthread_atfork(None, None, Some(in_child)) != 0 || libc::atexit(at_exit) != 0 } {
        return Err(codes::MEMORY_EXHAUSTED);
    }
    process.watches = true;
    Ok(())
}

unsafe extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Leaves the job. A task that exits without `LAPI_Term` does not leave here: to the others it is lost, like a killed task. Its handle
/// may be in use by threads, and this must not wait for them.
extern "C" fn at_exit() {
    if is_child() {
        return;
    }
    EXITING.store(true, Ordering::Relaxed);
    // Another thread that is in `LAPI_Init` does not come back.
    if let Ok(mut process) = PROCESS.try_lock() {
        leave(&mut process);
    }
}

/// Leaves the job if there is no handle. When a handle ends, every task has sent and received everything, so no task waits for this one.
fn leave(process: &mut Process) {
    if process.handle == 0
        && let Some(held) = process.job.take()
    {
        // Ignore errors: a panic has printed its text, and at exit no call is left to report to.
        let _ = crate::fault::catch(|| drop(held));
    }
}

fn end(handle: Handle) -> i32 {
    let code = raw::term(handle);
    if code == codes::SUCCESS {
        let mut process = process();
        if process.handle == handle {
            process.handle = 0;
        }
        // A destructor of the program's has called, after `at_exit`.
        if EXITING.load(Ordering::Relaxed) {
            leave(&mut process);
        }
    }
    code
}

/// Tells the error handler, if there is one, that a call is about to return the code of an earlier message or a lost task. Returns the code.
#[inline(always)]
pub(super) fn told(handle: Handle, code: i32) -> i32 {
    if code == codes::SUCCESS { code } else { tell(handle, code, is_late(code)) }
}

/// As [`told`], of a call without vectors: the code of a vector is that of an earlier message, whose header handler has named places that do
/// not fit.
#[inline(always)]
pub(super) fn told_without_vectors(handle: Handle, code: i32) -> i32 {
    if code == codes::SUCCESS { code } else { tell(handle, code, is_late(code) || is_of_places(code)) }
}

#[cold]
fn is_late(code: i32) -> bool {
    matches!(
        code,
        codes::NO_HNDLR_SET
            | codes::MEMORY_EXHAUSTED
            | codes::PEER_LOST
            | codes::HANDLER_PANICKED
            | codes::BAD_ADDRESS
            | codes::RUNTIME
    )
}

#[cold]
fn is_of_places(code: i32) -> bool {
    matches!(
        code,
        codes::VEC_NUM_DIFF
            | codes::VEC_TYPE_DIFF
            | codes::VEC_LEN_DIFF
            | codes::TGT_VEC_ADDR
            | codes::TGT_VEC_LEN
            | codes::TGT_VEC_NULL
            | codes::TGT_VEC_TYPE
            | codes::TGT_EXTENT
            | codes::TGT_STRIDE
            | codes::STRIDE_TGT_ADDR_NULL
    )
}

#[cold]
#[inline(never)]
fn tell(handle: Handle, code: i32, is_late: bool) -> i32 {
    // Pairs with the Release in `start`.
    let handler = ERROR_HANDLER.load(Ordering::Acquire);
    if is_late && handler != 0 {
        let (what, task) = Failure::last(code).map_or((What::Job, None), |failure| (failure.what, failure.task));
        let (mut own, about) = (-1, task.map_or(-1, |task| task as c_int));
        // SAFETY: a valid place.
        unsafe { raw::qenv(handle, raw::query::TASK_ID, &mut own) };
        // SAFETY: the program gave this function to `LAPI_Init`, for calls with these arguments.
        unsafe {
            let handler = std::mem::transmute::<usize, ErrorHandler>(handler);
            raw::tell_foreign(handler, handle, [code, what as c_int, own, about]);
        }
    }
    code
}

calls! {
    init = LAPI_Init, PLAPI_Init(handle: *mut Handle, info: *const Info) {
        // SAFETY: the caller guarantees that both are null or valid.
        unsafe { start(handle, info) }.err().unwrap_or(codes::SUCCESS)
    }

    term = LAPI_Term, PLAPI_Term(handle: Handle) { told_without_vectors(handle, end(handle)) }
}
