//! The configuration of a simulated network, and seeds that can be repeated.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Time;
use crate::transport::attributes::Order;
use crate::transport::stream::FlowLimits;
use crate::transport::wire::Memory;

/// The environment variable that repeats one seed.
pub const SEED_VARIABLE: &str = "BELLWETHER_SIM_SEED";

/// A network. Two networks with equal configurations behave alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where chance comes from.
    pub seed: u64,
    /// NICs on the network.
    pub ranks: usize,
    /// Nanoseconds from the last byte's departure to arrival.
    pub latency: Time,
    /// Ranks on each node, one node after the other: from the first size again after the last, and on the last node what is
    /// left. Empty: all on one, and as far from each other as [`Config::latency`] says.
    pub nodes: Vec<usize>,
    /// The latency between ranks of a node, where there are [`Config::nodes`].
    pub near_latency: Time,
    /// Nodes that ranks are dealt out to one by one, in place of [`Config::nodes`](field@Config::nodes). 0: none.
    pub dealt: usize,
    /// Ranks on each island, one after the other. Ranks of an island have a further network among themselves, ten times as quick,
    /// and a simulated job uses it for them. 0: none. It has no effect where NICs do the atomics themselves
    /// ([`Memory::Posted`] with [`Config::native_atomics`](field@Config::native_atomics)).
    pub islands: usize,
    /// In a simulated job, ranks of a node reach each other's memory directly, and only atomics by the network.
    pub shares: bool,
    /// Picoseconds that a byte keeps a sender's NIC busy.
    pub picoseconds_per_byte: u64,
    /// Most nanoseconds of further delay, different for each frame.
    pub jitter: Time,
    /// One frame in so many, by chance, is delayed by fifty times [`Config::latency`] and [`Config::jitter`] together, while later
    /// ones arrive, if the order allows that. 0: none.
    pub stragglers: u64,
    /// The order in which one sender's messages arrive.
    pub order: Order,
    /// Credits, slots, fragments.
    pub flow: FlowLimits,
    /// NICs serve puts, gets and atomics while their rank computes or sleeps.
    pub served_asleep: bool,
    /// How puts, gets and atomics are done: [`Memory::Emulated`] over messages, [`Memory::Direct`] at once, or
    /// [`Memory::Posted`] by the NIC itself some time later, in any order that [`Config::order`](field@Config::order) and fences allow.
    pub memory: Memory,
    /// The agent that does puts and gets also does atomics. Otherwise they go over messages.
    pub native_atomics: bool,
    /// Zero-copy memory must be registered.
    pub needs_region: bool,
    /// Nanoseconds from a death to when the others know.
    pub detection: Time,
}

impl Config {
    /// An ordinary network: in order, 1 µs, 10 GB/s, no jitter.
    pub fn new(ranks: usize, seed: u64) -> Config {
        Config {
            seed,
            ranks,
            latency: 1_000,
            nodes: Vec::new(),
            near_latency: 100,
            dealt: 0,
            islands: 0,
            shares: false,
            picoseconds_per_byte: 100,
            jitter: 0,
            stragglers: 0,
            order: Order::Posted,
            flow: FlowLimits { slots: 64, credits: 64, fragment: 4096, message: 64 << 10 },
            served_asleep: true,
            memory: Memory::Emulated,
            native_atomics: true,
            needs_region: true,
            detection: 50_000,
        }
    }

    /// The same, with its ranks on nodes of so many each, in turn; within a node latency and jitter are a tenth. See
    /// [`Config::nodes`](field@Config::nodes).
    ///
    /// # Examples
    /// ```
    /// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::transport::sim; }
    /// use bellwether::{Simulated, sim::Config};
    /// let job = Simulated::new(Config::new(5, 1).nodes(&[2]));
    /// let nodes = job.run(|world| world.node_of(world.rank()))?;
    /// assert_eq!(nodes.into_iter().collect::<Result<Vec<_>, _>>()?, [0, 0, 1, 1, 2]);
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    pub fn nodes(self, sizes: &[usize]) -> Config {
        Config { nodes: sizes.to_vec(), near_latency: self.latency / 10, ..self }
    }

    /// As [`Config::nodes()`], where ranks of a node share memory, as on a cluster with several ranks on each of its nodes.
    pub fn shared_nodes(self, sizes: &[usize]) -> Config {
        Config { shares: true, ..self.nodes(sizes) }
    }

    /// Whether some ranks have a network of their own.
    pub(crate) fn has_islands(&self) -> bool {
        self.islands > 0 && (self.memory != Memory::Posted || !self.native_atomics)
    }

    /// Latency and most further delay on the network of an island.
    pub(super) fn island_delays(&self) -> (Time, Time) {
        (self.latency / 10, self.jitter / 10)
    }

    /// Latency and most further delay between ranks, of one node or of two.
    pub(super) fn delays(&self, near: bool) -> (Time, Time) {
        match near && (self.dealt > 0 || !self.nodes.is_empty()) {
            true => (self.near_latency, self.jitter.saturating_mul(self.near_latency) / self.latency.max(1)),
            false => (self.latency, self.jitter),
        }
    }

    /// The same, with delays of up to ten latencies and no order.
    pub fn wild(self) -> Config {
        Config { jitter: 10 * self.latency, order: Order::Any, ..self }
    }

    /// The same, wild, where one frame in eight arrives long after others that were sent later: after whole barriers of ranks that
    /// it is not for. See [`Config::stragglers`](field@Config::stragglers).
    pub fn straggling(self) -> Config {
        Config { stragglers: 8, ..self.wild() }
    }

    /// The same with one credit, one slot and one-byte fragments.
    pub fn tiny(self) -> Config {
        Config { flow: FlowLimits { slots: 1, credits: 1, fragment: 1, message: 600 }, ..self }
    }

    /// Nanoseconds that `bytes` keep a NIC busy.
    pub fn busy(&self, bytes: usize) -> Time {
        (bytes as u64 * self.picoseconds_per_byte).div_ceil(1000)
    }
}

/// The seeds to try: the one in [`SEED_VARIABLE`], or the first `count`.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var(SEED_VARIABLE).ok().and_then(|text| text.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

/// Runs `test` with each of `count` seeds. When it panics, prints the seed and the line that repeats it.
///
/// # Panics
/// As `test`.
pub fn check(name: &str, count: u64, test: impl Fn(u64)) {
    for seed in seeds(count) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            // Test filters do not know the crate's name.
            let name = name.split_once("::").map_or(name, |(_, rest)| rest);
            // Cargo tells the package of this test.
            let package = std::env::var("CARGO_PKG_NAME").unwrap_or("bellwether-runtime".into());
            eprintln!("failed with seed {seed}; repeat with: {SEED_VARIABLE}={seed} cargo test -p {package} {name}");
            resume_unwind(panic);
        }
    }
}
