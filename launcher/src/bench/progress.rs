//! One line that tells what is being measured, on a terminal only.

use std::io::{IsTerminal, Write};

/// The line; gone when this is dropped.
pub struct Progress {
    shown: bool,
    done: usize,
    all: usize,
}

impl Progress {
    /// For this many steps.
    pub fn new(all: usize) -> Progress {
        Progress { shown: std::io::stderr().is_terminal(), done: 0, all }
    }

    /// Tells that the next step begins.
    pub fn step(&mut self, what: &str) {
        const WIDTH: usize = 24;
        if self.shown {
            let full = WIDTH * self.done / self.all.max(1);
            let bar = "#".repeat(full) + &".".repeat(WIDTH - full);
            eprint!("\r\x1b[K[{bar}] {}/{} {what}", self.done + 1, self.all);
            // A terminal that has gone needs no progress.
            let _ = std::io::stderr().flush();
        }
        self.done += 1;
    }

    /// Writes a line of its own to standard error.
    pub fn say(&self, line: &str) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
        eprintln!("{line}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}
