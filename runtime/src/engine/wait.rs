//! Adaptive waiting: poll in a loop, then yield the core between polls, then sleep until a peer wakes this rank.
//!
//! A rank always sleeps on the same word of its own, because any event may come first: a bell, a message, a barrier flag, a failed
//! peer. `sleep/README.md` tells how a wake-up is not missed.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Engine;
use super::remote_access::EVENTS;
use crate::error::{Error, Loss, Result};
use crate::sleep::{SleepWord, Sleeper, fall_asleep};

/// How a rank waits, and the wait that it is in.
pub(crate) struct Waiting {
    patience: Cell<Patience>,
    /// Number of the last wait without limit, from 1.
    number: Cell<u64>,
    /// The current wait may be ended by something outside the job.
    outside: Cell<bool>,
    /// The current wait is for a collective that began before.
    together: Cell<bool>,
    /// Steps of collectives that this rank has done in waits.
    steps: Cell<u64>,
    /// Number of the last collective wait that other ranks were told of, from 1.
    together_number: Cell<u64>,
    /// Whether they are told of one now.
    shown: Cell<bool>,
    /// When a wait that did not sleep has last looked for dead processes.
    looked: Cell<Option<Instant>>,
}

impl Waiting {
    pub(super) fn new(patience: Patience) -> Waiting {
        Waiting {
            patience: Cell::new(patience),
            number: Cell::new(0),
            outside: Cell::new(false),
            together: Cell::new(false),
            steps: Cell::new(0),
            together_number: Cell::new(0),
            shown: Cell::new(false),
            looked: Cell::new(None),
        }
    }

    /// How this rank waits.
    #[inline(always)]
    pub(crate) fn patience(&self) -> Patience {
        self.patience.get()
    }

    pub(super) fn set_patience(&self, patience: Patience) {
        self.patience.set(patience);
    }

    /// Notes that this rank has done a step of a collective: other ranks may go on.
    #[inline(always)]
    pub(crate) fn note_step(&self) {
        self.steps.set(self.steps.get().wrapping_add(1));
    }

    /// Runs `body`, which waits for a collective that was begun before.
    pub(crate) fn for_collective<R>(&self, body: impl FnOnce() -> R) -> R {
        let _outer = Restored(&self.together, self.together.replace(true));
        body()
    }

    /// Whether the wait under way is for a collective that was begun before.
    pub(super) fn is_for_collective(&self) -> bool {
        self.together.get()
    }

    /// Runs `body`, whose wait may be ended by something outside the job.
    fn for_outside<R>(&self, body: impl FnOnce() -> R) -> R {
        let _outer = Restored(&self.outside, self.outside.replace(true));
        body()
    }

    /// The number of the next wait without limit.
    fn take_number(&self) -> u64 {
        self.number.set(self.number.get() + 1);
        self.number.get()
    }

    /// Whether this rank shows others that only their collective calls can end its wait.
    #[inline]
    pub(crate) fn is_shown_as_collective(&self) -> bool {
        self.shown.get()
    }

    /// The number of the collective wait that this rank has shown last, from 1.
    pub(super) fn last_collective(&self) -> u64 {
        self.together_number.get().max(1)
    }

    /// Notes whether this rank shows from now on that only collective calls of other ranks can end its wait. Returns the number that it
    /// shows: 0 if it shows none.
    fn show_as_collective(&self, shown: bool) -> u64 {
        // Also behind the wait, which may have been hopeless: this one is not that.
        self.together_number.set(self.together_number.get() + 1);
        self.shown.set(shown);
        if shown { self.together_number.get() } else { 0 }
    }
}

/// Puts a flag back, also in a panic.
struct Restored<'a>(&'a Cell<bool>, bool);

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// How long a wait polls before it yields, and yields before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// There are more ranks than cores for them.
    pub crowded: bool,
    /// Polls without result before the wait starts to yield.
    pub spins: u32,
    /// Time limit on `spins` over a network, where a poll may take as long as the device takes to answer.
    pub remote_spin: Duration,
    /// Polls with a yield after each, before the wait sleeps.
    pub yields: u32,
    /// Longest sleep before the rank checks whether its peers are alive.
    pub nap: Duration,
}

impl Patience {
    /// The patience for `ranks` ranks on `cores` cores.
    pub fn new(ranks: usize, cores: usize, spins: Option<u32>, supervised: bool) -> Patience {
        let crowded = ranks > cores;
        // The numbers are chosen, but for the yields: with 16 of them a barrier of 8 ranks on 2 cores takes 5.4 us, 8.8 before.
        Patience {
            crowded,
            spins: spins.unwrap_or(if crowded { 2 } else { 2000 }),
            // A number of spins that the user set is not cut short.
            remote_spin: if spins.is_some() { Duration::MAX } else { Duration::from_micros(300) },
            yields: if crowded { 16 } else { 8 },
            // A supervisor wakes sleepers when a rank dies. Without one they must check by themselves.
            nap: Duration::from_millis(if supervised { 50 } else { 4 }),
        }
    }
}

/// Empty polls of a wait with a time limit between readings of the clock, and how many of them a poll counts for that delivers something.
/// Chosen: microseconds, and not more than 16 messages.
const LIMIT_ROUNDS: u32 = 256;
const DELIVERY: u32 = 16;

/// How long a wait with a time limit goes on while messages arrive, before it looks for lost peers as one that sleeps. Chosen.
const AWAKE: Duration = Duration::from_millis(1);

/// How often such a wait looks for dead processes where no supervisor does. Chosen: a supervised rank's longest nap.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Polls over a network between readings of the clock. Chosen: a reading costs as much as an empty poll.
const REMOTE_ROUNDS: u32 = 16;

/// How long a rank polls a network before it yields the core once. Some devices are served by kernel threads, which may need
/// this core and would otherwise wait until the rank's time slice ends: without the yield one run over soft-RoCE took 1.4 ms for
/// each put with a bell. The time itself is chosen: far below a time slice.
const REMOTE_TURN: Duration = Duration::from_micros(50);

/// If all ranks are found asleep in the same waits twice, this far apart, no event can end those waits. Chosen: three
/// times the longest nap.
pub(super) const STANDSTILL: Duration = Duration::from_millis(150);

impl Engine {
    /// Blocks until `ready` holds, and delivers messages meanwhile.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after `limit`; [`Error::PeerLost`] if a rank died, or if one has left and all others
    /// wait; [`Error::MemoryLost`]; errors of delivered messages; [`Error::InsideHandler`].
    #[inline]
    pub fn wait_until(&self, doing: &'static str, limit: Option<Duration>, ready: impl FnMut() -> bool) -> Result<()> {
        self.wait::<true>(doing, limit, ready)
    }

    /// As [`Engine::wait_until`], without a time limit, for collectives: the next [`Engine::poll`] reports errors of
    /// delivered messages.
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
        if let Some(pace) = self.networks.pace() {
            return self.wait_virtual::<TELL>(pace, doing, limit, &mut ready);
        }
        let mut begun = None;
        loop {
            if self.wait_awake::<TELL>(limit, &mut begun, &mut ready)? {
                return Ok(());
            }
            let limit = limit.map(|limit| (limit, *begun.get_or_insert_with(Instant::now)));
            if self.wait_long::<TELL>(doing, limit, &mut ready)? {
                return Ok(());
            }
        }
    }

    /// Polls without sleeping, until polls bring nothing or, where there is a `limit`, for [`AWAKE`] or until it has passed since `begun`.
    /// Returns whether `ready` holds.
    #[inline]
    fn wait_awake<const TELL: bool>(
        &self,
        limit: Option<Duration>,
        begun: &mut Option<Instant>,
        ready: &mut impl FnMut() -> bool,
    ) -> Result<bool> {
        let (mut idle, mut polls, mut entered) = (0, 0, None);
        let (mut since, mut yielded) = (None, Duration::ZERO);
        while idle < self.waiting.patience().spins {
            let delivered = self.poll_and::<TELL>()? != 0;
            // Over a network, polls that deliver something count as idle under a limit: yields and sleeps are for the device, too.
            idle = if delivered && (limit.is_none() || self.routes.all_mapped()) { 0 } else { idle + 1 };
            if let Some(limit) = limit {
                // Messages may never stop coming. Reading the clock costs as much as an empty poll, so a short wait never reads it.
                polls += if delivered { DELIVERY } else { 1 };
                if polls >= LIMIT_ROUNDS {
                    polls = 0;
                    let now = Instant::now();
                    self.look_now_and_then(now);
                    let is_long = now - *entered.get_or_insert(now) > AWAKE && idle < LIMIT_ROUNDS;
                    if is_long || now - *begun.get_or_insert(now) > limit {
                        break;
                    }
                }
            }
            if !self.routes.all_mapped() && idle.is_multiple_of(REMOTE_ROUNDS) {
                match since {
                    Some(since) if idle > 0 => {
                        let waited = Instant::elapsed(&since);
                        if waited > self.waiting.patience().remote_spin {
                            break;
                        }
                        if waited > yielded + REMOTE_TURN {
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
            // Without a pause the processor runs loads of the next rounds ahead, and throws all of them away when the line of one
            // arrives: a put with a bell took 1.3 times as long.
            if idle > 0 {
                std::hint::spin_loop();
            }
        }
        Ok(false)
    }

    /// Looks for dead processes, if no supervisor does and the last look is long ago. A rank that does not sleep looks nowhere else.
    #[cold]
    fn look_now_and_then(&self, now: Instant) {
        if self.waiting.looked.get().is_none_or(|looked| now - looked >= LOOK_EVERY) {
            self.waiting.looked.set(Some(now));
            self.look_for_dead_peers();
        }
    }

    /// Blocks without limit for an event that need not come from another rank. A failed peer ends the wait early; the
    /// departure of all other ranks does not.
    ///
    /// # Errors
    /// As [`Engine::wait_until`], except for a rank that left.
    pub fn wait_outside(&self, doing: &'static str, ready: impl FnMut() -> bool) -> Result<()> {
        self.waiting.for_outside(|| self.wait_until(doing, None, ready))
    }

    /// Yields, then sleeps, until `ready` holds. Returns `false` early when a poll delivered something: more may follow, and
    /// a wait for many messages that stayed here would sleep between any two of them.
    #[cold]
    fn wait_long<const TELL: bool>(
        &self,
        doing: &'static str,
        limit: Option<(Duration, Instant)>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let mut idle = 0;
        let (mut standstill, mut deadlock) = (None, None);
        let mut waiting = Shown::new(self);
        loop {
            waiting.check_deadlocked(doing)?;
            let progressed = self.poll_and::<TELL>()? != 0;
            if ready() {
                // It may be that a rank has left, which was told of a deadlock before.
                waiting.check_deadlocked(doing)?;
                return Ok(true);
            }
            if !self.job.is_intact() {
                return Err(Error::MemoryLost { doing: doing.into() });
            }
            // Deliver what a rank sent before it died; report its death after that.
            if !progressed && let Some((rank, cause)) = self.first_lost() {
                // It may have sent and died since the poll.
                let came = self.interface.any_waiting() | (self.poll_and::<TELL>()? != 0);
                if ready() {
                    return Ok(true);
                }
                if came {
                    continue;
                }
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
            if idle <= self.waiting.patience().yields {
                rustix::thread::sched_yield();
                continue;
            }
            waiting.tell(doing);
            // Threads that have contexts may end waits, of this rank and of others.
            if limit.is_none() && !self.waiting.outside.get() && !self.has_contexts() {
                waiting.publish();
                waiting.publish_together(self.waits_together());
                if self.job.any_left() || self.others_leaving() {
                    // A rank in `survivors` does not give up here: ranks in other calls find the rank that left first, and then join the agreement.
                    if !self.failures.are_ignored() {
                        self.check_standstill(doing, &mut standstill)?;
                    }
                } else if waiting.together.is_some() {
                    self.find_deadlock(&mut deadlock);
                    waiting.check_deadlocked(doing)?;
                }
            } else {
                waiting.clear();
            }
            if self.sleep(left, ready) {
                waiting.check_deadlocked(doing)?;
                return Ok(true);
            }
        }
    }

    /// Whether an event may come without a wake-up, so that a sleep has to be brief. A receiver wakes the sender when it returns room in a lane
    /// or in message memory; of the networks only some announce room. Over a silent network, a put from another host wakes nobody.
    pub(super) fn may_come_unseen(&self) -> bool {
        let unseen = self.networks.is_silent() && self.job.ranks_here() < self.size;
        let others = self.turn_others();
        // A future of a context waits for events of that context's interface, which do not wake this rank.
        let elsewhere = !self.routes.all_mapped() && self.has_contexts();
        let room = self.outbox.any() && !self.is_room_announced();
        room || self.remote.owes_nudges() || self.failures.has_doubts() || unseen || others || elsewhere
    }

    /// Whether room for what this rank keeps is announced. With lanes and a network both, a ring at a mapped rank may wait for an operation
    /// of the network.
    fn is_room_announced(&self) -> bool {
        !self.routes.is_mixed() && self.networks.announce_room()
    }

    /// Sends kept operations, and advances background work. Returns whether anything was done.
    pub(super) fn flush(&self) -> bool {
        (self.outbox.any() && self.flush_pending() != 0) | (self.tasks.any() && self.turn_background() != 0)
    }

    /// Sleeps until woken, for at most a nap. Calls `ready` once more before it sleeps and returns the result. `ready` may
    /// have side effects, such as sending a message.
    fn sleep(&self, left: Duration, ready: &mut dyn FnMut() -> bool) -> bool {
        self.wakeup.disarm();
        let nap = if self.may_come_unseen() { Duration::from_millis(1) } else { self.waiting.patience().nap };
        let mut waits = Waits { engine: self, limit: nap.min(left), ready };
        let done = fall_asleep(self.job.sleep_word(self.rank), self.interface.fences(), &mut waits);
        // Pairs with the Acquire load in `check_standstill`.
        let wakes = &self.node.status(self.rank).wakes;
        wakes.store(wakes.load(Ordering::Relaxed) + 1, Ordering::Release);
        if !self.job.supervised() {
            self.failures.check_for_dead(&self.networks);
        }
        done
    }

    /// Whether another rank has begun to leave and this one has not.
    fn others_leaving(&self) -> bool {
        let leaving = |rank| self.job.is_leaving(rank);
        self.job.any_leaver() && !leaving(self.rank) && (0..self.size).any(leaving)
    }

    /// Fails if no rank is left that could end this wait: all others have left, or sleep in a wait without limit and have
    /// woken in it and found nothing to do (`wakes` has grown). A rank that is stopped or does not get a core does not
    /// wake, so it is not mistaken for a sleeping one.
    fn check_standstill(&self, doing: &'static str, seen: &mut Option<(Instant, Vec<[u64; 2]>)>) -> Result<()> {
        let gone =
            || self.job.first_to_leave(|_| true).expect("somebody has left or is leaving, or nothing is checked");
        if self.job.ranks_here() < self.size {
            // This rank cannot see how ranks on other hosts wait. The hosts' services detect this case together and name
            // the wait that is hopeless.
            let is_hopeless = self.job.hopeless(self.rank) == self.waiting.number.get();
            return if is_hopeless { Err(self.failures.lost(gone(), Loss::Left, doing)) } else { Ok(()) };
        }
        let others = || (0..self.size).filter(|rank| *rank != self.rank && self.job.loss(*rank).is_none());
        let status = |rank| {
            let status = self.node.status(rank);
            [status.waiting.load(Ordering::Acquire), status.wakes.load(Ordering::Acquire)]
        };
        let now: Vec<[u64; 2]> = others().map(status).collect();
        let Some((since, before)) = seen else {
            *seen = Some((Instant::now(), now));
            return Ok(());
        };
        let same = before.len() == now.len() && before.iter().zip(&now).all(|(b, n)| b[0] == n[0] && n[0] != 0);
        if !same {
            *seen = None;
            return Ok(());
        }
        let all_woke = before.iter().zip(&now).all(|(before, now)| now[1] >= before[1] + 2);
        // Of a rank that was woken but has not run yet the announcement is gone.
        let asleep = others().all(|rank| self.job.sleep_word(rank).is_announced());
        if all_woke && asleep && since.elapsed() >= STANDSTILL {
            return Err(self.failures.lost(gone(), Loss::Left, doing));
        }
        Ok(())
    }
}

/// A waiting rank that has polled and yielded without result.
struct Waits<'a> {
    engine: &'a Engine,
    /// Limit of the sleep.
    limit: Duration,
    ready: &'a mut dyn FnMut() -> bool,
}

impl Sleeper for Waits<'_> {
    fn arm(&mut self) -> bool {
        self.engine.networks.arm(EVENTS)
    }

    fn ready(&mut self) -> bool {
        (self.ready)()
    }

    fn flush(&mut self) -> bool {
        self.engine.flush()
    }

    fn has_work(&mut self) -> bool {
        self.engine.interface.any_waiting() || self.engine.failures.any_new()
    }

    fn block(&mut self, word: &SleepWord) {
        match self.engine.networks.is_empty() {
            false => self.engine.networks.sleep(self.limit),
            true => word.block(self.limit),
        }
    }
}

/// Shows the other ranks what this rank waits for (`told`), the number of its current wait without limit (`published`), and that of
/// its current collective wait (`together`). Cleared on drop.
pub(super) struct Shown<'a> {
    engine: &'a Engine,
    told: bool,
    published: bool,
    /// Steps that this rank had done when it showed that number.
    pub(super) together: Option<u64>,
}

impl<'a> Shown<'a> {
    pub(super) fn new(engine: &'a Engine) -> Shown<'a> {
        Shown { engine, told: false, published: false, together: None }
    }

    pub(super) fn tell(&mut self, doing: &str) {
        if !self.told {
            self.engine.tell_doing(doing);
            self.told = true;
        }
    }

    fn publish(&mut self) {
        if !self.published {
            let number = self.engine.waiting.take_number();
            self.engine.node.status(self.engine.rank).waiting.store(number, Ordering::Release);
            self.published = true;
        }
    }

    /// Publishes whether only collective calls of other ranks can end this wait. The call that it waits in was published before. A rank
    /// that has done a step since publishes another number.
    pub(super) fn publish_together(&mut self, together: bool) {
        let waiting = &self.engine.waiting;
        let now = together.then(|| waiting.steps.get());
        if self.together == now {
            return;
        }
        self.together = now;
        self.engine.job.set_together(self.engine.rank, waiting.show_as_collective(together));
    }

    /// # Errors
    /// Those of a deadlock that was found in this wait.
    pub(super) fn check_deadlocked(&self, doing: &'static str) -> Result<()> {
        if self.together.is_some() && self.engine.is_deadlocked() { Err(self.engine.deadlock(doing)) } else { Ok(()) }
    }

    fn clear(&mut self) {
        if self.published {
            self.engine.node.status(self.engine.rank).waiting.store(0, Ordering::Release);
            self.published = false;
        }
        self.publish_together(false);
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.clear();
        if self.told {
            self.engine.job.set_doing(self.engine.rank, "");
        }
    }
}
