//! How soon a sleeping rank runs, what a waiting rank costs, and how soon it gives up its core. The ranks are threads: the limits run on the
//! same threads, on the same cores, in turn with ours.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bellwether_runtime::{Arm, Bell, Settings, Threads, WakeUp, World};

use super::cores;
use super::own::DEADLINE;
use super::task::Measured;

/// Ranks of these jobs.
pub const RANKS: usize = 2;
/// Time that a waiter gets to fall asleep. Chosen: more than ten times as long as it polls and yields.
const ASLEEP: Duration = Duration::from_millis(1);
/// Length of a wait whose CPU time is measured.
const IDLE: Duration = Duration::from_secs(2);
/// Sleep of a rank before it wants the core. Chosen: the other rank polls for longer.
const NAP: Duration = Duration::from_micros(20);

/// Nanoseconds from a ring of rank 0 until rank 1, which sleeps, runs: in a wait for the bell, beside a bare futex; in epoll on the event
/// descriptor, beside a bare eventfd.
///
/// # Errors
/// Those of the runtime and of the system.
pub fn wake(settings: &Settings, batches: usize, quick: bool) -> anyhow::Result<Vec<Measured>> {
    let rounds = if quick { 2 } else { 10 };
    let (futex, eventfd, clock) = (AtomicU32::new(0), eventfd()?, Clock::new());
    let reports = job(settings, |world| {
        cores::pin(world.rank())?;
        let bell = world.bell()?;
        let (mut rung, mut counted) = (0, 0);
        let ring = || Ok(bell.ring(1)?);
        let in_wait = in_turn(
            batches,
            || {
                clock.hand_over(world, rounds, ring, || {
                    rung += 1;
                    Ok(bell.wait(rung).map(drop)?)
                })
            },
            || {
                clock.hand_over(
                    world,
                    rounds,
                    || futex_wake(&futex),
                    || {
                        counted += 1;
                        futex_wait(&futex, counted)
                    },
                )
            },
        )?;
        // Made only here, so that no ring above goes to a descriptor.
        let wake_up = world.wake_up()?;
        let (ours, bare) = (epoll_of(wake_up.as_raw_fd())?, epoll_of(eventfd.as_raw_fd())?);
        let in_epoll = in_turn(
            batches,
            || {
                clock.hand_over(world, rounds, ring, || {
                    rung += 1;
                    wait_in_epoll(&wake_up, &ours, &bell, rung)
                })
            },
            || clock.hand_over(world, rounds, || write(&eventfd), || wait_for_eventfd(&bare, &eventfd)),
        )?;
        world.barrier()?;
        Ok([in_wait, in_epoll])
    })?;
    let [in_wait, in_epoll] = of_rank_1(reports)?;
    Ok(vec![measured("wake", in_wait), measured("wake-epoll", in_epoll)])
}

/// Seconds of CPU time of this process while one rank waits for another for two seconds, beside two threads that sleep as long; and how
/// many seconds late a rank runs after its sleep, on a core where the other rank polls in a wait, beside a core where the other one sleeps
/// in a bare futex.
///
/// # Errors
/// Those of the runtime and of the system.
pub fn idle(settings: &Settings, batches: usize, quick: bool) -> anyhow::Result<Vec<Measured>> {
    Ok(vec![cpu_time(settings, quick)?, core(settings, batches, quick)?])
}

fn cpu_time(settings: &Settings, quick: bool) -> anyhow::Result<Measured> {
    let (times, idle) = if quick { (2, IDLE / 20) } else { (3, IDLE) };
    let reports = job(settings, |world| {
        let bell = world.bell()?;
        let mut rung = 0;
        // Rank 1 reads the clock before it wakes rank 0.
        let took = |wait: &mut dyn FnMut() -> anyhow::Result<()>| {
            world.barrier()?;
            let before = cpu_seconds();
            if world.rank() == 0 {
                wait()?
            } else {
                std::thread::sleep(idle)
            }
            // A clock that stands still must not make the ratio infinite.
            Ok((cpu_seconds() - before).max(1e-9))
        };
        let report = in_turn(
            times,
            || {
                rung += 1;
                let took = took(&mut || Ok(bell.wait(rung).map(drop)?))?;
                if world.rank() == 1 {
                    bell.ring(0)?;
                }
                Ok(took)
            },
            || {
                took(&mut || {
                    std::thread::sleep(idle);
                    Ok(())
                })
            },
        )?;
        world.barrier()?;
        Ok(report)
    })?;
    Ok(measured("idle", of_rank_1(reports)?))
}

fn core(settings: &Settings, batches: usize, quick: bool) -> anyhow::Result<Measured> {
    let rounds = if quick { 2 } else { 20 };
    let futex = AtomicU32::new(0);
    let reports = job(settings, |world| {
        // After the start, when each rank had a core: ranks that start on one core poll only a few times.
        cores::pin(0)?;
        sleep_exactly()?;
        let bell = world.bell()?;
        let (mut rung, mut counted) = (0, 0);
        let late = |wait: &mut dyn FnMut() -> anyhow::Result<()>, ring: &dyn Fn() -> anyhow::Result<()>| {
            let mut late = Duration::ZERO;
            for _ in 0..rounds {
                world.barrier()?;
                if world.rank() == 0 {
                    wait()?;
                } else {
                    let begin = Instant::now();
                    std::thread::sleep(NAP);
                    late += begin.elapsed().saturating_sub(NAP);
                    ring()?;
                }
            }
            Ok((late / rounds).as_secs_f64())
        };
        let report = in_turn(
            batches,
            || {
                let mut wait = || {
                    rung += 1;
                    Ok(bell.wait(rung).map(drop)?)
                };
                late(&mut wait, &|| Ok(bell.ring(0)?))
            },
            || {
                let mut wait = || {
                    counted += 1;
                    futex_wait(&futex, counted)
                };
                late(&mut wait, &|| futex_wake(&futex))
            },
        )?;
        world.barrier()?;
        Ok(report)
    })?;
    Ok(measured("idle-core", of_rank_1(reports)?))
}

/// Batches of ours and of the limit in turn; each comes first as often as the other.
fn in_turn(
    batches: usize,
    mut ours: impl FnMut() -> anyhow::Result<f64>,
    mut limit: impl FnMut() -> anyhow::Result<f64>,
) -> anyhow::Result<[Vec<f64>; 2]> {
    let mut report = [(); 2].map(|()| Vec::with_capacity(batches));
    for batch in 0..batches {
        for way in [batch % 2, 1 - batch % 2] {
            report[way].push(if way == 0 { ours()? } else { limit()? });
        }
    }
    Ok(report)
}

fn measured(name: &str, [ours, limit]: [Vec<f64>; 2]) -> Measured {
    // The ranks sleep on purpose, so their share of a CPU says nothing about noise.
    Measured { name: name.into(), ours, limit, on_cpu: 1.0, ..Measured::default() }
}

/// Runs a job on threads, and returns the result of each rank.
fn job<R: Send>(settings: &Settings, program: impl Fn(&World) -> anyhow::Result<R> + Sync) -> anyhow::Result<Vec<R>> {
    let job = Threads::new(RANKS).settings(settings.clone()).deadline(DEADLINE);
    job.run(program)?.into_iter().collect()
}

/// The report of the rank that reads the clock.
fn of_rank_1<R>(reports: Vec<R>) -> anyhow::Result<R> {
    reports.into_iter().nth(1).context("a job of two ranks gave fewer reports")
}

/// When rank 0 rang, in nanoseconds since the job began.
struct Clock {
    start: Instant,
    rang: AtomicU64,
}

impl Clock {
    fn new() -> Clock {
        Clock { start: Instant::now(), rang: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Rank 0 rings and rank 1 waits, `rounds` times. At rank 1: average nanoseconds from the ring to the end of the wait. Collective.
    fn hand_over(
        &self,
        world: &World,
        rounds: u32,
        mut ring: impl FnMut() -> anyhow::Result<()>,
        mut wait: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<f64> {
        let mut took = 0.0;
        for _ in 0..rounds {
            world.barrier()?;
            if world.rank() == 0 {
                std::thread::sleep(ASLEEP);
                // Pairs with the Acquire load of rank 1, after the ring.
                self.rang.store(self.now(), Ordering::Release);
                ring()?;
            } else {
                wait()?;
                took += self.now().saturating_sub(self.rang.load(Ordering::Acquire)) as f64;
            }
        }
        Ok(took / f64::from(rounds))
    }
}

/// Waits for the bell in epoll, as a program with an event loop does.
fn wait_in_epoll(wake_up: &WakeUp, epoll: &OwnedFd, bell: &Bell, count: u64) -> anyhow::Result<()> {
    let is_rung = || bell.count().is_ok_and(|rung| rung >= count);
    while !is_rung() {
        if wake_up.progress()? == 0 && wake_up.arm_unless(is_rung)? == Arm::Armed {
            epoll_wait(epoll)?;
        }
    }
    Ok(())
}

/// Sleeps in epoll until the eventfd is readable, and reads it.
fn wait_for_eventfd(epoll: &OwnedFd, eventfd: &OwnedFd) -> anyhow::Result<()> {
    epoll_wait(epoll)?;
    let mut count = [0u8; 8];
    // SAFETY: eight bytes of ours.
    let read = unsafe { libc::read(eventfd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    checked(read as i32, "reading an eventfd").map(drop)
}

fn eventfd() -> anyhow::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let fd = checked(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }, "making an eventfd")?;
    // SAFETY: just made, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn write(eventfd: &OwnedFd) -> anyhow::Result<()> {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight bytes of ours.
    let wrote = unsafe { libc::write(eventfd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    checked(wrote as i32, "writing an eventfd").map(drop)
}

/// An epoll of one descriptor.
fn epoll_of(descriptor: RawFd) -> anyhow::Result<OwnedFd> {
    // SAFETY: takes a number.
    let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "making an epoll")?;
    // SAFETY: just made, and no other code owns it.
    let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: reads one event.
    let added = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &mut event) };
    checked(added, "adding a descriptor to an epoll")?;
    Ok(epoll)
}

fn epoll_wait(epoll: &OwnedFd) -> anyhow::Result<()> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    loop {
        // SAFETY: room for one event.
        match unsafe { libc::epoll_wait(epoll.as_raw_fd(), &mut event, 1, -1) } {
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            ready => return checked(ready, "waiting in epoll").map(drop),
        }
    }
}

fn checked(returned: i32, doing: &'static str) -> anyhow::Result<i32> {
    if returned < 0 { Err(std::io::Error::last_os_error()).context(doing) } else { Ok(returned) }
}

/// Sleeps until the word is `count`.
fn futex_wait(word: &AtomicU32, count: u32) -> anyhow::Result<()> {
    loop {
        let seen = word.load(Ordering::Acquire);
        if seen == count {
            return Ok(());
        }
        let (at, forever) = (word.as_ptr(), std::ptr::null::<libc::timespec>());
        // SAFETY: a live word, touched as an atomic only; returns at once if it has changed since it was seen.
        unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAIT, seen, forever) };
    }
}

/// Adds one to the word, and wakes the thread that sleeps on it.
fn futex_wake(word: &AtomicU32) -> anyhow::Result<()> {
    word.fetch_add(1, Ordering::Release);
    // SAFETY: a live word; the call wakes threads and writes nothing.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    Ok(())
}

/// Lets sleeps of this thread end on time. By default the system may add 50 µs.
fn sleep_exactly() -> anyhow::Result<()> {
    let nanoseconds: libc::c_ulong = 1;
    // SAFETY: takes a number.
    checked(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds) }, "setting the timer slack").map(drop)
}

/// CPU time of this process.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the struct it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
