//! The process that ends all ranks when the supervisor has gone, however it went.
//!
//! It is forked from the supervisor, leads the process group that all ranks join, and does nothing
//! but read from a pipe. Only the supervisor holds the other end, so the read returns when the
//! supervisor has died, `kill -9` included; the guardian then kills its group, itself with it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, setpgid, waitpid};

use super::error::LaunchError;
use super::signals::Blocked;

/// The guardian of one job. Dropping it ends what is left of the group, and the guardian.
pub(super) struct Guardian {
    pid: Pid,
    /// Closed by the kernel when this process dies; never written to.
    _alive: OwnedFd,
}

impl Guardian {
    pub(super) fn start() -> Result<Guardian, LaunchError> {
        let (watch, alive) = pipe_with(PipeFlags::CLOEXEC).map_err(LaunchError::system("pipe"))?;
        // No handler of ours may run in the copy, and it must outlive the signals ranks get.
        let blocked = Blocked::all();
        // SAFETY: the child only makes system calls on numbers it was handed, then ends: nothing that
        // another thread may have left locked at the moment of the fork is touched.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            guard(watch.as_raw_fd());
        }
        drop(blocked);
        let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else {
            let source = io::Error::last_os_error();
            return Err(LaunchError::System { what: "fork of the guardian", source });
        };
        let guardian = Guardian { pid, _alive: alive };
        // Both sides do this, so that the group exists before the first rank joins it.
        setpgid(Some(pid), Some(pid)).map_err(LaunchError::system("setpgid of the guardian"))?;
        Ok(guardian)
    }

    /// The process group of the ranks.
    pub(super) fn group(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to every process of the group; the guardian heeds none but SIGKILL.
    pub(super) fn signal(&self, signal: Signal) {
        // The guardian, dead or alive, keeps the number taken until it is waited for, so this can
        // reach no stranger. It fails only when the whole group has gone.
        let _ = kill_process_group(self.pid, signal);
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        while let Err(rustix::io::Errno::INTR) = waitpid(Some(self.pid), WaitOptions::empty()) {}
    }
}

/// What the guardian does, in a copy of the supervisor's memory in which only system calls are safe.
fn guard(watch: RawFd) -> ! {
    // SAFETY: plain system calls on values; the buffer is one byte and lives on this stack; the name
    // is a C string literal. Every signal is held back, so no handler runs here.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_NAME, c"bellwether-grd".as_ptr());
        libc::dup2(watch, 0);
        // Everything else it holds open would keep pipes of ours and of our callers from ending.
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) != 0 {
            for fd in 1..65_536 {
                libc::close(fd);
            }
        }
        let mut byte = 0u8;
        while libc::read(0, (&raw mut byte).cast(), 1) != 0 {
            if *libc::__errno_location() != libc::EINTR {
                break;
            }
        }
        libc::kill(0, libc::SIGKILL);
        libc::_exit(0)
    }
}
