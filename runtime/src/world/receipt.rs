//! The facilities that a rank found when it started, for `bellwether info` and for logs.

use super::World;
use crate::memory::layout::LINE;
use crate::settings::Transport;
use crate::sleep::Fences;
use crate::transport::Protection;

impl World {
    /// A description of what this rank runs on: a name and a value a line, for people to read.
    pub fn receipt(&self) -> Vec<(&'static str, String)> {
        let engine = &self.engine;
        let (layout, patience) = (&engine.layout, engine.waiting.patience());
        let ranks = self.size();
        let elsewhere = ranks - engine.job.ranks_here();
        let on = match elsewhere {
            0 => "all on this node".into(),
            others => format!("{} on this node, {others} on {} others", ranks - others, self.nodes() - 1),
        };
        let crowded = if patience.crowded { "more ranks than cores" } else { "one core for each rank" };
        let (routes, networks) = (&engine.routes, &engine.networks);
        let transport = match networks.is_empty() {
            false if routes.is_mixed() => {
                let here = "ranks of one node share memory, except for atomics and signals";
                format!("{}: all operations to other nodes go over the network; {here}", networks.names())
            }
            false => format!("{}: all operations go over the network", networks.names()),
            true => "shared memory: put, get, atomics and bells are direct; messages through lanes".into(),
        };
        let why = match (engine.networks.pace(), engine.settings.transport) {
            (Some(_), _) => "the job is simulated".into(),
            (None, Transport::Auto) if elsewhere > 0 => "ranks are on several hosts".into(),
            (None, Transport::Auto) => "all ranks are on this node, and BELLWETHER_TRANSPORT is auto".into(),
            (None, asked) => format!("BELLWETHER_TRANSPORT is {}", asked.name()),
        };
        let native = match networks.is_empty() {
            false if networks.is_silent() && !networks.all_reach_idle() => {
                "put, get, bells, short messages within the node; put, get between nodes, without the target's program"
            }
            false if networks.is_silent() && routes.is_mixed() => {
                "put, get, bells, short messages within the node; put, get, atomics, bells between nodes, without the target's program"
            }
            false if networks.is_silent() => "put, get, atomics, bells, without the target's program",
            false => "own memory only",
            true => "put, get, atomics, bells in segments; short messages in one cache line",
        };
        vec![
            ("ranks", format!("{ranks}, {on}")),
            ("transport", transport),
            ("other ranks", if ranks == 1 { "none".into() } else { networks.ways() }),
            ("chosen because", why),
            (
                "atomics",
                match networks.change_by_device() {
                    true => "by the network device of the rank that holds the word",
                    false if networks.is_empty() => "by the rank's own processor",
                    false => "by the processor of the rank that holds the word",
                }
                .into(),
            ),
            ("native", native.into()),
            (
                "protection",
                match networks.is_empty() {
                    true => Protection::Host.to_string(),
                    false => networks.protections(),
                },
            ),
            (
                "by a system call",
                format!("memory outside segments: {}", outside(self.engine.segments.mapped().attaches())),
            ),
            ("needs target progress", waits_for_target(!engine.routes.all_mapped(), networks.all_reach_idle()).into()),
            ("static data", if engine.settings.static_data { "symmetric" } else { "private to each rank" }.into()),
            ("segment pages", engine.node.pages().to_string()),
            ("address space", format!("{} each rank", size(1 << engine.node.stride_log2()))),
            ("symmetric heap", format!("up to {} each rank, grows as needed", size(self.allocator.borrow().limit()))),
            ("larger messages", format!("up to {} in flight each rank", size(engine.settings.message_memory))),
            (
                "memory for messages",
                format!(
                    "{} each rank: lanes to {} rank{} with {} messages each, and {} for barrier, exchanges and handlers",
                    size(layout.control_len),
                    engine.job.ranks_here(),
                    if engine.job.ranks_here() == 1 { "" } else { "s" },
                    layout.lane_depth,
                    size(layout.doorbell)
                ),
            ),
            (
                "memory per local peer",
                format!("{} of lane and credits, for each rank of this node", size((layout.lane_depth + 1) * LINE)),
            ),
            ("memory per remote peer", format!("{} B", crate::transport::shm::BYTES_PER_IDLE_PEER + 1)),
            ("barrier", self.barrier.name().into()),
            (
                "waiting",
                format!(
                    "{crowded}: {} polls, {} yields, then sleep for at most {:?} at a time; {}",
                    patience.spins,
                    patience.yields,
                    patience.nap,
                    if engine.interface.fences() == Fences::Full {
                        "a waker uses a fence"
                    } else {
                        "a sleeper fences for all wakers (membarrier)"
                    }
                ),
            ),
        ]
    }
}

fn outside(attach: bool) -> &'static str {
    if attach { "cross-memory attach" } else { "not allowed here, so by a message to the owner" }
}

fn waits_for_target(network: bool, reach_idle: bool) -> &'static str {
    match network {
        true if !reach_idle => {
            "messages, remote calls, atomics; over the network memory that is not registered, and bells"
        }
        true => "messages, remote calls; over the network memory that is not registered, and bells by address",
        false => "messages, remote calls, bells outside segments",
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
