//! The descriptor that a sleeping caller waits on: it becomes readable with a completion, a change of a connection, or the
//! end of a nap.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::errors::io;
use crate::transport::error::Result;
use crate::transport::verbs::queue::Events;

/// Length of the first sleep while a ring is not back; it doubles up to 12.8 ms. Chosen: a few writes over
/// soft-RoCE, 20 to 80 us each.
const NAP: Duration = Duration::from_micros(200);
/// Each further nap is twice as long; this is how many times the length doubles.
const DOUBLED: u32 = 6;

/// The descriptor, and the descriptors that it gathers.
#[derive(Debug)]
pub struct Sleep {
    events: Events,
    gathered: OwnedFd,
    pub alarm: Alarm,
}

impl Sleep {
    /// Gathers the device's `events`, and `notice`.
    ///
    /// # Errors
    /// If there are too many open files.
    pub fn new(events: Events, notice: BorrowedFd<'_>) -> Result<Sleep> {
        let failed = |error: rustix::io::Errno| io(error.into());
        let gathered = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let alarm = Alarm::new().map_err(failed)?;
        for fd in [events.descriptor(), notice, alarm.timer.as_fd()] {
            epoll::add(&gathered, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Sleep { events, gathered, alarm })
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.gathered.as_fd()
    }

    /// Forgets the events that came.
    pub fn drain(&self) {
        self.events.drain();
    }
}

/// Ends a sleep after a nap. Naps in a row get longer.
#[derive(Debug)]
pub struct Alarm {
    timer: OwnedFd,
    is_set: Cell<bool>,
    naps: Cell<u32>,
}

impl Alarm {
    fn new() -> rustix::io::Result<Alarm> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Alarm { timer, is_set: Cell::new(false), naps: Cell::new(0) })
    }

    /// How long the next nap is.
    pub fn nap(&self) -> Duration {
        NAP * (1 << self.naps.get())
    }

    /// The next nap is a short one: something came, or there is no reason to nap any more.
    pub fn begin_anew(&self) {
        self.naps.set(0);
    }

    /// Ends the next sleep after `nap`; `None`: does not end it.
    ///
    /// # Errors
    /// If the system refuses the timer.
    pub fn set(&self, nap: Option<Duration>) -> Result<()> {
        if self.is_set.replace(nap.is_some()) || nap.is_some() {
            // Setting the timer also clears an earlier expiry. A time of zero disarms it.
            let value = Timespec { tv_sec: 0, tv_nsec: nap.unwrap_or_default().subsec_nanos().into() };
            let setting = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting).map_err(|error| io(error.into()))?;
            self.naps.set((self.naps.get() + 1).min(DOUBLED));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    #[test]
    fn naps_get_longer_until_something_comes() {
        let alarm = Alarm::new().expect("a timer");
        let naps = [(); 9].map(|()| {
            let nap = alarm.nap();
            alarm.set(Some(nap)).expect("sets");
            nap.as_micros()
        });
        assert_eq!(naps, [200, 400, 800, 1600, 3200, 6400, 12800, 12800, 12800]);
        alarm.begin_anew();
        assert_eq!(alarm.nap(), NAP);
    }

    #[test]
    fn an_alarm_ends_a_sleep_once_and_can_be_taken_off() {
        let alarm = Alarm::new().expect("a timer");
        let rings = |wait: Duration| {
            let wait = rustix::event::Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: 0 };
            poll(&mut [PollFd::new(&alarm.timer, PollFlags::IN)], Some(&wait)).expect("polls") == 1
        };
        let (now, later) = (Duration::ZERO, Duration::from_secs(60));
        alarm.set(None).expect("sets");
        assert!(!rings(now));
        alarm.set(Some(NAP)).expect("sets");
        assert!(rings(later));
        alarm.set(None).expect("sets");
        assert!(!rings(now), "taken off, it is no longer readable");
    }
}
