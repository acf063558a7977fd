//! Operations of a rank on ranks that are reached over a network.
//!
//! A put is copied when the call returns, and posted, or queued if there is no room. It takes effect before a bell or a message
//! that follows it to the same rank (a fence on that endpoint). After [`Engine::quiet`], with which a barrier begins, all puts
//! of this rank are in effect.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Engine;
use super::claim::Claim;
use super::dispatch::Taken;
use super::networks::BriefWait;
use super::operation::{Change, Issuer, Operation, Post};
use super::remote_access::{Answer, Fetched, Pace, RemoteAccess};
use super::straight::Local;
use super::wait::Shown;
use crate::error::{CalledAt, Error, Loss, Result};
use crate::sleep::Fences;
use crate::transport::{self, Sent};

/// Virtual time of a poll that finds nothing. It doubles with each such poll in a row, at most IDLE_DOUBLINGS times. Chosen.
const IDLE_POLL: Duration = Duration::from_nanos(200);
const IDLE_DOUBLINGS: u32 = 7;

/// How often a rank in `survivors` is told that no rank goes on before it gives up. Chosen, not derived: tests leave at most three ranks at
/// one time, and each of them is told once. With more leavers `survivors` may fail with [`Error::Standstill`].
const TOLD: u32 = 8;
/// Largest put, in bytes, that is posted on the fast path. If the end of a registration cuts it short, the slow path puts all
/// of it again. Chosen: a cache line.
const SMALL_PUT: usize = 64;

/// Bytes from which on a put out of this rank's slot is sent from there, without a copy. Chosen.
const STRAIGHT: usize = 8 << 10;

/// A rank makes progress once in this many atomics, so that a loop of atomics makes progress too. Chosen: a poll costs about 350
/// instructions over verbs, so 11 for each atomic.
const ATOMICS: u32 = 32;

impl Issuer for &Engine {
    fn largest_get(&self) -> usize {
        self.networks.largest_get()
    }

    fn mapped(&self, rank: usize) -> Option<*mut u8> {
        self.mapped_slot(rank)
    }

    fn check_claim(&self, claim: Option<Claim>, doing: &'static str, rank: usize) -> Result<()> {
        claim.map_or(Ok(()), |claim| claim.check(&self.blocks, doing, rank))
    }

    fn request(&mut self, doing: &'static str, rank: usize, post: Post<'_>) -> Result<Option<Arc<Answer>>> {
        match self.try_ask(doing, rank, || post(self.networks.to(rank))) {
            Err(Error::PeerLost { .. }) if self.is_undecided(rank) => Ok(None),
            outcome => outcome,
        }
    }

    fn is_answered(&mut self, doing: &'static str, rank: usize, answer: &Answer) -> Result<bool> {
        match self.answered(doing, rank, answer) {
            Err(Error::PeerLost { .. }) if self.is_undecided(rank) => Ok(false),
            outcome => outcome,
        }
    }

    fn keeps(&self, rank: usize) -> bool {
        self.outbox.keeps_for(rank)
    }

    fn has_lane(&self, rank: usize) -> bool {
        self.routes.has_lane(rank)
    }
}

/// State of a rank's operations over networks, beside the state of the networks.
#[derive(Default)]
pub(super) struct Remote {
    /// A ring over a network may still be in flight.
    signalled: Cell<bool>,
    /// Ranks that may be asleep while a write to them is in flight. `true`: the rank was seen asleep, and the message that wakes
    /// it is still to be sent.
    nudges: RefCell<Vec<(usize, bool)>>,
    has_nudges: Cell<bool>,
    /// Atomics over a network so far; every few of them make progress.
    atomics: Cell<u32>,
    /// Consecutive polls that found nothing, where time is virtual.
    idle_polls: Cell<u32>,
    /// No post goes out: the network reports that its connections are lost.
    #[cfg(test)]
    pub(super) is_broken: Cell<bool>,
}

impl Remote {
    /// Whether a rank may be asleep that has to be woken.
    #[inline]
    pub(super) fn owes_nudges(&self) -> bool {
        self.has_nudges.get()
    }

    /// `rank` has to be woken as soon as the writes to it are in effect, or, if the wake-up is `due`, as soon as there is room.
    pub(super) fn owe_nudge(&self, rank: usize, due: bool) {
        let mut nudges = self.nudges.borrow_mut();
        match nudges.iter_mut().find(|nudge| nudge.0 == rank) {
            Some(nudge) => nudge.1 |= due,
            None => nudges.push((rank, due)),
        }
        self.has_nudges.set(true);
    }

    /// Lets `wake` wake the ranks that have to be; it returns whether that is done.
    #[inline]
    fn nudge(&self, wake: impl Fn(usize, &mut bool) -> bool) {
        if self.has_nudges.get() {
            let mut nudges = self.nudges.borrow_mut();
            nudges.retain_mut(|(rank, due)| !wake(*rank, due));
            self.has_nudges.set(!nudges.is_empty());
        }
    }

    /// Whether a ring over a network may still be in flight.
    #[inline]
    pub(super) fn has_signalled(&self) -> bool {
        self.signalled.get()
    }
}

/// Room of a message that is being handled. Its sender gets it back when this is dropped, also when the handler panics.
struct Room<'a> {
    engine: &'a Engine,
    network: &'a dyn RemoteAccess,
    from: usize,
    room: Taken,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        match self.room {
            Taken::Window(len) => self.network.handled(self.from, len),
            Taken::OfContext(len) => self.engine.handled_of_context(self.from, len),
        }
    }
}

impl Engine {
    /// The slot of `rank`, if it is mapped here.
    #[inline(always)]
    pub(crate) fn mapped_slot(&self, rank: usize) -> Option<*mut u8> {
        self.routes.is_mapped(rank).then(|| self.node.slot(rank))
    }

    /// Most bytes of a message to any rank, header included.
    pub(crate) fn largest_message(&self) -> usize {
        let lanes = || self.interface.largest_message();
        match self.networks.is_empty() {
            true => lanes(),
            // At most half of the bytes that lanes hold, so that two messages fit there.
            false if self.routes.is_mixed() => self.networks.largest_message().min(lanes() / 2),
            false => self.networks.largest_message(),
        }
    }

    #[inline]
    pub(super) fn remote_progress(&self) -> usize {
        let (mut done, has_news) = self.networks.progress();
        if done != 0 {
            self.remote.idle_polls.set(0);
        }
        if has_news {
            while !self.interface.delivering() {
                let Some((network, arrival)) = self.networks.arrival() else { break };
                // Counted before the handler runs, since that may panic.
                self.delivery.count_delivered(1);
                let _room = arrival.room.map(|room| Room { engine: self, network, from: arrival.from, room });
                self.deliver(arrival.from, arrival.id, &transport::Message::new(arrival.data(), None));
                done += 1;
            }
            self.networks.take_lost().into_iter().for_each(|rank| self.failures.doubt(rank, &self.networks));
        }
        if self.failures.has_doubts() {
            self.failures.review(&self.networks);
        }
        self.remote.nudge(|rank, due| self.try_nudge(rank, due));
        done
    }

    /// Wakes `rank` if it sleeps: something was written there that it may wait for.
    fn nudge(&self, rank: usize) {
        let mut due = false;
        // This rank cannot see whether a rank of another host sleeps. Such a rank wakes and polls by itself now and then.
        let is_seen = rank != self.rank && self.networks.is_silent_to(rank) && self.job.is_here(rank);
        if !is_seen || self.try_nudge(rank, &mut due) {
            return;
        }
        self.remote.owe_nudge(rank, due);
    }

    /// Whether `rank` has been woken, or need not be. A rank that is awake now may fall asleep before the write gets there, so
    /// the check is repeated until the write is in effect. `due`: the rank was seen asleep, and the message that wakes it is
    /// not sent yet.
    fn try_nudge(&self, rank: usize, due: &mut bool) -> bool {
        let network = self.networks.to(rank);
        if !*due {
            // A failed rank needs no wake-up; its peers learn of the failure elsewhere.
            let Ok(settled) = network.settled(rank) else { return true };
            if !self.job.sleep_word(rank).must_wake(Fences::Full) {
                return settled;
            }
            // The first rank that sees it asleep wakes it, for all ranks that have written meanwhile.
            self.job.wake(rank);
            *due = true;
        }
        !matches!(network.wake(rank), Ok(Sent::NoRoom))
    }

    /// In virtual time a poll that found nothing takes a little time, so that other ranks run while this one polls in a loop.
    #[cold]
    pub(crate) fn idle_poll(&self) {
        if let Some(pace) = self.networks.pace() {
            let before = self.remote.idle_polls.get();
            self.remote.idle_polls.set((before + 1).min(IDLE_DOUBLINGS));
            pace.pause(IDLE_POLL * (1 << before));
        }
    }

    /// A wait in virtual time.
    #[cold]
    pub(super) fn wait_virtual<const TELL: bool>(
        &self,
        pace: &dyn Pace,
        doing: &'static str,
        limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let end = limit.and_then(|limit| pace.now().checked_add(limit));
        let mut waiting = Shown::new(self);
        let mut told = 0;
        loop {
            waiting.check_deadlocked(doing)?;
            let progressed = self.poll_and::<TELL>()? != 0;
            if ready() {
                return Ok(());
            }
            if progressed {
                continue;
            }
            if let Some((rank, cause)) = self.first_lost() {
                return Err(Error::PeerLost { rank, cause, doing: doing.into() });
            }
            if let (Some(end), Some(after)) = (end, limit)
                && pace.now() >= end
            {
                return Err(Error::TimedOut { doing: doing.into(), after });
            }
            let together = limit.is_none() && self.waits_together();
            if together {
                waiting.tell(doing);
            }
            waiting.publish_together(together);
            if !self.sleep_virtual(pace, end) {
                // The scheduler tells one rank at a time that no rank goes on. A rank in `survivors` does not give up: ranks in other
                // calls are told next, find that a rank has left, and then join the agreement.
                if self.failures.are_ignored() && self.job.any_left() && told < TOLD {
                    told += 1;
                    continue;
                }
                if together && !self.job.any_left() && self.find_deadlock_in_virtual_time() {
                    return Err(self.deadlock(doing));
                }
                return Err(match self.job.any_left().then(|| self.job.first_to_leave(|_| true)).flatten() {
                    Some(rank) => self.failures.lost(rank, Loss::Left, doing),
                    None => Error::Standstill { doing: doing.into() },
                });
            }
        }
    }

    /// Checks that a message is not too long, whichever rank it is for.
    pub(super) fn check_fits(&self, payload: &[u8]) -> Result<()> {
        self.networks.check_fits(payload.len() + 8, self.largest_message())
    }

    /// One attempt to post an operation over the network. A put records how much of it was posted. The caller notes an error that the program
    /// is told.
    pub(super) fn attempt_remote<B: AsRef<[u8]>>(&self, to: usize, operation: &mut Operation<B>) -> Result<Sent> {
        if let Operation::Message { payload, .. } = operation {
            self.check_fits(payload.as_ref())?;
        }
        #[cfg(test)]
        if self.remote.is_broken.get() {
            return Err(self.remote_failure(transport::Error::ConnectionReset, to, operation.doing()));
        }
        let sent = operation
            .post(self.networks.to(to), to)
            .map_err(|error| self.remote_failure(error, to, operation.doing()))?;
        if sent == Sent::Done {
            match operation {
                Operation::Put { tell: true, .. } => self.nudge(to),
                Operation::Ring { .. } => {
                    self.remote.signalled.set(true);
                    self.nudge(to);
                }
                _ => {}
            }
        }
        Ok(sent)
    }

    /// Retries a put or ring for a short time, without delivering messages, if it waits for the network only and not for the
    /// target's program. The alternative is the queue: that copies the bytes, and a rank that puts and then computes does not
    /// poll, so a queued put would leave late.
    pub(super) fn attempt_briefly(&self, to: usize, operation: &mut Operation<&[u8]>) -> Result<Sent> {
        // A put at once is kept: for it too a wait is too much.
        let may_wait = !self.interface.delivering() && !self.outbox.is_at_once();
        if self.networks.is_empty() || matches!(operation, Operation::Message { .. }) || !may_wait {
            return Ok(Sent::NoRoom);
        }
        let (network, brief) = (self.networks.to(to), BriefWait::new(&self.networks));
        while (network.learns(to) || self.networks.is_silent_to(to)) && brief.goes_on() {
            if self.attempt(to, operation)? == Sent::Done {
                return Ok(Sent::Done);
            }
        }
        Ok(Sent::NoRoom)
    }

    /// Writes `bytes` at `offset` of the slot of `rank`, which exists.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    #[inline]
    pub(crate) fn remote_put(&self, rank: usize, offset: usize, bytes: &[u8]) -> Result<()> {
        // Nearly always there is room.
        if bytes.len() <= SMALL_PUT
            && !(self.routes.is_mapped(rank)
                || self.outbox.any()
                || !self.is_own()
                || self.job.any_lost()
                || self.job.any_left())
            && matches!(self.networks.to(rank).put(rank, offset, bytes), Ok(done) if done == bytes.len())
        {
            return Ok(());
        }
        self.put_remote(rank, offset, bytes, false)
    }

    /// As [`Engine::remote_put`], for data that the target waits for.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn remote_put_flag(&self, rank: usize, offset: usize, flag: u64) -> Result<()> {
        if let Some(slot) = self.mapped_slot(rank) {
            // SAFETY: the caller guarantees an aligned word of a mapped slot, which only this rank writes.
            let word = unsafe { AtomicU64::from_ptr(slot.add(offset).cast()) };
            // Pairs with the Acquire load of the rank that waits for the flag.
            word.store(flag, Ordering::Release);
            self.wake_if_asleep(rank);
            return Ok(());
        }
        self.put_remote(rank, offset, &flag.to_ne_bytes(), true)
    }

    /// Writes a word at `offset` of the slot of `rank`, which is reached over a network, after all earlier puts there. The target may wait
    /// for the word.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn remote_put_after(&self, rank: usize, offset: usize, word: &[u8]) -> Result<()> {
        self.do_or_keep(rank, Operation::Put { offset, bytes: word, done: 0, after: true, tell: true })
    }

    /// Blocks until the network has taken everything put to `rank`. Ranks may wait for these puts while this rank computes, or
    /// waits in another world.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn remote_hand_over(&self, doing: &'static str, rank: usize) -> Result<()> {
        if !self.outbox.keeps_write_for(rank) {
            return Ok(());
        }
        self.wait_together(doing, || !self.outbox.keeps_write_for(rank))
    }

    #[inline(never)]
    fn put_remote(&self, rank: usize, offset: usize, bytes: &[u8], tell: bool) -> Result<()> {
        if let Some(slot) = self.mapped_slot(rank) {
            // SAFETY: a mapped slot; the caller guarantees the bounds.
            unsafe { crate::memory::copy::put(slot.add(offset), bytes.as_ptr(), bytes.len()) };
            self.stored(rank);
            return Ok(());
        }
        if self.interface.delivering() && !self.outbox.is_at_once() {
            // All or nothing: a handler cannot wait for room for the rest.
            return self.put_at_once("put", rank, bytes.len(), || self.put_remote(rank, offset, bytes, tell));
        }
        let step = self.networks.to(rank).largest_put();
        let mut pieces = bytes.chunks(step).enumerate();
        pieces.try_for_each(|(n, bytes)| {
            self.do_or_keep(rank, Operation::Put { offset: offset + n * step, bytes, done: 0, after: false, tell })
        })
    }

    /// As [`Engine::remote_put`], of `len` bytes at `own` of this rank's slot, which exist. From [`STRAIGHT`] bytes on they are not
    /// copied: the caller leaves them unchanged until the put is in effect. Blocks until there is room; in a call that answers at once it
    /// copies the bytes for which there is no room.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn remote_put_own(&self, rank: usize, offset: usize, own: usize, len: usize) -> Result<()> {
        if len < STRAIGHT || self.routes.is_mapped(rank) || self.interface.delivering() {
            return self.remote_put_copy(rank, offset, own, len);
        }
        let network = self.networks.to(rank);
        let mut done = 0;
        while done < len {
            let post = || match network.put_own(rank, offset + done, own + done, len - done) {
                Ok(0) => Ok(None),
                posted => posted.map(Some),
            };
            let posted = match self.outbox.is_at_once() {
                true => self.try_ask("put", rank, post)?,
                false => Some(self.insist("put", rank, post)?),
            };
            let Some(count) = posted else { return self.remote_put_copy(rank, offset + done, own + done, len - done) };
            done += count;
        }
        Ok(())
    }

    fn remote_put_copy(&self, rank: usize, offset: usize, own: usize, len: usize) -> Result<()> {
        let mut bytes = vec![0; len];
        // SAFETY: our own slot; the caller guarantees the bounds.
        unsafe { crate::memory::copy::get(bytes.as_mut_ptr(), self.node.slot(self.rank).add(own), len) };
        self.remote_put(rank, offset, &bytes)
    }

    /// Adds one to the word at `offset` of the slot of `rank`, which exists, after all earlier puts there.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn remote_ring(&self, rank: usize, offset: usize) -> Result<()> {
        self.do_or_keep(rank, Operation::Ring { offset })
    }

    /// Writes `bytes`, if any, at `offset` of the slot of `rank`, which exists and is not this rank, and adds one to one of the
    /// two words at `bell`: the target itself adds to the first when it takes a notice, the network adds to the second.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn remote_put_ring(&self, rank: usize, offset: usize, bytes: &[u8], bell: [usize; 2]) -> Result<()> {
        if self.interface.delivering() && !self.outbox.is_at_once() {
            // As in `put_remote`: never the bytes without the ring.
            let len = bytes.len() + size_of::<u64>();
            return self.put_at_once("ringing a bell", rank, len, || self.remote_put_ring(rank, offset, bytes, bell));
        }
        let network = self.networks.to(rank);
        self.check_own("ringing a bell")?;
        if self.job.any_lost() || self.job.any_left() {
            self.check_alive(rank, "ringing a bell")?;
        }
        if network.notifies() && !self.outbox.keeps_for(rank) {
            let sent = network.notify(rank, offset, bytes, bell[0]);
            match sent.map_err(|error| self.remote_error(error, rank, "ringing a bell")) {
                Ok(Sent::Done) => return Ok(()),
                Ok(Sent::NoRoom) => {}
                // Kept below.
                Err(Error::PeerLost { .. }) if self.is_undecided(rank) => {}
                Err(error) => return Err(error),
            }
        }
        if !bytes.is_empty() {
            self.remote_put(rank, offset, bytes)?;
        }
        self.remote_ring(rank, bell[1])
    }

    /// Reads bytes at `offset` of the slot of `rank`, which exists. Waits for the network.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::InsideHandler`].
    pub(crate) fn remote_get(&self, doing: &'static str, rank: usize, offset: usize, to: &mut [u8]) -> Result<()> {
        if let Some(slot) = self.mapped_slot(rank) {
            // SAFETY: a mapped slot; the caller guarantees the bounds.
            unsafe { crate::memory::copy::get(to.as_mut_ptr(), slot.add(offset), to.len()) };
            return Ok(());
        }
        let (network, len) = (self.networks.to(rank), to.len());
        // SAFETY: borrowed until this returns.
        if unsafe { self.remote_straight(doing, rank, offset, Local::Into(to.as_mut_ptr()), len) }? {
            return Ok(());
        }
        let mut done = 0;
        while done < len {
            let to = &mut to[done..];
            // SAFETY: borrowed until this returns, and so until what is lent is taken back.
            let post = || unsafe { network.get_lent(rank, offset + done, to.as_mut_ptr(), to.len()) };
            let (lent, count) = self.insist(doing, rank, post)?;
            self.await_answer(doing, rank, &lent.0)?;
            done += count;
        }
        Ok(())
    }

    /// Does an atomic at `offset` of the slot of `rank`, which exists. Waits for the former value and returns it.
    ///
    /// # Errors
    /// As [`Engine::remote_get`].
    pub(crate) fn remote_atomic(&self, doing: &'static str, rank: usize, offset: usize, asked: Change) -> Result<u64> {
        let network = self.networks.to(rank);
        self.check_own(doing)?;
        let turns = self.remote.atomics.get();
        self.remote.atomics.set(turns.wrapping_add(1));
        if turns.is_multiple_of(ATOMICS) && !self.interface.delivering() {
            self.turn();
        }
        // Nearly always there is room, and the result comes at once.
        let clear = !(self.interface.delivering() || self.outbox.any() || self.job.any_lost() || self.job.any_left());
        let tried = if clear { network.atomic_now(rank, offset, asked) } else { Ok(None) };
        if let Ok(Some(Fetched::Now(word))) = tried {
            return Ok(word);
        }
        self.await_atomic(doing, rank, tried, || network.atomic_now(rank, offset, asked))
    }

    #[cold]
    fn await_atomic(
        &self,
        doing: &'static str,
        rank: usize,
        tried: transport::Result<Option<Fetched>>,
        post: impl FnMut() -> transport::Result<Option<Fetched>>,
    ) -> Result<u64> {
        let fetched = match tried {
            Ok(Some(fetched)) => fetched,
            Ok(None) => self.insist(doing, rank, post)?,
            Err(error) => return Err(self.remote_error(error, rank, doing)),
        };
        match fetched {
            Fetched::Now(word) => Ok(word),
            Fetched::Later(answer) => {
                self.await_answer(doing, rank, &answer)?;
                Ok(answer.word.load(Ordering::Relaxed))
            }
        }
    }

    /// Posts an operation, after everything put there before, as soon as there is room.
    #[inline]
    pub(super) fn insist<T>(
        &self,
        doing: &'static str,
        rank: usize,
        mut post: impl FnMut() -> transport::Result<Option<T>>,
    ) -> Result<T> {
        self.check_outside_handler(doing)?;
        if self.job.any_lost() || self.job.any_left() {
            self.check_alive(rank, doing)?;
        }
        let mut posted = Ok(None);
        self.wait_together(doing, || {
            // Queued writes to that rank go first.
            if !self.outbox.keeps_write_for(rank) {
                posted = post();
            }
            !matches!(posted, Ok(None))
        })?;
        let posted = posted.map_err(|error| self.remote_error(error, rank, doing))?;
        Ok(posted.expect("the wait ends with something that was posted"))
    }

    fn await_answer(&self, doing: &'static str, rank: usize, answer: &Answer) -> Result<()> {
        let mut outcome = Ok(false);
        self.wait_together(doing, || {
            outcome = self.answered(doing, rank, answer);
            !matches!(outcome, Ok(false))
        })?;
        outcome.map(drop)
    }

    /// Whether this rank has no pending operation, and all its puts and rings are in effect.
    pub(crate) fn has_sent_all(&self) -> bool {
        // A flush reports each failed peer once. Nothing can arrive there any more: go on with the others.
        let flushed = || loop {
            if let Ok(all) = self.networks.flush() {
                break all;
            }
        };
        !self.outbox.any() && !self.tasks.any_unposted() && flushed()
    }

    /// Waits until every rank has arrived.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if one died before.
    pub(crate) fn await_all(&self) -> Result<()> {
        let Some(pace) = self.networks.pace() else { return self.job.await_all() };
        while !self.job.all_arrived() {
            if let Some((rank, cause)) = self.job.first_lost() {
                return Err(Error::PeerLost { rank, cause, doing: "starting".into() });
            }
            pace.pause(IDLE_POLL);
        }
        Ok(())
    }

    /// Makes bytes `from..to` of this rank's slot, which were just committed, reachable for peers.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the network has no room for them.
    pub(crate) fn grew(&self, from: usize, to: usize) -> Result<()> {
        let full = |what, setting| Error::OutOfMemory {
            what,
            asked: to - from,
            free: 0,
            limit: 0,
            setting,
            place: CalledAt::default(),
        };
        self.networks.grew(from, to).map_err(|error| match error {
            transport::Error::NoMemory => {
                full("memory that the network may pin", "the limit on locked memory (ulimit -l)")
            }
            transport::Error::NoResource => full("room in the table of registered memory", "the size of allocations"),
            other => other.at("registering memory", self.rank),
        })
    }

    /// Blocks until this rank has nothing in flight: all its puts and rings are in effect, and all its gets and atomics are
    /// answered, also those whose callers have stopped waiting. Returns at once where puts are stores.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::InsideHandler`].
    #[inline]
    pub(crate) fn quiet(&self, doing: &'static str) -> Result<()> {
        if self.networks.is_empty() { Ok(()) } else { self.remote_quiet(doing) }
    }

    #[cold]
    fn remote_quiet(&self, doing: &'static str) -> Result<()> {
        let mut outcome = Ok(false);
        self.wait_together(doing, || {
            // Inside a handler nothing that is tracked advances, so `try_quiet` itself does not poll.
            outcome = if self.tasks.any_unposted() { Ok(false) } else { self.try_quiet(doing) };
            !matches!(outcome, Ok(false))
        })?;
        outcome.map(drop)
    }

    /// Whether this rank has nothing in flight; see [`Engine::quiet`].
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn try_quiet(&self, doing: &'static str) -> Result<bool> {
        if self.networks.is_empty() {
            return Ok(true);
        }
        self.check_own(doing)?;
        if self.outbox.any() {
            return Ok(false);
        }
        match self.networks.flush() {
            // Puts to a rank that has left are dropped without an error: that rank needs them no more.
            Err((rank, _)) if self.job.loss(rank) == Some(Loss::Left) => Ok(false),
            Err((rank, error)) => match self.remote_failure(error, rank, doing) {
                // For a rank of another host the network reports the loss before the roster does.
                Error::PeerLost { rank, cause: Loss::Left, .. } if self.job.loss(rank) == Some(Loss::Left) => Ok(false),
                error => Err(error),
            },
            Ok(all) => {
                self.remote.signalled.set(self.remote.signalled.get() && !all);
                Ok(all && self.networks.is_answered())
            }
        }
    }
}
