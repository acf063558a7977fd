//! How ranks find each other: alone, spawned, as threads, through a launcher's exchange, or through MPI; on one host or several.

pub mod launch;
pub mod meeting;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod pmi;
pub mod results;
mod surroundings;

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

use self::launch::{Ended, Hooks, JobSpec, LaunchError, Membership, Outcome};
use crate::error::{Error, Loss, MEMORY_LOST, Result};
use crate::membership::{JobMemory, RankState};
use crate::settings::{Join, Settings};

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
    /// One rank of those that a launcher started, which has left us its exchange.
    Launched(pmi::Kind),
    /// One rank of an MPI job.
    #[cfg(feature = "mpi")]
    Mpi,
    /// One rank, and no others.
    Alone,
}

/// Finds out how this process is to start; `ranks` is what the program itself asks for, if nobody else does, and `join` how it is to
/// join a launcher's ranks.
///
/// # Errors
/// [`Error::StartedApart`] if the surroundings say that this is one task of several, but nothing here can join them;
/// [`Error::Start`] for a place that cannot be understood.
pub fn way(ranks: Option<usize>, join: Join) -> Result<Way> {
    if let Some(place) = std::env::var_os(JOB_VARIABLE) {
        return spawned(&place.to_string_lossy());
    }
    if let Ok(text) = std::env::var(RANKS_VARIABLE) {
        // Checked when the settings were read.
        let ranks: usize = text.parse().map_err(|_| Error::Start(format!("{RANKS_VARIABLE}={text} is no number")))?;
        // One rank asked for by name is one rank, whatever the surroundings say.
        if ranks == 1 {
            return Ok(Way::Alone);
        }
        surroundings::check_copies(ranks, &surroundings::variable)?;
        return Ok(Way::Spawn(ranks));
    }
    match (surroundings::way(join)?, ranks) {
        (Way::Alone, Some(ranks)) if ranks > 1 => Ok(Way::Spawn(ranks)),
        (way, _) => Ok(way),
    }
}

/// Whether a launcher whose exchange can be joined without MPI started this process, alone or not.
pub fn is_launched(join: Join) -> bool {
    surroundings::is_launched(join)
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
            "{JOB_VARIABLE} names descriptor {fd}, which is not open: this process is a child of a rank (unset {JOB_VARIABLE}, {} and {} \
             for it), or a program between `bellwether run` and this one closed it",
            launch::RANK,
            launch::SIZE
        ))
    })?;
    // Children of this rank are no ranks.
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)
        .map_err(|e| Error::os("joining the job", "fcntl", e))?;
    let job = JobMemory::from_fd(fd, ranks)?;
    // Before anything of that rank's memory is touched: it may be the parent of this process.
    if job.rank_state(rank) != RankState::Absent {
        let (first, own) = (job.pid(rank), std::process::id());
        return Err(Error::Start(format!(
            "rank {rank} has joined this job before, as process {first}; this is process {own}. Start the world once in a \
             program, and not in a forked child of a rank"
        )));
    }
    Ok(Way::Spawned { rank, job })
}

/// Starts `ranks` copies of this program, watches them, and exits with the job's status.
///
/// # Errors
/// [`Error::Start`] if they cannot be started. Otherwise this does not return.
pub fn spawn_copies<T>(ranks: usize, settings: &Settings) -> Result<T> {
    let program = std::env::current_exe().map_err(|source| Error::Os {
        doing: "starting copies of this program",
        call: "readlink",
        source,
    })?;
    let mut job = OwnedJob::create(ranks, settings)?;
    let mut spec = JobSpec::new(program, std::env::args_os().skip(1), ranks);
    spec.name = RANKS_VARIABLE.into();
    spec.timeout = settings.deadline;
    // This process does nothing else from here on.
    spec.adopt = true;
    match job.supervise(spec) {
        Ok(outcome) => end(outcome.status()),
        Err(error) => Err(Error::Start(error.to_string())),
    }
}

/// Ends this process, which is no rank: functions that the program has registered for its exit would run without a world.
fn end(status: i32) -> ! {
    // What the program printed before its world started. This process ends now, so an error is ignored.
    let _ = std::io::stdout().flush();
    // SAFETY: null names all streams of C, and `_exit` ends the process whatever its state.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::_exit(status)
    }
}

/// A job whose ranks this process starts and watches.
#[derive(Debug)]
pub struct OwnedJob {
    memory: JobMemory,
}

impl OwnedJob {
    /// Makes the memory of a job of `ranks` ranks.
    ///
    /// # Errors
    /// As [`JobMemory::create`].
    pub fn create(ranks: usize, settings: &Settings) -> Result<OwnedJob> {
        let memory = JobMemory::create(ranks, settings)?;
        memory.set_supervised();
        Ok(OwnedJob { memory })
    }

    /// Starts the ranks as `spec` says, hands them this job, and watches them to the end.
    ///
    /// # Errors
    /// If they cannot be started.
    pub fn supervise(&mut self, spec: JobSpec<'_>) -> std::result::Result<Outcome, LaunchError> {
        let spec = JobSpec { inherit: Some(self.memory.fd()), ..spec };
        let _guarded = self.memory.guard();
        launch::supervise(&spec, &mut Roster(&self.memory))
    }
}

/// Tells ranks their place, and enters ranks that are gone in the roster.
struct Roster<'a>(&'a JobMemory);

impl Hooks for Roster<'_> {
    fn rank_env(&mut self, rank: usize) -> Vec<(OsString, OsString)> {
        let place = format!("rank={rank},ranks={},fd={}", self.0.ranks(), self.0.fd().as_raw_fd());
        vec![(JOB_VARIABLE.into(), place.into())]
    }

    fn rank_ended(&mut self, rank: usize, ended: &Ended) {
        let cause = match *ended {
            Ended::Exited(code) => Loss::Exited(code),
            Ended::Signaled(signal) => Loss::Signaled(signal),
        };
        self.0.mark_lost(rank, cause);
    }

    fn membership(&mut self, rank: usize) -> Membership {
        match self.0.rank_state(rank) {
            RankState::Left => Membership::Left,
            // A program that is none of ours never arrives, and may end as it likes.
            _ if self.0.pid(rank) == 0 => Membership::Absent,
            _ => Membership::Joined,
        }
    }

    fn whereabouts(&mut self, rank: usize) -> Option<String> {
        (self.membership(rank) != Membership::Absent).then(|| self.0.whereabouts(rank))
    }

    fn is_consequence(&mut self, rank: usize, ended: &Ended) -> bool {
        // A lost peer does not kill a rank. The roster may still say that it left, if the signal came after that, and that
        // other ranks panicked, if they did so because of this death: neither explains the signal.
        if let Ended::Signaled(_) = ended {
            return false;
        }
        let job = self.0;
        // A rank that panics on the error that it got when another one was gone gives up, as one that leaves with the error does.
        let gave_up = job.gave_up(rank);
        let panicked_first = |rank| job.rank_state(rank) == RankState::Panicked && !job.panicked_later(rank);
        // Ranks that leave with an error, or exit, because a peer has panicked may be gone before that peer is.
        let others_panicked = (0..job.ranks()).any(|other| other != rank && panicked_first(other));
        // Ranks' reports about each other are ordered; the order in which they ended is not.
        let first = job.first_missed().or(job.first_lost().map(|(lost, _)| lost));
        (others_panicked && !panicked_first(rank)) || (gave_up && first.is_some_and(|first| first != rank))
    }

    fn first_missed(&mut self) -> Option<usize> {
        self.0.first_missed()
    }

    fn has_panicked(&mut self, rank: usize) -> bool {
        self.0.rank_state(rank) == RankState::Panicked
    }

    fn survives(&mut self) -> bool {
        self.0.survives()
    }

    fn fault(&mut self) -> Option<String> {
        (!self.0.is_intact()).then(|| MEMORY_LOST.into())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A job whose file is not sealed, as somebody else might make it.
    fn unsealed(ranks: usize) -> OwnedJob {
        let sealed = OwnedJob::create(ranks, &Settings::default()).expect("a job");
        let file = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let size = rustix::fs::fstat(sealed.memory.fd()).expect("it is open").st_size as u64;
        rustix::fs::ftruncate(&file, size).expect("it has holes");
        let mut roster = vec![0; sealed.memory.slots_offset()];
        assert_eq!(rustix::io::pread(sealed.memory.fd(), &mut roster[..], 0), Ok(roster.len()));
        assert_eq!(rustix::io::pwrite(&file, &roster, 0), Ok(roster.len()));
        OwnedJob { memory: JobMemory::from_fd(file, ranks).expect("the same job") }
    }

    #[test]
    fn a_child_of_a_rank_is_told_all_that_it_has_to_unset() {
        // No process has so many files.
        let error = spawned("rank=0,ranks=2,fd=2000000000").expect_err("it is not open").to_string();
        let names = ["BELLWETHER_JOB", "BELLWETHER_RANK", "BELLWETHER_SIZE"];
        assert!(error.contains(&format!("unset {}, {} and {}", names[0], names[1], names[2])), "{error}");
    }

    #[test]
    fn the_supervisor_survives_a_file_that_is_cut_under_it() {
        let mut job = unsealed(3);
        let cut = job.memory.fd().try_clone_to_owned().expect("one more");
        let mut spec = JobSpec::new("/bin/sh", ["-c", "sleep 30"], 3);
        spec.timeout = Some(Duration::from_secs(20));
        spec.stdin = launch::Stdin::Null;
        assert!(Roster(&job.memory).fault().is_none());
        rustix::fs::ftruncate(&cut, 0).expect("it is not sealed");
        let outcome = job.supervise(spec).expect("every Linux has a shell");
        assert!(matches!(outcome.cause, Some(launch::Cause::MemoryLost { .. })), "{outcome:?}");
        let _guarded = job.memory.guard();
        let said = Roster(&job.memory).fault().expect("the roster is gone");
        assert!(said.contains("memory of this job was cut"), "{said}");
    }
}

#[cfg(all(test, not(loom)))]
mod causes {
    use std::time::Duration;

    use super::*;
    use crate::bootstrap::launch::{Cause, Stdin};

    /// Runs a shell script as each rank of a job, whose memory `before` sets up: a shell never joins.
    fn run(ranks: usize, script: &str, before: impl FnOnce(&JobMemory)) -> Outcome {
        let mut job = OwnedJob::create(ranks, &Settings::default()).expect("a job");
        before(&job.memory);
        let mut spec = JobSpec::new("/bin/sh", ["-c", script], ranks);
        spec.timeout = Some(Duration::from_secs(20));
        spec.stdin = Stdin::Null;
        job.supervise(spec).expect("every Linux has a shell")
    }

    #[track_caller]
    fn assert_killed(outcome: &Outcome, rank: usize) {
        let Some(Cause::Failed { rank: named, ended: Ended::Signaled(libc::SIGKILL), .. }) = outcome.cause else {
            panic!("rank {rank} was killed, and the cause told is {:?}", outcome.cause);
        };
        assert_eq!(named, rank);
    }

    #[test]
    fn a_rank_killed_after_it_left_is_the_cause_though_another_was_missed_before() {
        let script = "[ $BELLWETHER_RANK = 2 ] && kill -9 $$; exit 0";
        let outcome = run(4, script, |job| {
            (0..4).for_each(|rank| job.leave(rank));
            job.miss(0);
        });
        assert_killed(&outcome, 2);
    }

    #[test]
    fn a_killed_rank_is_the_cause_though_others_panic_because_of_it() {
        // Behind rank 2: it is not started after that one's end, so whatever comes first, rank 2 is the cause.
        let script = "case $BELLWETHER_RANK in 2) kill -9 $$;; 3) sleep 0.2; exit 101;; *) exit 0;; esac";
        let outcome = run(4, script, |job| {
            job.leave(0);
            job.miss(0);
            job.mark_lost(2, Loss::Signaled(libc::SIGKILL));
            job.mark_lost(3, Loss::Panicked);
        });
        assert_killed(&outcome, 2);
    }

    #[track_caller]
    fn assert_exited(outcome: &Outcome, rank: usize, code: i32) {
        let Some(Cause::Failed { rank: named, ended: Ended::Exited(with), .. }) = outcome.cause else {
            panic!("rank {rank} has exited, and the cause told is {:?}", outcome.cause);
        };
        assert_eq!((named, with), (rank, code));
    }

    /// Rank 1 ends with `code`, and rank 0 of a panic. In this order: no rank is started after one has failed.
    fn beside_a_panic(code: i32, before: impl FnOnce(&JobMemory)) -> Outcome {
        let script = format!("case $BELLWETHER_RANK in 1) exit {code};; *) sleep 0.2; exit 101;; esac");
        run(2, &script, |job| {
            before(job);
            job.mark_lost(0, Loss::Panicked);
        })
    }

    /// Whether ranks 0 and 1 count as consequences if rank 0 ended of a panic: the order in which their processes end does not matter.
    fn are_consequences(code: i32, before: impl FnOnce(&JobMemory)) -> [bool; 2] {
        let job = OwnedJob::create(2, &Settings::default()).expect("a job");
        before(&job.memory);
        job.memory.mark_lost(0, Loss::Panicked);
        [(0, 101), (1, code)].map(|(rank, code)| Roster(&job.memory).is_consequence(rank, &Ended::Exited(code)))
    }

    #[test]
    fn a_rank_is_the_cause_though_others_panic_because_it_is_gone() {
        let exited = |job: &JobMemory| {
            job.mark_lost(1, Loss::Exited(3));
            job.begin_to_panic(0, true);
        };
        assert_exited(&beside_a_panic(3, exited), 1, 3);
        assert_eq!(are_consequences(3, exited), [true, false]);
        let left = |job: &JobMemory| {
            job.leave(1);
            job.miss(1);
            job.begin_to_panic(0, true);
        };
        assert_exited(&beside_a_panic(1, left), 1, 1);
        assert_eq!(are_consequences(1, left), [true, false]);
        let outcome = beside_a_panic(0, left);
        assert!(matches!(outcome.cause, Some(Cause::LeftEarly { rank: 1, .. })), "{:?}", outcome.cause);
    }

    #[test]
    fn a_rank_that_panicked_before_another_was_gone_is_the_cause() {
        let outcome = beside_a_panic(3, |job| job.begin_to_panic(0, false));
        assert_exited(&outcome, 0, 101);
        let outcome = beside_a_panic(1, |job| {
            job.begin_to_panic(0, false);
            job.leave(1);
        });
        assert_exited(&outcome, 0, 101);
    }

    #[test]
    fn a_rank_that_panics_of_its_own_is_the_cause_though_another_was_missed_or_caught_a_panic() {
        let outcome = beside_a_panic(0, |job| {
            job.leave(1);
            job.miss(1);
            job.begin_to_panic(0, false);
        });
        assert_exited(&outcome, 0, 101);
        let outcome = beside_a_panic(1, |job| {
            job.begin_to_panic(1, false);
            job.begin_to_panic(0, false);
        });
        assert_exited(&outcome, 0, 101);
    }
}
