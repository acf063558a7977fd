//! What the environment says about the job this process is part of.

use super::Way;
use crate::error::{Error, Result};

/// Variables that tell how many tasks a launcher started, and what to do if we came up alone.
const TASKS: &[(&str, &str)] = &[
    (
        "OMPI_COMM_WORLD_SIZE",
        "build with `--features mpi` to join mpirun's ranks, or start with `bellwether run -n N` instead of mpirun",
    ),
    (
        "PMI_SIZE",
        "build with `--features mpi` to join the launcher's ranks, or start with `bellwether run -n N` instead",
    ),
    (
        "SLURM_NTASKS",
        if cfg!(feature = "mpi") {
            "inside a job script start with `srun --mpi=pmix` or `bellwether run -n N`; under srun give `--mpi=pmix`, or \
             what else of `srun --mpi=list` the MPI was built for; or set BELLWETHER_RANKS=1 for one rank alone"
        } else {
            "inside a job script start with `bellwether run -n N`; under srun build with `--features mpi` and start \
             with `srun --mpi=pmix`; or set BELLWETHER_RANKS=1 for one rank alone"
        },
    ),
];

/// Set for their tasks by the launchers whose ranks MPI can join: Open MPI, PMIx, PMI-1 and -2, MVAPICH, Intel MPI.
#[cfg(feature = "mpi")]
const PLACES: &[&str] =
    &["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MV2_COMM_WORLD_SIZE"];

/// Whether an MPI launcher started this process.
#[cfg(feature = "mpi")]
fn started_by_mpi() -> bool {
    PLACES.iter().any(|name| std::env::var_os(name).is_some())
}

/// The first of [`TASKS`] that says more than one.
fn tasks() -> Option<(&'static str, usize, &'static str)> {
    TASKS.iter().find_map(|(variable, advice)| {
        let value: usize = std::env::var(variable).ok()?.trim().parse().ok()?;
        (value > 1).then_some((*variable, value, *advice))
    })
}

/// How to start where neither our launcher nor the user says.
pub(super) fn way() -> Result<Way> {
    #[cfg(feature = "mpi")]
    if started_by_mpi() {
        return Ok(Way::Mpi);
    }
    match tasks() {
        Some((variable, value, advice)) => Err(Error::StartedApart { variable, value, advice }),
        None => Ok(Way::Alone),
    }
}

/// Checks what MPI joined against what the environment says.
#[cfg(feature = "mpi")]
pub(super) fn check_joined(ranks: usize) -> Result<()> {
    match tasks() {
        Some((variable, value, _)) if value != ranks && ranks == 1 => Err(Error::StartedApart {
            variable,
            value,
            advice: "MPI could not join the tasks: use the mpirun of the MPI this program was built with, or \
                     `srun --mpi=pmix`",
        }),
        _ => Ok(()),
    }
}
