//! Joining the ranks of mpirun and srun without MPI, through the launcher's own exchange: PMI-1 (`pmi1`), PMI-2 (`pmi2`) or
//! PMIx (`pmix`).
//!
//! Each of them is reduced to `Exchange`: a rank puts texts under keys, waits until all ranks have come to a fence, and then gets what
//! others put before it. `Entries` carries a meeting over that exchange. Each of N ranks puts an entry of a few hundred bytes. Only
//! rank 0 reads all N entries, and combines them into one entry, so that N ranks send O(N) requests.

mod entries;
mod place;
mod pmi1;
mod pmi2;
mod pmix;
#[cfg(test)]
mod tests;
pub(super) mod wire;

use std::os::unix::net::UnixListener;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use self::entries::Entries;
use super::meeting::{self, DeviceKind, Joined};
use super::surroundings::{self, Get};
use crate::error::{Error, Result};
use crate::settings::{Join, Settings};

/// How long the launcher's server may take for an answer that waits for no other rank.
const ANSWER: Duration = Duration::from_secs(30);
/// The name, in errors, of the wait for such an answer.
const SILENT: &str = "waiting for an answer of the launcher that started this rank";
/// The name, in errors, of the wait for other ranks.
const WAITING: &str = "joining the launcher's ranks: waiting for all of them (BELLWETHER_JOIN_LIMIT sets how long)";
/// The field by which Bellwether's own server of PMI-1 asks a rank for the one that was missed first, and in which a rank that leaves
/// answers. The launcher has no memory in common with ranks on other hosts.
pub(super) const MISSED: &str = "bellwether_missed";
/// The field in which that server says, in place of the end of a fence, which rank has ended, and so never enters one; and those in which it
/// says how: the signal that ended it, or its exit code.
pub(super) const LOST: &str = "bellwether_lost";
pub(super) const KILLED: &str = "bellwether_killed";
pub(super) const EXITED: &str = "bellwether_exited";
/// The name, in errors, of what a rank does when it hears that another one has ended.
const JOINING: &str = "joining the launcher's ranks";
/// How long it may take to let a rank go. The job's work is done by then.
const FAREWELL: Duration = Duration::from_secs(5);

/// A launcher's exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// MPICH's hydra and its relatives.
    Pmi1,
    /// Slurm's plug-in `pmi2`.
    Pmi2,
    /// Open MPI's mpirun, and Slurm's plug-in `pmix`.
    Pmix,
}

impl Kind {
    /// As the setting and the errors call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Pmi1 => "pmi1",
            Kind::Pmi2 => "pmi2",
            Kind::Pmix => "pmix",
        }
    }

    /// Which one the launcher has left in the environment, as `get` reads it; `inherited` says whether `PMI_FD` is an open socket.
    pub(super) fn found(get: Get<'_>, inherited: impl Fn(&str) -> bool) -> Option<Kind> {
        let has = |name| get(name).is_some();
        let by_hydra = has("MPI_LOCALNRANKS");
        let at_port = has("PMI_PORT") && has("PMI_ID");
        if has("PMIX_NAMESPACE") && has("PMIX_RANK") {
            // A launcher inside another one leaves the variables of that, but mpirun closes the socket. At a port there is none to tell.
            let of_one = get("OMPI_COMM_WORLD_SIZE").is_none_or(|size| size.trim() == "1");
            let is_inside = by_hydra && get("PMI_FD").map_or(at_port && of_one, |fd| inherited(&fd));
            return Some(if is_inside { Kind::Pmi1 } else { Kind::Pmix });
        }
        // Hydra may start its tasks through Slurm: they have Slurm's variables too, and speak to hydra.
        let by_slurm = has("SLURM_STEP_ID") && !by_hydra;
        match (has("PMI_FD"), by_slurm) {
            (true, true) => Some(Kind::Pmi2),
            (true, false) => Some(Kind::Pmi1),
            (false, _) => at_port.then_some(Kind::Pmi1),
        }
    }

    fn of(join: Join) -> Option<Kind> {
        match join {
            Join::Auto | Join::Mpi => None,
            Join::Pmi1 => Some(Kind::Pmi1),
            Join::Pmi2 => Some(Kind::Pmi2),
            Join::Pmix => Some(Kind::Pmix),
        }
    }

    /// What the setting says, if it names an exchange.
    ///
    /// # Errors
    /// [`Error::Start`] if the launcher has left nothing of the kind.
    pub(super) fn chosen(join: Join) -> Result<Option<Kind>> {
        let Some(kind) = Kind::of(join) else { return Ok(None) };
        let is_set = |name| std::env::var_os(name).is_some();
        let (there, advice) = match kind {
            Kind::Pmi1 => (is_set("PMI_FD") || is_set("PMI_PORT"), "PMI_FD; start with MPICH's `mpiexec`"),
            // A fence of hydra's PMI-2 waits for nobody: only the gets behind it do. Its PMI-1 has a fence.
            Kind::Pmi2 => (
                is_set("PMI_FD") && is_set("SLURM_STEP_ID") && !is_set("MPI_LOCALNRANKS"),
                "PMI_FD and is Slurm; start with `srun --mpi=pmi2`",
            ),
            Kind::Pmix => {
                (is_set("PMIX_NAMESPACE"), "PMIX_NAMESPACE; start with Open MPI's `mpirun`, or `srun --mpi=pmix`")
            }
        };
        if there {
            return Ok(Some(kind));
        }
        Err(Error::Start(format!("BELLWETHER_JOIN={} needs a launcher that sets {advice}", kind.name())))
    }
}

/// Texts under keys, which a launcher's server brings from rank to rank.
pub(super) trait Exchange: Send {
    /// This rank's number.
    fn rank(&self) -> usize;
    /// How many there are, above that number.
    fn size(&self) -> usize;
    /// Most bytes of a value.
    fn longest(&self) -> usize;
    /// Puts `value`, of at most [`Exchange::longest`] bytes and only letters and digits, under a key that no rank has put before.
    /// Others see it after the next fence.
    fn put(&mut self, key: &str, value: &str) -> Result<()>;
    /// Enters a fence. Only [`Exchange::fence_is_done`] may follow, until it says yes.
    fn begin_fence(&mut self) -> Result<()>;
    /// Whether all ranks have entered it, within `wait`.
    fn fence_is_done(&mut self, wait: Duration) -> Result<bool>;
    /// The value that rank `from` put under `key` before the last fence.
    fn get(&mut self, from: usize, key: &str) -> Result<String>;
    /// Whether the server asks which rank was missed first. It is our own launcher: to leave there does not mean that this process will
    /// return 0.
    fn asks_missed(&self) -> bool {
        false
    }
    /// Notes which rank was missed first, for a server that asks for it.
    fn note_missed(&mut self, _rank: usize) {}
    /// Tells the server that this rank has done its work. Waits for no other rank.
    fn leave(&mut self, limit: Duration) -> Result<()>;
}

/// A connection to the launcher's server. Dropping it tells the server that this rank ends as it should.
pub struct Session {
    kind: Kind,
    exchange: Option<Box<dyn Exchange>>,
    gave_up: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.kind.name())
    }
}

/// What became of it when this process joined a launcher's ranks. The server lets a process join once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Never,
    /// It is the only one.
    Alone,
    Joined,
}

static BEFORE: Mutex<Before> = Mutex::new(Before::Never);

/// The place among the launcher's ranks, while this process lives.
static PLACE: OnceLock<UnixListener> = OnceLock::new();

impl Session {
    /// Connects to the launcher's server; `None` if the launcher started no other rank, as often as it is called.
    ///
    /// # Errors
    /// [`Error::StartedApart`] with the fault, if the launcher says that it started several ranks; [`Error::Start`] if no variable
    /// gives the number, or if this process has joined before, or another one has joined in its place.
    pub fn open(kind: Kind) -> Result<Option<Session>> {
        let mut before = BEFORE.lock().expect("nothing panics while it is locked");
        match *before {
            Before::Never => {}
            Before::Alone => return Ok(None),
            Before::Joined => {
                return Err(Error::Start(format!(
                    "this process has joined the launcher's ranks by {} before, and can do so once; start the world once in a program",
                    kind.name()
                )));
            }
        }
        let place = place::take(kind)?;
        *before = Before::Joined;
        let exchange: Result<Box<dyn Exchange>> = match kind {
            Kind::Pmi1 => pmi1::Pmi1::from_env(ANSWER).map(|it| Box::new(it) as Box<_>),
            Kind::Pmi2 => pmi2::Pmi2::from_env(ANSWER).map(|it| Box::new(it) as Box<_>),
            Kind::Pmix => pmix::Pmix::connect(ANSWER).map(|it| Box::new(it) as Box<_>),
        };
        match exchange {
            Ok(exchange) => {
                surroundings::check_size(kind, exchange.size(), &surroundings::variable)?;
                let is_one = exchange.size() == 1;
                let session = Session { kind, exchange: Some(exchange), gave_up: false };
                if !is_one {
                    if let Some(place) = place {
                        PLACE.get_or_init(|| place);
                    }
                    return Ok(Some(session));
                }
            }
            Err(error) => surroundings::without(kind, error)?,
        }
        *before = Before::Alone;
        Ok(None)
    }

    /// Joins the job of all ranks. Collective, so a rank without good settings comes too, and brings its error.
    ///
    /// # Errors
    /// [`Error::Start`] if the server closes the connection or its answers make no sense; [`Error::TimedOut`] if it says nothing, or other
    /// ranks do not come within `BELLWETHER_JOIN_LIMIT`; what the other ways of starting may fail with.
    pub fn join(&mut self, settings: Result<Settings>, kind: DeviceKind) -> Result<Joined> {
        let exchange = self.exchange.as_mut().expect("kept until the session is over");
        let limit =
            settings.as_ref().map_or_else(|_| Settings::joining_from_env().join_limit, |settings| settings.join_limit);
        meeting::meet(&mut Entries::new(&mut **exchange, limit), settings, kind)
    }

    /// Notes that `rank` left while others needed it, for the launcher: as
    /// [`JobMemory::first_missed`](crate::membership::JobMemory::first_missed).
    pub fn note_missed(&mut self, rank: usize) {
        if let Some(exchange) = &mut self.exchange {
            exchange.note_missed(rank);
        }
    }

    /// Notes that this rank panics because another rank is gone.
    pub fn note_gave_up(&mut self) {
        self.gave_up = true;
    }

    /// Leaves without a word: the launcher then ends the other ranks, as far as it does so, when this process ends.
    pub fn abandon(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            std::mem::forget(exchange);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(mut exchange) = self.exchange.take() else { return };
        // A rank that gives up, by a panic or by an error, leaves: our launcher names the one because of which it does.
        let leaves = !std::thread::panicking() || self.gave_up && exchange.asks_missed();
        if !leaves {
            std::mem::forget(exchange);
        } else if let Err(error) = exchange.leave(FAREWELL) {
            tracing::warn!(%error, "the launcher could not be told that this rank ends");
        }
    }
}

/// An error in an answer of the launcher's server.
fn wrong(kind: Kind, what: impl std::fmt::Display) -> Error {
    Error::Start(format!("{}: {what}", kind.name()))
}
