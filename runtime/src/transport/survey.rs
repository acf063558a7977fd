//! The transports there are, as they describe themselves.

use std::sync::Arc;

use super::{Attributes, Domain, Interface, InterfaceOptions, Resource, Transport, Worker, shm, sim, verbs};
use crate::bootstrap::job::{Arrival, JobMemory};
use crate::error::Result;
use crate::memory::layout::SlotLayout;
use crate::memory::node::{NodeMemory, Slots};
use crate::settings::Settings;

/// Opens an interface of every transport in a job of one rank, and gives what each says about itself.
///
/// # Errors
/// If the job's memory cannot be had.
pub fn survey(settings: &Settings) -> Result<Vec<(Resource, Attributes)>> {
    let job = Arc::new(JobMemory::create(1, settings)?);
    let slots = Slots {
        offset: job.slots_offset(),
        count: 1,
        stride_log2: job.stride_log2(),
        reserved: job.reserved_huge_pages(),
        transparent: false,
    };
    let node = Arc::new(NodeMemory::map(job.fd(), slots)?);
    let layout = SlotLayout::new(1, 1 << job.stride_log2(), settings.lane_depth);
    node.commit(0, 0, layout.control_len.next_multiple_of(node.granule(0)), 1, "memory to start", "")?;
    job.arrive(0, Arrival { base: node.base() as usize, build: 0, shape: 0 })?;
    let (message_memory, cross_memory_attach) = (settings.message_memory, settings.cross_memory_attach);
    let place = shm::Place { rank: 0, job, node, layout, message_memory, cross_memory_attach };
    let heap = layout.heap..layout.heap + layout.heap_len;
    let mut found = describe(&shm::Device::new(place, heap))?;
    if let Ok(offers) = verbs::offers(settings.verbs_device.as_deref())
        && let Some(Ok(device)) = offers.first().map(|offer| verbs::Device::new(0, 1, offer))
    {
        found.extend(describe(&device)?);
    }
    found.extend(describe(&sim::Network::new(sim::Config::new(1, 1)).node(0))?);
    Ok(found)
}

fn describe<T: Transport>(transport: &T) -> Result<Vec<(Resource, Attributes)>> {
    let attributes_of = |resource: &Resource| {
        let interface = transport.open(resource)?.open_interface(&Worker::new(), InterfaceOptions::default())?;
        Ok(*interface.attributes())
    };
    let resources = transport.resources().into_iter();
    resources
        .map(|resource| {
            let attributes =
                attributes_of(&resource).map_err(|error: super::Error| error.at("opening a transport", 0))?;
            Ok((resource, attributes))
        })
        .collect()
}
