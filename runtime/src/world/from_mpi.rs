//! Starting over MPI: the ranks of mpirun, or of a communicator that the program brings.

use ::mpi::ffi::MPI_Comm;
use ::mpi::traits::{AsRaw, Communicator};

use super::{Builder, World};
use crate::bootstrap::mpi::{self, Session};
use crate::error::{Error, Placed, Result};
use crate::settings::{Settings, ignored_ranks};
use crate::transport::providers::device_kind;

impl World {
    /// Starts a world of the ranks of `communicator`, in the same order, in a program that uses MPI itself.
    ///
    /// Collective over the communicator, which may be any part of `MPI_COMM_WORLD`; a program may have several worlds,
    /// in turn or at a time. MPI is called only while this runs, on a private duplicate, from this thread:
    /// `MPI_THREAD_SERIALIZED` is enough, and `MPI_THREAD_FUNNELED` in the main thread. The world does not need MPI
    /// afterwards, nor does it finalise it. While a rank waits inside MPI it delivers no messages of this world, and
    /// does not notice that a peer is lost; rsmpi's `Universe` waits so for all ranks when it is dropped. On several hosts
    /// the first rank of each, when it drops the world, waits up to 10 s for the others to leave theirs.
    ///
    /// The world has the communicator's ranks: `BELLWETHER_RANKS` has no effect here, and rank 0 warns of another number there.
    ///
    /// # Errors
    /// As [`World::start`]; [`Error::Mpi`] if a call into MPI fails; [`Error::Start`] if ranks are on several hosts without a network;
    /// [`Error::InvalidArgument`] for an inter-communicator; [`Error::Agreed`] on all ranks if one cannot share memory.
    ///
    /// # Examples
    /// ```no_run
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::World;
    /// use mpi::Threading;
    ///
    /// let (universe, _) = mpi::initialize_with_threading(Threading::Serialized).expect("MPI was not initialised before");
    /// let world = World::from_mpi(&universe.world())?;
    /// println!("rank {} of {}", world.rank(), world.size());
    /// world.finish()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn from_mpi<C: Communicator + AsRaw<Raw = MPI_Comm>>(communicator: &C) -> Result<World> {
        World::builder().start_on(communicator)
    }
}

impl Builder {
    /// Starts the world on the ranks of `communicator`; see [`World::from_mpi`]. Collective over it.
    ///
    /// # Errors
    /// As [`World::from_mpi`]; [`Error::RanksDiffer`] if a rank registered other handlers.
    #[track_caller]
    pub fn start_on<C: Communicator + AsRaw<Raw = MPI_Comm>>(self, communicator: &C) -> Result<World> {
        let settings = self.chosen_settings();
        // SAFETY: rsmpi's communicators are valid while they live, and live only while MPI is initialised.
        let joined = unsafe { mpi::join(communicator.as_raw(), settings, device_kind) }.placed()?;
        let world = self.enter_joined(joined).placed()?;
        let asked = std::env::var(crate::bootstrap::RANKS_VARIABLE).ok();
        if world.rank() == 0
            && let Some(warning) = ignored_ranks(asked.as_deref(), world.size())
        {
            eprintln!("warning: {warning}");
        }
        Ok(world)
    }

    pub(super) fn start_over_mpi(self, mut session: Session, settings: Result<Settings>) -> Result<World> {
        match session.join(settings, device_kind).and_then(|joined| self.enter_joined(joined)) {
            Ok(mut world) => {
                *world.mpi = Some(session);
                Ok(world)
            }
            Err(error) => {
                // Except where this rank is the only one, the others may be anywhere.
                if !matches!(error, Error::StartedApart { .. }) {
                    session.abandon();
                }
                Err(error)
            }
        }
    }
}
