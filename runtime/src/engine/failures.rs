//! Failed peers, as this rank's own stream of operations sees them.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Engine;
use super::faults::Faults;
use super::networks::Networks;
use crate::error::{CalledAt, Error, Loss, Result};
use crate::membership::JobMemory;
use crate::membership::liveness::{Cuts, Losses, SimulatedPeers, View};
use crate::transport;

/// How long a rank that leaves waits for the end of one that it [suspects](Engine::suspect). Chosen: a rank that returns from its program
/// first closes its segments, then leaves. In tests longer than a machine lets a rank wait.
const SUSPECT: Duration = Duration::from_millis(if cfg!(test) { 2000 } else { 100 });

/// The failed peers that this rank's own stream knows of, and those that its waits have to report.
pub(crate) struct Failures {
    rank: usize,
    size: usize,
    job: Arc<JobMemory>,
    /// Ranks that this rank can no longer reach over their network.
    losses: RefCell<Losses>,
    /// This rank is agreeing with others on the ranks that are gone.
    ignores: Cell<bool>,
    /// How many ranks that are gone this rank goes on without.
    accepted: Cell<u64>,
    /// A poll of this rank runs operations: an error does not wait until the roster tells why a peer is lost.
    polling: Cell<bool>,
    /// The panic, by its [number](crate::thread::last_panic), that the roster knows of.
    panic: Cell<Option<u64>>,
    /// The panic in which this rank has [waited](Engine::miss_suspect) for its suspect.
    unwound: Cell<Option<u64>>,
}

/// See [`Failures::begin_polling`].
pub(super) struct Polling<'a> {
    flag: &'a Cell<bool>,
    before: bool,
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.flag.set(self.before);
    }
}

/// See [`Failures::ignore`].
pub(crate) struct Ignoring<'a>(&'a Failures);

impl Drop for Ignoring<'_> {
    fn drop(&mut self) {
        self.0.ignores.set(false);
    }
}

impl Failures {
    /// Those of `rank`: it knows of none yet.
    pub(super) fn new(rank: usize, job: &Arc<JobMemory>) -> Failures {
        Failures {
            rank,
            size: job.ranks(),
            job: Arc::clone(job),
            losses: RefCell::default(),
            ignores: Cell::new(false),
            accepted: Cell::new(0),
            polling: Cell::new(false),
            panic: Cell::new(None),
            unwound: Cell::new(None),
        }
    }

    fn view<'a>(&'a self, networks: &'a Networks) -> View<'a> {
        let simulated = networks.pace().map(|pace| pace as &dyn SimulatedPeers);
        View { job: &self.job, simulated, rank: self.rank, size: self.size }
    }

    /// Those of a further interface of this rank. Both know of each other's lost connections.
    pub(super) fn for_another(&self) -> Losses {
        self.losses.borrow().for_another()
    }

    /// Lost connections of all interfaces of this rank, and the ranks that it goes on without.
    pub(crate) fn cuts(&self) -> Arc<Cuts> {
        Arc::clone(self.losses.borrow().cuts())
    }

    /// Whether an interface of this rank has lost its connection to `rank`.
    pub(super) fn is_cut(&self, rank: usize) -> bool {
        self.losses.borrow().cuts().contains(rank)
    }

    /// The rank that died first, or to which the connection is lost, except for ranks that this rank goes on without. `None` also while
    /// this rank [agrees](Failures::ignore) on the ranks that are gone.
    pub(super) fn first(&self) -> Option<(usize, Loss)> {
        if self.ignores.get() { None } else { self.losses.borrow().first(&self.job) }
    }

    /// Whether a rank is lost that a wait of this rank has to report.
    #[inline]
    pub(super) fn any_new(&self) -> bool {
        !self.ignores.get() && self.job.any_lost() && self.losses.borrow().cuts().is_any_new(&self.job)
    }

    /// As long as the result lives, no wait ends because a rank has failed.
    pub(crate) fn ignore(&self) -> Ignoring<'_> {
        self.ignores.set(true);
        Ignoring(self)
    }

    /// Whether no wait ends because a rank has failed.
    pub(super) fn are_ignored(&self) -> bool {
        self.ignores.get()
    }

    /// From now on this rank goes on without `rank`: no wait ends because `rank` has failed, operations on `rank` fail, and no poll reports
    /// the failure.
    pub(crate) fn accept(&self, rank: usize, faults: &Faults) {
        if self.losses.borrow().cuts().accept(rank) {
            self.accepted.set(self.accepted.get() + 1);
        }
        faults.forget(|error| matches!(error, Error::PeerLost { rank: lost, .. } if *lost == rank));
    }

    /// Whether any rank has ended, in any way, or cannot be reached any more.
    pub(crate) fn any_gone(&self) -> bool {
        self.job.any_gone() || !self.losses.borrow().cuts().is_empty()
    }

    /// Whether `rank` has ended, in any way, or cannot be reached any more. Only messages that are in flight already may still come from it.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        self.job.loss(rank).is_some() || self.losses.borrow().cuts().contains(rank)
    }

    /// Whether this rank goes on without some rank.
    #[inline(always)]
    pub(crate) fn any_accepted(&self) -> bool {
        self.accepted.get() != 0
    }

    /// How many ranks this rank goes on without. Changes only upwards. Read in every poll of a collective.
    #[inline(always)]
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.get()
    }

    /// The first of `ranks` whose loss this rank has [accepted](Failures::accept).
    pub(crate) fn first_accepted(&self, ranks: impl IntoIterator<Item = usize>) -> Option<(usize, Loss)> {
        let cuts = self.cuts();
        let rank = ranks.into_iter().find(|rank| cuts.is_accepted(*rank))?;
        Some((rank, self.job.loss(rank).unwrap_or(Loss::Unknown)))
    }

    /// Marks ranks of this host whose process has ended.
    pub(super) fn check_for_dead(&self, networks: &Networks) {
        self.losses.borrow_mut().check_for_dead(&self.view(networks));
    }

    /// Called when the network says that `rank` cannot be reached. Later polls look in the roster for the reason.
    pub(super) fn doubt(&self, rank: usize, networks: &Networks) {
        self.losses.borrow_mut().doubt(&self.view(networks), rank);
    }

    /// Whether there are ranks that the network cannot reach, and the roster has not told why.
    #[inline]
    pub(super) fn has_doubts(&self) -> bool {
        self.losses.borrow().has_doubts()
    }

    /// Looks again in the roster why these ranks cannot be reached.
    pub(super) fn review(&self, networks: &Networks) {
        self.losses.borrow_mut().review(&self.view(networks));
    }

    /// Enters lost ranks in the roster for which no other process does so: ranks to which this one has lost its connection, ranks whose
    /// process has ended without a supervisor, and ranks that a simulated network has lost.
    pub(crate) fn enter(&self, networks: &Networks) {
        if self.job.loss(self.rank).is_some() {
            // The others go on without this rank, so it enters nothing about them.
            return;
        }
        let enter = |rank: usize, cause: Loss| {
            if self.job.loss(rank).is_none() {
                self.job.mark_lost(rank, cause);
                networks.notify_all();
            }
        };
        let cuts = self.cuts();
        if !cuts.is_empty() {
            cuts.ranks().into_iter().for_each(|rank| enter(rank, Loss::Disconnected));
        }
        if let Some(peers) = self.view(networks).simulated {
            (0..self.size).filter(|rank| peers.is_dead(*rank)).for_each(|rank| enter(rank, Loss::Unknown));
        } else if !self.job.supervised() {
            self.check_for_dead(networks);
        }
    }

    /// The error of an operation on `rank`. If it `may_wait`, this waits until the roster tells why a peer cannot be reached.
    fn error(&self, error: Error, rank: usize, doing: &'static str, networks: &Networks, may_wait: bool) -> Error {
        let (mut losses, view) = (self.losses.borrow_mut(), self.view(networks));
        match may_wait {
            true => losses.error(&view, error, rank, doing),
            false => losses.error_at_once(&view, error, rank, doing),
        }
    }

    /// The rank whose death may be why another one has left or given up: [the first](Failures::first). If that rank is about to die of a
    /// panic, this waits until it has.
    #[cold]
    pub(crate) fn cause(&self) -> Option<(usize, Loss)> {
        if self.ignores.get() { None } else { self.job.await_panic(self.rank, || self.first()) }
    }

    /// The error for a peer that failed or left. One that left, or panicked later than another, may have done so because another rank died:
    /// then the error names that rank. Otherwise this also notes for the launcher that this rank missed it.
    #[cold]
    pub(crate) fn lost(&self, rank: usize, cause: Loss, doing: &'static str) -> Error {
        // If it was missed before any rank died it is the cause itself.
        let is_first = || self.job.first_missed() == Some(rank);
        let may_have_cause = cause == Loss::Left || self.job.gave_up(rank);
        let (rank, cause) = if may_have_cause && !is_first() { self.cause() } else { None }.unwrap_or((rank, cause));
        self.told(Error::PeerLost { rank, cause, doing: doing.into() })
    }

    /// `error`, which the program is told: [noted](Cuts::note_told) for the launcher.
    #[cold]
    pub(crate) fn told(&self, error: Error) -> Error {
        self.losses.borrow().cuts().note_told(&self.job, &error);
        error
    }

    /// As long as the result lives, operations of this rank run inside a poll: no error waits for the roster.
    pub(super) fn begin_polling(&self) -> Polling<'_> {
        Polling { flag: &self.polling, before: self.polling.replace(true) }
    }

    /// Whether operations of this rank run inside a poll.
    fn is_polling(&self) -> bool {
        self.polling.get()
    }

    /// As [`Losses::doubt_for_long`].
    #[cfg(test)]
    pub(super) fn doubt_for_long(&self, rank: usize) {
        self.losses.borrow_mut().doubt_for_long(rank);
    }

    /// Whether the network cannot reach `rank`, and the roster has not told why.
    pub(super) fn is_doubted(&self, rank: usize) -> bool {
        self.losses.borrow().is_doubted(rank)
    }

    /// Nothing is known of any loss any more.
    #[cfg(test)]
    pub(super) fn clear(&self) {
        self.losses.take();
    }
}

impl Engine {
    /// The error of a wait for `rank`, which [is gone](Failures::is_gone).
    #[cold]
    pub(crate) fn gone(&self, rank: usize, doing: &'static str) -> Error {
        let cut = || Error::PeerLost { rank, cause: Loss::Disconnected, doing: doing.into() };
        self.check_alive(rank, doing).err().unwrap_or_else(cut)
    }

    /// Looks for peers whose process has ended, where no supervisor does. For a thread that does not wait in this engine. To be called
    /// rarely, since it makes a system call for each peer of this host.
    #[cold]
    pub(crate) fn look_for_dead_peers(&self) {
        if !self.job.supervised() && self.networks.pace().is_none() {
            self.failures.check_for_dead(&self.networks);
        }
    }

    /// As [`Failures::first`].
    pub(super) fn first_lost(&self) -> Option<(usize, Loss)> {
        let lost = self.failures.first();
        if (lost.is_some() || self.job.any_left() && !self.failures.are_ignored())
            && self.contexts.receipts().are_open()
        {
            // A context opens receipts without this mark. The next polls end those that will never come.
            self.tasks.mark();
        }
        lost
    }

    /// # Errors
    /// [`Error::PeerLost`] if a rank died, or a connection to one is lost.
    pub(crate) fn check_none_lost(&self, doing: &'static str) -> Result<()> {
        match self.first_lost() {
            Some((rank, cause)) => Err(Error::PeerLost { rank, cause, doing: doing.into() }),
            None => Ok(()),
        }
    }

    /// As [`Engine::check_none_lost`], also if a rank has left: this rank then counts as missing it.
    ///
    /// # Errors
    /// [`Error::PeerLost`] of the rank that died first, or else of the one that left first; not of one that this rank goes on without.
    pub(crate) fn check_none_gone(&self, doing: &'static str) -> Result<()> {
        let cuts = self.failures.cuts();
        let has_left = |rank| self.job.loss(rank) == Some(Loss::Left) && !cuts.is_accepted(rank);
        // A rank that left, even if no operation of a rank has missed it yet.
        let left = || self.job.first_to_leave(has_left).map(|rank| (rank, Loss::Left));
        match self.failures.cause().or_else(left) {
            Some((rank, cause)) => Err(self.failures.told(Error::PeerLost { rank, cause, doing: doing.into() })),
            None => Ok(()),
        }
    }

    /// The error of an operation on segment `number` of `rank`, which has none of that number. The owner may have closed the segment because
    /// another rank is gone: then that is the error.
    #[cold]
    pub(crate) fn no_segment(&self, operation: &'static str, rank: usize, number: u32) -> Error {
        self.check_none_gone(operation).err().unwrap_or_else(|| {
            self.suspect(rank);
            Error::NoSegment { operation, rank, number, place: CalledAt::default() }
        })
    }

    /// Notes that `rank` has ended what this rank still needs: it may be about to leave, see [`Engine::miss_suspect`].
    #[cold]
    pub(crate) fn suspect(&self, rank: usize) {
        self.failures.cuts().suspect(rank, self.barriers());
    }

    /// How many barriers this rank has entered.
    fn barriers(&self) -> u64 {
        self.node.status(self.rank).entered.load(Ordering::Relaxed)
    }

    /// Called before this rank leaves or ends by a panic. If it suspects a rank since its last barrier, that rank leaves in order, and no
    /// other rank is lost or missed, then this rank misses it. Waits for the end of that rank, at most for [`SUSPECT`].
    #[cold]
    pub(crate) fn miss_suspect(&self) {
        let Some(rank) = self.failures.cuts().suspected(self.barriers()) else { return };
        let is_open = || !self.job.any_lost() && self.job.first_missed().is_none();
        let start = Instant::now();
        let may_wait = || self.networks.pace().is_none() && start.elapsed() < SUSPECT;
        while is_open() && self.job.loss(rank).is_none() && may_wait() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if is_open() && self.job.loss(rank) == Some(Loss::Left) {
            self.job.miss(rank);
        }
    }

    /// Notes in the roster that this rank panics, and whether it may do so because of another rank: one that is lost to it, or one that an
    /// error has named to it. What other ranks were told does not count. Called before another rank can notice. Does nothing if the
    /// roster knows of this panic.
    #[cold]
    pub(crate) fn begin_to_panic(&self) {
        let panic = Some(crate::thread::last_panic());
        // In virtual time no rank can wait for this one's end.
        if self.networks.pace().is_none() && self.failures.panic.replace(panic) != panic {
            let cuts = self.failures.cuts();
            let was_told = cuts.was_told() || cuts.suspected(self.barriers()).is_some();
            self.job.begin_to_panic(self.rank, was_told || cuts.any_failed(&self.job, self.rank));
        }
    }

    /// As [`JobMemory::await_first_panic`].
    #[cold]
    pub(crate) fn await_first_panic(&self) {
        let cuts = self.failures.cuts();
        self.job.await_first_panic(self.rank, || cuts.any_failed(&self.job, self.rank));
    }

    /// As [`Engine::begin_to_panic`], where this rank unwinds and may be about to end. The panic may be due to an error that a
    /// [suspect](Engine::suspect) has caused.
    #[cold]
    pub(crate) fn unwind(&self) {
        // The roster is the parent's.
        if self.is_own() {
            let panic = Some(crate::thread::last_panic());
            if self.failures.unwound.replace(panic) != panic {
                self.miss_suspect();
            }
            self.begin_to_panic();
        }
    }

    /// The error of an operation of this rank's own stream on `rank`. Outside polls and handlers this waits until the roster tells why a
    /// peer cannot be reached. Also notes for the launcher which rank that left this one misses.
    #[cold]
    pub(super) fn remote_error(&self, error: transport::Error, rank: usize, doing: &'static str) -> Error {
        self.failures.told(self.remote_failure(error, rank, doing))
    }

    /// As [`Engine::remote_error`], for a caller that tells the program only some of these errors: it notes nothing.
    #[cold]
    pub(super) fn remote_failure(&self, error: transport::Error, rank: usize, doing: &'static str) -> Error {
        self.failures.error(error.at(doing, rank), rank, doing, &self.networks, self.may_wait())
    }

    /// Whether an error may wait until the roster tells why a peer cannot be reached: outside polls and handlers.
    pub(crate) fn may_wait(&self) -> bool {
        !self.failures.is_polling() && !self.interface.delivering()
    }

    /// Inside polls and handlers: whether `rank` cannot be reached, and the roster may still tell why. The operation has not failed yet: a
    /// later poll retries it, or reports the error.
    pub(super) fn is_undecided(&self, rank: usize) -> bool {
        !self.may_wait() && self.failures.is_doubted(rank)
    }

    /// Whether all puts of this rank to living ranks are in effect, and no message waits for room. Ignores losses of ranks: the network
    /// reports each once.
    ///
    /// # Errors
    /// Those of operations on ranks that live.
    pub(crate) fn is_quiet_but_for_lost(&self, doing: &'static str) -> Result<bool> {
        if self.outbox.any() || self.tasks.any_unposted() {
            return Ok(false);
        }
        match self.try_quiet(doing) {
            Err(Error::PeerLost { .. }) => Ok(false),
            outcome => outcome,
        }
    }

    /// Waits until [`Engine::is_quiet_but_for_lost`], and `also` holds, or `unless` does.
    ///
    /// # Errors
    /// As [`Engine::wait_together`]; those of operations on ranks that live.
    pub(crate) fn quiet_but_for_lost(
        &self,
        doing: &'static str,
        also: impl Fn() -> bool,
        unless: impl Fn() -> bool,
    ) -> Result<()> {
        let mut outcome = Ok(());
        self.wait_together(doing, || {
            self.failures.enter(&self.networks);
            unless()
                || match self.is_quiet_but_for_lost(doing) {
                    Ok(quiet) => quiet && also(),
                    Err(error) => {
                        outcome = Err(error);
                        true
                    }
                }
        })?;
        outcome
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::engine::operation::Operation;
    use crate::{Settings, Threads, Transport, World};

    /// The rank that rank 0 misses, by the roster, after `act` and after rank 1 has left.
    fn missed(act: impl Fn(&Engine) + Sync) -> Option<usize> {
        let settings = Settings { transport: Transport::ShmContract, heap_limit: Some(1 << 20), ..Settings::default() };
        let ranks = Threads::new(2).settings(settings).deadline(Duration::from_secs(60)).run(|world| {
            let engine = world.engine();
            if world.rank() == 1 {
                return None;
            }
            while engine.job.loss(1).is_none() {
                std::thread::yield_now();
            }
            assert_eq!(engine.job.first_missed(), None);
            act(engine);
            engine.remote.is_broken.set(false);
            engine.job.first_missed()
        });
        ranks.expect("ranks start")[0]
    }

    /// Over a network, an operation in flight tells first that the rank is gone.
    #[test]
    fn a_rank_that_left_is_missed_by_whoever_is_told_of_a_lost_connection_to_it() {
        let reset = transport::Error::ConnectionReset;
        let is_left = |error: &Error| matches!(error, Error::PeerLost { rank: 1, cause: Loss::Left, .. });
        let told = missed(|engine| assert!(is_left(&engine.remote_error(reset, 1, "a test"))));
        assert_eq!(told, Some(1), "an operation failed");
        let told = missed(|engine| {
            engine.faults.keep(engine.remote_failure(reset, 1, "a test"));
            assert!(is_left(&engine.poll().expect_err("it was kept for the program")));
        });
        assert_eq!(told, Some(1), "a poll failed");
        let told = missed(|engine| assert!(is_left(&engine.no_segment("a test", 1, 7))));
        assert_eq!(told, Some(1), "its segment was asked for");
    }

    #[test]
    fn a_rank_that_left_is_not_missed_where_the_program_is_told_nothing() {
        let told = missed(|engine| {
            engine.remote.is_broken.set(true);
            engine.send_unasked(1, 0, 0, &[]);
            let message =
                Operation::Put { offset: engine.layout.handled, bytes: &[0; 8], done: 0, after: false, tell: false };
            assert!(matches!(engine.attempt(1, &mut { message }), Err(Error::PeerLost { .. })));
            assert!(!engine.faults.any());
        });
        assert_eq!(told, None);
    }

    /// The rank that is missed, by the roster, when rank 0 leaves: at once, or when rank 1 has left. It has asked rank 1 for a segment that
    /// is not there; then all ranks `act`, and rank 1 leaves.
    fn missed_in_the_end(at_once: bool, act: impl Fn(&World) + Sync) -> Option<usize> {
        let [asked, done, leave] = [const { AtomicBool::new(false) }; 3];
        let wait = |flag: &AtomicBool| {
            while !flag.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        };
        let settings = Settings { heap_limit: Some(1 << 20), ..Settings::default() };
        let ranks = Threads::new(3).settings(settings).deadline(Duration::from_secs(60)).run(|world| {
            let engine = world.engine();
            match world.rank() {
                0 => {
                    let error = engine.no_segment("a test", 1, 7);
                    assert!(matches!(error, Error::NoSegment { rank: 1, .. }), "{error}");
                    asked.store(true, Ordering::Release);
                    act(world);
                    assert_eq!(engine.job.first_missed(), None, "rank 0 may go on");
                    done.store(true, Ordering::Release);
                    while !at_once && engine.job.loss(1).is_none() {
                        std::thread::yield_now();
                    }
                    engine.miss_suspect();
                    let missed = engine.job.first_missed();
                    leave.store(true, Ordering::Release);
                    return missed;
                }
                rank => {
                    wait(&asked);
                    act(world);
                    wait(if rank == 1 { &done } else { &leave });
                    // Rank 0 waits for rank 1.
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            None
        });
        ranks.expect("ranks start")[0]
    }

    #[test]
    fn a_rank_that_closes_a_segment_and_leaves_is_missed_by_a_rank_that_leaves_because_of_that() {
        assert_eq!(missed_in_the_end(true, |_| ()), Some(1));
    }

    #[test]
    fn a_rank_that_goes_on_without_a_segment_misses_nobody_in_the_end() {
        let meet = |world: &World| world.barrier().expect("all live");
        assert_eq!(missed_in_the_end(false, meet), None, "they met after that");
        let dies = |world: &World| world.engine().job.mark_lost(2, Loss::Signaled(9));
        assert_eq!(missed_in_the_end(false, dies), None, "another rank has died");
    }

    /// A rank that goes on before is the first of which the others hear.
    #[test]
    fn the_supervisor_tells_of_a_process_that_the_kernel_does_not_find() {
        let ranks = Threads::new(2).deadline(Duration::from_secs(60)).run(|world| {
            let job = &world.engine().job;
            job.set_supervised();
            if world.rank() == 0 {
                return Some(world.engine().segments.mapped().loss_of(1, true));
            }
            std::thread::sleep(Duration::from_millis(20));
            job.mark_lost(1, Loss::Signaled(9));
            None
        });
        assert_eq!(ranks.expect("ranks start")[0], Some((1, Loss::Signaled(9))));
    }

    /// Whether the roster says that rank 0 panicked because of rank 1, after `act` of rank 0.
    fn panicked_later(act: impl Fn(&Engine) + Sync) -> bool {
        let over = AtomicBool::new(false);
        let ranks = Threads::new(2).deadline(Duration::from_secs(60)).run(|world| {
            let engine = world.engine();
            if world.rank() == 1 {
                while !over.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                return false;
            }
            act(engine);
            engine.job.mark_lost(0, Loss::Panicked);
            over.store(true, Ordering::Release);
            engine.job.panicked_later(0)
        });
        ranks.expect("ranks start")[0]
    }

    /// Catches a panic, in which `act` runs.
    fn caught(act: impl Fn()) {
        struct Unwinds<F: Fn()>(F);
        impl<F: Fn()> Drop for Unwinds<F> {
            fn drop(&mut self) {
                (self.0)();
            }
        }
        let panics = || {
            let _unwinds = Unwinds(act);
            panic!("as I was told to");
        };
        catch_unwind(AssertUnwindSafe(panics)).expect_err("it panics");
    }

    #[test]
    fn a_panic_is_due_to_what_was_lost_when_it_began() {
        let lose = |engine: &Engine| engine.job.mark_lost(1, Loss::Signaled(9));
        let noted_twice = |engine: &Engine| {
            caught(|| {
                engine.begin_to_panic();
                lose(engine);
                engine.begin_to_panic();
            });
        };
        assert!(!panicked_later(noted_twice));
        let caught_before = |engine: &Engine| {
            caught(|| engine.begin_to_panic());
            lose(engine);
            caught(|| engine.begin_to_panic());
        };
        assert!(panicked_later(caught_before), "the first panic was another one");
    }

    #[test]
    fn a_panic_is_due_to_a_rank_of_which_this_one_was_told() {
        let panics = |engine: &Engine| caught(|| engine.begin_to_panic());
        let missed_by_others = |engine: &Engine| {
            engine.job.miss(1);
            panics(engine);
        };
        assert!(!panicked_later(missed_by_others));
        let beside_another = |engine: &Engine| {
            engine.job.begin_to_panic(1, false);
            panics(engine);
        };
        assert!(!panicked_later(beside_another));
        let told = |engine: &Engine| {
            engine.failures.told(Error::PeerLost { rank: 1, cause: Loss::Left, doing: "a test".into() });
            panics(engine);
        };
        assert!(panicked_later(told), "an operation failed");
        let told_of_a_panic = |engine: &Engine| {
            let [handler, why] = ["a test"; 2].map(String::from);
            engine.faults.keep(Error::HandlerPanicked { rank: 1, handler, why, place: None });
            engine.job.begin_to_panic(1, false);
            engine.poll().expect_err("it was kept for the program");
            panics(engine);
        };
        assert!(panicked_later(told_of_a_panic), "a handler panicked");
    }

    #[test]
    fn a_panic_is_due_to_a_lost_connection() {
        let cut = |engine: &Engine| {
            engine.failures.cuts().add(1);
            caught(|| engine.begin_to_panic());
        };
        assert!(panicked_later(cut));
    }
}
