//! What the environment says about the job that this process is part of.

use super::Way;
use super::pmi::{Kind, wire};
use crate::error::{Error, Result};
use crate::settings::Join;

/// Variables that give the number of tasks a launcher started, and the advice if this process has come up alone.
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
        if cfg!(feature = "mpi") {
            "start with `srun --mpi=pmix`, or with `srun --mpi=pmi2` and BELLWETHER_JOIN=pmi2 (alone it takes an MPI that was built for \
             it), whichever `srun --mpi=list` has; inside a job script `bellwether run -n N` does too; or set BELLWETHER_RANKS=1 for one \
             rank alone"
        } else {
            "inside a job script start with `srun --mpi=pmix`, `srun --mpi=pmi2` or `bellwether run -n N`; under srun give `--mpi=pmix` or \
             `--mpi=pmi2`, whichever `srun --mpi=list` has; or set BELLWETHER_RANKS=1 for one rank alone"
        },
    ),
];

/// Variables that launchers set for tasks that MPI can join: Open MPI, PMIx, PMI-1 and -2, MVAPICH, Intel MPI.
#[cfg(feature = "mpi")]
const PLACES: &[&str] =
    &["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MV2_COMM_WORLD_SIZE"];

/// Whether an MPI launcher started this process.
#[cfg(feature = "mpi")]
fn started_by_mpi() -> bool {
    PLACES.iter().any(|name| std::env::var_os(name).is_some())
}

/// SLURM_STEP_ID of the step in which salloc runs a shell, if Slurm is configured for that (`use_interactive_step`):
/// SLURM_INTERACTIVE_STEP of slurm.h.
const INTERACTIVE_STEP: &str = "4294967290";

/// Checks that this process may start `ranks` copies of itself: that no launcher started it as one rank of several. Each of these would
/// start a job of its own.
///
/// # Errors
/// [`Error::Start`] names the launcher's variable and those to unset.
pub(super) fn check_copies(ranks: usize, get: Get<'_>) -> Result<()> {
    match tasks(get) {
        // Job scripts, and shells of salloc, run in no step of several tasks.
        Some(("SLURM_NTASKS", ..)) if is_outside_steps(get) => Ok(()),
        None => Ok(()),
        Some((variable, tasks, _)) => {
            let how = if variable == "SLURM_NTASKS" { "srun" } else { "mpirun" };
            Err(Error::Start(format!(
                "BELLWETHER_RANKS={ranks} asks this program to start {ranks} ranks, and {variable}={tasks} says that it is one of {tasks} \
                 ranks already: unset BELLWETHER_RANKS to join these (`env -u BELLWETHER_RANKS {how} ...`). For a job of its own, as in a \
                 shell of `srun --pty` or a child of a rank, start it with `bellwether run -n {ranks}` or unset {variable}"
            )))
        }
    }
}

/// Reads a variable of the environment.
pub(super) type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads a variable of this process's environment.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(get: Get<'_>, name: &str) -> Option<usize> {
    get(name)?.trim().parse().ok()
}

/// Whether this process is in no step of Slurm that runs tasks of a program.
fn is_outside_steps(get: Get<'_>) -> bool {
    get("SLURM_STEP_ID").is_none_or(|step| step == INTERACTIVE_STEP)
}

/// The first of [`TASKS`] that gives more than one task: the variable, the number and the advice.
fn tasks(get: Get<'_>) -> Option<(&'static str, usize, &'static str)> {
    // SLURM_NTASKS is also set in a job script and in the shell of salloc, outside any step of tasks. There it says nothing about the tasks
    // that another launcher starts.
    let other = ["OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "PMI_SIZE", "MPI_LOCALNRANKS"];
    let of_script = is_outside_steps(get) && other.iter().any(|name| get(name).is_some());
    TASKS.iter().find_map(|(variable, advice)| {
        let value = number(get, variable)?;
        (value > 1 && !(of_script && *variable == "SLURM_NTASKS")).then_some((*variable, value, *advice))
    })
}

/// How to start if neither our launcher nor the user gives the number of ranks.
pub(super) fn way(join: Join) -> Result<Way> {
    if let Some(kind) = Kind::chosen(join)? {
        return Ok(launched(kind));
    }
    #[cfg(feature = "mpi")]
    if started_by_mpi() {
        return Ok(Way::Mpi);
    }
    if cfg!(not(feature = "mpi")) && join == Join::Mpi {
        return Err(Error::Start("BELLWETHER_JOIN=mpi: this program was built without the feature `mpi`".into()));
    }
    if let Some(kind) = found() {
        return Ok(launched(kind));
    }
    match tasks(&variable) {
        Some((variable, value, advice)) => Err(Error::StartedApart { variable, value, advice: advice.into() }),
        None => Ok(Way::Alone),
    }
}

/// Starts with the launcher's exchange; alone if the environment already says that there is one task.
fn launched(kind: Kind) -> Way {
    if is_one(kind, &variable) { Way::Alone } else { Way::Launched(kind) }
}

/// Whether the launcher that serves the exchange `kind` started one task, and no variable says that there are more. `false` if it is
/// unclear which launcher set the variables.
pub(super) fn is_one(kind: Kind, get: Get<'_>) -> bool {
    let is = |name| number(get, name) == Some(1);
    let one = match kind {
        Kind::Pmi1 | Kind::Pmi2 => get("PMI_FD").is_some() && is("PMI_SIZE"),
        Kind::Pmix => get("PMIX_NAMESPACE").is_some_and(|space| {
            let place = |name| get(name).unwrap_or_default();
            let of_slurm = || format!("slurm.pmix.{}.{}", place("SLURM_JOB_ID"), place("SLURM_STEP_ID"));
            is("OMPI_COMM_WORLD_SIZE") && space == place("OMPI_MCA_ess_base_jobid")
                || is("SLURM_STEP_NUM_TASKS") && get("SLURM_HET_SIZE").is_none() && space == of_slurm()
        }),
    };
    one && tasks(get).is_none()
}

/// Whether a launcher whose exchange can be joined without MPI started this process, alone or not.
pub(super) fn is_launched(join: Join) -> bool {
    match Kind::chosen(join) {
        Ok(Some(_)) => true,
        Ok(None) if cfg!(not(feature = "mpi")) => found().is_some(),
        _ => false,
    }
}

fn found() -> Option<Kind> {
    Kind::found(&variable, |fd| wire::inherited_socket(fd).is_some())
}

/// Decides what follows if the launcher's exchange does not work: nothing, if there is one task; otherwise an error.
pub(super) fn without(kind: Kind, error: Error) -> Result<()> {
    match tasks(&variable) {
        Some((variable, value, advice)) => {
            Err(Error::StartedApart { variable, value, advice: format!("{error}; {advice}").into() })
        }
        // A variable says that there is one task.
        None if TASKS.iter().any(|(name, _)| number(&variable, name) == Some(1)) => {
            tracing::warn!(%error, "the launcher started one rank, which runs alone: its {} does not work", kind.name());
            Ok(())
        }
        None => Err(error),
    }
}

/// Checks the number of ranks of an exchange against the environment, which `get` reads.
///
/// # Errors
/// [`Error::StartedApart`] if the exchange has one rank, and some launcher says that it started more; [`Error::Start`] if the exchange's own
/// launcher gives another number.
pub(super) fn check_size(kind: Kind, ranks: usize, get: Get<'_>) -> Result<()> {
    if ranks == 1
        && let Some((variable, value, _)) = tasks(get)
    {
        let advice = format!(
            "{} has one rank: it is that of another launcher, outside or inside of the one that started {value}. Set BELLWETHER_JOIN to \
             the protocol of the launcher that is meant (pmi1, pmi2, pmix), or BELLWETHER_RANKS=1 for one rank alone",
            kind.name()
        );
        return Err(Error::StartedApart { variable, value, advice: advice.into() });
    }
    let variable = match kind {
        Kind::Pmi1 | Kind::Pmi2 => "PMI_SIZE",
        Kind::Pmix => "OMPI_COMM_WORLD_SIZE",
    };
    match get(variable) {
        Some(said) if said.trim().parse() != Ok(ranks) => Err(Error::Start(format!(
            "{}: the launcher's server says that there are {ranks} ranks, and {variable}={said}",
            kind.name()
        ))),
        _ => Ok(()),
    }
}

/// Checks the number of ranks that MPI joined against the environment.
#[cfg(feature = "mpi")]
pub(super) fn check_joined(ranks: usize) -> Result<()> {
    match tasks(&variable) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(variables: &[(&str, &str)]) -> Result<()> {
        let get = |name: &str| Some(variables.iter().find(|(known, _)| *known == name)?.1.to_owned());
        check_copies(2, &get)
    }

    #[test]
    fn a_rank_of_several_starts_no_copies() {
        for (name, value) in [("OMPI_COMM_WORLD_SIZE", "2"), ("PMI_SIZE", "4")] {
            let error = checked(&[(name, value)]).expect_err("a rank of a launcher").to_string();
            let words = [&*format!("{name}={value} says"), "BELLWETHER_RANKS=2 asks", "unset BELLWETHER_RANKS"];
            assert!(words.iter().all(|words| error.contains(words)), "{error}");
            checked(&[(name, "1")]).expect("one task is no job");
        }
        checked(&[("SLURM_NTASKS", "4"), ("SLURM_STEP_ID", "0")]).expect_err("a task of srun");
        checked(&[("SLURM_NTASKS", "4"), ("SLURM_STEP_ID", INTERACTIVE_STEP)]).expect("a shell of salloc");
        checked(&[("SLURM_NTASKS", "4")]).expect("a job script");
        checked(&[]).expect("no launcher");
    }
}
