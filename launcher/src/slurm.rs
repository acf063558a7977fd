//! Jobs of Slurm: `bellwether run` inside an allocation, and `bellwether batch`, which writes a script for `sbatch`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::print::print;
use crate::run;
use crate::shell::quoted;

/// How `srun` is to start the ranks, as a step of the job.
#[derive(Debug, Default)]
pub struct Step {
    pub ranks: usize,
    pub tag: bool,
    pub is_bound: bool,
    pub survives: bool,
    pub timeout: Option<Duration>,
}

/// SLURM_STEP_ID of the shell that `salloc` starts on a node, if Slurm's option `use_interactive_step` is set:
/// SLURM_INTERACTIVE_STEP in slurm.h.
const INTERACTIVE_STEP: &str = "4294967290";

/// The job number of the allocation that this process runs in. `None` outside of an allocation, in a step that `srun` started, and
/// where PATH has no `srun`.
pub fn allocation() -> Option<String> {
    let number = std::env::var("SLURM_JOB_ID").ok()?;
    let has_srun = || std::env::split_paths(&std::env::var_os("PATH")?).find(|folder| folder.join("srun").is_file());
    (std::env::var_os("SLURM_STEP_ID").is_none_or(|step| step == INTERACTIVE_STEP) && has_srun().is_some())
        .then_some(number)
}

/// Replaces this process by `srun`, which starts the ranks on the nodes of the allocation. Returns only if that fails.
pub fn run(allocation: &str, step: &Step, program: &OsStr, args: &[OsString]) -> anyhow::Result<ExitCode> {
    let asked = std::env::var("BELLWETHER_JOIN").ok();
    let plugin = plugin(asked.as_deref())?;
    let options = options(plugin, step);
    eprintln!("bellwether: in the allocation {allocation} of Slurm: srun {} {}", options.join(" "), program.display());
    let mut srun = Command::new("srun");
    srun.args(options).arg("--").arg(program).args(args);
    // Of this command's ranks: they would refuse another number.
    srun.env_remove("BELLWETHER_RANKS");
    if asked.is_none_or(|asked| asked != "mpi") {
        srun.env("BELLWETHER_JOIN", plugin);
    }
    if step.survives {
        srun.env("BELLWETHER_SURVIVE", "on");
    }
    Err(srun.exec()).context("cannot start srun")
}

/// The plug-in of Slurm by which ranks join: the one that `BELLWETHER_JOIN` names, else pmi2, which needs no library, else pmix.
fn plugin(asked: Option<&str>) -> anyhow::Result<&'static str> {
    let listed = Command::new("srun").arg("--mpi=list").output().context("cannot start srun")?;
    let listed = [listed.stdout, listed.stderr].concat();
    choose(asked, &String::from_utf8_lossy(&listed))
}

fn choose(asked: Option<&str>, listed: &str) -> anyhow::Result<&'static str> {
    let has = |plugin: &str| listed.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == plugin);
    let order = match asked {
        Some("pmix" | "mpi") => &["pmix"][..],
        Some("pmi2") => &["pmi2"],
        None | Some("auto") => &["pmi2", "pmix"],
        Some(other) => bail!("BELLWETHER_JOIN={other} is no plug-in of Slurm: use pmi2 or pmix, or unset it"),
    };
    let found = order.iter().copied().find(|plugin| has(plugin));
    let Some(found) = found else {
        bail!("this Slurm has no plug-in {}; `srun --mpi=list` shows which it has", order.join(" and no "));
    };
    Ok(found)
}

fn options(plugin: &str, step: &Step) -> Vec<String> {
    let mut options = vec![format!("--mpi={plugin}"), format!("--ntasks={}", step.ranks)];
    options.push(format!("--kill-on-bad-exit={}", u8::from(!step.survives)));
    if step.survives {
        options.push("--no-kill".into());
    }
    if step.tag {
        options.push("--label".into());
    }
    options.push(format!("--cpu-bind={}", if step.is_bound { "cores" } else { "none" }));
    if let Some(limit) = step.timeout {
        let seconds = limit.as_secs_f64().ceil().max(1.0) as u64;
        options.push(format!("--time={}:{:02}", seconds / 60, seconds % 60));
    }
    options
}

/// Write a job script for Slurm's sbatch.
#[derive(Args)]
#[command(after_help = "Examples:
  bellwether batch -N 4 -n 128 --time 1:00:00 -- ./my-program --its-own options | sbatch
  bellwether batch -N 4 -n 128 --time 1:00:00 -o job.sh -- ./my-program
  sbatch job.sh

The script needs no `bellwether` on the nodes. It names the plug-in of Slurm by which ranks join: pmi2 if `srun --mpi=list` \
has it here, or Slurm does not run here, else pmix; BELLWETHER_JOIN=pmix asks for the other.")]
pub struct Batch {
    /// How many nodes
    #[arg(short = 'N', long, value_name = "N", value_parser = nodes)]
    nodes: usize,

    /// How many ranks, over all nodes
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = run::ranks)]
    ranks: usize,

    /// Time after which Slurm ends the job, as sbatch takes it: 30 (minutes), 1:00:00, 2-12:00:00
    #[arg(short = 't', long, value_name = "TIME", value_parser = time)]
    time: String,

    /// The partition to run in
    #[arg(short = 'p', long, value_name = "NAME", value_parser = word)]
    partition: Option<String>,

    /// The account to charge
    #[arg(short = 'A', long, value_name = "NAME", value_parser = word)]
    account: Option<String>,

    /// Write the script to this file [default: standard output]
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

impl Batch {
    /// Writes the script.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.ranks < self.nodes {
            bail!("{} nodes for {} ranks: each node needs a rank", self.nodes, self.ranks);
        }
        let asked = std::env::var("BELLWETHER_JOIN").ok();
        let plugin = match Command::new("srun").arg("--mpi=list").output() {
            Ok(listed) if listed.status.success() => {
                choose(asked.as_deref(), &String::from_utf8_lossy(&[listed.stdout, listed.stderr].concat()))?
            }
            // No Slurm here.
            _ => choose(asked.as_deref(), "pmi2 pmix")?,
        };
        let script = self.script(plugin);
        match &self.output {
            Some(path) => {
                std::fs::write(path, script).with_context(|| format!("cannot write {}", path.display()))?;
            }
            None => print(script)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn script(&self, plugin: &str) -> String {
        let name = Path::new(&self.command[0]).file_name().unwrap_or_default().to_string_lossy();
        let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
        let mut text = String::from("#!/bin/bash\n");
        // Writing to a String cannot fail.
        let mut option = |option: &str, value: &dyn std::fmt::Display, why: &str| {
            let line = format!("#SBATCH --{option}={value}");
            let _ = writeln!(text, "{line:<44} # {why}");
        };
        if !name.is_empty() {
            option("job-name", &name, "as squeue shows it");
        }
        option("nodes", &self.nodes, "machines");
        option("ntasks", &self.ranks, "ranks, over all nodes");
        option("time", &self.time, "Slurm ends the job after this time");
        if let Some(partition) = &self.partition {
            option("partition", partition, "where to run");
        }
        if let Some(account) = &self.account {
            option("account", account, "whom to charge");
        }
        option("output", &"%x-%j.out", "what the ranks print: job's name and number");
        // A `String` stays UTF-8 when it is quoted.
        let word = |word: &String| String::from_utf8_lossy(&quoted(word.as_ref())).into_owned();
        let command: Vec<String> = self.command.iter().map(word).collect();
        let step = Step { ranks: self.ranks, ..Step::default() };
        let options: Vec<String> =
            options(plugin, &step).into_iter().filter(|it| !it.starts_with("--ntasks")).collect();
        let _ = write!(
            text,
            "
# The ranks join through this plug-in of Slurm; `srun --mpi=list` shows which there are.
export BELLWETHER_JOIN={plugin}
# For programs without a launcher. A rank that finds it refuses to start.
unset BELLWETHER_RANKS

# If a rank fails, Slurm ends the others. Ranks are not bound to cores; `--cpu-bind=cores` does that.
exec srun {} -- {}
",
            options.join(" "),
            command.join(" ")
        );
        text
    }
}

fn nodes(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|nodes| *nodes > 0).ok_or_else(|| "expected a whole number of nodes, 1 or more".into())
}

/// A name of plain characters only: a blank or a `#` would end it in a line `#SBATCH`.
fn word(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-+@,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { Ok(text.into()) } else { Err("expected a name".into()) }
}

/// A time as Slurm takes it: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S.
fn time(text: &str) -> Result<String, String> {
    let (days, rest) = text.split_once('-').map_or((None, text), |(days, rest)| (Some(days), rest));
    let is_number = |part: &str| !part.is_empty() && part.len() < 7 && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = rest.split(':').collect();
    let is_time = days.is_none_or(is_number) && parts.len() <= 3 && parts.iter().copied().all(is_number);
    let is_zero = !text.bytes().any(|byte| (b'1'..=b'9').contains(&byte));
    if is_time && !is_zero {
        return Ok(text.into());
    }
    Err("expected a time as sbatch takes it: minutes, hours:minutes:seconds, or days-hours:minutes:seconds".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "MPI plugin types are...\n\tcray_shasta\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n";

    #[test]
    fn the_plugin_is_the_one_asked_for_or_pmi2() {
        assert_eq!(choose(None, LIST).expect("it is listed"), "pmi2");
        assert_eq!(choose(Some("pmix"), LIST).expect("it is listed"), "pmix");
        assert_eq!(choose(None, "none\npmix\n").expect("it is listed"), "pmix");
        let error = choose(None, "none\npmix_v4\n").expect_err("neither is listed").to_string();
        assert!(error.contains("no plug-in pmi2 and no pmix"), "{error}");
        assert!(choose(Some("pmi2"), "pmix").is_err());
        assert_eq!(choose(Some("auto"), LIST).expect("it is listed"), "pmi2");
        for other in ["pmi1", "pmx", ""] {
            let error = choose(Some(other), LIST).expect_err("it is no plug-in").to_string();
            assert!(error.contains(&format!("BELLWETHER_JOIN={other} is no plug-in")), "{error}");
        }
    }

    #[test]
    fn options_of_srun() {
        let step =
            Step { ranks: 3, tag: true, is_bound: true, survives: false, timeout: Some(Duration::from_secs(90)) };
        let expected = "--mpi=pmi2 --ntasks=3 --kill-on-bad-exit=1 --label --cpu-bind=cores --time=1:30";
        assert_eq!(options("pmi2", &step).join(" "), expected);
        let step = Step { ranks: 3, survives: true, ..Step::default() };
        assert_eq!(
            options("pmix", &step).join(" "),
            "--mpi=pmix --ntasks=3 --kill-on-bad-exit=0 --no-kill --cpu-bind=none"
        );
    }

    #[test]
    fn times_as_slurm_takes_them() {
        for right in ["30", "1:00:00", "90:30", "2-12", "2-12:30", "1-0:0:0"] {
            assert!(time(right).is_ok(), "{right}");
        }
        for wrong in ["", "0", "1h", "1:2:3:4", "-5", "1:", "1 # x", "0:00:00"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
