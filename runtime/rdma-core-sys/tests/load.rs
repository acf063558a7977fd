//! The library of this machine, and what is said of one that is not there.

use std::ffi::{CStr, CString, c_void};
use std::ptr;

use rdma_core_sys::{IBV_WC_RETRY_EXC_ERR, LIBRARY, LoadError, Verbs, is_no_kernel_support};

/// The library, or `None` where it is not installed, which only CI may not be.
fn library() -> Option<&'static Verbs> {
    match Verbs::load() {
        Ok(verbs) => Some(verbs),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{error}");
            eprintln!("left out: {error}");
            None
        }
    }
}

#[test]
fn devices_are_listed_or_there_are_none() {
    let Some(verbs) = library() else { return };
    match verbs.device_list() {
        Ok(devices) => {
            println!("{} devices", devices.len());
            for &device in &*devices {
                // SAFETY: the list is alive, the name lives as long as the device.
                let name = unsafe { CStr::from_ptr(verbs.ibv_get_device_name(device)) };
                assert!(!name.is_empty());
            }
        }
        Err(error) => {
            println!("no devices: {error}");
            assert!(is_no_kernel_support(&error), "{error}");
        }
    }
}

#[test]
fn the_library_is_loaded_once() {
    let Some(verbs) = library() else { return };
    assert!(ptr::eq(verbs, Verbs::load().expect("it was loaded just now")));
}

#[test]
fn a_status_has_words() {
    let Some(verbs) = library() else { return };
    // SAFETY: the words are static, and the library stays.
    let words = unsafe { CStr::from_ptr(verbs.ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR)) };
    assert!(words.to_str().expect("ASCII").to_lowercase().contains("retry"), "{words:?}");
}

/// A symbol is there in the version of 2005 and in today's; ours must be today's.
#[test]
fn symbols_are_of_the_newest_version() {
    if library().is_none() {
        return;
    }
    let file = CString::new(LIBRARY).expect("no zero in it");
    // SAFETY: the library is loaded, so that its start-up code has run; names end in zero.
    unsafe {
        let handle = libc::dlopen(file.as_ptr(), libc::RTLD_LAZY);
        assert!(!handle.is_null());
        for name in [c"ibv_get_device_list", c"ibv_open_device", c"ibv_create_qp", c"ibv_reg_mr"] {
            let newest: *mut c_void = libc::dlvsym(handle, name.as_ptr(), c"IBVERBS_1.1".as_ptr());
            let oldest: *mut c_void = libc::dlvsym(handle, name.as_ptr(), c"IBVERBS_1.0".as_ptr());
            assert_ne!(newest, oldest);
            // As the crate looks a symbol up.
            assert_eq!(libc::dlsym(handle, name.as_ptr()), newest, "{name:?}");
        }
        libc::dlclose(handle);
    }
}

#[test]
fn an_absent_library_is_an_error_that_names_it() {
    // SAFETY: there is no such file, so nothing runs.
    let error = unsafe { Verbs::load_from("libibverbs-that-is-not-there.so.1") }.expect_err("there is no such file");
    assert!(matches!(&error, LoadError::Library { file, .. } if file == "libibverbs-that-is-not-there.so.1"));
    let text = error.to_string();
    assert!(text.contains("libibverbs-that-is-not-there.so.1") && text.contains("install"), "{text}");
}

#[test]
fn another_library_is_an_error_that_names_the_function() {
    // SAFETY: it is the C library, which runs already; nothing of it is called.
    let error = unsafe { Verbs::load_from("libc.so.6") }.expect_err("it is not libibverbs");
    assert!(matches!(&error, LoadError::Symbol { file, symbol: "ibv_get_device_list", .. } if file == "libc.so.6"));
    assert!(error.to_string().contains("libc.so.6 has no function ibv_get_device_list"), "{error}");
}
