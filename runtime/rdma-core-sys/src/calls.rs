//! The header's inline calls: through a function pointer straight into the driver, without the library.

use core::ffi::{c_int, c_uint, c_void};

use crate::{
    be32, ibv_cq, ibv_cq_ex, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_poll_cq_attr, ibv_qp, ibv_qp_ex, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_srq, ibv_wc, ibv_wc_opcode, ibv_wc_tm_info,
};

/// A null pointer where the driver owes a function: the queue was made without asking for it.
#[cold]
#[inline(never)]
fn missing(call: &str) -> ! {
    panic!("{call}: the queue was made without it; name it in send_ops_flags or wc_flags when making the queue");
}

/// Calls whose function pointer lies in the context of the object.
macro_rules! through_context {
    ($($(#[$meta:meta])* fn $call:ident = $operation:ident(
        $object:ident: $type:ty $(, $name:ident: $argument:ty)*
    ) -> $result:ty;)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// The pointers are what the C function of this name asks for.
        #[inline]
        pub unsafe fn $call($object: *mut $type $(, $name: $argument)*) -> $result {
            // SAFETY: as the caller promises.
            unsafe {
                match (*(*$object).context).ops.$operation {
                    Some(call) => call($object $(, $name)*),
                    None => missing(stringify!($call)),
                }
            }
        }
    )*};
}

/// Calls whose function pointer lies in the object itself.
macro_rules! through_object {
    ($object:ident: $type:ty; $($(#[$meta:meta])* fn $call:ident = $operation:ident(
        $($name:ident: $argument:ty),*
    ) $(-> $result:ty)?;)*) => {$(
        $(#[$meta])*
        ///
        /// # Panics
        ///
        /// If the queue was made without this operation.
        ///
        /// # Safety
        ///
        /// The pointers are what the C function of this name asks for.
        #[inline]
        pub unsafe fn $call($object: *mut $type $(, $name: $argument)*) $(-> $result)? {
            // SAFETY: as the caller promises.
            unsafe {
                match (*$object).$operation {
                    Some(call) => call($object $(, $name)*),
                    None => missing(stringify!($call)),
                }
            }
        }
    )*};
}

through_context! {
    /// Posts a list of work requests; on failure `bad_wr` is the first that was not taken, the result `errno`'s number.
    fn ibv_post_send = post_send(qp: ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int;
    /// Posts a list of receive buffers; failure as [`ibv_post_send`].
    fn ibv_post_recv = post_recv(qp: ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int;
    /// Posts a list of receive buffers to a shared queue; failure as [`ibv_post_send`].
    fn ibv_post_srq_recv = post_srq_recv(srq: ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int;
    /// Takes up to `num_entries` completions; how many, or negative for an error. Does not wait.
    fn ibv_poll_cq = poll_cq(cq: ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int;
    /// Asks for one event with the next completion (solicited ones only, if not 0).
    fn ibv_req_notify_cq = req_notify_cq(cq: ibv_cq, solicited_only: c_int) -> c_int;
}

through_object! { qp: ibv_qp_ex;
    /// Begins a batch of work requests. Takes the queue's lock until [`ibv_wr_complete`] or [`ibv_wr_abort`].
    fn ibv_wr_start = wr_start();
    /// Ends the batch and rings the doorbell; if not 0, the number of `errno` and nothing was posted.
    fn ibv_wr_complete = wr_complete() -> c_int;
    /// Drops the batch.
    fn ibv_wr_abort = wr_abort();
    /// Adds a write.
    fn ibv_wr_rdma_write = wr_rdma_write(rkey: u32, remote_addr: u64);
    /// Adds a write that takes a receive buffer of the target and completes there with `imm_data`.
    fn ibv_wr_rdma_write_imm = wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: be32);
    /// Adds a read.
    fn ibv_wr_rdma_read = wr_rdma_read(rkey: u32, remote_addr: u64);
    /// Adds a send.
    fn ibv_wr_send = wr_send();
    /// Adds a send that completes at the target with `imm_data`.
    fn ibv_wr_send_imm = wr_send_imm(imm_data: be32);
    /// Adds a send that ends the target's key.
    fn ibv_wr_send_inv = wr_send_inv(invalidate_rkey: u32);
    /// Adds an 8-byte compare and swap; the word is aligned to 8.
    fn ibv_wr_atomic_cmp_swp = wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    /// Adds an 8-byte fetch and add; the word is aligned to 8.
    fn ibv_wr_atomic_fetch_add = wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    /// Adds an 8-byte write that is not torn; the word is aligned to 8.
    fn ibv_wr_atomic_write = wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void);
    /// Adds the binding of a memory window.
    fn ibv_wr_bind_mw = wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);
    /// Adds the end of a key of this side.
    fn ibv_wr_local_inv = wr_local_inv(invalidate_rkey: u32);
    /// The request's bytes, copied now.
    fn ibv_wr_set_inline_data = wr_set_inline_data(addr: *mut c_void, length: usize);
    /// The request's bytes from several places, copied now.
    fn ibv_wr_set_inline_data_list = wr_set_inline_data_list(num_buf: usize, buf_list: *const ibv_data_buf);
    /// The request's buffer.
    fn ibv_wr_set_sge = wr_set_sge(lkey: u32, addr: u64, length: u32);
    /// The request's buffers.
    fn ibv_wr_set_sge_list = wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge);
}

through_object! { cq: ibv_cq_ex;
    /// Takes the first completion; `ENOENT` if there is none, and then [`ibv_end_poll`] is not called.
    fn ibv_start_poll = start_poll(attr: *mut ibv_poll_cq_attr) -> c_int;
    /// Takes the next completion; `ENOENT` if there is none.
    fn ibv_next_poll = next_poll() -> c_int;
    /// Gives the entries back to the device; ends what [`ibv_start_poll`] began.
    fn ibv_end_poll = end_poll();
    /// What completed.
    fn ibv_wc_read_opcode = read_opcode() -> ibv_wc_opcode;
    /// The vendor's code of an error.
    fn ibv_wc_read_vendor_err = read_vendor_err() -> u32;
    /// Bytes received.
    fn ibv_wc_read_byte_len = read_byte_len() -> u32;
    /// The sender's immediate data.
    fn ibv_wc_read_imm_data = read_imm_data() -> be32;
    /// The key that the sender ended.
    fn ibv_wc_read_invalidated_rkey = read_imm_data() -> u32;
    /// The queue pair of this side.
    fn ibv_wc_read_qp_num = read_qp_num() -> u32;
    /// The sender's queue pair.
    fn ibv_wc_read_src_qp = read_src_qp() -> u32;
    /// `IBV_WC_` flags.
    fn ibv_wc_read_wc_flags = read_wc_flags() -> c_uint;
    /// The sender's LID.
    fn ibv_wc_read_slid = read_slid() -> u32;
    /// The service level.
    fn ibv_wc_read_sl = read_sl() -> u8;
    /// The path bits of the LID that was addressed.
    fn ibv_wc_read_dlid_path_bits = read_dlid_path_bits() -> u8;
    /// When it completed, in ticks of the device.
    fn ibv_wc_read_completion_ts = read_completion_ts() -> u64;
    /// When it completed, in nanoseconds of the wall clock.
    fn ibv_wc_read_completion_wallclock_ns = read_completion_wallclock_ns() -> u64;
    /// The VLAN tag.
    fn ibv_wc_read_cvlan = read_cvlan() -> u16;
    /// The tag of the flow.
    fn ibv_wc_read_flow_tag = read_flow_tag() -> u32;
    /// The tag of a tag-matching receive.
    fn ibv_wc_read_tm_info = read_tm_info(tm_info: *mut ibv_wc_tm_info);
}

/// The plain view of a completion queue, for calls that are the same for both.
#[inline]
#[must_use]
pub fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}
