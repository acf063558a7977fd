//! C programs of `tests/programs`: compiled with the system's compilers, and run as jobs.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use bellwether_tests::process::{Outcome, command, run};
use tempfile::TempDir;

/// Longer than any program takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(100);

/// Names the folder that holds the libraries and the launcher where they are built already. Else the first test builds them:
/// cargo builds no shared library for the tests of its package.
const BUILT: &str = "C_PROGRAMS_BUILD";

/// The folder of the libraries and of the command `bellwether`.
pub fn built() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| std::env::var_os(BUILT).map_or_else(build, |folder| here().join("..").join(folder)))
}

fn build() -> PathBuf {
    // The library has one name with and without MPI: each has its own folder.
    let target = if cfg!(feature = "mpi") { "../target/capi-mpi" } else { "../target" };
    let target = here().join(target);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "-q", "-p", "bellwether-capi", "-p", "bellwether-launcher", "--target-dir"]).arg(&target);
    cargo.args(if cfg!(feature = "mpi") { &["--features", "bellwether-capi/mpi"][..] } else { &[] });
    cargo.args(if cfg!(debug_assertions) { &[][..] } else { &["--release"] });
    assert!(cargo.current_dir(here()).status().expect("cargo runs").success(), "the library is not built");
    target.join(if cfg!(debug_assertions) { "debug" } else { "release" })
}

/// The folder of this crate.
pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A compiled program, in a folder of its own.
pub struct Program {
    pub path: PathBuf,
    folder: TempDir,
}

/// How a program is linked.
#[derive(Clone, Copy)]
pub enum Link {
    Shared,
    Static,
}

/// What `rustc --print native-static-libs` names for `libbellwether.a`.
const SYSTEM: [&str; 4] = ["-lpthread", "-ldl", "-lm", "-lgcc_s"];

/// Compiles `tests/programs/SOURCE` with `compiler` and `flags`; panics with the compiler's words. A program that links the shared
/// library is kept beside it for the next test, as long as sources and headers stay as they are.
pub fn compile(compiler: &str, flags: &[&str], source: &str, link: Link) -> Program {
    compile_file(compiler, flags, &here().join("tests/programs").join(source), link)
}

/// As [`compile`], of a source anywhere.
pub fn compile_file(compiler: &str, flags: &[&str], source: &Path, link: Link) -> Program {
    let folder = tempfile::tempdir().expect("a folder for the program");
    let path = folder.path().join("program");
    let mut cc = command(compiler);
    cc.args(flags).arg("-I").arg(here().join("include"));
    cc.arg(source).arg("-o").arg(&path);
    match link {
        Link::Shared => {
            // Without new tags, this folder comes before those of LD_LIBRARY_PATH: there cargo names folders of another build.
            let mut rpath = OsString::from("-Wl,--disable-new-dtags,-rpath,");
            rpath.push(built());
            cc.arg("-L").arg(built()).arg("-lbellwether").arg(rpath).arg("-lpthread");
            let kept = kept(compiler, flags, source);
            if !kept.exists() {
                run(&mut cc, LIMIT).expect_success();
                // Others may compile it at the same time: each moves a whole program there.
                let moving = kept.with_extension(folder.path().file_name().expect("a folder's name"));
                fs::create_dir_all(kept.parent().expect("a folder")).expect("a folder for programs");
                fs::copy(&path, &moving).and_then(|_| fs::rename(&moving, &kept)).expect("a program is kept");
            }
            return Program { path: kept, folder };
        }
        Link::Static => {
            cc.arg(built().join("libbellwether.a")).args(SYSTEM);
        }
    }
    run(&mut cc, LIMIT).expect_success();
    Program { path, folder }
}

/// Where a program is kept that is compiled so.
fn kept(compiler: &str, flags: &[&str], source: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (compiler, flags, built(), fs::read(source).expect("the source is there")).hash(&mut hasher);
    let mut folders = vec![here().join("include"), here().join("tests/programs")];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let (inside, headers): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        let mut headers: Vec<_> = headers.iter().map(|path| (path, fs::read(path).expect("a header"))).collect();
        headers.sort();
        headers.hash(&mut hasher);
        folders.extend(inside);
    }
    let name = source.file_stem().expect("a name").to_string_lossy();
    built().join("c-programs").join(format!("{name}-{:016x}", hasher.finish()))
}

/// The C programs of one vocabulary, `tests/programs/PREFIX_NAME.c`. Each prints a last line that names its ranks, as `ring: 2 ranks`.
pub struct Suite {
    pub prefix: &'static str,
    pub flags: &'static [&'static str],
    /// What the vocabulary calls ranks.
    pub ranks: &'static str,
}

/// Whether C source has this name, and not only as a part of another one.
pub fn has_name(source: &str, name: &str) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let bytes = source.as_bytes();
    source.match_indices(name).any(|(at, _)| {
        !is_part(at.checked_sub(1).and_then(|before| bytes.get(before))) && !is_part(bytes.get(at + name.len()))
    })
}

/// C source without its comments, which may name what no statement does.
fn without_comments(source: &str) -> String {
    let mut parts = source.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |code, part| code + part.split_once("*/").map_or("", |(_, after)| after))
}

impl Suite {
    pub fn program(&self, name: &str) -> Program {
        compile("cc", self.flags, &format!("{}_{name}.c", self.prefix), Link::Shared)
    }

    /// The sources of all its programs without comments, but for that which checks the header.
    pub fn sources(&self) -> String {
        let files =
            fs::read_dir(here().join("tests/programs")).expect("the programs").map(|file| file.expect("a file").path());
        let is_own = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(&format!("{}_", self.prefix)) && name.ends_with(".c") && !name.ends_with("_header.c")
        };
        files.filter(is_own).map(|path| without_comments(&fs::read_to_string(path).expect("a program"))).collect()
    }

    pub fn on_each(&self, name: &str, start: Start, counts: &[usize]) {
        self.program(name).on_each(start, counts, &[], |count| format!("{name}: {count} {}", self.ranks));
    }
}

/// Makes a test under the launcher, on so many ranks, and one under mpirun, of each program of a [`Suite`].
#[allow(unused_macros, reason = "each test file uses some of it")]
macro_rules! program_tests {
    ($suite:ident on $counts:expr; $($test:ident, $under_mpirun:ident: $name:literal;)+) => {$(
        #[test]
        fn $test() {
            $suite.on_each($name, $crate::common::Program::launched, &$counts);
        }

        #[cfg(feature = "mpi")]
        #[test]
        fn $under_mpirun() {
            $suite.on_each($name, $crate::common::Program::mpirun, &[1, 2]);
        }
    )+};
}
#[allow(unused_imports, reason = "each test file uses some of it")]
pub(crate) use program_tests;

/// A way to start a program on so many ranks with arguments: [`Program::launched`] or [`Program::mpirun`].
pub type Start = fn(&Program, usize, &[&str]) -> Outcome;

/// Checks that a header is C99 and C++98, and later standards, for both compilers. `file` is the header or includes it.
pub fn check_header(flags: &[&str], file: &str) {
    let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
    for (compiler, language, standards) in [
        ("cc", "c", ["c99", "c11"]),
        ("clang", "c", ["c99", "c17"]),
        ("c++", "c++", ["c++98", "c++20"]),
        ("clang++", "c++", ["c++98", "c++20"]),
    ] {
        for standard in standards {
            let mut check = command(compiler);
            check.arg(format!("-std={standard}")).args(strict).args(flags);
            check.arg("-I").arg(here().join("include")).args(["-x", language]).arg(here().join(file));
            run(&mut check, LIMIT).expect_success();
        }
    }
}

impl Program {
    /// Starts the program on each of these numbers of ranks. Each run has to succeed, and its last line has to be `line` of the number.
    /// Returns what the runs printed.
    pub fn on_each(
        &self,
        start: Start,
        counts: &[usize],
        arguments: &[&str],
        line: impl Fn(usize) -> String,
    ) -> Vec<String> {
        let run = |ranks: &usize| {
            let done = start(self, *ranks, arguments).expect_success();
            assert_eq!(done.stdout.lines().last(), Some(line(*ranks).as_str()), "{done:#?}");
            done.stdout
        };
        counts.iter().map(run).collect()
    }

    /// As [`Program::on_each`], of a program that prints one line.
    pub fn on_each_prints_one(
        &self,
        start: Start,
        counts: &[usize],
        arguments: &[&str],
        line: impl Fn(usize) -> String,
    ) {
        for printed in self.on_each(start, counts, arguments, line) {
            assert_eq!(printed.lines().count(), 1, "{printed}");
        }
    }

    /// Runs the program by itself.
    pub fn alone(&self, arguments: &[&str]) -> Outcome {
        self.run(command(self.path.to_str().expect("our own name")), arguments)
    }

    /// Runs the program by itself, with these settings.
    pub fn alone_with(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Outcome {
        let mut program = command(self.path.to_str().expect("our own name"));
        program.envs(settings.iter().copied());
        self.run(program, arguments)
    }

    /// Runs `bellwether run -n CONTEXTS PROGRAM ARGUMENTS`.
    pub fn launched(&self, contexts: usize, arguments: &[&str]) -> Outcome {
        self.launched_with(contexts, &[], arguments)
    }

    /// As [`Program::launched`], with settings.
    pub fn launched_with(&self, contexts: usize, settings: &[(&str, &str)], arguments: &[&str]) -> Outcome {
        let mut launcher = command(built().join("bellwether").to_str().expect("cargo's name"));
        launcher.envs(settings.iter().copied());
        launcher.args(["run", "-n", &contexts.to_string(), "--timeout", "90s"]).arg(&self.path);
        self.run(launcher, arguments)
    }

    /// As [`Program::launched`]. After a failure the other ranks have the time `grace` to end by themselves.
    pub fn launched_for(&self, contexts: usize, grace: &str, arguments: &[&str]) -> Outcome {
        let mut launcher = command(built().join("bellwether").to_str().expect("cargo's name"));
        launcher.args(["run", "-n", &contexts.to_string(), "--timeout", "90s", "--grace", grace]).arg(&self.path);
        self.run(launcher, arguments)
    }

    /// Runs `mpirun -n CONTEXTS PROGRAM ARGUMENTS`.
    pub fn mpirun(&self, contexts: usize, arguments: &[&str]) -> Outcome {
        // `mpirun` gives every rank a process group of its own, but leaves it in its session.
        let mut mpirun = command("setsid");
        mpirun.args(["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", &contexts.to_string()]);
        mpirun.arg(&self.path);
        self.run(mpirun, arguments)
    }

    /// `DIRECTORY` among the arguments is a new folder.
    fn run(&self, mut job: Command, arguments: &[&str]) -> Outcome {
        let folder = tempfile::tempdir_in(self.folder.path()).expect("a folder for the run");
        for argument in arguments {
            match *argument {
                "DIRECTORY" => job.arg(folder.path()),
                other => job.arg(other),
            };
        }
        run(&mut job, LIMIT)
    }
}
