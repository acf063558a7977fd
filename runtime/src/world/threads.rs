//! Ranks as threads of this process: a whole SPMD program inside one test.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use super::start::MappedRank;
use super::{Builder, World};
use crate::bootstrap::results::Results;
use crate::error::{Error, Loss, Result};
use crate::membership::JobMemory;
use crate::settings::Settings;

/// Runs `program` on `ranks` ranks that are threads of this process, and returns what each returned, in order.
///
/// The same code as between processes runs on the same memory; only the ranks share an address space. Several such
/// worlds may run at the same time.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] for 0 ranks; what [`World::start`] returns, of the first rank that failed to start;
/// [`crate::Error::RanksDiffer`] if ranks that left without [`World::finish`] had got different results from their last reductions: see
/// [`World::allreduce`]. What the ranks returned is lost then.
///
/// # Panics
/// With the first panic of a rank, after all have ended. The others see [`crate::Error::PeerLost`].
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// let ranks = bellwether::threads(4, |world| world.rank())?;
/// assert_eq!(ranks, [0, 1, 2, 3]);
/// # Ok::<(), bellwether::Error>(())
/// ```
pub fn threads<R: Send>(ranks: usize, program: impl Fn(&World) -> R + Sync) -> Result<Vec<R>> {
    Threads::new(ranks).run(program)
}

/// Ranks as threads, with settings or handlers.
#[derive(Debug, Clone)]
pub struct Threads {
    ranks: usize,
    settings: Settings,
    deadline: Option<Duration>,
}

impl Threads {
    /// `ranks` ranks with default settings. The environment is not looked at.
    pub fn new(ranks: usize) -> Threads {
        Threads { ranks, settings: Settings::default(), deadline: None }
    }

    /// Uses these settings on every rank.
    pub fn settings(mut self, settings: Settings) -> Threads {
        self.settings = settings;
        self
    }

    /// If the ranks have not ended after so long: tells on standard error where each is, and ends their waits with
    /// [`crate::Error::PeerLost`]. A rank that does not wait goes on; if the job has not ended some seconds later, the
    /// process is aborted.
    pub fn deadline(mut self, limit: Duration) -> Threads {
        self.deadline = Some(limit);
        self
    }

    /// Runs `program` on every rank; see [`threads`].
    ///
    /// # Errors
    /// As [`threads`].
    pub fn run<R: Send>(&self, program: impl Fn(&World) -> R + Sync) -> Result<Vec<R>> {
        self.build(|builder| builder.start().map(|world| program(&world)))?.into_iter().collect()
    }

    /// Runs `program` on every rank with a builder, so that each rank can register handlers before it starts.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for 0 ranks; if the memory cannot be made; [`crate::Error::Start`] if the system gives
    /// a rank no thread: then those that have one have been ended; [`crate::Error::RanksDiffer`] as [`threads`].
    pub fn build<R: Send>(&self, program: impl Fn(Builder) -> R + Sync) -> Result<Vec<R>> {
        let results = Results::new(self.ranks);
        self.run_each(&|rank, builder| results.put(rank, program(builder)))?;
        Ok(results.into_each().map(|result| result.expect("every rank returned")).collect())
    }

    /// As [`Threads::build`]. Not generic: a copy for each program made test programs a fifth longer.
    fn run_each(&self, program: &(dyn Fn(usize, Builder) + Sync)) -> Result<()> {
        let first = MappedRank::of(0, JobMemory::create(self.ranks, &self.settings)?, &self.settings)?;
        first.job.set_supervised();
        first.job.keep_error_at_end();
        let outcomes = std::thread::scope(|scope| -> Result<Vec<_>> {
            let rank = |rank| {
                let place = MappedRank { rank, ..first.clone() };
                let settings = self.settings.clone();
                move || {
                    let (job, node) = (place.job.clone(), Arc::clone(&place.node));
                    let outcome = catch_unwind(AssertUnwindSafe(|| program(rank, Builder::at(place, settings))));
                    // A rank that never started, or whose world is gone already, must not be waited for.
                    // A forked child that comes here is not the rank.
                    if node.is_own() {
                        job.mark_lost(rank, if outcome.is_err() { Loss::Panicked } else { Loss::Exited(0) });
                    }
                    outcome
                }
            };
            let start =
                |number| std::thread::Builder::new().name(format!("rank {number}")).spawn_scoped(scope, rank(number));
            let watch = self.deadline.map(|limit| Watch::start(Arc::clone(&first.job), limit)).transpose()?;
            let mut refused = None;
            let mut handles = Vec::with_capacity(self.ranks);
            for number in 0..self.ranks {
                match start(number) {
                    Ok(handle) => handles.push(handle),
                    Err(error) => {
                        // Ranks that have started must not wait for this rank, nor for those after it.
                        (number..self.ranks).for_each(|rank| first.job.mark_lost(rank, Loss::Unknown));
                        refused = Some(no_thread(&format!("rank {number} of {}", self.ranks), &error));
                        break;
                    }
                }
            }
            let outcomes: Vec<_> = handles.into_iter().map(|handle| handle.join().unwrap_or_else(Err)).collect();
            drop(watch);
            match refused {
                // The panic of a rank is told first.
                Some(error) if outcomes.iter().all(std::result::Result::is_ok) => Err(error),
                _ => Ok(outcomes),
            }
        })?;
        match outcomes.into_iter().find_map(std::result::Result::err) {
            Some(panic) => resume_unwind(panic),
            None => first.job.error_at_end().map_or(Ok(()), Err),
        }
    }
}

/// After its deadline a job may take so long to end.
const GRACE: Duration = Duration::from_secs(5);

/// Ends a job that lives longer than this.
struct Watch {
    /// Its end is the end of the watch.
    #[expect(dead_code, reason = "dropping it says that the job has ended")]
    alive: Sender<()>,
}

impl Watch {
    fn start(job: Arc<JobMemory>, limit: Duration) -> Result<Watch> {
        let (alive, ended) = mpsc::channel::<()>();
        let name = std::thread::current().name().unwrap_or("a job").to_owned();
        let overdue = move |limit| ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        let watch = move || {
            if !overdue(limit) {
                return;
            }
            let places: Vec<String> =
                (0..job.ranks()).map(|rank| format!("rank {rank} {}", job.whereabouts(rank))).collect();
            places.iter().for_each(|place| eprintln!("after {limit:?}, {place}"));
            (0..job.ranks()).for_each(|rank| job.mark_lost(rank, Loss::Overdue));
            if overdue(GRACE) {
                // Past the test harness, which keeps what is printed until the test ends.
                let _ = writeln!(
                    std::io::stderr(),
                    "{name}: {GRACE:?} after its deadline of {limit:?} a rank neither waits nor returns, and cannot be \
                     ended alone: this process is aborted. At the deadline: {}",
                    places.join("; ")
                );
                std::process::abort();
            }
        };
        let started = std::thread::Builder::new().name("deadline".into()).spawn(watch);
        started.map(|_| Watch { alive }).map_err(|error| no_thread("the deadline", &error))
    }
}

fn no_thread(what: &str, error: &std::io::Error) -> Error {
    Error::Start(format!(
        "the system gives {what} no thread: {error}; start fewer ranks, or raise the limits on threads and memory (`ulimit -u`, \
         `ulimit -v`, RUST_MIN_STACK)"
    ))
}
