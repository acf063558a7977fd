//! What the environment says about the job this process is part of.

use super::Way;
use super::pmi::Kind;
use crate::error::{Error, Result};
use crate::settings::Join;

/// Variables that tell how many tasks a launcher started, and what to do if we came up alone.
const TASKS: &[(&str, &str)] = &[
    (
        "OMPI_COMM_WORLD_SIZE",
        "start with a mpirun that serves PMIx (Open MPI 4 or newer), build with `--features mpi` to join mpirun's ranks by its MPI, or \
         start with `bellwether run -n N` instead of mpirun",
    ),
    (
        "PMI_SIZE",
        "start with a launcher that serves PMI-1 (MPICH's mpiexec), build with `--features mpi` to join the launcher's ranks by its MPI, \
         or start with `bellwether run -n N` instead",
    ),
    (
        "SLURM_NTASKS",
        "inside a job script start with `srun --mpi=pmix`, `srun --mpi=pmi2` or `bellwether run -n N`; under srun give `--mpi=pmix` or \
         `--mpi=pmi2`, whichever `srun --mpi=list` has; or set BELLWETHER_RANKS=1 for one rank alone",
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

/// How to start where neither our launcher nor the user says how many ranks.
pub(super) fn way(join: Join) -> Result<Way> {
    if let Some(kind) = Kind::chosen(join)? {
        return Ok(Way::Launched(kind));
    }
    #[cfg(feature = "mpi")]
    if started_by_mpi() {
        return Ok(Way::Mpi);
    }
    if cfg!(not(feature = "mpi")) && join == Join::Mpi {
        return Err(Error::Start("BELLWETHER_JOIN=mpi: this program was built without the feature `mpi`".into()));
    }
    if let Some(kind) = Kind::found(|name| std::env::var(name).ok()) {
        return Ok(Way::Launched(kind));
    }
    match tasks() {
        Some((variable, value, advice)) => Err(Error::StartedApart { variable, value, advice: advice.into() }),
        None => Ok(Way::Alone),
    }
}

/// What it means that the launcher's exchange does not work: nothing, if there is one task.
pub(super) fn without(kind: Kind, error: Error) -> Result<()> {
    let said = |name: &str| std::env::var(name).ok().and_then(|value| value.trim().parse::<usize>().ok());
    match tasks() {
        Some((variable, value, advice)) => {
            Err(Error::StartedApart { variable, value, advice: format!("{error}; {advice}").into() })
        }
        // Somebody says that it is one.
        None if TASKS.iter().any(|(variable, _)| said(variable) == Some(1)) => {
            tracing::warn!(%error, "the launcher started one rank, which runs alone: its {} does not work", kind.name());
            Ok(())
        }
        None => Err(error),
    }
}

/// Checks how many ranks an exchange has against what its launcher says in the environment.
pub(super) fn check_size(kind: Kind, ranks: usize) -> Result<()> {
    let variable = match kind {
        Kind::Pmi1 | Kind::Pmi2 => "PMI_SIZE",
        Kind::Pmix => "OMPI_COMM_WORLD_SIZE",
    };
    match std::env::var(variable) {
        Ok(said) if said.trim().parse() != Ok(ranks) => Err(Error::Start(format!(
            "{}: the launcher's server says that there are {ranks} ranks, and {variable}={said}",
            kind.name()
        ))),
        _ => Ok(()),
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
                     `srun --mpi=pmix`"
                .into(),
        }),
        _ => Ok(()),
    }
}
