//! Progress and waits of a context, and ranks that are lost to it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::Engine;
use super::super::operation::Operation;
use super::super::remote_access::{EVENTS, RemoteAccess};
use super::super::wait::Patience;
use super::segments::Access;
use super::{ApartNetworks, Driven, Identity, Network, Stream};
use crate::error::{CalledAt, Error, Loss, Result};
use crate::membership::liveness::{SimulatedPeers, View};
use crate::memory::layout::SEGMENTS_FIRST;
use crate::sleep::Fences;
use crate::thread::token;
use crate::transport;
use crate::transport::Sent;
use crate::transport::lock::Guard;

/// Longest sleep of a wait. Completions of a context need not cause a wake-up, so it polls at least this often. Chosen.
const NAP: Duration = Duration::from_millis(1);

/// The ranks whose loss ends a wait of a context.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ends {
    /// Any rank.
    Any,
    /// Only the rank that the wait is for.
    Of(usize),
    /// None: the operations that are waited for end when their target is lost.
    Never,
}

impl Stream {
    /// Whether this is a context of the rank with that [identity](Engine::identity).
    #[inline]
    pub(crate) fn is_of(&self, identity: Identity) -> bool {
        self.home.shared.identity == identity
    }

    /// Whether the memory of `rank` is mapped here.
    #[inline]
    pub(crate) fn is_mapped(&self, rank: usize) -> bool {
        self.routes.is_mapped(rank)
    }

    /// The slot of `rank`, if it is mapped here.
    #[inline(always)]
    pub(super) fn mapped_slot(&self, rank: usize) -> Option<*mut u8> {
        self.is_mapped(rank).then(|| self.node.slot(rank))
    }

    /// Whether `rank` runs on this host.
    #[inline]
    pub(crate) fn is_here(&self, rank: usize) -> bool {
        self.job.is_here(rank)
    }

    /// # Errors
    /// [`Error::RankOutOfRange`].
    pub(crate) fn check_rank(&self, operation: &'static str, rank: usize) -> Result<()> {
        if rank < self.size {
            Ok(())
        } else {
            Err(Error::RankOutOfRange { operation, rank, size: self.size, place: CalledAt::default() })
        }
    }

    /// # Errors
    /// [`Error::Forked`]; in virtual time [`Error::InvalidArgument`] on another thread than that of the world.
    #[inline]
    pub(super) fn check_own(&self, operation: &'static str) -> Result<()> {
        self.node.check_own(operation, self.rank)?;
        let is_paced = self.network.as_ref().is_some_and(|network| network.paced);
        let shared = &self.home.shared;
        let is_home = || self.home.thread == Some(std::thread::current().id()) && !shared.over.load(Ordering::Relaxed);
        if is_paced && !is_home() && shared.lent.load(Ordering::Relaxed) == 0 {
            let why = "on a simulated network a context is used on the thread of its world, as long as that lives, or by others \
                       while that thread is in Pool::install, or serves in World::serve_while"
                .into();
            return Err(Error::InvalidArgument { operation, why });
        }
        Ok(())
    }

    #[inline]
    pub(super) fn check_alive(&self, rank: usize, doing: &'static str) -> Result<()> {
        if self.job.any_lost() || self.job.any_left() { self.check_loss(rank, doing) } else { Ok(()) }
    }

    /// As [`Stream::check_alive`], for operations over a network: also no interface of this rank has lost its connection to `rank`.
    #[inline]
    pub(super) fn check_reachable(&self, rank: usize, doing: &'static str) -> Result<()> {
        self.check_alive(rank, doing)?;
        // If a context has lost a message, its room in the window that all contexts share never comes back.
        if self.cuts.contains(rank) {
            return Err(Error::PeerLost { rank, cause: Loss::Disconnected, doing: doing.into() });
        }
        Ok(())
    }

    #[cold]
    fn check_loss(&self, rank: usize, doing: &'static str) -> Result<()> {
        let Some(cause) = self.job.loss(rank) else { return Ok(()) };
        let first = || self.cuts.first_lost(&self.job);
        let (rank, cause) = match self.job.gave_up(rank) {
            true => self.job.await_panic(self.rank, first).unwrap_or((rank, cause)),
            false => (rank, cause),
        };
        Err(self.told(Error::PeerLost { rank, cause, doing: doing.into() }))
    }

    /// As [`Stream::look_up`], with the error of [`Stream::no_segment`].
    #[cold]
    pub(super) fn locate_apart(
        &self,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        len: usize,
        by_network: bool,
    ) -> Result<Access<'_>> {
        self.look_up(doing, (rank, number), offset, len, by_network).map_err(|error| match error {
            Error::NoSegment { .. } if number as usize >= SEGMENTS_FIRST => self.no_segment(doing, rank, number),
            error => error,
        })
    }

    /// As [`Engine::no_segment`].
    #[cold]
    pub(super) fn no_segment(&self, doing: &'static str, rank: usize, number: u32) -> Error {
        let first = || self.cuts.first_failed(&self.job);
        let has_left = |rank| self.job.loss(rank) == Some(Loss::Left) && !self.cuts.is_accepted(rank);
        let left = || self.job.first_to_leave(has_left).map(|rank| (rank, Loss::Left));
        match self.job.await_panic(self.rank, first).or_else(left) {
            Some((rank, cause)) => self.told(Error::PeerLost { rank, cause, doing: doing.into() }),
            None => {
                self.cuts.suspect(rank, self.node.status(self.rank).entered.load(Ordering::Relaxed));
                Error::NoSegment { operation: doing, rank, number, place: CalledAt::default() }
            }
        }
    }

    /// As [`Failures::told`](crate::engine::failures::Failures::told).
    #[cold]
    pub(super) fn told(&self, error: Error) -> Error {
        self.cuts.note_told(&self.job, &error);
        error
    }

    /// Locks the networks' state and counts a use. Yields while the rank's own thread drains this context.
    pub(super) fn driven(&self) -> Guard<'_, Driven> {
        let network = self.network.as_ref().expect("only called where ranks are not all mapped here");
        while self.is_drained_elsewhere(network) {
            rustix::thread::sched_yield();
        }
        let driven = network.driven.lock();
        // Under the lock, since progress of another thread disarms and arms under it.
        self.sleepers.disarm();
        network.uses.note(|| self.job.wake(self.rank));
        driven
    }

    /// Whether another thread drains this context.
    fn is_drained_elsewhere(&self, network: &Network) -> bool {
        let drainer = network.draining.load(Ordering::Relaxed);
        drainer != 0 && drainer != token()
    }

    /// As [`Stream::driven`], for a thread other than the owner; counts no use. `None` if the lock is taken, or the rank's own
    /// thread drains this context.
    pub(super) fn try_driven(&self) -> Option<Guard<'_, Driven>> {
        let network = self.network.as_ref()?;
        if self.is_drained_elsewhere(network) { None } else { network.driven.try_lock() }
    }

    /// Makes progress for everything but this context: on the rank's own thread for its messages too, else for other contexts
    /// only.
    pub(super) fn turn_others(&self, home: Option<&Engine>) -> usize {
        match home {
            Some(engine) => {
                let done = engine.turn();
                if done == 0 {
                    // Receipts that a rank which has left still owes end in the next turns.
                    engine.first_lost();
                }
                done
            }
            None => self.home.shared.siblings.turn(self),
        }
    }

    /// Makes progress once. Returns how much was done.
    ///
    /// # Errors
    /// As [`Stream::check_own`].
    pub(crate) fn poll(&self, doing: &'static str) -> Result<usize> {
        self.check_own(doing)?;
        let mut done = 0;
        if self.network.is_some() {
            done = self.driven().turn(self);
            done += self.happen_due();
            self.home.shared.siblings.turn(self);
        }
        if done == 0 {
            self.idle_poll();
        }
        Ok(done)
    }

    /// In virtual time, lets time pass after a poll without result.
    pub(crate) fn idle_poll(&self) {
        if self.network.as_ref().is_some_and(|network| network.paced)
            && let Some(engine) = self.home.engine()
            && engine.check_outside_handler("").is_ok()
        {
            // Without a device that serves it the target serves puts and gets in its own polls, so this rank must poll too.
            engine.turn();
            engine.idle_poll();
        }
    }

    /// Makes progress until `ready` holds. On the thread of the world messages are delivered meanwhile.
    ///
    /// # Errors
    /// Of `ready`; [`Error::InsideHandler`] if it has to wait; as [`Stream::check_own`] and [`Stream::pass_time`].
    pub(super) fn wait(&self, doing: &'static str, ready: impl FnMut(&mut Driven) -> Result<bool>) -> Result<()> {
        self.wait_unless(doing, Ends::Any, ready)
    }

    /// As [`Stream::wait`], but only some losses end it.
    ///
    /// # Errors
    /// As [`Stream::wait`].
    pub(super) fn wait_unless(
        &self,
        doing: &'static str,
        ends: Ends,
        mut ready: impl FnMut(&mut Driven) -> Result<bool>,
    ) -> Result<()> {
        self.check_own(doing)?;
        if ready(&mut self.driven())? {
            return Ok(());
        }
        self.wait_long(doing, self.home.engine().as_deref(), ends, &mut ready)
    }

    /// As [`Stream::wait`], but calls `ready` without the context's lock, so `ready` may use this context. The caller has
    /// called [`Stream::check_own`].
    ///
    /// # Errors
    /// [`Error::InsideHandler`], also if `ready` holds already; as [`Stream::pass_time`].
    pub(crate) fn wait_for(&self, doing: &'static str, mut ready: impl FnMut() -> bool) -> Result<()> {
        let home = self.home.engine();
        if let Some(engine) = &home {
            engine.check_outside_handler(doing)?;
        }
        let mut idle = 0;
        while !ready() {
            let mut done = self.driven().turn(self);
            // A separate statement: `happen_due` takes the lock that the one above released.
            done += self.happen_due();
            // Without the lock: handlers may use contexts.
            let came = self.turn_others(home.as_deref());
            if done + came != 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            self.pass_time(doing, idle, home.as_deref(), Ends::Any, None)?;
        }
        Ok(())
    }

    #[cold]
    pub(super) fn wait_long(
        &self,
        doing: &'static str,
        home: Option<&Engine>,
        ends: Ends,
        ready: &mut dyn FnMut(&mut Driven) -> Result<bool>,
    ) -> Result<()> {
        if let Some(engine) = home {
            engine.check_outside_handler(doing)?;
        }
        let mut idle = 0;
        loop {
            let mut driven = self.driven();
            let mut done = driven.turn(self);
            let is_ready = ready(&mut driven);
            drop(driven);
            done += self.happen_due();
            if is_ready? {
                return Ok(());
            }
            // Without the lock: handlers may use contexts.
            let came = self.turn_others(home);
            if done + came != 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            self.pass_time(doing, idle, home, ends, None)?;
        }
    }

    /// Backs off after `idle` polls without result: spin, then yield, then sleep; the sleep holds the lock. `nap`: limit on a
    /// sleep in virtual time, for waits that nothing wakes.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank failed or the connection to one is lost, one whose loss `ends` the wait; before a sleep [`Error::MemoryLost`]. In virtual
    /// time, if nothing can end the wait, [`Error::PeerLost`] with a rank that left, or [`Error::Standstill`].
    pub(super) fn pass_time(
        &self,
        doing: &'static str,
        idle: u32,
        home: Option<&Engine>,
        ends: Ends,
        nap: Option<Duration>,
    ) -> Result<()> {
        let mut driven = self.driven();
        let lost = self.first_lost(&driven).and_then(|first| match ends {
            Ends::Any => Some(first),
            Ends::Of(rank) => {
                let cut = self.cuts.contains(rank).then_some(Loss::Disconnected);
                self.job.loss(rank).filter(|cause| *cause != Loss::Left).or(cut).map(|cause| (rank, cause))
            }
            Ends::Never => None,
        });
        if let Some((rank, cause)) = lost {
            return Err(Error::PeerLost { rank, cause, doing: doing.into() });
        }
        let Patience { spins, yields, .. } = self.patience;
        if let (Some(pace), Some(engine)) = (driven.networks.pace(), home) {
            if !engine.sleep_virtual(pace, nap.map(|nap| pace.now() + nap)) {
                return Err(match self.job.any_left().then(|| self.job.first_to_leave(|_| true)).flatten() {
                    Some(rank) => engine.failures.lost(rank, Loss::Left, doing),
                    None => Error::Standstill { doing: doing.into() },
                });
            }
        } else if idle < spins {
            std::hint::spin_loop();
        } else if idle < spins.saturating_add(yields) {
            drop(driven);
            rustix::thread::sched_yield();
        } else {
            if !self.job.is_intact() {
                return Err(Error::MemoryLost { doing: doing.into() });
            }
            if !self.job.supervised() {
                let Driven { networks, losses, .. } = &mut *driven;
                losses.check_for_dead(&self.view(networks));
            }
            if driven.networks.arm(EVENTS) {
                driven.networks.sleep(NAP);
            }
        }
        Ok(())
    }

    pub(super) fn view<'a>(&'a self, networks: &'a ApartNetworks) -> View<'a> {
        View {
            job: &self.job,
            simulated: networks.pace().map(|pace| pace as &dyn SimulatedPeers),
            rank: self.rank,
            size: self.size,
        }
    }

    /// The rank that died first, or to which the connection is lost.
    pub(super) fn first_lost(&self, driven: &Driven) -> Option<(usize, Loss)> {
        driven.losses.first(&self.job)
    }

    /// The error of an operation of this context on `rank`. If the peer cannot be reached, blocks until the roster knows why or its time is
    /// over; within [`Driven::at_once`] it does not block. Also notes for the launcher which rank that left this one misses.
    #[cold]
    pub(super) fn failed(
        &self,
        driven: &mut Driven,
        error: transport::Error,
        rank: usize,
        doing: &'static str,
    ) -> Error {
        self.told(self.failure(driven, error, rank, doing))
    }

    /// As [`Stream::failed`], for a caller that tells the program only some of these errors: it notes nothing.
    #[cold]
    pub(super) fn failure(
        &self,
        Driven { networks, losses, is_at_once, .. }: &mut Driven,
        error: transport::Error,
        rank: usize,
        doing: &'static str,
    ) -> Error {
        let (view, error) = (self.view(networks), error.at(doing, rank));
        match is_at_once {
            true => losses.error_at_once(&view, error, rank, doing),
            false => losses.error(&view, error, rank, doing),
        }
    }

    /// Blocks until `post` succeeds: retries while there is backpressure.
    pub(super) fn insist<T>(
        &self,
        doing: &'static str,
        rank: usize,
        mut post: impl FnMut(&dyn RemoteAccess) -> transport::Result<Option<T>>,
    ) -> Result<T> {
        self.check_reachable(rank, doing)?;
        let mut posted = None;
        self.wait_unless(doing, Ends::Of(rank), |driven| {
            if !driven.is_clear(self, rank)? {
                return Ok(false);
            }
            posted = post(driven.networks.to(rank)).map_err(|error| self.failed(driven, error, rank, doing))?;
            Ok(posted.is_some())
        })?;
        Ok(posted.expect("the wait ends with something that was posted"))
    }
}

impl Driven {
    /// Makes progress. Returns how much was done.
    pub(super) fn turn(&mut self, stream: &Stream) -> usize {
        let (done, has_news) = self.networks.progress();
        if has_news {
            // No rank sends messages to a context's interface. Discard what arrives.
            while self.networks.arrival().is_some() {}
            let Driven { networks, losses, .. } = self;
            networks.take_lost().into_iter().for_each(|rank| losses.doubt(&stream.view(networks), rank));
        }
        if self.losses.has_doubts() {
            let Driven { networks, losses, .. } = self;
            losses.review(&stream.view(networks));
        }
        if !self.untold.is_empty() {
            self.tell_losses(stream);
        }
        if !self.nudges.is_empty() {
            self.nudge(stream);
        }
        // Polls of the world call this too, and must not block.
        let done = self.at_once(|driven| {
            let sent = if driven.kept.is_empty() { 0 } else { driven.post_all_kept(stream) };
            done + sent + driven.advance_tracked(stream)
        });
        stream.sleepers.found(done);
        done
    }

    /// Runs `act` without blocking until the roster knows why a rank cannot be reached. Until then an operation on that rank behaves
    /// [as if there were no room](Driven::unless_undecided).
    pub(super) fn at_once<R>(&mut self, act: impl FnOnce(&mut Driven) -> R) -> R {
        let before = std::mem::replace(&mut self.is_at_once, true);
        let outcome = act(self);
        self.is_at_once = before;
        outcome
    }

    /// Returns `later` instead of `error`, within [`Driven::at_once`] while the roster has not decided why `rank` cannot be reached.
    ///
    /// # Errors
    /// `error`.
    pub(super) fn unless_undecided<T>(&self, rank: usize, error: Error, later: T) -> Result<T> {
        match error {
            Error::PeerLost { .. } if self.is_at_once && self.losses.is_doubted(rank) => Ok(later),
            error => Err(error),
        }
    }

    /// One attempt to post. The caller notes an error that the program is told.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(super) fn post<B: AsRef<[u8]>>(
        &mut self,
        stream: &Stream,
        doing: &'static str,
        rank: usize,
        operation: &mut Operation<B>,
    ) -> Result<Sent> {
        #[cfg(test)]
        if self.is_broken {
            let error = stream.failure(self, transport::Error::ConnectionReset, rank, doing);
            return self.unless_undecided(rank, error, Sent::NoRoom);
        }
        operation.post(self.networks.to(rank), rank).or_else(|error| {
            let error = stream.failure(self, error, rank, doing);
            self.unless_undecided(rank, error, Sent::NoRoom)
        })
    }

    /// Queues the errors of `untold` for the next flush, for each rank for which the roster has the cause or has had its time.
    #[cold]
    fn tell_losses(&mut self, stream: &Stream) {
        let Driven { networks, losses, untold, faults, unmet, .. } = self;
        let view = stream.view(networks);
        untold.retain(|(rank, doing)| {
            let is_undecided = losses.is_doubted(*rank);
            if !is_undecided {
                unmet.insert(*rank);
            }
            if !is_undecided && stream.job.loss(*rank) != Some(Loss::Left) {
                let cut = Error::PeerLost { rank: *rank, cause: Loss::Disconnected, doing: (*doing).into() };
                faults.push_back(losses.decided(&view, cut, *rank, doing));
            }
            is_undecided
        });
    }

    /// Wakes targets that sleep or fall asleep while a ring to them is in flight: on these networks a ring causes no event at
    /// the target.
    pub(super) fn nudge(&mut self, stream: &Stream) {
        let Driven { networks, nudges, .. } = self;
        nudges.retain_mut(|(rank, due)| {
            if !*due {
                // A failed peer needs no wake-up.
                let Ok(settled) = networks.to(*rank).settled(*rank) else { return false };
                if !stream.job.sleep_word(*rank).must_wake(Fences::Full) {
                    return !settled;
                }
                stream.job.wake(*rank);
                *due = true;
            }
            matches!(networks.to(*rank).wake(*rank), Ok(Sent::NoRoom))
        });
    }

    pub(super) fn is_settled(&mut self, stream: &Stream, doing: &'static str, rank: usize) -> Result<bool> {
        let is_clear = self.is_clear(stream, rank)?;
        let settled = self.networks.to(rank).settled(rank).or_else(|error| {
            let error = stream.failed(self, error, rank, doing);
            self.unless_undecided(rank, error, false)
        });
        Ok(settled? && is_clear && !self.untold.iter().any(|(untold, _)| *untold == rank))
    }

    pub(super) fn is_quiet(&mut self, stream: &Stream, doing: &'static str) -> Result<bool> {
        let flushed = self.networks.flush();
        #[cfg(test)]
        let flushed = if self.is_broken { Err((1, transport::Error::ConnectionReset)) } else { flushed };
        match flushed {
            Ok(all) => {
                let has_more = !self.kept.is_empty() || !self.tracking.is_empty() || !self.untold.is_empty();
                Ok(all && !has_more && self.networks.is_answered())
            }
            // Puts to a rank that left need not complete. `false`: call again, other ranks may have operations in flight.
            Err((rank, _)) if stream.job.loss(rank) == Some(Loss::Left) => {
                self.unmet.insert(rank);
                Ok(false)
            }
            Err((rank, error)) => match stream.failure(self, error, rank, doing) {
                Error::PeerLost { rank, cause: Loss::Left, .. } if stream.job.loss(rank) == Some(Loss::Left) => {
                    self.unmet.insert(rank);
                    Ok(false)
                }
                error => {
                    // The error may name another rank that was lost before.
                    if let Err(error) = self.unless_undecided(rank, error, ()) {
                        self.unmet.insert(rank);
                        return Err(error);
                    }
                    if !self.untold.iter().any(|(untold, _)| *untold == rank) {
                        self.untold.push((rank, doing));
                    }
                    Ok(false)
                }
            },
        }
    }
}
