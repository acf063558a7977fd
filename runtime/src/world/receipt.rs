//! What a rank got when it started: for `bellwether info`, and for a person who wonders.

use super::World;
use crate::engine::Far;
use crate::memory::layout::LINE;
use crate::settings::Transport;

impl World {
    /// What this rank runs on: a name and a value a line, for people to read.
    pub fn receipt(&self) -> Vec<(&'static str, String)> {
        let engine = &self.engine;
        let (layout, patience) = (&engine.layout, engine.patience());
        let ranks = self.size();
        let elsewhere = ranks - engine.job.ranks_here();
        let on = match elsewhere {
            0 => "all on this node".into(),
            others => format!("{} on this node, {others} on {} others", ranks - others, self.nodes() - 1),
        };
        let crowded = if patience.crowded { "more ranks than cores" } else { "a core each" };
        let transport = match engine.far() {
            Some(far) if engine.shares() => {
                let near = "shared memory between ranks of one node, but for atomics and signals";
                format!("{}: everything to other nodes goes over the network; {near}", far.name())
            }
            Some(far) => format!("{}: everything goes over the network", far.name()),
            None => "shared memory: put, get, atomics and bells are direct; messages through lanes".into(),
        };
        let why = match (engine.far().and_then(Far::pace), engine.settings.transport) {
            (Some(_), _) => "the job is simulated".into(),
            (None, Transport::Auto) if elsewhere > 0 => "ranks are on several hosts".into(),
            (None, Transport::Auto) => "all ranks are on this node, and no other is asked for".into(),
            (None, asked) => format!("BELLWETHER_TRANSPORT={} asks for it", asked.name()),
        };
        let native = match engine.far() {
            Some(far) if far.is_silent() && engine.shares() => {
                "put, get, bells, short messages within the node; put, get, atomics, bells elsewhere, by the network alone"
            }
            Some(far) if far.is_silent() => "put, get, atomics, bells: the network does them alone",
            Some(_) => "own memory only",
            None => "put, get, atomics, bells in segments; short messages in one cache line",
        };
        vec![
            ("ranks", format!("{ranks}, {on}")),
            ("transport", transport),
            ("chosen because", why),
            ("native", native.into()),
            ("by a system call", format!("memory outside segments: {}", outside(self.attach_allowed.get()))),
            ("by the target's poll", "messages, remote calls, bells outside segments".into()),
            ("segment pages", engine.node.pages().to_string()),
            ("address space", format!("{} each rank", size(1 << engine.node.stride_log2()))),
            ("symmetric heap", format!("up to {} each rank, grows as needed", size(self.allocator.borrow().limit()))),
            ("larger messages", format!("up to {} in flight each rank", size(engine.settings.message_memory))),
            (
                "memory for messages",
                format!(
                    "{} each rank: {} lanes of {} lines, and {} for barrier, exchanges and handlers",
                    size(layout.control_len),
                    ranks,
                    layout.lane_depth,
                    size(layout.credits)
                ),
            ),
            ("memory per node-mate", format!("{} of lane and credit", size((layout.lane_depth + 1) * LINE))),
            ("memory per other peer", format!("{} B", crate::transport::shm::BYTES_PER_IDLE_PEER + 1)),
            ("barrier", self.barrier.name().into()),
            (
                "waiting",
                format!(
                    "{crowded}: {} looks, {} yields, then sleep, looking up every {:?}; {}",
                    patience.spins,
                    patience.yields,
                    patience.nap,
                    if engine.job.full_fence() || engine.far().is_some() {
                        "ringers fence"
                    } else {
                        "sleepers fence for all (membarrier)"
                    }
                ),
            ),
        ]
    }
}

fn outside(attach: bool) -> &'static str {
    if attach { "cross-memory attach" } else { "none here, so by message to its owner" }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
