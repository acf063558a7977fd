//! Messages, put, get, atomic operations.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use bellwether_runtime::vocabulary::lapi::Counter;
use bellwether_runtime::vocabulary::lapi::raw::transfer::Xfer;
use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, Vector};

use super::calls;
use super::life::told;

/// Defines calls that are functions of [`raw`] with the same arguments.
macro_rules! transfers {
    ($($function:ident = $name:ident, $profiled:ident (
        $handle:ident: Handle, $($arg:ident: $type:ty),* $(,)?
    );)+) => {
        calls! {$(
            $function = $name, $profiled($handle: Handle, $($arg: $type),*) {
                // SAFETY: the caller's guarantees are the same; the types of `lapi.h` are laid out as those of `raw`.
                told($handle, unsafe { raw::$function($handle, $($arg),*) })
            }
        )+}
    };
}

transfers! {
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
    );

    put = LAPI_Put, PLAPI_Put(
        handle: Handle,
        tgt: c_uint,
        len: c_ulong,
        tgt_addr: *mut c_void,
        org_addr: *mut c_void,
        tgt_cntr: *mut Counter,
        org_cntr: *mut Counter,
        cmpl_cntr: *mut Counter,
    );

    get = LAPI_Get, PLAPI_Get(
        handle: Handle,
        tgt: c_uint,
        len: c_ulong,
        tgt_addr: *mut c_void,
        org_addr: *mut c_void,
        tgt_cntr: *mut Counter,
        org_cntr: *mut Counter,
    );

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
    );

    putv = LAPI_Putv, PLAPI_Putv(
        handle: Handle,
        tgt: c_uint,
        tgt_vec: *mut Vector,
        org_vec: *mut Vector,
        tgt_cntr: *mut Counter,
        org_cntr: *mut Counter,
        cmpl_cntr: *mut Counter,
    );

    getv = LAPI_Getv, PLAPI_Getv(
        handle: Handle,
        tgt: c_uint,
        tgt_vec: *mut Vector,
        org_vec: *mut Vector,
        tgt_cntr: *mut Counter,
        org_cntr: *mut Counter,
    );

    xfer = LAPI_Xfer, PLAPI_Xfer(handle: Handle, what: *mut Xfer);

    rmw = LAPI_Rmw, PLAPI_Rmw(
        handle: Handle,
        op: c_int,
        tgt: c_uint,
        tgt_var: *mut c_int,
        in_val: *mut c_int,
        prev_tgt_val: *mut c_int,
        org_cntr: *mut Counter,
    );

    rmw64 = LAPI_Rmw64, PLAPI_Rmw64(
        handle: Handle,
        op: c_int,
        tgt: c_uint,
        tgt_var: *mut i64,
        in_val: *mut i64,
        prev_tgt_val: *mut i64,
        org_cntr: *mut Counter,
    );
}
