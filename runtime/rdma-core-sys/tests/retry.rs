//! Loading the library when it did not work the first time. Alone in its process: the library is loaded once.

use rdma_core_sys::{LIBRARY, LoadError, Verbs};

/// Sets the most descriptors that this process may have, and returns how many that were before.
fn limit_descriptors(most: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and writes a record of ours.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, most);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        before
    }
}

#[test]
fn what_failed_once_is_tried_again() {
    // Nothing can be opened, so the library cannot be either.
    let before = limit_descriptors(0);
    let first = Verbs::load().err();
    limit_descriptors(before);
    let Some(first) = first else { panic!("a library was opened without a descriptor") };
    assert!(matches!(first, LoadError::Library { .. }), "{first}");
    // SAFETY: the file of that name is libibverbs.
    let there = unsafe { Verbs::load_from(LIBRARY) };
    match (Verbs::load(), there) {
        (Ok(verbs), _) => assert!(std::ptr::eq(verbs, Verbs::load().expect("it was loaded just now"))),
        (Err(error), Ok(_)) => panic!("the library is there, but the first error is told again: {error}"),
        // Only CI must have it.
        (Err(error), Err(_)) => assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{error}"),
    }
}
