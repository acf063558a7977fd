//! Finds that every rank waits in a collective call and none can go on: one in a barrier of the world, say, and another in one of a
//! team.
//!
//! A rank shows the number of its wait while only collective calls of other ranks can end it. It takes another number when it has
//! received a message, and when it has done a step of a collective, on which another rank may wait. So it has done nothing that another
//! rank can see as long as its number stays.
//!
//! Rank 0 reads all numbers, then all numbers and counts of wakings, and later both again. If no number has changed, and every rank has
//! woken twice between the last two readings, every rank has polled after the first reading had ended, found nothing and done nothing.
//! A first step after that reading would need a cause that the rank had not found when it polled, which is an earlier step: there is
//! none. So the waits do not end.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Engine;
use super::wait::STANDSTILL;
use crate::error::Error;
use crate::settings::Transport;

/// The records that rank 0 has read.
pub(super) struct Readings {
    began: Instant,
    waits: Vec<u64>,
    /// How often each rank had woken, at the second reading.
    wakes: Option<Vec<u64>>,
}

impl Engine {
    /// Whether only collective calls of other ranks can end the wait that this rank is in, and the next poll sees their effect: it is in
    /// memory of this host, or time is virtual.
    pub(super) fn waits_together(&self) -> bool {
        (self.calls.is_in_collective() || self.waiting.is_for_collective())
            && (self.routes.all_mapped()
                || self.settings.transport == Transport::ShmContract
                || self.networks.pace().is_some())
            && !self.has_any_context()
            && !self.outbox.any()
            && !self.remote.owes_nudges()
            && !self.has_tracked()
            && self.tasks.all_note_steps()
    }

    /// Whether the collective wait that this rank has shown last was found to be one that no rank can end.
    pub(crate) fn is_deadlocked(&self) -> bool {
        // On several hosts these are numbers of other waits.
        let is_alike = self.networks.pace().is_some() || self.job.ranks_here() == self.size;
        is_alike && self.job.hopeless(self.rank) == self.waiting.last_collective()
    }

    /// At rank 0, from time to time in a wait: finds that all ranks are in collective waits that none can end.
    pub(super) fn find_deadlock(&self, readings: &mut Option<Readings>) {
        if self.rank > 0 || self.job.ranks_here() < self.size {
            return;
        }
        let Some(waits) = self.waits_of_all() else {
            *readings = None;
            return;
        };
        let Some(before) = readings.as_mut().filter(|before| before.waits == waits) else {
            *readings = Some(Readings { began: Instant::now(), waits, wakes: None });
            return;
        };
        let wakes: Vec<u64> = (1..self.size).map(|rank| self.node.status(rank).wakes.load(Ordering::Acquire)).collect();
        // Again, behind the counts: a rank that has woken since may be in another wait.
        if self.waits_of_all().as_ref() != Some(&waits) {
            *readings = None;
            return;
        }
        let Some(woken) = &before.wakes else {
            before.wakes = Some(wakes);
            return;
        };
        let have_woken = woken.iter().zip(&wakes).all(|(before, now)| *now >= *before + 2);
        if have_woken && before.began.elapsed() >= STANDSTILL {
            self.job.set_deadlocked(&waits);
        }
    }

    /// In virtual time, where nothing is in flight and every rank waits: whether all are in collective waits. Tells them so.
    pub(super) fn find_deadlock_in_virtual_time(&self) -> bool {
        let Some(waits) = self.waits_of_all() else { return false };
        self.job.set_deadlocked(&waits);
        self.networks.notify_all();
        true
    }

    /// The numbers of the collective waits that all ranks are in; `None` if one is in none.
    fn waits_of_all(&self) -> Option<Vec<u64>> {
        (0..self.size).map(|rank| Some(self.job.together(rank)).filter(|wait| *wait != 0)).collect()
    }

    /// The error of a wait that was found so: what rank 0 waits in, and a rank that waits in something else.
    #[cold]
    pub(super) fn deadlock(&self, doing: &'static str) -> Error {
        let (ours, other) = self.job.deadlocked();
        let Some((rank, theirs)) = other else { return Error::Standstill { doing: doing.into() } };
        Error::RanksDiffer {
            what: "the collective call in which each rank waits",
            rank,
            reference: 0,
            theirs,
            ours,
            advice: "every rank waits for others, and none can go on: make the collective calls of the world and of teams in the same \
                     order on all their members",
        }
    }
}
