//! Compares the program with the launchers of this host.

use std::ffi::{CStr, OsStr};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bellwether_runtime::bootstrap::launch::{LaunchError, find_program};

use super::finding::Finding;
use super::output::Output;

/// Time limit for a launcher to print its version, and for its output to end after it has exited.
const LIMIT: Duration = Duration::from_secs(10);
const GOODBYE: Duration = Duration::from_millis(500);
/// The library by which ranks without MPI join those of Open MPI's mpirun, and of `srun --mpi=pmix`.
const PMIX: &CStr = c"libpmix.so.2";
/// A string that every program built with Bellwether contains.
const MARK: &[u8] = b"BELLWETHER_JOB";
/// The library of C programs.
const C_LIBRARY: &str = "libbellwether.so";

/// An MPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mpi {
    /// Open MPI: its launcher speaks PMIx.
    Open,
    /// MPICH and its relatives: their launchers speak PMI-1.
    Mpich,
}

impl Mpi {
    fn name(self) -> &'static str {
        match self {
            Mpi::Open => "Open MPI",
            Mpi::Mpich => "MPICH",
        }
    }

    fn join(self) -> &'static str {
        match self {
            Mpi::Open => "pmix",
            Mpi::Mpich => "pmi1",
        }
    }
}

/// Properties of a program.
#[derive(Debug, Default)]
pub struct Program {
    /// Tells whether two files are equal.
    pub digest: Option<u64>,
    /// Where it is, from the root.
    pub path: Option<PathBuf>,
    /// The MPI that it was built with.
    pub mpi: Option<Mpi>,
}

/// The bytes of a file as a digest, to compare it with that of another host.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Examines the program.
pub fn program(name: &OsStr, known: &mut Program) -> Vec<Finding> {
    let what = "program";
    let path = match find_program(name) {
        Ok(path) => path,
        Err(error) => return vec![Finding::error(what, error.to_string(), mend_name(name, &error))],
    };
    known.path = std::path::absolute(&path).ok();
    let shown = path.display();
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        // A file may be executable and not readable.
        Err(error) => return vec![Finding::ok(what, format!("{shown} can be executed; not examined: {error}"))],
    };
    known.digest = Some(digest(&bytes));
    if let Some(finding) = format_of(&path, &bytes) {
        return vec![finding];
    }
    let libraries = libraries(&path);
    let findings: Vec<Finding> = libraries.lines().filter_map(library).collect();
    // The numbers of their C interfaces: Open MPI's since 1.10 and 4, and that which MPICH's ABI initiative agreed on.
    known.mpi = match () {
        () if libraries.contains("libmpi.so.40") => Some(Mpi::Open),
        () if libraries.contains("libmpi.so.12") || libraries.contains("libmpich.so") => Some(Mpi::Mpich),
        () => None,
    };
    if !findings.is_empty() {
        return findings;
    }
    let built = known.mpi.map_or("without MPI".to_owned(), |mpi| format!("with {}", mpi.name()));
    // Statically, or through the library of C programs.
    let is_ours = bytes.windows(MARK.len()).any(|window| window == MARK) || libraries.contains(C_LIBRARY);
    vec![match is_ours {
        true => Finding::ok(what, format!("{shown}, built {built}")),
        // A script, or a program of another kind.
        false => Finding::ok(what, format!("{shown}, which does not use Bellwether itself")),
    }]
}

/// The command that mends a program of this name that cannot be started.
fn mend_name(name: &OsStr, error: &LaunchError) -> String {
    let shown = name.to_string_lossy();
    match error {
        LaunchError::NotExecutable { path, .. } if path.is_file() => format!("chmod +x {}", path.display()),
        LaunchError::NotExecutable { path, .. } => format!("ls -l {}  # and name a file in it", path.display()),
        _ if Path::new(name).is_file() => format!("bellwether doctor ./{shown}  # and start it by this name"),
        _ => format!("ls -l {shown}  # and copy it here, or mount its folder"),
    }
}

/// The reason why the system cannot execute a file that is executable.
fn format_of(path: &Path, bytes: &[u8]) -> Option<Finding> {
    let (what, shown) = ("program", path.display());
    if let Some(script) = bytes.strip_prefix(b"#!") {
        let line = script.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let interpreter = line.split_whitespace().next().unwrap_or_default();
        if find_program(OsStr::new(interpreter)).is_ok() {
            return None;
        }
        let found = format!("{shown} is a script for {interpreter:?}, which cannot be started");
        return Some(Finding::error(
            what,
            found,
            format!("ls -l {interpreter}  # and install it, or change line 1 of {shown}"),
        ));
    }
    // In the header of an ELF file the machine is at 18. Processors of x86-64 run what was built for i386, too.
    let own = std::fs::read("/proc/self/exe").unwrap_or_default();
    let machine = |file: &[u8]| file.get(18..20).map(<[u8]>::to_vec);
    const I386: [u8; 2] = [3, 0];
    if !bytes.starts_with(b"\x7fELF") {
        let found = format!("{shown} is neither a program nor a script that begins with `#!`");
        return Some(Finding::error(what, found, format!("file {shown}")));
    }
    let theirs = machine(bytes);
    let runs = theirs == machine(&own) || cfg!(target_arch = "x86_64") && theirs.as_deref() == Some(&I386);
    (!runs).then(|| {
        let found = format!("{shown} was built for another processor; this host is {}", std::env::consts::ARCH);
        Finding::error(
            what,
            found,
            format!("cargo build --release --target {}-unknown-linux-gnu", std::env::consts::ARCH),
        )
    })
}

/// The library that is missing according to a line of `ldd`.
fn library(line: &str) -> Option<Finding> {
    let what = "program";
    if !line.contains("not found") {
        return None;
    }
    // `./program: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./program)`
    if let Some((before, version)) = line.split_once("version `") {
        let version = version.split('\'').next().unwrap_or(version);
        let library = before.trim_end_matches([':', ' ']).rsplit([' ', '/']).next().unwrap_or(before);
        let found = format!("it needs {version} of {library}, which is older on this host than where it was built");
        return Some(Finding::error(what, found, "cargo build --release  # on the host with the oldest C library"));
    }
    let library = line.split_whitespace().next().unwrap_or(line);
    Some(Finding::error(
        what,
        format!("the loader does not find its library {library}"),
        format!("export LD_LIBRARY_PATH=\"$(dirname \"$(find / -name {library} 2>/dev/null | head -n 1)\")\""),
    ))
}

fn libraries(path: &Path) -> String {
    let mut ldd = Command::new("ldd");
    ldd.arg(path);
    output(ldd).unwrap_or_default()
}

/// The output of a command, on both streams; `None` if it cannot be started or does not end.
fn output(mut command: Command) -> Option<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    let until = Instant::now() + LIMIT;
    let (out, err) = (Output::of(child.stdout.take()?), Output::of(child.stderr.take()?));
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(out.take(GOODBYE) + &err.take(GOODBYE))
}

/// Examines the launchers in PATH, for a program that was built so.
pub fn launchers(program: &Program) -> Vec<Finding> {
    let (mpi, asked) = (program.mpi, std::env::var("BELLWETHER_JOIN").ok());
    let mut findings = Vec::new();
    if let Ok(path) = find_program(OsStr::new("mpirun")) {
        findings.push(mpirun(&path, mpi, asked.as_deref()));
    }
    if find_program(OsStr::new("srun")).is_ok() {
        let mut list = Command::new("srun");
        list.arg("--mpi=list");
        findings.push(srun(output(list).as_deref(), mpi, asked.as_deref()));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("launchers", "neither mpirun nor srun in PATH; `bellwether run` needs neither"));
    }
    findings
}

fn mpirun(path: &Path, program: Option<Mpi>, asked: Option<&str>) -> Finding {
    let (what, shown) = ("mpirun", path.display());
    let mut version = Command::new(path);
    version.arg("--version");
    let text = output(version).unwrap_or_default();
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing").trim();
    let own = match () {
        () if text.contains("Open MPI") || text.contains("OpenRTE") => Mpi::Open,
        () if text.contains("HYDRA") || text.contains("Intel(R) MPI") || text.contains("MPICH") => Mpi::Mpich,
        () => {
            let found = format!("{shown} is of no kind that is known here: {first}");
            return Finding::warning(what, found, "bellwether run -n 4 PROGRAM");
        }
    };
    let by_mpi = program.filter(|_| asked.is_none_or(|asked| matches!(asked, "auto" | "mpi")));
    match by_mpi {
        Some(built) if built == own => Finding::ok(what, format!("{shown} of {}, as the program's MPI", own.name())),
        Some(built) => Finding::error(
            what,
            format!(
                "{shown} is of {}, the program was built with {}: each rank would be alone",
                own.name(),
                built.name()
            ),
            format!("export BELLWETHER_JOIN={}", own.join()),
        ),
        // `bellwether run` starts such a program as well.
        None if own == Mpi::Open && !has_pmix() => Finding::warning(
            what,
            format!("{shown} of {} serves PMIx, and {} cannot be loaded", own.name(), PMIX.to_string_lossy()),
            "sudo apt-get install libpmix2",
        ),
        None => match asked.filter(|asked| !matches!(*asked, "auto" | "mpi") && *asked != own.join()) {
            Some(asked) => Finding::error(
                what,
                format!("{shown} of {} serves {}, and BELLWETHER_JOIN asks for {asked}", own.name(), own.join()),
                format!("export BELLWETHER_JOIN={}", own.join()),
            ),
            None => Finding::ok(what, format!("{shown} of {}; ranks join by {}", own.name(), own.join())),
        },
    }
}

fn srun(listed: Option<&str>, program: Option<Mpi>, asked: Option<&str>) -> Finding {
    let what = "srun";
    let listed = listed.unwrap_or("it does not end");
    let has = |plugin: &str| listed.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == plugin);
    if !has("none") {
        let first = listed.lines().next().unwrap_or("it says nothing").trim();
        return Finding::warning(what, format!("does not tell its plug-ins: {first}"), "srun --mpi=list");
    }
    if let Some(asked) = asked.filter(|asked| matches!(*asked, "pmix" | "pmi2") && !has(asked)) {
        let found = format!("has no plug-in {asked}, and BELLWETHER_JOIN asks for it");
        return Finding::error(what, found, "unset BELLWETHER_JOIN");
    }
    let by_mpi = program.is_some() && asked.is_none_or(|asked| matches!(asked, "auto" | "mpi"));
    match (has("pmix"), has("pmi2"), by_mpi) {
        (true, _, true) => Finding::ok(what, "start with srun --mpi=pmix"),
        (false, true, true) => Finding::error(
            what,
            "has pmi2 and no pmix; a program with MPI joins by PMIx, unless its MPI was built for PMI-2",
            "export BELLWETHER_JOIN=pmi2",
        ),
        (_, true, false) => Finding::ok(what, "start with srun --mpi=pmi2"),
        (true, false, false) if has_pmix() => Finding::ok(what, "start with srun --mpi=pmix"),
        (true, false, false) => Finding::warning(
            what,
            format!("has pmix and no pmi2, and {} cannot be loaded", PMIX.to_string_lossy()),
            "sudo apt-get install libpmix2",
        ),
        (false, false, _) => Finding::warning(
            what,
            "has neither the plug-in pmi2 nor pmix: each task would be alone",
            "sudo apt-get install slurm-wlm-basic-plugins",
        ),
    }
}

fn has_pmix() -> bool {
    // SAFETY: the name ends with a zero; the library's initialisers have no conditions, and ranks load it in the same way.
    let library = unsafe { libc::dlopen(PMIX.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    !library.is_null()
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn plug_ins_of_slurm_against_the_build() {
        let listed = |plugins: &str| format!("MPI plugin types are...\n\tnone\n\t{plugins}\n");
        let cases = [
            ("pmi2", None, None, State::Ok, None),
            ("pmi2", Some(Mpi::Open), None, State::Error, Some("export BELLWETHER_JOIN=pmi2")),
            ("pmi2", Some(Mpi::Open), Some("pmi2"), State::Ok, None),
            ("pmix\n\tpmix_v4", Some(Mpi::Open), None, State::Ok, None),
            ("pmi2", None, Some("pmix"), State::Error, Some("unset BELLWETHER_JOIN")),
            ("cray_shasta", None, None, State::Warning, Some("sudo apt-get install slurm-wlm-basic-plugins")),
        ];
        for (plugins, mpi, asked, state, mend) in cases {
            let finding = srun(Some(&listed(plugins)), mpi, asked);
            assert_eq!((finding.state, finding.mend.as_deref()), (state, mend), "{plugins}: {}", finding.found);
        }
        assert_eq!(srun(Some("srun: fatal: no configuration"), None, None).state, State::Warning);
    }
}
