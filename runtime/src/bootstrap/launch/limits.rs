//! What this process itself must be able to do before it starts ranks.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::mem::MaybeUninit;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::error::LaunchError;
use super::signals::disposition;

/// Descriptors that a rank costs: its process and two pipes; and those for all else.
const PER_RANK: u64 = 3;
const SPARE: u64 = 128;

/// Allows this process the descriptors that `like` ranks of one host need, for a job of `ranks`. Gives the limit as it was if that had
/// to be changed: ranks shall not notice (`select` cannot take descriptors above 1023).
pub(super) fn allow_files(ranks: usize, like: usize) -> Result<Option<libc::rlimit>, LaunchError> {
    let needed = (like as u64).saturating_mul(PER_RANK).saturating_add(SPARE);
    let before = getrlimit(Resource::Nofile);
    if before.current.is_none_or(|soft| soft >= needed) {
        return Ok(None);
    }
    if let Some(allowed) = before.maximum.filter(|&hard| hard < needed) {
        return Err(LaunchError::TooFewDescriptors { ranks, needed, allowed });
    }
    let raised = Rlimit { current: Some(needed), maximum: before.maximum };
    setrlimit(Resource::Nofile, raised).map_err(LaunchError::system("setrlimit"))?;
    let raw = |limit: Option<u64>| limit.unwrap_or(libc::RLIM_INFINITY);
    Ok(Some(libc::rlimit { rlim_cur: raw(before.current), rlim_max: raw(before.maximum) }))
}

/// Lets a write beyond the limit on the size of files fail with EFBIG, until the value is dropped: the default action of
/// SIGXFSZ would end this process without a word.
pub(super) struct FileSize {
    /// The default action was set before.
    changed: bool,
}

impl FileSize {
    pub(super) fn survive() -> FileSize {
        let changed = disposition(libc::SIGXFSZ) == libc::SIG_DFL;
        if changed {
            // SAFETY: ignores a signal for which no handler is set, so no code of ours runs.
            unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        }
        FileSize { changed }
    }

    /// Whether ranks must get the default action back.
    pub(super) fn changed(&self) -> bool {
        self.changed
    }
}

impl Drop for FileSize {
    fn drop(&mut self) {
        if self.changed {
            // SAFETY: sets the default action again, which runs no code of ours.
            unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
        }
    }
}

/// A process that ignores SIGCHLD never learns how its children ended.
pub(super) fn keep_children() {
    if disposition(libc::SIGCHLD) == libc::SIG_IGN {
        // SAFETY: sets the default action, which runs no code of ours.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

/// Tells ranks how wide the terminal is that their standard error ends up on, if it is one: through
/// the pipe they cannot see that.
pub(super) fn terminal_width() -> Option<(OsString, OsString)> {
    if !io::stderr().is_terminal() {
        return None;
    }
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: TIOCGWINSZ fills in a winsize; zeroes are a valid one.
    let size = unsafe {
        libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, size.as_mut_ptr());
        size.assume_init()
    };
    let columns = if size.ws_col == 0 { 80 } else { size.ws_col };
    Some((super::TERM_WIDTH.into(), columns.to_string().into()))
}
