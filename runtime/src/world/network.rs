//! Which transport carries a world, and how it is opened.

use std::sync::Arc;

use crate::bootstrap::job::JobMemory;
use crate::engine::{Far, Network, Surroundings};
use crate::error::{Error, Result};
use crate::settings::{Settings, Transport};
use crate::transport::shm;

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
        Transport::Verbs => Err(Error::Start(
            "BELLWETHER_TRANSPORT=verbs, but this build has no verbs device; set it to auto or shm-contract".into(),
        )),
    }
}
