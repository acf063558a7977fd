//! How an example begins and ends: the command line, the world, errors told once, exit codes.
//!
//! Exit codes: 0 success, 1 a failure while running (a lost rank, a full disk, a failed check), 2 wrong usage or input.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use bellwether::World;
use clap::Parser;

/// Why an example ends early.
#[derive(Debug)]
pub enum Failure {
    /// The user's arguments or files cannot be used: exit code 2.
    Input(anyhow::Error),
    /// Something went wrong while running: exit code 1.
    Running(anyhow::Error),
    /// Rank 0 has already told the user; this rank ends silently with the same exit code.
    Told(u8),
}

impl Failure {
    /// The exit code of a process that ends for this reason.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Input(_) => 2,
            Failure::Running(_) => 1,
            Failure::Told(code) => *code,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(error) | Failure::Running(error) => write!(f, "{error:#}"),
            Failure::Told(_) => f.write_str("rank 0 has reported the error"),
        }
    }
}

impl From<bellwether::Error> for Failure {
    fn from(error: bellwether::Error) -> Self {
        Failure::Running(error.into())
    }
}

/// Does `work` on rank 0 only; every rank waits for it and learns whether it went well.
///
/// Collective. Rank 0 gets `Ok(Some(_))`, the others `Ok(None)`. When the work fails, rank 0 gets the error and the
/// others [`Failure::Told`], so that every rank leaves the job in order and the user reads the message once.
///
/// # Errors
/// What `work` returned, or that a rank was lost.
pub fn on_root<T>(
    world: &World,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let outcome = (world.rank() == 0).then(work).transpose();
    let mut code = [outcome
        .as_ref()
        .err()
        .map_or(0, |failure| u64::from(failure.exit_code()))];
    world.broadcast(0, &mut code)?;
    match (outcome, code[0]) {
        (Ok(value), 0) => Ok(value),
        (Ok(_), code) => Err(Failure::Told(u8::try_from(code).unwrap_or(1))),
        (Err(failure), _) => Err(failure),
    }
}

/// Runs an example: reads the arguments, joins the job, calls `body`, turns its error into a message and an exit code.
///
/// `--help`, and a wrong argument in a process that nobody launched, need no job and start none. Under a launcher every
/// rank parses the same arguments: each joins the job, rank 0 prints the message, and all leave with the same code.
pub fn main<A: Parser>(body: impl FnOnce(&World, A) -> Result<(), Failure>) -> ExitCode {
    let name = A::command().get_name().to_owned();
    let arguments = A::try_parse();
    if let Err(message) = &arguments
        && !launched()
    {
        message.exit();
    }
    let world = match World::start() {
        Ok(world) => world,
        Err(error) => {
            eprintln!("{name}: {error}");
            return ExitCode::from(1);
        }
    };
    let outcome = match arguments {
        Ok(arguments) => body(&world, arguments),
        Err(message) => {
            if world.rank() == 0 {
                // Printing can only fail when nobody reads; the exit code still tells.
                let _ = message.print();
            }
            return ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(2));
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Told(_)) {
                eprintln!("{name}: {failure}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Whether a launcher (ours, mpirun, srun) started this process as one rank of several.
fn launched() -> bool {
    [
        "BELLWETHER_JOB",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_SIZE",
        "PMIX_RANK",
        "SLURM_NTASKS",
    ]
    .iter()
    .any(|name| std::env::var_os(name).is_some())
}

/// Writes a line to standard output. A reader that has gone (`| head`) is no reason to panic.
pub fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// [`say`] with the syntax of `println!`.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => { $crate::job::say(format_args!($($part)*)) };
}
