//! The calls of `lapi.h`, over the runtime's LAPI vocabulary.
//!
//! | module | calls |
//! | --- | --- |
//! | `life` | `LAPI_Init`, `LAPI_Term`; the job of the process, its end, forked children, error handlers |
//! | `settings` | `LAPI_Qenv`, `LAPI_Senv`, `LAPI_Msg_string`, addresses and the address table |
//! | `transfers` | messages, put, get, atomic operations |
//! | `progress` | counters, fences, polls, purged tasks |
//!
//! Each call has two names, `LAPI_` and `PLAPI_`: a program that defines the first and calls the second sees its own calls.

#![allow(non_snake_case, reason = "the names are LAPI's")]

mod life;
mod progress;
mod settings;
mod transfers;

use std::ffi::c_int;

use bellwether_runtime::vocabulary::lapi::{Failure, What, codes};

use crate::fault;

/// Defines calls under both names. Their documentation is in `lapi.h`; each is as safe as the function of the runtime that it calls.
macro_rules! calls {
    ($($inner:ident = $name:ident, $profiled:ident ($($arg:ident: $type:ty),* $(,)?) $body:block)+) => {$(
        /// # Safety
        /// As the function of the runtime that it calls, whose premises `lapi.h` gives to the caller.
        #[inline(always)]
        #[allow(clippy::too_many_arguments, reason = "LAPI's calls")]
        unsafe fn $inner($($arg: $type),*) -> std::ffi::c_int {
            $crate::lapi::run(move || $body)
        }

        /// See `lapi.h`.
        ///
        /// # Safety
        /// Pointers are null or valid, as `lapi.h` says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
            // SAFETY: the caller's guarantees are the same.
            unsafe { $inner($($arg),*) }
        }

        /// The profiling name.
        ///
        /// # Safety
        /// As the other.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $profiled($($arg: $type),*) -> std::ffi::c_int {
            // SAFETY: the caller's guarantees are the same.
            unsafe { $inner($($arg),*) }
        }
    )+};
}
use calls;

/// Runs a call, and returns its code. A panic of the library does not leave this function.
///
/// Inlined, so that arguments stay in registers: in a closure of its own each would be stored once more.
#[inline(always)]
fn run(call: impl FnOnce() -> i32) -> c_int {
    if life::is_child() {
        return codes::HNDL_INVALID;
    }
    fault::catch(call).unwrap_or_else(runtime_error)
}

/// Keeps the text of an error that has no code of its own, and returns its code.
#[cold]
fn runtime_error(text: String) -> i32 {
    Failure { code: codes::RUNTIME, what: What::Job, task: None, text }.keep()
}
