//! Messages, put, get, atomic operations.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use bellwether_runtime::vocabulary::lapi::Counter;
use bellwether_runtime::vocabulary::lapi::raw::transfer::Xfer;
use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, Vector};

use super::calls;
use super::life::told;

calls! {
    amsend = LAPI_Amsend, PLAPI_Amsend(
        handle: Handle,
        tgt: c_uint,
        hdr_hdl: *mut c_void,
        uhdr: *mut c_void,
        uhdr_len: c_uint,
        udata: *mut c_void,
        udata_len: c_ulong,
        tgt_cntr: *mut Counter,
        org_cntr: *mut Counter,
        cmpl_cntr: *mut Counter,
    ) {
        // SAFETY: the caller's guarantees are the same; a `lapi_cntr_t` is a counter.
        told(handle, unsafe {
            raw::amsend(handle, tgt, hdr_hdl, uhdr, uhdr_len, udata, udata_len, tgt_cntr, org_cntr, cmpl_cntr)
        })
    }

    put = LAPI_Put, PLAPI_Put(
        handle: Handle,
        tgt: c_uint,
        len: c_ulong,
        tgt_addr: *mut c_void,
        org_addr: *mut c_void,
        tgt_cntr: *mut Counter,
        org_cntr: *mut Counter,
        cmpl_cntr: *mut Counter,
    ) {
        // SAFETY: the caller's guarantees are the same; a `lapi_cntr_t` is a counter.
        told(handle, unsafe { raw::put(handle, tgt, len, tgt_addr, org_addr, tgt_cntr, org_cntr, cmpl_cntr) })
    }

    get = LAPI_Get, PLAPI_Get(
        handle: Handle,
        tgt: c_uint,
        len: c_ulong,
        tgt_addr: *mut c_void,
        org_addr: *mut c_void,
        tgt_cntr: *mut Counter,
        org_cntr: *mut Counter,
    ) {
        // SAFETY: the caller's guarantees are the same; a `lapi_cntr_t` is a counter.
        told(handle, unsafe { raw::get(handle, tgt, len, tgt_addr, org_addr, tgt_cntr, org_cntr) })
    }

    amsendv = LAPI_Amsendv, PLAPI_Amsendv(
        handle: Handle,
        tgt: c_uint,
        hdr_hdl: *mut c_void,
        uhdr: *mut c_void,
        uhdr_len: c_uint,
        org_vec: *mut Vector,
        tgt_cntr: *mut Counter,
        org_cntr: *mut Counter,
        cmpl_cntr: *mut Counter,
    ) {
        // SAFETY: the caller's guarantees are the same; a `lapi_cntr_t` is a counter, a `lapi_vec_t` a vector.
        told(handle, unsafe {
            raw::amsendv(handle, tgt, hdr_hdl, uhdr, uhdr_len, org_vec, tgt_cntr, org_cntr, cmpl_cntr)
        })
    }

    putv = LAPI_Putv, PLAPI_Putv(
        handle: Handle,
        tgt: c_uint,
        tgt_vec: *mut Vector,
        org_vec: *mut Vector,
        tgt_cntr: *mut Counter,
        org_cntr: *mut Counter,
        cmpl_cntr: *mut Counter,
    ) {
        // SAFETY: the caller's guarantees are the same; a `lapi_cntr_t` is a counter, a `lapi_vec_t` a vector.
        told(handle, unsafe { raw::putv(handle, tgt, tgt_vec, org_vec, tgt_cntr, org_cntr, cmpl_cntr) })
    }

    getv = LAPI_Getv, PLAPI_Getv(
        handle: Handle,
        tgt: c_uint,
        tgt_vec: *mut Vector,
        org_vec: *mut Vector,
        tgt_cntr: *mut Counter,
        org_cntr: *mut Counter,
    ) {
        // SAFETY: the caller's guarantees are the same; a `lapi_cntr_t` is a counter, a `lapi_vec_t` a vector.
        told(handle, unsafe { raw::getv(handle, tgt, tgt_vec, org_vec, tgt_cntr, org_cntr) })
    }

    xfer = LAPI_Xfer, PLAPI_Xfer(handle: Handle, what: *mut Xfer) {
        // SAFETY: the caller's guarantees are the same; a `lapi_xfer_t` is such a union.
        told(handle, unsafe { raw::xfer(handle, what) })
    }

    rmw = LAPI_Rmw, PLAPI_Rmw(
        handle: Handle,
        op: c_int,
        tgt: c_uint,
        tgt_var: *mut c_int,
        in_val: *mut c_int,
        prev_tgt_val: *mut c_int,
        org_cntr: *mut Counter,
    ) {
        // SAFETY: the caller's guarantees are the same; a `lapi_cntr_t` is a counter.
        told(handle, unsafe { raw::rmw(handle, op, tgt, tgt_var, in_val, prev_tgt_val, org_cntr) })
    }

    rmw64 = LAPI_Rmw64, PLAPI_Rmw64(
        handle: Handle,
        op: c_int,
        tgt: c_uint,
        tgt_var: *mut i64,
        in_val: *mut i64,
        prev_tgt_val: *mut i64,
        org_cntr: *mut Counter,
    ) {
        // SAFETY: the caller's guarantees are the same; a `lapi_cntr_t` is a counter.
        told(handle, unsafe { raw::rmw64(handle, op, tgt, tgt_var, in_val, prev_tgt_val, org_cntr) })
    }
}
