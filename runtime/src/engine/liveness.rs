//! Ranks that are gone: found by this rank where no supervisor tells (under mpirun), or unreachable over the network. A rank's own
//! stream and each of its contexts have an interface of their own, so each keeps its own list.

use std::time::{Duration, Instant};

use super::{Engine, Pace};
use crate::error::{Error, Loss};
use crate::membership::job::JobMemory;
use crate::membership::watch::Watch;
use crate::transport;

/// How long the roster may take to tell of a death that the network has noticed. The supervisor, or another host's leader, tells it.
const GRACE: Duration = Duration::from_millis(200);

/// The job around one interface of a rank.
pub(super) struct View<'a> {
    pub(super) job: &'a JobMemory,
    /// What passes the time, where it is virtual.
    pub(super) pace: Option<&'a dyn Pace>,
    pub(super) rank: usize,
    pub(super) size: usize,
}

/// Ranks that one interface cannot reach.
#[derive(Default)]
pub(super) struct Losses {
    /// Ranks to which it has no connection any more, though they may live.
    cut: Vec<usize>,
    /// Ranks that the network cannot reach, and since when: the roster may be about to tell why.
    doubts: Vec<(usize, Instant)>,
    watch: Option<Watch>,
}

impl Losses {
    /// Those of a further interface: it is not to connect where this one lost its connection.
    pub(super) fn for_another(&self) -> Losses {
        Losses { cut: self.cut.clone(), ..Losses::default() }
    }

    /// The rank that died first, or to which the connection is lost.
    pub(super) fn first(&self, job: &JobMemory) -> Option<(usize, Loss)> {
        job.first_lost().or_else(|| self.cut.first().map(|rank| (*rank, Loss::Disconnected)))
    }

    /// Marks ranks of this host whose process has ended.
    pub(super) fn look_for_dead(&mut self, view: &View<'_>) {
        let watch = self.watch.get_or_insert_with(|| {
            let mut watch = Watch::default();
            let here = (0..view.size).filter(|rank| *rank != view.rank && view.job.is_here(*rank));
            here.for_each(|rank| watch.add(view.job, rank));
            watch
        });
        watch.look(view.job);
    }

    /// The network says that `rank` cannot be reached, found while polling: later polls look at what the roster knows, and none waits
    /// for it.
    #[cold]
    pub(super) fn doubt(&mut self, view: &View<'_>, rank: usize) {
        let now = Instant::now();
        if view.pace.is_none() || !self.is_decided(view, rank, now) {
            self.doubts.push((rank, now));
        }
    }

    /// Whether there are ranks that the network cannot reach, and of which the roster has not told.
    #[inline]
    pub(super) fn has_doubts(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// Looks again what the roster knows of them.
    #[cold]
    pub(super) fn review(&mut self, view: &View<'_>) {
        let mut doubts = std::mem::take(&mut self.doubts);
        doubts.retain(|(rank, since)| !self.is_decided(view, *rank, *since));
        self.doubts = doubts;
    }

    /// The error of an operation on `rank`. If the network says that it cannot be reached, this waits for what the roster knows of it.
    #[cold]
    pub(super) fn error(
        &mut self,
        view: &View<'_>,
        error: transport::Error,
        rank: usize,
        doing: &'static str,
    ) -> Error {
        match error.at(doing, rank) {
            Error::PeerLost { cause, .. } => {
                let start = Instant::now();
                while !self.is_decided(view, rank, start) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let known = view.job.loss(rank).map(|cause| (rank, cause));
                let (rank, cause) = self.first(view.job).or(known).unwrap_or((rank, cause));
                Error::PeerLost { rank, cause, doing: doing.into() }
            }
            // Its memory is taken away when a rank leaves.
            other => match view.job.loss(rank) {
                Some(cause) => Error::PeerLost { rank, cause, doing: doing.into() },
                None => other,
            },
        }
    }

    /// Whether some connection counts as lost, though its rank may be well.
    pub(super) fn is_any_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// Whether the connection to `rank` counts as lost, though to others the rank may be well.
    pub(super) fn is_cut(&self, rank: usize) -> bool {
        self.cut.contains(&rank)
    }

    /// Whether the roster knows what became of `rank`, or has had its time: then the connection counts as lost, though to others the
    /// rank may be well. In virtual time there is nothing to wait for.
    fn is_decided(&mut self, view: &View<'_>, rank: usize, since: Instant) -> bool {
        if self.is_cut(rank) {
            return true;
        }
        if let Some(pace) = view.pace {
            match [view.rank, rank].into_iter().find(|rank| pace.is_dead(*rank)) {
                Some(dead) => view.job.mark_lost(dead, Loss::Unknown),
                None => self.cut.push(rank),
            }
            (0..view.size).filter(|other| *other != view.rank).for_each(|other| pace.notify(other));
            return true;
        }
        if !view.job.supervised() {
            self.look_for_dead(view);
        }
        if view.job.loss(rank).is_some() {
            return true;
        }
        let is_over = since.elapsed() > GRACE;
        if is_over {
            self.cut.push(rank);
        }
        is_over
    }
}

impl Engine {
    pub(super) fn view(&self) -> View<'_> {
        View { job: &self.job, pace: self.pace(), rank: self.rank, size: self.size }
    }

    /// The rank that died first, or to which the connection is lost.
    pub(super) fn first_lost(&self) -> Option<(usize, Loss)> {
        self.losses.borrow().first(&self.job)
    }

    /// Marks ranks of this host whose process has ended.
    pub(super) fn look_for_dead(&self) {
        self.losses.borrow_mut().look_for_dead(&self.view());
    }

    /// The error of an operation of this rank's own stream on `rank`.
    pub(super) fn far_error(&self, error: transport::Error, rank: usize, doing: &'static str) -> Error {
        self.losses.borrow_mut().error(&self.view(), error, rank, doing)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_poll_does_not_wait_for_what_the_roster_may_tell() {
        let lost = crate::Threads::new(2).deadline(Duration::from_secs(20)).run(|world| {
            let engine = world.engine();
            if world.rank() == 1 {
                return world.barrier().and_then(|()| world.barrier()).map(|()| None);
            }
            let losses = || engine.losses.borrow_mut();
            losses().doubt(&engine.view(), 1);
            losses().review(&engine.view());
            assert!(losses().has_doubts() && engine.first_lost().is_none(), "the roster has time to tell");
            world.barrier()?;
            let before = Instant::now().checked_sub(2 * GRACE).expect("the machine is up for longer");
            losses().doubts.iter_mut().for_each(|(_, since)| *since = before);
            losses().review(&engine.view());
            assert!(!losses().has_doubts());
            let lost = engine.first_lost();
            losses().cut.clear();
            world.barrier()?;
            Ok::<_, Error>(lost)
        });
        let lost = lost.expect("runs").into_iter().next().expect("two ranks").expect("meets in the barrier");
        assert_eq!(lost, Some((1, Loss::Disconnected)));
    }
}
