//! What C programs see: handles, handlers, and what LAPI passes to them.

use std::ffi::c_void;

/// `lapi_handle_t`.
pub type Handle = u32;

/// `compl_hndlr_t`: runs when the data of a message is in its place. Gets the handle, and what the header handler gave.
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
/// The data is dropped.
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
    /// Says that this is such a structure. It is not changed.
    pub magic: i32,
    /// Answer: [`NORMAL`], [`LOCAL_STATE`] or [`SEND_REPLY`].
    pub ret_flags: i32,
    /// Answer: [`DELIVER_MSG`], [`BURY_MSG`] or [`DROP_PKT`].
    pub ctl_flags: i32,
    /// Not used.
    pub dgsp_handle: i32,
    /// Answer: bytes of data that the place takes; of the rest nothing is stored. At first, all.
    pub bytes: u64,
    /// The task that sent the message.
    pub src: i32,
    /// The data, if it came with the header; else null. It is not changed, and is gone when the header handler returns.
    pub udata_one_pkt_ptr: *mut c_void,
    /// Not used.
    pub recv_offset: u64,
}
