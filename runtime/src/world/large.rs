//! One rank of a job on many hosts, for measuring what a large job costs a rank.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::World;
use super::start::{Builder, MappedRank, Opened};
use crate::engine::{Network, RemoteAccess, Surroundings};
use crate::error::{Error, Result};
use crate::membership::hosts::Published;
use crate::membership::nodes::Nodes;
use crate::membership::{Arrival, JobMemory};
use crate::memory::published::PublishedInSlots;
use crate::settings::{HugePages, Settings};
use crate::sleep;
use crate::transport::shm::{self, slot::SlotDomain};

/// The first rank of the second host of a job on many hosts. It starts as any other does. Its peers have no process: a thread
/// enters them in the roster, as the agent of a host does, with copies of the records that this rank publishes. They never
/// communicate.
#[doc(hidden)]
pub struct LargeJob {
    world: Option<World>,
    job: Arc<JobMemory>,
    rank: usize,
}

impl LargeJob {
    /// A job of `ranks` ranks, `here` on each host.
    ///
    /// # Errors
    /// As [`World::start`].
    pub fn start(ranks: usize, here: usize) -> Result<LargeJob> {
        let settings = Settings { heap_limit: Some(1 << 20), huge_pages: HugePages::Off, ..Settings::default() };
        let (nodes, rank) = (Nodes::in_turn(ranks, &[here]), here);
        let place = MappedRank::of(rank, JobMemory::create_on(ranks, &nodes, 1, &settings)?, &settings)?;
        let (job, layout) = (Arc::clone(&place.job), place.layout(&settings));
        let published = PublishedInSlots::new(Arc::clone(&place.node), layout);
        for other in (0..ranks).filter(|other| *other != rank) {
            published.make_room(other)?;
        }
        let given_up = Arc::new(AtomicBool::new(false));
        let peers = enter_peers(Arc::clone(&job), published, rank, Arc::clone(&given_up))?;
        let own = shm::NodeRank {
            rank,
            job: Arc::clone(&job),
            node: Arc::clone(&place.node),
            layout,
            message_memory: settings.message_memory,
            cross_memory_attach: false,
        };
        let open = move |surroundings: Surroundings<'_>| {
            let failed = |error: crate::transport::Error| error.at("opening the network", rank);
            let domain = SlotDomain::new(own).map_err(failed)?;
            let network = Network::open(0, "none", domain, surroundings)?;
            Ok(Opened { networks: vec![Box::new(network) as Box<dyn RemoteAccess>], pace: None })
        };
        let world = Builder::at(place, settings).over(Box::new(open), nodes, true).start();
        given_up.store(world.is_err(), Ordering::Relaxed);
        peers.join().expect("entering peers does not panic")?;
        Ok(LargeJob { world: Some(world?), job, rank })
    }

    /// Bytes of its host's shared memory for all ranks of the job, wherever they run.
    pub fn host_bytes(&self) -> usize {
        self.job.slots_offset()
    }

    /// The rank.
    pub fn world(&self) -> &World {
        self.world.as_ref().expect("there until it is dropped")
    }
}

impl Drop for LargeJob {
    fn drop(&mut self) {
        (0..self.job.ranks()).filter(|other| *other != self.rank).for_each(|other| self.job.leave(other));
        // The others have left: that is an error.
        let _ = self.world.take().map(World::finish);
    }
}

/// Waits until `rank` has arrived, and lets all others arrive as it did.
fn enter_peers(
    job: Arc<JobMemory>,
    published: PublishedInSlots,
    rank: usize,
    given_up: Arc<AtomicBool>,
) -> Result<JoinHandle<Result<()>>> {
    let enter = move || {
        while !job.has_arrived(rank) {
            if given_up.load(Ordering::Relaxed) {
                return Ok(());
            }
            sleep::nap(Duration::from_millis(1));
        }
        let (records, handlers) = (published.records(rank), published.handlers(rank).unwrap_or_default());
        for other in (0..job.ranks()).filter(|other| *other != rank) {
            published.set_records(other, &records)?;
            published.set_handlers(other, &handlers)?;
            let facts = Arrival { base: job.base(rank), build: job.build(rank), shape: job.shape(rank) };
            job.arrive_elsewhere(other, job.pid(rank), facts)?;
        }
        Ok(())
    };
    let start = std::thread::Builder::new().name("bellwether-peers".into()).spawn(enter);
    start.map_err(|source| Error::Os { doing: "starting a large job", call: "clone", source })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// `bellwether bench footprint` starts one of 1,000,000.
    #[test]
    fn a_rank_starts_in_a_job_of_more_ranks_than_a_host_can_have() {
        const RANKS: usize = 100_000;
        let job = LargeJob::start(RANKS, 64).expect("starts");
        let world = job.world();
        assert_eq!((world.rank(), world.size()), (64, RANKS));
        world.poll().expect("nothing came");
        let own = world.segment(64).expect("a segment");
        world.put_segment(64, own.number(), 8, b"here").expect("its own memory");
        let mut came = [0; 4];
        own.read(8, &mut came).expect("in bounds");
        assert_eq!(&came, b"here");
        own.close().expect("nobody uses it");
    }
}
