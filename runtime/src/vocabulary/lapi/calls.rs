//! Calls of handlers, which may be functions of another language.
//!
//! A panic of a Rust handler is caught and told. An exception of another language cannot be caught by Rust: it would end the process without
//! its text. Handlers of a foreign job are called through [`stop`], a function without unwind tables. An exception that leaves a
//! handler finds the end of the stack there, before anything is unwound, and its language ends the process with the
//! exception's text; of C++ that is `std::terminate`.

use std::ffi::c_void;

use super::types::{
    CompletionHandler, ErrorHandler, Handle, HeaderHandler, SendHandler, SendInfo, Vector, VectorHandler,
};

/// How the handlers of a job are called.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Calls {
    /// Directly: what unwinds is a panic.
    #[default]
    Own,
    /// Through [`stop`]: nothing unwinds.
    Foreign,
}

/// The arguments of a [`HeaderHandler`], and of a [`VectorHandler`].
pub(super) struct Arrived<'a> {
    pub(super) handle: &'a mut Handle,
    pub(super) header: *mut c_void,
    pub(super) header_len: &'a mut u32,
    pub(super) len: *mut u64,
    pub(super) then: &'a mut Option<CompletionHandler>,
    pub(super) parameter: &'a mut *mut c_void,
}

/// Calls `function` with the other arguments, of which it may have fewer. Nothing unwinds out of this.
///
/// # Safety
/// `function` has up to six arguments that are pointers, for which the others are valid, and returns a pointer or nothing.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[unsafe(naked)]
unsafe extern "C" fn stop(
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    function: usize,
) -> *mut c_void {
    // The six arguments stay where they are. No directives for unwind tables: see the head of the module.
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("push rbp", "mov rbp, rsp", "call qword ptr [rbp + 16]", "pop rbp", "ret");
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("stp x29, x30, [sp, #-16]!", "mov x29, sp", "blr x6", "ldp x29, x30, [sp], #16", "ret");
}

const STOPS: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Elsewhere an exception ends the process without its text.
///
/// # Safety
/// As of the other.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn stop(
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: usize,
) -> *mut c_void {
    unreachable!("`STOPS` is false")
}

impl Calls {
    fn stops(self) -> bool {
        STOPS && self == Calls::Foreign
    }

    /// # Safety
    /// A header handler is at the address, and may be called with these arguments.
    #[inline]
    pub(super) unsafe fn header(self, address: usize, with: Arrived<'_>) -> *mut c_void {
        let Arrived { handle, header, header_len, len, then, parameter } = with;
        if self.stops() {
            let (handle, header_len) = ((&raw mut *handle).cast(), (&raw mut *header_len).cast());
            let (then, parameter) = ((&raw mut *then).cast(), (&raw mut *parameter).cast());
            // SAFETY: the caller guarantees that the function has these arguments.
            return unsafe { stop(handle, header, header_len, len.cast(), then, parameter, address) };
        }
        // SAFETY: the caller guarantees that such a function is at this address.
        unsafe {
            std::mem::transmute::<usize, HeaderHandler>(address)(handle, header, header_len, len, then, parameter)
        }
    }

    /// # Safety
    /// A header handler for vectors is at the address, and may be called with these arguments.
    pub(super) unsafe fn vector(self, address: usize, with: Arrived<'_>) -> *mut Vector {
        if self.stops() {
            // SAFETY: the caller guarantees it; the arguments are those of a header handler.
            return unsafe { self.header(address, with) }.cast();
        }
        let Arrived { handle, header, header_len, len, then, parameter } = with;
        // SAFETY: the caller guarantees that such a function is at this address.
        unsafe {
            std::mem::transmute::<usize, VectorHandler>(address)(handle, header, header_len, len, then, parameter)
        }
    }

    /// # Safety
    /// The function may be called with these arguments.
    pub(super) unsafe fn completion(self, handler: CompletionHandler, handle: &mut Handle, parameter: *mut c_void) {
        let none = std::ptr::null_mut();
        if self.stops() {
            // SAFETY: the caller guarantees that the function has these two arguments.
            unsafe { stop((&raw mut *handle).cast(), parameter, none, none, none, none, handler as usize) };
            return;
        }
        // SAFETY: the caller guarantees it.
        unsafe { handler(handle, parameter) }
    }

    /// # Safety
    /// The function may be called with these arguments.
    pub(super) unsafe fn send(
        self,
        handler: SendHandler,
        handle: &mut Handle,
        parameter: *mut c_void,
        info: &mut SendInfo,
    ) {
        let none = std::ptr::null_mut();
        if self.stops() {
            let (handle, info) = ((&raw mut *handle).cast(), (&raw mut *info).cast());
            // SAFETY: the caller guarantees that the function has these three arguments.
            unsafe { stop(handle, parameter, info, none, none, none, handler as usize) };
            return;
        }
        // SAFETY: the caller guarantees it.
        unsafe { handler(handle, parameter, info) }
    }

    /// # Safety
    /// The function may be called with these arguments.
    unsafe fn error(self, handler: ErrorHandler, handle: &mut Handle, [code, what, own, about]: &mut [i32; 4]) {
        if self.stops() {
            let [code, what, own, about] = [code, what, own, about].map(|value| (&raw mut *value).cast());
            let handle = (&raw mut *handle).cast();
            // SAFETY: the caller guarantees that the function has these five arguments.
            unsafe { stop(handle, code, what, own, about, std::ptr::null_mut(), handler as usize) };
            return;
        }
        // SAFETY: the caller guarantees it.
        unsafe { handler(handle, code, what, own, about) }
    }
}

/// Calls the error handler of a foreign program, for a library that wraps these calls, with the code, the kind of transfer, the own task,
/// and the task that it is about. An exception that leaves it ends the process as of [`Job::start_foreign`](super::Job::start_foreign).
///
/// # Safety
/// The function may be called with these arguments.
pub unsafe fn tell_foreign(handler: ErrorHandler, handle: Handle, told: [i32; 4]) {
    let (mut handle, mut told) = (handle, told);
    // SAFETY: the caller's guarantees are the same; the places are valid during the call.
    unsafe { Calls::Foreign.error(handler, &mut handle, &mut told) }
}
