//! The calls of `GASPI.h`, `GASPI_Ext.h` and `GASPI_Threads.h`, over the runtime's GASPI vocabulary.
//!
//! | module | calls |
//! | --- | --- |
//! | `life` | `gaspi_proc_init`, `gaspi_proc_term`; the job of the process, its end, forked children |
//! | `settings` | configuration, and the numbers that follow from it |
//! | `process` | ranks, state vector, connections |
//! | `segments` | segments and their notifications |
//! | `one_sided` | writes, reads, lists, atomic operations, passive messages, queues |
//! | `groups` | groups, barrier, reductions |
//! | `machine` | texts of codes, times, facts of the host |
//! | `statistics` | counters of posted requests |
//! | `threads` | `gaspi_threads_*` |
//!
//! Each call has two names, `gaspi_` and `pgaspi_`: a program that defines the first and calls the second sees its own calls.

mod groups;
mod life;
mod machine;
mod one_sided;
mod process;
mod segments;
mod settings;
mod statistics;
mod threads;

use std::cell::RefCell;
use std::ffi::{CString, c_int};

use bellwether_runtime::vocabulary::gaspi::{Code, Result, codes};

use crate::fault;

/// Defines calls under both names. Their documentation is in the headers; each is as safe as the function of the runtime that it calls.
///
/// The first name is a weak symbol where the build script has found that the shared library can export it: a program that links the archive
/// then may define it itself.
macro_rules! calls {
    ($($name:ident, $profiled:ident ($($arg:ident: $type:ty),* $(,)?) $body:block)+) => {$(
        /// See the header.
        ///
        /// # Safety
        /// Pointers are null or valid, as the header says.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "GASPI's calls")]
        pub unsafe extern "C" fn $profiled($($arg: $type),*) -> std::ffi::c_int {
            $crate::gaspi::run(move || $body)
        }

        #[cfg(weak_names)]
        std::arch::global_asm!(
            concat!(".weak ", stringify!($name)),
            concat!(".set ", stringify!($name), ", {call}"),
            call = sym $profiled,
        );

        /// As the profiling name.
        ///
        /// # Safety
        /// As the other.
        #[cfg(not(weak_names))]
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "GASPI's calls")]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
            // SAFETY: the caller's.
            unsafe { $profiled($($arg),*) }
        }
    )+};
}
use calls;

thread_local! {
    /// The code and the text of this thread's last error that has a text of its own.
    static TEXT: RefCell<Option<(c_int, CString)>> = const { RefCell::new(None) };
}

/// Runs a call, and returns its code. A panic of the library does not leave this function.
#[inline(always)]
fn run(call: impl FnOnce() -> Result<()>) -> c_int {
    match fault::catch(call) {
        Ok(Ok(())) => codes::SUCCESS,
        Ok(Err(Code(code))) => code,
        Err(text) => failed(codes::ERROR, &text).0,
    }
}

/// Keeps the text of an error for this thread, and returns the code.
#[cold]
fn failed(code: c_int, text: &str) -> Code {
    let text = CString::new(text.replace('\0', "\u{fffd}")).expect("without zero bytes");
    // A thread that ends has no text any more.
    let _ = TEXT.try_with(|kept| kept.replace(Some((code, text))));
    Code(code)
}

/// Stores a result where the program wants it.
///
/// # Errors
/// [`codes::NULLPTR`].
///
/// # Safety
/// The pointer is null or valid for a write.
#[inline(always)]
unsafe fn store<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(Code(codes::NULLPTR));
    }
    // SAFETY: not null, and valid by the caller. C programs may have it at any address.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// # Errors
/// [`codes::NULLPTR`] if one of these is null.
#[inline(always)]
fn check<const N: usize>(pointers: [*const (); N]) -> Result<()> {
    if pointers.iter().any(|pointer| pointer.is_null()) { Err(Code(codes::NULLPTR)) } else { Ok(()) }
}
