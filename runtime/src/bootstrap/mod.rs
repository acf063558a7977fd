//! How ranks find each other: alone, spawned, as threads, or through MPI.

pub mod job;
#[cfg(feature = "mpi")]
pub mod mpi;
mod surroundings;

use std::os::fd::{FromRawFd, OwnedFd};

use self::job::JobMemory;
use crate::error::{Error, Result};
use crate::settings::Settings;

/// The variable by which a spawner tells a rank its place: `rank=2,ranks=4,fd=7`.
pub const JOB_VARIABLE: &str = "BELLWETHER_JOB";
/// The variable by which a user asks a program to start its own copies.
pub const RANKS_VARIABLE: &str = "BELLWETHER_RANKS";

/// How this process is to start.
#[derive(Debug)]
pub enum Way {
    /// One rank of a job whose memory was handed to us.
    Spawned {
        /// Our rank.
        rank: usize,
        /// The job.
        job: JobMemory,
    },
    /// Start this many copies of this program, and watch them.
    Spawn(usize),
    /// One rank of an MPI job.
    #[cfg(feature = "mpi")]
    Mpi,
    /// One rank, and no others.
    Alone,
}

/// Finds out how this process is to start; `ranks` is what the program itself asks for, if nobody else does.
///
/// # Errors
/// [`Error::StartedApart`] if the surroundings say that this is one task of several, but nothing here can join them;
/// [`Error::Start`] for a place that cannot be understood.
pub fn way(ranks: Option<usize>) -> Result<Way> {
    if let Some(place) = std::env::var_os(JOB_VARIABLE) {
        return spawned(&place.to_string_lossy());
    }
    if let Ok(text) = std::env::var(RANKS_VARIABLE) {
        // Checked when the settings were read.
        let ranks: usize = text.parse().map_err(|_| Error::Start(format!("{RANKS_VARIABLE}={text} is no number")))?;
        // One rank asked for by name is one rank, whatever the surroundings say.
        return Ok(if ranks == 1 { Way::Alone } else { Way::Spawn(ranks) });
    }
    match (surroundings::way()?, ranks) {
        (Way::Alone, Some(ranks)) if ranks > 1 => Ok(Way::Spawn(ranks)),
        (way, _) => Ok(way),
    }
}

fn spawned(place: &str) -> Result<Way> {
    let wrong = || {
        Error::Start(format!(
            "{JOB_VARIABLE}={place:?} is not `rank=R,ranks=N,fd=F`; it is set by `bellwether run` only"
        ))
    };
    let field = |name: &str| {
        place.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse::<usize>().ok())
    };
    let (Some(rank), Some(ranks), Some(fd)) = (field("rank"), field("ranks"), field("fd")) else { return Err(wrong()) };
    if rank >= ranks || fd > i32::MAX as usize {
        return Err(wrong());
    }
    // SAFETY: only looks whether the number is an open descriptor.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd as i32) };
    // A copy, so that a second start in one process finds the descriptor still there and gets a clear answer.
    let fd: OwnedFd = rustix::io::fcntl_dupfd_cloexec(borrowed, 3).map_err(|_| {
        Error::Start(format!(
            "{JOB_VARIABLE} names descriptor {fd}, which is not open: a program between \
            `bellwether run` and this one closed it"
        ))
    })?;
    Ok(Way::Spawned { rank, job: JobMemory::from_fd(fd, ranks)? })
}

/// Starts `ranks` copies of this program and exits with their status.
pub fn spawn_copies<T>(_ranks: usize, _settings: &Settings) -> Result<T> {
    let _ = <OwnedFd as FromRawFd>::from_raw_fd;
    todo!()
}
