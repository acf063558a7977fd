//! The inline calls, over drivers that are made up here.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use rdma_core_sys::*;

extern "C" fn anything() -> c_int {
    -1
}

/// The library's own `ibv_query_port`.
unsafe extern "C" fn old_query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the tests pass a whole struct.
    unsafe { (*attr).lid = 1000 + u16::from(port) };
    0
}

/// The driver's.
unsafe extern "C" fn new_query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, len: usize) -> c_int {
    assert_eq!(len, size_of::<ibv_port_attr>());
    // SAFETY: the tests pass a whole struct.
    unsafe { (*attr).lid = 2000 + u16::from(port) };
    0
}

/// A library of functions that do nothing, but for [`old_query_port`], and without what came later.
fn old_library() -> Verbs {
    let lookup = |symbol: &CStr| match symbol.to_bytes() {
        b"ibv_query_port" => NonNull::new(old_query_port as *mut c_void),
        b"ibv_reg_mr_iova2" | b"ibv_qp_to_qp_ex" | b"_ibv_query_gid_ex" | b"_ibv_query_gid_table" => None,
        _ => NonNull::new(anything as *mut c_void),
    };
    // SAFETY: the tests call only what is a function of the right signature.
    unsafe { Verbs::from_symbols("fake", lookup) }.expect("what is missing is optional")
}

/// A context as a library makes it whose `verbs_context` has `size` bytes.
fn context(size: usize) -> Box<verbs_context> {
    let mut context = Box::new(verbs_context { query_port: Some(new_query_port), sz: size, ..Default::default() });
    context.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    context
}

/// Where the library sees its context: inside of the larger struct.
fn inner(context: &mut verbs_context) -> *mut ibv_context {
    // SAFETY: the pointer stays inside of the struct.
    unsafe { (&raw mut *context).byte_add(std::mem::offset_of!(verbs_context, context)).cast() }
}

fn lid(verbs: &Verbs, context: *mut ibv_context) -> u16 {
    let mut attr = ibv_port_attr { lid: 7, ..Default::default() };
    // SAFETY: the context and the struct live here.
    assert_eq!(unsafe { verbs.ibv_query_port(context, 1, &raw mut attr) }, 0);
    attr.lid
}

#[test]
fn a_port_is_asked_for_through_the_driver() {
    assert_eq!(lid(&old_library(), inner(&mut context(size_of::<verbs_context>()))), 2001);
}

#[test]
fn a_newer_library_has_a_larger_context() {
    assert_eq!(lid(&old_library(), inner(&mut context(size_of::<verbs_context>() + 64))), 2001);
}

#[test]
fn an_older_library_whose_context_ends_before_is_asked_the_old_way() {
    assert_eq!(lid(&old_library(), inner(&mut context(size_of::<verbs_context>() - 8))), 1001);
}

#[test]
fn a_context_without_extensions_is_asked_the_old_way() {
    let mut context = context(size_of::<verbs_context>());
    context.context.abi_compat = ptr::null_mut();
    assert_eq!(lid(&old_library(), inner(&mut context)), 1001);
}

#[test]
fn what_the_library_lacks_is_an_error_number() {
    let verbs = old_library();
    let mut context = context(size_of::<verbs_context>());
    let context = inner(&mut context);
    // SAFETY: nothing is there to be called, so that nothing is done with the null pointers.
    unsafe {
        assert_eq!(verbs.ibv_query_gid_ex(context, 1, 0, ptr::null_mut(), 0), libc::EOPNOTSUPP);
        assert_eq!(verbs.ibv_query_gid_table(context, ptr::null_mut(), 0, 0), -(libc::EOPNOTSUPP as isize));
        assert!(verbs.ibv_create_cq_ex(context, &mut ibv_cq_init_attr_ex::default()).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert!(verbs.ibv_create_qp_ex(context, &mut ibv_qp_init_attr_ex::default()).is_null());
        assert!(verbs.ibv_qp_to_qp_ex(ptr::null_mut()).is_null());
    }
}

#[test]
fn a_missing_symbol_is_an_error_that_names_it() {
    let lookup = |symbol: &CStr| if symbol == c"ibv_fork_init" { None } else { NonNull::new(anything as *mut c_void) };
    // SAFETY: nothing is called.
    let error = unsafe { Verbs::from_symbols("fake", lookup) }.expect_err("one is missing");
    assert_eq!(error.to_string(), "fake has no function ibv_fork_init; to use RDMA install rdma-core 44 or newer");
}

unsafe extern "C" fn poll(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the test passes one entry and its own queue.
    unsafe { (*wc).wr_id = (*cq).handle.into() };
    num_entries
}

#[test]
fn polling_goes_through_the_context_of_the_queue() {
    let mut context = context(size_of::<verbs_context>());
    context.context.ops.poll_cq = Some(poll);
    let mut cq = ibv_cq { context: inner(&mut context), handle: 42, ..Default::default() };
    let mut wc = ibv_wc::default();
    // SAFETY: queue, context and entry live here.
    assert_eq!(unsafe { ibv_poll_cq(&raw mut cq, 1, &raw mut wc) }, 1);
    assert_eq!(wc.wr_id, 42);
}

#[test]
#[should_panic(expected = "ibv_wr_rdma_write: the queue was made without it")]
fn a_request_that_the_queue_was_not_made_for_is_told() {
    // SAFETY: the queue lives here and has no functions to call.
    unsafe { ibv_wr_rdma_write(&mut ibv_qp_ex::default(), 1, 2) };
}
