//! The peers' programs: our own C over their libraries, compiled when they are needed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;

use super::work::{Outcome, Work};
use crate::bench::child::{in_path, mpirun, run};
use crate::bench::folder::Folder;

const COMPILING: Duration = Duration::from_secs(60);
const RUNNING: Duration = Duration::from_secs(300);

/// The beginning of the line with the result, which is in seconds for a unit of work.
const RESULT: &str = "app-peer ";

/// A system to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// PETSc's conjugate gradients
    Petsc,
    /// FFTW's transposition over MPI
    Fftw,
    /// C over MPI
    Mpi,
}

impl Peer {
    /// Its name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Petsc => "petsc",
            Peer::Fftw => "fftw",
            Peer::Mpi => "mpi",
        }
    }

    /// Flags for the compiler.
    ///
    /// # Errors
    /// If it is not installed; says what to install.
    fn flags(self) -> anyhow::Result<Vec<String>> {
        for tool in ["mpicc", "mpirun"] {
            anyhow::ensure!(
                in_path(tool),
                "there is no `{tool}` in PATH (Debian: apt-get install libopenmpi-dev openmpi-bin)"
            );
        }
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        match self {
            Peer::Mpi => Ok(words("-lm")),
            Peer::Fftw => Ok(words("-lfftw3_mpi -lfftw3 -lm")),
            Peer::Petsc => {
                let missing = "PETSc is not installed (Debian: apt-get install petsc-dev pkg-config)";
                anyhow::ensure!(in_path("pkg-config"), missing);
                let mut command = Command::new("pkg-config");
                command.args(["--cflags", "--libs", "PETSc"]);
                let flags = run(command, COMPILING).context(missing)?;
                Ok(words(&flags))
            }
        }
    }
}

/// A peer's program for one kind of work, compiled.
pub struct Program {
    work: Work,
    peer: Peer,
    file: PathBuf,
}

impl Program {
    /// Compiles it.
    ///
    /// # Errors
    /// If the peer is not installed, with the package that has it; if the compiler fails.
    pub fn build(work: Work, peer: Peer, folder: &Folder) -> anyhow::Result<Program> {
        let source = match (work, peer) {
            (Work::Cg, _) => include_str!("peers/cg_petsc.c"),
            (Work::Heat2d, _) => include_str!("peers/heat2d_mpi.c"),
            (Work::Transpose, Peer::Fftw) => include_str!("peers/transpose_fftw.c"),
            (Work::Transpose, _) => include_str!("peers/transpose_mpi.c"),
            (Work::Samplesort, _) => include_str!("peers/samplesort_mpi.c"),
            (Work::Bfs, _) => include_str!("peers/bfs_mpi.c"),
        };
        let flags = peer.flags()?;
        let name = format!("{}-{}", work.name(), peer.name());
        let (from, file) = (folder.file(&format!("{name}.c")), folder.file(&name));
        fs::write(folder.file("common.h"), include_str!("peers/common.h"))?;
        fs::write(&from, source)?;
        let mut command = Command::new("mpicc");
        command.args(["-O3", "-march=native", "-std=gnu11", "-o"]).arg(&file).arg(&from).args(flags);
        let hint = match peer {
            Peer::Fftw => "is FFTW for MPI installed? (Debian: apt-get install libfftw3-dev libfftw3-mpi-dev)",
            _ => "compiling the peer's program",
        };
        run(command, COMPILING).context(hint)?;
        Ok(Program { work, peer, file })
    }

    /// Whose program this is.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Runs it, bound to cores where there are enough.
    ///
    /// # Errors
    /// If it fails, does not end, or finds its own result wrong.
    pub fn measure(&self, ranks: usize, quick: bool) -> anyhow::Result<Outcome> {
        let mut command = mpirun(ranks, true);
        command.arg(&self.file).args(self.work.problem(quick));
        let output = run(command, RUNNING)?;
        let value = output.lines().find_map(|line| line.strip_prefix(RESULT)?.trim().parse::<f64>().ok());
        let seconds = value.context("its program printed no result: it found it wrong, or there was no work")?;
        Ok(Outcome { seconds, result: self.work.result(&output) })
    }
}
