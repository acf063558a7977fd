//! MPI as the bootstrap: it says who we are and carries the job's memory to all ranks, and is then no longer needed.
//!
//! Every call into MPI is made by one thread of a rank at a time, so `MPI_THREAD_MULTIPLE` is never asked for. All of
//! it happens on a private duplicate of the communicator, freed before [`Session::join`] returns: nothing here meets
//! the user's own messages, and no MPI call is made while the world runs.
//!
//! ```text
//! every rank       allgather: who is on which host             -> all see the same answer
//! leader           (first rank of a host) makes the host's memory, opens a socket
//! leader           broadcast on its host: the socket's name, or why there is none
//! its peers        take the descriptor from the socket (or from /proc, where there are no sockets)
//! every rank       allgather: did it work                      -> all fail, or none
//! and where there are several hosts
//! rank 0           listens; broadcast: where
//! other leaders    connect to it by TCP
//! every rank       allgather: did it work                      -> all fail, or none
//! ```

mod calls;
mod handover;
mod machine;

use ::mpi::ffi::{self, MPI_Comm};
use bytemuck::{Pod, Zeroable};

use self::calls::{Communicator, check, flag};
use self::handover::{Offer, Server};
use self::machine::Machine;
use super::surroundings;
use crate::error::{Error, Result};
use crate::membership::JobMemory;
use crate::membership::hosts::{HubAddress, HubListener, Link};
use crate::membership::nodes::Nodes;
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
        // SAFETY: MPI is not initialised; null pointers stand for no arguments. What is provided does not matter: this
        // thread becomes MPI's main thread and is the only one that calls it.
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

    /// Joins the job of all ranks of `MPI_COMM_WORLD`. Collective.
    ///
    /// # Errors
    /// [`Error::StartedApart`] if MPI has one rank and the launcher says more; as [`join`].
    pub fn join(&self, settings: Settings) -> Result<Joined> {
        // SAFETY: a session exists, so MPI is initialised and the world communicator is valid.
        let world = unsafe { Communicator::duplicate(ffi::RSMPI_COMM_WORLD)? };
        surroundings::check_joined(world.size()?)?;
        meet(world, Ok(settings))
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

/// A rank's part in a job that MPI has brought together.
#[derive(Debug)]
pub struct Joined {
    /// Our rank.
    pub rank: usize,
    /// The job.
    pub job: JobMemory,
    /// What this rank was set to.
    pub settings: Settings,
    /// Which host each rank runs on.
    pub nodes: Nodes,
    /// If there are several and this rank leads its own: the connections to the others.
    pub link: Option<Link>,
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
pub unsafe fn join(communicator: MPI_Comm, settings: Result<Settings>) -> Result<Joined> {
    check_thread()?;
    // SAFETY: the caller's promise.
    meet(unsafe { Communicator::duplicate(communicator)? }, settings)
}

fn meet(ours: Communicator, settings: Result<Settings>) -> Result<Joined> {
    let joined = share(&ours, settings);
    match &joined {
        // After an MPI error the others may be elsewhere, and freeing is collective.
        Err(Error::Mpi { .. }) => {}
        _ => ours.free()?,
    }
    joined
}

/// How one rank fared: nothing, or the beginning of what it has to say.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Outcome {
    length: u64,
    text: [u8; 504],
}

impl Outcome {
    fn of<T>(result: &Result<T>) -> Outcome {
        let mut outcome = Outcome::zeroed();
        if let Err(error) = result {
            let why = error.to_string();
            let shown = why.floor_char_boundary(outcome.text.len());
            outcome.text[..shown].copy_from_slice(&why.as_bytes()[..shown]);
            outcome.length = shown as u64;
        }
        outcome
    }

    fn check(&self, rank: usize) -> Result<()> {
        match (self.length as usize).min(self.text.len()) {
            0 => Ok(()),
            shown => Err(Error::Agreed { rank, why: String::from_utf8_lossy(&self.text[..shown]).into_owned() }),
        }
    }
}

/// What rank 0 tells the others.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Invitation {
    outcome: Outcome,
    offer: Offer,
}

fn share(ours: &Communicator, settings: Result<Settings>) -> Result<Joined> {
    let (rank, size) = (ours.rank()?, ours.size()?);
    let given = settings.as_ref().ok().and_then(|settings| settings.host.clone());
    let machines = ours.allgather(&Machine::here(given.as_deref()))?;
    let nodes = machine::hosts(&machines)?;
    let here = nodes.of(rank);
    let local: Vec<usize> = (0..size).filter(|other| nodes.of(*other) == here).collect();

    let on_host = if nodes.count() == 1 { None } else { Some(ours.split(here)?) };
    let on_node = on_host.as_ref().unwrap_or(ours);
    let mut invitation = Invitation::zeroed();
    let mut server = None;
    let joined = if rank == local[0] {
        let made = settings.and_then(|settings| {
            let job = JobMemory::create_on(size, &nodes, here, &settings)?;
            (server, invitation.offer) = Server::open(&job, local.len());
            Ok((job, settings))
        });
        invitation.outcome = Outcome::of(&made);
        on_node.broadcast(0, &mut invitation)?;
        made
    } else {
        on_node.broadcast(0, &mut invitation)?;
        invitation.outcome.check(local[0]).and_then(|()| {
            let settings = settings?;
            Ok((JobMemory::from_fd(invitation.offer.take()?, size)?, settings))
        })
    };

    let mut gathering = ours.begin_allgather(&Outcome::of(&joined))?;
    if let (Some(server), Ok((job, _))) = (server, &joined) {
        let pids = local[1..].iter().map(|other| machines[*other].pid()).collect();
        server.serve(job.fd(), pids, || gathering.test())?;
    }
    let outcomes = gathering.wait()?;
    if let Some(on_host) = on_host {
        on_host.free()?;
    }
    let (job, settings) = joined?;
    outcomes.iter().enumerate().try_for_each(|(rank, outcome)| outcome.check(rank))?;
    let link = if nodes.count() == 1 { None } else { connect(ours, rank, &nodes, rank == local[0])? };
    Ok(Joined { rank, job, settings, nodes, link })
}

/// What rank 0 tells the leaders of other hosts.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Call {
    outcome: Outcome,
    hub: HubAddress,
}

/// Connects the leaders of the hosts. Collective.
fn connect(ours: &Communicator, rank: usize, nodes: &Nodes, leads: bool) -> Result<Option<Link>> {
    let mut call = Call::zeroed();
    let mut listener = None;
    let host = nodes.of(rank);
    if rank == 0 {
        let opened = HubListener::bind().map(|opened| {
            call.hub = opened.1;
            listener = Some(opened.0);
        });
        call.outcome = Outcome::of(&opened);
        ours.broadcast(0, &mut call)?;
        opened?;
    } else {
        ours.broadcast(0, &mut call)?;
        call.outcome.check(0)?;
    }
    let called = if leads && rank != 0 { call.hub.call(host).map(|line| vec![line]) } else { Ok(Vec::new()) };
    let mut gathering = ours.begin_allgather(&Outcome::of(&called))?;
    let admitted = listener.map(|listener| listener.admit(nodes.count(), || gathering.test()));
    if let Some(Err(Error::Mpi { .. })) = admitted {
        return admitted.expect("just seen").map(|_| None);
    }
    let outcomes = gathering.wait()?;
    // The hub's own ranks must hear of it too, if it could not let others in.
    let mut hub = admitted.as_ref().map_or(Outcome::zeroed(), Outcome::of);
    ours.broadcast(0, &mut hub)?;
    let connections = admitted.unwrap_or(called)?;
    outcomes.iter().chain([&hub]).enumerate().try_for_each(|(place, outcome)| outcome.check(place % outcomes.len()))?;
    Ok(leads.then_some(Link { host, connections }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_of_a_rank_make_who_reads_them_panic() {
        let mut state = 3u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let mut bytes = vec![0u8; size_of::<Invitation>().max(2 * size_of::<Machine>())];
        for round in 0..2000 {
            bytes.fill_with(|| [0, 0xff, random()][round % 3]);
            let invitation: Invitation = bytemuck::pod_read_unaligned(&bytes[..size_of::<Invitation>()]);
            let _ = invitation.outcome.check(0);
            let machines: Vec<Machine> =
                bytes.chunks_exact(size_of::<Machine>()).take(2).map(bytemuck::pod_read_unaligned).collect();
            let _ = machine::hosts(&machines);
        }
        assert!(Outcome::of(&Ok(())).check(1).is_ok());
    }
}
