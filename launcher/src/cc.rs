//! `bellwether cc` and `bellwether c++`: the system's compilers, told where the headers and the library are.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use clap::Args;

use crate::example::OWN_PROFILE;
use crate::print::print;
use crate::shell::quoted;

/// Compile a C program against Bellwether's headers and library.
///
/// Runs the compiler that CC names (cc if it is not set; CXX and c++ for C++) with the folders of the headers and of the
/// library, and passes all other arguments on. Run from cargo's build folder, this command first builds the library
/// if it is not there.
#[derive(Args)]
#[command(after_help = "Examples:
  bellwether cc -O2 -o hello hello.c
  bellwether cc --show -o hello hello.c    show the compiler's command, run nothing
  bellwether cc --cxx -o hello hello.cc    the same as `bellwether c++`
  bellwether cc -o ring ring.c -lGPI2      a program for GASPI; -lgaspi and -lGPI2 name the same library
  bellwether cc --install /opt/bellwether  copy command, headers, libraries and bellwether.pc there

Exit status: that of the compiler; 2 if the library is not there, or --show cannot write; 127 if there is no such compiler")]
pub struct Cc {
    /// Copy this command, the headers, the libraries and a file for pkg-config to a folder, and compile nothing
    #[arg(long, value_name = "PREFIX", exclusive = true)]
    install: Option<PathBuf>,

    /// `--show` and `--cxx` of this command, anywhere; all others are the compiler's
    #[arg(
        value_name = "ARGUMENTS",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "install"
    )]
    arguments: Vec<OsString>,
}

/// Compile a C++ program against Bellwether's headers and library.
///
/// As `bellwether cc`, with the compiler that CXX names (c++ if it is not set).
#[derive(Args)]
pub struct Cxx {
    /// `--show` of this command, anywhere; all others are the compiler's
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    arguments: Vec<OsString>,
}

impl Cc {
    /// Becomes the compiler, or installs.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.install {
            Some(prefix) => install(&prefix),
            None => compile(self.arguments, false),
        }
    }
}

impl Cxx {
    /// Becomes the compiler.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        compile(self.arguments, true)
    }
}

/// Options with which a compiler does not link. It would warn about options for the linker then.
const NO_LINK: [&str; 6] = ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"];

/// Libraries that programs for GASPI link: `-lgaspi`, or GPI-2's library and its variant that checks arguments. Our library has their
/// calls.
const OTHER_NAMES: [&str; 3] = ["gaspi", "GPI2", "GPI2-dbg"];

fn compile(arguments: Vec<OsString>, mut cxx: bool) -> anyhow::Result<ExitCode> {
    let mut show = false;
    let mut passed = Vec::new();
    for argument in arguments {
        match argument.as_bytes() {
            b"--show" | b"-show" => show = true,
            b"--cxx" => cxx = true,
            // The library's other names, which an installed prefix has beside it.
            word if OTHER_NAMES.iter().any(|name| word.strip_prefix(b"-l") == Some(name.as_bytes())) => {}
            _ => passed.push(argument),
        }
    }
    let place = Installation::find()?;
    let (variable, usual) = if cxx { ("CXX", "c++") } else { ("CC", "cc") };
    let chosen = env::var_os(variable).filter(|name| !name.is_empty()).unwrap_or_else(|| usual.into());
    // As make does, a compiler may come with options: CC="gcc -m64".
    let mut words =
        chosen.as_bytes().split(|byte| *byte == b' ').filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let compiler = words.next().context("CC or CXX names no compiler")?;
    let mut command = Command::new(compiler);
    command.args(words).args(&passed);
    command.arg(joined("-I", &place.include));
    if !passed.iter().any(|argument| NO_LINK.iter().any(|option| argument == option)) {
        command.arg(joined("-L", &place.lib)).arg(joined("-Wl,-rpath,", &place.lib)).arg("-lbellwether");
    }
    if show {
        let words = std::iter::once(command.get_program()).chain(command.get_args()).map(quoted);
        let line = words.collect::<Vec<_>>().join(&b' ');
        print([line.as_slice(), b"\n"].concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    let compiler = compiler.to_owned();
    let error = command.exec();
    eprintln!("bellwether: cannot run the compiler {}: {error}; name another in {variable}", compiler.display());
    Ok(ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }))
}

fn joined(option: &str, path: &Path) -> OsString {
    let mut word = OsString::from(option);
    word.push(path);
    word
}

/// Where headers and libraries are.
struct Installation {
    include: PathBuf,
    lib: PathBuf,
}

const SHARED: &str = "libbellwether.so";
const STATIC: &str = "libbellwether.a";

impl Installation {
    /// Beside this command: in the prefix it is installed in, or in the folder that cargo has built it in.
    fn find() -> anyhow::Result<Installation> {
        let command = env::current_exe().context("cannot find the file of this command")?;
        let folder = command.parent().context("this command is in no folder")?;
        if let Some(prefix) = folder.parent() {
            let place = Installation { include: prefix.join("include"), lib: prefix.join("lib") };
            if place.include.join("cheetah.h").exists() && place.lib.join(SHARED).exists() {
                return Ok(place);
            }
        }
        let sources = sources();
        let place = Installation { include: sources.join("include"), lib: folder.to_owned() };
        // Elsewhere, as in the folder of `cargo install`, a build would leave its files beside other commands.
        // Cargo leaves one of these in a folder that it builds in.
        let marks = ["CACHEDIR.TAG", ".rustc_info.json"];
        let is_cargos = folder.parent().is_some_and(|target| marks.iter().any(|mark| target.join(mark).exists()));
        if !place.include.exists() || !is_cargos && !place.lib.join(SHARED).exists() {
            bail!(
                "there is no library: this command is neither in PREFIX/bin beside PREFIX/include and PREFIX/lib, nor in a folder \
                 that cargo has built it in from the sources at {}; install it with `cargo run --release -- cc --install PREFIX` there",
                sources.display()
            );
        }
        // `cargo run` builds what has changed in this command; so does this for the library.
        if env::var_os("CARGO").is_some() || !place.lib.join(SHARED).exists() {
            build(&sources, folder)?;
        }
        Ok(place)
    }
}

/// The sources of the library that belongs to this command, if this machine has them.
fn sources() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi");
    path.canonicalize().unwrap_or(path)
}

/// Builds the library into `folder`, as this command was built.
fn build(sources: &Path, folder: &Path) -> anyhow::Result<()> {
    let target = folder.parent().context("this command is in no folder of cargo's")?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.args(["build", "--quiet", "-p", "bellwether-capi", "--profile", OWN_PROFILE, "--target-dir"]).arg(target);
    if cfg!(feature = "mpi") {
        cargo.args(["--features", "mpi"]);
    }
    let status = cargo.current_dir(sources).stdin(Stdio::null()).status();
    let status = status.context("the library is not built yet, and cargo cannot be run")?;
    if !status.success() || !folder.join(SHARED).exists() {
        bail!("cargo could not build the library ({status}) in {}", folder.display());
    }
    Ok(())
}

/// Copies everything that programs need to `prefix`.
fn install(prefix: &Path) -> anyhow::Result<ExitCode> {
    let place = Installation::find()?;
    let templates = ["bellwether.pc.in", "gaspi.pc.in"].map(|name| {
        let template = sources().join("pkgconfig").join(name);
        fs::read_to_string(&template)
            .with_context(|| format!("installing needs Bellwether's sources: {}", template.display()))
    });
    let [template, gaspi] = templates;
    let (template, gaspi) = (template?, gaspi?);
    // Before anything is written: a partial installation would be taken for a complete one.
    for library in [SHARED, STATIC].map(|name| place.lib.join(name)) {
        if !library.is_file() {
            bail!(
                "installing needs {}: in the sources, `cargo run --release -- cc --install PREFIX` builds it",
                library.display()
            );
        }
    }
    let [bin, include, lib] = ["bin", "include", "lib"].map(|name| prefix.join(name));
    for folder in [&bin, &lib.join("pkgconfig")] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    // Absolute, so that the file for pkg-config holds from everywhere.
    let prefix = prefix.canonicalize().with_context(|| format!("cannot find {}", prefix.display()))?;
    for library in [SHARED, STATIC] {
        copy(&place.lib.join(library), &lib.join(library))?;
        let (_, kind) = library.rsplit_once('.').expect("a library's name");
        for name in OTHER_NAMES {
            link(library, &lib.join(format!("lib{name}.{kind}")))?;
        }
    }
    copy_headers(&place.include, &include)?;
    let text = template
        .replace("@PREFIX@", prefix.to_str().context("the name of the prefix is not UTF-8")?)
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let file = lib.join("pkgconfig/bellwether.pc");
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    for (name, version) in GASPI_VERSIONS {
        let file = lib.join("pkgconfig").join(format!("{name}.pc"));
        let text = gaspi.replace("@NAME@", name).replace("@VERSION@", version);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    // Last: `Installation::find` takes the libraries beside the command as complete.
    copy(&env::current_exe().context("cannot find the file of this command")?, &bin.join("bellwether"))?;
    Ok(ExitCode::SUCCESS)
}

/// The modules that pkg-config has for GASPI, with the versions that programs compare: of the specification, and of the GPI-2 whose
/// interface the headers have.
const GASPI_VERSIONS: [(&str, &str); 2] = [("gaspi", "17.1.0"), ("GPI2", "1.5.1")];

/// Makes another name of a file in the same folder.
fn link(file: &str, name: &Path) -> anyhow::Result<()> {
    let _ = fs::remove_file(name);
    symlink(file, name).with_context(|| format!("cannot link {} to {file}", name.display()))
}

/// Copies a file to a new one: a job that runs the old one keeps it.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let _ = fs::remove_file(to);
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Copies the headers, with those in folders of their own.
fn copy_headers(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        let (here, there) = (entry.path(), to.join(entry.file_name()));
        if here.is_dir() { copy_headers(&here, &there) } else { copy(&here, &there) }?;
    }
    Ok(())
}
