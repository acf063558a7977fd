//! A job on several hosts: how they connect at the start, and what they tell each other afterwards.
//!
//! Each host has a roster of all ranks of the job; the entries of other hosts' ranks are copies. One rank of each host, its
//! leader, runs an [`Agent`] with a TCP connection to the leader of rank 0's host, the hub, which passes on the messages that it
//! receives. The connections carry which ranks have arrived, how to reach them, which ranks are gone, and which was missed first. All other data goes
//! over the network that ranks use.

mod addresses;
mod agent;
mod connection;
mod meeting;

use serde::{Deserialize, Serialize};

use crate::error::{Loss, Result};

pub use self::agent::Agent;
pub use self::connection::Connection;
#[cfg(all(test, not(loom)))]
pub(crate) use self::meeting::derives;
pub use self::meeting::{HubAddress, HubListener};

/// What ranks publish about themselves beside the roster. Hosts copy it from one to another.
pub trait Published: Send {
    /// Makes room for the records that `rank`, of another host, publishes. Called once, before the other calls about that rank.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    fn make_room(&self, rank: usize) -> Result<()>;
    /// How to reach `rank`, which has arrived, over each network.
    fn records(&self, rank: usize) -> Vec<u8>;
    /// Enters what [`Published::records`] gave on the host of `rank`, before `rank` arrives in this roster.
    ///
    /// # Errors
    /// [`crate::Error::Start`] if the bytes are not such records.
    fn set_records(&self, rank: usize, records: &[u8]) -> Result<()>;
    /// The handler table of `rank`, once it is complete.
    fn handlers(&self, rank: usize) -> Option<Vec<u8>>;
    /// Enters what [`Published::handlers`] gave on the host of `rank`.
    ///
    /// # Errors
    /// [`crate::Error::Start`] if the bytes are not such a table; [`crate::Error::OutOfMemory`].
    fn set_handlers(&self, rank: usize, entries: &[u8]) -> Result<()>;
    /// Barriers that `rank` has entered.
    fn entered(&self, rank: usize) -> u64;
    /// Enters that number.
    fn set_entered(&self, rank: usize, entered: u64);
    /// The wait that `rank`, of this host, is in.
    fn wait(&self, rank: usize) -> Sleeper;
}

/// A message from the leader of one host to those of others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostMessage {
    /// The handlers of a rank: the entries of its table, one after the other.
    Handlers(usize, Vec<u8>),
    /// A rank has arrived.
    Arrived(Introduction),
    /// A rank waits for the others to leave with it.
    Leaving(usize),
    /// A rank is gone, and had entered this number of barriers; the rank that its host knows as the first that was missed: it may have
    /// left because of that one.
    Gone(usize, Loss, u64, Option<usize>),
    /// All ranks of the host are gone, none lost as far as it knows: nothing more comes from it.
    Finished,
    /// The hub asks each host, in a round with this number, what its ranks wait for.
    AskWaits(u64),
    /// The answer for that round: all ranks of the host that are not gone.
    Waits(u64, Vec<Sleeper>),
    /// No rank can end these waits any more.
    Standstill(Vec<Sleeper>),
    /// The handlers of the first rank are those of the second, which were told before.
    SameHandlers(usize, usize),
}

/// A rank, and the wait that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sleeper {
    /// Its number.
    pub rank: usize,
    /// The number of the wait without a limit that it is in; 0: none.
    pub wait: u64,
    /// How often it has woken from a sleep.
    pub wakes: u64,
}

/// The entry of a rank in the roster of its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// Its number.
    pub rank: usize,
    /// Its process, on its host.
    pub pid: u32,
    /// Address at which it has mapped the slots.
    pub base: u64,
    /// Digest of its executable.
    pub build: u64,
    /// Digest of the settings that shape memory.
    pub shape: u64,
    /// How to reach it over the networks, as [`Published::records`] gives it.
    pub records: Vec<u8>,
}

/// The connections of one leader: at the hub one to each other host, elsewhere one to the hub.
#[derive(Debug)]
pub struct Link {
    /// The host of this leader.
    pub host: usize,
    /// The connections.
    pub connections: Vec<Connection>,
}

/// The host of rank 0, which passes on the messages that it receives.
pub const HUB: usize = 0;
