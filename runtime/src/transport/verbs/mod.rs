//! RDMA over InfiniBand or Ethernet, by libibverbs, which is loaded when it is asked for. `README.md` in this folder has the
//! states and races of connections, links, rings, credits and notices.
//!
//! One reliable connection for each peer, made on first use by datagrams (`connect.rs`): its requests are RDMA writes,
//! reads and atomics, and sends into receive buffers that all peers share. Atomics are the device's, all of them, also
//! those of a rank on its own memory: a word is either the device's or the processor's, never both's. In a job whose hosts
//! differ in their devices no device does atomics: they go over messages, and the target's processor does them.
//!
//! Messages are sends, and of a busy peer those that are small are RDMA writes into a ring at the receiver (`ring.rs`,
//! `wire/rings.rs`). A send wakes a receiver that sleeps, takes one of the receive buffers that all peers share, and a
//! completion at the receiver; a write is found by looking at memory, in nine tenths of the time over soft-RoCE. So a rank
//! lends rings while it is awake, eight of 8 KiB at most, and wants them back before it sleeps.
//!
//! A rank may open several interfaces on its device, as many as 128 at a time. Each is a peer of its own to all others,
//! those of its rank included: it has a number, which its address carries, and queue pairs, a completion queue, a shared
//! receive queue, buffers (8 MB) and a connecting thread that no other uses. They share the open device: registered memory
//! is reached through any of them. Threads that drive different interfaces share no lock of ours but that around the
//! registrations. A flush on one waits for its own operations only, so a queue of operations maps to an interface. A
//! world opens one, and one for each context ([`crate::World::context`]).
//!
//! Blocks of the user's memory go as they are where the caller registered them, and are copied into a buffer of the wire's
//! where not. No registration is kept for memory that the runtime does not own: what is freed and mapped anew at the same
//! address would still be the old pages to the device.

mod address;
mod attempt;
mod connect;
mod footprint;
mod interfaces;
mod link;
mod links;
mod locality;
mod nic;
mod peers;
mod pool;
mod ports;
mod queue;
mod records;
mod ring;
#[cfg(all(test, not(loom)))]
mod tests;
mod wire;

use std::fmt;
use std::sync::Arc;

pub use self::nic::{Offer, offers};
pub(crate) use self::ports::Ports;
pub use self::wire::VerbsWire;

use self::interfaces::Interfaces;
use self::nic::{Nic, NicPinner};
use super::attributes::Resource;
use super::error::Result;
use super::memory::Registry;
use super::port;

/// Bytes for a connected peer over soft-RoCE: the device's queue, and what this library and libibverbs keep. The README of this folder
/// says what the kernel keeps besides.
pub fn bytes_per_peer() -> usize {
    footprint::per_peer(connect::INLINE)
}

/// A rank's RDMA device. Copies are the same device: each thread can have one.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    rank: u32,
    ranks: usize,
    nic: Arc<Nic>,
    registry: Arc<Registry>,
    interfaces: Arc<Interfaces>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, rank {})", self.0.nic.offer, self.0.rank)
    }
}

impl Device {
    /// Opens the port of `offer` for `rank` of `ranks`.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn new(rank: usize, ranks: usize, offer: &Offer) -> Result<Device, String> {
        if ranks > address::RANKS {
            return Err(format!("{ranks} ranks: over RDMA there can be {}", address::RANKS));
        }
        let nic = Nic::open(offer)?;
        let registry = Arc::new(Registry::with(NicPinner(Arc::clone(&nic))));
        Ok(Device(Arc::new(Inner { rank: rank as u32, ranks, nic, registry, interfaces: Arc::default() })))
    }

    /// Ends this rank as far as the network can tell.
    #[cfg(test)]
    pub fn kill(&self) {
        self.0.interfaces.open().iter().for_each(|board| board.silence());
    }

    /// The connection table of the first interface that is open.
    #[cfg(test)]
    fn board(&self) -> Arc<connect::ConnectionTable> {
        self.0.interfaces.open().swap_remove(0)
    }

    fn nic(&self) -> &Arc<Nic> {
        &self.0.nic
    }

    fn rank(&self) -> u32 {
        self.0.rank
    }

    fn interfaces(&self) -> &Arc<Interfaces> {
        &self.0.interfaces
    }
}

impl port::Device for Device {
    type Wire = VerbsWire;

    fn resource(&self) -> Resource {
        self.0.nic.offer.resource()
    }

    fn owner(&self) -> u32 {
        self.0.rank
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    fn needs_region(&self) -> bool {
        true
    }

    fn knows(&self, owner: u32) -> bool {
        (owner as usize) < self.0.ranks
    }

    fn open(&self) -> Result<VerbsWire> {
        VerbsWire::open(self, wire::FLOW)
    }
}
