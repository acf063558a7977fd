//! What is posted to a queue and what comes back.

#![allow(missing_docs, reason = "libibverbs' own names; its manual pages say what they mean")]
#![allow(non_camel_case_types, non_snake_case, reason = "libibverbs' own names")]

use core::ffi::{c_int, c_uint, c_void};

use crate::layout::layouts;
use crate::{be16, be32, ibv_ah, ibv_gid, ibv_mr, ibv_mw, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode};

layouts! {
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    struct ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    union ibv_send_wr_wr as "__typeof__(((struct ibv_send_wr *)0)->wr)" {
        rdma: ibv_send_wr_rdma,
        atomic: ibv_send_wr_atomic,
        ud: ibv_send_wr_ud,
    }

    struct ibv_send_wr_rdma as "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" {
        remote_addr: u64,
        rkey: u32,
    }

    struct ibv_send_wr_atomic as "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    struct ibv_send_wr_ud as "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    union ibv_send_wr_qp_type as "__typeof__(((struct ibv_send_wr *)0)->qp_type)" {
        xrc: ibv_send_wr_xrc,
    }

    struct ibv_send_wr_xrc as "__typeof__(((struct ibv_send_wr *)0)->qp_type.xrc)" {
        remote_srqn: u32,
    }

    struct ibv_send_wr_bind_mw as "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode,
        send_flags: c_uint,
        imm_data: be32,
        wr: ibv_send_wr_wr,
        qp_type: ibv_send_wr_qp_type,
        bind_mw: ibv_send_wr_bind_mw,
    }

    struct ibv_wc {
        wr_id: u64,
        status: ibv_wc_status,
        opcode: ibv_wc_opcode,
        vendor_err: u32,
        byte_len: u32,
        imm_data: be32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    struct ibv_grh {
        version_tclass_flow: be32,
        paylen: be16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }

    struct ibv_poll_cq_attr {
        comp_mask: u32,
    }

    struct ibv_wc_tm_info {
        tag: u64,
        priv_: u32 as "priv",
    }
}
