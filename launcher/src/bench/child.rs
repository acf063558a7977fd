//! Other programs that a benchmark runs, each with a deadline.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::cores::allowed_cpus;

/// What Open MPI says if it has started nothing, since another `mpirun`, which ended, removed the folder of both at that moment.
const NO_FOLDER: &str = "orte_session_dir failed";
/// How often a program is started again for that.
const AGAIN: usize = 9;

/// `mpirun -n RANKS`; `bound` gives each rank a core of its own, if there are enough.
pub fn mpirun(ranks: usize, bound: bool) -> Command {
    let mut command = Command::new("mpirun");
    // Its ranks join each other.
    command.env_remove("BELLWETHER_RANKS");
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--quiet"]);
    command.args(["--bind-to", if bound && ranks <= allowed_cpus().len() { "core" } else { "none" }]);
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } == 0 {
        command.arg("--allow-run-as-root");
    }
    command
}

/// Tells mpirun the hosts, and the command that reaches them.
pub fn on_hosts(mpirun: &mut Command, hosts: Option<&str>, agent: Option<&str>) {
    mpirun.args(hosts.iter().flat_map(|hosts| ["--host", hosts]));
    // Open MPI asks for the name of the agent under that of its first kind of agent.
    mpirun.args(agent.iter().flat_map(|agent| ["--mca", "plm_rsh_agent", agent]));
}

/// A program under way, and what it writes.
pub struct Running {
    child: Child,
    out: File,
    err: File,
    name: String,
}

impl Running {
    /// Starts it, without input. It ends when this process does.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(mut command: Command) -> anyhow::Result<Running> {
        Running::start_again(&mut command)
    }

    fn start_again(command: &mut Command) -> anyhow::Result<Running> {
        let name = command.get_program().to_string_lossy().into_owned();
        let (out, err) = (nameless()?, nameless()?);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?).process_group(0);
        // SAFETY: prctl is async-signal-safe.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = command.spawn().with_context(|| format!("cannot start `{name}`"))?;
        Ok(Running { child, out, err, name })
    }

    /// Sleeps until it ends: what is measured has the cores to itself, and its end is seen at once.
    fn ends_within(&self, limit: Duration) -> std::io::Result<bool> {
        let begin = Instant::now();
        // SAFETY: a system call on our own child, which has not been waited for.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.child.id() as libc::pid_t, 0) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: just made, and no other code owns it.
        let process = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        loop {
            let left = limit.saturating_sub(begin.elapsed()).as_millis().min(i32::MAX as u128) as i32;
            let mut ended = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry.
            match unsafe { libc::poll(&mut ended, 1, left) } {
                1 => return Ok(true),
                0 if begin.elapsed() >= limit => return Ok(false),
                0 => {}
                _ => {
                    let error = std::io::Error::last_os_error();
                    if error.kind() != std::io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Waits for its end and gives what it wrote to standard output.
    ///
    /// # Errors
    /// If it fails, or takes longer than `limit`; with the line it wrote that tells most.
    pub fn finish(mut self, limit: Duration) -> anyhow::Result<String> {
        if !self.ends_within(limit)? {
            anyhow::bail!("`{}` did not end within {limit:?}", self.name);
        }
        let status = self.child.wait()?;
        if !status.success() {
            let text = read(&mut self.err)? + &read(&mut self.out)?;
            // Open MPI frames its messages with lines of dashes.
            let is_telling = |line: &&str| line.chars().any(char::is_alphanumeric);
            let is_error = |line: &&str| line.contains("error:") || line.contains("undefined reference");
            let has_no_folder = |line: &&str| line.contains(NO_FOLDER);
            let why = [text.lines().find(has_no_folder), text.lines().find(is_error), text.lines().find(is_telling)];
            let why = why.into_iter().flatten().next();
            let why = why.unwrap_or("it did not say why").trim();
            let how = match (status.code(), status.signal()) {
                (Some(code), _) => format!("ended with status {code}"),
                (_, signal) => format!("was killed by signal {}", signal.unwrap_or_default()),
            };
            anyhow::bail!("`{}` {how}: {why}", self.name);
        }
        read(&mut self.out)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // SAFETY: the group is that of our own child, which has not been waited for.
            unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
            let _ = self.child.wait();
        }
    }
}

/// Runs a program to its end and gives what it wrote to standard output. `mpirun` is started again if it has started nothing.
///
/// # Errors
/// As [`Running::start`] and [`Running::finish`].
pub fn run(mut command: Command, limit: Duration) -> anyhow::Result<String> {
    for _ in 0..AGAIN {
        match Running::start_again(&mut command)?.finish(limit) {
            Err(error) if error.to_string().contains(NO_FOLDER) => {}
            outcome => return outcome,
        }
    }
    Running::start_again(&mut command)?.finish(limit)
}

/// Whether there is such a program in `PATH`.
pub fn in_path(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// A file for the output of a program, for this user alone. Its size is not sealed: the file grows, and a program may truncate it by
/// opening `/dev/stdout`. We read the file and never map it.
fn nameless() -> anyhow::Result<File> {
    // SAFETY: a name that ends with 0; no memory is passed otherwise.
    let make = |flags| unsafe { libc::memfd_create(c"bellwether-bench".as_ptr(), libc::MFD_CLOEXEC | flags) };
    // Kernels before 6.3 do not know the flag.
    let fd = match make(libc::MFD_NOEXEC_SEAL) {
        -1 => make(0),
        fd => fd,
    };
    if fd < 0 {
        return Err(std::io::Error::last_os_error()).context("memfd_create");
    }
    // SAFETY: the descriptor is fresh and ours.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).context("fchmod")?;
    Ok(file)
}

fn read(file: &mut File) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_failure_and_deadline_are_told() {
        let patience = Duration::from_secs(20);
        assert_eq!(run(shell("echo out; echo err >&2"), patience).expect("it succeeds"), "out\n");
        let error = run(shell("echo ----- >&2; echo it broke >&2; exit 3"), patience).expect_err("it fails");
        assert_eq!(error.to_string(), "`sh` ended with status 3: it broke");
        let begin = Instant::now();
        let error = run(shell("sleep 60 & wait"), Duration::from_millis(50)).expect_err("it takes too long");
        assert!(error.to_string().contains("did not end within 50ms"), "{error}");
        assert!(begin.elapsed() < patience);
        assert!(run(Command::new("/nonexistent"), patience).is_err());
        assert!(in_path("sh") && !in_path("no-such-program"));
    }

    #[test]
    fn what_has_started_nothing_is_started_again() {
        let folder = tempfile::tempdir().expect("a place for temporary files");
        let count = folder.path().join("count");
        let script = format!(
            "echo >>{0}; [ $(wc -l <{0}) -gt 2 ] || {{ echo 'an error: x' >&2; echo '  {NO_FOLDER}' >&2; exit 1; }}; echo out",
            count.display()
        );
        let patience = Duration::from_secs(20);
        assert_eq!(run(shell(&script), patience).expect("the third succeeds"), "out\n");
        let always = shell(&format!("echo >>{}; echo '{NO_FOLDER}' >&2; exit 1", count.display()));
        let error = run(always, patience).expect_err("it never succeeds");
        assert_eq!(error.to_string(), format!("`sh` ended with status 1: {NO_FOLDER}"));
        assert_eq!(std::fs::read_to_string(count).expect("it was written").lines().count(), 3 + AGAIN + 1);
    }
}
