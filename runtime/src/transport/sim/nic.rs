//! One rank's NIC: its flows to and from each peer, arrivals, and the memory that it serves.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Time;
use super::pins::Pins;
use super::posted::Posts;
use crate::transport::emulate::Server;
use crate::transport::error::Error;
use crate::transport::memory::Registry;
use crate::transport::stream::{FlowLimits, Inflow, Outflow};
use crate::transport::wire::Channel;

/// A message that waits for its rank.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) from: u32,
    pub(super) channel: Channel,
    pub(super) id: u8,
    pub(super) bytes: Vec<u8>,
}

/// The state of a NIC for a peer with which it has communicated.
#[derive(Debug, Default)]
pub(super) struct Link {
    out: [Option<Box<Outflow>>; 3],
    inward: [Option<Box<Inflow>>; 3],
    /// User messages handed over, and those of them that have not arrived.
    pub(super) sent: u64,
    pub(super) flying: BTreeSet<u64>,
    /// Latest arrival of any frame sent, of each channel, and of all frames and operations of the NIC's own.
    pub(super) last: [Time; 3],
    pub(super) latest: Time,
    /// No later frame arrives before this.
    pub(super) floor: Time,
    /// No later operation of the NIC's own is done before this.
    pub(super) fenced: Time,
}

impl Link {
    pub(super) fn outflow(&mut self, channel: Channel, limits: &FlowLimits) -> &mut Outflow {
        self.out[channel as usize].get_or_insert_with(|| Box::new(Outflow::new(channel, limits)))
    }

    pub(super) fn inflow(&mut self, channel: Channel) -> &mut Inflow {
        self.inward[channel as usize].get_or_insert_default()
    }

    pub(super) fn fence(&mut self, limits: &FlowLimits) {
        self.fenced = self.latest;
        for channel in [Channel::Message, Channel::Request] {
            self.outflow(channel, limits).fence();
        }
    }
}

#[derive(Debug)]
pub(super) struct Nic {
    /// The rank that has this NIC. The first NICs are the ranks' own, in order; as many follow on the networks of islands, where
    /// there are any; the others are of interfaces to which peers only send answers.
    pub(super) rank: u32,
    pub(super) registry: Arc<Registry>,
    pub(super) server: Server,
    /// Looked up, never iterated: its order is not the seed's.
    pub(super) links: HashMap<u32, Link>,
    pub(super) inbox: VecDeque<Arrived>,
    /// Puts, gets and atomics that it does by itself.
    pub(super) posts: Posts,
    /// Notices of puts, for the rank.
    pub(super) notices: VecDeque<u32>,
    /// When the NIC is done with the frame that it sends now.
    pub(super) free_at: Time,
    /// Sends this many times slower.
    pub(super) slowness: u64,
    pub(super) dead: bool,
    pub(super) lost: HashMap<u32, Error>,
    pub(super) losses: u64,
    pub(super) open: bool,
    pub(super) event: Option<Arc<OwnedFd>>,
    pub(super) armed: bool,
}

impl Nic {
    /// NIC `number`, of `rank`.
    pub(super) fn new(number: u32, rank: u32, limits: &FlowLimits) -> Nic {
        let registry = Arc::new(Registry::with(Pins(number)));
        Nic {
            rank,
            server: Server::new(Arc::clone(&registry), limits.message),
            registry,
            links: HashMap::new(),
            inbox: VecDeque::new(),
            posts: Posts::default(),
            notices: VecDeque::new(),
            free_at: 0,
            slowness: 1,
            dead: false,
            lost: HashMap::new(),
            losses: 0,
            open: false,
            event: None,
            armed: false,
        }
    }

    /// Writes the event descriptor, if it is armed.
    pub(super) fn tell(&mut self) {
        if std::mem::take(&mut self.armed)
            && let Some(fd) = &self.event
        {
            // It cannot be full: it is written once for each time it is armed.
            let _ = rustix::io::write(&**fd, &1u64.to_ne_bytes());
        }
    }
}
