//! `bellwether run`: starts a job and stays until its last rank has ended.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bellwether_runtime::bootstrap::OwnedJob;
use bellwether_runtime::bootstrap::launch::{Bind, JobSpec, LaunchError, Outcome, supervise_hosts};
use bellwether_runtime::membership::MAX_RANKS;
use bellwether_runtime::{Error, Settings};
use clap::{Args, ValueEnum};

use crate::doctor;
use crate::example::{self, Example};
use crate::hosts::{self, HostOptions, HostSlots};
use crate::slurm;

/// The exit status if the system does not let the job start, or a host cannot be reached.
const UNABLE: i32 = 125;

/// Start a program on several ranks and wait for it.
///
/// This command passes on what ranks print, a whole line at a time. Standard input goes to rank 0. Signals sent to this
/// command go to all ranks; a second Ctrl-C kills them. If a rank fails, this command ends the others, says which rank
/// failed first and why, and exits with the status of that rank. Processes that the ranks started end with it.
#[derive(Args)]
#[command(after_help = "Exit status: that of the first rank that failed (128 + N if signal N killed it), else
  0    all ranks succeeded; with --survive, all that did not die
  1    the connection to a host was lost, or the output cannot be written
  2    wrong use of this command
  124  the job ran longer than --timeout
  125  a host cannot be reached, or the system does not let the job start
  126  the program cannot be executed
  127  there is no such program

Signals sent to this command:
  INT (Ctrl-C), TERM, HUP, QUIT  go to all ranks and their children, and end the job
  INT again, after 0.1 s         kills all ranks and their children
  USR1, USR2                     go to the ranks
  TSTP (Ctrl-Z), CONT            stop and continue the job
  KILL                           kills all ranks and their children, too

A signal that was ignored when this command started stays ignored, here and in the ranks: INT and QUIT \
in a script that starts it with `&`, HUP under nohup. End such a job with TERM.

A program finds its rank in BELLWETHER_RANK and the number of ranks in BELLWETHER_SIZE.

On several hosts this command starts itself on each, by the same path, through `ssh` or another --agent, which has to work \
without a password. This host is started on without it. The ranks get the folder and the variables BELLWETHER_*, RUST_*, PATH and \
LD_LIBRARY_PATH of this command; all else is as the agent leaves it. The hosts reach each other by TCP or RDMA. If the connection \
to a host ends, its ranks are killed, and the job ends. This command reads its standard input for rank 0, also if rank 0 reads \
nothing: give it `</dev/null` in a loop that reads a list itself.

Inside an allocation of Slurm (salloc, sbatch), without --hosts and -m, this command becomes `srun` and says so: what is said here \
of exit status, signals and --grace is then as srun has it, and --timeout becomes its --time, which Slurm rounds up to minutes.

Arguments after PROGRAM belong to the program. With --example, write the program's arguments last, and those \
that this command also has after `--`:
  bellwether run -n 4 ./my-program --tag        --tag of the program
  bellwether run -n 4 --tag ./my-program        --tag of `bellwether run`
  bellwether run -n 4 --example heat2d -- --help")]
pub struct Run {
    /// How many ranks to start
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = ranks, required_unless_present_any = ["machinefile", "hosts"])]
    ranks: Option<usize>,

    #[command(flatten)]
    hosts: HostOptions,

    /// Which CPUs a rank may use: `core` binds each rank to one CPU, in turn; `none` leaves that to the system
    #[arg(long, value_enum, default_value = "none")]
    bind: Binding,

    /// Put the rank's number before every line that it prints, as in `[2] hello`
    #[arg(long)]
    tag: bool,

    /// End the job after this time: 90s, 500ms, 2m, 1h
    #[arg(long, value_name = "TIME", value_parser = limit)]
    timeout: Option<Duration>,

    /// Time that the other ranks have to end by themselves after a failure
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "500ms")]
    grace: Duration,

    /// Let the other ranks go on when one dies; the exit status is 0 if all that live succeed
    ///
    /// For programs that call `World::survivors`. The others are not ended; --timeout still ends all. Sets BELLWETHER_SURVIVE=on
    /// for the ranks. A rank that dies before all have started still ends the job.
    #[arg(long)]
    survive: bool,

    /// Build this example of the cargo workspace around the current folder, and run it
    #[arg(long, value_name = "NAME")]
    example: Option<String>,

    /// Cargo features to build the example with
    #[arg(long, value_name = "LIST", requires = "example")]
    features: Vec<String>,

    /// Cargo profile to build the example with [default: as this command was built]
    #[arg(long, value_name = "NAME", requires = "example")]
    profile: Option<String>,

    /// The program (a path if it has a `/`, else looked up in PATH) and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "example"
    )]
    command: Vec<OsString>,
}

/// Which CPUs ranks may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Binding {
    /// Rank i on the i-th CPU allowed, starting over after the last
    Core,
    /// All CPUs allowed
    None,
}

impl Run {
    /// Runs the job and gives its exit status.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let places = self.hosts.hosts()?;
        let ranks = self.ranks(places.as_deref())?;
        let (program, args) = self.program()?;
        if let (None, Some(allocation)) = (&places, slurm::allocation()) {
            let step = slurm::Step {
                ranks,
                tag: self.tag,
                is_bound: self.bind == Binding::Core,
                survives: self.survive,
                timeout: self.timeout,
            };
            return slurm::run(&allocation, &step, &program, &args);
        }
        let mut spec = JobSpec::new(program, args, ranks);
        spec.bind = match self.bind {
            Binding::Core => Bind::Core,
            Binding::None => Bind::None,
        };
        spec.tag = self.tag;
        spec.timeout = self.timeout;
        spec.grace = self.grace;
        spec.adopt = true;
        if self.survive {
            spec.extra_env.push(("BELLWETHER_SURVIVE".into(), "on".into()));
        }
        let is_here = |places: &Vec<HostSlots>| matches!(hosts::only_here(places), Ok(Some(_)));
        let elsewhere = places.as_ref().filter(|places| !is_here(places)).map(|places| names(places));
        let outcome = match self.start(places, &spec, ranks) {
            Ok(outcome) => outcome,
            Err(error) => {
                let status = tell(&error);
                if may_be_explained(&error) {
                    explain(ranks, elsewhere.as_deref());
                }
                return Ok(status);
            }
        };
        // Statuses are below 256 for every cause; a program's own code is cut to 8 bits by the system.
        Ok(ExitCode::from((outcome.status() & 0xff) as u8))
    }

    /// Starts the ranks and watches them to the end.
    fn start(&self, places: Option<Vec<HostSlots>>, spec: &JobSpec<'_>, ranks: usize) -> anyhow::Result<Outcome> {
        let here = || -> anyhow::Result<Outcome> {
            Ok(OwnedJob::create(ranks, &Settings::from_env()?)?.supervise(spec.clone())?)
        };
        let Some(places) = places else { return here() };
        match hosts::only_here(&places)? {
            Some(room) if room >= ranks => here(),
            Some(all) => {
                let (each, example) = (names(&places), format!("{}:{ranks}", places[0].name));
                Err(LaunchError::NoRoom { ranks, all, each, example }.into())
            }
            None if self.survive => bail!("--survive is for jobs on one host; leave it out, or name one host alone"),
            None => Ok(supervise_hosts(spec, &hosts::commands(&places, &self.hosts.agent)?)?),
        }
    }

    /// The number of ranks, of the command line or of the hosts.
    fn ranks(&self, places: Option<&[HostSlots]>) -> anyhow::Result<usize> {
        let slots = places
            .and_then(|places| places.iter().try_fold(0, |sum: usize, place| Some(sum.saturating_add(place.slots?))));
        let what = self.hosts.named_by();
        match (self.ranks, slots) {
            (Some(ranks), Some(slots)) if ranks > slots => {
                bail!("{what} has room for {slots} ranks, and -n asks for {ranks}")
            }
            (Some(ranks), _) => Ok(ranks),
            (None, Some(slots)) => Ok(slots),
            (None, None) => {
                bail!("give the number of ranks: -n N, or a number behind each host, as in `--hosts a:4,b:4`")
            }
        }
    }

    fn program(&self) -> anyhow::Result<(OsString, Vec<OsString>)> {
        if let Some(name) = &self.example {
            let example = Example {
                name,
                features: &self.features,
                profile: self.profile.as_deref().unwrap_or(example::OWN_PROFILE),
            };
            return Ok((example.build()?.into_os_string(), self.command.clone()));
        }
        let (program, args) = self.command.split_first().context("no program is named")?;
        Ok((program.clone(), args.to_vec()))
    }
}

/// Hosts, as `--hosts` takes them.
fn names(places: &[HostSlots]) -> String {
    places.iter().map(|place| place.name.as_str()).collect::<Vec<_>>().join(",")
}

/// Prints the limits that may have kept the job from starting, as far as these are cheap to find.
fn explain(ranks: usize, hosts: Option<&str>) {
    match hosts {
        Some(hosts) => {
            eprintln!(
                "bellwether: `bellwether doctor --hosts {hosts}` examines these hosts and the network between them"
            );
        }
        None => doctor::explanations(ranks).iter().for_each(|line| eprintln!("bellwether: {line}")),
    }
}

/// Whether the machine, and not what the user wrote, may have kept the job from starting.
fn may_be_explained(error: &anyhow::Error) -> bool {
    // An argument that can never be right, such as more ranks than a host can have, is what the user wrote.
    let is_machine = |error: &Error| !matches!(error, Error::Setting { .. } | Error::InvalidArgument { .. });
    error.downcast_ref().is_some_and(|error: &LaunchError| error.status() == UNABLE)
        || error.downcast_ref().is_some_and(is_machine)
}

/// Prints an error of this command, and gives its exit status.
pub fn tell(error: &anyhow::Error) -> ExitCode {
    eprintln!("bellwether: {error:#}");
    ExitCode::from(error.downcast_ref::<LaunchError>().map_or(2, |error| error.status() as u8))
}

/// A number of ranks, for the command line.
pub fn ranks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("a job needs at least 1 rank".into()),
        Ok(n @ 1..=MAX_RANKS) => Ok(n),
        _ => Err(format!("expected a whole number of ranks from 1 to {MAX_RANKS}")),
    }
}

/// A time such as `90s`, `500ms`, `1.5m`, `2h`; without a unit, seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit `{unit}`: use ms, s, m or h")),
    };
    let wrong = || "expected a time such as 90s, 500ms, 2m or 1h".to_owned();
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| wrong())
}

/// A time, as [`duration`] reads it, after which something is ended: not 0, at which nothing would have begun.
pub fn limit(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("expected a time above 0, such as 90s, 500ms, 2m or 1h".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("60"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for wrong in ["", "s", "-1s", "5 days", "1e400", "nan", "inf"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(limit("1ms"), Ok(Duration::from_millis(1)));
        for wrong in ["0", "0s", "0.0000001ms", "1e400", ""] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_of_ranks() {
        assert_eq!(ranks("64"), Ok(64));
        assert_eq!(ranks("1048576"), Ok(MAX_RANKS));
        for wrong in ["0", "-1", "", "four", "1.5", "1048577", "99999999999999999999999"] {
            assert!(ranks(wrong).is_err(), "{wrong}");
        }
        let error = ranks("99999999999999999999999").expect_err("more than there may be");
        assert!(error.contains("from 1 to 1048576"), "{error}");
    }
}
