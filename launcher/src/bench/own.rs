//! Starting our own ranks for a benchmark.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use bellwether_runtime::Settings;
use bellwether_runtime::bootstrap::OwnedJob;
use bellwether_runtime::bootstrap::launch::{JobSpec, Stdin};
use clap::ValueEnum;

use super::child::{mpirun, on_hosts, run};
use super::folder::Folder;
use super::rank::{DEATH, EMPTY, NOTHING, RANK};
use super::task::{Measured, Task, read_report};

/// Longer than any benchmark takes, however crowded the machine.
pub const DEADLINE: Duration = Duration::from_secs(900);

/// What starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Launch {
    /// This command itself
    Spawn,
    /// mpirun
    Mpirun,
}

/// A job of ours that failed. Its error has been printed by then.
#[derive(Debug)]
pub struct Failed;

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the ranks of a benchmark failed")
    }
}

impl std::error::Error for Failed {}

/// How to start copies of this program.
#[derive(Debug)]
pub struct Starter {
    program: PathBuf,
    ranks: usize,
    launch: Launch,
    /// Value of the setting for the transport.
    transport: &'static str,
    /// The hosts to start on, and the agent that reaches them. `None`: this host.
    hosts: Option<String>,
    agent: Option<String>,
}

/// The setting that says how ranks reach each other.
const TRANSPORT: &str = "BELLWETHER_TRANSPORT";

impl Starter {
    /// For jobs of `ranks` ranks, which get `transport` as setting.
    ///
    /// # Errors
    /// If they cannot be started this way.
    pub fn new(ranks: usize, launch: Launch, transport: &'static str) -> anyhow::Result<Starter> {
        let program = std::env::current_exe().context("finding this program's own file")?;
        Ok(Starter { program, ranks, launch, transport, hosts: None, agent: None })
    }

    /// The same, on these hosts.
    pub fn on(self, hosts: Option<String>, agent: Option<String>) -> Starter {
        Starter { hosts, agent, ..self }
    }

    /// Value of the setting for the transport.
    pub fn transport(&self) -> &'static str {
        self.transport
    }

    /// Whether the ranks are told to use TCP.
    pub fn over_tcp(&self) -> bool {
        self.transport == "tcp"
    }

    /// The command that reaches the hosts, if it is another than ssh.
    pub fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    /// The hosts, as they were named.
    pub fn hosts(&self) -> Option<&str> {
        self.hosts.as_deref()
    }

    fn start(&self, args: &[OsString]) -> anyhow::Result<()> {
        match self.launch {
            Launch::Spawn if self.hosts.is_some() => {
                let mut command = Command::new(&self.program);
                command.env(TRANSPORT, self.transport).args(["run", "-n", &self.ranks.to_string()]);
                command.args(self.hosts.iter().flat_map(|hosts| ["--hosts", hosts]));
                command.args(self.agent.iter().flat_map(|agent| ["--agent", agent]));
                command.arg("--").arg(&self.program).args(args);
                run(command, DEADLINE).map(drop)
            }
            Launch::Mpirun => {
                // Ours bind themselves, after they have started.
                let mut command = mpirun(self.ranks, false);
                // Open MPI passes only the variables that `-x` names to other hosts.
                command.args(["-x", TRANSPORT]);
                on_hosts(&mut command, self.hosts.as_deref(), self.agent.as_deref());
                command.env(TRANSPORT, self.transport).arg(&self.program).args(args);
                run(command, DEADLINE).map(drop)
            }
            Launch::Spawn => {
                let mut spec = JobSpec::new(&self.program, args, self.ranks);
                spec.name = "bellwether bench".into();
                spec.stdin = Stdin::Null;
                spec.tells_deaths = false;
                spec.timeout = Some(DEADLINE);
                spec.extra_env.push((TRANSPORT.into(), self.transport.into()));
                let outcome = OwnedJob::create(self.ranks, &Settings::from_env()?)?.supervise(spec)?;
                anyhow::ensure!(outcome.status() == 0, Failed);
                Ok(())
            }
        }
    }

    /// Runs a task on all ranks and gives rank 0's report.
    ///
    /// # Errors
    /// If the job fails.
    pub fn measure(&self, task: &Task, folder: &Folder) -> anyhow::Result<Vec<Measured>> {
        let report = folder.file("report.json");
        let _ = std::fs::remove_file(&report);
        self.start(&[RANK.into(), task.to_text().into(), report.clone().into()])?;
        read_report(&report)
    }

    /// Seconds to start and end empty ranks, beside as many bare processes of the same file.
    ///
    /// # Errors
    /// If either cannot be started.
    pub fn startup(&self, batches: usize) -> anyhow::Result<Measured> {
        let mut measured = Measured { name: "startup".into(), on_cpu: 1.0, ..Measured::default() };
        for _ in 0..batches {
            let begin = Instant::now();
            self.start(&[EMPTY.into()])?;
            measured.ours.push(begin.elapsed().as_secs_f64());
            let begin = Instant::now();
            self.bare()?;
            measured.limit.push(begin.elapsed().as_secs_f64());
        }
        Ok(measured)
    }

    /// Runs a job in which a rank dies, and gives rank 0's report.
    ///
    /// # Errors
    /// If the job fails.
    pub fn death(&self, folder: &Folder) -> anyhow::Result<Vec<f64>> {
        let report = folder.file("death.json");
        let _ = std::fs::remove_file(&report);
        self.start(&[DEATH.into(), report.clone().into()])?;
        Ok(read_report(&report)?.into_iter().flat_map(|measured| measured.ours).collect())
    }

    fn bare(&self) -> anyhow::Result<()> {
        let start = |_| Command::new(&self.program).arg(NOTHING).stdin(Stdio::null()).spawn();
        let children: std::io::Result<Vec<_>> = (0..self.ranks).map(start).collect();
        for mut child in children.context("starting bare processes")? {
            child.wait().context("waiting for bare processes")?;
        }
        Ok(())
    }
}
