//! Examinations by experiment: one process reads another's memory, and two ranks start.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use super::finding::Finding;
use crate::bench;

/// The hidden commands: a process whose memory is read, and one that reads it.
pub const TARGET: &str = "doctor-target";
pub const READER: &str = "doctor-reader";

/// The word that one process has in memory, and that the other must read.
static WORD: u64 = 0x6265_6c6c_7765_7468;

/// How long two ranks may take. They take a tenth of a second where nothing else runs.
const START: Duration = Duration::from_secs(30);

/// Everything of this room.
pub fn findings() -> Vec<Finding> {
    vec![attach(), two_ranks()]
}

/// The process whose memory is read: tells where, and stays until its standard input ends.
pub fn target() -> ExitCode {
    println!("{}", &raw const WORD as usize);
    let _ = std::io::stdin().read(&mut [0]);
    ExitCode::SUCCESS
}

/// Reads memory of the process with that number. Its exit status is 0, or the number of the error; 255 for bytes that are others.
pub fn reader(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let number =
        |text: Option<OsString>| text.and_then(|text| text.to_str()?.parse::<usize>().ok()).unwrap_or_default();
    let (pid, address) = (number(arguments.next()), number(arguments.next()));
    let mut word = 0u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: size_of::<u64>() };
    // SAFETY: one valid local range; the kernel checks the remote one.
    let moved = unsafe { libc::process_vm_readv(pid as i32, &raw const local, 1, &raw const remote, 1, 0) };
    match (moved, std::io::Error::last_os_error().raw_os_error()) {
        (8, _) if word == WORD => ExitCode::SUCCESS,
        (..0, Some(errno)) => ExitCode::from(errno as u8),
        _ => ExitCode::from(255),
    }
}

/// Two children of this process, as the ranks of a host are of their launcher.
fn attach() -> Finding {
    let what = "cross-memory attach";
    match try_attach() {
        Ok(()) => Finding::ok(what, "tried: a process reads the memory of another (process_vm_readv)"),
        Err(why) => Finding::warning(
            what,
            format!("tried: process_vm_readv: {why}; large values between ranks of a host are copied twice"),
            attach_mend(),
        ),
    }
}

fn try_attach() -> Result<(), String> {
    let own = |command: &str| {
        let mut child = Command::new("/proc/self/exe");
        child.arg0("bellwether").arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        child
    };
    let mut target = Ended(own(TARGET).spawn().map_err(|error| error.to_string())?);
    let mut line = String::new();
    let out = target.0.stdout.take().expect("it was asked for");
    BufReader::new(out).read_line(&mut line).map_err(|error| error.to_string())?;
    let (pid, address) = (target.0.id().to_string(), line.trim());
    let status = own(READER).args([&pid, address]).status().map_err(|error| error.to_string())?;
    match status.code() {
        Some(0) => Ok(()),
        Some(errno @ 1..255) => Err(std::io::Error::from_raw_os_error(errno).to_string()),
        _ => Err(format!("the process that reads ended with {status}")),
    }
}

/// A child that is ended with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It fails only for one that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attach_mend() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    if read("/proc/sys/kernel/yama/ptrace_scope").trim().parse::<u32>().is_ok_and(|scope| scope > 0) {
        return "sudo sysctl -w kernel.yama.ptrace_scope=0".into();
    }
    // A filter of system calls is in force, which is what containers have.
    if read("/proc/self/status").lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2')) {
        return "docker run --cap-add=SYS_PTRACE ...".into();
    }
    "export BELLWETHER_CMA=off  # saves the attempts".into()
}

fn two_ranks() -> Finding {
    let what = "two ranks";
    let own = std::env::current_exe().map_or_else(|_| "bellwether".into(), |path| path.display().to_string());
    let began = Instant::now();
    let mut command = Command::new("/proc/self/exe");
    // On this host also in an allocation of Slurm.
    let limit = format!("{}s", START.as_secs());
    command.arg0("bellwether").args(["run", "--hosts", "localhost:2", "-n", "2", "--timeout", &limit]);
    command.args(["/proc/self/exe", bench::rank::EMPTY]).stdin(Stdio::null());
    let mend = format!("{own} run --hosts localhost:2 {own} {}  # after the other mends", bench::rank::EMPTY);
    match command.output() {
        Ok(output) if output.status.success() => {
            Finding::ok(what, format!("start and end in {} ms", began.elapsed().as_millis()))
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("they say nothing").to_owned();
            Finding::error(what, format!("do not start: {first}"), mend)
        }
        Err(error) => Finding::error(what, format!("do not start: {error}"), mend),
    }
}
