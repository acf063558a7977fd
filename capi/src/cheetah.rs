//! The calls of `cheetah.h`, over the runtime's Cheetah vocabulary.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use bellwether_runtime::vocabulary::cheetah::{Bell, Controller};

use crate::fault::{Code, Fault, guard};

/// A function that another context calls: caller, number, buffer, bytes.
pub type Handler = unsafe extern "C" fn(c_int, c_int, *mut c_void, c_int);

/// The phase of the process.
static PHASE: AtomicU8 = AtomicU8::new(BEFORE);
const BEFORE: u8 = 0;
const STARTING: u8 = 1;
const UP: u8 = 2;
const AFTER: u8 = 3;
/// A child that the process has forked.
const CHILD: u8 = 4;

thread_local! {
    /// The controller, in the thread that has set it up. It stays after finalisation: then it is not valid.
    static HERE: Cell<Option<&'static Controller>> = const { Cell::new(None) };
    /// `cheetah_core_setup` has set up, and so `cheetah_core_finalize` finalises.
    static BY_C: Cell<bool> = const { Cell::new(false) };
    /// Room for the buffers of handlers, kept from one to the next.
    static ROOM: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// Buffers of at most this many bytes are copied to the stack.
const ON_STACK: usize = 256;
/// Words of the largest room that is kept: 1 MiB.
const KEPT: usize = (1 << 20) / 8;

/// The controller of this thread, between set-up and finalisation.
#[inline]
pub(crate) fn valid(call: &'static str) -> Result<&'static Controller, Fault> {
    match HERE.get() {
        Some(controller) if PHASE.load(Ordering::Relaxed) == UP => Ok(controller),
        _ => Err(elsewhere(call)),
    }
}

#[cold]
fn elsewhere(call: &str) -> Fault {
    match PHASE.load(Ordering::Acquire) {
        BEFORE | STARTING => Fault::new(Code::State, format!("{call}: call cheetah_core_setup first")),
        CHILD => Fault::new(Code::Thread, format!("{call}: this process is a forked child, and no context")),
        UP => Fault::new(Code::Thread, format!("{call}: only the thread that called cheetah_core_setup may call it")),
        _ => finalised(call),
    }
}

#[cold]
fn finalised(call: &str) -> Fault {
    Fault::new(Code::State, format!("{call}: cheetah_core_finalize has been called"))
}

#[cold]
pub(crate) fn argument(call: &str, why: impl std::fmt::Display) -> Fault {
    Fault::new(Code::Argument, format!("{call}: {why}"))
}

/// A context's number.
pub(crate) fn context(call: &'static str, controller: &Controller, context: c_int) -> Result<usize, Fault> {
    match (usize::try_from(context), controller.ncontexts()?) {
        (Ok(context), count) if context < count => Ok(context),
        (_, count) => {
            let text = format!("{call}: there is no context {context}; contexts go from 0 to {}", count - 1);
            Err(Fault::new(Code::Context, text))
        }
    }
}

/// A length, of memory that starts at `start`.
fn length(call: &'static str, length: c_int, start: *const c_void) -> Result<usize, Fault> {
    match usize::try_from(length) {
        Err(_) => Err(argument(call, format_args!("the length is {length}"))),
        Ok(1..) if start.is_null() => Err(argument(call, "the local buffer is a null pointer")),
        Ok(length) => Ok(length),
    }
}

/// A bell of this context.
///
/// # Safety
/// A bell that is not null and aligned is an `int` of the program, which lives until it has rung.
unsafe fn bell<'a>(call: &'static str, bell: *mut c_int) -> Result<Option<&'a Bell>, Fault> {
    if bell.is_null() {
        return Ok(None);
    }
    if !bell.is_aligned() {
        return Err(argument(call, format_args!("the local bell at {bell:p} is not aligned as an int")));
    }
    // SAFETY: not null, aligned, and the caller's for as long as needed. C programs read it only after a call of this
    // library in the same thread, so plain loads there race with no store.
    Ok(Some(Bell::of(unsafe { AtomicI32::from_ptr(bell) })))
}

/// The address of a bell elsewhere.
fn remote_bell(call: &'static str, bell: *mut c_int) -> Result<Option<usize>, Fault> {
    if !bell.is_null() && !bell.is_aligned() {
        let text = format!("{call}: the remote bell at {bell:p} is not aligned as an int");
        return Err(Fault::new(Code::Address, text));
    }
    Ok((!bell.is_null()).then_some(bell as usize))
}

/// Starts or joins the job.
///
/// # Safety
/// The pointers are null, or those of the arguments of `main`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_core_setup(argc: *mut c_int, argv: *mut *mut *mut c_char) -> c_int {
    guard(|| {
        // SAFETY: the caller's.
        unsafe { set_up("cheetah_core_setup", argc, argv) }?;
        BY_C.set(true);
        Ok(0)
    })
}

/// Sets up, once in a process.
///
/// # Safety
/// As [`cheetah_core_setup`].
pub(crate) unsafe fn set_up(call: &'static str, argc: *mut c_int, argv: *mut *mut *mut c_char) -> Result<(), Fault> {
    // Pairs with the Release stores below and in `cheetah_core_finalize`.
    match PHASE.compare_exchange(BEFORE, STARTING, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {}
        Err(AFTER) => return Err(finalised(call)),
        Err(CHILD) => return Err(elsewhere(call)),
        Err(_) => return Err(Fault::new(Code::State, format!("{call}: it has been called before"))),
    }
    let mut starting = Starting { to: BEFORE };
    // SAFETY: the caller's.
    let controller = unsafe { with_arguments(call, argc, argv) }?;
    // SAFETY: the function only stores to an atomic, which a child may do.
    if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
        return Err(Fault::new(Code::System, format!("{call}: no memory for a function that runs at each fork")));
    }
    HERE.set(Some(Box::leak(Box::new(controller))));
    starting.to = UP;
    Ok(())
}

/// A controller as the arguments say, out of which its options are taken. While one is valid in this thread, it is the same.
///
/// # Safety
/// As [`cheetah_core_setup`].
pub(crate) unsafe fn with_arguments(
    call: &'static str,
    argc: *mut c_int,
    argv: *mut *mut *mut c_char,
) -> Result<Controller, Fault> {
    if argc.is_null() != argv.is_null() {
        return Err(argument(call, "one of argc and argv is a null pointer"));
    }
    // SAFETY: both are not null here, and so `main`'s, by the caller.
    let given = if argc.is_null() { Vec::new() } else { unsafe { arguments(call, argc, argv) }? };
    let mut texts: Vec<String> = given.iter().map(|(_, text)| text.clone()).collect();
    if texts.is_empty() {
        texts.push("program".into());
    }
    let controller = Controller::setup(&mut texts)?;
    if !given.is_empty() {
        // SAFETY: as above; no more pointers are written than there were.
        unsafe { give_back(argc, *argv, &given, &texts) };
    }
    Ok(controller)
}

/// Whether this thread has set up, and not finalised.
pub(crate) fn is_up() -> bool {
    valid("").is_ok()
}

/// Whether `cheetah_core_setup` has set up.
pub(crate) fn is_of_c() -> bool {
    BY_C.get()
}

/// Whether this thread has set up. It may have finalised.
pub(crate) fn is_here() -> bool {
    HERE.get().is_some()
}

/// Says that the job is at its end: every further call is refused.
pub(crate) fn end() {
    // Pairs with the Acquire load in `elsewhere`.
    PHASE.store(AFTER, Ordering::Release);
}

/// Runs in each child that the process forks after set-up.
unsafe extern "C" fn in_child() {
    PHASE.store(CHILD, Ordering::Relaxed);
}

/// A set-up in progress. When it is dropped, also by an error or a panic, it stores the phase that the process is in then.
struct Starting {
    to: u8,
}

impl Drop for Starting {
    fn drop(&mut self) {
        // Pairs with the Acquire loads in `elsewhere` and in `cheetah_core_setup`.
        PHASE.store(self.to, Ordering::Release);
    }
}

/// The arguments of `main`, each with its text.
///
/// # Safety
/// As [`cheetah_core_setup`], none null.
unsafe fn arguments(
    call: &'static str,
    argc: *mut c_int,
    argv: *mut *mut *mut c_char,
) -> Result<Vec<(*mut c_char, String)>, Fault> {
    // SAFETY: the caller's.
    let (count, list) = unsafe { (*argc, *argv) };
    let count = usize::try_from(count).map_err(|_| argument(call, format_args!("argc is {count}")))?;
    if list.is_null() && count > 0 {
        return Err(argument(call, "*argv is a null pointer"));
    }
    let one = |at| {
        // SAFETY: `argv` has `argc` entries, by the caller.
        let start: *mut c_char = unsafe { *list.add(at) };
        if start.is_null() {
            return Err(argument(call, format_args!("argv[{at}] is a null pointer, and argc is {count}")));
        }
        // SAFETY: a text that ends with a zero byte, by the caller.
        Ok((start, unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned()))
    };
    (0..count).map(one).collect()
}

/// Leaves those of the `given` arguments in the program's list whose texts are still in `texts`, in their order.
///
/// # Safety
/// `list` has `given.len()` entries, and one more if it ends with a null pointer; `argc` is valid for writing.
unsafe fn give_back(argc: *mut c_int, list: *mut *mut c_char, given: &[(*mut c_char, String)], texts: &[String]) {
    let mut left = 0;
    for (start, text) in given {
        if texts.get(left) == Some(text) {
            // SAFETY: at most as many as were there.
            unsafe { *list.add(left) = *start };
            left += 1;
        }
    }
    if left < given.len() {
        // SAFETY: below the old end.
        unsafe { *list.add(left) = std::ptr::null_mut() };
    }
    // SAFETY: the caller's; there are no more than before.
    unsafe { *argc = left as c_int };
}

/// Waits for all contexts and leaves the job.
#[unsafe(no_mangle)]
pub extern "C" fn cheetah_core_finalize() -> c_int {
    guard(|| {
        finalize("cheetah_core_finalize")?;
        Ok(0)
    })
}

/// Waits for all contexts and leaves the job.
pub(crate) fn finalize(call: &'static str) -> Result<(), Fault> {
    let controller = valid(call)?;
    let done = controller.finalize();
    // Inside a handler it is refused, and nothing has happened.
    if !controller.is_valid() {
        end();
    }
    done?;
    Ok(())
}

/// How many contexts there are.
#[unsafe(no_mangle)]
pub extern "C" fn cheetah_core_ncontexts() -> c_int {
    guard(|| Ok(valid("cheetah_core_ncontexts")?.ncontexts()? as c_int))
}

/// This context's number.
#[unsafe(no_mangle)]
pub extern "C" fn cheetah_core_mycontext() -> c_int {
    guard(|| Ok(valid("cheetah_core_mycontext")?.mycontext()? as c_int))
}

/// Copies to another context.
///
/// # Safety
/// As [`Controller::put`]; `local` is valid for reading `len` bytes; bells are null or `int`s, each in its context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_core_put(
    to: c_int,
    remote: *mut c_void,
    local: *mut c_void,
    len: c_int,
    local_bell: *mut c_int,
    there: *mut c_int,
) -> c_int {
    guard(|| {
        const CALL: &str = "cheetah_core_put";
        let controller = valid(CALL)?;
        let to = context(CALL, controller, to)?;
        let len = length(CALL, len, local)?;
        // SAFETY: the caller's.
        let local_bell = unsafe { bell(CALL, local_bell) }?;
        let there = remote_bell(CALL, there)?;
        let source: &[u8] = match len {
            0 => &[],
            // SAFETY: not null, and valid for reading by the caller.
            _ => unsafe { std::slice::from_raw_parts(local.cast(), len) },
        };
        // SAFETY: the caller's.
        unsafe { controller.put(to, remote as usize, source, local_bell, there) }?;
        Ok(0)
    })
}

/// Copies from another context.
///
/// # Safety
/// As [`Controller::get`]; bells are null or `int`s, each in its context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_core_get(
    from: c_int,
    remote: *mut c_void,
    local: *mut c_void,
    len: c_int,
    local_bell: *mut c_int,
    there: *mut c_int,
) -> c_int {
    guard(|| {
        const CALL: &str = "cheetah_core_get";
        let controller = valid(CALL)?;
        let from = context(CALL, controller, from)?;
        let len = length(CALL, len, local)?;
        // SAFETY: the caller's.
        let local_bell = unsafe { bell(CALL, local_bell) }?;
        let there = remote_bell(CALL, there)?;
        // SAFETY: the caller's; `local` is not null if there are bytes to write.
        unsafe { controller.get(from, remote as usize, local.cast(), len, local_bell, there) }?;
        Ok(0)
    })
}

/// Gives a function the next number.
///
/// # Safety
/// The function can be called from the thread that set up, until finalisation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_core_register_function(function: Option<Handler>) -> c_int {
    guard(|| {
        const CALL: &str = "cheetah_core_register_function";
        let function = function.ok_or_else(|| argument(CALL, "the function is a null pointer"))?;
        register(CALL, function as usize, move |who, number, start, length| {
            // SAFETY: the function, by the caller; the copy is valid for reading and writing during the call.
            unsafe { function(who, number, start, length) }
        })
    })
}

/// Gives the function at `address` the next number; `call` calls it.
pub(crate) fn register(
    operation: &'static str,
    address: usize,
    call: impl Fn(c_int, c_int, *mut c_void, c_int) + 'static,
) -> Result<c_int, Fault> {
    let number = valid(operation)?.register_named(&name(address), move |_, who, number, buffer| {
        with_copy(buffer, |start| call(who as c_int, number as c_int, start, buffer.len() as c_int));
    })?;
    Ok(number as c_int)
}

/// A name of a function that is the same in all contexts: its file and its offset in the file, because the loader maps files at different
/// addresses.
fn name(function: usize) -> String {
    // SAFETY: all fields may be zero.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for, and `info` is valid for writing.
    let found = unsafe { libc::dladdr(function as *const c_void, &raw mut info) } != 0;
    if !found || info.dli_fname.is_null() {
        return "a C function".into();
    }
    // SAFETY: a text of the loader.
    let file = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy();
    let file = file.rsplit('/').next().unwrap_or_default();
    format!("{file}+{:#x}", function.wrapping_sub(info.dli_fbase as usize))
}

/// Runs `run` with a copy of `bytes` that is aligned and may be written: C handlers own their buffer during the call.
#[inline]
fn with_copy(bytes: &[u8], run: impl FnOnce(*mut c_void)) {
    let copy = |to: *mut u64| {
        // SAFETY: each room below has as many bytes, and is not part of the message.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
        run(to.cast());
    };
    if bytes.len() <= ON_STACK {
        let mut room = [0u64; ON_STACK / 8];
        copy(room.as_mut_ptr());
        return;
    }
    let words = bytes.len().div_ceil(8);
    // A thread that ends has no room to keep, but may still run handlers.
    let mut room = ROOM.try_with(Cell::take).unwrap_or_default();
    if room.len() < words {
        room = vec![0; words];
    }
    copy(room.as_mut_ptr());
    if room.len() <= KEPT {
        let _ = ROOM.try_with(|kept| kept.set(room));
    }
}

/// Calls a function of another context.
///
/// # Safety
/// `buffer` is valid for reading `len` bytes; the bell is null or an `int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_core_ainvoke(
    to: c_int,
    function: c_int,
    buffer: *mut c_void,
    len: c_int,
    local_bell: *mut c_int,
) -> c_int {
    guard(|| {
        const CALL: &str = "cheetah_core_ainvoke";
        let controller = valid(CALL)?;
        let to = context(CALL, controller, to)?;
        let function =
            u32::try_from(function).map_err(|_| argument(CALL, format_args!("the function's number is {function}")))?;
        let len = length(CALL, len, buffer)?;
        // SAFETY: the caller's.
        let local_bell = unsafe { bell(CALL, local_bell) }?;
        let bytes: &[u8] = match len {
            0 => &[],
            // SAFETY: not null, and valid for reading by the caller.
            _ => unsafe { std::slice::from_raw_parts(buffer.cast(), len) },
        };
        controller.ainvoke(to, function, bytes, local_bell)?;
        Ok(0)
    })
}

/// Moves messages in and out.
#[unsafe(no_mangle)]
pub extern "C" fn cheetah_core_poll() -> c_int {
    guard(|| Ok(c_int::try_from(valid("cheetah_core_poll")?.poll()?).unwrap_or(c_int::MAX)))
}

/// Polls until a bell has rung.
///
/// # Safety
/// The bell is null or an `int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_core_wait(rung: *mut c_int, count: c_int) -> c_int {
    guard(|| {
        const CALL: &str = "cheetah_core_wait";
        let controller = valid(CALL)?;
        // SAFETY: the caller's.
        let rung = unsafe { bell(CALL, rung) }?.ok_or_else(|| argument(CALL, "the bell is a null pointer"))?;
        controller.wait(rung, count)?;
        Ok(0)
    })
}

/// Waits for all contexts.
#[unsafe(no_mangle)]
pub extern "C" fn cheetah_core_barrier() -> c_int {
    guard(|| {
        valid("cheetah_core_barrier")?.barrier()?;
        Ok(0)
    })
}
