//! Settings, texts of codes, addresses.

use std::ffi::{c_int, c_ulong, c_void};

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle};
use bellwether_runtime::vocabulary::lapi::{Failure, codes};

use super::calls;
use super::life::told_without_vectors;

/// `LAPI_MAX_ERR_STRING`.
const TEXT_ROOM: usize = 160;

/// Copies a text to `room`, cut where it is too long.
///
/// # Safety
/// `room` is null or valid for writing [`TEXT_ROOM`] bytes.
unsafe fn text_of(code: c_int, room: *mut c_void) -> i32 {
    if room.is_null() {
        return if codes::text(code).is_some() { codes::RET_PTR_NULL } else { codes::CODE_UNKNOWN };
    }
    let own = (code == codes::RUNTIME).then(|| Failure::last(code)).flatten();
    let Some(Failure { text: own, .. }) = own else {
        // SAFETY: the caller guarantees room for `TEXT_ROOM` bytes.
        return unsafe { raw::msg_string(code, room.cast(), TEXT_ROOM) };
    };
    let end = own.floor_char_boundary(TEXT_ROOM - 1);
    let bytes: Vec<u8> = own.bytes().take(end).map(|byte| if byte == 0 { b' ' } else { byte }).chain([0]).collect();
    // SAFETY: at most as many bytes as the caller guarantees.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), room.cast(), bytes.len()) };
    codes::SUCCESS
}

calls! {
    qenv = LAPI_Qenv, PLAPI_Qenv(handle: Handle, query: c_int, value: *mut c_int) {
        // SAFETY: the caller guarantees that the place is null or valid.
        unsafe { raw::qenv(handle, query, value) }
    }

    senv = LAPI_Senv, PLAPI_Senv(handle: Handle, query: c_int, value: c_int) {
        told_without_vectors(handle, raw::senv(handle, query, value))
    }

    msg_string = LAPI_Msg_string, PLAPI_Msg_string(code: c_int, room: *mut c_void) {
        // SAFETY: the caller guarantees that it is null, or has room for `LAPI_MAX_ERR_STRING` bytes.
        unsafe { text_of(code, room) }
    }

    address = LAPI_Address, PLAPI_Address(start: *mut c_void, place: *mut c_ulong) {
        if start.is_null() {
            return codes::ORG_ADDR_NULL;
        }
        if place.is_null() {
            return codes::TGT_ADDR_NULL;
        }
        // SAFETY: not null, and valid by the caller.
        unsafe { *place = start as c_ulong };
        codes::SUCCESS
    }

    address_init = LAPI_Address_init, PLAPI_Address_init(handle: Handle, mine: *mut c_void, table: *mut *mut c_void) {
        // SAFETY: the caller guarantees that it is null, or has room for an address of each task; addresses have 64 bits.
        told_without_vectors(handle, unsafe { raw::address_init(handle, mine as u64, table.cast()) })
    }

    address_init64 = LAPI_Address_init64, PLAPI_Address_init64(handle: Handle, mine: u64, table: *mut u64) {
        // SAFETY: the caller guarantees that it is null, or has room for a value of each task.
        told_without_vectors(handle, unsafe { raw::address_init(handle, mine, table) })
    }

    addr_set = LAPI_Addr_set, PLAPI_Addr_set(handle: Handle, address: *mut c_void, index: c_int) {
        // SAFETY: the caller guarantees that it is null, or a header handler.
        unsafe { raw::addr_set(handle, address as usize, index) }
    }

    addr_get = LAPI_Addr_get, PLAPI_Addr_get(handle: Handle, address: *mut *mut c_void, index: c_int) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { raw::addr_get(handle, address.cast(), index) }
    }
}

const _: () = assert!(size_of::<*mut c_void>() == 8 && size_of::<c_ulong>() == 8, "LAPI's addresses have 64 bits");
