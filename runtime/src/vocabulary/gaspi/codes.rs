//! The codes that calls return, with their texts. GASPI defines the first three; the others have GPI-2's names and numbers.

use crate::error::Error;
use crate::vocabulary::code_table::codes;

codes! {
    SUCCESS = 0, "The call succeeded.";
    TIMEOUT = 1, "The call is not complete: call it again with the same arguments to complete it.";
    ERROR = -1, "The call failed.";
    EMFILE = 2, "The process has too many open files.";
    ENV = 3, "The environment of the job is not complete.";
    SN_PORT = 4, "The port of the start-up network is not valid or in use.";
    CONFIG = 5, "A field of the configuration is not valid.";
    NOINIT = 6, "The call is for the working phase: call gaspi_proc_init first.";
    INITED = 7, "The call is for the phase before gaspi_proc_init.";
    NULLPTR = 8, "A pointer is NULL.";
    INV_SEGSIZE = 9, "The size of the segment is not valid: it has at least one byte.";
    INV_SEG = 10, "The segment does not exist, or exists already where a new one was asked for.";
    INV_GROUP = 11, "The group does not exist, is not committed, or cannot be changed.";
    INV_RANK = 12, "The rank does not exist, or is not valid for this call.";
    INV_QUEUE = 13, "The queue does not exist.";
    INV_LOC_OFF = 14, "The range at the local offset is outside the local segment.";
    INV_REM_OFF = 15, "The range at the remote offset is outside the remote segment.";
    INV_COMMSIZE = 16, "The size of the transfer is not valid: it is at most transfer_size_max, or passive_transfer_size_max.";
    INV_NOTIF_VAL = 17, "The value of the notification is 0.";
    INV_NOTIF_ID = 18, "The notification is outside the range: id < notification_num.";
    INV_NUM = 19, "The number of elements is not valid.";
    INV_SIZE = 20, "The size is not valid for this call.";
    MANY_SEG = 21, "There are segment_max segments.";
    MANY_GRP = 22, "There are group_max groups.";
    QUEUE_FULL = 23, "The queue has queue_size_max open requests: call gaspi_wait.";
    UNALIGN_OFF = 24, "The offset of the atomic value is no multiple of 8 bytes.";
    ACTIVE_COLL = 25, "Another collective call of this kind is active on the group: complete it first.";
    DEVICE = 26, "The network device reported an error.";
    SN = 27, "The start-up network reported an error.";
    MEMALLOC = 28, "There is not enough memory.";
}

/// The code that stands for an error of the runtime, which is logged.
#[cold]
pub(super) fn of_error(error: &Error) -> i32 {
    let code = match error {
        Error::TimedOut { .. } => return TIMEOUT,
        Error::NoSegment { .. } => INV_SEG,
        Error::OutOfBounds { .. } => INV_REM_OFF,
        Error::RankOutOfRange { .. } => INV_RANK,
        Error::Misaligned { .. } => UNALIGN_OFF,
        Error::OutOfMemory { .. } => MEMALLOC,
        error if is_file_limit(error) => EMFILE,
        // Also where the network has no further interface for a queue: no memory is short.
        _ => ERROR,
    };
    tracing::warn!(code, %error, "a GASPI call fails");
    code
}

/// The code that stands for an error of [`Process::start`](super::Process::start), as a C program gets it from `gaspi_proc_init`: [`EMFILE`];
/// [`ENV`] if a setting has no meaning, or if this process was started as one of several and came up alone; [`MEMALLOC`];
/// [`SN`] if the processes did not find each other; else [`ERROR`].
pub fn of_start(error: &Error) -> i32 {
    match error {
        error if is_file_limit(error) => EMFILE,
        Error::Setting { .. } | Error::StartedApart { .. } => ENV,
        Error::OutOfMemory { .. } => MEMALLOC,
        Error::Start(_) | Error::Mpi { .. } => SN,
        _ => ERROR,
    }
}

/// The limit of open files of the process, or of the system.
fn is_file_limit(error: &Error) -> bool {
    matches!(error, Error::Os { source, .. } if matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_have_texts() {
        for (place, (number, name, text)) in CODES.iter().enumerate() {
            assert!(CODES[place + 1..].iter().all(|(other, ..)| other != number), "{name}");
            assert!(text.ends_with('.'), "{name}");
        }
        assert_eq!((CODES.len(), text(29)), (30, None));
        let os = |number| Error::Os {
            doing: "starting",
            call: "memfd_create",
            source: std::io::Error::from_raw_os_error(number),
        };
        assert_eq!([of_start(&os(libc::EMFILE)), of_error(&os(libc::ENFILE))], [EMFILE; 2]);
        assert_eq!([of_start(&os(libc::EPERM)), of_error(&os(libc::EPERM))], [ERROR; 2]);
        let no_context = Error::NoContext { limit: 127, network: "TCP".into(), place: crate::CalledAt::default() };
        assert_eq!(of_error(&no_context), ERROR);
        assert_eq!(of_start(&Error::Start("nobody answers".into())), SN);
        assert_eq!(text(QUEUE_FULL), Some("The queue has queue_size_max open requests: call gaspi_wait."));
    }
}
