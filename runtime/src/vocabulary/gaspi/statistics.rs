//! Counters of the requests that a process has posted.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A counter of the requests that a process has posted, on all its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Writes, and lists of writes.
    Writes,
    /// Reads, and lists of reads.
    Reads,
    /// Notifications of other processes.
    Notifications,
    /// Bytes of writes.
    WrittenBytes,
    /// Bytes of reads.
    ReadBytes,
}

/// How many there are.
const NUMBER: usize = Counter::ALL.len();

impl Counter {
    /// All of them, in the order of their numbers in C.
    pub const ALL: [Counter; 5] =
        [Counter::Writes, Counter::Reads, Counter::Notifications, Counter::WrittenBytes, Counter::ReadBytes];

    /// Its name, and a line about it.
    pub fn texts(self) -> (&'static CStr, &'static CStr) {
        match self {
            Counter::Writes => (c"writes", c"Writes and lists of writes that were posted"),
            Counter::Reads => (c"reads", c"Reads and lists of reads that were posted"),
            Counter::Notifications => (c"notifications", c"Notifications of other ranks that were posted"),
            Counter::WrittenBytes => (c"bytes written", c"Bytes of writes that were posted"),
            Counter::ReadBytes => (c"bytes read", c"Bytes of reads that were posted"),
        }
    }
}

/// The counters of a [`Process`](super::Process), which count while the verbosity is not 0; at first it is. They go on through all working
/// phases. Every thread may read and set them.
///
/// # Examples
/// ```
/// # mod bellwether { pub use bellwether_runtime::*; pub use bellwether_runtime::vocabulary::gaspi; }
/// use bellwether::Threads;
/// use bellwether::gaspi::{Code, Counter, GROUP_ALL, Part, Process, Timeout::Block};
///
/// Threads::new(1).build(|builder| {
///     let process = Process::start(builder).expect("starts");
///     process.statistics().set_verbosity(1);
///     process.proc_init(Block)?;
///     process.segment_create(0, 64, GROUP_ALL, Block)?;
///     process.write(Part { local: (0, 0), remote: (0, 32), size: 8 }, 0, 0, Block)?;
///     assert_eq!(process.statistics().get(Counter::WrittenBytes), 8);
///     process.proc_term(Block)?;
///     process.finish().expect("finishes");
///     Ok(())
/// })?.into_iter().collect::<Result<(), Code>>().expect("no code");
/// # Ok::<(), bellwether::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Statistics {
    verbosity: AtomicU32,
    /// By [`Counter`].
    counts: [AtomicU64; NUMBER],
}

impl Statistics {
    /// From 1 on all counters count.
    pub fn verbosity(&self) -> u32 {
        self.verbosity.load(Ordering::Relaxed)
    }

    /// Sets the verbosity. The counts stay.
    pub fn set_verbosity(&self, level: u32) {
        self.verbosity.store(level, Ordering::Relaxed);
    }

    /// The count since the start, or since the last reset.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].load(Ordering::Relaxed)
    }

    /// Sets a counter to 0.
    pub fn reset(&self, counter: Counter) {
        self.counts[counter as usize].store(0, Ordering::Relaxed);
    }

    /// Whether anything is to be counted.
    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.verbosity.load(Ordering::Relaxed) != 0
    }

    pub(super) fn add(&self, counter: Counter, number: u64) {
        self.counts[counter as usize].fetch_add(number, Ordering::Relaxed);
    }
}
