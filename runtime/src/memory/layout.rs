//! Where things lie in a rank's slot. All offsets count from the start of the slot.
//!
//! ```text
//! | status, flags | exchange | places | handlers | connections | segments | handled | doorbell | credits | lanes | lanes of contexts | gathered | table | statics |  arena  | own segments |  heap  |
//! 0                                                                            control_len                                    arena + stride/4 + stride/8 ... stride
//! ```
//!
//! Doorbell, credits and lanes are for the ranks of this host: the others send over a network. What networks access comes before them,
//! or after the room for as many of them as a host can have, so that it lies at the same place on all hosts. Lanes together keep to one
//! budget while each has more than its least, so a receiver's memory does not grow with the square of the ranks of the node. Lanes of contexts are backed with memory when they are first used.

use std::sync::atomic::AtomicU64;

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// The status that a rank publishes for all others, on the first cache line of its slot.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Status {
    /// Barriers this rank has entered.
    pub entered: AtomicU64,
    /// Bytes of its heap that are backed by memory.
    pub heap_committed: AtomicU64,
    /// Number of the wait this rank sleeps in without a time limit; 0: none.
    pub waiting: AtomicU64,
    /// How often it has woken from that sleep to poll.
    pub wakes: AtomicU64,
    /// Whether its handler table is complete.
    pub sealed: AtomicU64,
    /// Lanes of contexts, from number 0 on, that were ever used for messages to this rank.
    pub context_lanes: AtomicU64,
    /// Offset in its slot of the end of the memory that its own segments have ever used.
    pub own_segments_end: AtomicU64,
    /// Of a rank without a slot here: the number of its handler table.
    pub table: AtomicU64,
}

/// Rounds a dissemination barrier can have: enough for 2^20 ranks.
pub const BARRIER_ROUNDS: usize = 20;
/// Bytes one rank contributes to one exchange.
pub const EXCHANGE_LEN: usize = 2304;
/// Most ranks of a job that has places for direct barriers.
pub const DIRECT_RANKS: usize = 8;
/// Bytes of such a place: a flag, a digest, and a rank's contribution to an exchange.
pub const DIRECT_LEN: usize = 33 * LINE;
/// Handlers a rank can register.
pub const MAX_HANDLERS: usize = 256;
/// Bytes of one entry of the handler table as others see it: digest and name.
pub const HANDLER_ENTRY: usize = 128;
/// Most bytes of the address of a rank's interface on a network.
pub const ADDRESS_MAX: usize = 128;
/// Most registered pieces of a slot: a heap that grows by an eighth at a time needs 130 for 64 GiB.
pub const PIECES_MAX: usize = 192;
/// Bytes that describe one of them.
pub const PIECE_LEN: usize = LINE;
/// Networks that a rank can have open: an RDMA network, and one for peers that it does not reach.
pub const NETWORKS_MAX: usize = 2;
/// Where in a connection record the address is, behind its length.
pub const ADDRESS_IN_CONNECTION: usize = size_of::<u64>();
/// Where in a connection record the count of pieces is.
pub const PIECES_IN_CONNECTION: usize = ADDRESS_IN_CONNECTION + ADDRESS_MAX;
/// Bytes of that count. The pieces follow.
pub const PIECES_HEAD: usize = size_of::<u64>();
/// Bytes of a connection record: how to reach a rank over one network.
const CONNECTION_LEN: usize = (PIECES_IN_CONNECTION + PIECES_HEAD + PIECES_MAX * PIECE_LEN).next_multiple_of(LINE);
/// Bytes of a connection record that are copied from host to host: the address and the first registered piece. The other pieces are
/// fetched over the network itself.
pub const CONNECTION_HEAD: usize = PIECES_IN_CONNECTION + PIECES_HEAD + PIECE_LEN;
/// Bytes of the segment table's head: two lines, and the directory. A word for each rank follows.
pub const SEGMENTS_HEAD: usize = 2 * LINE + SEGMENT_BLOCKS * size_of::<u64>();
/// Segments a rank can have at a time, beside the symmetric heap and its static data.
pub const SEGMENTS_MAX: usize = 1 << 16;
/// The number of the first of them. 0 is the symmetric heap, 1 the static data.
pub const SEGMENTS_FIRST: usize = 2;
/// Bytes of an entry of the segment table.
pub const SEGMENT_LEN: usize = 128;
/// Entries that share one version number in the directory.
pub const SEGMENT_BLOCK: usize = 64;
/// Entries of the directory.
pub const SEGMENT_BLOCKS: usize = (SEGMENTS_FIRST + SEGMENTS_MAX).div_ceil(SEGMENT_BLOCK);
/// Bytes of lanes for one receiver, before every sender has its least.
const LANE_BUDGET: usize = 256 << 10;
/// Most slots of one lane.
const LANE_DEPTH_MAX: usize = 256;
/// Fewest slots of one lane, unless set otherwise.
const LANE_DEPTH_MIN: usize = 4;
/// Ranks that a host can have.
pub const HOST_RANKS_MAX: usize = 1 << 16;
/// Lanes of contexts at one receiver. The first is shared by contexts that find no other one free. Chosen: more than threads of a
/// rank usually send at a time.
pub const CONTEXT_LANES: usize = 64;
/// Slots of such a lane, unless set otherwise.
const CONTEXT_LANE_DEPTH: usize = LANE_DEPTH_MAX;

/// The layout of every slot of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLayout {
    /// Two halves, used in turn; [`EXCHANGE_LEN`] each.
    pub exchange: usize,
    /// Places of direct barriers, if the job has few ranks: for each rank of the job, [`DIRECT_LEN`] bytes; and once more, used in turn.
    pub places: usize,
    /// Count and entries of the handler table.
    pub handlers: usize,
    /// How to reach this rank over each network: a record for each; see [`SlotLayout::connection`].
    pub connections: usize,
    /// Head of the segment table, then a word for each rank; see [`super::segments`].
    pub segments: usize,
    /// A byte for each rank, which its contexts set when one of them is about to copy the segment table.
    pub context_holds: usize,
    /// A word for each rank: messages of its contexts that came over a network and were handled. Only the slot's rank writes it.
    pub handled: usize,
    /// A line, then a bit for each lane: senders tell of messages in lanes that polls do not check.
    pub doorbell: usize,
    /// Lanes that have a bit there: one a sender, then those of contexts.
    pub doorbell_lanes: usize,
    /// One line a sender: how much of its lane is consumed, and whether polls check it.
    pub credits: usize,
    /// One lane a sender.
    pub lanes: usize,
    /// Slots of a lane, a power of two.
    pub lane_depth: usize,
    /// End of all that is there from the start.
    pub control_len: usize,
    /// Claims and credits of the lanes of contexts, then the lanes, each backed with memory when it is first used.
    pub context_lanes: usize,
    /// Slots of such a lane, a power of two.
    pub context_lane_depth: usize,
    /// Contributions of the ranks of one host to a reduction that one of them does for all; see [`SlotLayout::gathered`].
    gathered: usize,
    /// Entries of the segment table, backed with memory as they are used.
    pub table: usize,
    /// Static data of the executable, where that is symmetric.
    pub statics: usize,
    /// Bytes of static data there can be.
    pub statics_len: usize,
    /// Blocks of larger messages that this rank sends.
    pub arena: usize,
    /// Bytes the arena may grow to.
    pub arena_len: usize,
    /// Memory that the rank alone gives to its segments; see [`super::own_segments`].
    pub own_segments: usize,
    /// Bytes of it.
    pub own_segments_len: usize,
    /// The symmetric heap.
    pub heap: usize,
    /// Bytes the heap may grow to.
    pub heap_len: usize,
}

impl SlotLayout {
    /// The layout on a host with `here` of a job's `ranks` ranks, in slots of `stride` bytes; `depth` forces the lanes' depth. Up to
    /// the doorbell, and from the table on, it is the same on all hosts of the job.
    pub fn new(ranks: usize, here: usize, stride: usize, depth: Option<usize>) -> SlotLayout {
        let exchange = (2 + BARRIER_ROUNDS) * LINE;
        let places = exchange + 2 * EXCHANGE_LEN;
        let handlers = places + if ranks <= DIRECT_RANKS { 2 * ranks * DIRECT_LEN } else { 0 };
        let connections = (handlers + LINE + MAX_HANDLERS * HANDLER_ENTRY).next_multiple_of(LINE);
        let segments = connections + NETWORKS_MAX * CONNECTION_LEN;
        let context_holds = segments + SEGMENTS_HEAD + ranks * size_of::<u64>();
        let handled = (context_holds + ranks).next_multiple_of(size_of::<u64>());
        let doorbell = (handled + ranks * size_of::<u64>()).next_multiple_of(LINE);
        let doorbell_lanes = here + CONTEXT_LANES;
        let groups_len = doorbell_lanes.div_ceil(u64::BITS as usize) * size_of::<u64>();
        let credits = (doorbell + LINE + groups_len).next_multiple_of(LINE);
        let lanes = credits + here * LINE;
        let lane_depth = depth.map(usize::next_power_of_two).unwrap_or_else(|| {
            let fair = LANE_BUDGET / (LINE * here);
            (fair + 1).next_power_of_two().div_ceil(2).clamp(LANE_DEPTH_MIN, LANE_DEPTH_MAX)
        });
        let control_len = (lanes + here * lane_depth * LINE).next_multiple_of(4096);
        let context_lanes = control_len;
        let context_lane_depth = depth.map_or(CONTEXT_LANE_DEPTH, usize::next_power_of_two);
        let context_lanes_len = CONTEXT_LANES * (2 + context_lane_depth) * LINE;
        let most = doorbell + most_for_lanes(ranks.min(HOST_RANKS_MAX), depth);
        debug_assert!(control_len <= most, "{here} of {ranks} ranks: {control_len} bytes in {most}");
        let gathered = (most + context_lanes_len).next_multiple_of(4096);
        let gathered_len = 2 * ranks.min(HOST_RANKS_MAX) * LINE;
        let table = (gathered + gathered_len).next_multiple_of(super::node::HUGE_PAGE);
        let statics = (table + SEGMENT_BLOCKS * SEGMENT_BLOCK * SEGMENT_LEN).next_multiple_of(super::node::HUGE_PAGE);
        let statics_len = (stride / 16).next_multiple_of(super::node::HUGE_PAGE);
        let arena = statics + statics_len;
        let own_segments = (arena + stride / 4).next_multiple_of(super::node::HUGE_PAGE);
        let heap = (own_segments + stride / 8).next_multiple_of(super::node::HUGE_PAGE);
        SlotLayout {
            exchange,
            places,
            handlers,
            connections,
            segments,
            context_holds,
            handled,
            doorbell,
            doorbell_lanes,
            credits,
            lanes,
            lane_depth,
            control_len,
            context_lanes,
            context_lane_depth,
            gathered,
            table,
            statics,
            statics_len,
            arena,
            arena_len: own_segments - arena,
            own_segments,
            own_segments_len: heap - own_segments,
            heap,
            heap_len: stride - heap,
        }
    }

    /// The line of the counter of barriers, used in the slot of rank 0: arrivals, then the bits that are 1, and those that are 0, in any
    /// digest.
    pub fn barrier_center(&self) -> usize {
        LINE
    }

    /// The flag line of a round of a barrier: the flag, then two digests, used in turn. That of round 0 is also the counter's.
    pub fn barrier_flag(&self, round: usize) -> usize {
        (2 + round) * LINE
    }

    /// Where a rank puts up to a line that it brings to a reduction which the last one in a barrier by the counter does for all:
    /// `half` is 0 and 1 in turn. Used in the slot of rank 0, where the ranks are on one host: they lie in few pages there, and one
    /// rank reads them all.
    pub fn gathered(&self, half: usize, rank: usize) -> usize {
        self.gathered + (2 * rank + half) * LINE
    }

    /// How to reach this rank over a network: the length of its address, the address, then the registered pieces of its slot.
    pub fn connection(&self, network: usize) -> usize {
        self.connections + network * CONNECTION_LEN
    }

    /// The count of registered pieces; they follow.
    pub fn pieces(&self, network: usize) -> usize {
        self.connection(network) + PIECES_IN_CONNECTION
    }

    /// Where the credit line for a sender lies in the receiver's slot. `sender` is its number among the ranks of the host.
    pub fn credit(&self, sender: usize) -> usize {
        self.credits + sender * LINE
    }

    /// Where the lane from a sender begins in the receiver's slot. `sender` is its number among the ranks of the host.
    pub fn lane(&self, sender: usize) -> usize {
        self.lanes + sender * self.lane_depth * LINE
    }

    /// The bit of a context's lane in the doorbell.
    pub fn context_doorbell(&self, lane: usize) -> usize {
        self.doorbell_lanes - CONTEXT_LANES + lane
    }

    /// The claim of a context's lane, on a line of its own.
    pub fn context_claim(&self, lane: usize) -> usize {
        self.context_lanes + 2 * lane * LINE
    }

    /// The credit line of a context's lane.
    pub fn context_credit(&self, lane: usize) -> usize {
        self.context_claim(lane) + LINE
    }

    /// Where a context's lane begins. That of `CONTEXT_LANES` is the end of all.
    pub fn context_lane(&self, lane: usize) -> usize {
        self.context_claim(CONTEXT_LANES) + lane * self.context_lane_depth * LINE
    }
}

/// Most bytes of doorbell, credits and lanes on a host with up to `here` ranks.
fn most_for_lanes(here: usize, depth: Option<usize>) -> usize {
    let doorbell = 2 * LINE + (here + CONTEXT_LANES).div_ceil(u64::BITS as usize) * size_of::<u64>();
    let lanes = match depth {
        Some(depth) => here * depth.next_power_of_two() * LINE,
        None => LANE_BUDGET.max(here * LANE_DEPTH_MIN * LINE),
    };
    (doorbell + here * LINE + lanes).next_multiple_of(4096) + 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receivers_lanes_keep_to_their_budget() {
        let at = |ranks| SlotLayout::new(ranks, ranks, 1 << 36, None);
        assert_eq!(at(2).lane_depth, LANE_DEPTH_MAX);
        assert_eq!(at(16).lane_depth, 256);
        assert_eq!(at(64).lane_depth, 64);
        assert_eq!(at(1000).lane_depth, 4);
        for ranks in [1, 2, 3, 16, 17, 64, 1000] {
            let layout = at(ranks);
            assert!(layout.lane_depth.is_power_of_two());
            assert!(ranks * layout.lane_depth * LINE <= LANE_BUDGET);
            assert!(layout.lane(ranks) <= layout.control_len && layout.control_len <= layout.context_lanes);
            assert!(layout.context_lane(CONTEXT_LANES) <= layout.gathered(0, 0));
            assert!(layout.gathered(0, ranks) <= layout.table);
            assert!(layout.table < layout.statics && layout.statics + layout.statics_len == layout.arena);
            assert!(layout.arena + layout.arena_len == layout.own_segments);
            assert!(
                layout.own_segments + layout.own_segments_len == layout.heap
                    && layout.heap + layout.heap_len == 1 << 36
            );
        }
    }

    /// Bytes that a rank's slot has for each other rank of a large job, and for each rank of its host.
    #[test]
    fn lanes_are_laid_out_for_the_ranks_of_the_host_only() {
        const RANKS: usize = 1_000_000;
        const HERE: usize = 64;
        let len = |ranks, here| SlotLayout::new(ranks, here, 1 << 36, None).control_len as f64;
        let remote = (len(RANKS, HERE) - len(HERE, HERE)) / (RANKS - HERE) as f64;
        // A word and a byte of the segment table, and a word of messages handled.
        println!(
            "{RANKS} ranks, {HERE} of them here: {:.0} B a slot, {remote:.1} for each remote rank",
            len(RANKS, HERE)
        );
        assert!(remote < 17.1, "{remote} bytes for each remote rank");
        // Lanes of the least depth, a credit, and a bit.
        let (few, many) = (SlotLayout::new(RANKS, 1000, 1 << 36, None), SlotLayout::new(RANKS, 1001, 1 << 36, None));
        assert_eq!(many.lanes - many.credits - (few.lanes - few.credits), LINE);
    }

    #[test]
    fn what_networks_access_lies_at_the_same_place_on_all_hosts() {
        for (ranks, depth) in [(3, None), (1000, None), (1000, Some(1)), (3000, Some(7)), (70_000, None)] {
            let at = |here| SlotLayout::new(ranks, here, 1 << 36, depth);
            let shared = |layout: SlotLayout| {
                let SlotLayout { handlers, connections, segments, handled, doorbell, .. } = layout;
                let SlotLayout { table, statics, arena, own_segments, heap, .. } = layout;
                [handlers, connections, segments, handled, doorbell, table, statics, arena, own_segments, heap]
            };
            let here = [1, 2, 3, 17, 64, 1000, 3000, HOST_RANKS_MAX];
            for here in here.into_iter().filter(|here| *here <= ranks) {
                let layout = at(here);
                assert_eq!(shared(layout), shared(at(1)), "{here} of {ranks}, {depth:?}");
                assert!(layout.doorbell + LINE < layout.credits && layout.lane(here) <= layout.control_len);
                assert!(layout.context_lane(CONTEXT_LANES) <= layout.table, "{here} of {ranks}, {depth:?}");
            }
        }
    }
}
