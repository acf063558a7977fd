//! RDMA over InfiniBand or Ethernet, by libibverbs, which is loaded when it is asked for.
//!
//! One reliable connection for each peer, made on first use by datagrams (`connect.rs`): its requests are RDMA writes,
//! reads and atomics, and sends into receive buffers that all peers share. Atomics are the device's, all of them, also
//! those of a rank on its own memory: a word is either the device's or the processor's, never both's.

#[cfg(all(test, not(loom)))]
mod across;
mod address;
mod attempt;
mod card;
mod connect;
mod footprint;
mod link;
mod pool;
mod queue;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use self::card::{Offer, offers};
pub use self::wire::VerbsWire;

use self::card::{Card, CardPinner};
use super::attributes::{Locality, Resource};
use super::error::{Error, Result};
use super::memory::Registry;
use super::port;

/// A rank's RDMA device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    rank: u32,
    ranks: usize,
    card: Arc<Card>,
    registry: Arc<Registry>,
    open: AtomicBool,
    #[cfg(test)]
    board: super::lock::Mutex<std::sync::Weak<connect::Switchboard>>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, rank {})", self.0.card.offer, self.0.rank)
    }
}

impl Device {
    /// Opens the port of `offer` for `rank` of `ranks`.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn new(rank: usize, ranks: usize, offer: &Offer) -> Result<Device, String> {
        let card = Card::open(offer)?;
        let registry = Arc::new(Registry::with(CardPinner(Arc::clone(&card))));
        Ok(Device(Arc::new(Inner {
            rank: rank as u32,
            ranks,
            card,
            registry,
            open: AtomicBool::new(false),
            #[cfg(test)]
            board: super::lock::Mutex::default(),
        })))
    }

    /// Ends this rank as far as the network can tell.
    #[cfg(test)]
    pub fn kill(&self) {
        self.board().silence();
    }

    /// What makes its connections, while it is open.
    #[cfg(test)]
    fn board(&self) -> Arc<connect::Switchboard> {
        self.0.board.lock().upgrade().expect("open")
    }

    #[cfg(test)]
    fn note(&self, board: &Arc<connect::Switchboard>) {
        *self.0.board.lock() = Arc::downgrade(board);
    }

    fn card(&self) -> &Arc<Card> {
        &self.0.card
    }

    fn rank(&self) -> u32 {
        self.0.rank
    }

    fn closed(&self) {
        self.0.open.store(false, Ordering::Release);
    }
}

impl port::Device for Device {
    type Wire = VerbsWire;

    fn resource(&self) -> Resource {
        let offer = &self.0.card.offer;
        Resource {
            transport: "verbs",
            device: format!("{}:{}", offer.device, offer.port),
            bandwidth: offer.bandwidth,
            latency: 1.5e-6,
            overhead: 150e-9,
            message_rate: 10e6,
            locality: Locality::Network,
        }
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
        if self.0.open.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy);
        }
        VerbsWire::open(self).inspect_err(|_| self.closed())
    }
}
