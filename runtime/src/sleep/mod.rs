//! How ranks sleep and are woken. `README.md` beside this file has the states, the words and the race.
//!
//! A sleep that something can end early uses a [`SleepWord`], by [`fall_asleep`], or [`futex`] for a word that counts. A rank that arms a
//! descriptor does so by [`listen`]. A sleep that nothing wakes uses [`nap`]; its caller says why.

mod ending;
mod fences;
pub mod futex;
mod listener;
#[cfg(all(test, loom))]
mod models;
mod sleeper;
mod socket;
mod word;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::Timespec;

pub use self::ending::Ending;
pub use self::fences::{Fences, has_barrier, light_barrier, register_process, run_barrier};
pub use self::listener::{Listener, listen};
pub use self::sleeper::{Sleeper, fall_asleep};
pub use self::socket::{WakeSocket, can_ring, namespace, ring};
pub use self::word::SleepWord;

/// Sleeps for `time`, whatever happens. For waits that end by an event that wakes no thread, or that must not depend on a wake-up.
pub fn nap(time: Duration) {
    std::thread::sleep(time);
}

/// Sleeps until one of these descriptors is readable, for at most `limit`, and returns whether one is. A signal also ends the sleep.
pub fn until_readable(descriptors: &[BorrowedFd<'_>], limit: Duration) -> bool {
    let mut polled: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    rustix::event::poll(&mut polled, Some(&timespec(limit))).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
thread_local! {
    static CALLS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a system call of this thread that wakes a rank or a thread.
#[cfg(test)]
fn note_call() {
    CALLS.set(CALLS.get() + 1);
}

/// How many system calls of this thread wake a rank or a thread.
#[cfg(test)]
pub fn calls() -> u64 {
    CALLS.get()
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn any_descriptor_ends_a_sleep() {
        let events = [(); 3].map(|()| eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"));
        let borrowed = events.each_ref().map(|event| event.as_fd());
        assert!(!until_readable(&borrowed, Duration::ZERO));
        for event in &events {
            rustix::io::write(event, &1u64.to_ne_bytes()).expect("writes");
            assert!(until_readable(&borrowed, Duration::from_secs(60)));
            rustix::io::read(event, &mut [0; 8]).expect("reads");
        }
    }
}
