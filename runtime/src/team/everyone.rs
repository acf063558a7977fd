//! The barrier of all ranks of a world.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::meeting::{By, FlagLayout, Found, MEMBERS, Meeting};
use super::title::Kind;
use crate::engine::{Engine, Running};
use crate::error::{Error, Loss, Result};
use crate::memory::layout::LINE;
use crate::settings;

const DOING: &str = "barrier";
/// How long to wait for the rest of a word that is visible in part: soft-RoCE writes a word byte by byte.
/// Chosen: far longer than the copy, even if its kernel thread is descheduled in between.
const TORN: Duration = Duration::from_millis(20);
/// How long to look for the death that made a rank of another host leave.
const CAUSE: Duration = Duration::from_millis(100);
/// The digest of a rank that enters late, after a panic. No call has it, so the others read what that rank has shown, and none relies on
/// its part in a reduction.
const LATE: u64 = u64::MAX;

/// This rank's part in all barriers of its world.
#[derive(Debug)]
pub struct Barrier {
    meeting: Meeting,
    /// How all barriers are done.
    by: By,
    /// The peer that failed while this rank was in a barrier. Later barriers fail too, since their counts would be wrong.
    broken: Cell<Option<(usize, Loss)>>,
    /// Every rank waited while this one was in a barrier, and none could go on. Later barriers fail too, for the same reason.
    deadlocked: Cell<bool>,
    /// This rank has entered a barrier and ran out of time in it. The next call goes on with it.
    unfinished: Cell<bool>,
    /// A handler's panic came out of the polls at the start of a barrier, which counts as entered. The next call tells the others, and
    /// shows these bytes.
    owed: RefCell<Option<Box<[u8]>>>,
}

/// Notes, if it is dropped, that this rank has to tell the others of a barrier that a panic took it out of.
struct Owing<'a> {
    barrier: &'a Barrier,
    kind: u8,
    data: &'a [u8],
}

impl Drop for Owing<'_> {
    #[cold]
    fn drop(&mut self) {
        self.barrier.meeting.count_in(self.kind);
        self.barrier.owed.replace(Some(self.data.into()));
    }
}

impl Barrier {
    /// The barrier that the settings ask for. Call it when all ranks have arrived, so that all make the same choice.
    pub fn new(engine: &Engine) -> Barrier {
        let few = engine.size <= MEMBERS;
        let by = match engine.settings.barrier {
            // The others need all slots mapped at every rank.
            _ if !engine.routes.all_mapped() => By::Dissemination,
            settings::Barrier::Central => By::Counter,
            settings::Barrier::Direct if few => By::Direct,
            settings::Barrier::Direct | settings::Barrier::Dissemination => By::Dissemination,
            // With ranks that share cores, wake-ups dominate: the counter needs one a rank, dissemination log2 n.
            settings::Barrier::Auto if engine.waiting.patience().crowded => By::Counter,
            settings::Barrier::Auto => {
                if few {
                    By::Direct
                } else {
                    By::Dissemination
                }
            }
        };
        let (flags, arrivals) = (engine.layout.barrier_flag(0), engine.layout.barrier_center());
        let (places, lines) = (engine.layout.places, engine.routes.all_mapped());
        // Nobody clears the world's flags. Members of a team clear theirs when they drop it, which may be before another one has left its last
        // barrier: there each waits for a flag of its own.
        let place = FlagLayout { flags, spacing: LINE, arrivals, places, lines, one_flag: lines };
        let meeting = Meeting::new(None, engine.rank, engine.size, place);
        let (deadlocked, unfinished) = (Cell::new(false), Cell::new(false));
        Barrier { meeting, by, broken: Cell::new(None), deadlocked, unfinished, owed: RefCell::default() }
    }

    /// Whether barriers are by a counter.
    pub fn is_central(&self) -> bool {
        self.by == By::Counter
    }

    /// Whether barriers are direct, and show data: see [`Barrier::enter_showing`].
    pub fn is_direct(&self) -> bool {
        self.by == By::Direct
    }

    /// The algorithm in use.
    pub fn name(&self) -> &'static str {
        match self.by {
            By::Counter => "central counter",
            By::Direct => "direct",
            By::Dissemination => "dissemination",
        }
    }

    /// The epoch of the next barrier; the first is 1.
    pub fn next_epoch(&self) -> u64 {
        self.meeting.epoch() + 1
    }

    /// Begins a collective call, which ends when what comes back is dropped. Calls do not nest.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if this rank is in a collective call, or in a barrier that ran out of time, and this is no barrier;
    /// [`Error::InsideHandler`]; [`Error::PeerLost`] if this rank goes on without another.
    pub fn begin<'a>(&self, engine: &'a Engine, doing: &'static str) -> Result<Running<'a>> {
        let running = engine.begin_collective(doing)?;
        // A wait for that rank would never end.
        if engine.failures.any_accepted()
            && let Some((rank, cause)) = engine.failures.first_accepted(0..engine.size)
        {
            return Err(Error::PeerLost { rank, cause, doing: doing.into() });
        }
        if self.unfinished.get() && doing != DOING {
            let why = "this rank ran out of time in a barrier; call `barrier` or `barrier_for` until it is done".into();
            return Err(Error::InvalidArgument { operation: doing, why });
        }
        Ok(running)
    }

    /// Enters, and blocks until all ranks have entered. Delivers messages meanwhile; the next [`Engine::poll`] reports
    /// their errors. Part of the collective call with number `kind` (see [`Kind`]; 0 is a plain barrier): over a network this detects
    /// ranks that are in another one.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died, or left without entering; [`Error::RanksDiffer`]; [`Error::Standstill`]; [`Error::Agreed`]
    /// after one of these that every rank got because none could go on.
    pub fn enter(&self, running: &Running<'_>, engine: &Engine, kind: u8) -> Result<()> {
        self.enter_with(running, engine, (kind, 0), || ()).map(drop)
    }

    /// As [`Barrier::enter`], with a digest, and for at most `limit` if there is one. After [`Error::TimedOut`] this rank has entered, and the
    /// next call goes on. Whether all ranks brought the same digest, as [`Barrier::enter_with`].
    ///
    /// # Errors
    /// As [`Barrier::enter`], and [`Error::TimedOut`].
    #[inline]
    pub fn enter_plain(
        &self,
        _running: &Running<'_>,
        engine: &Engine,
        digest: u64,
        limit: Option<Duration>,
    ) -> Result<bool> {
        self.run(engine, (0, digest), &[], || (), limit)
    }

    /// Whether this rank ran out of time in a barrier that is not done.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished.get()
    }

    /// Whether this rank has passed the barrier that it entered last, and none has failed.
    pub fn is_passed(&self) -> bool {
        !self.meeting.is_under_way() && !self.unfinished.get() && !self.deadlocked.get() && self.broken.get().is_none()
    }

    /// Whether all ranks are known to have brought the same digest to the barrier that this rank has passed last.
    pub fn agreed(&self) -> bool {
        self.meeting.agreed()
    }

    /// This rank leaves. If others need it for further rounds of a barrier that it entered, it has not entered that for them: they
    /// are told that it left.
    pub fn leave(&self, engine: &Engine) {
        if self.meeting.is_under_way() && self.by == By::Dissemination {
            // Pairs with the Acquire load in `find_who_left`.
            engine.node.status(engine.rank).entered.store(self.meeting.epoch() - 1, Ordering::Release);
        }
    }

    /// As [`Barrier::enter`], with a kind and a digest. Whether all ranks brought the same digest; `false` where they
    /// compare none, over a network. If they did, and barriers are [by a counter](Barrier::is_central), the last rank runs `alone` before any other leaves.
    ///
    /// # Errors
    /// As [`Barrier::enter`].
    #[inline]
    pub fn enter_with(
        &self,
        _running: &Running<'_>,
        engine: &Engine,
        facts: (u8, u64),
        alone: impl FnOnce(),
    ) -> Result<bool> {
        self.run(engine, facts, &[], alone, None)
    }

    /// As [`Barrier::enter_with`], where barriers are [direct](Barrier::is_direct), and shows `data` to all other ranks.
    ///
    /// # Errors
    /// As [`Barrier::enter`].
    #[inline]
    pub fn enter_showing(&self, _running: &Running<'_>, engine: &Engine, digest: u64, data: &[u8]) -> Result<bool> {
        debug_assert!(self.is_direct());
        self.run(engine, (0, digest), data, || (), None)
    }

    /// What a rank has shown in the last barrier, as [`Meeting::shown`].
    #[inline]
    pub fn shown(&self, engine: &Engine, rank: usize) -> *const u8 {
        self.meeting.shown(engine, rank)
    }

    #[inline]
    fn run(
        &self,
        engine: &Engine,
        (kind, digest): (u8, u64),
        data: &[u8],
        alone: impl FnOnce(),
        limit: Option<Duration>,
    ) -> Result<bool> {
        self.pass_last(engine)?;
        // Where all are mapped, the boards of exchanges tell the kinds.
        let kind = if engine.routes.all_mapped() { 0 } else { kind };
        let start = || if self.unfinished.get() { Ok(()) } else { self.start(engine, (kind, digest), data, alone) };
        self.end(engine, start().and_then(|()| self.wait(engine, kind, limit)))?;
        Ok(self.meeting.agreed())
    }

    /// Makes sure that this rank has passed the barrier that it entered last, unless it ran out of time in it. If a handler's panic came
    /// out of that barrier, tells the other ranks, if they were not told, and waits for them.
    ///
    /// # Errors
    /// As [`Barrier::enter`]; [`Error::PeerLost`] also if a peer failed in an earlier barrier.
    #[inline]
    pub fn pass_last(&self, engine: &Engine) -> Result<()> {
        if let Some((rank, cause)) = self.broken.get() {
            return Err(Error::PeerLost { rank, cause, doing: DOING.into() });
        }
        if self.deadlocked.get() {
            return Err(deadlocked(engine));
        }
        let left_behind = self.meeting.is_under_way() && !self.unfinished.get();
        if left_behind { self.end(engine, self.pass_left_behind(engine)) } else { Ok(()) }
    }

    /// Passes the barrier that a panic came out of.
    #[cold]
    fn pass_left_behind(&self, engine: &Engine) -> Result<()> {
        let kind = self.meeting.kind();
        if let Some(data) = self.owed.take() {
            self.meeting.count_out();
            self.start(engine, (kind, LATE), &data, || ())?;
        }
        self.wait(engine, kind, None)
    }

    /// Notes how the barrier in progress ended.
    #[inline]
    fn end(&self, engine: &Engine, outcome: Result<()>) -> Result<()> {
        self.unfinished.set(false);
        let Err(error) = outcome else { return Ok(()) };
        let error = self.as_barrier_error(engine, error);
        match &error {
            Error::TimedOut { .. } => {
                self.unfinished.set(true);
                return Err(error);
            }
            Error::PeerLost { rank, cause, .. } => self.broken.set(Some((*rank, *cause))),
            _ => {}
        }
        self.meeting.give_up();
        Err(error)
    }

    #[inline]
    fn start(&self, engine: &Engine, (kind, digest): (u8, u64), data: &[u8], alone: impl FnOnce()) -> Result<()> {
        // Handlers run in these polls. If one panics, the others still count on this rank.
        let owing = Owing { barrier: self, kind, data };
        engine.turn();
        // All puts of this rank must be in effect before others learn that it has entered.
        let quiet = engine.quiet(DOING);
        std::mem::forget(owing);
        // Stored even if `quiet` failed: this rank did enter, so peers must not report that it left without entering.
        // Pairs with the Acquire load in `find_who_left`.
        engine.node.status(engine.rank).entered.store(self.next_epoch(), Ordering::Release);
        quiet?;
        match self.by {
            By::Counter => self.meeting.enter_counter(engine, digest, alone),
            By::Direct => {
                self.meeting.enter_direct(engine, digest, data);
                Ok(())
            }
            By::Dissemination => self.meeting.enter(engine, kind, digest),
        }
    }

    /// Blocks until all ranks have entered.
    fn wait(&self, engine: &Engine, kind: u8, limit: Option<Duration>) -> Result<()> {
        loop {
            // Anew for each wait, so that it finds again a rank that left during the one before.
            let mut seen = 0;
            let (mut ended, mut left) = (Ok(Found::Waits), None);
            let ready = || {
                ended = self.meeting.go_on(engine);
                if !matches!(ended, Ok(Found::Waits)) {
                    return true;
                }
                if engine.job.has_news(&mut seen) {
                    left = find_who_left(engine, self.meeting.epoch());
                    // The barrier may have completed meanwhile.
                    ended = if left.is_some() { self.meeting.go_on(engine) } else { Ok(Found::Waits) };
                }
                left.is_some()
            };
            match limit {
                None => engine.wait_together(DOING, ready).inspect_err(|error| self.note_deadlock(error))?,
                Some(limit) => engine.wait_together_for(DOING, limit, ready)?,
            }
            match ended? {
                Found::Done => break,
                Found::Waits => {
                    let rank = left.expect("a wait ends with what it waited for, or because a rank has left");
                    return Err(left_error(engine, left, rank));
                }
                found @ Found::Differs { .. } => self.check_torn(engine, found, kind)?,
            }
        }
        if engine.routes.all_mapped() {
            return Ok(());
        }
        // Push out flags that met backpressure. They would otherwise stay here until this rank's next call.
        self.meeting.partners().try_for_each(|rank| engine.remote_hand_over(DOING, rank))
    }

    /// After a wait without limit that failed.
    #[cold]
    fn note_deadlock(&self, error: &Error) {
        if let Error::RanksDiffer { .. } | Error::Standstill { .. } = error {
            self.deadlocked.set(true);
        }
    }

    /// Waits for the rest of a flag that is visible in part. Soft-RoCE writes a word byte by byte, the kind last.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] if the kind stays as it is; [`Error::PeerLost`] if then a rank is lost.
    #[cold]
    fn check_torn(&self, engine: &Engine, found: Found, kind: u8) -> Result<()> {
        let now = || self.meeting.go_on(engine);
        let changed = engine.wait_together_for(DOING, TORN, || !matches!(now(), Ok(now) if now == found));
        match (changed, now()?) {
            // After a death, a rank that got the error may be in another call than a rank that did not get it yet.
            (_, Found::Differs { member, kind: theirs }) => Err(match engine.failures.cause() {
                Some((rank, cause)) => engine.failures.lost(rank, cause, DOING),
                None => differ(member, theirs, engine.rank, kind),
            }),
            _ => Ok(()),
        }
    }

    /// Gives a `PeerLost` that arose in the barrier the name `barrier`. If a partner left, names the rank that left without
    /// entering, if there is one.
    #[cold]
    fn as_barrier_error(&self, engine: &Engine, error: Error) -> Error {
        match error {
            // The partner may have left because another rank never entered: then report that rank.
            Error::PeerLost { rank, cause: Loss::Left, doing } if doing.step() != DOING => {
                left_error(engine, find_who_left(engine, self.meeting.epoch()), rank)
            }
            Error::PeerLost { rank, cause, .. } => Error::PeerLost { rank, cause, doing: DOING.into() },
            other => other,
        }
    }
}

#[cold]
fn deadlocked(engine: &Engine) -> Error {
    let why = "in an earlier collective call of the world every rank waited for others, and none could go on; its error says in what";
    Error::Agreed { rank: engine.rank, why: why.into() }
}

#[cold]
fn differ(rank: usize, theirs: u8, reference: usize, ours: u8) -> Error {
    let show = |kind| Kind::name(kind).to_owned();
    Error::RanksDiffer {
        what: "the collective call",
        rank,
        reference,
        theirs: show(theirs),
        ours: show(ours),
        advice: "every rank must make the same collective calls, in the same order",
    }
}

/// The error for a barrier that `left` never entered, or, if there is none, that `rank` left.
#[cold]
fn left_error(engine: &Engine, left: Option<usize>, rank: usize) -> Error {
    // This rank learns of a panic on another host only when the panicked rank has ended.
    let start = Instant::now();
    let is_partial = engine.job.ranks_here() < engine.size && engine.networks.pace().is_none();
    while is_partial && !engine.job.any_lost() && start.elapsed() < CAUSE {
        std::thread::sleep(Duration::from_millis(1));
    }
    engine.failures.lost(left.unwrap_or(rank), Loss::Left, DOING)
}

/// A rank that left without entering this barrier: the first that was missed, if it is one. A rank that has only begun to leave enters the
/// barrier, or leaves because of another rank that does not.
#[cold]
fn find_who_left(engine: &Engine, epoch: u64) -> Option<usize> {
    let job = &engine.job;
    let never_enters = |rank: usize| {
        job.loss(rank) == Some(Loss::Left) && engine.node.status(rank).entered.load(Ordering::Acquire) < epoch
    };
    job.first_missed().filter(|rank| never_enters(*rank)).or_else(|| job.first_to_leave(never_enters))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::{Settings, Threads};

    /// Rank 1 begins to leave first, and may be about to enter; rank 2 is gone.
    #[test]
    fn a_rank_that_only_begins_to_leave_is_not_the_one_that_never_enters() {
        let [begun, seen] = [const { AtomicBool::new(false) }; 2];
        let await_flag = |flag: &AtomicBool| {
            while !flag.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        };
        let settings = Settings { heap_limit: Some(1 << 20), ..Settings::default() };
        let ranks = Threads::new(3).settings(settings).deadline(Duration::from_secs(60));
        let found = ranks.run(|world| {
            let engine = world.engine();
            match world.rank() {
                0 => {
                    while engine.job.loss(2).is_none() {
                        std::thread::yield_now();
                    }
                    let found = find_who_left(engine, u64::MAX);
                    seen.store(true, Ordering::Release);
                    return found;
                }
                1 => {
                    engine.job.begin_to_leave(1);
                    begun.store(true, Ordering::Release);
                    await_flag(&seen);
                }
                _ => await_flag(&begun),
            }
            None
        });
        assert_eq!(found.expect("ranks start")[0], Some(2));
    }
}
