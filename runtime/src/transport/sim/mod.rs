//! A whole network in one process, with a seed and its own time.
//!
//! [`Network`] holds the NICs of all ranks and a queue of events in virtual time. It knows latency and
//! bandwidth, delays frames at random, reorders what the contract leaves unordered, and can part, cut and kill. It
//! moves only when [`Network::step`] is called; its behaviour depends on its [`Config`] alone, so the same seed gives
//! the same run, however often in one process.
//!
//! Ranks run on it in one of two ways:
//! - as state machines, all in one thread: [`drive`] polls a rank after each event that concerns it;
//! - as threads, one at a time: [`run`] hands a token from rank to rank, and time moves when all of them are blocked.
//!
//! Each rank gets a [`Node`], which is a [`super::port::Device`]: from there on it is a transport like any other.
//! Puts, gets and atomics go over messages, served by the target's NIC at once ([`Config::served_asleep`]) or by the
//! target's progress; or as [`Config::memory`] says.

mod config;
mod machine;
mod network;
mod nic;
mod node;
mod pins;
mod posted;
mod scheduler;
#[cfg(test)]
mod tests;

pub use self::config::{Config, SEED_VARIABLE, check, seeds};
pub use self::machine::{Machine, Step, drive};
pub use self::network::{Crossed, Network, Requests, Stalled};
pub use self::node::{Node, SimWire, decode_address};
pub(crate) use self::scheduler::run_each;
pub use self::scheduler::{Turn, run};
pub use super::stream::FlowLimits;

/// Nanoseconds of virtual time since the network was made.
pub type Time = u64;

/// Numbers that depend on the seed alone (SplitMix64, Steele et al. 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A sequence.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { ((u128::from(self.number()) * u128::from(end)) >> 64) as u64 }
    }
}
