//! How an example begins and ends: the command line, the world, errors told once, exit codes.
//!
//! Exit codes: 0 success, 1 a failure while running (a lost rank, a full disk, a failed check), 2 wrong usage or input.

use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::process::ExitCode;

use bellwether::{Layout, World};
use clap::Parser;

/// Why an example ends early.
#[derive(Debug)]
pub enum Failure {
    /// The user's arguments or files cannot be used: exit code 2.
    Input(anyhow::Error),
    /// Something went wrong while running: exit code 1.
    Running(anyhow::Error),
    /// A rank has already told the user; all ranks end with this exit code.
    Told(u8),
}

impl Failure {
    /// Writes the message to standard error, unless that has been done. It does not name the rank that writes it: of ranks that
    /// fail for one reason, such as the loss of a peer, the launcher shows the message once, with their numbers.
    pub fn tell(&self) {
        if !matches!(self, Failure::Told(_)) {
            // Ignore errors: the reader may have closed the stream, and the exit code still reports the failure.
            let _ = writeln!(io::stderr().lock(), "error: {self}");
        }
    }

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
            Failure::Told(_) => f.write_str("another rank has reported the error"),
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
/// Collective. Rank 0 gets `Ok(Some(_))`, the others `Ok(None)`. When the work fails, rank 0 tells the user, and then all
/// ranks get [`Failure::Told`]: the message is there, once, before any rank ends.
///
/// # Errors
/// The work failed, or a rank was lost.
pub fn on_root<T>(world: &World, work: impl FnOnce() -> Result<T, Failure>) -> Result<Option<T>, Failure> {
    let mut code = [0];
    let mut value = None;
    if world.rank() == 0 {
        match work() {
            Ok(found) => value = Some(found),
            Err(failure) => {
                code = [failure.exit_code()];
                failure.tell();
            }
        }
    }
    world.broadcast(0, &mut code)?;
    match code {
        [0] => Ok(value),
        [code] => Err(Failure::Told(code)),
    }
}

/// Runs an example: reads the arguments, joins the job, calls `body`, turns its error into a message and an exit code.
///
/// `--help`, and a wrong argument in a process without a launcher, need no job and start none. Under a launcher every
/// rank parses the same arguments: each joins the job, rank 0 prints the message, and all leave with the same code.
pub fn main<A: Parser>(body: impl FnOnce(&World, A) -> Result<(), Failure>) -> ExitCode {
    main_or(|_| None, body)
}

/// As [`main`], but if `other` returns an outcome for the arguments, `main` makes no world: `other` has joined the job itself.
pub fn main_or<A: Parser>(
    other: impl FnOnce(&A) -> Option<Result<(), Failure>>,
    body: impl FnOnce(&World, A) -> Result<(), Failure>,
) -> ExitCode {
    let arguments = parse::<A>();
    if let Some(outcome) = arguments.as_ref().ok().and_then(other) {
        return exit_code(outcome);
    }
    if let Err(message) = &arguments
        && !launched()
    {
        message.exit();
    }
    let world = World::start();
    if let (Err(message), Err(_)) = (&arguments, &world) {
        // Reports the first mistake; help is printed wherever it is asked for.
        message.exit();
    }
    let outcome = world.map_err(Failure::from).and_then(|world| {
        match arguments {
            Ok(arguments) => body(&world, arguments).or_else(|failure| tell_shared(&world, failure))?,
            Err(message) => on_root(&world, || print(&message)).map(drop)?,
        }
        // No rank leaves while another may still fetch from its memory.
        Ok(world.finish()?)
    });
    exit_code(outcome)
}

/// Prints a failure, unless that has been done. Returns the exit code.
fn exit_code(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.exit_code())
        }
    }
}

/// The arguments. `--steps -1` is a wrong value of `--steps`, and not an unknown argument `-1`.
fn parse<A: Parser>() -> Result<A, clap::Error> {
    let takes_values = |arg: &clap::Arg| arg.get_action().takes_values();
    let mut command =
        A::command().mut_args(|arg| if takes_values(&arg) { arg.allow_negative_numbers(true) } else { arg });
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    A::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The calling rank's share of a loop: a block of `rounds` rounds, at least one, that all ranks share.
///
/// # Errors
/// More rounds than can be counted.
pub fn share(world: &World, rounds: usize) -> bellwether::Result<Range<usize>> {
    let layout = Layout::block([rounds], world.size())?;
    Ok(layout.box_at(world.rank()).expect("blocks are of neighbours").range(0))
}

/// A number of things on a command line: at least one, and not more than fit a large machine.
///
/// # Errors
/// The text is something else. The error says what was expected.
pub fn count(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 30;
    match text.parse() {
        Ok(count) if (1..=MOST).contains(&count) => Ok(count),
        _ => Err(format!("expected a whole number from 1 to {MOST}")),
    }
}

/// Prints an error once if every rank has the same one, because the same argument asks for too much on all ranks.
fn tell_shared(world: &World, failure: Failure) -> Result<(), Failure> {
    match failure {
        Failure::Running(error) if is_shared(&error) => on_root(world, || Err(Failure::Input(error))),
        own => Err(own),
    }
    .map(|_: Option<()>| ())
}

/// Whether every rank gets this error from the same call.
fn is_shared(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(bellwether::Error::OutOfMemory { .. }))
}

/// Prints clap's message. Help is no failure; a wrong argument is one.
fn print(message: &clap::Error) -> Result<(), Failure> {
    // Ignore errors: the reader may have closed the stream, and the exit code still reports the failure.
    let _ = message.print();
    match message.exit_code() {
        0 => Ok(()),
        code => Err(Failure::Told(u8::try_from(code).unwrap_or(2))),
    }
}

/// Whether a launcher (ours, mpirun, srun) started this process as one rank of several.
fn launched() -> bool {
    ["BELLWETHER_JOB", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_NTASKS"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

/// Writes a line to standard output. A reader that has gone (`| head`) is no reason to panic.
pub fn say(line: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout().lock(), "{line}")
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        eprintln!("warning: cannot write to standard output: {error}");
    }
}

/// [`say`] with the syntax of `println!`.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => { $crate::job::say(format_args!($($part)*)) };
}
