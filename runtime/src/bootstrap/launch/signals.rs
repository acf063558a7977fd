//! Signals: their names, and receiving those that are to be forwarded through a descriptor.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{io, ptr};

use rustix::io::Errno;

use super::error::LaunchError;

/// The signals a job's owner may send, all passed on to the ranks.
const FORWARDED: [i32; 8] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGTSTP,
];

/// The usual name of a signal, `SIGKILL` for 9.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGCHLD => "SIGCHLD",
        libc::SIGCONT => "SIGCONT",
        libc::SIGSTOP => "SIGSTOP",
        libc::SIGTSTP => "SIGTSTP",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGSYS => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}

/// A set of no signals.
fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set it is given.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// The signals that this thread holds back.
pub(super) fn mask_now() -> libc::sigset_t {
    let mut set = empty_set();
    // SAFETY: a null new set only reads; the old one lives through the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &mut set) };
    set
}

/// What this process does at the moment when `signal` comes.
pub(super) fn disposition(signal: i32) -> libc::sighandler_t {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only reads; the zeroed record is valid whatever the call returns.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction
    }
}

/// Signals held back in this thread until the value is dropped.
pub(super) struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn new(set: &libc::sigset_t) -> Blocked {
        let mut before = empty_set();
        // SAFETY: both sets are initialised and live through the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, &mut before) };
        Blocked { before }
    }

    /// Holds back every signal: for the moment in which a new process still has our handlers.
    pub(super) fn all() -> Blocked {
        let mut set = empty_set();
        // SAFETY: the set is initialised.
        unsafe { libc::sigfillset(&mut set) };
        Blocked::new(&set)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: `before` was filled in by pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}

/// The signals to forward, held back in this thread and read from a descriptor.
///
/// One that this process ignores (`nohup`) is left ignored: the ranks inherit that.
pub(super) struct SignalQueue {
    fd: OwnedFd,
    blocked: Blocked,
}

impl SignalQueue {
    pub(super) fn open() -> Result<SignalQueue, LaunchError> {
        let mut set = empty_set();
        for signal in FORWARDED {
            if disposition(signal) != libc::SIG_IGN {
                // SAFETY: the set is initialised and the number is that of a signal.
                unsafe { libc::sigaddset(&mut set, signal) };
            }
        }
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(LaunchError::System { what: "signalfd", source });
        }
        // SAFETY: signalfd has just returned it, so nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(SignalQueue { fd, blocked: Blocked::new(&set) })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The signals this thread held back before: what the ranks should hold back.
    pub(super) fn mask_before(&self) -> libc::sigset_t {
        self.blocked.before
    }

    /// The next signal that has come, if any.
    pub(super) fn next(&self) -> Option<i32> {
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        loop {
            match rustix::io::read(&self.fd, &mut record) {
                Ok(n) if n == record.len() => break,
                Err(Errno::INTR) => continue,
                _ => return None,
            }
        }
        // The number is the record's first field, 32 bits wide.
        let [a, b, c, d, ..] = record;
        i32::try_from(u32::from_ne_bytes([a, b, c, d])).ok()
    }
}
