//! The benchmarks, their units, and which figures are good enough.

use clap::ValueEnum;

/// One benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kind {
    /// A blocking put
    Put,
    /// A blocking get
    Get,
    /// A put that its target polls for, one way of a ping-pong
    PutPoll,
    /// A put and its bell, one way of a ping-pong
    PutBell,
    /// An active message, one way of a ping-pong
    Am,
    /// A stream of active messages to one rank
    AmRate,
    /// A value that meets its request, one way of a ping-pong
    Matching,
    /// A LAPI active message, one way of a ping-pong
    LapiAm,
    /// A stream of LAPI active messages to one rank
    LapiRate,
    /// LAPI puts and active messages of 1 MiB to another rank
    LapiBandwidth,
    /// A GASPI write with its notification, one way of a ping-pong
    GaspiNotify,
    /// Posting a GASPI write
    GaspiPost,
    /// A wait on a GASPI queue of 1,000 finished requests
    GaspiWait,
    /// The search for the last of 65,536 GASPI notifications
    GaspiWaitsome,
    /// A remote call and its result
    Call,
    /// A put to a random rank and index
    PutRandom,
    /// A put to an address of another rank
    PutAddress,
    /// A put to a segment by its number
    PutSegment,
    /// Fetch-and-add on a word of another rank
    Atomic,
    /// Two threads of a rank, each with a context, over one
    Threads,
    /// Copies to another rank
    Bandwidth,
    /// The barrier of all ranks
    Barrier,
    /// Aggregated adds to random elements
    Histogram,
    /// Aggregated loads of random elements
    Indexgather,
    /// One element of another rank read by its index in an array
    ArrayGet,
    /// One element of another rank written by its index in an array
    ArrayPut,
    /// The sum of a rank's part of an array
    LocalSum,
    /// The exchange of an array's ghost layers
    Exchange,
    /// A transposed array
    Transpose,
    /// An allreduce of all ranks by sum of f64
    Allreduce,
    /// The barrier of a team of all ranks
    TeamBarrier,
    /// The world's own allreduce by sum of f64
    WorldAllreduce,
    /// One allocation of symmetric memory, given back
    Alloc,
    /// A value from each rank for each
    Alltoall,
    /// What collective calls take with more ranks: jobs of 64, 128 and 256, whatever -n says
    Growth,
    /// Barriers of many ranks on two cores: jobs of 16 and 128, whatever -n says
    Crowded,
    /// From a ring until a rank runs that slept in a wait or in epoll: two ranks, whatever -n says
    Wake,
    /// CPU time of a waiting rank, and how soon it gives up its core: two ranks, whatever -n says
    Idle,
    /// Starting and ending ranks that do nothing
    Startup,
    /// From the kill of one of 8 ranks until all others know, whatever -n says
    Death,
    /// A poll among 1,000 idle ranks of one node
    Poll,
    /// Memory a rank keeps for a peer it never talks to
    Footprint,
}

use Kind::*;

/// All benchmarks, in the order in which they are measured.
pub const ALL: [Kind; 42] = [
    Put,
    PutRandom,
    PutAddress,
    PutSegment,
    Get,
    PutPoll,
    PutBell,
    Am,
    AmRate,
    Matching,
    LapiAm,
    LapiRate,
    GaspiNotify,
    GaspiPost,
    GaspiWait,
    GaspiWaitsome,
    Call,
    Atomic,
    Threads,
    Bandwidth,
    LapiBandwidth,
    Barrier,
    TeamBarrier,
    Allreduce,
    WorldAllreduce,
    Alltoall,
    Alloc,
    Growth,
    Crowded,
    Wake,
    Idle,
    ArrayGet,
    ArrayPut,
    LocalSum,
    Exchange,
    Transpose,
    Histogram,
    Indexgather,
    Startup,
    Death,
    Poll,
    Footprint,
];

/// The help text of the command line's first argument.
pub fn offered() -> String {
    format!("What to measure: {}, or all [default: all]", ALL.map(Kind::name).join(", "))
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds an operation; less is better.
    Nanoseconds,
    /// Seconds; less is better.
    Seconds,
    /// 10^9 bytes a second; more is better.
    Gigabytes,
    /// Bytes; less is better.
    Bytes,
    /// How many times as much; more is better.
    Times,
}

impl Unit {
    /// As it is written after a number.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Seconds => "s",
            Unit::Gigabytes => "GB/s",
            Unit::Bytes => "B",
            Unit::Times => "times",
        }
    }

    /// How `ours` compares with `other`; smaller is better whatever the unit.
    pub fn ratio(self, ours: f64, other: f64) -> f64 {
        if self.more_is_better() { other / ours } else { ours / other }
    }

    /// Whether a larger figure is a better one.
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::Gigabytes | Unit::Times)
    }
}

impl Kind {
    /// Its name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Put => "put",
            PutRandom => "put-random",
            PutAddress => "put-address",
            PutSegment => "put-segment",
            Get => "get",
            PutPoll => "put-poll",
            PutBell => "put-bell",
            Am => "am",
            AmRate => "am-rate",
            Matching => "matching",
            LapiAm => "lapi-am",
            LapiRate => "lapi-rate",
            LapiBandwidth => "lapi-bandwidth",
            GaspiNotify => "gaspi-notify",
            GaspiPost => "gaspi-post",
            GaspiWait => "gaspi-wait",
            GaspiWaitsome => "gaspi-waitsome",
            Call => "call",
            Atomic => "atomic",
            Threads => "threads",
            Bandwidth => "bandwidth",
            Barrier => "barrier",
            Histogram => "histogram",
            Indexgather => "indexgather",
            ArrayGet => "array-get",
            ArrayPut => "array-put",
            LocalSum => "local-sum",
            Exchange => "exchange",
            Transpose => "transpose",
            Allreduce => "allreduce",
            TeamBarrier => "team-barrier",
            WorldAllreduce => "world-allreduce",
            Alloc => "alloc",
            Alltoall => "alltoall",
            Growth => "growth",
            Crowded => "crowded",
            Wake => "wake",
            Idle => "idle",
            Startup => "startup",
            Death => "death",
            Poll => "poll",
            Footprint => "footprint",
        }
    }

    /// The heading of a plot.
    pub fn title(self) -> &'static str {
        match self {
            Put => "Blocking put",
            PutRandom => "Put to a random rank and index",
            PutAddress => "Put to an address",
            PutSegment => "Put to a segment",
            Get => "Blocking get",
            PutPoll => "Put polled on its data, one way",
            PutBell => "Put and bell, one way",
            Am => "Active message, one way",
            AmRate => "Stream of active messages",
            Matching => "Value that meets its request, one way",
            LapiAm => "LAPI active message, one way",
            LapiRate => "Stream of LAPI active messages",
            LapiBandwidth => "Bandwidth of LAPI's calls",
            GaspiNotify => "GASPI write and notification, one way",
            GaspiPost => "Posting a GASPI write",
            GaspiWait => "Wait on a GASPI queue of 1,000 requests",
            GaspiWaitsome => "Search for one of 65,536 GASPI notifications",
            Call => "Remote call and its result",
            Atomic => "Atomic fetch-and-add",
            Threads => "Two threads over one",
            Bandwidth => "Bandwidth of a put",
            Barrier => "Barrier",
            Histogram => "Aggregated add to a random element",
            Indexgather => "Aggregated load of a random element",
            ArrayGet => "Array element, read",
            ArrayPut => "Array element, written",
            LocalSum => "Sum of the local part",
            Exchange => "Exchange of ghost layers",
            Transpose => "Transposed array",
            Allreduce => "Allreduce by sum of f64",
            TeamBarrier => "Barrier of a team",
            WorldAllreduce => "Allreduce of the world",
            Alloc => "Allocation of symmetric memory",
            Alltoall => "All-to-all",
            Growth => "Growth of collective calls",
            Crowded => "Barrier of ranks that share two cores",
            Wake => "From a ring until a sleeping rank runs",
            Idle => "CPU time and core that a waiting rank takes",
            Startup => "Start and end of a job",
            Death => "From a rank's death until all know",
            Poll => "Poll among 1,000 idle ranks",
            Footprint => "Memory for an idle peer",
        }
    }

    /// What the limit does: the least that any program has to do here, without this library.
    pub fn limit(self) -> &'static str {
        match self {
            Put => "bare stores, memcpy above 8 B",
            PutAddress | PutSegment | GaspiPost => "bare stores",
            PutRandom => "bare stores, rank and index checked, through a table of addresses",
            Get => "bare loads, memcpy above 8 B",
            PutPoll => "bare stores to a data line",
            PutBell | GaspiNotify => "bare stores to a data line and a flag line",
            GaspiWaitsome => "bare loads of all words",
            Am | Matching | LapiAm => "bare stores to one line",
            AmRate | LapiRate => "a bare ring of lines",
            Call => "bare stores to one line there and one back",
            Atomic => "bare locked adds",
            Threads => "two threads of bare stores, locked adds or lines over one",
            Bandwidth | LapiBandwidth => "memcpy",
            Barrier | TeamBarrier | Alloc => {
                "a barrier of bare flags or a bare counter, the quicker; of more ranks than cores with yields or a futex"
            }
            Allreduce | WorldAllreduce => "bare copies, flags and sums, all gathered or by pieces, the quicker",
            ArrayGet => "bare loads at an address, the index checked",
            ArrayPut => "bare stores at an address, the index checked",
            LocalSum => "a plain slice",
            Exchange => "memcpy to the neighbours and a flag, or from there and two flags, the quicker",
            Transpose => "memory bandwidth: memcpy of as much private memory",
            Histogram => "memory bandwidth: items and elements once each, in order",
            Indexgather => "memory bandwidth: indices, elements and results once each, in order",
            Startup => "bare processes",
            Crowded => {
                "a barrier of bare flags or a bare counter, with yields or a futex, the quickest; of crowded-computing the computing alone"
            }
            Wake => "a bare futex; of wake-epoll a bare eventfd in epoll",
            Idle => "two threads that sleep; of idle-core a core whose other thread sleeps in a bare futex",
            Death => "a bare process, killed and waited for",
            Poll => "a bare load of one line",
            Alltoall => "bare copies and flags",
            Growth => {
                "of growth-barrier a barrier of bare flags or a bare counter, with yields or a futex, the quickest; else none"
            }
            Footprint | GaspiWait => "none",
        }
    }

    /// What the limit does over TCP, where there is one.
    pub fn socket_limit(self) -> &'static str {
        match self {
            Bandwidth => "a stream through a bare socket",
            _ => "a bare socket, there and back",
        }
    }

    /// The comparison in the column `beside`, which may be above or below the figure.
    pub fn beside(self, mapped: bool) -> Option<&'static str> {
        match self {
            PutAddress => Some("put"),
            Poll => Some("a poll with 2 ranks"),
            TeamBarrier if mapped => Some("the world's barrier"),
            Alloc if mapped => Some("a barrier"),
            Crowded => Some("of crowded-many the barrier of 16 ranks on the same cores"),
            Growth => Some(
                "the same with a quarter of the ranks; of growth-alltoall with half of them; of growth-alloc a barrier",
            ),
            Transpose if mapped => Some("transposing private memory by tiles"),
            Histogram if mapped => Some("bare locked adds, one by one"),
            Indexgather if mapped => Some("bare loads, one by one"),
            Histogram => Some("one fetch_add an item"),
            Indexgather => Some("one get an item"),
            _ => None,
        }
    }

    /// The unit of its figures.
    pub fn unit(self) -> Unit {
        match self {
            Startup | Death | Idle => Unit::Seconds,
            Bandwidth | LapiBandwidth | Transpose => Unit::Gigabytes,
            Footprint => Unit::Bytes,
            Threads => Unit::Times,
            _ => Unit::Nanoseconds,
        }
    }

    /// Whether its ranks run on another vocabulary than the world's own.
    pub fn is_vocabulary(self) -> bool {
        let is_gaspi = matches!(self, GaspiNotify | GaspiPost | GaspiWait | GaspiWaitsome);
        is_gaspi || matches!(self, Matching | LapiAm | LapiRate | LapiBandwidth)
    }

    /// Fewest ranks it makes sense for.
    pub fn least_ranks(self) -> usize {
        if matches!(self, Growth | Crowded | Wake | Idle | Startup | Death | Poll | Footprint) { 1 } else { 2 }
    }

    /// Whether it is a stream of puts, whose figure over a network is the average of a whole run.
    pub fn is_stream(self) -> bool {
        matches!(self, Put | PutAddress | PutSegment | Bandwidth | LapiBandwidth)
    }

    /// Whether `--size` means something to it.
    pub fn is_sized(self) -> bool {
        let is_collective = matches!(self, Allreduce | WorldAllreduce | Alltoall);
        is_collective || matches!(self, Put | Get | PutPoll | PutBell | Am | AmRate | LapiAm | LapiRate | Bandwidth)
    }

    /// The sizes measured when none is asked for; `plotted` wants a curve.
    pub fn sizes(self, plotted: bool, quick: bool) -> Vec<usize> {
        const KIB: usize = 1 << 10;
        match self {
            Bandwidth if quick => vec![4 * KIB, 64 * KIB],
            Bandwidth => (0..8).map(|step| (4 * KIB) << (2 * step)).collect(),
            Put | Get | PutPoll | PutBell | Am | LapiAm if plotted => {
                vec![8, 32, 128, 512, 2 * KIB, 8 * KIB, 32 * KIB, 64 * KIB]
            }
            PutSegment => vec![8],
            Put | PutRandom | PutAddress | Get | PutPoll | PutBell | Am | AmRate | Call | Atomic | Threads => vec![8],
            Matching | LapiAm | LapiRate | GaspiNotify | GaspiPost | GaspiWait => vec![8],
            LapiBandwidth => vec![KIB * KIB],
            Allreduce | WorldAllreduce if plotted => (0..10).map(|step| 8 << (2 * step)).collect(),
            Allreduce | WorldAllreduce if quick => vec![8, 16 * KIB],
            Allreduce | WorldAllreduce => vec![8, KIB, 32 * KIB, KIB * KIB],
            Alltoall if plotted => vec![8, 64, 512, 4 * KIB],
            Alltoall | ArrayGet | ArrayPut => vec![8],
            LocalSum => vec![256 * KIB],
            // A row of 1024 elements.
            Exchange => vec![8 * KIB],
            Transpose if quick => vec![2 * KIB * KIB],
            // 4096 rows of as many elements.
            Transpose => vec![128 * KIB * KIB],
            Barrier | TeamBarrier | Alloc | Growth | Crowded | Wake | Idle => vec![0],
            Histogram | Indexgather | Startup | Death | Poll | Footprint | GaspiWaitsome => vec![0],
        }
    }

    /// The bars of a variant, for two free cores.
    pub fn variant_bar(name: &str, ranks: usize) -> Bar {
        let ratio = |most| Bar { ratio: Some(most), ..Bar::default() };
        let beside = |most| Bar { beside: Some(most), ..Bar::default() };
        match name {
            "threads-atomic" if ranks == 2 => ratio(1.1),
            "threads-am" if ranks == 2 => ratio(1.3),
            "lapi-am-interrupts" if ranks == 2 => ratio(1.25 * 1.4),
            "lapi-bandwidth-am" if ranks == 2 => ratio(1.0 / 0.95),
            // Four times as many ranks share the same cores; for the all-to-all twice as many, with four times the messages.
            "growth-barrier" | "growth-allreduce" | "growth-alltoall" => beside(4.5),
            "growth-alloc" => beside(3.0),
            "crowded-many" => beside(10.0),
            "crowded-computing" => ratio(1.15),
            "wake-epoll" => ratio(1.3),
            "footprint-tcp-peer" => Bar { value: Some(65536.0), ..Bar::default() },
            "footprint-verbs-peer" => Bar { value: Some(16384.0), ..Bar::default() },
            "idle-core" => Bar { value: Some(100e-6), ..Bar::default() },
            _ => Bar::default(),
        }
    }

    /// The bars of the figure, for two free cores.
    pub fn bar(self, ranks: usize, size: usize) -> Bar {
        let small = size == 8;
        let none = Bar::default();
        let ratio = |most| Bar { ratio: Some(most), ..none };
        let beside = |most| Bar { beside: Some(most), ..none };
        let bar = match self {
            Footprint => Bar { value: Some(8.0), ..none },
            Death => Bar { value: Some(0.05), ..none },
            Poll => beside(2.0),
            Wake => ratio(1.2),
            Idle => Bar { value: Some(0.02), ..none },
            Crowded => Bar { value: Some(15_000.0), ..none },
            Alloc if ranks >= 64 => beside(3.0),
            _ if ranks != 2 => none,
            Put | Get if small => Bar { ratio: Some(2.5), value: Some(3.0), ..none },
            PutRandom => ratio(1.1),
            PutAddress => beside(1.5),
            PutSegment => Bar { value: Some(15.0), ..none },
            PutBell if small => ratio(1.25),
            Am if small => ratio(1.4),
            AmRate if small => Bar { value: Some(25.0), ..none },
            // Twice a message.
            Matching => ratio(2.0 * 1.4),
            LapiAm if small => Bar { line: Some((Am, 1.25)), ..none },
            LapiRate if small => Bar { value: Some(60.0), ..none },
            LapiBandwidth => ratio(1.0 / 0.95),
            GaspiNotify if small => Bar { line: Some((PutBell, 1.2)), ..none },
            GaspiPost if small => Bar { value: Some(15.0), ..none },
            GaspiWait => Bar { value: Some(1000.0), ..none },
            GaspiWaitsome => Bar { value: Some(2000.0), ..none },
            // 2.2 times a message that takes 1.4 lines, of two lines.
            Call => ratio(2.2 * 1.4 / 2.0),
            Atomic => ratio(1.3),
            Threads => ratio(1.1),
            Bandwidth => ratio(1.05),
            Barrier => ratio(1.4),
            TeamBarrier => beside(1.15),
            Histogram => beside(0.5),
            Indexgather => beside(1.0 / 1.2),
            ArrayGet | ArrayPut => ratio(1.5),
            LocalSum => ratio(1.05),
            Exchange => ratio(1.2),
            Transpose => beside(1.0 / 0.7),
            _ => none,
        };
        let peer = match self {
            Put | Get if small && ranks == 2 => Some(("oshmem", 0.1)),
            Allreduce if small && ranks == 8 => Some(("mpi-rma", 1.0)),
            Allreduce | WorldAllreduce if ranks == 2 => Some(("mpi-rma", 0.8)),
            Barrier | TeamBarrier if ranks == 2 => Some(("mpi-rma", 0.6)),
            Matching if ranks == 2 => Some(("mpi-rma", 1.0)),
            Alltoall if small && ranks == 128 => Some(("mpi-rma", 0.7)),
            Startup if ranks == 64 => Some(("mpi", 0.5)),
            _ => None,
        };
        let c = match self {
            _ if ranks != 2 => ThroughC::default(),
            LapiAm | LapiRate | LapiBandwidth | GaspiNotify | GaspiPost | GaspiWait | GaspiWaitsome => {
                ThroughC { ours: Some(1.1), ..ThroughC::default() }
            }
            Matching => ThroughC { line: Some((Am, 2.0)), peer: Some(("mpi-rma", 1.0)), ours: None },
            _ => ThroughC::default(),
        };
        Bar { peer, c, ..bar }
    }

    /// The bars of the figure over TCP: compared with a bare socket and two-sided MPI in the same run, and for aggregation compared with one
    /// operation for each element.
    pub fn tcp_bar(self, ranks: usize, size: usize) -> Bar {
        let none = Bar::default();
        match self {
            _ if ranks != 2 => none,
            Am | PutBell if size == 8 => Bar { ratio: Some(1.25), peer: Some(("mpi", 1.0)), ..none },
            AmRate if size == 8 => Bar { peer: Some(("mpi", 0.2)), ..none },
            Bandwidth if size == 1 << 20 => Bar { ratio: Some(1.0 / 0.95), ..none },
            Histogram => Bar { beside: Some(0.1), ..none },
            _ => none,
        }
    }

    /// The bars of the figure over RDMA: compared with the figures of perftest in the same run, and for aggregation compared
    /// with one operation for each element.
    pub fn verbs_bar(self, ranks: usize, size: usize) -> Bar {
        if matches!(self, Histogram | Indexgather) && ranks == 2 {
            return Bar { beside: Some(0.1), ..Bar::default() };
        }
        if self == PutAddress && ranks == 2 {
            return Bar { beside: Some(1.1), ..Bar::default() };
        }
        let line = match self {
            _ if ranks != 2 => None,
            GaspiNotify if size == 8 => Some((PutBell, 1.1)),
            LapiBandwidth if size == 1 << 20 => Some((Bandwidth, 1.0 / 0.95)),
            _ => None,
        };
        let most = match self {
            _ if ranks != 2 => None,
            Put if size == 8 => Some(1.0),
            PutPoll if size == 8 => Some(1.1),
            // One way of a write without a bell.
            PutBell if size == 8 => Some(1.5),
            Atomic => Some(1.1),
            Bandwidth if size == 64 << 10 => Some(1.053),
            _ => None,
        };
        Bar { peer: most.map(|most| ("perftest", most)), line, ..Bar::default() }
    }
}

/// Upper bounds for a figure. `None`: no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bar {
    /// Bound for the ratio to the limit.
    pub ratio: Option<f64>,
    /// Bound for the ratio to the comparison in the column `beside`.
    pub beside: Option<f64>,
    /// Bound for the figure itself, in its unit.
    pub value: Option<f64>,
    /// Bound for the ratio to this peer.
    pub peer: Option<(&'static str, f64)>,
    /// Bound for the ratio to the figure of this other benchmark, with the same size, in the same run.
    pub line: Option<(Kind, f64)>,
    /// Bounds for the same calls through the library for C or C++.
    pub c: ThroughC,
}

/// Upper bounds for a figure through the library for C or C++.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThroughC {
    /// Bound for its ratio to our figure in Rust.
    pub ours: Option<f64>,
    /// Bound for its ratio to the figure of this other benchmark, with the same size, in the same run.
    pub line: Option<(Kind, f64)>,
    /// Bound for its ratio to this peer.
    pub peer: Option<(&'static str, f64)>,
}
