//! Waiting that adapts: look, then give up the core for a moment, then sleep until someone rings.
//!
//! A rank sleeps on one word of its own, whatever it waits for, since anything may come first: a bell, a message,
//! a barrier flag, a death. It sets the word, makes every core see that (membarrier), looks once more, and sleeps.
//! Ringers store, then load the word: no fence on their side (asymmetric Dekker; membarrier(2), GLOBAL_EXPEDITED).

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::{Engine, Far};
use crate::bootstrap::job::sleep_on;
use crate::error::{Error, Loss, Result};

/// How long a wait looks before it yields, and yields before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// There are more ranks than cores for them.
    pub crowded: bool,
    /// Rounds of polling.
    pub spins: u32,
    /// Over a network, where a round takes as long as a device takes to answer, not longer than this.
    pub far_spin: Duration,
    /// Rounds of giving up the core.
    pub yields: u32,
    /// Longest sleep before it looks whether everyone is still alive.
    pub nap: Duration,
}

impl Patience {
    /// What suits `ranks` ranks on `cores` cores.
    pub fn new(ranks: usize, cores: usize, spins: Option<u32>, supervised: bool) -> Patience {
        let crowded = ranks > cores;
        Patience {
            crowded,
            spins: spins.unwrap_or(if crowded { 2 } else { 2000 }),
            // Whoever names a number means it.
            far_spin: if spins.is_some() { Duration::MAX } else { Duration::from_micros(300) },
            yields: if crowded { 16 } else { 8 },
            // A supervisor wakes sleepers when a rank dies; without one they look for themselves.
            nap: Duration::from_millis(if supervised { 50 } else { 4 }),
        }
    }
}

/// Rounds of looking without a pause between them.
const EAGER: u32 = 500;

/// Rounds over a network between looks at the clock.
const FAR_ROUNDS: u32 = 16;

/// How long a look over a network keeps the core to itself. The kernel's threads work for some devices, on this core too, and
/// would else wait for the end of its slice.
const FAR_TURN: Duration = Duration::from_micros(50);

/// Two looks this far apart, with every rank asleep, mean that nothing can happen any more.
const STANDSTILL: Duration = Duration::from_millis(150);

impl Engine {
    /// Waits until `ready` holds, delivering messages meanwhile.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after `limit`; [`Error::PeerLost`] if a rank died, or if one has left and all others
    /// wait; [`Error::MemoryLost`]; errors of messages that came in; [`Error::InsideHandler`].
    #[inline]
    pub fn wait_until(&self, doing: &'static str, limit: Option<Duration>, ready: impl FnMut() -> bool) -> Result<()> {
        self.wait::<true>(doing, limit, ready)
    }

    /// As [`Engine::wait_until`], without a time limit, for collectives: errors of messages that come in wait for the
    /// next [`Engine::poll`].
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::InsideHandler`].
    #[inline]
    pub fn wait_together(&self, doing: &'static str, ready: impl FnMut() -> bool) -> Result<()> {
        self.wait::<false>(doing, None, ready)
    }

    /// As [`Engine::wait_together`], for at most `limit`.
    ///
    /// # Errors
    /// As [`Engine::wait_together`], and [`Error::TimedOut`].
    pub fn wait_together_for(&self, doing: &'static str, limit: Duration, ready: impl FnMut() -> bool) -> Result<()> {
        self.wait::<false>(doing, Some(limit), ready)
    }

    #[inline(always)]
    pub(super) fn poll_and<const TELL: bool>(&self) -> Result<usize> {
        if TELL { self.poll() } else { Ok(self.turn()) }
    }

    #[inline]
    fn wait<const TELL: bool>(
        &self,
        doing: &'static str,
        limit: Option<Duration>,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        if ready() {
            return Ok(());
        }
        self.check_outside_handler(doing)?;
        if let Some(pace) = self.far().and_then(Far::pace) {
            return self.wait_virtual::<TELL>(pace, doing, limit, &mut ready);
        }
        let mut begun = None;
        loop {
            if self.wait_awake::<TELL>(limit.is_some(), &mut ready)? {
                return Ok(());
            }
            // The clock costs as much as a look.
            let limit = limit.map(|limit| (limit, *begun.get_or_insert_with(Instant::now)));
            if self.wait_long::<TELL>(doing, limit, &mut ready)? {
                return Ok(());
            }
        }
    }

    /// Looks for a while; whether it is ready.
    #[inline]
    fn wait_awake<const TELL: bool>(&self, limited: bool, ready: &mut impl FnMut() -> bool) -> Result<bool> {
        let mut idle = 0;
        let (mut since, mut yielded) = (None, Duration::ZERO);
        while idle < self.patience.get().spins {
            // Rounds that deliver something count too where time is short: messages may never end.
            idle = if self.poll_and::<TELL>()? == 0 || limited { idle + 1 } else { 0 };
            if self.far.is_some() && idle.is_multiple_of(FAR_ROUNDS) {
                match since {
                    Some(since) if idle > 0 => {
                        let waited = Instant::elapsed(&since);
                        if waited > self.patience.get().far_spin {
                            break;
                        }
                        if waited > yielded + FAR_TURN {
                            rustix::thread::sched_yield();
                            yielded = waited;
                        }
                    }
                    _ => (since, yielded) = (Some(Instant::now()), Duration::ZERO),
                }
            }
            if ready() {
                return Ok(true);
            }
            // A pause is as long as the way from core to core: not while the answer may be on that way.
            if idle > EAGER {
                std::hint::spin_loop();
            }
        }
        Ok(false)
    }

    /// Waits without limit for what other ranks alone may never bring about: only the death of one ends it early.
    ///
    /// # Errors
    /// As [`Engine::wait_until`], but for a rank that left.
    pub fn wait_outside(&self, doing: &'static str, ready: impl FnMut() -> bool) -> Result<()> {
        let outer = self.outside.replace(true);
        let result = self.wait_until(doing, None, ready);
        self.outside.set(outer);
        result
    }

    /// Yields, then sleeps, until it is ready, or `false`: something came, and more may be on its way. A wait that is over
    /// when many messages have come would sleep between any two of them, had it once been idle for long.
    #[cold]
    fn wait_long<const TELL: bool>(
        &self,
        doing: &'static str,
        limit: Option<(Duration, Instant)>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let mut idle = 0;
        let mut standstill = None;
        let mut waiting = Waiting { engine: self, told: false, published: false };
        loop {
            let progressed = self.poll_and::<TELL>()? != 0;
            if ready() {
                return Ok(true);
            }
            if !self.job.is_intact() {
                return Err(Error::MemoryLost { doing: doing.into() });
            }
            // What a rank sent before it died is delivered before its death is told.
            if !progressed && let Some((rank, cause)) = self.first_lost() {
                return Err(Error::PeerLost { rank, cause, doing: doing.into() });
            }
            let left = match limit {
                Some((limit, start)) => match limit.checked_sub(start.elapsed()) {
                    Some(left) if !left.is_zero() => left,
                    _ => return Err(Error::TimedOut { doing: doing.into(), after: limit }),
                },
                None => Duration::MAX,
            };
            if progressed {
                return Ok(false);
            }
            idle += 1;
            if idle <= self.patience.get().yields {
                rustix::thread::sched_yield();
                continue;
            }
            waiting.tell(doing);
            if limit.is_none() && !self.outside.get() {
                waiting.publish();
                if self.job.any_left() || self.others_leaving() {
                    self.check_standstill(doing, &mut standstill)?;
                }
            }
            if self.sleep(left, ready) {
                return Ok(true);
            }
        }
    }

    /// Sleeps until woken, at most a nap. Returns whether it is ready: that is asked once more before it sleeps, and
    /// asking may do something, such as sending a message.
    fn sleep(&self, left: Duration, ready: &mut dyn FnMut() -> bool) -> bool {
        // Receivers ring when they give room back in a lane, but not when they drop a payload that they had retained.
        // What ranks of other hosts put here wakes nobody; their messages and notices do.
        let unseen = self.far().is_some_and(Far::is_silent) && self.job.ranks_here() < self.size;
        let others = self.turn_others();
        let brief = self.has_pending() || self.has_nudges() || unseen || others;
        let nap = if brief { Duration::from_millis(1) } else { self.patience.get().nap };
        let word = self.job.sleep_word(self.rank);
        word.store(1, Ordering::SeqCst);
        // Who rings over a network fences.
        if self.job.full_fence() || self.far.is_some() {
            fence(Ordering::SeqCst);
        } else {
            membarrier();
        }
        let armed = self.far().is_none_or(Far::arm);
        let done = ready();
        let moved = (self.has_pending() && self.flush_pending() != 0)
            | (self.has_background.get() && self.turn_background() != 0);
        if armed && !done && !moved && self.interface.first_waiting().is_none() && !self.job.any_lost() {
            match self.far() {
                Some(far) => far.sleep(nap.min(left)),
                None => sleep_on(word, 1, Some(nap.min(left))),
            }
        }
        word.store(0, Ordering::SeqCst);
        let looks = &self.status(self.rank).looks;
        looks.store(looks.load(Ordering::Relaxed) + 1, Ordering::Release);
        if !self.job.supervised() {
            self.look_for_dead();
        }
        done
    }

    /// Whether a rank waits in its last barrier, and this one does not.
    fn others_leaving(&self) -> bool {
        let leaving = |rank| self.job.is_leaving(rank);
        !leaving(self.rank) && (0..self.size).any(leaving)
    }

    /// If every rank has left or sleeps in a wait that only other ranks can end, and each has looked up from it and
    /// found nothing, nobody is left to end it. A rank that is stopped or short of time does not look up.
    fn check_standstill(&self, doing: &'static str, seen: &mut Option<(Instant, Vec<[u64; 2]>)>) -> Result<()> {
        let gone = || self.job.first_to_leave(|_| true).expect("somebody has left or is leaving, or we would not look");
        if self.job.ranks_here() < self.size {
            // How ranks of other hosts wait cannot be seen: the hosts find it out together.
            let is_hopeless = self.job.hopeless(self.rank) == self.waits.get();
            return if is_hopeless { Err(self.lost(gone(), Loss::Left, doing)) } else { Ok(()) };
        }
        let others = || (0..self.size).filter(|rank| *rank != self.rank && self.job.loss(*rank).is_none());
        let look = |rank| {
            let status = self.status(rank);
            [status.waiting.load(Ordering::Acquire), status.looks.load(Ordering::Acquire)]
        };
        let now: Vec<[u64; 2]> = others().map(look).collect();
        let Some((since, before)) = seen else {
            *seen = Some((Instant::now(), now));
            return Ok(());
        };
        let same = before.len() == now.len() && before.iter().zip(&now).all(|(b, n)| b[0] == n[0] && n[0] != 0);
        if !same {
            *seen = None;
            return Ok(());
        }
        let all_looked = before.iter().zip(&now).all(|(before, now)| now[1] >= before[1] + 2);
        // A rank that was rung but has not run yet has its word at 0.
        let asleep = others().all(|rank| self.job.sleep_word(rank).load(Ordering::SeqCst) == 1);
        if all_looked && asleep && since.elapsed() >= STANDSTILL {
            return Err(self.lost(gone(), Loss::Left, doing));
        }
        Ok(())
    }
}

/// Tells the others what this rank waits for, and that it sleeps in a wait without limit, under a number of its own.
struct Waiting<'a> {
    engine: &'a Engine,
    told: bool,
    published: bool,
}

impl Waiting<'_> {
    fn tell(&mut self, doing: &str) {
        if !self.told {
            self.engine.tell_doing(doing);
            self.told = true;
        }
    }

    fn publish(&mut self) {
        if !self.published {
            let number = self.engine.waits.get() + 1;
            self.engine.waits.set(number);
            self.engine.status(self.engine.rank).waiting.store(number, Ordering::Release);
            self.published = true;
        }
    }

    fn clear(&mut self) {
        if self.published {
            self.engine.status(self.engine.rank).waiting.store(0, Ordering::Release);
            self.published = false;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.clear();
        if self.told {
            self.engine.job.set_doing(self.engine.rank, "");
        }
    }
}

const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
const GLOBAL_EXPEDITED: i32 = 1 << 1;

/// Lets other processes' barriers reach this one. Returns whether the kernel can; man page `membarrier(2)`.
pub(super) fn register_membarrier() -> bool {
    // SAFETY: takes two integers, touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// Makes every core that runs a registered process pass a full barrier.
fn membarrier() {
    // SAFETY: as above.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) };
    debug_assert_eq!(done, 0, "registering worked, so this does");
}
