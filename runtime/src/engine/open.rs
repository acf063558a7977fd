//! Which networks a job opens. A device is chosen here, and nowhere else, and by [`choose`].

use std::rc::Rc;

use super::network::{Network, Surroundings};
use super::networks::NETWORKS_MAX;
use super::remote_access::RemoteAccess;
use crate::error::{Error, Result};
use crate::settings::Transport;
use crate::transport::providers::{Provider, Setup, choose, for_each_provider};
use crate::transport::{Confined, Domain, Interface, Protection, Resource};

/// A device that was found, and what opens it as a network.
struct Candidate<'a> {
    resource: Resource,
    open: Box<dyn FnOnce() -> Result<Box<dyn RemoteAccess>> + 'a>,
}

/// Opens the networks that the settings ask for; none where ranks reach each other by plain loads and stores.
///
/// # Errors
/// [`Error::Start`] if there is no device, or none that reaches all ranks.
pub(crate) fn open_networks(setup: Setup<'_>, surroundings: Surroundings<'_>) -> Result<Vec<Box<dyn RemoteAccess>>> {
    let (job, asked) = (&setup.place.job, setup.settings.transport);
    let across = job.ranks_here() < job.ranks();
    match asked {
        Transport::Auto if !across => return Ok(Vec::new()),
        Transport::ShmContract if across => {
            return Err(Error::Start(
                "BELLWETHER_TRANSPORT=shm-contract is shared memory, and ranks are on several hosts; set it to auto"
                    .into(),
            ));
        }
        // Told before a device is looked for: without one it is as wrong, and on one host as well.
        Transport::Verbs if setup.settings.encrypt => {
            return Err(Error::Start(
                "BELLWETHER_ENCRYPT=on, but BELLWETHER_TRANSPORT=verbs, and RDMA cannot encrypt; \
                 set BELLWETHER_TRANSPORT to tcp or auto, or BELLWETHER_ENCRYPT to off"
                    .into(),
            ));
        }
        _ => {}
    }
    let (mut candidates, mut why) = (Vec::new(), Vec::new());
    macro_rules! consider {
        ($provider:ty) => {
            const { assert!(<$provider>::NUMBER < NETWORKS_MAX, "each network has its number") };
            if asked == Transport::Auto || asked.name() == <$provider>::NAME {
                match candidates_of::<$provider>(setup, surroundings) {
                    Ok(found) => candidates.extend(found),
                    Err(reason) => why.push(reason),
                }
            }
        };
    }
    for_each_provider!(consider);
    if setup.settings.encrypt {
        why.extend(leave_out_unencrypted(&mut candidates));
    }
    let resources: Vec<&Resource> = candidates.iter().map(|candidate| &candidate.resource).collect();
    let chosen = choose(&resources, across, NETWORKS_MAX);
    if chosen.is_empty() {
        let why = if why.is_empty() { "there is no device that reaches other hosts".into() } else { why.join("; ") };
        return Err(none(setup, &why));
    }
    let mut candidates: Vec<_> = candidates.into_iter().map(Some).collect();
    let opened = chosen.into_iter().map(|index| {
        let Candidate { resource, open } = candidates[index].take().expect("each is chosen once");
        tracing::debug!(rank = surroundings.rank, transport = resource.transport, device = %resource.device, "network");
        open()
    });
    opened.collect()
}

/// Removes devices that send data in clear to other hosts. Returns a sentence that names their transports, if there are any.
fn leave_out_unencrypted(candidates: &mut Vec<Candidate<'_>>) -> Option<String> {
    let is_in_clear = |protection| !matches!(protection, Protection::Encrypted | Protection::Host);
    let in_clear = candidates.extract_if(.., |candidate| is_in_clear(candidate.resource.protection));
    let mut names: Vec<&str> = in_clear.map(|candidate| candidate.resource.transport).collect();
    names.dedup();
    (!names.is_empty()).then(|| format!("BELLWETHER_ENCRYPT is on, and {} cannot encrypt", names.join(" and ")))
}

fn candidates_of<'a, P: Provider>(
    setup: Setup<'a>,
    surroundings: Surroundings<'a>,
) -> Result<Vec<Candidate<'a>>, String>
where
    P::Device: 'a,
    Rc<<P::Domain as Domain>::Interface>: Confined,
    <<P::Domain as Domain>::Interface as Interface>::Endpoint: Confined,
{
    let candidate = |(resource, device): (Resource, P::Device)| {
        let protection = resource.protection;
        let open = move || {
            let domain = P::open(setup, device).map_err(|why| none(setup, &why))?;
            let network = Network::open(P::NUMBER, P::TITLE, domain, surroundings)?;
            Ok(Box::new(network.protected(protection)) as Box<dyn RemoteAccess>)
        };
        Candidate { resource, open: Box::new(open) }
    };
    Ok(P::find(setup)?.into_iter().map(candidate).collect())
}

/// The error where there is no network, though one is needed or asked for.
fn none(setup: Setup<'_>, why: &str) -> Error {
    let (rank, job) = (setup.place.rank, &setup.place.job);
    Error::Start(match (0..job.ranks()).find(|other| !job.is_here(*other)) {
        Some(other) => format!(
            "ranks {rank} and {other} are on different hosts, which takes a network between them, but on that of rank {rank}: {why}; \
             start all ranks on one host (`mpirun --host`, `srun --nodes=1`), or see `bellwether info`"
        ),
        None => {
            let asked = setup.settings.transport.name();
            format!("BELLWETHER_TRANSPORT={asked}, but: {why}; set it to auto, or see `bellwether info`")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Capabilities, Locality};

    #[test]
    fn with_encryption_no_device_is_chosen_that_sends_in_clear() {
        let candidate = |transport, latency, locality, protection| {
            let (device, bandwidth, overhead, message_rate) = (format!("{transport}0"), 1e9, 1e-7, 1e6);
            let capabilities = Capabilities::ATOMIC_CPU;
            let resource = Resource {
                transport,
                device,
                bandwidth,
                latency,
                overhead,
                message_rate,
                locality,
                capabilities,
                protection,
            };
            Candidate { resource, open: Box::new(|| unreachable!("nobody opens it")) }
        };
        let mut candidates = vec![
            candidate("here", 1e-7, Locality::Node, Protection::Host),
            candidate("rdma", 1e-6, Locality::Network, Protection::Nothing),
            candidate("rdma", 2e-6, Locality::Network, Protection::Nothing),
            candidate("tagged", 3e-6, Locality::Network, Protection::Authenticated),
            candidate("sealed", 4e-6, Locality::Network, Protection::Encrypted),
        ];
        let chosen = |candidates: &[Candidate<'_>]| {
            let resources: Vec<&Resource> = candidates.iter().map(|candidate| &candidate.resource).collect();
            choose(&resources, true, 1).into_iter().map(|index| resources[index].transport).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&candidates), ["rdma"]);
        let told = leave_out_unencrypted(&mut candidates).expect("there were such devices");
        assert_eq!(told, "BELLWETHER_ENCRYPT is on, and rdma and tagged cannot encrypt");
        assert_eq!(chosen(&candidates), ["sealed"]);
        assert_eq!(candidates.len(), 2);
        assert_eq!(leave_out_unencrypted(&mut candidates), None);
    }
}
