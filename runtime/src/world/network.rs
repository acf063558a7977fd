//! Which transport carries a world, and how it is opened.

use std::sync::Arc;

use crate::bootstrap::job::JobMemory;
use crate::engine::{Far, Network, Surroundings};
use crate::error::{Error, Result};
use crate::settings::{Settings, Transport};
use crate::transport::{Transport as _, shm, verbs};

/// Opens the network that the settings ask for; `None` where ranks reach each other by plain loads and stores. Here a
/// device is chosen, and nowhere else.
pub(super) fn open(
    settings: &Settings,
    job: &Arc<JobMemory>,
    surroundings: Surroundings<'_>,
) -> Result<Option<Box<dyn Far>>> {
    match settings.transport {
        Transport::Auto => Ok(None),
        Transport::ShmContract => {
            let Surroundings { rank, node, layout, .. } = surroundings;
            let place = shm::Place {
                rank,
                job: Arc::clone(job),
                node: Arc::clone(node),
                layout,
                message_memory: settings.message_memory,
                cross_memory_attach: settings.cross_memory_attach,
            };
            let domain = shm::SlotDomain::new(place).map_err(|error| error.at("opening the network", rank))?;
            Ok(Some(Box::new(Network::open("shared memory by the contract", domain, surroundings, None)?)))
        }
        Transport::Verbs => {
            let Surroundings { rank, ranks, .. } = surroundings;
            let off = |why: String| {
                Error::Start(format!(
                    "BELLWETHER_TRANSPORT=verbs, but: {why}; set it to auto, or see `bellwether info`"
                ))
            };
            let offers = verbs::offers(settings.verbs_device.as_deref()).map_err(off)?;
            let offer = offers.first().ok_or_else(|| off("there is no RDMA device".into()))?;
            let device = verbs::Device::new(rank, ranks, offer).map_err(off)?;
            let resource = device.resources().remove(0);
            let domain = device.open(&resource).map_err(|error| error.at("opening the network", rank))?;
            Ok(Some(Box::new(Network::open("verbs", domain, surroundings, None)?)))
        }
    }
}
