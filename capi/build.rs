//! Names the shared library inside itself, so that programs look for the name and not for the path they were linked with. Finds out whether
//! names of calls can be weak symbols, so that a program may define them itself.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// What the shared library exports beside what rustc lists.
const WEAK_NAMES: &str = "{ global: gaspi_*; bellwether_gaspi_*; };\n";
/// A library with such a name.
const PROBE: &str = "#[unsafe(no_mangle)]
pub extern \"C\" fn strong() {}
std::arch::global_asm!(\".weak gaspi_probe\", \".set gaspi_probe, {call}\", call = sym strong);
";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    ["RUSTC", "RUSTC_LINKER", "CARGO_ENCODED_RUSTFLAGS"]
        .iter()
        .for_each(|name| println!("cargo::rerun-if-env-changed={name}"));
    println!("cargo::rustc-check-cfg=cfg(weak_names)");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbellwether.so");
    if let Some(list) = weak_names() {
        println!("cargo::rustc-cfg=weak_names");
        println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", list.display());
    }
}

/// Where the list of weak names is, if the linker takes it beside rustc's and exports them. LLD does, which rustc uses on x86-64; GNU ld takes
/// one list.
fn weak_names() -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os("OUT_DIR")?);
    let (list, source, library) = (folder.join("weak_names"), folder.join("probe.rs"), folder.join("libprobe.so"));
    fs::write(&list, WEAK_NAMES).and_then(|()| fs::write(&source, PROBE)).ok()?;
    let mut rustc = Command::new(env::var_os("RUSTC")?);
    // Without the table that has local names, too.
    rustc.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=probe", "--cap-lints=allow", "-Cstrip=symbols"]);
    rustc.arg("--target").arg(env::var_os("TARGET")?);
    // As this library is linked.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    let flag = |name: &str, value: &OsStr| {
        let mut flag = OsString::from(name);
        flag.push(value);
        flag
    };
    rustc.args(env::var_os("RUSTC_LINKER").map(|linker| flag("-Clinker=", &linker)));
    rustc.arg(flag("-Clink-arg=-Wl,--version-script=", list.as_os_str()));
    let made = rustc.arg("-o").arg(&library).arg(&source).output().ok()?;
    let name = b"\0gaspi_probe\0";
    let is_exported = || fs::read(&library).is_ok_and(|bytes| bytes.windows(name.len()).any(|part| part == name));
    (made.status.success() && is_exported()).then_some(list)
}
