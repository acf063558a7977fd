//! What the library makes: devices, contexts, queues. Reached through pointers, never made or copied here.

#![allow(missing_docs, reason = "libibverbs' own names; its manual pages say what they mean")]
#![allow(non_camel_case_types, non_snake_case, reason = "libibverbs' own names")]

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::layout::{call, layouts, opaque};
use crate::{
    be32, ibv_cq_init_attr_ex, ibv_data_buf, ibv_device_attr_ex, ibv_mw_bind_info, ibv_node_type, ibv_poll_cq_attr,
    ibv_port_attr, ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type, ibv_query_device_ex_input, ibv_recv_wr, ibv_send_wr,
    ibv_sge, ibv_transport_type, ibv_wc, ibv_wc_opcode, ibv_wc_status, ibv_wc_tm_info,
};

/// A function pointer that these bindings have no use for.
pub type Unused = Option<unsafe extern "C" fn()>;

opaque! { ibv_ah ibv_mw ibv_rwq_ind_table ibv_wq ibv_xrcd verbs_ex_private }

layouts! {
    object _ibv_device_ops {
        _dummy1: Unused,
        _dummy2: Unused,
    }

    object ibv_device {
        _ops: _ibv_device_ops,
        node_type: ibv_node_type,
        transport_type: ibv_transport_type,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    object ibv_context_ops {
        _compat_query_device: Unused,
        _compat_query_port: Unused,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: Unused,
        bind_mw: Unused,
        dealloc_mw: Unused,
        _compat_create_cq: Unused,
        poll_cq: call!(fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int),
        req_notify_cq: call!(fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int),
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv: call!(fn(
            srq: *mut ibv_srq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> c_int),
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        post_send: call!(fn(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int),
        post_recv: call!(fn(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int),
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
    }

    object ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: libc::pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    object verbs_context [Front] {
        query_port: call!(fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut ibv_port_attr,
            port_attr_len: usize,
        ) -> c_int),
        advise_mr: Unused,
        alloc_null_mr: Unused,
        read_counters: Unused,
        attach_counters_point_flow: Unused,
        create_counters: Unused,
        destroy_counters: Unused,
        reg_dm_mr: Unused,
        alloc_dm: Unused,
        free_dm: Unused,
        modify_flow_action_esp: Unused,
        destroy_flow_action: Unused,
        create_flow_action_esp: Unused,
        modify_qp_rate_limit: Unused,
        alloc_parent_domain: Unused,
        dealloc_td: Unused,
        alloc_td: Unused,
        modify_cq: Unused,
        post_srq_ops: Unused,
        destroy_rwq_ind_table: Unused,
        create_rwq_ind_table: Unused,
        destroy_wq: Unused,
        modify_wq: Unused,
        create_wq: Unused,
        query_rt_values: Unused,
        create_cq_ex: call!(fn(context: *mut ibv_context, init_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex),
        priv_: *mut verbs_ex_private as "priv",
        query_device_ex: call!(fn(
            context: *mut ibv_context,
            input: *const ibv_query_device_ex_input,
            attr: *mut ibv_device_attr_ex,
            attr_size: usize,
        ) -> c_int),
        ibv_destroy_flow: Unused,
        ABI_placeholder2: Unused,
        ibv_create_flow: Unused,
        ABI_placeholder1: Unused,
        open_qp: Unused,
        create_qp_ex: call!(fn(context: *mut ibv_context, qp_init_attr_ex: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp),
        get_srq_num: Unused,
        create_srq_ex: Unused,
        open_xrcd: Unused,
        close_xrcd: Unused,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }

    object ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    object ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    object ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }

    object ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    object ibv_cq_ex [End] {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: ibv_wc_status,
        wr_id: u64,
        start_poll: call!(fn(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int),
        next_poll: call!(fn(current: *mut ibv_cq_ex) -> c_int),
        end_poll: call!(fn(current: *mut ibv_cq_ex)),
        read_opcode: call!(fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode),
        read_vendor_err: call!(fn(current: *mut ibv_cq_ex) -> u32),
        read_byte_len: call!(fn(current: *mut ibv_cq_ex) -> u32),
        read_imm_data: call!(fn(current: *mut ibv_cq_ex) -> be32),
        read_qp_num: call!(fn(current: *mut ibv_cq_ex) -> u32),
        read_src_qp: call!(fn(current: *mut ibv_cq_ex) -> u32),
        read_wc_flags: call!(fn(current: *mut ibv_cq_ex) -> c_uint),
        read_slid: call!(fn(current: *mut ibv_cq_ex) -> u32),
        read_sl: call!(fn(current: *mut ibv_cq_ex) -> u8),
        read_dlid_path_bits: call!(fn(current: *mut ibv_cq_ex) -> u8),
        read_completion_ts: call!(fn(current: *mut ibv_cq_ex) -> u64),
        read_cvlan: call!(fn(current: *mut ibv_cq_ex) -> u16),
        read_flow_tag: call!(fn(current: *mut ibv_cq_ex) -> u32),
        read_tm_info: call!(fn(current: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info)),
        read_completion_wallclock_ns: call!(fn(current: *mut ibv_cq_ex) -> u64),
    }

    object ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }

    object ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: ibv_qp_state,
        qp_type: ibv_qp_type,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }

    object ibv_qp_ex [End] {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: call!(fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64)),
        wr_atomic_fetch_add: call!(fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64)),
        wr_bind_mw: call!(fn(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info)),
        wr_local_inv: call!(fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)),
        wr_rdma_read: call!(fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)),
        wr_rdma_write: call!(fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)),
        wr_rdma_write_imm: call!(fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: be32)),
        wr_send: call!(fn(qp: *mut ibv_qp_ex)),
        wr_send_imm: call!(fn(qp: *mut ibv_qp_ex, imm_data: be32)),
        wr_send_inv: call!(fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)),
        wr_send_tso: call!(fn(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16)),
        wr_set_ud_addr: call!(fn(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32)),
        wr_set_xrc_srqn: call!(fn(qp: *mut ibv_qp_ex, remote_srqn: u32)),
        wr_set_inline_data: call!(fn(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize)),
        wr_set_inline_data_list: call!(fn(qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf)),
        wr_set_sge: call!(fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32)),
        wr_set_sge_list: call!(fn(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge)),
        wr_start: call!(fn(qp: *mut ibv_qp_ex)),
        wr_complete: call!(fn(qp: *mut ibv_qp_ex) -> c_int),
        wr_abort: call!(fn(qp: *mut ibv_qp_ex)),
        wr_atomic_write: call!(fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void)),
    }
}
