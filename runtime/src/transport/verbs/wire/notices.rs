//! Puts with a notice: RDMA writes with an immediate word, which takes a receive buffer and completes at the target.
//!
//! Receive buffers are all peers' together, and a put never waits for a target that computes: a peer has as many notices
//! in flight as [`NOTICES`], and learns with a notice of the other way, or with one of its own, how many were taken.

use rdma_core_sys::*;

use super::{VerbsWire, request};
use crate::transport::error::Result;
use crate::transport::verbs::link::{Link, NOTICES, Then};

/// Bits of a notice; those above tell how many were taken.
const BITS: u32 = crate::transport::NOTICES.ilog2() + 1;
/// No notice: the word only tells how many were taken.
const NONE: u32 = crate::transport::NOTICES;
const _: () = assert!(NONE == (1 << BITS) - 1 && NOTICES < 1 << (u32::BITS - BITS));

impl VerbsWire {
    /// Writes `bytes`, at most what fits inside a request, at the key and address given, and lets the peer take `notice`.
    pub(super) fn notify(&self, peer: u32, link: &Link, to: (u32, u64, &[u8]), notice: u32) -> Result<()> {
        let (rkey, remote_addr, bytes) = to;
        let mut sge = ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
        let mut wr = request(IBV_WR_RDMA_WRITE_WITH_IMM, std::slice::from_mut(&mut sge));
        wr.num_sge = i32::from(!bytes.is_empty());
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
        wr.send_flags |= IBV_SEND_INLINE | IBV_SEND_SOLICITED;
        wr.imm_data = (notice | link.notices.owed() << BITS).to_be();
        let then = if notice == NONE { Then::Idle } else { Then::Nothing };
        self.post(peer, link, &mut wr, then, false)?;
        link.notices.told();
        Ok(())
    }

    /// Takes a notice that came.
    pub(super) fn note(&self, wc: &ibv_wc) {
        let Some(peer) = self.peer_of(wc.qp_num) else { return };
        let link = self.link(peer);
        let word = u32::from_be(wc.imm_data);
        if word >> BITS != 0 {
            link.notices.grant(word >> BITS);
            self.room.gain();
        }
        if word & NONE != NONE {
            self.arrivals.note(word & NONE);
            if link.notices.take() {
                self.backlog.note(peer);
            }
        }
    }

    /// Tells the peer how many of its notices were taken, if it is time.
    pub(super) fn give_notices_back(&self, peer: u32, link: &Link) -> Result<()> {
        if link.notices.is_due() { self.notify(peer, link, (0, 0, &[]), NONE) } else { Ok(()) }
    }
}
