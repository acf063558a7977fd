//! Running the command with a deadline, so that no test can hang.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Far longer than any test takes on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// The command, with these arguments, not yet started.
pub fn bellwether(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellwether"));
    command.args(args);
    command
}

/// `run -n N OPTIONS sh -c SCRIPT`.
pub fn script(ranks: usize, options: &[&str], script: &str) -> Command {
    let mut command = bellwether(&["run", "-n", &ranks.to_string()]);
    command.args(options).args(["sh", "-c", script]);
    command
}

/// A running command whose output is collected.
pub struct Job {
    child: Child,
    out: Arc<Mutex<Vec<u8>>>,
    err: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
    until: Instant,
}

/// What a command came to.
#[derive(Debug)]
pub struct Done {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Done {
    /// The exit code.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("killed: {self:?}"))
    }
}

impl Job {
    /// Starts the command; standard input is empty.
    pub fn start(command: Command) -> Job {
        Job::feed(command, b"")
    }

    /// Starts the command with this on its standard input.
    pub fn feed(mut command: Command, input: &[u8]) -> Job {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command was built for this test");
        let mut stdin = child.stdin.take().expect("it was asked for");
        let input = input.to_vec();
        let out = Arc::<Mutex<Vec<u8>>>::default();
        let err = Arc::<Mutex<Vec<u8>>>::default();
        let readers = vec![
            thread::spawn(move || drop(stdin.write_all(&input))),
            collect(child.stdout.take().expect("it was asked for"), &out),
            collect(child.stderr.take().expect("it was asked for"), &err),
        ];
        Job { child, out, err, readers, until: Instant::now() + DEADLINE }
    }

    /// Whether the command has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// The command's process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// What has come on standard output so far.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.out.lock().expect("readers do not panic")).into_owned()
    }

    fn err(&self) -> String {
        String::from_utf8_lossy(&self.err.lock().expect("readers do not panic")).into_owned()
    }

    /// Waits until so many lines have come on standard output.
    pub fn wait_for_lines(&mut self, count: usize) {
        while self.out().lines().count() < count {
            self.patience(&format!("{count} lines"));
        }
    }

    /// Waits until so many lines have come on standard error.
    pub fn wait_for_errors(&mut self, count: usize) {
        while self.err().lines().count() < count {
            self.patience(&format!("{count} lines on standard error"));
        }
    }

    /// Sends the command a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: plain numbers; the process is a child not yet waited for.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Waits for the command's end, at most so long; whether it has come.
    pub fn ends_within(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while self.is_running() {
            if Instant::now() > until {
                return false;
            }
            self.patience("the end of the job");
        }
        true
    }

    /// Waits for the command's end and for that of its output.
    pub fn wait(mut self) -> Done {
        let status = loop {
            match self.child.try_wait().expect("it is our child") {
                Some(status) => break status,
                None => self.patience("the end of the job"),
            }
        };
        // Somebody left behind who holds our pipes would be seen here.
        while !self.readers.iter().all(JoinHandle::is_finished) {
            self.patience("the end of the job's output");
        }
        Done { status, out: self.out(), err: self.err() }
    }

    fn patience(&mut self, what: &str) {
        if Instant::now() > self.until {
            panic!("waited too long for {what}; so far:\n{}\n{}", self.out(), self.err());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // A test that has failed leaves nothing running; one that has passed has waited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills a command that is still running after the deadline, until it is dropped.
pub struct Watchdog {
    _over: Sender<()>,
}

impl Watchdog {
    /// Watches a command whose pipes the test reads itself.
    pub fn over(child: &Child) -> Watchdog {
        let (over, watch) = channel::<()>();
        let pid = child.id() as i32;
        thread::spawn(move || {
            if watch.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the command took longer than {DEADLINE:?}");
                // SAFETY: plain numbers; the test has not waited for its child, or we had been told.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        });
        Watchdog { _over: over }
    }
}

fn collect(mut from: impl Read + Send + 'static, into: &Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    let into = Arc::clone(into);
    thread::spawn(move || {
        let mut piece = [0; 8192];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            into.lock().expect("readers do not panic").extend_from_slice(&piece[..n]);
        }
    })
}

/// Runs a command to its end.
pub fn run(command: Command) -> Done {
    Job::start(command).wait()
}

/// Runs a command that takes longer than the others to its end.
pub fn run_within(limit: Duration, command: Command) -> Done {
    let mut job = Job::start(command);
    job.until = Instant::now() + limit;
    job.wait()
}

/// A time for `sleep` that no other process on the machine sleeps: how to find this test's own.
pub fn own_sleep() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("9{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// How many processes have this word among their arguments.
pub fn processes_with(word: &str) -> usize {
    let arguments = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).ok();
    let has = |arguments: &Vec<u8>| arguments.split(|&b| b == 0).any(|arg| arg == word.as_bytes());
    fs::read_dir("/proc").expect("/proc is there").flatten().filter_map(arguments).filter(has).count()
}

/// Waits until so many processes have this word among their arguments.
pub fn wait_for_processes(word: &str, count: usize) {
    let until = Instant::now() + DEADLINE;
    while processes_with(word) != count {
        let there = processes_with(word);
        assert!(Instant::now() < until, "there are {there} processes `{word}`, not {count}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until this process is stopped, as by SIGTSTP.
pub fn wait_for_stop(pid: i32) {
    let until = Instant::now() + DEADLINE;
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The state is behind the name, which is in parentheses and may contain some.
        if stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" T")) {
            return;
        }
        assert!(Instant::now() < until, "process {pid} is not stopped: {stat:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
