//! `Xfer`: every transfer by one call, with functions in the place of origin counters.

use std::ffi::c_void;

use self::transfer::Xfer;
use super::domain::{LOC_ADDRTBL_SZ, Undo};
use super::event::{Deferred, Event};
use super::one_sided::{self, Change, Transfer};
use super::send::{self, Message};
use super::types::{Handle, SendHandler};
use super::{Counter, codes, port, vectors};

/// Most bytes of a lightweight active message, user header and data together.
pub const LW_MAX_SZ: u64 = 128;

/// The argument of [`xfer`]: a union, as in C. The call reads every field of the member that the type names, and changes none.
/// A field that is also an argument of the direct call has the same meaning.
pub mod transfer {
    use super::*;
    use crate::vocabulary::lapi::types::{CompletionHandler, SendHandler, Vector};

    /// [`Get`].
    pub const GET: i32 = 0;
    /// [`Am`].
    pub const AM: i32 = 1;
    /// [`Put`].
    pub const PUT: i32 = 2;
    /// [`Getv`].
    pub const GETV: i32 = 3;
    /// [`Putv`].
    pub const PUTV: i32 = 4;
    /// [`Amv`].
    pub const AMV: i32 = 5;
    /// [`Rmw`].
    pub const RMW: i32 = 6;
    /// [`Am`], lightweight: user header and data are up to [`LW_MAX_SZ`] bytes together, the header handler is an index, and both may be
    /// changed when the call returns. Functions and counters are not read.
    pub const AM_LW: i32 = 9;

    /// `lapi_xfer_t`.
    #[derive(Clone, Copy)]
    #[repr(C)]
    pub union Xfer {
        /// `Xfer_type`, the first field of every member: which one it is.
        pub kind: i32,
        /// [`GET`].
        pub get: Get,
        /// [`AM`] and [`AM_LW`].
        pub am: Am,
        /// [`RMW`].
        pub rmw: Rmw,
        /// [`PUT`].
        pub put: Put,
        /// [`GETV`].
        pub getv: Getv,
        /// [`PUTV`].
        pub putv: Putv,
        /// [`AMV`].
        pub amv: Amv,
    }

    impl std::fmt::Debug for Xfer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            // SAFETY: the first field of every member.
            write!(f, "Xfer(kind {})", unsafe { self.kind })
        }
    }

    /// `lapi_get_t`.
    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    pub struct Get {
        /// [`GET`].
        pub kind: i32,
        /// Hints, which are not used.
        pub flags: i32,
        /// The target.
        pub tgt: u32,
        /// Address of the data at the target.
        pub tgt_addr: i64,
        /// Address at this task where the data goes.
        pub org_addr: *mut c_void,
        /// Bytes.
        pub len: u64,
        /// Address of the target counter, in the memory of the target.
        pub tgt_cntr: i64,
        /// The origin counter, in the memory of this task.
        pub org_cntr: *mut Counter,
        /// A completion handler of this task, which runs when the data has arrived. With a handler `org_cntr` is not used.
        pub chndlr: Option<CompletionHandler>,
        /// Its parameter.
        pub cinfo: *mut c_void,
    }

    /// `lapi_am_t`.
    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    pub struct Am {
        /// [`AM`] or [`AM_LW`].
        pub kind: i32,
        /// Hints, which are not used.
        pub flags: i32,
        /// The target.
        pub tgt: u32,
        /// Address or index of the header handler.
        pub hdr_hdl: i64,
        /// Bytes of the user header.
        pub uhdr_len: u32,
        /// The user header.
        pub uhdr: *mut c_void,
        /// The data.
        pub udata: *mut c_void,
        /// Bytes of the data.
        pub udata_len: u64,
        /// Runs at this task when header and data may be changed. With a handler `org_cntr` is not used.
        pub shdlr: Option<SendHandler>,
        /// Its parameter.
        pub sinfo: *mut c_void,
        /// Address of the target counter, in the memory of the target.
        pub tgt_cntr: i64,
        /// The origin counter, in the memory of this task.
        pub org_cntr: *mut Counter,
        /// The completion counter, in the memory of this task.
        pub cmpl_cntr: *mut Counter,
    }

    /// `lapi_put_t`.
    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    pub struct Put {
        /// [`PUT`].
        pub kind: i32,
        /// Hints, which are not used.
        pub flags: i32,
        /// The target.
        pub tgt: u32,
        /// Address at the target where the data goes.
        pub tgt_addr: i64,
        /// Address of the data at this task.
        pub org_addr: *mut c_void,
        /// Bytes.
        pub len: u64,
        /// Runs at this task when the source may be changed. With a handler `org_cntr` is not used.
        pub shdlr: Option<SendHandler>,
        /// Its parameter.
        pub sinfo: *mut c_void,
        /// Address of the target counter, in the memory of the target.
        pub tgt_cntr: i64,
        /// The origin counter, in the memory of this task.
        pub org_cntr: *mut Counter,
        /// The completion counter, in the memory of this task.
        pub cmpl_cntr: *mut Counter,
    }

    /// `lapi_getv_t`.
    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    pub struct Getv {
        /// [`GETV`].
        pub kind: i32,
        /// Hints, which are not used.
        pub flags: i32,
        /// The target.
        pub tgt: u32,
        /// The places at this task where the data goes.
        pub org_vec: *mut Vector,
        /// The places of the data at the target: a [`Vector`] of this task with addresses of the target.
        pub tgt_vec: *mut c_void,
        /// Address of the target counter, in the memory of the target.
        pub tgt_cntr: i64,
        /// The origin counter, in the memory of this task.
        pub org_cntr: *mut Counter,
        /// A completion handler of this task, which runs when the data has arrived. With a handler `org_cntr` is not used.
        pub chndlr: Option<CompletionHandler>,
        /// Its parameter.
        pub cinfo: *mut c_void,
    }

    /// `lapi_putv_t`.
    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    pub struct Putv {
        /// [`PUTV`].
        pub kind: i32,
        /// Hints, which are not used.
        pub flags: i32,
        /// The target.
        pub tgt: u32,
        /// Runs at this task when the source may be changed. With a handler `org_cntr` is not used.
        pub shdlr: Option<SendHandler>,
        /// Its parameter.
        pub sinfo: *mut c_void,
        /// The places of the data at this task.
        pub org_vec: *mut Vector,
        /// The places at the target where the data goes: a [`Vector`] of this task with addresses of the target.
        pub tgt_vec: *mut c_void,
        /// Address of the target counter, in the memory of the target.
        pub tgt_cntr: i64,
        /// The origin counter, in the memory of this task.
        pub org_cntr: *mut Counter,
        /// The completion counter, in the memory of this task.
        pub cmpl_cntr: *mut Counter,
    }

    /// `lapi_amv_t`.
    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    pub struct Amv {
        /// [`AMV`].
        pub kind: i32,
        /// Hints, which are not used.
        pub flags: i32,
        /// The target.
        pub tgt: u32,
        /// Address or index of the header handler.
        pub hdr_hdl: i64,
        /// Bytes of the user header.
        pub uhdr_len: u32,
        /// The user header.
        pub uhdr: *mut c_void,
        /// Runs at this task when header and data may be changed. With a handler `org_cntr` is not used.
        pub shdlr: Option<SendHandler>,
        /// Its parameter.
        pub sinfo: *mut c_void,
        /// The places of the data at this task.
        pub org_vec: *mut Vector,
        /// Address of the target counter, in the memory of the target.
        pub tgt_cntr: i64,
        /// The origin counter, in the memory of this task.
        pub org_cntr: *mut Counter,
        /// The completion counter, in the memory of this task.
        pub cmpl_cntr: *mut Counter,
    }

    /// `lapi_rmw_t`.
    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    pub struct Rmw {
        /// [`RMW`].
        pub kind: i32,
        /// One of [`rmw_op`](crate::vocabulary::lapi::raw::rmw_op).
        pub op: i32,
        /// The target.
        pub tgt: u32,
        /// Bits of the variable: 32 or 64.
        pub size: u32,
        /// Address of the variable at the target.
        pub tgt_var: i64,
        /// One operand; for a comparison two.
        pub in_val: *mut c_void,
        /// Address at this task where the result goes, or null.
        pub prev_tgt_val: *mut c_void,
        /// The origin counter, in the memory of this task.
        pub org_cntr: *mut Counter,
        /// Runs at this task when the result has arrived. With a handler `org_cntr` is not used.
        pub shdlr: Option<SendHandler>,
        /// Its parameter.
        pub sinfo: *mut c_void,
    }
}

/// Runs `transfer`, which goes to task `to`, with an event for `function`, or, without a function, for `counter`.
fn with_event(
    handle: Handle,
    to: u32,
    function: Option<Deferred>,
    counter: *const Counter,
    transfer: impl FnOnce(Event) -> Result<(), i32>,
) -> Result<(), i32> {
    let Some(function) = function else { return transfer(Event::counter(counter)) };
    let event = port::enter(handle)?.defer(function);
    let forgotten = Undo(handle, |domain| domain.forget([event]));
    let transferred = transfer(event);
    std::mem::forget(forgotten);
    if let Ok(domain) = port::enter(handle) {
        match transferred {
            Ok(()) => domain.arm(event, to as usize),
            Err(_) => domain.forget([event]),
        }
    }
    transferred
}

/// `LAPI_Xfer`: the transfer that a union names. The codes are those of the direct call; [`codes::XFER_CMD`] for another type, or null.
///
/// A send completion handler runs in this call if the source may be changed then, or in a call that makes progress, on its thread. In it,
/// calls that communicate or wait fail with [`codes::IN_HANDLER`]. It runs once in any case: if the target refuses the transfer or is lost,
/// its `reason` is the code. The completion handler of a get runs like that of a message, but does not run if the get failed. If this call
/// returns an error, or the panic of another handler unwinds out of it, neither runs.
///
/// # Safety
/// `what` is null, or a valid pointer to the member that its type names, whose fields are as the direct call wants them. The functions may
/// be called with their parameters, once, when their event has come.
pub unsafe fn xfer(handle: Handle, what: *const Xfer) -> i32 {
    // SAFETY: the caller's guarantees are the same.
    unsafe { run(handle, what) }.err().unwrap_or(codes::SUCCESS)
}

/// # Safety
/// As [`xfer`].
unsafe fn run(handle: Handle, what: *const Xfer) -> Result<(), i32> {
    drop(port::enter(handle)?);
    if what.is_null() {
        return Err(codes::XFER_CMD);
    }
    // The object behind the pointer may be shorter than the union, so read the type alone.
    // SAFETY: the type is the first field of every member; the caller guarantees that the member is valid.
    match unsafe { what.cast::<i32>().read() } {
        transfer::GET => {
            // SAFETY: as above.
            let get = unsafe { what.cast::<transfer::Get>().read() };
            let moved =
                Transfer { to: get.tgt, len: get.len, target: get.tgt_addr as usize, origin: get.org_addr as usize };
            let function = get.chndlr.map(|handler| Deferred::Here(handler, get.cinfo));
            with_event(handle, get.tgt, function, get.org_cntr, |event| {
                // SAFETY: as above.
                unsafe { one_sided::get(handle, moved, get.tgt_cntr as usize, event) }
            })
        }
        transfer::PUT => {
            // SAFETY: as above.
            let put = unsafe { what.cast::<transfer::Put>().read() };
            let moved =
                Transfer { to: put.tgt, len: put.len, target: put.tgt_addr as usize, origin: put.org_addr as usize };
            let function = sent(put.shdlr, put.sinfo, put.tgt);
            with_event(handle, put.tgt, function, put.org_cntr, |event| {
                // SAFETY: as above.
                unsafe { one_sided::put(handle, moved, put.tgt_cntr as usize, event, Event::counter(put.cmpl_cntr)) }
            })
        }
        transfer::AM => {
            // SAFETY: as above.
            let am = unsafe { what.cast::<transfer::Am>().read() };
            let function = sent(am.shdlr, am.sinfo, am.tgt);
            with_event(handle, am.tgt, function, am.org_cntr, |origin| {
                let completion = Event::counter(am.cmpl_cntr);
                let message = Message { origin, completion, target: am.tgt_cntr as usize, ..message(&am) };
                // SAFETY: as above.
                unsafe { send::amsend(handle, message) }
            })
        }
        transfer::AM_LW => {
            // SAFETY: as above.
            let am = unsafe { &*what.cast::<transfer::Am>() };
            // Fields after the data need not be set.
            let message = message(am);
            if am.udata_len.saturating_add(am.uhdr_len.into()) > LW_MAX_SZ {
                return Err(codes::LW_DATA_LEN);
            }
            if message.handler >= LOC_ADDRTBL_SZ {
                return Err(codes::ADDR_HNDL_RANGE);
            }
            // SAFETY: as above; so short a message is copied before the call returns.
            unsafe { send::amsend(handle, message) }
        }
        transfer::RMW => {
            // SAFETY: as above.
            let rmw = unsafe { what.cast::<transfer::Rmw>().read() };
            let function = sent(rmw.shdlr, rmw.sinfo, rmw.tgt);
            with_event(handle, rmw.tgt, function, rmw.org_cntr, |origin| {
                let size = if matches!(rmw.size, 32 | 64) { rmw.size as usize / 8 } else { 0 };
                let (variable, result) = (rmw.tgt_var as usize, rmw.prev_tgt_val as usize);
                let change = Change { op: rmw.op, to: rmw.tgt, variable, size, result, origin };
                // SAFETY: as above.
                unsafe { one_sided::rmw(handle, change, rmw.in_val.cast_const().cast()) }
            })
        }
        transfer::GETV => {
            // SAFETY: as above.
            let get = unsafe { what.cast::<transfer::Getv>().read() };
            let vectors = [get.org_vec.cast_const(), get.tgt_vec.cast_const().cast()];
            let function = get.chndlr.map(|handler| Deferred::Here(handler, get.cinfo));
            with_event(handle, get.tgt, function, get.org_cntr, |event| {
                // SAFETY: as above.
                unsafe { vectors::get_vectors(handle, get.tgt, vectors, get.tgt_cntr as u64, event) }
            })
        }
        transfer::PUTV => {
            // SAFETY: as above.
            let put = unsafe { what.cast::<transfer::Putv>().read() };
            let both = [put.org_vec.cast_const(), put.tgt_vec.cast_const().cast()];
            let function = sent(put.shdlr, put.sinfo, put.tgt);
            with_event(handle, put.tgt, function, put.org_cntr, |event| {
                // SAFETY: as above.
                unsafe {
                    vectors::put_vectors(
                        handle,
                        put.tgt,
                        both,
                        put.tgt_cntr as u64,
                        event,
                        Event::counter(put.cmpl_cntr),
                    )
                }
            })
        }
        transfer::AMV => {
            // SAFETY: as above.
            let am = unsafe { what.cast::<transfer::Amv>().read() };
            let function = sent(am.shdlr, am.sinfo, am.tgt);
            with_event(handle, am.tgt, function, am.org_cntr, |origin| {
                let message = Message {
                    to: am.tgt,
                    handler: am.hdr_hdl as usize,
                    header: (am.uhdr.cast_const().cast(), am.uhdr_len),
                    data: (std::ptr::null(), 0),
                    target: am.tgt_cntr as usize,
                    origin,
                    completion: Event::counter(am.cmpl_cntr),
                };
                // SAFETY: as above.
                unsafe { vectors::send_vector(handle, message, am.org_vec) }
            })
        }
        _ => Err(codes::XFER_CMD),
    }
}

/// The action when the source of a transfer to task `to` may be changed.
fn sent(handler: Option<SendHandler>, parameter: *mut c_void, to: u32) -> Option<Deferred> {
    handler.map(|handler| Deferred::Send(handler, parameter, to as usize))
}

/// A message without counters and functions.
fn message(am: &transfer::Am) -> Message {
    Message {
        to: am.tgt,
        handler: am.hdr_hdl as usize,
        header: (am.uhdr.cast_const().cast(), am.uhdr_len),
        data: (am.udata.cast_const().cast(), am.udata_len),
        target: 0,
        origin: Event::NONE,
        completion: Event::NONE,
    }
}
