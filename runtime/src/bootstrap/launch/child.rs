//! Making a rank's process.
//!
//! As `posix_spawn` does it: the child shares our memory and we stand still until it has executed the
//! program, so that nothing is copied and a failure in the child is seen by us at once. Unlike
//! `posix_spawn` it can ask to die with its parent, and gives a descriptor for the process.

use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::{env, io, mem, ptr};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::error::LaunchError;
use super::program;
use super::signals::{Blocked, disposition};
use super::spec::{Bind, JobSpec};

/// Bytes of stack for the few calls a child makes before it executes the program.
const CHILD_STACK: usize = 64 * 1024;

/// Everything the ranks of a job have in common when they are started.
pub(super) struct Spawner {
    path: CString,
    args: Vec<CString>,
    env: Vec<CString>,
    /// CPUs to deal out, empty when ranks are not bound.
    cpus: Vec<usize>,
    /// Kept open for every rank.
    inherit: RawFd,
    group: Pid,
    mask: libc::sigset_t,
    /// Signals for which this process has a handler, or which Rust or the supervisor ignores on its own.
    reset: Vec<c_int>,
    files: Option<libc::rlimit>,
    stack: Vec<u128>,
}

/// A rank's three standard streams.
pub(super) struct Streams<'a> {
    pub(super) stdin: BorrowedFd<'a>,
    pub(super) stdout: BorrowedFd<'a>,
    pub(super) stderr: BorrowedFd<'a>,
    /// A descriptor that the rank inherits under its number.
    pub(super) kept: Option<BorrowedFd<'a>>,
}

/// Everything that a child needs, made before the child starts: it must not allocate.
struct Plan<'a> {
    path: *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    streams: [RawFd; 3],
    kept: RawFd,
    spawner: &'a Spawner,
    cpus: Option<CpuSet>,
    parent: c_int,
    /// Written by the child when it fails.
    failed: Option<(&'static str, c_int)>,
}

impl Spawner {
    /// `mask` is the set of signals ranks shall hold back, `files` the limit on open files they get, `file_size` whether they
    /// get back the default action of SIGXFSZ.
    pub(super) fn new(
        spec: &JobSpec<'_>,
        group: Pid,
        mask: libc::sigset_t,
        files: Option<libc::rlimit>,
        file_size: bool,
    ) -> Result<Spawner, LaunchError> {
        let path = program::find(&spec.program)?;
        let mut args = vec![c_string(spec.program.clone(), || "the program's name".into())?];
        for (i, arg) in spec.args.iter().enumerate() {
            args.push(c_string(arg.clone(), || format!("argument {}", i + 1))?);
        }
        let size = (super::SIZE.into(), spec.ranks.to_string().into());
        let extra = || spec.extra_env.iter().chain([&size]);
        let added = |key: &OsString| extra().any(|(other, _)| other == key);
        // A rank must not start ranks of its own because we were told to.
        let ours =
            env::vars_os().filter(|(key, _)| !added(key) && key != "BELLWETHER_RANKS" && key != super::TERM_WIDTH);
        let env = ours.chain(extra().cloned()).map(variable);
        let cpus = match spec.bind {
            Bind::None => Vec::new(),
            Bind::Core => allowed_cpus()?,
        };
        // Rust's own start-up ignores SIGPIPE; programs expect its default action.
        let reset = (1..=64).filter(|&signal| match disposition(signal) {
            libc::SIG_DFL => false,
            libc::SIG_IGN => signal == libc::SIGPIPE || signal == libc::SIGCHLD || file_size && signal == libc::SIGXFSZ,
            _ => true,
        });
        Ok(Spawner {
            path: c_string(path.into_os_string(), || "the program's path".into())?,
            args,
            env: env.collect::<Result<_, _>>()?,
            cpus,
            inherit: spec.inherit.map_or(-1, |fd| fd.as_raw_fd()),
            group,
            mask,
            reset: reset.collect(),
            files,
            stack: vec![0; CHILD_STACK / size_of::<u128>()],
        })
    }

    /// Starts a rank, the host's `seat`-th. Returns its process and a descriptor of the process when it has begun to execute.
    pub(super) fn spawn(
        &mut self,
        rank: usize,
        seat: usize,
        rank_env: Vec<(OsString, OsString)>,
        streams: &Streams<'_>,
    ) -> Result<(Pid, OwnedFd), LaunchError> {
        let number = [(super::RANK.into(), rank.to_string().into())];
        let own = number.into_iter().chain(rank_env).map(variable);
        let own: Vec<CString> = own.collect::<Result<_, _>>()?;
        let replaced = |var: &&CString| !own.iter().any(|new| key(new) == key(var));
        let env = pointers(self.env.iter().filter(replaced).chain(&own));
        let args = pointers(self.args.iter());
        let top = self.stack.as_mut_ptr_range().end;
        let mut plan = Plan {
            path: self.path.as_ptr(),
            args: args.as_ptr(),
            env: env.as_ptr(),
            streams: [&streams.stdin, &streams.stdout, &streams.stderr].map(|fd| fd.as_raw_fd()),
            kept: streams.kept.map_or(-1, |fd| fd.as_raw_fd()),
            cpus: self.cpus_of(seat),
            spawner: self,
            parent: rustix::process::getpid().as_raw_nonzero().get(),
            failed: None,
        };
        let mut pidfd: c_int = -1;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
        let blocked = Blocked::all();
        // SAFETY:
        // - `top` is the end of a live, 16-byte aligned stack nobody else uses: children come one at
        //   a time, since CLONE_VFORK holds this thread until the child has executed or ended;
        // - `plan` outlives the child's use of it for the same reason, and only the child touches it;
        // - no signal handler runs on the shared memory: all signals are held back, and the child
        //   drops the handlers before it lets signals in.
        let pid = unsafe { libc::clone(child, top.cast(), flags, (&raw mut plan).cast::<c_void>(), &raw mut pidfd) };
        let error = io::Error::last_os_error();
        drop(blocked);
        let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else {
            return Err(LaunchError::Start { rank, step: "clone", source: error });
        };
        // SAFETY: the kernel stored a new descriptor there when it made the process.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        let Some((step, code)) = plan.failed else {
            return Ok((pid, pidfd));
        };
        // It has ended already; waiting for it only removes its entry.
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        Err(self.explain(rank, step, io::Error::from_raw_os_error(code)))
    }

    fn explain(&self, rank: usize, step: &'static str, source: io::Error) -> LaunchError {
        let path = OsString::from_vec(self.path.as_bytes().to_vec()).into();
        match source.raw_os_error() {
            Some(libc::ENOEXEC) if step == "execve" => LaunchError::NotExecutable {
                path,
                why: "it is neither a program for this machine nor a script that begins with #!".into(),
            },
            Some(libc::ENOENT) if step == "execve" => {
                LaunchError::NotExecutable { path, why: "the interpreter or loader it names does not exist".into() }
            }
            Some(libc::EACCES) if step == "execve" => LaunchError::NotExecutable {
                path,
                why: "the system does not let you execute it (permissions, or a noexec mount)".into(),
            },
            _ => LaunchError::Start { rank, step, source },
        }
    }

    fn cpus_of(&self, seat: usize) -> Option<CpuSet> {
        let cpu = *self.cpus.get(seat.checked_rem(self.cpus.len())?)?;
        let mut set = CpuSet::new();
        set.set(cpu);
        Some(set)
    }
}

/// The child's side. It shares the parent's memory: system calls only, then the program.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to a Plan which it does not touch until this child has gone.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    let failed = prepare(plan).err().unwrap_or_else(|| {
        // SAFETY: path, arguments and environment are null-terminated arrays of C strings.
        unsafe { libc::execve(plan.path, plan.args, plan.env) };
        ("execve", errno())
    });
    plan.failed = Some(failed);
    // SAFETY: ends this process at once and touches no memory of the parent's.
    unsafe { libc::_exit(127) }
}

/// Changes everything in the rank that must differ from what it inherits.
fn prepare(plan: &Plan<'_>) -> Result<(), (&'static str, c_int)> {
    let spawner = plan.spawner;
    let check = |result: c_int, step| {
        if result < 0 { Err((step, errno())) } else { Ok(()) }
    };
    let group = spawner.group.as_raw_nonzero().get();
    // SAFETY: system calls on plain values and on records that live in the parent, which stands still.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), "prctl")?;
        // A parent that died before the call above would never be told to us.
        if libc::getppid() != plan.parent {
            return Err(("the launcher has gone", libc::ESRCH));
        }
        check(libc::setpgid(0, group), "setpgid")?;
        for (from, to) in plan.streams.into_iter().zip(0..) {
            if from != to {
                check(libc::dup2(from, to), "dup2")?;
            }
        }
        for kept in [spawner.inherit, plan.kept] {
            if kept >= 0 {
                check(libc::fcntl(kept, libc::F_SETFD, 0), "fcntl")?;
            }
        }
        if let Some(limit) = &spawner.files {
            check(libc::setrlimit(libc::RLIMIT_NOFILE, limit), "setrlimit")?;
        }
    }
    if let Some(cpus) = &plan.cpus {
        sched_setaffinity(None, cpus).map_err(|e| ("sched_setaffinity", e.raw_os_error()))?;
    }
    // SAFETY: a zeroed action is the default action with no flags; the mask is an initialised set.
    unsafe {
        let default: libc::sigaction = mem::zeroed();
        for &signal in &spawner.reset {
            check(libc::sigaction(signal, &default, ptr::null_mut()), "sigaction")?;
        }
        libc::sigprocmask(libc::SIG_SETMASK, &spawner.mask, ptr::null_mut());
    }
    Ok(())
}

fn errno() -> c_int {
    // SAFETY: the address is that of this thread's errno, always valid.
    unsafe { *libc::__errno_location() }
}

fn allowed_cpus() -> Result<Vec<usize>, LaunchError> {
    let set = sched_getaffinity(None).map_err(LaunchError::system("sched_getaffinity"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

fn c_string(text: OsString, what: impl FnOnce() -> String) -> Result<CString, LaunchError> {
    CString::new(text.into_vec()).map_err(|_| LaunchError::ZeroByte { what: what() })
}

fn variable((key, value): (OsString, OsString)) -> Result<CString, LaunchError> {
    let what = format!("environment variable {}", key.display());
    c_string([key.as_bytes(), b"=", value.as_bytes()].concat().into_os(), || what)
}

/// `Vec<u8>` as the system's kind of string.
trait IntoOs {
    fn into_os(self) -> OsString;
}

impl IntoOs for Vec<u8> {
    fn into_os(self) -> OsString {
        OsString::from_vec(self)
    }
}

/// The name of an environment variable.
fn key(variable: &CString) -> &[u8] {
    variable.as_bytes().split(|&b| b == b'=').next().unwrap_or_default()
}

/// A null-terminated array of pointers to C strings.
fn pointers<'a>(strings: impl Iterator<Item = &'a CString>) -> Vec<*const c_char> {
    strings.map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}
