//! What another process can do to the memory of a job through `/proc`, and what becomes of the job then.

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bellwether_tests::process::{Outcome, command, end, launched, wait};

const RING: &str = env!("CARGO_BIN_EXE_ring");
const LIMIT: Duration = Duration::from_secs(60);

/// A job of two ranks that has started: of the process that watches them, and of them, the descriptors of its memory.
struct Job {
    watcher: Child,
    memory: Vec<PathBuf>,
    stdout: BufReader<std::process::ChildStdout>,
}

/// A program that starts its own two ranks.
fn alone() -> Command {
    let mut ring = command(RING);
    ring.env("BELLWETHER_RANKS", "2");
    ring
}

impl Job {
    fn start(mut ring: Command, arguments: &[&str]) -> Job {
        let mut watcher =
            ring.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut stdout = BufReader::new(watcher.stdout.take().expect("piped"));
        let mut pids = vec![watcher.id().to_string()];
        while pids.len() < 3 {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).expect("text") > 0, "it ended early: {:?}", watcher.wait());
            pids.extend(line.trim().split_once(" is process ").map(|(_, pid)| pid.to_owned()));
        }
        let memory: Vec<PathBuf> = pids.iter().flat_map(|pid| memory_of(pid)).collect();
        assert!(memory.len() >= 3, "{memory:?}");
        Job { watcher, memory, stdout }
    }

    /// How it ended, and what it said after it had started.
    fn ends(mut self) -> Outcome {
        use std::io::Read;
        let ended = wait(&mut self.watcher, LIMIT);
        let in_time = ended.is_some();
        let status = ended.unwrap_or_else(|| end(&mut self.watcher));
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stdout.read_to_string(&mut stdout).expect("text");
        self.watcher.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        let outcome = Outcome { status, stdout, stderr, took: Duration::ZERO };
        assert!(in_time, "it had not ended after {LIMIT:?}: {outcome:#?}");
        outcome
    }
}

/// The descriptors of a process that are job memory.
fn memory_of(pid: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let is_memory = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|file| file.to_string_lossy().starts_with("/memfd:bellwether"))
    };
    all.map(|entry| entry.expect("it lives").path()).filter(is_memory).collect()
}

/// Clears the whole file: seals do not forbid that.
fn punch(path: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("our own");
    let len = file.metadata().expect("it is open").len() as libc::off_t;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a system call on a descriptor of ours; no memory of this process is in that file.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, len) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn nobody_cuts_the_memory_of_a_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let over = folder.path().join("over");
    let job = Job::start(alone(), &["until", over.to_str().expect("text")]);
    for path in &job.memory {
        let cut = Command::new("truncate").args(["-s", "0"]).arg(path).output().expect("coreutils are there");
        let said = String::from_utf8_lossy(&cut.stderr);
        assert!(!cut.status.success() && said.contains("not permitted"), "{}: {said}", path.display());
        let mode = std::fs::metadata(path).expect("it lives").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    std::fs::write(&over, "").expect("it can be written");
    job.ends().expect_success();
}

#[test]
fn a_job_whose_memory_is_cleared_ends_and_says_so() {
    let busy: &[&str] = &["until", "/nonexistent/file"];
    // Busy in collectives, and asleep; the last under the launcher.
    for (ring, arguments) in [(alone(), busy), (alone(), &["hold"]), (launched(RING, 2), busy)] {
        let job = Job::start(ring, arguments);
        if arguments == ["hold"] {
            std::thread::sleep(Duration::from_millis(300));
        }
        punch(&job.memory[0]);
        let outcome = job.ends().expect_failure();
        let signal = std::os::unix::process::ExitStatusExt::signal(&outcome.status);
        assert!(signal.is_none() && outcome.stderr.contains("memory of this job was"), "{arguments:?}: {outcome:#?}");
    }
}
