//! The types that C programs see: handles, handlers, and the arguments that LAPI passes to handlers.

use std::ffi::c_void;

/// `lapi_handle_t`.
pub type Handle = u32;

/// `compl_hndlr_t`: runs when the data of a message is in its place. Gets the handle, and the parameter that the header handler gave.
pub type CompletionHandler = unsafe extern "C-unwind" fn(*mut Handle, *mut c_void);

/// `hdr_hndlr_t`: runs when a message arrives, and returns the address where its data goes. Gets the handle, the user header, its
/// length, the length of the data, which is the first field of a [`ReturnInfo`], and places for a completion handler and its parameter.
pub type HeaderHandler = unsafe extern "C-unwind" fn(
    *mut Handle,
    *mut c_void,
    *mut u32,
    *mut u64,
    *mut Option<CompletionHandler>,
    *mut *mut c_void,
) -> *mut c_void;

/// The completion handler runs on the handler thread.
pub const NORMAL: i32 = 0;
/// The completion handler runs inline, and does not communicate.
pub const LOCAL_STATE: i32 = 1;
/// The completion handler runs inline, and may send to the source of its message.
pub const SEND_REPLY: i32 = 2;

/// The data goes to the address that the header handler returned.
pub const DELIVER_MSG: i32 = 0;
/// The data is discarded.
pub const BURY_MSG: i32 = 1;
/// The message is delivered again, to the header handler too.
pub const DROP_PKT: i32 = 2;

/// The value of [`ReturnInfo::magic`].
pub const MAGIC: i32 = 0x4C41_5049;

/// `lapi_return_info_t`: what a header handler learns of a message beside its arguments, and what it answers.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ReturnInfo {
    /// Bytes of data.
    pub msg_len: u64,
    /// [`MAGIC`], which marks this structure. It must not be changed.
    pub magic: i32,
    /// Answer: [`NORMAL`], [`LOCAL_STATE`] or [`SEND_REPLY`].
    pub ret_flags: i32,
    /// Answer: [`DELIVER_MSG`], [`BURY_MSG`] or [`DROP_PKT`].
    pub ctl_flags: i32,
    /// Not used.
    pub dgsp_handle: i32,
    /// Answer: bytes of data to store; the rest is discarded. Initially all.
    pub bytes: u64,
    /// The task that sent the message.
    pub src: i32,
    /// The data, if it came with the header; else null. It must not be changed, and is not valid after the header handler has returned.
    pub udata_one_pkt_ptr: *mut c_void,
    /// Not used.
    pub recv_offset: u64,
}

/// `lapi_vec_t`: places of memory whose data is moved together.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Vector {
    /// [`GEN_IOVECTOR`], [`GEN_STRIDED_XFER`] or [`GEN_GENERIC`].
    pub vec_type: i32,
    /// The number of places.
    pub num_vecs: u32,
    /// The address of each place. For [`GEN_STRIDED_XFER`] three words: the address of the first place, the bytes of each place, and the
    /// bytes from the start of one place to the start of the next.
    pub info: *mut *mut c_void,
    /// Bytes of each place. Not read for [`GEN_STRIDED_XFER`].
    pub len: *mut u64,
}

/// A list of places. Origin and target have the same number of places, pairwise of the same length.
pub const GEN_IOVECTOR: i32 = 0;
/// Places of the same length at the same distance, the same number of the same length at both sides.
pub const GEN_STRIDED_XFER: i32 = 1;
/// A list of places. The places that receive the data have room for all of it, in pieces of any size.
pub const GEN_GENERIC: i32 = 2;

/// `vhdr_hndlr_t`: runs when the message of an `Amsendv` arrives, and returns the places where its data goes, or null for nowhere. Gets
/// the handle, the user header, its length, the lengths of the origin's places, and places for a completion handler and its parameter.
/// LAPI reads the returned places before the handler runs again.
pub type VectorHandler = unsafe extern "C-unwind" fn(
    *mut Handle,
    *mut c_void,
    *mut u32,
    *mut u64,
    *mut Option<CompletionHandler>,
    *mut *mut c_void,
) -> *mut Vector;

/// `scompl_hndlr_t`: runs at the origin when the source may be changed, or when the transfer has failed. Gets the handle, the parameter
/// that the transfer gave, and a [`SendInfo`].
pub type SendHandler = unsafe extern "C-unwind" fn(*mut Handle, *mut c_void, *mut SendInfo);

/// `LAPI_err_hndlr`: runs when a call is about to return the code of an earlier message. Gets the handle, the code, the kind of transfer, the
/// own task, and the task that it is about, or -1.
pub type ErrorHandler = unsafe extern "C-unwind" fn(*mut Handle, *mut i32, *mut i32, *mut i32, *mut i32);

/// `lapi_sh_info_t`: what a [`SendHandler`] gets to know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SendInfo {
    /// The target.
    pub src: u32,
    /// 0, or the code with which the transfer failed: its target refused it, or is lost.
    pub reason: u32,
    /// Not used.
    pub reserve: [u64; 6],
}

/// `lapi_msg_info_t`: the result of `Msgpoll`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MsgInfo {
    /// Bits: [`SEND_COMPLETE`], [`RECV_COMPLETE`], [`POLLING_NET`], [`DISP_CNTR`].
    pub status: u32,
    /// Not used.
    pub reserve: [u64; 10],
}

/// A transfer or request of this task is done.
pub const SEND_COMPLETE: u32 = 1;
/// A message has arrived, its data in place.
pub const RECV_COMPLETE: u32 = 2;
/// Both.
pub const BOTH_COMPLETE: u32 = 3;
/// Another thread of the task makes progress.
pub const POLLING_NET: u32 = 4;
/// All rounds are over, and nothing was done in them.
pub const DISP_CNTR: u32 = 8;

/// The state of a task that `Setcntr_wstatus` notes.
pub mod msg_status {
    /// Nothing has come from the task.
    pub const INITIAL: i32 = 0;
    /// The task has received its message.
    pub const RECVD: i32 = 1;
    /// The task was purged before it had received its message.
    pub const PURGED: i32 = 2;
    /// The task was purged after it had received its message.
    pub const PURGED_RCVD: i32 = 3;
    /// The task was purged already when the states were set, or there is no such task.
    pub const INVALID: i32 = 4;
}
