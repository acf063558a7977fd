//! The function that runs when a value has come.

use std::ffi::c_void;

use super::value::Value;

/// Unpacks a value and runs the function with it.
pub(super) enum Request {
    Closure(Closure),
    Raw(RawRequest),
}

type Closure = Box<dyn FnOnce(&[u8]) -> Outcome>;
pub(super) type Outcome = std::result::Result<(), String>;

impl Request {
    /// Runs it with bytes that somebody else has.
    #[inline]
    pub(super) fn run_with(self, bytes: &[u8]) -> Outcome {
        match self {
            Request::Closure(run) => run(bytes),
            Request::Raw(raw) => raw.run(Value::copy(bytes)),
        }
    }

    /// Runs it with a value of its own.
    pub(super) fn run(self, value: Value) -> Outcome {
        match self {
            // SAFETY: values that came were written as a whole.
            Request::Closure(run) => run(unsafe { value.bytes() }),
            Request::Raw(raw) => raw.run(value),
        }
    }
}

/// A request of another language: functions of the C calling convention, and what they get.
#[derive(Debug)]
pub struct RawRequest {
    argument: *mut c_void,
    run: unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> usize,
    give_up: unsafe extern "C" fn(*mut c_void),
}

impl RawRequest {
    /// `run` is called once, with the argument, the first of the value's bytes and their number. The bytes are aligned to 16 bytes and
    /// belong to `run` until it returns. It returns how many bytes it needs, `usize::MAX` for more than there are: then it has done
    /// nothing with them, and the context gets a [`BadMessage`](crate::Error::BadMessage). If no value comes before
    /// the request is dropped, `give_up` is called with the argument instead.
    ///
    /// # Safety
    /// Both functions can be called so, from the thread of the controller, until it is finalised; neither unwinds.
    #[inline]
    pub unsafe fn new(
        argument: *mut c_void,
        run: unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> usize,
        give_up: unsafe extern "C" fn(*mut c_void),
    ) -> RawRequest {
        RawRequest { argument, run, give_up }
    }

    #[inline]
    fn run(self, mut value: Value) -> Outcome {
        let raw = std::mem::ManuallyDrop::new(self);
        // SAFETY: called once, by the guarantee of `new`; the value stays until after the call and nobody else has it.
        let needed = unsafe { (raw.run)(raw.argument, value.start(), value.len()) };
        if needed > value.len() { Err(too_short(needed, value.len())) } else { Ok(()) }
    }
}

#[cold]
fn too_short(needed: usize, sent: usize) -> String {
    match needed {
        usize::MAX => format!("the request takes a value of more than the {sent} bytes that were sent"),
        _ => format!("the request takes a value of {needed} bytes, and {sent} were sent"),
    }
}

impl Drop for RawRequest {
    fn drop(&mut self) {
        // SAFETY: it has not run, so the argument is still there, by the guarantee of `new`.
        unsafe { (self.give_up)(self.argument) };
    }
}
