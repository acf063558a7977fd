//! The C functions under `Cheetah::Controller`: counted references, handlers that are C++ functions, and the end of the job.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

use crate::cheetah::{Handler, argument, end, finalize, is_of_c, is_up, register, set_up, valid, with_arguments};
use crate::fault::guard;

thread_local! {
    /// The number of controllers of this thread. The drop of the last one finalises.
    static REFERENCES: Cell<usize> = const { Cell::new(0) };
}

/// The exit status of a process that ends its job.
const FAILED: c_int = 1;

/// Sets up, or shares what this thread has set up.
///
/// # Safety
/// The pointers are those of the arguments of `main`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_controller_open(argc: *mut c_int, argv: *mut *mut *mut c_char) -> c_int {
    guard(|| {
        const CALL: &str = "Cheetah::Controller";
        if is_up() {
            // SAFETY: the caller's.
            drop(unsafe { with_arguments(CALL, argc, argv) }?);
        } else {
            // SAFETY: the caller's.
            unsafe { set_up(CALL, argc, argv) }?;
            watch_exit();
        }
        REFERENCES.set(REFERENCES.get() + 1);
        Ok(0)
    })
}

/// A program that ends by `exit` with a status other than 0 has failed. Controllers that are static objects, which are destroyed
/// then, must not wait for contexts that wait for this one.
fn watch_exit() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        }
        extern "C" fn at_exit(status: c_int, _: *mut c_void) {
            if status != 0 {
                end();
            }
        }
        // SAFETY: the function only stores to an atomic. It runs before the destructors of objects that were made before this call. If
        // there is no memory for it, such an exit may wait.
        let _ = unsafe { on_exit(at_exit, std::ptr::null_mut()) };
    }
}

/// One more reference.
#[unsafe(no_mangle)]
pub extern "C" fn cheetah_controller_share() {
    REFERENCES.set(REFERENCES.get() + 1);
}

/// Drops a reference. The last one finalises, unless an exception is unwinding or `cheetah_core_setup` has set up.
#[unsafe(no_mangle)]
pub extern "C" fn cheetah_controller_close(unwinding: c_int) -> c_int {
    guard(|| {
        let left = REFERENCES.get().saturating_sub(1);
        REFERENCES.set(left);
        if left == 0 && !is_of_c() && unwinding == 0 && is_up() {
            // A destructor cannot report an error.
            finalize("Cheetah::Controller").inspect_err(|fault| eprintln!("~Controller: {}", fault.text()))?;
        }
        Ok(0)
    })
}

/// Whether this thread has set up, and not finalised.
#[unsafe(no_mangle)]
pub extern "C" fn cheetah_controller_is_valid() -> c_int {
    is_up().into()
}

/// Gives a C++ function the next number. `call` calls it, and lets no exception out.
///
/// # Safety
/// Both can be called from the thread that set up, until finalisation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_controller_register(
    function: Option<Handler>,
    call: unsafe extern "C" fn(Handler, c_int, c_int, *mut c_void, c_int),
) -> c_int {
    guard(|| {
        const CALL: &str = "Cheetah::Controller::register_function";
        let function = function.ok_or_else(|| argument(CALL, "the function is a null pointer"))?;
        register(CALL, function as usize, move |who, number, start, length| {
            // SAFETY: the functions, by the caller; the copy is valid for reading and writing during the call.
            unsafe { call(function, who, number, start, length) }
        })
    })
}

/// Ends the job, since an exception has left a handler.
///
/// # Safety
/// The text is null or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cheetah_controller_abort(text: *const c_char) -> ! {
    let words = match text.is_null() {
        true => "an exception without a text".into(),
        // SAFETY: the caller's.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
    };
    let why = format!("an exception has left a handler: {words}");
    let world = valid("").ok().and_then(|controller| controller.as_world().ok());
    // Destructors of static objects run in `exit`, and must not wait for other contexts.
    end();
    match world {
        Some(world) => world.abort(FAILED, &why),
        None => {
            eprintln!("{why}");
            std::process::exit(FAILED);
        }
    }
}
