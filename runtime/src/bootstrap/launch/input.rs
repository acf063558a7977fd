//! Standard input for rank 0.
//!
//! A file or pipe is simply inherited. A terminal is not: ranks are a process group of their own, in
//! the background as the terminal sees it, and would be stopped for reading. So we read for rank 0.

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::error::LaunchError;
use super::spec::Stdin;

/// The standard input of rank 0 and of the others.
pub(super) struct Input {
    null: OwnedFd,
    own: Option<OwnedFd>,
    /// The pipe that rank 0 reads if we read the terminal in its place.
    pipe: Option<OwnedFd>,
}

/// Carries what is typed from the terminal to rank 0.
pub(super) struct Pump {
    terminal: OwnedFd,
    to: OwnedFd,
    typed: Vec<u8>,
}

/// What the pump waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// For something to be typed.
    Terminal,
    /// For rank 0 to read.
    Rank,
    /// For this job to come to the foreground of the terminal.
    Foreground,
    /// For nothing: the input has ended, or rank 0 has.
    Over,
}

impl Input {
    pub(super) fn open(stdin: Stdin) -> Result<(Input, Option<Pump>), LaunchError> {
        let system = |source| LaunchError::System { what: "open of /dev/null", source };
        let null = OwnedFd::from(File::open("/dev/null").map_err(system)?);
        let mut input = Input { null, own: None, pipe: None };
        if stdin == Stdin::Null {
            return Ok((input, None));
        }
        let own = std::io::stdin();
        let copy = || own.as_fd().try_clone_to_owned();
        let copy = copy().map_err(|source| LaunchError::System { what: "copy of stdin", source })?;
        if !own.is_terminal() {
            input.own = Some(copy);
            return Ok((input, None));
        }
        let (from, to) = pipe_with(PipeFlags::CLOEXEC).map_err(LaunchError::system("pipe"))?;
        rustix::fs::fcntl_setfl(&to, rustix::fs::OFlags::NONBLOCK).map_err(LaunchError::system("fcntl"))?;
        input.pipe = Some(from);
        Ok((input, Some(Pump { terminal: copy, to, typed: Vec::new() })))
    }

    /// The standard input of this rank.
    pub(super) fn of(&self, rank: usize) -> BorrowedFd<'_> {
        let first = self.pipe.as_ref().or(self.own.as_ref()).filter(|_| rank == 0);
        first.unwrap_or(&self.null).as_fd()
    }

    /// A copy of rank 0's standard input, for this process to read from.
    pub(super) fn own_copy(&self) -> Result<OwnedFd, LaunchError> {
        let copy = self.of(0).try_clone_to_owned();
        copy.map_err(|source| LaunchError::System { what: "copy of stdin", source })
    }

    /// Rank 0 has its copy: only it shall hold the reading end of the pipe.
    pub(super) fn handed_out(&mut self) {
        self.pipe = None;
        self.own = None;
    }
}

impl Pump {
    pub(super) fn terminal(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }

    pub(super) fn rank(&self) -> BorrowedFd<'_> {
        self.to.as_fd()
    }

    /// The terminal may have something to read, or rank 0 room for more.
    pub(super) fn turn(&mut self) -> Wait {
        if self.typed.is_empty() {
            if !self.in_foreground() {
                return Wait::Foreground;
            }
            let mut buffer = [0; 4096];
            match rustix::io::read(&self.terminal, &mut buffer) {
                Ok(0) => return Wait::Over,
                Ok(n) => self.typed.extend_from_slice(&buffer[..n]),
                Err(Errno::INTR | Errno::AGAIN) => return Wait::Terminal,
                Err(_) => return Wait::Over,
            }
        }
        loop {
            match rustix::io::write(&self.to, &self.typed) {
                Ok(n) if n == self.typed.len() => {
                    self.typed.clear();
                    return Wait::Terminal;
                }
                Ok(n) => drop(self.typed.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Wait::Rank,
                Err(_) => return Wait::Over,
            }
        }
    }

    /// Reading a terminal from the background would stop us.
    fn in_foreground(&self) -> bool {
        use std::os::fd::AsRawFd;
        // SAFETY: both take and give plain numbers.
        unsafe { libc::tcgetpgrp(self.terminal.as_raw_fd()) == libc::getpgrp() }
    }
}
