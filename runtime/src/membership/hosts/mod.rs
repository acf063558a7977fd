//! A job on several hosts: who meets whom at the start, and what the hosts tell each other afterwards.
//!
//! Each host has memory of its own with a roster of all ranks; where other hosts' ranks stand in it is copied from there. One
//! rank of each host, its leader, has a TCP connection to the leader of rank 0's host, the hub, which passes on what it hears.
//! They carry who has come, how to reach it, and who is gone; everything else goes over the network that ranks use themselves.

mod addresses;
mod line;
mod meeting;

use serde::{Deserialize, Serialize};

use crate::error::Loss;

pub use self::line::Line;
pub use self::meeting::{Gate, Summons};

/// What the leader of one host tells those of others about a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// The handlers of a rank: the entries of its table, one after the other.
    Table(usize, Vec<u8>),
    /// A rank has arrived.
    Here(Introduction),
    /// A rank waits for the others to leave with it.
    Leaving(usize),
    /// A rank is gone, and had entered so many barriers.
    Gone(usize, Loss, u64),
    /// All ranks of the host are gone, in good order as far as it knows: nothing more comes from there.
    Bye,
    /// The hub asks each host, in a round with this number, for what its ranks wait.
    Ask(u64),
    /// The answer, of all ranks of the host that are not gone.
    Waits(u64, Vec<Sleeper>),
    /// These ranks wait for what no rank can bring about any more.
    Standstill(Vec<Sleeper>),
}

/// A rank, and what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sleeper {
    /// Its number.
    pub rank: usize,
    /// The number of the wait without a limit that it is in; 0: none.
    pub wait: u64,
    /// How often it has looked up from a sleep.
    pub looks: u64,
}

/// A rank's facts.
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
    /// How to reach it over the network, as it stands in its slot.
    pub records: Vec<u8>,
}

/// The connections of one leader: at the hub one to each other host, elsewhere one to the hub.
#[derive(Debug)]
pub struct Link {
    /// The host of this leader.
    pub host: usize,
    /// The connections.
    pub lines: Vec<Line>,
}

/// The host of rank 0, which passes on what it hears.
pub const HUB: usize = 0;
