//! LAPI's calls as C has them: codes, handles by value, raw pointers.
//!
//! Every function returns a code of [`codes`]. If a call refuses an argument, nothing was sent and no counter moved. Calls that make
//! progress also return, once, the code of another message that failed; the event that they wait for may still come. Each call returns one:
//! 64 failures wait for later calls, and those beyond are dropped. If a [`putv`] fails while it sends, it may have sent some of its parts.

use std::ffi::c_void;

pub use super::calls::tell_foreign;
pub use super::poll::{msgpoll, nopoll_wait, setcntr_wstatus};
pub use super::types::{
    BOTH_COMPLETE, BURY_MSG, CompletionHandler, DELIVER_MSG, DISP_CNTR, DROP_PKT, ErrorHandler, GEN_GENERIC,
    GEN_IOVECTOR, GEN_STRIDED_XFER, Handle, HeaderHandler, LOCAL_STATE, MAGIC, MsgInfo, NORMAL, POLLING_NET,
    RECV_COMPLETE, ReturnInfo, SEND_COMPLETE, SEND_REPLY, SendHandler, SendInfo, Vector, VectorHandler, msg_status,
};
pub use super::vectors::{amsendv, getv, putv};
pub use super::xfer::{LW_MAX_SZ, transfer, xfer};

use super::codes::{self, SUCCESS};
use super::counter::Counter;
use super::domain::{LOC_ADDRTBL_SZ, MAX_UHDR_SZ, barrier, barrier_after, enter_outside, run_own, wait_apart};
use super::event::Event;
use super::job::{Home, Job};
use super::one_sided::{Change, Transfer};
use super::parts::{ACK_THRESHOLDS, TIMEOUTS};
use super::poll::wait_or_purged;
use super::send::{Message, is_no_function};
use super::traffic::{Collective, Place};
use super::{domain, one_sided, port, queue, send};
use crate::world::World;

/// `LAPI_MAX_MSG_SZ`: most bytes of one message.
pub const MAX_MSG_SZ: u64 = i64::MAX as u64;

/// `lapi_info_t`: all zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Info {
    /// Fields for later use.
    pub reserved: [u64; 10],
}

/// The values that [`qenv`] and [`senv`] name.
pub mod query {
    /// This task's number.
    pub const TASK_ID: i32 = 0;
    /// Tasks of the job.
    pub const NUM_TASKS: i32 = 1;
    /// Most bytes of a user header.
    pub const MAX_UHDR_SZ: i32 = 2;
    /// Most bytes of a message, limited to the largest `int`.
    pub const MAX_DATA_SZ: i32 = 3;
    /// Whether arguments are checked. Reads back the value that was set; arguments are checked in either case.
    pub const ERROR_CHK: i32 = 4;
    /// Seconds. Reads back the value that was set, which has no effect: the runtime detects failed peers by its own means.
    pub const TIMEOUT: i32 = 5;
    /// Least value of [`TIMEOUT`].
    pub const MIN_TIMEOUT: i32 = 6;
    /// Largest value of [`TIMEOUT`].
    pub const MAX_TIMEOUT: i32 = 7;
    /// 1: interrupt mode, the default; a thread makes progress when no call has made progress for 1 ms. 0: polling mode. On a simulated
    /// network there is only polling mode.
    pub const INTERRUPT_SET: i32 = 8;
    /// Communication ports: 1.
    pub const MAX_PORTS: i32 = 9;
    /// Data of up to this many bytes always travels with the header of its message, whatever the length of the user header: the header
    /// handler gets [`udata_one_pkt_ptr`](super::ReturnInfo::udata_one_pkt_ptr).
    pub const MAX_PKT_SZ: i32 = 10;
    /// Retransmission buffers: 0. Nothing is sent twice.
    pub const NUM_REX_BUFS: i32 = 11;
    /// Data of up to this many bytes is always copied, so that the origin counter moves in the call. The same value as [`MAX_PKT_SZ`].
    pub const REX_BUF_SZ: i32 = 12;
    /// Size of the table of [`addr_set`](super::addr_set); indexes are below it.
    pub const LOC_ADDRTBL_SZ: i32 = 13;
    /// Not used: 0.
    pub const EPOCH_NUM: i32 = 14;
    /// Not used: 0.
    pub const USE_THRESH: i32 = 15;
    /// Not used: 0.
    pub const RCV_FIFO_SIZE: i32 = 16;
    /// Not used: 0.
    pub const MAX_ATOM_SIZE: i32 = 17;
    /// As [`REX_BUF_SZ`].
    pub const BUF_CP_SIZE: i32 = 18;
    /// Not used: 0.
    pub const MAX_PKTS_OUT: i32 = 19;
    /// Packets for each acknowledgment, 1 to 30. Reads back the value that was set, which has no effect: this library acknowledges no
    /// packets.
    pub const ACK_THRESHOLD: i32 = 20;
}

fn code(outcome: Result<(), i32>) -> i32 {
    outcome.err().unwrap_or(SUCCESS)
}

/// `LAPI_Init` on a job that this program has started.
///
/// # Safety
/// `handle` and `info` are null or valid.
pub unsafe fn init(job: &Job, handle: *mut Handle, info: *const Info) -> i32 {
    if info.is_null() {
        return codes::INFO_NULL;
    }
    // SAFETY: the caller guarantees that it is valid.
    if unsafe { *info } != Info::default() {
        return codes::INFO_NONZERO;
    }
    if handle.is_null() {
        return codes::RET_PTR_NULL;
    }
    match job.init() {
        Ok(made) => {
            // SAFETY: as above.
            unsafe { *handle = made };
            SUCCESS
        }
        Err(code) => code,
    }
}

/// `LAPI_Term`: waits until every task has called this, all messages are in place and all completion handlers have run, also those of
/// messages that handlers sent, and ends the handle. Collective. The job stays; [`Job::init`] makes another handle on it. In a handler the
/// call fails with [`codes::IN_HANDLER`]. Purged tasks must make the call too: this waits for them. [`codes::TGT_PURGED`]: another thread
/// has purged a task since the call began. The same call, made again, resumes this one. If a handler panics after the barrier of this call,
/// the panic does not unwind out of it. Errors of messages that no call has returned are logged.
pub fn term(handle: Handle) -> i32 {
    code((|| {
        let purges = domain::purges(handle)?;
        queue::check_outside(handle)?;
        term_since(handle, purges)
    })())
}

/// As [`term`]. A purge after the first `purges` ends it.
pub(super) fn term_since(handle: Handle, purges: u64) -> Result<(), i32> {
    let settle = || {
        wait_apart(handle, "ending a handle", |domain| {
            if domain.is_idle() { Some(Ok(())) } else { domain.is_purged_since(purges) }
        })?
    };
    loop {
        // A task that waits for this one after its barrier is in its port, which a handler here may wait for: `settle` comes before.
        let first = |place: &Place| {
            if !place.is_begun() {
                settle()?;
            }
            domain::fence_together(handle, purges)
        };
        let ended = barrier_after(handle, Collective::Term, purges, first);
        let domain = enter_outside(handle)?;
        if ended.is_err_and(|code| code != codes::TGT_PURGED) {
            domain.traffic.sent_before.take();
        }
        ended?;
        // Handlers may have sent meanwhile, and their messages have handlers too. So this is over when no task has sent anything in a whole
        // round and all tasks are idle: the fences of the round have delivered all earlier messages, but a handler of one of them may not
        // have run yet.
        let of_this = [domain.traffic.sent(), domain.is_idle().into()];
        let (sent, idle): (Vec<u64>, Vec<u64>) =
            domain.exchange(|world| world.allgather(&of_this))?.chunks_exact(2).map(|of| (of[0], of[1])).unzip();
        // A call that is made again after a panic or a purge compares with the counts of the last complete round.
        if domain.traffic.sent_before.replace(sent) == *domain.traffic.sent_before.borrow() && !idle.contains(&0) {
            break;
        }
    }
    let thread = {
        let domain = enter_outside(handle)?;
        domain.exchange(World::settle)?;
        domain.end_thread()
    };
    if let Some(thread) = thread {
        // No error: the thread has caught the panics of handlers.
        let _ = thread.join();
    }
    Home::take_back(port::vacate(handle)?);
    Ok(())
}

/// `LAPI_Qenv`: stores the value of `what` in `value`.
///
/// # Safety
/// `value` is null or valid for writing.
pub unsafe fn qenv(handle: Handle, what: i32, value: *mut i32) -> i32 {
    code((|| {
        let domain = port::enter(handle)?;
        let found = match what {
            query::TASK_ID => domain.world.rank() as i32,
            query::NUM_TASKS => domain.world.size() as i32,
            query::MAX_UHDR_SZ => MAX_UHDR_SZ as i32,
            query::MAX_DATA_SZ => i32::MAX,
            query::ERROR_CHK => domain.options.error_check.get().into(),
            query::TIMEOUT => domain.options.timeout.get(),
            query::MIN_TIMEOUT => *TIMEOUTS.start(),
            query::MAX_TIMEOUT => *TIMEOUTS.end(),
            query::INTERRUPT_SET => domain.has_interrupts().into(),
            query::MAX_PORTS => 1,
            query::MAX_PKT_SZ | query::REX_BUF_SZ | query::BUF_CP_SIZE => domain.packet() as i32,
            query::LOC_ADDRTBL_SZ => LOC_ADDRTBL_SZ as i32,
            query::ACK_THRESHOLD => domain.options.ack_threshold.get(),
            query::NUM_REX_BUFS
            | query::EPOCH_NUM
            | query::USE_THRESH
            | query::RCV_FIFO_SIZE
            | query::MAX_ATOM_SIZE
            | query::MAX_PKTS_OUT => 0,
            _ => return Err(codes::QUERY_TYPE),
        };
        if value.is_null() {
            return Err(codes::RET_PTR_NULL);
        }
        // SAFETY: the caller guarantees that it is valid.
        unsafe { *value = found };
        Ok(())
    })())
}

/// `LAPI_Senv`: sets [`query::ERROR_CHK`], [`query::TIMEOUT`], [`query::INTERRUPT_SET`] or [`query::ACK_THRESHOLD`].
pub fn senv(handle: Handle, what: i32, value: i32) -> i32 {
    code((|| {
        let domain = port::enter(handle)?;
        match what {
            query::ERROR_CHK if matches!(value, 0 | 1) => domain.options.error_check.set(value == 1),
            query::TIMEOUT if TIMEOUTS.contains(&value) => domain.options.timeout.set(value),
            query::INTERRUPT_SET if matches!(value, 0 | 1) => domain.set_interrupts(value == 1)?,
            query::ACK_THRESHOLD if ACK_THRESHOLDS.contains(&value) => domain.options.ack_threshold.set(value),
            query::ERROR_CHK | query::TIMEOUT | query::INTERRUPT_SET | query::ACK_THRESHOLD => {
                return Err(codes::SET_VAL);
            }
            _ => return Err(codes::QUERY_TYPE),
        }
        Ok(())
    })())
}

/// `LAPI_Address_init64`: every task gives a value, and `table[i]` becomes that of task `i`. Collective; blocks until all tasks have called
/// it. In a handler the call fails with [`codes::IN_HANDLER`]. [`codes::TGT_PURGED`]: another thread has purged a task since the call
/// began. The same call, made again, resumes this one. If a handler panics after the barrier of this call, the panic unwinds out of no
/// call: the next call that makes progress returns [`codes::HANDLER_PANICKED`].
///
/// # Safety
/// `table` is null or valid for writing as many values as there are tasks.
pub unsafe fn address_init(handle: Handle, mine: u64, table: *mut u64) -> i32 {
    code((|| {
        drop(enter_outside(handle)?);
        queue::check_outside(handle)?;
        if table.is_null() {
            return Err(codes::ADDR_TBL_NULL);
        }
        // The exchange holds the port while it waits, so it begins only when all tasks are in this call.
        barrier(handle, Collective::AddressInit)?;
        let all = enter_outside(handle)?.exchange(|world| world.allgather(&[mine]))?;
        // SAFETY: the caller guarantees room for one value of each task.
        unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), table, all.len()) };
        Ok(())
    })())
}

/// `LAPI_Addr_set`: registers the address of a header handler under an index; 0 removes the handler. For an address where no task can have
/// a function it fails with [`codes::HDR_HNDLR_NULL`].
///
/// # Safety
/// `address` is 0, refused, or that of a [`HeaderHandler`] that may be called for every message to this index.
pub unsafe fn addr_set(handle: Handle, address: usize, index: i32) -> i32 {
    code((|| {
        let domain = port::enter(handle)?;
        let index = index_of(index)?;
        if address != 0 && is_no_function(address as u64) {
            return Err(codes::HDR_HNDLR_NULL);
        }
        domain.entries.table[index].set(address);
        Ok(())
    })())
}

/// `LAPI_Addr_get`: stores the address under `index`, null if there is none, in `address`.
///
/// # Safety
/// `address` is null or valid for writing.
pub unsafe fn addr_get(handle: Handle, address: *mut usize, index: i32) -> i32 {
    code((|| {
        let domain = port::enter(handle)?;
        if address.is_null() {
            return Err(codes::RET_PTR_NULL);
        }
        let index = index_of(index)?;
        // SAFETY: the caller guarantees that it is valid.
        unsafe { *address = domain.entries.table[index].get() };
        Ok(())
    })())
}

fn index_of(index: i32) -> Result<usize, i32> {
    let is_index = |index: &usize| (1..LOC_ADDRTBL_SZ).contains(index);
    usize::try_from(index).ok().filter(is_index).ok_or(codes::ADDR_HNDL_RANGE)
}

/// # Safety
/// `counter` is null or valid, and stays so during the call.
unsafe fn counter_of<'a>(counter: *const Counter) -> Result<&'a Counter, i32> {
    // SAFETY: the caller guarantees it.
    unsafe { counter.as_ref() }.ok_or(codes::CNTR_NULL)
}

/// `LAPI_Setcntr`: sets a counter. An increment at the same time may be lost.
///
/// # Safety
/// `counter` is null or valid.
pub unsafe fn setcntr(handle: Handle, counter: *const Counter, value: i32) -> i32 {
    code((|| {
        let domain = port::enter(handle)?;
        // SAFETY: the caller guarantees that it is valid.
        unsafe { counter_of(counter) }?.set(value);
        domain.statuses.borrow_mut().remove(&(counter as u64));
        Ok(())
    })())
}

/// `LAPI_Getcntr`: makes progress once, and stores the counter's value in `value`. In a handler that a poll runs it makes no progress.
///
/// # Safety
/// `counter` and `value` are null or valid.
pub unsafe fn getcntr(handle: Handle, counter: *const Counter, value: *mut i32) -> i32 {
    code((|| {
        let domain = port::enter(handle)?;
        // SAFETY: the caller guarantees that it is valid.
        let counter = unsafe { counter_of(counter) }?;
        if value.is_null() {
            return Err(codes::RET_PTR_NULL);
        }
        let polled = if domain.is_nested() { Ok(0) } else { domain.poll() };
        // SAFETY: as above.
        unsafe { *value = counter.value() };
        polled?;
        drop(domain);
        run_own(handle);
        Ok(())
    })())
}

/// `LAPI_Waitcntr`: makes progress until the counter is at least `value`, subtracts `value`, and stores what is left in `left`, if that is
/// not null. [`codes::TGT_PURGED`]: another thread has purged a task meanwhile; the counter is as it was. [`codes::PEER_LOST`]: a task
/// died, or left while it owed this task an answer; or all other tasks have left; or a task that [`setcntr_wstatus`] has named for this
/// counter left without its message. If any other task leaves, the wait continues, since the remaining tasks may move the counter.
///
/// # Safety
/// `counter` and `left` are null or valid, and the counter stays so during the call.
pub unsafe fn waitcntr(handle: Handle, counter: *const Counter, value: i32, left: *mut i32) -> i32 {
    code((|| {
        let domain = enter_outside(handle)?;
        // SAFETY: the caller guarantees that it is valid.
        let counter = unsafe { counter_of(counter) }?;
        let purges = domain.purges.get();
        let now = wait_or_purged(domain, counter, value, purges)?;
        if !left.is_null() {
            // SAFETY: as above.
            unsafe { *left = now };
        }
        Ok(())
    })())
}

/// `LAPI_Probe`: makes progress once.
pub fn probe(handle: Handle) -> i32 {
    code((|| {
        enter_outside(handle)?.poll()?;
        run_own(handle);
        Ok(())
    })())
}

/// `LAPI_Fence`: waits until everything that this task has sent is in place at its targets, so that data sent afterwards becomes visible
/// later. Does not wait for completion handlers. In polling mode the targets must make progress. In a closure the call fails with
/// [`codes::IN_HANDLER`].
///
/// [`codes::PEER_LOST`]: a task died, or left while it owed this task an answer or the increment of a completion counter. Later fences fail
/// too, until that task is purged. [`codes::TGT_PURGED`]: the only tasks that have not answered are purged, or were purged since the call
/// began. Messages that were sent to them before may still be in flight: their memory stays in use until a later fence succeeds.
pub fn fence(handle: Handle) -> i32 {
    code((|| {
        queue::check_no_closure(handle)?;
        domain::fence(handle)?;
        port::enter(handle)?.take_fault()
    })())
}

/// `LAPI_Gfence`: a fence of every task, and a barrier. Collective. Errors of messages are reported when the barrier is done. In a handler
/// the call fails with [`codes::IN_HANDLER`]. If a task is gone, all tasks get [`codes::PEER_LOST`], and none waits for a task whose call
/// has failed. Purged tasks must make the call too: this waits for them. [`codes::TGT_PURGED`]: another thread has purged a task since the
/// call began. The same call, made again, resumes this one; [`Lapi::gfence`](super::Lapi::gfence) tells what holds if it is not. If the
/// tasks are in different collective calls, all of these fail with [`codes::RUNTIME`].
pub fn gfence(handle: Handle) -> i32 {
    code((|| {
        queue::check_outside(handle)?;
        let purges = domain::purges(handle)?;
        gfence_since(handle, purges)
    })())
}

/// As [`gfence`]. A purge after the first `purges` ends it.
pub(super) fn gfence_since(handle: Handle, purges: u64) -> Result<(), i32> {
    barrier_after(handle, Collective::Gfence, purges, |_| domain::fence_together(handle, purges))?;
    port::enter(handle)?.take_fault()
}

/// `LAPI_Amsend`: sends an active message to task `tgt`.
///
/// There the header handler `hdr_hdl` runs, once, when the message has arrived. It is the address of a [`HeaderHandler`] at the target,
/// or an index of [`addr_set`], which the target looks up in its own table. It gets the user header and the length of the data,
/// and answers with the address where the data goes, and optionally with a completion handler. Data of up to 8 KiB travels with the
/// header; longer data stays here until the target has fetched it, in one copy.
///
/// The counters, each null or not, move by one: `tgt_cntr`, an address at the target, when the completion handler has returned, or the
/// data is in place if there is none; `org_cntr` when user header and data may be changed; `cmpl_cntr` after `tgt_cntr`.
///
/// If the value is neither an index nor an address where a task can have a function, the call fails with [`codes::HDR_HNDLR_NULL`]. At any
/// other address the target calls whatever is there.
///
/// It waits only for room to send, and makes progress meanwhile. The order in which two messages arrive is not defined. In a header
/// handler, and in an inline completion handler without [`SEND_REPLY`], the call fails with [`codes::IN_HANDLER`].
///
/// # Safety
/// - `uhdr` is null or valid for reading `uhdr_len` bytes, and `udata` for `udata_len`, the data until `org_cntr` has moved;
/// - `org_cntr` and `cmpl_cntr` are null or valid until they have moved, `tgt_cntr` so at the target;
/// - `hdr_hdl` is a value that the call refuses, an index, or the address of a [`HeaderHandler`] at the target, whose answer holds there:
///   the place
///   has room for the data, and the completion handler may be called with its parameter, by another thread if it is not inline.
#[expect(clippy::too_many_arguments, reason = "LAPI's call")]
pub unsafe fn amsend(
    handle: Handle,
    tgt: u32,
    hdr_hdl: *const c_void,
    uhdr: *const c_void,
    uhdr_len: u32,
    udata: *const c_void,
    udata_len: u64,
    tgt_cntr: *const Counter,
    org_cntr: *const Counter,
    cmpl_cntr: *const Counter,
) -> i32 {
    let message = Message {
        to: tgt,
        handler: hdr_hdl as usize,
        header: (uhdr.cast(), uhdr_len),
        data: (udata.cast(), udata_len),
        target: tgt_cntr as usize,
        origin: Event::counter(org_cntr),
        completion: Event::counter(cmpl_cntr),
    };
    // SAFETY: the caller's guarantees are the same.
    code(unsafe { send::amsend(handle, message) })
}

/// `LAPI_Put`: copies `len` bytes at `org_addr` to address `tgt_addr` of task `tgt`.
///
/// `org_cntr` moves when the source may be changed, `tgt_cntr`, an address at the target, when the data is there, and `cmpl_cntr` after
/// that. Memory that is mapped here, such as symmetric static data of a task of the same node, is written at once. Data of more than 8 KiB
/// is written by cross-memory attach on the same node, and by the network's put to memory that is registered. In these cases the target
/// must make progress only for its own counter. Other data travels in a message, or the target fetches it in one copy, when the target
/// makes progress. With a length of 0 the addresses may be null, and the counters move. The call may be made where [`amsend`] may.
///
/// # Safety
/// - `org_addr` is valid for reading `len` bytes until `org_cntr` has moved, `tgt_addr` for writing them at the target until `tgt_cntr` has,
///   or it is an address where no task has memory: then the call returns [`codes::BAD_ADDRESS`]. If the target cannot reach `tgt_addr`, more
///   than 8 KiB are [`codes::BAD_ADDRESS`] at both ends;
/// - the counters are as for [`amsend`].
#[expect(clippy::too_many_arguments, reason = "LAPI's call")]
pub unsafe fn put(
    handle: Handle,
    tgt: u32,
    len: u64,
    tgt_addr: *mut c_void,
    org_addr: *const c_void,
    tgt_cntr: *const Counter,
    org_cntr: *const Counter,
    cmpl_cntr: *const Counter,
) -> i32 {
    let transfer = Transfer { to: tgt, len, target: tgt_addr as usize, origin: org_addr as usize };
    // SAFETY: the caller's guarantees are the same.
    code(unsafe {
        one_sided::put(handle, transfer, tgt_cntr as usize, Event::counter(org_cntr), Event::counter(cmpl_cntr))
    })
}

/// `LAPI_Get`: copies `len` bytes at address `tgt_addr` of task `tgt` to `org_addr`.
///
/// `org_cntr` moves when the data is here, `tgt_cntr`, an address at the target, when the memory there may be changed. Otherwise as
/// [`put`], but cross-memory attach reads data of more than 2 KiB, and if this uses a network's get, it blocks until the data is here.
///
/// # Safety
/// - `tgt_addr` is valid for reading `len` bytes at the target until `tgt_cntr` has moved, `org_addr` for writing them until `org_cntr` has;
/// - `org_cntr` is null or valid until it has moved, `tgt_cntr` so at the target.
pub unsafe fn get(
    handle: Handle,
    tgt: u32,
    len: u64,
    tgt_addr: *const c_void,
    org_addr: *mut c_void,
    tgt_cntr: *const Counter,
    org_cntr: *const Counter,
) -> i32 {
    let transfer = Transfer { to: tgt, len, target: tgt_addr as usize, origin: org_addr as usize };
    // SAFETY: the caller's guarantees are the same.
    code(unsafe { one_sided::get(handle, transfer, tgt_cntr as usize, Event::counter(org_cntr)) })
}

/// The operations of [`rmw`].
pub mod rmw_op {
    /// Adds the operand.
    pub const FETCH_AND_ADD: i32 = 0;
    /// Sets the bits of the operand.
    pub const FETCH_AND_OR: i32 = 1;
    /// Stores the operand.
    pub const SWAP: i32 = 2;
    /// Of two operands, stores the second if the variable is equal to the first.
    pub const COMPARE_AND_SWAP: i32 = 3;
}

/// `LAPI_Rmw`: an atomic operation on the `int` at address `tgt_var` of task `tgt`. It is atomic with every other such operation on that
/// `int`, also with those of task `tgt` itself.
///
/// `in_val` points to the operand; for [`rmw_op::COMPARE_AND_SWAP`] to two: the value to compare with, and the new one. When `org_cntr` has
/// moved, `prev_val`, if it is not null, has the previous value; for [`rmw_op::COMPARE_AND_SWAP`] it has 1 if the values were equal and 0
/// if not. The call may be made where [`amsend`] may.
///
/// # Safety
/// - `in_val` is null or valid during the call;
/// - `tgt_var` is null, misaligned, or valid at the target until `org_cntr` has moved, and changed by such operations only meanwhile;
/// - `prev_val` and `org_cntr` are null or valid until `org_cntr` has moved, or until a fence after this has succeeded.
pub unsafe fn rmw(
    handle: Handle,
    op: i32,
    tgt: u32,
    tgt_var: *mut i32,
    in_val: *const i32,
    prev_val: *mut i32,
    org_cntr: *const Counter,
) -> i32 {
    let origin = Event::counter(org_cntr);
    let change = Change { op, to: tgt, variable: tgt_var as usize, size: 4, result: prev_val as usize, origin };
    // SAFETY: the caller's guarantees are the same.
    code(unsafe { one_sided::rmw(handle, change, in_val.cast()) })
}

/// `LAPI_Rmw64`: as [`rmw`], on 64 bits.
///
/// # Safety
/// As [`rmw`].
pub unsafe fn rmw64(
    handle: Handle,
    op: i32,
    tgt: u32,
    tgt_var: *mut i64,
    in_val: *const i64,
    prev_val: *mut i64,
    org_cntr: *const Counter,
) -> i32 {
    let origin = Event::counter(org_cntr);
    let change = Change { op, to: tgt, variable: tgt_var as usize, size: 8, result: prev_val as usize, origin };
    // SAFETY: the caller's guarantees are the same.
    code(unsafe { one_sided::rmw(handle, change, in_val.cast()) })
}

/// `LAPI_Purge_totask`: from now on calls that would send to task `tgt`, also those that wait for room, fail with [`codes::TGT_PURGED`].
/// Local.
///
/// It also ends calls of other threads with that code: waits for counters, bells and futures, and collective calls. A collective call resumes
/// when it is made again. [`fence`] does not wait for the task, and returns that code if the task has not answered. Messages that were sent
/// before still arrive; counters of messages to a task that is gone do not move.
pub fn purge_totask(handle: Handle, tgt: u32) -> i32 {
    code(set_purged(handle, tgt, true))
}

/// `LAPI_Resume_totask`: lets calls send to task `tgt` again. Local.
pub fn resume_totask(handle: Handle, tgt: u32) -> i32 {
    code(set_purged(handle, tgt, false))
}

fn set_purged(handle: Handle, tgt: u32, purged: bool) -> Result<(), i32> {
    let domain = port::enter(handle)?;
    domain.purged.get(tgt as usize).ok_or(codes::TGT)?.set(purged);
    if purged {
        domain.note_purged(tgt as usize);
    }
    Ok(())
}

/// `LAPI_Msg_string`: copies the text of a code, with a final 0, to the `room` bytes at `text`, and truncates it if it is longer. It may be
/// called before `Init`.
///
/// # Safety
/// `text` is null or valid for writing `room` bytes.
pub unsafe fn msg_string(number: i32, text: *mut u8, room: usize) -> i32 {
    let Some(known) = codes::text(number) else { return codes::CODE_UNKNOWN };
    if text.is_null() || room == 0 {
        return codes::RET_PTR_NULL;
    }
    let len = known.len().min(room - 1);
    // SAFETY: the caller guarantees `room` bytes, and `len` is below that.
    unsafe {
        std::ptr::copy_nonoverlapping(known.as_ptr(), text, len);
        *text.add(len) = 0;
    }
    SUCCESS
}
