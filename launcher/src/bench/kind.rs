//! What can be measured, in which unit, and what figure is good enough.

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
    /// Fetch-and-add on a word of another rank
    Atomic,
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
    /// Starting and ending ranks that do nothing
    Startup,
    /// Memory a rank keeps for a peer it never talks to
    Footprint,
}

use Kind::*;

/// All of them, in the order in which they are measured.
pub const ALL: [Kind; 19] = [
    Put,
    Get,
    PutPoll,
    PutBell,
    Am,
    AmRate,
    Atomic,
    Bandwidth,
    Barrier,
    Allreduce,
    ArrayGet,
    ArrayPut,
    LocalSum,
    Exchange,
    Transpose,
    Histogram,
    Indexgather,
    Startup,
    Footprint,
];

/// What the command line says of its first argument.
pub fn offered() -> String {
    format!("What to measure: {}, or all [default: all]", ALL.map(Kind::name).join(", "))
}

/// How a figure is told.
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
}

impl Unit {
    /// As it is written after a number.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Seconds => "s",
            Unit::Gigabytes => "GB/s",
            Unit::Bytes => "B",
        }
    }

    /// How `ours` compares with `other`; smaller is better whatever the unit.
    pub fn ratio(self, ours: f64, other: f64) -> f64 {
        if self == Unit::Gigabytes { other / ours } else { ours / other }
    }
}

impl Kind {
    /// Its name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Put => "put",
            Get => "get",
            PutPoll => "put-poll",
            PutBell => "put-bell",
            Am => "am",
            AmRate => "am-rate",
            Atomic => "atomic",
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
            Startup => "startup",
            Footprint => "footprint",
        }
    }

    /// What a plot is headed with.
    pub fn title(self) -> &'static str {
        match self {
            Put => "Blocking put",
            Get => "Blocking get",
            PutPoll => "Put polled on its data, one way",
            PutBell => "Put and bell, one way",
            Am => "Active message, one way",
            AmRate => "Stream of active messages",
            Atomic => "Atomic fetch-and-add",
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
            Startup => "Start and end of a job",
            Footprint => "Memory for an idle peer",
        }
    }

    /// What the limit beside the figure does.
    pub fn limit(self) -> &'static str {
        match self {
            Put => "bare stores, memcpy above 8 B",
            Get => "bare loads, memcpy above 8 B",
            PutPoll => "bare stores to a data line",
            PutBell => "bare stores to a data line and a flag line",
            Am => "bare stores to one line",
            AmRate => "a bare ring of lines",
            Atomic => "bare locked adds",
            Histogram => "bare locked adds; over a network one fetch_add each",
            Indexgather => "bare loads; over a network one get each",
            Bandwidth => "memcpy",
            Barrier => "bare flags",
            ArrayGet => "get",
            ArrayPut => "put",
            LocalSum => "a plain slice",
            Exchange => "bare puts and bells",
            Transpose => "transposing private memory",
            Allreduce => "memcpy out and in, and a bare sum",
            Startup => "bare processes",
            Footprint => "none",
        }
    }

    /// The unit of its figures.
    pub fn unit(self) -> Unit {
        match self {
            Startup => Unit::Seconds,
            Bandwidth | Transpose => Unit::Gigabytes,
            Footprint => Unit::Bytes,
            _ => Unit::Nanoseconds,
        }
    }

    /// Fewest ranks it makes sense for.
    pub fn least_ranks(self) -> usize {
        if matches!(self, Startup | Footprint) { 1 } else { 2 }
    }

    /// Whether it is a stream of puts, whose figure over a network is the average of a whole run.
    pub fn is_stream(self) -> bool {
        matches!(self, Put | Bandwidth)
    }

    /// Whether `--size` means something to it.
    pub fn is_sized(self) -> bool {
        matches!(self, Put | Get | PutPoll | PutBell | Am | AmRate | Bandwidth | Allreduce)
    }

    /// The sizes measured when none is asked for; `plotted` wants a curve.
    pub fn sizes(self, plotted: bool, quick: bool) -> Vec<usize> {
        const KIB: usize = 1 << 10;
        match self {
            Bandwidth if quick => vec![4 * KIB, 64 * KIB],
            Bandwidth => (0..8).map(|step| (4 * KIB) << (2 * step)).collect(),
            Put | Get | PutPoll | PutBell | Am if plotted => {
                vec![8, 32, 128, 512, 2 * KIB, 8 * KIB, 32 * KIB, 64 * KIB]
            }
            Put | Get | PutPoll | PutBell | Am | AmRate | Atomic => vec![8],
            Allreduce if plotted => (0..10).map(|step| 8 << (2 * step)).collect(),
            Allreduce if quick => vec![8, 16 * KIB],
            Allreduce => vec![8, KIB, 32 * KIB, KIB * KIB],
            ArrayGet | ArrayPut => vec![8],
            LocalSum => vec![256 * KIB],
            // A row of 1024 elements.
            Exchange => vec![8 * KIB],
            Transpose if quick => vec![2 * KIB * KIB],
            // 4096 rows of as many elements.
            Transpose => vec![128 * KIB * KIB],
            Barrier | Histogram | Indexgather | Startup | Footprint => vec![0],
        }
    }

    /// What is asked of the figure on two free cores: the highest ratio, and the highest figure.
    pub fn bar(self, ranks: usize, size: usize) -> Bar {
        let small = size == 8;
        let (ratio, value) = match self {
            Footprint => (None, Some(8.0)),
            _ if ranks != 2 => (None, None),
            Put | Get if small => (Some(2.5), Some(3.0)),
            PutBell if small => (Some(1.25), None),
            Am if small => (Some(1.4), None),
            AmRate if small => (None, Some(25.0)),
            Atomic => (Some(1.3), None),
            Bandwidth => (Some(1.05), None),
            Barrier => (Some(1.4), None),
            Histogram => (Some(0.5), None),
            Indexgather => (Some(1.0 / 1.2), None),
            ArrayGet | ArrayPut => (Some(1.5), None),
            LocalSum => (Some(1.05), None),
            Exchange => (Some(1.2), None),
            Transpose => (Some(1.0 / 0.7), None),
            _ => (None, None),
        };
        let peer = match self {
            Put | Get if small && ranks == 2 => Some(("oshmem", 0.1)),
            Allreduce if (small && ranks == 8) || (size == 1 << 20 && ranks == 2) => Some(("mpi-rma", 1.0)),
            _ => None,
        };
        Bar { ratio, value, peer }
    }

    /// What is asked of the figure over RDMA: beside what the verbs' own programs measure in the same run, and of
    /// aggregation beside one operation for each element.
    pub fn verbs_bar(self, ranks: usize, size: usize) -> Bar {
        if matches!(self, Histogram | Indexgather) && ranks == 2 {
            return Bar { ratio: Some(0.1), ..Bar::default() };
        }
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
        Bar { peer: most.map(|most| ("perftest", most)), ..Bar::default() }
    }
}

/// The most a figure may be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bar {
    /// Of the ratio to the limit.
    pub ratio: Option<f64>,
    /// Of the figure itself, in its unit.
    pub value: Option<f64>,
    /// Of the ratio to this peer.
    pub peer: Option<(&'static str, f64)>,
}
