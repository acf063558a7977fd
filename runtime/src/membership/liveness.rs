//! Peers that failed, as one interface of a rank sees them: their process ended where no supervisor tells (under mpirun), or the
//! network no longer reaches them. A rank's own stream and each of its contexts have an interface and doubts of their own. A lost
//! connection of one of them concerns all: messages and receipts of the whole rank may have been lost with it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Loss};
use crate::membership::JobMemory;
use crate::membership::watch::ProcessWatch;
use crate::sleep;

/// Time in which the roster may tell why the network lost a rank: the supervisor or another host's leader enters it. Chosen: far
/// above the 10 ms that a leader takes.
const GRACE: Duration = Duration::from_millis(200);
/// As [`GRACE`], for a rank of this host whose supervisor waits for the rank's process: the supervisor always reports the end, as soon as it gets a
/// processor. Chosen.
pub(crate) const SUPERVISED_GRACE: Duration = Duration::from_secs(2);

/// The state of ranks as a simulated network knows it. The network knows it at once, so no rank waits for the roster.
pub trait SimulatedPeers {
    /// Unblocks a rank: something happened that did not come over the network.
    fn notify(&self, rank: usize);
    /// Whether a rank has died.
    fn is_dead(&self, rank: usize) -> bool;
}

/// The job around one interface of a rank.
pub struct View<'a> {
    /// The roster.
    pub job: &'a JobMemory,
    /// Where the network is simulated.
    pub simulated: Option<&'a dyn SimulatedPeers>,
    /// This rank.
    pub rank: usize,
    /// Ranks of the job.
    pub size: usize,
}

/// Ranks to which some interface of this rank has no connection any more, though they may live.
#[derive(Debug, Default)]
pub struct Cuts {
    /// Whether there is one: waits and sends read this.
    any: AtomicBool,
    /// In the order in which they were found.
    ranks: Mutex<Vec<usize>>,
    /// Ranks that are gone and that this rank goes on without. A wait does not fail because of them.
    accepted: Mutex<BTreeSet<usize>>,
    /// Whether there is one.
    any_accepted: AtomicBool,
    /// The roster's number of lost ranks when none of its records showed a loss that this rank does not go on without. A number alone
    /// does not tell: a process that marks a loss may be killed between the record and the number.
    seen: AtomicU32,
    /// See [`Cuts::suspect`]: the rank plus one, and in the high half the barriers. 0: none.
    suspect: AtomicU64,
    /// See [`Cuts::note_named`].
    was_told: AtomicBool,
}

impl Cuts {
    /// Notes that `rank` has ended what this rank, which has entered so many barriers, still needs: it may be about to leave.
    pub fn suspect(&self, rank: usize, barriers: u64) {
        self.suspect.store(barriers << 32 | (rank as u64 + 1), Ordering::Relaxed);
    }

    /// The rank of the last such note, unless this rank has entered a barrier since.
    pub fn suspected(&self, barriers: u64) -> Option<usize> {
        let suspect = self.suspect.load(Ordering::Relaxed);
        let is_new = suspect >> 32 == barriers & u64::from(u32::MAX);
        (suspect as u32 as usize).checked_sub(1).filter(|_| is_new)
    }

    /// Notes that this rank's program gets `error`, if that names a rank that is gone, or whose handler panicked. Notes in the roster that
    /// this rank misses the one that left, too.
    #[cold]
    pub fn note_told(&self, job: &JobMemory, error: &Error) {
        if matches!(error, Error::PeerLost { .. } | Error::HandlerPanicked { .. }) {
            self.note_named();
        }
        job.miss_as_told(error);
    }

    /// Notes that an error names another rank to this one's program: a panic that follows may be due to that rank.
    pub fn note_named(&self) {
        self.was_told.store(true, Ordering::Relaxed);
    }

    /// Whether there was such an error since this rank last began to go on without a rank.
    pub fn was_told(&self) -> bool {
        self.was_told.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, rank: usize) {
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        if !ranks.contains(&rank) {
            ranks.push(rank);
        }
        // Relaxed: the lock orders the list.
        self.any.store(true, Ordering::Relaxed);
    }

    fn first(&self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        self.ranks().into_iter().find(|rank| !self.is_accepted(*rank))
    }

    /// From now on this rank goes on without `rank`, which the roster knows to be gone. Whether it did not before.
    pub fn accept(&self, rank: usize) -> bool {
        let is_new = self.accepted.lock().unwrap_or_else(PoisonError::into_inner).insert(rank);
        // Relaxed: the lock orders the set.
        self.any_accepted.store(true, Ordering::Relaxed);
        self.was_told.store(false, Ordering::Relaxed);
        is_new
    }

    /// Whether this rank goes on without some rank.
    #[inline]
    pub fn any_accepted(&self) -> bool {
        self.any_accepted.load(Ordering::Relaxed)
    }

    /// Whether it goes on without `rank`.
    pub fn is_accepted(&self, rank: usize) -> bool {
        self.any_accepted() && self.accepted.lock().unwrap_or_else(PoisonError::into_inner).contains(&rank)
    }

    /// Whether the roster knows of a lost rank that this rank does not go on without.
    #[inline]
    pub fn is_any_new(&self, job: &JobMemory) -> bool {
        // Relaxed: an old number only leads to another look at the records.
        job.any_lost() && job.count_lost() != self.seen.load(Ordering::Relaxed) && self.find_new(job).is_some()
    }

    /// Looks at the records.
    #[cold]
    fn find_new(&self, job: &JobMemory) -> Option<(usize, Loss)> {
        // Before the records: a later loss changes the number after its record.
        let count = job.count_lost();
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let found = job.first_lost_of(|rank| !accepted.contains(&rank));
        if found.is_none() {
            self.seen.store(count, Ordering::Relaxed);
        }
        found
    }

    /// The rank that failed first, of those that this rank does not go on without.
    pub fn first_lost(&self, job: &JobMemory) -> Option<(usize, Loss)> {
        if !self.any_accepted() {
            return job.first_lost();
        }
        if !job.any_lost() || job.count_lost() == self.seen.load(Ordering::Relaxed) {
            return None;
        }
        self.find_new(job)
    }

    /// The rank that failed first, or to which an interface of this rank has lost its connection, but for those that this rank goes on
    /// without.
    pub fn first_failed(&self, job: &JobMemory) -> Option<(usize, Loss)> {
        self.first_lost(job).or_else(|| self.first().map(|rank| (rank, Loss::Disconnected)))
    }

    /// Whether any rank but `own` has failed, or cannot be reached, but for those that this rank goes on without. Reads the records: one
    /// shows a loss before the roster's number does.
    #[cold]
    pub fn any_failed(&self, job: &JobMemory, own: usize) -> bool {
        let has_failed = |rank| job.loss(rank).is_some_and(|loss| loss != Loss::Left);
        let any = (0..job.ranks()).any(|rank| rank != own && has_failed(rank) && !self.is_accepted(rank));
        any || self.first().is_some()
    }

    /// Ranks to which a connection is lost.
    pub fn ranks(&self) -> Vec<usize> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether no connection is lost.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Whether the connection to `rank` counts as lost, though to others the rank may be well.
    pub fn contains(&self, rank: usize) -> bool {
        !self.is_empty() && self.ranks.lock().unwrap_or_else(PoisonError::into_inner).contains(&rank)
    }
}

/// Ranks that one interface cannot reach.
#[derive(Debug, Default)]
pub struct Losses {
    /// Lost connections of all interfaces of this rank.
    cuts: Arc<Cuts>,
    /// Ranks that the network cannot reach, and since when: the roster may be about to tell why.
    doubts: Vec<(usize, Instant)>,
    watch: Option<ProcessWatch>,
}

impl Losses {
    /// Those of a further interface of this rank. Both know of each other's lost connections.
    pub fn for_another(&self) -> Losses {
        Losses { cuts: Arc::clone(&self.cuts), ..Losses::default() }
    }

    /// Lost connections of all interfaces of this rank.
    pub fn cuts(&self) -> &Arc<Cuts> {
        &self.cuts
    }

    /// As [`Cuts::first_failed`].
    pub fn first(&self, job: &JobMemory) -> Option<(usize, Loss)> {
        self.cuts.first_failed(job)
    }

    /// Marks ranks of this host whose process has ended.
    pub fn check_for_dead(&mut self, view: &View<'_>) {
        let watch = self.watch.get_or_insert_with(|| {
            let mut watch = ProcessWatch::default();
            let here = (0..view.size).filter(|rank| *rank != view.rank && view.job.is_here(*rank));
            here.for_each(|rank| watch.add(view.job, rank));
            watch
        });
        watch.poll(view.job);
    }

    /// The network says that `rank` cannot be reached, found while polling: later polls check the roster, and none of them blocks.
    #[cold]
    pub fn doubt(&mut self, view: &View<'_>, rank: usize) {
        let now = Instant::now();
        if !self.is_doubted(rank) && (view.simulated.is_none() || !self.is_decided(view, rank, now)) {
            self.doubts.push((rank, now));
        }
    }

    /// Whether there are ranks that the network cannot reach, and of which the roster has not told.
    #[inline]
    pub fn has_doubts(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// Whether `rank` is one of them.
    pub fn is_doubted(&self, rank: usize) -> bool {
        self.doubts.iter().any(|doubt| doubt.0 == rank)
    }

    /// As [`Losses::doubt`], where the roster has an hour to tell: no test depends on how fast the machine is.
    #[cfg(test)]
    pub(crate) fn doubt_for_long(&mut self, rank: usize) {
        self.doubts.retain(|doubt| doubt.0 != rank);
        self.doubts.push((rank, Instant::now() + Duration::from_secs(3600)));
    }

    /// Checks the roster again for the doubted ranks.
    #[cold]
    pub fn review(&mut self, view: &View<'_>) {
        let mut doubts = std::mem::take(&mut self.doubts);
        doubts.retain(|(rank, since)| !self.is_decided(view, *rank, *since));
        self.doubts = doubts;
    }

    /// The error of an operation on `rank`. If the network says that `rank` cannot be reached, this waits until the roster says why.
    #[cold]
    pub fn error(&mut self, view: &View<'_>, error: Error, rank: usize, doing: &'static str) -> Error {
        if let Error::PeerLost { .. } = error {
            let start = Instant::now();
            while !self.is_decided(view, rank, start) {
                sleep::nap(Duration::from_millis(1));
            }
            if view.simulated.is_none() && view.job.loss(rank) == Some(Loss::Left) {
                // For what `decided` finds then.
                let _ = view.job.await_panic(view.rank, || self.first(view.job));
            }
        }
        self.decided(view, error, rank, doing)
    }

    /// As [`Losses::error`], where nothing may wait: if the roster has not told yet, this is what the network says, and `rank` is
    /// [doubted](Losses::is_doubted) from now on.
    #[cold]
    pub fn error_at_once(&mut self, view: &View<'_>, error: Error, rank: usize, doing: &'static str) -> Error {
        if let Error::PeerLost { .. } = error {
            let now = Instant::now();
            let since = self.doubts.iter().find(|doubt| doubt.0 == rank).map_or(now, |doubt| doubt.1);
            if !self.is_decided(view, rank, since) {
                self.doubt(view, rank);
                return error;
            }
            self.doubts.retain(|doubt| doubt.0 != rank);
        }
        self.decided(view, error, rank, doing)
    }

    /// The error of an operation on `rank`, when the roster knows of it or has had its time.
    pub(crate) fn decided(&self, view: &View<'_>, error: Error, rank: usize, doing: &'static str) -> Error {
        match error {
            Error::PeerLost { cause, .. } => {
                let known = view.job.loss(rank).map(|cause| (rank, cause));
                let (rank, cause) = self.first(view.job).or(known).unwrap_or((rank, cause));
                Error::PeerLost { rank, cause, doing: doing.into() }
            }
            // Its memory is taken away when a rank leaves.
            other => match view.job.loss(rank) {
                Some(cause) => {
                    let first = self.first(view.job).filter(|_| view.job.gave_up(rank));
                    let (rank, cause) = first.unwrap_or((rank, cause));
                    Error::PeerLost { rank, cause, doing: doing.into() }
                }
                None => other,
            },
        }
    }

    /// Whether the roster knows what became of `rank`, or has had its time: then the connection counts as lost, though to others the
    /// rank may be well. In virtual time there is nothing to wait for.
    fn is_decided(&mut self, view: &View<'_>, rank: usize, since: Instant) -> bool {
        if self.cuts.contains(rank) {
            return true;
        }
        if let Some(peers) = view.simulated {
            match [view.rank, rank].into_iter().find(|rank| peers.is_dead(*rank)) {
                Some(dead) => view.job.mark_lost(dead, Loss::Unknown),
                None if view.job.loss(rank).is_none() => self.cuts.add(rank),
                None => {}
            }
            // This rank too: another thread of it may wait.
            (0..view.size).for_each(|rank| peers.notify(rank));
            return true;
        }
        if !view.job.supervised() {
            self.check_for_dead(view);
        }
        if view.job.loss(rank).is_some() {
            return true;
        }
        let will_be_told = view.job.supervised() && view.job.is_here(rank);
        let is_over = since.elapsed() > if will_be_told { SUPERVISED_GRACE } else { GRACE };
        if is_over {
            self.cuts.add(rank);
        }
        is_over
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn a_poll_does_not_wait_for_what_the_roster_may_tell() {
        let job = JobMemory::create(2, &Settings::default()).expect("a job");
        job.set_supervised();
        let view = View { job: &job, simulated: None, rank: 0, size: 2 };
        let mut losses = Losses::default();
        losses.doubt(&view, 1);
        let later = Instant::now() + Duration::from_secs(60);
        losses.doubts.iter_mut().for_each(|(_, since)| *since = later);
        losses.review(&view);
        assert!(losses.has_doubts() && losses.first(&job).is_none(), "the roster has time to tell");
        let before = Instant::now().checked_sub(2 * SUPERVISED_GRACE).expect("the machine is up for longer");
        losses.doubts.iter_mut().for_each(|(_, since)| *since = before);
        losses.review(&view);
        assert!(!losses.has_doubts());
        assert_eq!(losses.first(&job), Some((1, Loss::Disconnected)));
        assert_eq!(losses.for_another().first(&job), Some((1, Loss::Disconnected)));
        job.mark_lost(1, Loss::Signaled(9));
        assert_eq!(losses.first(&job), Some((1, Loss::Signaled(9))), "the roster knows more");
    }

    #[test]
    fn a_later_loss_is_found_though_an_earlier_one_was_never_counted() {
        let job = JobMemory::create(4, &Settings::default()).expect("a job");
        let cuts = Cuts::default();
        assert!(!cuts.is_any_new(&job) && cuts.first_lost(&job).is_none());
        // The process that marked rank 1 was killed before it counted that: it was rank 2 itself.
        job.mark_lost(1, Loss::Signaled(9));
        job.uncount_lost();
        job.mark_lost(2, Loss::Signaled(9));
        assert!(cuts.is_any_new(&job));
        assert!(cuts.accept(1) && cuts.accept(2) && !cuts.accept(1));
        assert!(!cuts.is_any_new(&job) && cuts.first_lost(&job).is_none());
        job.mark_lost(3, Loss::Signaled(11));
        assert!(cuts.is_any_new(&job));
        assert_eq!(cuts.first_lost(&job), Some((3, Loss::Signaled(11))));
        assert!(cuts.accept(3));
        assert!(!cuts.is_any_new(&job) && cuts.first_lost(&job).is_none());
    }

    #[test]
    fn an_error_where_nothing_may_wait_leaves_a_doubt_until_the_roster_tells() {
        let job = JobMemory::create(2, &Settings::default()).expect("a job");
        job.set_supervised();
        let view = View { job: &job, simulated: None, rank: 0, size: 2 };
        let mut losses = Losses::default();
        let lost = || Error::PeerLost { rank: 1, cause: Loss::Disconnected, doing: "testing".into() };
        for _ in 0..3 {
            let error = losses.error_at_once(&view, lost(), 1, "testing");
            assert!(matches!(error, Error::PeerLost { rank: 1, cause: Loss::Disconnected, .. }), "{error}");
            assert!(losses.is_doubted(1) && losses.first(&job).is_none());
            assert_eq!(losses.doubts.len(), 1);
            losses.doubt_for_long(1);
        }
        job.mark_lost(1, Loss::Signaled(9));
        let error = losses.error_at_once(&view, lost(), 1, "testing");
        assert!(matches!(error, Error::PeerLost { rank: 1, cause: Loss::Signaled(9), .. }), "{error}");
        assert!(!losses.is_doubted(1));
    }
}
