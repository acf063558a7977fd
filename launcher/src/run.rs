//! `bellwether run`: starts a job and stays until its last rank has ended.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bellwether_runtime::Settings;
use bellwether_runtime::bootstrap::OwnedJob;
use bellwether_runtime::bootstrap::launch::{Bind, JobSpec, LaunchError};
use clap::{Args, ValueEnum};

use crate::example::{self, Example};

/// Start a program on several ranks and wait for it.
///
/// This command passes on what ranks print, a whole line at a time. Standard input goes to rank 0. Signals sent to this
/// command go to all ranks; a second Ctrl-C kills them. If a rank fails, this command ends the others, says which rank
/// failed first and why, and exits with the status of that rank. Processes that the ranks started end with it.
#[derive(Args)]
#[command(after_help = "Exit status: that of the first rank that failed (128 + N if signal N killed it), else
  0    all ranks succeeded; with --survive, all that did not die
  2    wrong use of this command
  124  the job ran longer than --timeout
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

Arguments after PROGRAM belong to the program. With --example, write the program's arguments last, and those \
that this command also has after `--`:
  bellwether run -n 4 ./my-program --tag        --tag of the program
  bellwether run -n 4 --tag ./my-program        --tag of `bellwether run`
  bellwether run -n 4 --example heat2d -- --help")]
pub struct Run {
    /// How many ranks to start
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = ranks, required_unless_present = "machinefile")]
    ranks: Option<usize>,

    /// A file with a host on each line, one for each rank, as gaspi_run takes it; this command starts ranks on this host only
    #[arg(short = 'm', long, value_name = "FILE")]
    machinefile: Option<PathBuf>,

    /// Which CPUs a rank may use: `core` binds each rank to one CPU, in turn; `none` leaves that to the system
    #[arg(long, value_enum, default_value = "none")]
    bind: Binding,

    /// Put the rank's number before every line that it prints, as in `[2] hello`
    #[arg(long)]
    tag: bool,

    /// End the job after this time: 90s, 500ms, 2m, 1h
    #[arg(long, value_name = "TIME", value_parser = duration)]
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
        let ranks = self.ranks()?;
        let (program, args) = self.program()?;
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
        let settings = Settings::from_env()?;
        let outcome = OwnedJob::create(ranks, &settings)?.supervise(spec)?;
        // Statuses are below 256 for every cause; a program's own code is cut to 8 bits by the system.
        Ok(ExitCode::from((outcome.status() & 0xff) as u8))
    }

    /// The number of ranks, of the command line or of the machine file.
    fn ranks(&self) -> anyhow::Result<usize> {
        let Some(path) = &self.machinefile else { return self.ranks.context("no number of ranks is given") };
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").context("cannot read this host's name")?;
        let listed = ranks_here(&text, own.trim());
        let listed = listed.with_context(|| format!("cannot use {}", path.display()))?;
        match self.ranks {
            Some(ranks) if ranks > listed => {
                bail!("{} has lines for {listed} ranks, and -n asks for {ranks}", path.display())
            }
            ranks => Ok(ranks.unwrap_or(listed)),
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

/// How many lines of a machine file name this host; all have to.
fn ranks_here(text: &str, own: &str) -> anyhow::Result<usize> {
    // A name without a domain is that of every domain.
    let is_same = |host: &str| match (host.split_once('.'), own.split_once('.')) {
        (Some((host, _)), None) => host.eq_ignore_ascii_case(own),
        (None, Some((own, _))) => host.eq_ignore_ascii_case(own),
        _ => host.eq_ignore_ascii_case(own),
    };
    let is_own = |host: &str| ["localhost", "127.0.0.1", "::1"].contains(&host) || is_same(host);
    let hosts = || text.lines().map(str::trim).filter(|host| !host.is_empty() && !host.starts_with('#'));
    if let Some(other) = hosts().find(|host| !is_own(host)) {
        bail!(
            "it names {other}, and this host is {own}: `bellwether run` starts ranks on one host; \
             on several hosts use `srun --mpi=pmix`, or `mpirun --hostfile FILE`"
        );
    }
    match hosts().count() {
        0 => bail!("it names no host"),
        ranks => Ok(ranks),
    }
}

/// The exit status for an error of this command.
pub fn status_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<LaunchError>() {
        Some(error) => error.status() as u8,
        None => 2,
    }
}

/// A number of ranks, for the command line.
pub fn ranks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("a job needs at least 1 rank".into()),
        Ok(n) => Ok(n),
        Err(_) => Err("expected a whole number of ranks, 1 or more".into()),
    }
}

/// A time such as `90s`, `500ms`, `1.5m`, `2h`; without a unit, seconds.
fn duration(text: &str) -> Result<Duration, String> {
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
    }

    #[test]
    fn machine_files() {
        let ranks = |text: &str| ranks_here(text, "node7.cluster");
        assert_eq!(ranks("localhost\nnode7\n\n# two more\nnode7.cluster\n 127.0.0.1 \n").expect("all are here"), 4);
        let other = ranks("node7\nnode8\n").expect_err("another host").to_string();
        assert!(other.contains("names node8") && other.contains("mpirun --hostfile"), "{other}");
        assert_eq!(ranks("NODE7.cluster\nNode7\n").expect("letters of either case"), 2);
        let other = ranks("node7.rack2\n").expect_err("the same name in another domain").to_string();
        assert!(other.contains("names node7.rack2"), "{other}");
        assert_eq!(ranks_here("node7.rack2\n", "node7").expect("this host has no domain"), 1);
        assert_eq!(ranks("\n# none\n").expect_err("no host").to_string(), "it names no host");
    }

    #[test]
    fn numbers_of_ranks() {
        assert_eq!(ranks("64"), Ok(64));
        for wrong in ["0", "-1", "", "four", "1.5", "99999999999999999999999"] {
            assert!(ranks(wrong).is_err(), "{wrong}");
        }
    }
}
