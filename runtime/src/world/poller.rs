//! A rank that only polls, for measuring what a poll costs.

use std::sync::Arc;

use super::start::MappedRank;
use crate::engine::{Engine, Mapping};
use crate::error::Result;
use crate::membership::nodes::Nodes;
use crate::membership::{Arrival, JobMemory};
use crate::settings::{HugePages, Settings};
use crate::transport::Sent;
use crate::transport::shm::{self, Interface};

/// Rank 0 of a job on this node, whose other ranks have no process. It polls as [`World::poll`](super::World::poll) does.
#[doc(hidden)]
pub struct Poller {
    engine: Engine,
    place: MappedRank,
    heard: usize,
}

impl Poller {
    /// Rank 0 of `ranks` ranks. Each of the others has sent one message, so that no lane is as it was at the start.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`]; as [`crate::World::poll`].
    pub fn new(ranks: usize) -> Result<Poller> {
        // The other ranks have no heap: small slots take less address space.
        let settings = Settings { heap_limit: Some(1 << 20), huge_pages: HugePages::Off, ..Settings::default() };
        let place = MappedRank::of(0, JobMemory::create(ranks, &settings)?, &settings)?;
        place.prepare(&settings, true)?;
        let base = place.node.origin() as usize;
        place.job.arrive(0, Arrival { base, build: 0, shape: 0 })?;
        let rank = Self::rank(&place, 0, &settings);
        let engine = Engine::new(rank, settings, Nodes::default(), Vec::new(), None, Mapping::All);
        let mut poller = Poller { engine, place, heard: 0 };
        poller.heard = poller.hear_from_all()?;
        Ok(poller)
    }

    /// Messages that came when it was made, each from another rank.
    pub fn heard(&self) -> usize {
        self.heard
    }

    fn rank(place: &MappedRank, rank: usize, settings: &Settings) -> shm::NodeRank {
        shm::NodeRank {
            rank,
            job: Arc::clone(&place.job),
            node: Arc::clone(&place.node),
            layout: place.layout(settings),
            message_memory: settings.message_memory,
            cross_memory_attach: false,
        }
    }

    /// One message from each of the other ranks comes, and is delivered to nobody. Returns how many were delivered. Only once:
    /// the senders begin at the start of their lanes.
    fn hear_from_all(&self) -> Result<usize> {
        for rank in 1..self.engine.size {
            let place = Self::rank(&self.place, rank, &self.engine.settings);
            let sent = Interface::new(place, 0..self.engine.size, true).send_short(0, 0, 0, &[]);
            debug_assert_eq!(sent, Sent::Done, "an empty lane has room");
        }
        let mut delivered = 0;
        loop {
            match self.poll()? {
                0 => return Ok(delivered),
                count => delivered += count,
            }
        }
    }

    /// As [`crate::World::poll`].
    ///
    /// # Errors
    /// As [`crate::World::poll`].
    #[inline]
    pub fn poll(&self) -> Result<usize> {
        self.engine.poll_alive("polling")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lone_poller_hears_once_from_each_rank() {
        for ranks in [1, 2, 70, 1000] {
            let poller = Poller::new(ranks).expect("a job");
            assert_eq!(poller.heard(), ranks - 1);
            assert_eq!(poller.poll().expect("polls"), 0);
        }
    }
}
