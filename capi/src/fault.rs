//! Errors at the boundary: each is a code, and its text is kept for the thread that made the call.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bellwether_runtime::Error;

/// A code of `cheetah.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// Before set-up, after finalisation, or a second set-up.
    State = -1,
    /// Another thread than the one that set up, or a forked child.
    Thread = -2,
    /// No such context.
    Context = -3,
    /// A null pointer, a negative size, an option that cannot be understood.
    Argument = -4,
    /// Memory that the remote context does not have.
    Address = -5,
    /// A function that is not registered, or another one elsewhere.
    Function = -6,
    /// Another context has ended.
    Peer = -7,
    /// No memory for a message.
    Memory = -8,
    /// A call that blocks, inside a handler.
    Handler = -9,
    /// Starting, the system, or MPI.
    System = -10,
    /// A message that cannot be used.
    Message = -11,
    /// A panic of the library.
    Internal = -12,
}

/// Why a call failed.
#[derive(Debug)]
pub struct Fault {
    code: Code,
    text: String,
}

impl Fault {
    /// With a text of the library's own.
    #[cold]
    pub fn new(code: Code, text: impl Into<String>) -> Fault {
        Fault { code, text: text.into() }
    }

    /// The text of the error.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl From<Error> for Fault {
    #[cold]
    fn from(error: Error) -> Fault {
        let code = match &error {
            Error::RankOutOfRange { .. } => Code::Context,
            Error::BadAddress { .. } | Error::Misaligned { .. } | Error::NoSegment { .. } => Code::Address,
            Error::UnknownHandler { .. } | Error::RanksDiffer { .. } => Code::Function,
            Error::PeerLost { .. } | Error::MemoryLost { .. } | Error::HandlerPanicked { .. } => Code::Peer,
            Error::OutOfMemory { .. } | Error::WouldBlock { .. } | Error::NoContext { .. } => Code::Memory,
            Error::InsideHandler { .. } => Code::Handler,
            Error::Forked { .. } => Code::Thread,
            Error::BadMessage { .. } => Code::Message,
            Error::InvalidArgument { .. } | Error::Setting { .. } => Code::Argument,
            _ => Code::System,
        };
        Fault { code, text: error.without_place().to_string() }
    }
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs a call, and returns its result or an error code. A panic does not leave this function.
#[inline]
pub fn guard(call: impl FnOnce() -> Result<c_int, Fault>) -> c_int {
    match catch(call) {
        Ok(Ok(value)) => value,
        Ok(Err(fault)) => keep(fault),
        Err(text) => keep(Fault::new(Code::Internal, text)),
    }
}

/// Runs a call.
///
/// # Errors
/// The text of a panic.
#[inline(always)]
pub fn catch<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(panicked)
}

#[cold]
#[inline(never)]
fn panicked(panic: Box<dyn Any + Send>) -> String {
    let words = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    format!("a defect of this library: {}", words.unwrap_or("a panic without a text"))
}

/// Keeps the text for this thread and gives the code.
#[cold]
fn keep(fault: Fault) -> c_int {
    let text = CString::new(fault.text.replace('\0', "\u{fffd}")).expect("without zero bytes");
    // A thread that ends has no text any more.
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = Some(text)));
    fault.code as c_int
}

/// The text of this thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn cheetah_error_string() -> *const c_char {
    let text = LAST.try_with(|last| last.try_borrow().ok().and_then(|last| last.as_ref().map(|text| text.as_ptr())));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn text() -> String {
        // SAFETY: a text of this thread, valid until the next call that fails.
        unsafe { CStr::from_ptr(cheetah_error_string()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn errors_have_no_line_of_this_library() {
        let faults = bellwether_runtime::threads(2, |world| {
            let put = world.alloc::<u64>(1).and_then(|place| place.put(7, 0, 1)).expect_err("no rank 7");
            // The other one leaves.
            let left = if world.rank() == 0 { world.barrier().err() } else { None };
            [Some(put), left]
                .into_iter()
                .flatten()
                .map(|error| Fault::from(error).text().to_owned())
                .collect::<Vec<_>>()
        });
        let texts = faults.expect("the ranks start").concat();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert!(texts.iter().all(|text| text.contains("rank ") && !text.contains("called at")), "{texts:?}");
    }

    #[test]
    fn a_panic_becomes_a_code_with_its_text() {
        assert_eq!(text(), "");
        assert_eq!(guard(|| panic!("no {}", 7)), Code::Internal as c_int);
        assert_eq!(text(), "a defect of this library: no 7");
        assert_eq!(guard(|| Err(Fault::new(Code::Argument, "a\0b"))), Code::Argument as c_int);
        assert_eq!(text(), "a\u{fffd}b");
        assert_eq!(guard(|| Ok(3)), 3);
        assert_eq!(text(), "a\u{fffd}b");
        assert_eq!(std::thread::spawn(text).join().expect("no panic"), "", "texts belong to a thread");
    }
}
