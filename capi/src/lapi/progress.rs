//! Counters, fences, polls, purged tasks.

use std::ffi::{c_int, c_uint};

use bellwether_runtime::vocabulary::lapi::Counter;
use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, MsgInfo};

use super::calls;
use super::life::told_without_vectors;

calls! {
    setcntr = LAPI_Setcntr, PLAPI_Setcntr(handle: Handle, counter: *mut Counter, value: c_int) {
        // SAFETY: the caller guarantees that it is null or valid; a `lapi_cntr_t` is a counter.
        unsafe { raw::setcntr(handle, counter, value) }
    }

    getcntr = LAPI_Getcntr, PLAPI_Getcntr(handle: Handle, counter: *mut Counter, value: *mut c_int) {
        // SAFETY: the caller guarantees that both are null or valid; a `lapi_cntr_t` is a counter.
        told_without_vectors(handle, unsafe { raw::getcntr(handle, counter, value) })
    }

    waitcntr = LAPI_Waitcntr, PLAPI_Waitcntr(handle: Handle, counter: *mut Counter, value: c_int, left: *mut c_int) {
        // SAFETY: the caller guarantees that both are null or valid; a `lapi_cntr_t` is a counter.
        told_without_vectors(handle, unsafe { raw::waitcntr(handle, counter, value, left) })
    }

    setcntr_wstatus = LAPI_Setcntr_wstatus, PLAPI_Setcntr_wstatus(
        handle: Handle,
        counter: *mut Counter,
        num_dest: c_int,
        dest_list: *mut c_uint,
        dest_status: *mut c_int,
    ) {
        // SAFETY: the caller guarantees that all are null or valid, the lists until the states are given up.
        unsafe { raw::setcntr_wstatus(handle, counter, num_dest, dest_list, dest_status) }
    }

    nopoll_wait = LAPI_Nopoll_wait, PLAPI_Nopoll_wait(
        handle: Handle,
        counter: *mut Counter,
        value: c_int,
        left: *mut c_int,
    ) {
        // SAFETY: the caller guarantees that both are null or valid; a `lapi_cntr_t` is a counter.
        told_without_vectors(handle, unsafe { raw::nopoll_wait(handle, counter, value, left) })
    }

    msgpoll = LAPI_Msgpoll, PLAPI_Msgpoll(handle: Handle, count: c_uint, info: *mut MsgInfo) {
        // SAFETY: the caller guarantees that it is null or valid; a `lapi_msg_info_t` is such a structure.
        told_without_vectors(handle, unsafe { raw::msgpoll(handle, count, info) })
    }

    probe = LAPI_Probe, PLAPI_Probe(handle: Handle) { told_without_vectors(handle, raw::probe(handle)) }

    fence = LAPI_Fence, PLAPI_Fence(handle: Handle) { told_without_vectors(handle, raw::fence(handle)) }

    gfence = LAPI_Gfence, PLAPI_Gfence(handle: Handle) { told_without_vectors(handle, raw::gfence(handle)) }

    purge_totask = LAPI_Purge_totask, PLAPI_Purge_totask(handle: Handle, dest: c_uint) {
        raw::purge_totask(handle, dest)
    }

    resume_totask = LAPI_Resume_totask, PLAPI_Resume_totask(handle: Handle, dest: c_uint) {
        raw::resume_totask(handle, dest)
    }
}
