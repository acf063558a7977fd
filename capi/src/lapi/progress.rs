//! Counters, fences, polls, purged tasks.

use std::ffi::{c_int, c_uint};

use bellwether_runtime::vocabulary::lapi::Counter;
use bellwether_runtime::vocabulary::lapi::raw::{self, Handle};

use super::calls;
use super::life::told;

calls! {
    setcntr = LAPI_Setcntr, PLAPI_Setcntr(handle: Handle, counter: *mut Counter, value: c_int) {
        // SAFETY: the caller guarantees that it is null or valid; a `lapi_cntr_t` is a counter.
        unsafe { raw::setcntr(handle, counter, value) }
    }

    getcntr = LAPI_Getcntr, PLAPI_Getcntr(handle: Handle, counter: *mut Counter, value: *mut c_int) {
        // SAFETY: the caller guarantees that both are null or valid; a `lapi_cntr_t` is a counter.
        told(handle, unsafe { raw::getcntr(handle, counter, value) })
    }

    waitcntr = LAPI_Waitcntr, PLAPI_Waitcntr(handle: Handle, counter: *mut Counter, value: c_int, left: *mut c_int) {
        // SAFETY: the caller guarantees that both are null or valid; a `lapi_cntr_t` is a counter.
        told(handle, unsafe { raw::waitcntr(handle, counter, value, left) })
    }

    probe = LAPI_Probe, PLAPI_Probe(handle: Handle) { told(handle, raw::probe(handle)) }

    fence = LAPI_Fence, PLAPI_Fence(handle: Handle) { told(handle, raw::fence(handle)) }

    gfence = LAPI_Gfence, PLAPI_Gfence(handle: Handle) { told(handle, raw::gfence(handle)) }

    purge_totask = LAPI_Purge_totask, PLAPI_Purge_totask(handle: Handle, dest: c_uint) {
        raw::purge_totask(handle, dest)
    }

    resume_totask = LAPI_Resume_totask, PLAPI_Resume_totask(handle: Handle, dest: c_uint) {
        raw::resume_totask(handle, dest)
    }
}
