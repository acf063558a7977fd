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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::process::{Command, Stdio};

    use crate::World;
    use crate::membership::hosts::derives;

    /// Processes whose command line or environment, as `/proc` shows it, has the key of the job or the secret that it is derived from:
    /// the bytes, or their digits.
    fn processes_that_show(key: &[u8; 32]) -> Vec<(u32, &'static str)> {
        let is_it = |bytes: &[u8]| bytes == key || derives(bytes.try_into().expect("32 bytes"), key);
        let shows = |told: &[u8]| {
            let digits = |digits: &[u8]| -> Option<Vec<u8>> {
                let digit = |byte: &u8| (*byte as char).to_digit(16);
                digits.chunks(2).map(|two| Some((digit(&two[0])? << 4 | digit(&two[1])?) as u8)).collect()
            };
            told.windows(32).any(is_it) || told.windows(64).filter_map(digits).any(|bytes| is_it(&bytes))
        };
        let mut found = Vec::new();
        for process in std::fs::read_dir("/proc").expect("it is there").flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // A process may end meanwhile.
            let read = |what: &str| std::fs::read(process.path().join(what)).unwrap_or_default();
            found.extend(["cmdline", "environ"].into_iter().filter(|what| shows(&read(what))).map(|what| (pid, what)));
        }
        found
    }

    #[test]
    #[ignore = "a rank of a job of several hosts: ci/netns"]
    fn the_secret_is_on_no_command_line_and_in_no_environment() {
        let world = World::start().expect("it starts");
        assert!(world.nodes() > 1, "a job of one host has no secret");
        if world.rank() == 0 {
            // Its launchers and all ranks are there, held by the barrier.
            let key = world.engine().job.key();
            assert_ne!(key, [0; 32]);
            assert_eq!(processes_that_show(&key), []);
            let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            let mut leak = Command::new("cat");
            let mut leak =
                leak.env("LEAK", &digits).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("there is cat");
            assert_eq!(processes_that_show(&key), [(leak.id(), "environ")], "what is shown is found");
            drop(leak.stdin.take());
            leak.wait().expect("it ends");
        }
        world.barrier().expect("all ranks are there");
        world.finish().expect("it ends well");
    }
}
