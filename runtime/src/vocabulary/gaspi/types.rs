//! The types of arguments and results.

use std::fmt;
use std::time::Duration;

use super::codes;

/// A process of the job.
pub type Rank = u16;
/// A group of this process.
pub type GroupId = u8;
/// A segment of a process.
pub type SegmentId = u8;
/// A queue of this process.
pub type QueueId = u8;
/// A notification of a segment.
pub type NotificationId = u32;

/// The group of all processes.
pub const GROUP_ALL: GroupId = 0;

/// How long a call may take. A limit is soft: a step that has begun is finished.
///
/// After [`codes::TIMEOUT`] the same call with the same arguments goes on; what it does happens once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    /// One piece of progress.
    Test,
    /// As long as it takes.
    Block,
    /// So long.
    After(Duration),
}

impl Timeout {
    /// A limit as C gives it: milliseconds, 0 for [`Timeout::Test`], all ones for [`Timeout::Block`].
    pub fn from_millis(millis: u64) -> Timeout {
        match millis {
            0 => Timeout::Test,
            u64::MAX => Timeout::Block,
            millis => Timeout::After(Duration::from_millis(millis)),
        }
    }
}

/// A code that is not [`codes::SUCCESS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    /// Whether the call is to be made again.
    pub fn is_timeout(self) -> bool {
        self.0 == codes::TIMEOUT
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GASPI code {}: {}", self.0, codes::text(self.0).unwrap_or("no code"))
    }
}

impl std::error::Error for Code {}

/// The result of a call.
pub type Result<T, E = Code> = std::result::Result<T, E>;

/// This process's knowledge of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No operation with it has failed.
    Healthy = 0,
    /// An operation with it has failed.
    Corrupt = 1,
}

/// The network that carries requests to processes whose memory is not mapped: [`Process::network_type`](super::Process::network_type).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkType {
    /// Nothing: the memory of all processes is mapped.
    Memory,
    /// TCP.
    Ethernet,
    /// RDMA, over InfiniBand or Ethernet.
    Rdma,
    /// Several networks, or another one, as a simulated one.
    Other,
}

/// The operation of [`Process::allreduce`](super::Process::allreduce).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The sum; of integers it wraps.
    Sum,
}

/// The type of the elements of [`Process::allreduce`](super::Process::allreduce).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datatype {
    /// `i32`.
    Int,
    /// `u32`.
    Uint,
    /// `f32`.
    Float,
    /// `f64`.
    Double,
    /// `i64`.
    Long,
    /// `u64`.
    Ulong,
}

impl Datatype {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Datatype::Int | Datatype::Uint | Datatype::Float => 4,
            Datatype::Double | Datatype::Long | Datatype::Ulong => 8,
        }
    }
}
