//! Ours through the libraries for C and C++: programs that make the same calls.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use super::program::{COMPILING, RUNNING, values};
use crate::bench::child::run;
use crate::bench::cores::allowed_cpus;
use crate::bench::folder::Folder;
use crate::bench::kind::Kind;

/// The programs, compiled with `bellwether cc` and `bellwether c++`.
pub struct Library {
    command: PathBuf,
    gaspi: PathBuf,
    lapi: PathBuf,
    matching: PathBuf,
    /// Value of the setting for the transport.
    transport: &'static str,
    quick: bool,
}

impl Library {
    /// Compiles the programs; builds the library first if it is not there.
    ///
    /// # Errors
    /// If there is no compiler or no library, or the compiler fails.
    pub fn build(quick: bool, transport: &'static str, folder: &Folder) -> anyhow::Result<Library> {
        let command = std::env::current_exe().context("finding this program's own file")?;
        let compile = |compiler: &str, file: &str, source: &str| {
            let (from, to) = (folder.file(file), folder.file(&file.replace('.', "-")));
            fs::write(&from, [include_str!("common.h"), source].concat())?;
            let mut compiling = Command::new(&command);
            compiling.args([compiler, "-O2", "-o"]).arg(&to).arg(&from).arg("-lpthread");
            // A run by cargo would build the library anew, in cargo's own lock.
            compiling.env_remove("CARGO");
            run(compiling, COMPILING).map(|_| to).with_context(|| format!("compiling {file}"))
        };
        let gaspi = compile("cc", "gaspi.c", include_str!("gaspi.c"))?;
        let lapi = compile("cc", "lapi.c", include_str!("lapi.c"))?;
        let matching = compile("c++", "matching.cpp", include_str!("matching.cpp"))?;
        Ok(Library { command, gaspi, lapi, matching, transport, quick })
    }

    /// Runs one of them for all sizes at once.
    ///
    /// # Errors
    /// If it fails or does not end.
    pub fn measure(&self, kind: Kind, sizes: &[usize], ranks: usize) -> anyhow::Result<Vec<(usize, f64)>> {
        let program = match kind {
            Kind::GaspiNotify | Kind::GaspiPost | Kind::GaspiWait | Kind::GaspiWaitsome => &self.gaspi,
            Kind::LapiAm | Kind::LapiRate | Kind::LapiBandwidth => &self.lapi,
            Kind::Matching => &self.matching,
            _ => return Ok(Vec::new()),
        };
        let crowded = ranks > allowed_cpus().len();
        let batches = if self.quick { "2" } else { "20" };
        let shorten = if self.quick || crowded { "50" } else { "1" };
        let mut command = Command::new(&self.command);
        command.env("BELLWETHER_TRANSPORT", self.transport);
        if kind == Kind::LapiBandwidth {
            command.env("BELLWETHER_STATIC_DATA", "on");
        }
        command.args(["run", "--bind", if crowded { "none" } else { "core" }, "-n", &ranks.to_string()]);
        command.arg(program).args([kind.name(), batches, shorten]);
        command.args(sizes.iter().map(usize::to_string));
        values(kind, sizes, &run(command, RUNNING)?)
    }
}
