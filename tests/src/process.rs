//! Code that the tests that start processes share.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How a program ended, and what it said.
#[derive(Debug)]
pub struct Outcome {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

impl Outcome {
    /// Panics, with all that was said, unless it ended well.
    #[track_caller]
    pub fn expect_success(self) -> Outcome {
        assert!(self.status.success(), "{self:#?}");
        self
    }

    /// Panics, with all that was said, if it ended well.
    #[track_caller]
    pub fn expect_failure(self) -> Outcome {
        assert!(!self.status.success(), "{self:#?}");
        self
    }
}

/// A command that finds no trace of the job this test itself may run in.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let known = ["BELLWETHER_", "OMPI_", "PMI", "SLURM_", "MV2_", "MPI_LOCAL"];
        if known.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// A job of the launcher, whose ranks have a minute to end by themselves after one has failed.
///
/// # Panics
/// If there is no launcher beside the program.
pub fn launched(program: &str, ranks: usize) -> Command {
    let launcher = std::path::Path::new(program).with_file_name("bellwether");
    assert!(launcher.exists(), "build the workspace first: there is no {}", launcher.display());
    let mut job = command(launcher.to_str().expect("plain text"));
    job.args(["run", "--grace", "60s", "-n", &ranks.to_string(), program]);
    job
}

/// How often a launcher is started again that has started nothing.
const AGAIN: usize = 9;

/// Runs `command` to its end.
///
/// # Panics
/// If it takes longer than `limit`: it is asked to end, killed if it does not, and what it said so far is shown.
#[track_caller]
pub fn run(command: &mut Command, limit: Duration) -> Outcome {
    let mut outcome = run_once(command, limit);
    for _ in 0..AGAIN {
        // Open MPI starts nothing if another `mpirun`, which ends, removes the folder of both at that moment.
        // Hydra dies where it answers a rank that it has just ended; what the ranks have printed is lost then.
        if !["orte_session_dir failed", "HYDU_sock_write"].iter().any(|text| outcome.stderr.contains(text)) {
            break;
        }
        outcome = run_once(command, limit);
    }
    outcome
}

/// Starts a launcher with `ranks` ranks that run `ring hold`; also gives their process ids, in no order. It is started again if it ends before
/// all ranks have told theirs: as in [`run`], or as Hydra does, which may die of SIGPIPE.
///
/// # Panics
/// If that happens too often.
#[track_caller]
pub fn start_holding(command: &mut Command, ranks: usize) -> (Child, Vec<String>) {
    for _ in 0..=AGAIN {
        let mut job = command.stdout(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let lines = BufReader::new(job.stdout.take().expect("piped")).lines().map_while(Result::ok).take(ranks);
        let pids: Vec<String> =
            lines.filter_map(|line| Some(line.split_once(" is process ")?.1.trim().to_owned())).collect();
        if pids.len() == ranks {
            return (job, pids);
        }
        end(&mut job);
    }
    panic!("{command:?} starts nothing");
}

#[track_caller]
fn run_once(command: &mut Command, limit: Duration) -> Outcome {
    let started = Instant::now();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = reader(child.stdout.take().expect("piped"));
    let stderr = reader(child.stderr.take().expect("piped"));
    let status = wait(&mut child, limit);
    let in_time = status.is_some();
    let status = status.unwrap_or_else(|| end(&mut child));
    let read = |reader: std::thread::JoinHandle<String>| reader.join().expect("the reader does not panic");
    let outcome = Outcome { status, took: started.elapsed(), stdout: read(stdout), stderr: read(stderr) };
    assert!(in_time, "{command:?} had not ended after {limit:?}: {outcome:#?}");
    outcome
}

/// Waits for `child`, at most `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            return Some(status);
        }
        if started.elapsed() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends `child`: first with a signal that it can handle, so that a launcher can end its ranks, then by SIGKILL. If it leads a session
/// (`setsid`), all processes of the session are killed.
pub fn end(child: &mut Child) -> ExitStatus {
    let _ = Command::new("kill").arg(child.id().to_string()).status();
    let status = wait(child, Duration::from_secs(5)).unwrap_or_else(|| {
        let _ = child.kill();
        child.wait().expect("our own child")
    });
    let left = session(child.id());
    if !left.is_empty() {
        let _ = Command::new("kill").arg("-9").args(left).status();
    }
    status
}

/// The processes of a session that run.
fn session(leader: u32) -> Vec<String> {
    let leader = leader.to_string();
    let member = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // After the name, which may hold anything but ends with the last parenthesis.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let [state, _, _, session] = std::array::from_fn(|field| rest.split_whitespace().nth(field).unwrap_or(""));
        pid.bytes().all(|byte| byte.is_ascii_digit()) && session == leader && !["Z", "X"].contains(&state)
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(member).collect()
}

/// From now on this thread can start neither threads nor processes: the kernel refuses. A limit (`RLIMIT_NPROC`) would not
/// hold for root. Man page `seccomp(2)`.
///
/// # Panics
/// If the kernel takes no filters.
pub fn forbid_threads() {
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let step = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let equals = |call: libc::c_long, jt| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, call as u32);
    let mut filter = [
        // The call's number is the first word of a filter's input.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        equals(libc::SYS_clone, 2),
        equals(libc::SYS_clone3, 1),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        step(libc::BPF_RET | libc::BPF_K, 0, refuse),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid for the call, which copies it; nothing here uses what it forbids.
    let taken = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(taken, "no filter: {}", std::io::Error::last_os_error());
}

/// Reads to the end in a thread of its own.
fn reader(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether tests that take minutes are asked for (`ROWS_FULL`, which `ci/test full` sets) and there are so many GiB of memory; says what
/// is missing.
pub fn has_time_and_memory(gibibytes: u64) -> bool {
    if !crate::is_full() {
        eprintln!("skipped: set ROWS_FULL to run it");
        return false;
    }
    let memory = std::fs::read_to_string("/proc/meminfo").expect("Linux has it");
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("Linux tells it");
    let available: u64 = available.trim().trim_end_matches(" kB").parse().expect("a number");
    // Other tests run beside it.
    let is_enough = available >> 20 >= gibibytes + 2;
    if !is_enough {
        eprintln!("skipped: it needs {} GiB of memory, and {} are available", gibibytes + 2, available >> 20);
    }
    is_enough
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_of_a_session_outlives_its_end() {
        // As mpirun does: each job has a process group; here it does not end when asked.
        let script = "trap 'exit 3' TERM; (trap '' TERM HUP; exec sleep 1000) & echo; wait";
        let mut child = command("setsid")
            .args(["bash", "-mc", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("setsid starts");
        child.stdout.take().expect("piped").read_exact(&mut [0]).expect("a line");
        assert_eq!(session(child.id()).len(), 2);
        assert_eq!(end(&mut child).code(), Some(3));
        let asked = Instant::now();
        while !session(child.id()).is_empty() {
            assert!(asked.elapsed() < Duration::from_secs(10), "{:?} live on", session(child.id()));
            std::thread::yield_now();
        }
    }
}
