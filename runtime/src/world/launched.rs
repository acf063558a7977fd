//! Starting with ranks that a launcher brought up: they meet through its own exchange, or through MPI.

use std::sync::Arc;

use super::start::MappedRank;
use super::{Builder, World};
use crate::bootstrap::meeting::Joined;
use crate::bootstrap::pmi::Session;
use crate::error::{Error, Loss, Result};
use crate::membership::hosts::{Agent, Published};
use crate::memory::published::PublishedInSlots;
use crate::settings::Settings;
use crate::transport::providers::device_kind;

impl Builder {
    pub(super) fn start_over_launcher(self, mut session: Session, settings: Result<Settings>) -> Result<World> {
        match session.join(settings, device_kind).and_then(|joined| self.enter_joined(joined)) {
            Ok(mut world) => {
                *world.session = Some(session);
                Ok(world)
            }
            Err(error) => {
                // The launcher is to hear of it by the way this process ends.
                session.abandon();
                Err(error)
            }
        }
    }

    /// Enters a job whose ranks have met, and that has no supervisor.
    pub(super) fn enter_joined(self, joined: Joined) -> Result<World> {
        let Joined { rank, job, settings, nodes, link, differing_devices } = joined;
        if let Some(how) = &differing_devices {
            log_differing(rank, how);
        }
        let place = MappedRank::of(rank, job, &settings)?;
        let job = place.job.clone();
        // Nobody watches the ranks: those that wait for this one must hear it from us, and on other hosts from the agent, which
        // goes after that.
        let lost = |_: &Error| job.mark_lost(rank, Loss::Unknown);
        let layout = place.layout(&settings);
        // Before there is the agent's thread, which writes static variables; the threads of MPI and PMIx write those of their libraries.
        place.prepare(&settings, true).inspect_err(lost)?;
        let start = |link| {
            let published: Box<dyn Published> = Box::new(PublishedInSlots::new(Arc::clone(&place.node), layout));
            Agent::start(Arc::clone(&job), published, nodes.clone(), link)
        };
        let agent = link.map(start).transpose().inspect_err(lost)?;
        let mut world =
            self.on(nodes).with_device_atomics(differing_devices.is_none()).enter(place, settings).inspect_err(lost)?;
        *world.hosts = agent;
        Ok(world)
    }
}

/// Logs that hosts differ in their devices, as a warning once.
fn log_differing(rank: usize, how: &str) {
    const THEN: &str =
        "the hosts' RDMA devices differ: pairs without RDMA use TCP, and the targets' processors do all atomics";
    match rank {
        0 => tracing::warn!(how, "{THEN}"),
        _ => tracing::debug!(rank, how, "{THEN}"),
    }
}
