//! Processes that ranks left behind and that moved out of the ranks' process group.
//!
//! While a job runs, this process adopts its orphaned descendants; what it has adopted is ended with
//! the job. Children the process had before are left alone.

use std::collections::HashSet;
use std::time::Duration;
use std::{fs, thread};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

/// The children of this process that have nothing to do with the job.
pub(super) struct Strays {
    before: HashSet<i32>,
}

impl Strays {
    /// Adopts orphans from now on.
    pub(super) fn adopt() -> Strays {
        // Without it (before Linux 3.4) daemons of ranks go to init, as they do without us.
        let _ = set_child_subreaper(Some(getpid()));
        Strays { before: children() }
    }

    /// Ends what was adopted. Ending one can orphan others, so it looks again until none is left,
    /// but not for ever: one that hangs in the kernel is left to it.
    fn end(&self) {
        for _ in 0..200 {
            let left: Vec<Pid> = children().difference(&self.before).filter_map(|&pid| Pid::from_raw(pid)).collect();
            if left.is_empty() {
                break;
            }
            for &pid in &left {
                let _ = kill_process(pid, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(1));
            for &pid in &left {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
    }
}

impl Drop for Strays {
    fn drop(&mut self) {
        self.end();
        let _ = set_child_subreaper(None);
    }
}

/// All children of this process, those of its other threads included.
fn children() -> HashSet<i32> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return HashSet::new();
    };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<i32>>())
        .collect()
}
