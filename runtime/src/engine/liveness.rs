//! Ranks that are gone: found by this rank where no supervisor tells (under mpirun), or unreachable over the network.

use std::time::{Duration, Instant};

use super::Engine;
use crate::bootstrap::watch::Watch;
use crate::error::Loss;

/// How long the roster may take to tell of a death that the network has noticed. The supervisor, or another host's leader, tells it.
pub(super) const GRACE: Duration = Duration::from_millis(200);

impl Engine {
    /// Marks ranks of this host whose process has ended.
    pub(super) fn look_for_dead(&self) {
        let watch = self.watch.get_or_init(|| {
            let mut watch = Watch::default();
            let here = (0..self.size).filter(|rank| *rank != self.rank && self.job.is_here(*rank));
            here.for_each(|rank| watch.add(&self.job, rank));
            watch.into()
        });
        watch.borrow_mut().look(&self.job);
    }

    /// The network says that `rank` cannot be reached, which an operation on it has met. Waits for what the roster knows of it.
    #[cold]
    pub(super) fn lose(&self, rank: usize) {
        if self.lose_in_virtual_time(rank) {
            return;
        }
        let start = Instant::now();
        while !self.is_decided(rank, start) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// As [`Engine::lose`], found while polling: later polls look at what the roster knows, and none waits for it.
    #[cold]
    pub(super) fn doubt(&self, rank: usize) {
        if !self.lose_in_virtual_time(rank) {
            self.doubts.borrow_mut().push((rank, Instant::now()));
        }
    }

    /// Whether there are ranks that the network cannot reach, and of which the roster has not told.
    #[inline]
    pub(super) fn has_doubts(&self) -> bool {
        !self.doubts.borrow().is_empty()
    }

    #[cold]
    pub(super) fn look_at_doubts(&self) {
        self.doubts.borrow_mut().retain(|(rank, since)| !self.is_decided(*rank, *since));
    }

    /// In virtual time there is nothing to wait for. `false` where time is real.
    fn lose_in_virtual_time(&self, rank: usize) -> bool {
        let Some(pace) = self.pace() else { return false };
        match [self.rank, rank].into_iter().find(|rank| pace.is_dead(*rank)) {
            Some(rank) => self.job.mark_lost(rank, Loss::Unknown),
            None => self.cut.borrow_mut().push(rank),
        }
        self.notify_all();
        true
    }

    /// Whether the roster knows what became of `rank`, or has had its time: then the connection counts as lost, though to others the
    /// rank may be well.
    fn is_decided(&self, rank: usize, since: Instant) -> bool {
        if !self.job.supervised() {
            self.look_for_dead();
        }
        if self.job.loss(rank).is_some() {
            return true;
        }
        let is_over = since.elapsed() > GRACE;
        if is_over {
            self.cut.borrow_mut().push(rank);
        }
        is_over
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
            engine.doubt(1);
            engine.look_at_doubts();
            assert!(engine.has_doubts() && engine.first_lost().is_none(), "the roster has time to tell");
            world.barrier()?;
            let before = Instant::now().checked_sub(2 * GRACE).expect("the machine is up for longer");
            engine.doubts.borrow_mut().iter_mut().for_each(|(_, since)| *since = before);
            engine.look_at_doubts();
            assert!(!engine.has_doubts());
            let lost = engine.first_lost();
            engine.cut.take();
            world.barrier()?;
            Ok::<_, Error>(lost)
        });
        let lost = lost.expect("runs").into_iter().next().expect("two ranks").expect("meets in the barrier");
        assert_eq!(lost, Some((1, Loss::Disconnected)));
    }
}
