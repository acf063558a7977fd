//! The transports there are, as they describe themselves.

use std::sync::Arc;

use super::providers::{Provider, Setup, for_each_provider};
use super::{Attributes, Domain, Interface, InterfaceOptions, Resource, Transport, Worker, shm, sim};
use crate::error::Result;
use crate::membership::{Arrival, JobMemory};
use crate::memory::layout::SlotLayout;
use crate::memory::node::{NodeMemory, Slots};
use crate::settings::Settings;

/// Opens an interface of every transport in a job of one rank, and gives what each says about itself.
///
/// # Errors
/// If the job's memory cannot be had.
pub fn survey(settings: &Settings) -> Result<Vec<(Resource, Attributes)>> {
    let job = Arc::new(JobMemory::create(1, settings)?);
    let slots = Slots::of(&job, false);
    let node = Arc::new(NodeMemory::map(job.fd(), slots)?);
    let layout = SlotLayout::new(1, 1, 1 << job.stride_log2(), settings.lane_depth);
    node.commit(0, 0, layout.control_len.next_multiple_of(node.granule(0)), 1, "memory to start", "")?;
    job.arrive(0, Arrival { base: node.origin() as usize, build: 0, shape: 0 })?;
    let (message_memory, cross_memory_attach) = (settings.message_memory, settings.cross_memory_attach);
    let place = shm::NodeRank { rank: 0, job, node, layout, message_memory, cross_memory_attach };
    let (setup, mut found) = (Setup { settings, place: &place, device_atomics: true }, Vec::new());
    let failed = |error: super::Error| error.at("opening a transport", 0);
    macro_rules! look {
        ($provider:ty) => {
            // A transport without a device is none.
            if let Some((resource, device)) = <$provider>::find(setup).ok().and_then(|found| found.into_iter().next())
                && let Ok(domain) = <$provider>::open(setup, device)
            {
                found.push((resource, attributes_of(&domain).map_err(failed)?));
            }
        };
    }
    for_each_provider!(look);
    let simulated = sim::Network::new(sim::Config::new(1, 1)).node(0);
    for resource in simulated.resources() {
        let attributes = simulated.open(&resource).and_then(|domain| attributes_of(&domain)).map_err(failed)?;
        found.push((resource, attributes));
    }
    Ok(found)
}

fn attributes_of<D: Domain>(domain: &D) -> super::Result<Attributes> {
    Ok(*domain.open_interface(&Worker::new(), InterfaceOptions::default())?.attributes())
}
