//! Which networks a job opens. A device is chosen here, and nowhere else, and by [`choose`].

use std::rc::Rc;

use super::network::{Network, Surroundings};
use super::networks::NETWORKS_MAX;
use super::remote_access::RemoteAccess;
use crate::error::{Error, Result};
use crate::settings::Transport;
use crate::transport::providers::{Provider, Setup, choose, for_each_provider};
use crate::transport::{Confined, Domain, Interface, Resource};

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
        let open = move || {
            let domain = P::open(setup, device).map_err(|why| none(setup, &why))?;
            Ok(Box::new(Network::open(P::NUMBER, P::TITLE, domain, surroundings)?) as Box<dyn RemoteAccess>)
        };
        Candidate { resource, open: Box::new(open) }
    };
    Ok(P::find(setup)?.into_iter().map(candidate).collect())
}

/// What is told where there is no network, though one is needed or asked for.
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
