//! Peers that are libraries: a program of ours in C, compiled with the peer's own compiler when it is needed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::Peer;
use crate::bench::child::{in_path, mpirun, on_hosts, run};
use crate::bench::figure::Summary;
use crate::bench::folder::Folder;
use crate::bench::kind::Kind;
use crate::bench::own::Starter;

/// Longest that a compiler takes; with the library to build first, too.
pub(super) const COMPILING: Duration = Duration::from_secs(300);
pub(super) const RUNNING: Duration = Duration::from_secs(180);

/// The program, compiled.
pub struct Program {
    peer: Peer,
    file: PathBuf,
    empty: PathBuf,
    quick: bool,
    /// Ours go over TCP: so does two-sided MPI.
    over_tcp: bool,
    hosts: Option<String>,
    agent: Option<String>,
}

impl Program {
    /// Compiles the programs of `peer`.
    ///
    /// # Errors
    /// If there is no compiler or no launcher, or the compiler fails.
    pub fn build(peer: Peer, quick: bool, starter: &Starter, folder: &Folder) -> anyhow::Result<Program> {
        let (compiler, source, empty) = match peer {
            Peer::Oshmem => ("oshcc", include_str!("oshmem.c"), include_str!("oshmem_empty.c")),
            Peer::Mpi => ("mpicc", include_str!("mpi.c"), include_str!("mpi_empty.c")),
            _ => ("mpicc", include_str!("mpi_rma.c"), include_str!("mpi_empty.c")),
        };
        for tool in [compiler, "mpirun"] {
            anyhow::ensure!(in_path(tool), "there is no `{tool}` in PATH (Debian: libopenmpi-dev, openmpi-bin)");
        }
        let compile = |name: &str, source: &str| {
            let (from, to) = (folder.file(&format!("{name}.c")), folder.file(name));
            fs::write(&from, [include_str!("common.h"), source].concat())?;
            let mut command = Command::new(compiler);
            command.args(["-O2", "-std=gnu11", "-o"]).arg(&to).arg(&from);
            run(command, COMPILING).map(|_| to).context("compiling the peer's program")
        };
        let file = compile(peer.name(), source)?;
        let empty = compile(&format!("{}-empty", peer.name()), empty)?;
        let (over_tcp, hosts) = (starter.over_tcp(), starter.hosts().map(Into::into));
        let agent = starter.agent().map(Into::into);
        Ok(Program { peer, file, empty, quick, over_tcp, hosts, agent })
    }

    /// Whose program this is.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    fn start(&self, ranks: usize) -> Command {
        // On each of several hosts mpirun binds its first rank to the first core: if these are one machine, all to the same.
        let mut command = mpirun(ranks, self.hosts.is_none());
        on_hosts(&mut command, self.hosts.as_deref(), self.agent.as_deref());
        if self.peer == Peer::Mpi && self.over_tcp {
            command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
            if self.hosts.is_none() {
                // It leaves the loopback interface out by default, by which ranks of one host reach each other with ours.
                command.args(["--mca", "btl_tcp_if_include", "lo"]);
            }
        }
        if self.peer == Peer::Oshmem {
            // Open MPI 4.1's OpenSHMEM leaves a hook on memory calls behind when it ends, and the process crashes on
            // it (open-mpi/ompi issue 11604). Without the hook it is no slower.
            command.args(["--mca", "memory", "^patcher"]);
        }
        command
    }

    /// Runs it for all sizes at once.
    ///
    /// # Errors
    /// If it fails or does not end.
    pub fn measure(&self, kind: Kind, sizes: &[usize], ranks: usize) -> anyhow::Result<Vec<(usize, f64)>> {
        match kind {
            Kind::Startup => return self.startup(ranks),
            Kind::PutBell | Kind::Am | Kind::AmRate | Kind::Bandwidth if self.peer == Peer::Mpi => {}
            _ if self.peer == Peer::Mpi => return Ok(Vec::new()),
            Kind::Allreduce
            | Kind::WorldAllreduce
            | Kind::TeamBarrier
            | Kind::Alloc
            | Kind::Alltoall
            | Kind::Matching
                if self.peer != Peer::Oshmem => {}
            Kind::Put | Kind::Get | Kind::PutBell | Kind::Atomic | Kind::Bandwidth | Kind::Barrier => {}
            _ => return Ok(Vec::new()),
        }
        let batches = if self.quick { 2 } else { 20 };
        let crowded = ranks > crate::bench::cores::allowed_cpus().len();
        let shorten = if self.quick || crowded { 50 } else { 1 };
        let mut command = self.start(ranks);
        command.arg(&self.file).args([kind.name(), &batches.to_string(), &shorten.to_string()]);
        command.args(sizes.iter().map(usize::to_string));
        values(kind, sizes, &run(command, RUNNING)?)
    }

    fn startup(&self, ranks: usize) -> anyhow::Result<Vec<(usize, f64)>> {
        let mut times = Vec::new();
        for _ in 0..if self.quick { 1 } else { 5 } {
            let begin = Instant::now();
            let mut command = self.start(ranks);
            command.arg(&self.empty);
            run(command, RUNNING)?;
            times.push(begin.elapsed().as_secs_f64());
        }
        Ok(Summary::of(&times).map(|times| (0, times.median)).into_iter().collect())
    }
}

/// The median of each size, of a program that prints a line a batch: the size, and nanoseconds an operation.
///
/// # Errors
/// If there is none.
pub(super) fn values(kind: Kind, sizes: &[usize], output: &str) -> anyhow::Result<Vec<(usize, f64)>> {
    let lines: Vec<(usize, f64)> = output.lines().filter_map(batch).collect();
    let value = |&size: &usize| {
        let times: Vec<f64> = lines.iter().filter(|line| line.0 == size).map(|line| line.1).collect();
        let time = Summary::of(&times)?.median;
        let is_stream = matches!(kind, Kind::Bandwidth | Kind::LapiBandwidth);
        Some((size, if is_stream { size as f64 / time } else { time }))
    };
    let values: Vec<_> = sizes.iter().filter_map(value).collect();
    anyhow::ensure!(!values.is_empty(), "its program printed nothing to read");
    Ok(values)
}

fn batch(line: &str) -> Option<(usize, f64)> {
    let (size, time) = line.split_once(' ')?;
    Some((size.parse().ok()?, time.trim().parse().ok()?))
}
