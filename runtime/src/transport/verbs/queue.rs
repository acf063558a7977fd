//! Queue pairs and the objects that they are made of; each is destroyed when it is dropped.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;

use rdma_core_sys::*;

use super::address::Address;
use super::nic::Nic;

/// Where retransmission starts to wait: 4.096 us times two to this power, about 67 ms, or as long as the device takes to
/// acknowledge, if it says that it may take longer.
const TIMEOUT: u8 = 14;
/// More than that, about 0.27 s, is not waited at first, so that a death shows within seconds.
const TIMEOUT_MOST: u8 = 16;
/// Times it is tried again before the peer counts as lost. Soft-RoCE takes 7 for ever.
const RETRIES: u8 = 6;
/// A receiver without a buffer is asked again for ever: it is alive, and its buffers come back.
const RECEIVER_NOT_READY: u8 = 7;
/// Pause before that: 0.64 ms.
const RECEIVER_PAUSE: u8 = 12;
/// Reads and atomics in flight at a time, at most.
const MAX_READS: c_int = 16;
/// Receive buffers that are given to the device in one call, at most.
pub const GIVEN: usize = 16;

macro_rules! owned {
    ($(#[$doc:meta])* $name:ident($raw:ty), $destroy:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            pub raw: *mut $raw,
            pub nic: Arc<Nic>,
        }

        // SAFETY: libibverbs may be called from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            fn checked(raw: *mut $raw, nic: &Arc<Nic>) -> io::Result<$name> {
                match raw.is_null() {
                    true => Err(io::Error::last_os_error()),
                    false => Ok($name { raw, nic: Arc::clone(nic) }),
                }
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made once, destroyed once; those that use it are dropped before.
                unsafe { self.nic.verbs.$destroy(self.raw) };
            }
        }
    };
}

owned!(
    /// The channel to which completion queues send their events.
    Events(ibv_comp_channel),
    ibv_destroy_comp_channel
);
owned!(
    /// A completion queue.
    Completions(ibv_cq),
    ibv_destroy_cq
);
owned!(
    /// Receive buffers that all connections share.
    Shared(ibv_srq),
    ibv_destroy_srq
);
owned!(
    /// A queue pair.
    Pair(ibv_qp),
    ibv_destroy_qp
);
owned!(
    /// Where datagrams go.
    Route(ibv_ah),
    ibv_destroy_ah
);

impl Events {
    pub fn new(nic: &Arc<Nic>) -> io::Result<Events> {
        // SAFETY: an open NIC.
        let events = Events::checked(unsafe { nic.verbs.ibv_create_comp_channel(nic.context) }, nic)?;
        // Looked at without waiting.
        rustix::io::ioctl_fionbio(events.descriptor(), true)?;
        Ok(events)
    }

    pub fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        // SAFETY: open as long as the channel is.
        unsafe { std::os::fd::BorrowedFd::borrow_raw((*self.raw).fd) }
    }

    /// Takes the events that wait.
    pub fn drain(&self) {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live channel whose descriptor does not block; each event is acknowledged.
        unsafe {
            while self.nic.verbs.ibv_get_cq_event(self.raw, &raw mut cq, &raw mut context) == 0 {
                self.nic.verbs.ibv_ack_cq_events(cq, 1);
            }
        }
    }
}

impl Completions {
    pub fn new(nic: &Arc<Nic>, entries: usize, events: &Events) -> io::Result<Completions> {
        let null = std::ptr::null_mut();
        // SAFETY: an open NIC and its channel.
        let raw = unsafe { nic.verbs.ibv_create_cq(nic.context, entries as c_int, null, events.raw, 0) };
        Completions::checked(raw, nic)
    }

    /// Takes the completions that are there, as far as they fit into `room`.
    #[inline]
    pub fn poll<'a>(&self, room: &'a mut [MaybeUninit<ibv_wc>]) -> &'a [ibv_wc] {
        // SAFETY: a live queue; room for that many.
        let count = unsafe { ibv_poll_cq(self.raw, room.len() as c_int, room.as_mut_ptr().cast()) };
        // SAFETY: so many were written.
        unsafe { std::slice::from_raw_parts(room.as_ptr().cast(), count.max(0) as usize) }
    }

    /// Asks for an event with the next completion or, if `solicited`, with the next message or notice.
    pub fn notify(&self, solicited: bool) {
        // SAFETY: a live queue.
        unsafe { ibv_req_notify_cq(self.raw, solicited.into()) };
    }
}

impl Shared {
    pub fn new(nic: &Arc<Nic>, entries: usize) -> io::Result<Shared> {
        let attr = ibv_srq_attr { max_wr: entries as u32, max_sge: 1, ..Default::default() };
        let mut init = ibv_srq_init_attr { attr, ..Default::default() };
        // SAFETY: an open NIC.
        Shared::checked(unsafe { nic.verbs.ibv_create_srq(nic.pd, &raw mut init) }, nic)
    }

    /// Gives buffers, at most [`GIVEN`], to the peers that send next: numbers, and where the buffers lie.
    pub fn post(&self, buffers: impl Iterator<Item = (u64, ibv_sge)>) -> io::Result<()> {
        let mut sges = [ibv_sge::default(); GIVEN];
        let mut list = [ibv_recv_wr::default(); GIVEN];
        let mut next = std::ptr::null_mut();
        for ((wr, sge), (id, buffer)) in list.iter_mut().zip(&mut sges).zip(buffers) {
            *sge = buffer;
            *wr = ibv_recv_wr { wr_id: id, next, sg_list: sge, num_sge: 1 };
            next = wr;
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue; the list is read before the call returns.
        match unsafe { ibv_post_srq_recv(self.raw, next, &raw mut bad) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Route {
    pub fn new(nic: &Arc<Nic>, to: &Address) -> io::Result<Route> {
        let mut attr = way_to(nic, to);
        // SAFETY: an open NIC.
        Route::checked(unsafe { nic.verbs.ibv_create_ah(nic.pd, &raw mut attr) }, nic)
    }
}

fn way_to(nic: &Nic, to: &Address) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr { dlid: to.lid, port_num: nic.offer.port, ..Default::default() };
    // Ethernet always goes by the global id.
    attr.is_global = 1;
    attr.grh.dgid = ibv_gid { raw: to.gid };
    attr.grh.sgid_index = nic.offer.gid_index;
    attr.grh.hop_limit = 64;
    attr
}

/// The properties with which a queue pair is made.
pub struct PairSpec<'a> {
    pub kind: ibv_qp_type,
    pub done: &'a Completions,
    pub shared: Option<&'a Shared>,
    pub depth: usize,
    pub pieces: usize,
    /// Bytes that travel inside a request; fewer are taken where the device has fewer.
    pub inline: usize,
}

impl Pair {
    /// A new queue pair, and how many bytes it takes inside a request.
    pub fn new(nic: &Arc<Nic>, spec: &PairSpec<'_>) -> io::Result<(Pair, usize)> {
        let mut inline = spec.inline;
        loop {
            let receives = if spec.shared.is_some() { 0 } else { spec.depth as u32 };
            let mut init = ibv_qp_init_attr {
                send_cq: spec.done.raw,
                recv_cq: spec.done.raw,
                srq: spec.shared.map_or(std::ptr::null_mut(), |shared| shared.raw),
                qp_type: spec.kind,
                ..Default::default()
            };
            init.cap = ibv_qp_cap {
                max_send_wr: spec.depth as u32,
                max_recv_wr: receives,
                max_send_sge: spec.pieces as u32,
                max_recv_sge: 1,
                max_inline_data: inline as u32,
            };
            // SAFETY: an open NIC, and queues of the same NIC.
            let raw = unsafe { nic.verbs.ibv_create_qp(nic.pd, &raw mut init) };
            if raw.is_null() && inline > 0 {
                inline /= 2;
                continue;
            }
            return Pair::checked(raw, nic).map(|pair| (pair, inline));
        }
    }

    pub fn number(&self) -> u32 {
        // SAFETY: a live queue pair.
        unsafe { (*self.raw).qp_num }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: a live queue pair.
        match unsafe { self.nic.verbs.ibv_modify_qp(self.raw, attr, mask as c_int) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Ready to receive datagrams under `key`, and to send them.
    pub fn open_for_datagrams(&self, key: u32) -> io::Result<()> {
        let mut attr =
            ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: self.nic.offer.port, qkey: key, ..Default::default() };
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)?;
        attr.qp_state = IBV_QPS_RTR;
        self.modify(&mut attr, IBV_QP_STATE)?;
        attr.qp_state = IBV_QPS_RTS;
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN)
    }

    /// Ready to be connected.
    pub fn prepare(&self) -> io::Result<()> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: self.nic.offer.port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
            ..Default::default()
        };
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
    }

    /// Connects to the queue pair `number` at `to`. Packets are numbered from the sender's queue pair number.
    pub fn connect(&self, to: &Address, number: u32) -> io::Result<()> {
        const PACKETS: u32 = (1 << 24) - 1;
        let (nic, limits) = (&self.nic, &self.nic.attributes);
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            ah_attr: way_to(nic, to),
            path_mtu: nic.offer.mtu.min(to.mtu).into(),
            dest_qp_num: number,
            rq_psn: number & PACKETS,
            max_dest_rd_atomic: limits.max_qp_rd_atom.clamp(1, MAX_READS) as u8,
            min_rnr_timer: RECEIVER_PAUSE,
            ..Default::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask)?;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: self.number() & PACKETS,
            timeout: TIMEOUT.max(limits.local_ca_ack_delay).min(TIMEOUT_MOST),
            retry_cnt: RETRIES,
            rnr_retry: RECEIVER_NOT_READY,
            max_rd_atomic: limits.max_qp_init_rd_atom.clamp(1, MAX_READS) as u8,
            ..Default::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask)
    }

    /// Ends everything in flight: nothing touches this side's memory afterwards.
    pub fn break_off(&self) {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
        // A device that is gone touches nothing either.
        let _ = self.modify(&mut attr, IBV_QP_STATE);
    }
}
