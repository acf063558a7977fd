//! The transports that a job may use, and the choice among their devices.
//!
//! A new transport is a folder with a [`Provider`] in it, and a line in [`for_each_provider`]. Jobs on several nodes then use it
//! where its figures are the best, `bellwether info` shows it, and nothing else names it.

use std::cmp::Ordering;

use super::{Capabilities, Domain, Locality, Resource, shm};
use crate::settings::{Settings, Transport};

/// Calls `$each!(P)` for every transport that may reach other processes.
macro_rules! for_each_provider {
    ($each:ident) => {
        $each!($crate::transport::shm::Slots);
        $each!($crate::transport::verbs::Ports);
        $each!($crate::transport::tcp::Interfaces);
    };
}
pub(crate) use for_each_provider;

/// How many there are.
pub(crate) const PROVIDERS: usize = {
    let mut count = 0;
    macro_rules! one {
        ($provider:ty) => {
            count += 1;
        };
    }
    for_each_provider!(one);
    count
};

/// The settings and the place of the rank for which a provider opens a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) place: &'a shm::NodeRank,
    /// Devices may do atomics, as those of all hosts are of one kind. Otherwise the target's processor does all of them.
    pub(crate) device_atomics: bool,
}

/// A transport before one of its devices is open.
pub(crate) trait Provider {
    /// Its memory domain.
    type Domain: Domain + Send + Sync;
    /// A device that it has found.
    type Device;

    /// Name of the transport in `BELLWETHER_TRANSPORT`.
    const NAME: &'static str;
    /// Name of the transport in a rank's receipt.
    const TITLE: &'static str;
    /// The number of its network, the same on all ranks, below [`NETWORKS_MAX`](crate::memory::layout::NETWORKS_MAX). Those that
    /// one job can have open at a time have different ones.
    const NUMBER: usize;

    /// The devices there are, with figures to choose by.
    ///
    /// # Errors
    /// Why there is none: a sentence for people.
    fn find(setup: Setup<'_>) -> Result<Vec<(Resource, Self::Device)>, String>;

    /// The kind of device that this rank would use, for people; of a transport whose devices do atomics. Devices of one kind reach each other,
    /// and all do atomics or none.
    fn kind(_settings: &Settings) -> Option<String> {
        None
    }

    /// Opens one.
    ///
    /// # Errors
    /// Why it cannot be opened: a sentence for people.
    fn open(setup: Setup<'_>, device: Self::Device) -> Result<Self::Domain, String>;
}

/// The kinds of devices that this rank may use between hosts. If it is the same on all hosts, devices may do the atomics of a job.
pub(crate) fn device_kind(settings: &Settings) -> String {
    let mut kinds = Vec::new();
    macro_rules! look {
        ($provider:ty) => {
            if settings.transport == Transport::Auto || settings.transport.name() == <$provider>::NAME {
                kinds.extend(<$provider>::kind(settings));
            }
        };
    }
    for_each_provider!(look);
    kinds.join(", ")
}

/// Which of the devices `found` a job opens, by their numbers, best first: `most` at the most, and one of each transport, since
/// all devices of one reach the same peers. `across`: they have to reach other nodes.
///
/// A device that puts and gets by itself is better than one that needs the target's processor. Of two that are alike in that, the
/// one with the lower latency is better, then the one with more bandwidth, then the one that was found first.
///
/// All operations on one word have to be done by one agent. The atomics of a network device are not atomic to those of other agents, so the
/// device carries a job alone: [`Setup::device_atomics`] says that it is there on all hosts. Networks whose atomics the target's
/// processor does can be used together.
pub(crate) fn choose(found: &[&Resource], across: bool, most: usize) -> Vec<usize> {
    let reaches = |number: &usize| !across || found[*number].locality == Locality::Network;
    let mut order: Vec<usize> = (0..found.len()).filter(reaches).collect();
    order.sort_by(|a, b| compare(found[*a], found[*b]));
    let is_device = |number: usize| found[number].capabilities.has(Capabilities::ATOMIC_DEVICE);
    match order.first() {
        Some(best) if is_device(*best) => order.truncate(1),
        _ => order.retain(|number| !is_device(*number)),
    }
    let mut transports = Vec::new();
    order.retain(|number| {
        let transport = found[*number].transport;
        let is_new = !transports.contains(&transport);
        transports.push(transport);
        is_new
    });
    order.truncate(most);
    order
}

/// The better one first.
fn compare(a: &Resource, b: &Resource) -> Ordering {
    const NATIVE: Capabilities = Capabilities::PUT_BCOPY.and(Capabilities::GET_BCOPY);
    let delay = |of: &Resource| of.latency + of.overhead;
    let native = |of: &Resource| of.capabilities.has(NATIVE);
    native(b).cmp(&native(a)).then(delay(a).total_cmp(&delay(b))).then(b.bandwidth.total_cmp(&a.bandwidth))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Protection;

    fn device(transport: &'static str, latency: f64, bandwidth: f64, capabilities: Capabilities) -> Resource {
        let (device, locality) = (format!("{transport}0"), Locality::Network);
        let (overhead, message_rate, protection) = (1e-7, 1e6, Protection::Nothing);
        Resource { transport, device, bandwidth, latency, overhead, message_rate, locality, capabilities, protection }
    }

    fn chosen(found: &[&Resource]) -> Vec<&'static str> {
        choose(found, true, 2).into_iter().map(|number| found[number].transport).collect()
    }

    const NATIVE: Capabilities = Capabilities::PUT_BCOPY.and(Capabilities::GET_BCOPY);
    const CPU: Capabilities = Capabilities::ATOMIC_CPU;

    #[test]
    fn figures_decide_and_not_the_order_in_which_devices_are_found() {
        let slow = device("slow", 9e-6, 1e9, CPU);
        let quick = device("quick", 2e-6, 1e9, CPU);
        let wide = device("wide", 2e-6, 5e9, CPU);
        let native = device("native", 20e-6, 1e8, NATIVE.and(CPU));
        for found in [[&slow, &quick, &wide], [&wide, &quick, &slow], [&quick, &slow, &wide]] {
            assert_eq!(chosen(&found), ["wide", "quick"], "of equal latency the one with more bandwidth");
        }
        assert_eq!(
            chosen(&[&quick, &native]),
            ["native", "quick"],
            "no processor at the target is worth more than latency"
        );
        let quicker = Resource { latency: 1e-6, ..slow.clone() };
        assert_eq!(chosen(&[&slow, &quick]), ["quick", "slow"]);
        assert_eq!(chosen(&[&quicker, &quick]), ["slow", "quick"], "a lower latency turns the choice around");
    }

    #[test]
    fn a_device_with_atomics_of_its_own_carries_a_job_alone() {
        let rdma = device("rdma", 1e-6, 1e10, NATIVE.and(Capabilities::ATOMIC_DEVICE));
        let sockets = device("sockets", 20e-6, 1e9, CPU);
        assert_eq!(chosen(&[&sockets, &rdma]), ["rdma"]);
        let lame = Resource { capabilities: Capabilities::ATOMIC_DEVICE, latency: 1e-3, ..rdma };
        assert_eq!(chosen(&[&lame, &sockets]), ["sockets"]);
    }

    #[test]
    fn one_device_of_each_transport_and_only_what_reaches_other_nodes() {
        let (far, here) =
            (device("a", 2e-6, 1e9, CPU), Resource { locality: Locality::Node, ..device("b", 1e-7, 1e9, CPU) });
        let twin = Resource { device: "a1".into(), bandwidth: 2e9, ..far.clone() };
        assert_eq!(choose(&[&far, &here, &twin], true, 2), [2]);
        assert_eq!(choose(&[&far, &here, &twin], false, 2), [1, 2]);
        assert_eq!(choose(&[&far, &here, &twin], false, 1), [1]);
        assert_eq!(choose(&[], true, 2), []);
    }
}
