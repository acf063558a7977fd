//! MPI as the bootstrap: it gives this rank's number, carries the job's memory to all ranks, and is then no longer needed.
//!
//! Every call into MPI is made by one thread of a rank at a time, so `MPI_THREAD_MULTIPLE` is never asked for. All of
//! it happens on a private duplicate of the communicator, freed before [`Session::join`] returns: nothing here meets
//! the user's own messages, and no MPI call is made while the world runs.

mod calls;

use ::mpi::ffi::{self, MPI_Comm};
use bytemuck::Pod;

use self::calls::{Communicator, check, flag};
use super::meeting::machine::{self, Machine};
use super::meeting::{self, Carrier, Complaint, DeviceKind, Hosts, Joined, Outcome, first_complaint};
use super::surroundings;
use crate::error::{Error, Result};
use crate::settings::Settings;

/// MPI, initialised. Dropping it finalises MPI, if it was initialised here.
#[derive(Debug)]
pub struct Session {
    finalise: bool,
}

impl Session {
    /// Initialises MPI, unless the program has done so already.
    ///
    /// # Errors
    /// [`Error::Mpi`]; [`Error::Start`] if MPI has been finalised, or may only be called from another thread.
    pub fn initialise() -> Result<Session> {
        // SAFETY: these two may be called at any time.
        let (begun, over) = unsafe {
            (
                flag("MPI_Initialized", |flag| ffi::MPI_Initialized(flag))?,
                flag("MPI_Finalized", |flag| ffi::MPI_Finalized(flag))?,
            )
        };
        if over {
            return Err(Error::Start(
                "MPI has been finalised, and can be initialised only once in a process; for several worlds in turn \
                 initialise MPI in your program and use World::from_mpi"
                    .into(),
            ));
        }
        if begun {
            check_thread()?;
            return Ok(Session { finalise: false });
        }
        let mut provided = 0;
        // SAFETY: MPI is not initialised; null pointers stand for no arguments. The provided level of thread support
        // does not matter: this thread becomes MPI's main thread and is the only one that calls it.
        check("MPI_Init_thread", unsafe {
            ffi::MPI_Init_thread(
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                ffi::RSMPI_THREAD_SERIALIZED,
                &raw mut provided,
            )
        })?;
        let session = Session { finalise: true };
        // SAFETY: MPI is initialised, and nobody else has set a handler.
        check("MPI_Comm_set_errhandler", unsafe {
            ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN)
        })?;
        Ok(session)
    }

    /// Joins the job of all ranks of `MPI_COMM_WORLD`. Collective, so a rank without good settings comes too, and brings its error.
    ///
    /// # Errors
    /// [`Error::StartedApart`] if MPI has one rank and the launcher says more; as [`join`].
    pub fn join(&self, settings: Result<Settings>, kind: DeviceKind) -> Result<Joined> {
        // SAFETY: a session exists, so MPI is initialised and the world communicator is valid.
        let world = unsafe { Communicator::duplicate(ffi::RSMPI_COMM_WORLD)? };
        surroundings::check_joined(world.size()?)?;
        meet(world, settings, kind)
    }

    /// Leaves MPI as it is: `MPI_Finalize` waits for every rank, so it must not be called where one is gone. The
    /// launcher ends the other ranks when this process ends without it.
    pub fn abandon(&mut self) {
        self.finalise = false;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A rank that panics leaves the others where they are; see `abandon`.
        if self.finalise && !std::thread::panicking() {
            // SAFETY: initialised here, and finalised only here.
            if let Err(error) = check("MPI_Finalize", unsafe { ffi::MPI_Finalize() }) {
                tracing::warn!(%error, "MPI could not be finalized");
            }
        }
    }
}

/// MPI that a program has initialised itself may allow calls from its main thread only.
fn check_thread() -> Result<()> {
    let mut level = 0;
    // SAFETY: MPI is initialised.
    check("MPI_Query_thread", unsafe { ffi::MPI_Query_thread(&raw mut level) })?;
    // SAFETY: as above; the levels are ordered by the standard.
    let allowed = unsafe {
        level >= ffi::RSMPI_THREAD_SERIALIZED || flag("MPI_Is_thread_main", |flag| ffi::MPI_Is_thread_main(flag))?
    };
    if allowed {
        return Ok(());
    }
    Err(Error::Start(
        "MPI was initialised for calls from its main thread only, and this is another thread; start the world in \
         the main thread, or initialise MPI with MPI_THREAD_SERIALIZED"
            .into(),
    ))
}

/// Joins the job of all ranks of `communicator`. Collective over it, so a rank without good settings comes too, and
/// brings its error.
///
/// # Safety
/// `communicator` is a valid communicator of this process, and MPI is initialised.
///
/// # Errors
/// [`Error::Mpi`]; [`Error::InvalidArgument`] for an inter-communicator; [`Error::Start`] if ranks of one machine cannot
/// share memory; a rank's own error where it could not make or take the memory, or where hosts cannot reach each other, and
/// [`Error::Agreed`] on the other ranks.
pub unsafe fn join(communicator: MPI_Comm, settings: Result<Settings>, kind: DeviceKind) -> Result<Joined> {
    check_thread()?;
    // SAFETY: the caller's promise.
    meet(unsafe { Communicator::duplicate(communicator)? }, settings, kind)
}

fn meet(ours: Communicator, settings: Result<Settings>, kind: DeviceKind) -> Result<Joined> {
    let mut carrier = OverMpi { rank: ours.rank()?, size: ours.size()?, all: ours, on_host: None };
    let joined = meeting::meet(&mut carrier, settings, kind);
    match &joined {
        // After an MPI error the others may be elsewhere, and freeing is collective.
        Err(Error::Mpi { .. }) => {}
        _ => {
            if let Some(on_host) = carrier.on_host {
                on_host.free()?;
            }
            carrier.all.free()?;
        }
    }
    joined
}

/// MPI as the carrier of a meeting.
struct OverMpi {
    rank: usize,
    size: usize,
    all: Communicator,
    /// Where there are several hosts, the ranks of this one.
    on_host: Option<Communicator>,
}

impl Carrier for OverMpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn hosts(&mut self, mine: &Machine) -> Result<Hosts> {
        let machines = self.all.allgather(mine)?;
        let nodes = machine::hosts(&machines)?;
        let here = nodes.of(self.rank);
        let local: Vec<usize> = (0..self.size).filter(|other| nodes.of(*other) == here).collect();
        if nodes.count() > 1 {
            self.on_host = Some(self.all.split(here)?);
        }
        let pids = local[1..].iter().map(|other| machines[*other].pid()).collect();
        Ok(Hosts { nodes, local, pids })
    }

    fn broadcast<T: Pod>(&mut self, value: &mut T) -> Result<()> {
        self.all.broadcast(0, value)
    }

    fn broadcast_on_host<T: Pod>(&mut self, _: &Hosts, value: &mut T) -> Result<()> {
        self.on_host.as_ref().unwrap_or(&self.all).broadcast(0, value)
    }

    fn agree(&mut self, mine: &Outcome, meanwhile: impl FnOnce(&mut dyn FnMut() -> bool)) -> Result<Complaint> {
        let mut gathering = self.all.begin_allgather(mine)?;
        let mut broken = None;
        meanwhile(&mut || {
            gathering.test().unwrap_or_else(|error| {
                broken = Some(error);
                true
            })
        });
        match broken {
            Some(error) => Err(error),
            None => Ok(first_complaint(&gathering.wait()?)),
        }
    }
}
