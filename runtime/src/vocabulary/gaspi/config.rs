//! The configuration of a process.

use super::codes;
use super::types::{Code, Result};

/// Most queues.
pub const QUEUE_MAX: u32 = 16;
/// Most open requests of a queue.
pub const QUEUE_SIZE_MAX: u32 = 4096;
/// Most groups.
pub const GROUP_MAX: u32 = 32;
/// Most segments.
pub const SEGMENT_MAX: u32 = 255;
/// Most notifications of a segment.
pub const NOTIFICATION_MAX: u32 = 65536;
/// Most elements of an allreduce.
pub const ALLREDUCE_ELEM_MAX: u32 = 255;
/// Most bytes of an allreduce with a function of the program.
pub const ALLREDUCE_BUF_SIZE: u64 = 255 * 8;
/// Most parts of a list.
pub const RW_LIST_ELEM_MAX: u32 = 255;
/// Most bytes of a text for [`Process::print_to`](super::Process::print_to).
pub const PRINT_MAX: usize = 2048;
/// Least bytes of a transfer.
pub const TRANSFER_SIZE_MIN: u64 = 0;
/// Least bytes of a passive message.
pub const PASSIVE_TRANSFER_SIZE_MIN: u64 = 1;
/// The largest value of an atomic operation's word.
pub const ATOMIC_MAX: u64 = u64::MAX;
/// The version of the GASPI specification.
pub const VERSION: f32 = 17.1;
/// Most bytes of a transfer.
pub const TRANSFER_SIZE_MAX: u64 = 1 << 30;
/// Most bytes of a passive message.
pub const PASSIVE_TRANSFER_SIZE_MAX: u64 = 65535;

/// The values that are set before [`Process::proc_init`](super::Process::proc_init). All processes set the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Queues that exist after the start: 1 to [`QUEUE_MAX`].
    pub queue_num: u32,
    /// Open requests that a queue takes: 1 to [`QUEUE_SIZE_MAX`].
    pub queue_size_max: u32,
    /// Groups at a time, with that of all processes: 1 to [`GROUP_MAX`].
    pub group_max: u32,
    /// Segments at a time: 1 to [`SEGMENT_MAX`].
    pub segment_max: u32,
    /// Notifications of each segment: 1 to [`NOTIFICATION_MAX`].
    pub notification_num: u32,
    /// Bytes of a transfer, up to [`TRANSFER_SIZE_MAX`].
    pub transfer_size_max: u64,
    /// Bytes of a passive message: 1 to [`PASSIVE_TRANSFER_SIZE_MAX`].
    pub passive_transfer_size_max: u64,
    /// Elements of an allreduce: 1 to [`ALLREDUCE_ELEM_MAX`].
    pub allreduce_elem_max: u32,
    /// Bytes of an allreduce with a function of the program: 1 to [`ALLREDUCE_BUF_SIZE`].
    pub allreduce_buf_size: u64,
    /// Parts of a list: 1 to [`RW_LIST_ELEM_MAX`].
    pub rw_list_elem_max: u32,
    /// Whether all processes are connected when `proc_init` returns. Here a path is made by the first operation that needs it, so
    /// processes reach each other also without, and without `connect`.
    pub build_infrastructure: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            queue_num: 8,
            queue_size_max: 1024,
            group_max: GROUP_MAX,
            segment_max: SEGMENT_MAX,
            notification_num: NOTIFICATION_MAX,
            transfer_size_max: TRANSFER_SIZE_MAX,
            passive_transfer_size_max: PASSIVE_TRANSFER_SIZE_MAX,
            allreduce_elem_max: ALLREDUCE_ELEM_MAX,
            allreduce_buf_size: ALLREDUCE_BUF_SIZE,
            rw_list_elem_max: RW_LIST_ELEM_MAX,
            build_infrastructure: true,
        }
    }
}

impl Config {
    /// Whether every number is in its range.
    ///
    /// # Errors
    /// [`codes::CONFIG`].
    pub fn check(&self) -> Result<()> {
        let counts = [
            (self.queue_num, QUEUE_MAX),
            (self.queue_size_max, QUEUE_SIZE_MAX),
            (self.group_max, GROUP_MAX),
            (self.segment_max, SEGMENT_MAX),
            (self.notification_num, NOTIFICATION_MAX),
            (self.allreduce_elem_max, ALLREDUCE_ELEM_MAX),
            (self.rw_list_elem_max, RW_LIST_ELEM_MAX),
        ];
        let sizes = [
            (self.transfer_size_max, TRANSFER_SIZE_MAX),
            (self.passive_transfer_size_max, PASSIVE_TRANSFER_SIZE_MAX),
            (self.allreduce_buf_size, ALLREDUCE_BUF_SIZE),
        ];
        let counts = counts.into_iter().map(|(set, most)| (u64::from(set), u64::from(most)));
        match counts.chain(sizes).all(|(set, most)| (1..=most).contains(&set)) {
            true => Ok(()),
            false => Err(Code(codes::CONFIG)),
        }
    }
}
