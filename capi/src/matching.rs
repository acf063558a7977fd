//! The C functions under `Cheetah::MatchingHandler`. The templates of the header pack and unpack.

use std::ffi::{c_int, c_void};
use std::ptr;

use bellwether_runtime::vocabulary::cheetah::{MatchingHandler, RawRequest, Value};

use crate::cheetah::{argument, context, is_here, valid};
use crate::fault::{Code, Fault, guard};

/// Upper limit for the counts of waiting messages and actions, so that they fit in an `int`.
const MOST: usize = c_int::MAX as usize;

/// A context's number. That there is such a context, the runtime checks.
#[inline]
fn number(call: &'static str, context: c_int) -> Result<usize, Fault> {
    usize::try_from(context)
        .map_err(|_| Fault::new(Code::Context, format!("{call}: there is no context {context}; contexts go from 0")))
}

/// A handler object, for a call of the thread that set up.
///
/// # Safety
/// The pointer is null or of [`cheetah_matching_new`], and not yet deleted.
#[inline]
unsafe fn object<'a>(call: &'static str, handler: *const c_void) -> Result<&'a MatchingHandler, Fault> {
    valid(call)?;
    // SAFETY: the caller's; only this thread uses it, as `valid` has just seen.
    unsafe { handler.cast::<MatchingHandler>().as_ref() }.ok_or_else(|| argument(call, "the handler is a null pointer"))
}

/// Makes the next handler object. Collective.
///
/// # Safety
/// `handler` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_matching_new(handler: *mut *mut c_void) -> c_int {
    guard(|| {
        let made = MatchingHandler::new(valid("Cheetah::MatchingHandler")?)?;
        // SAFETY: the caller's.
        unsafe { handler.write(Box::into_raw(Box::new(made)).cast()) };
        Ok(0)
    })
}

/// Deletes a handler object, in this context.
///
/// # Safety
/// As [`object`]; the pointer is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_matching_delete(handler: *mut c_void) -> c_int {
    guard(|| {
        // In another thread it is leaked.
        if !handler.is_null() && is_here() {
            // SAFETY: the caller's; made by `cheetah_matching_new`. After finalisation nothing waits any more.
            let _ = unsafe { Box::from_raw(handler.cast::<MatchingHandler>()) }.close();
        }
        Ok(0)
    })
}

/// Sends bytes, of which a copy is made.
///
/// # Safety
/// As [`object`]; `len` bytes at `bytes` are valid for reading.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_matching_send(
    handler: *const c_void,
    to: c_int,
    tag: c_int,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    guard(|| {
        const CALL: &str = "Cheetah::MatchingHandler::send";
        // SAFETY: the caller's.
        let handler = unsafe { object(CALL, handler) }?;
        let to = number(CALL, to)?;
        let bytes: &[u8] = match len {
            0 => &[],
            // SAFETY: valid for reading, by the caller.
            _ => unsafe { std::slice::from_raw_parts(bytes.cast(), len) },
        };
        handler.send_bytes(to, tag, bytes)?;
        Ok(0)
    })
}

/// A buffer of `len` bytes for [`cheetah_matching_send_buffer`], aligned to 16 bytes; null if there is no memory. `start` gets the
/// address of its bytes.
///
/// # Safety
/// `start` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_matching_buffer(len: usize, start: *mut *mut c_void) -> *mut c_void {
    let mut buffer = ptr::null_mut();
    guard(|| {
        let mut value = Box::new(Value::with_len(len)?);
        // SAFETY: the caller's.
        unsafe { start.write(value.start().cast()) };
        buffer = Box::into_raw(value).cast();
        Ok(0)
    });
    buffer
}

/// Frees a buffer that is not sent.
///
/// # Safety
/// The buffer comes from [`cheetah_matching_buffer`], and the caller does not use it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_matching_buffer_free(buffer: *mut c_void) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(buffer.cast::<Value>()) });
}

/// Sends a buffer, which this call takes, also if it fails.
///
/// # Safety
/// As [`object`]; the buffer is of [`cheetah_matching_buffer`], its bytes are written, and it is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_matching_send_buffer(
    handler: *const c_void,
    to: c_int,
    tag: c_int,
    buffer: *mut c_void,
) -> c_int {
    guard(|| {
        const CALL: &str = "Cheetah::MatchingHandler::send";
        // SAFETY: the caller's.
        let value = unsafe { Box::from_raw(buffer.cast::<Value>()) };
        // SAFETY: the caller's.
        let handler = unsafe { object(CALL, handler) }?;
        let to = number(CALL, to)?;
        // SAFETY: all bytes are written, by the caller.
        unsafe { handler.send_value(to, tag, *value) }?;
        Ok(0)
    })
}

/// Requests a value. `run` gets the argument, the value's bytes and their number, and returns how many it needs; `give_up` gets the
/// argument if `run` will never be called, also if this call fails.
///
/// # Safety
/// As [`object`] and [`RawRequest::new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_matching_request(
    handler: *const c_void,
    from: c_int,
    tag: c_int,
    argument: *mut c_void,
    run: unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> usize,
    give_up: unsafe extern "C" fn(*mut c_void),
) -> c_int {
    guard(|| {
        const CALL: &str = "Cheetah::MatchingHandler::request";
        // SAFETY: the caller's.
        let request = unsafe { RawRequest::new(argument, run, give_up) };
        // SAFETY: the caller's.
        let handler = unsafe { object(CALL, handler) }?;
        let from = number(CALL, from)?;
        handler.request_raw(from, tag, request)?;
        Ok(0)
    })
}

/// Requests to a context that wait for their message.
///
/// # Safety
/// As [`object`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_matching_actions(handler: *const c_void, of: c_int) -> c_int {
    guard(|| {
        const CALL: &str = "Cheetah::MatchingHandler::actions";
        // SAFETY: the caller's.
        let handler = unsafe { object(CALL, handler) }?;
        Ok(handler.actions(context(CALL, valid(CALL)?, of)?).min(MOST) as c_int)
    })
}

/// Messages of a context that wait for their request.
///
/// # Safety
/// As [`object`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_matching_messages(handler: *const c_void, of: c_int) -> c_int {
    guard(|| {
        const CALL: &str = "Cheetah::MatchingHandler::messages";
        // SAFETY: the caller's.
        let handler = unsafe { object(CALL, handler) }?;
        Ok(handler.messages(context(CALL, valid(CALL)?, of)?).min(MOST) as c_int)
    })
}
