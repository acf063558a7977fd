//! The description of a job, and the calls by which its owner learns of events while it runs.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::signals::signal_name;

/// A job to start: one program, `ranks` times, on this machine.
///
/// ```
/// use bellwether_runtime::bootstrap::launch::JobSpec;
/// let mut job = JobSpec::new("/bin/true", ["--help"], 4);
/// job.tag = true;
/// ```
#[derive(Debug, Clone)]
pub struct JobSpec<'a> {
    /// The name at the start of messages, before a colon.
    pub name: String,
    /// The program: a path when it contains a `/`, else a name looked up in `PATH`.
    pub program: OsString,
    /// Its arguments, without the program's own name.
    pub args: Vec<OsString>,
    /// How many copies to start, at least 1.
    pub ranks: usize,
    /// Which CPUs each rank may run on.
    pub bind: Bind,
    /// Whether every line a rank prints begins with `[rank] `.
    pub tag: bool,
    /// The job is ended when it has run this long.
    pub timeout: Option<Duration>,
    /// How long the other ranks may go on by themselves after a rank has failed.
    pub grace: Duration,
    /// Environment variables for every rank, added to this process's own.
    pub extra_env: Vec<(OsString, OsString)>,
    /// A descriptor every rank inherits under the same number.
    pub inherit: Option<BorrowedFd<'a>>,
    /// Whether the death of a rank is told where the others go on.
    pub tells_deaths: bool,
    /// Where rank 0 reads its standard input from.
    pub stdin: Stdin,
    /// This process has no other business than the job: it adopts what ranks leave behind, even what
    /// has made itself a daemon, and ends that with the job. It may have no children of its own
    /// started meanwhile, since those would be ended too.
    pub adopt: bool,
}

impl<'a> JobSpec<'a> {
    /// A job with nothing special about it: not bound, not tagged, no time limit, 500 ms of grace.
    pub fn new<A: Into<OsString>>(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
        ranks: usize,
    ) -> JobSpec<'a> {
        JobSpec {
            name: "bellwether".into(),
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            ranks,
            bind: Bind::None,
            tag: false,
            timeout: None,
            grace: Duration::from_millis(500),
            extra_env: Vec::new(),
            inherit: None,
            tells_deaths: true,
            stdin: Stdin::FirstRank,
            adopt: false,
        }
    }
}

/// Which CPUs a rank may run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bind {
    /// The CPUs that this process may run on.
    #[default]
    None,
    /// Rank i on the i-th of those CPUs, starting over when there are more ranks than CPUs.
    Core,
}

/// Where rank 0 reads its standard input from. All other ranks read from `/dev/null`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stdin {
    /// From this process's standard input.
    #[default]
    FirstRank,
    /// From `/dev/null`, like the others.
    Null,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It returned from `main` or called `exit`, with this code.
    Exited(i32),
    /// This signal killed it.
    Signaled(i32),
}

impl Ended {
    /// Whether it ended with exit code 0.
    pub fn success(self) -> bool {
        self == Ended::Exited(0)
    }

    /// The exit status a shell would show: the code, or 128 plus the signal's number.
    pub fn status(self) -> i32 {
        match self {
            Ended::Exited(code) => code,
            Ended::Signaled(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Ended::Exited(code) => write!(f, "exit {code}"),
            Ended::Signaled(signal) => {
                write!(f, "killed by signal {signal} ({})", signal_name(signal))
            }
        }
    }
}

/// How far a rank got with joining the world, as its owner knows from the job's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// It never asked to join. Programs that do not use the runtime stay here.
    Absent,
    /// It is joining or has joined, and has not left.
    Joined,
    /// It left in good order.
    Left,
}

/// What the supervisor asks of, and tells, the owner of the job.
///
/// All calls come from the thread that called [`supervise`](super::supervise). They should return
/// within microseconds: nothing else is looked after meanwhile.
pub trait Hooks {
    /// Environment variables for this rank alone. Called once, just before the rank is started.
    fn rank_env(&mut self, rank: usize) -> Vec<(OsString, OsString)> {
        let _ = rank;
        Vec::new()
    }

    /// A rank's process has ended. Called at once, in the order of their deaths, before anything
    /// else is done about it; this is where its peers are told.
    fn rank_ended(&mut self, rank: usize, ended: &Ended) {
        let _ = (rank, ended);
    }

    /// How far the rank got with joining the world. Asked while the job runs and after a rank's end.
    fn membership(&mut self, rank: usize) -> Membership {
        let _ = rank;
        Membership::Absent
    }

    /// Where the rank is, in words that follow `rank 3 `. Asked when the job has run too long.
    fn whereabouts(&mut self, rank: usize) -> Option<String> {
        let _ = rank;
        None
    }

    /// Whether the rank, which ended like this, failed only because a peer had failed. Such a rank
    /// is not named as the first cause, even when its process ended before the peer's did.
    fn is_consequence(&mut self, rank: usize, ended: &Ended) -> bool {
        let _ = (rank, ended);
        false
    }

    /// The rank that others first gave up on because it had left them or was leaving. It is the cause even if it returned 0,
    /// where all that failed are consequences.
    fn first_missed(&mut self) -> Option<usize> {
        None
    }

    /// Whether this rank has panicked. Asked before [`Hooks::rank_ended`].
    fn has_panicked(&mut self, _rank: usize) -> bool {
        false
    }

    /// Whether the other ranks go on after the death of one. Asked at each death.
    fn survives(&mut self) -> bool {
        false
    }

    /// What has happened to the job as a whole that it cannot survive, in words. Asked once a second or more often.
    fn fault(&mut self) -> Option<String> {
        None
    }
}

/// Hooks of a job that has no memory in common: no environment is handed out, and ranks do not hear of deaths.
#[derive(Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// What became of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankEnd {
    /// How its process ended; `None` if the job ended before it was started.
    pub ended: Option<Ended>,
    /// How long its process lived.
    pub after: Duration,
    /// The signal the launcher had sent to end it, if it had.
    pub told_to_end: Option<i32>,
}

/// Why a job did not end well.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A rank died, or returned a code other than 0.
    Failed {
        /// The rank.
        rank: usize,
        /// Its process.
        pid: i32,
        /// How it ended.
        ended: Ended,
    },
    /// A rank returned 0 while others still counted on it.
    LeftEarly {
        /// The rank.
        rank: usize,
        /// Its process.
        pid: i32,
        /// Whether it had joined the world by then.
        joined: bool,
    },
    /// The job took longer than it was allowed.
    TimedOut {
        /// The limit.
        limit: Duration,
        /// The ranks that were still running.
        running: Vec<usize>,
    },
    /// The user sent this signal, and ranks ended because of the signal, the first of them like this.
    Signaled {
        /// The signal.
        signal: i32,
        /// What the job's exit status is.
        status: i32,
    },
    /// The connection to a host has ended while its ranks were running.
    HostLost {
        /// As the user calls it.
        host: String,
        /// How it ended, in words.
        why: String,
    },
    /// The memory that the ranks share is lost.
    MemoryLost {
        /// What has happened to the memory, in words.
        why: String,
    },
    /// Our standard output takes nothing more.
    OutputFailed {
        /// Why, as the system numbers it: `EPIPE` when its reader has gone.
        errno: i32,
    },
}

impl Cause {
    /// The exit status of a job that ended for this cause.
    pub fn status(&self) -> i32 {
        match self {
            Cause::Failed { ended, .. } => ended.status(),
            Cause::LeftEarly { .. } | Cause::HostLost { .. } | Cause::MemoryLost { .. } => 1,
            Cause::TimedOut { .. } => 124,
            Cause::Signaled { status, .. } => *status,
            Cause::OutputFailed { errno: libc::EPIPE } => 128 + libc::SIGPIPE,
            Cause::OutputFailed { .. } => 1,
        }
    }
}

/// How a job ended. The report about it has been printed on standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Why it failed; `None` when every rank ended with code 0, or where ranks [go on](Hooks::survives) after the death of others, when
    /// all that did not die ended with code 0.
    pub cause: Option<Cause>,
    /// What became of each rank.
    pub ranks: Vec<RankEnd>,
}

impl Outcome {
    /// The exit status for the process that ran the job: 0, or that of the first cause.
    pub fn status(&self) -> i32 {
        self.cause.as_ref().map_or(0, Cause::status)
    }
}
