//! Why a job could not be started.

use std::io;
use std::path::PathBuf;

/// Why a job could not be started. Ranks that had been started have been ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A job of no ranks was asked for.
    #[error("a job needs at least 1 rank, not 0")]
    NoRanks,
    /// The program is not where it was said to be.
    #[error("cannot start `{program}`: {place}")]
    NotFound {
        /// As it was given.
        program: String,
        /// Where it was looked for.
        place: String,
    },
    /// The program is there, but cannot be executed.
    #[error("cannot start `{}`: {why}", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// What stands in the way.
        why: String,
    },
    /// An argument or environment variable contains a zero byte.
    #[error("{what} contains a zero byte; the operating system cannot hand it to a program")]
    ZeroByte {
        /// Which one.
        what: String,
    },
    /// The system allows too few open files for this many ranks.
    #[error(
        "{ranks} ranks need {needed} open files, and this process may have {allowed}; \
         raise the limit (`ulimit -Hn`, LimitNOFILE) or start fewer ranks"
    )]
    TooFewDescriptors {
        /// Ranks asked for.
        ranks: usize,
        /// Descriptors they need.
        needed: u64,
        /// The hard limit.
        allowed: u64,
    },
    /// One rank's process could not be made.
    #[error("cannot start rank {rank}: {step}: {source}{}", hint(source))]
    Start {
        /// The rank.
        rank: usize,
        /// What was being done.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A host's own launcher could not be started there, or broke off before there were ranks.
    #[error("host {host} cannot be used: {command} {why}")]
    Unreachable {
        /// As the user calls it.
        host: String,
        /// What was tried.
        command: String,
        /// How that failed.
        why: String,
    },
    /// A host could not start its ranks.
    #[error("on host {host}: {why}")]
    OnHost {
        /// As the user calls it.
        host: String,
        /// The exit status for that.
        status: i32,
        /// Its own error.
        why: String,
    },
    /// The hosts have room for too few ranks.
    #[error(
        "{ranks} ranks are asked for, and the hosts have room for {all} ({each}), as many as they have CPUs unless their number is given; \
         to start more ranks on a host, write their number behind it, as in `{example}`"
    )]
    NoRoom {
        /// Ranks asked for.
        ranks: usize,
        /// Ranks that there is room for.
        all: usize,
        /// The hosts with the room that each has.
        each: String,
        /// A host with a number of ranks that would suffice.
        example: String,
    },
    /// The launcher's folder is not there on another host.
    #[error("cannot work in the launcher's folder {}: {source}; start in a folder that is on all hosts", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something the supervisor itself needs failed.
    #[error("cannot supervise the job: {what}: {source}{}", hint(source))]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit status for this error, as shells and `env` have it: 127 not found, 126 not
    /// executable, 2 bad use, 125 for all others.
    pub fn status(&self) -> i32 {
        match self {
            LaunchError::NoRanks | LaunchError::ZeroByte { .. } | LaunchError::NoRoom { .. } => 2,
            LaunchError::OnHost { status, .. } => *status,
            LaunchError::NotFound { .. } => 127,
            LaunchError::NotExecutable { .. } => 126,
            _ => 125,
        }
    }

    /// Wraps what the system said while the supervisor did `what`.
    pub(super) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> LaunchError {
        move |errno| LaunchError::System { what, source: errno.into() }
    }
}

/// What to do about the errors that have a usual remedy.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => "; the limit on processes is reached (`ulimit -u`, or pids.max of the container)",
        Some(libc::EMFILE | libc::ENFILE) => "; the limit on open files is reached (`ulimit -n`)",
        Some(libc::ENOSYS) => "; Linux 5.4 or newer is needed",
        Some(libc::E2BIG) => "; arguments and environment are too long together",
        _ => "",
    }
}
