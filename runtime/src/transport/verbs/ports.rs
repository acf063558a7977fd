//! RDMA as a job finds it: a device for each port that could be used.

use super::{Device, Offer, offers};
use crate::settings::Settings;
use crate::transport::providers::{Provider, Setup};
use crate::transport::{Resource, Transport as _, port};

/// The ports of RDMA devices.
pub(crate) struct Ports;

impl Provider for Ports {
    type Domain = port::Domain<Device>;
    type Device = Offer;

    const NAME: &'static str = "verbs";
    const TITLE: &'static str = "verbs";
    const NUMBER: usize = 1;

    fn find(setup: Setup<'_>) -> Result<Vec<(Resource, Offer)>, String> {
        let mut found = offers(setup.settings.verbs_device.as_deref())?;
        // Devices that reach further come first, and only these can be chosen: a figure cannot make up for a peer out of reach.
        let reach = found.first().map(Offer::reach);
        found.retain(|offer| Some(offer.reach()) == reach);
        let allowed = |offer: Offer| if setup.device_atomics { offer } else { offer.without_atomics() };
        Ok(found.into_iter().map(allowed).map(|offer| (offer.resource(), offer)).collect())
    }

    fn kind(settings: &Settings) -> Option<String> {
        // RDMA cannot encrypt, and is not used then.
        if settings.encrypt {
            return None;
        }
        let found = offers(settings.verbs_device.as_deref());
        let best = found.ok().and_then(|found| Some(found.first()?.kind()));
        Some(best.unwrap_or_else(|| "no RDMA device".into()))
    }

    fn open(setup: Setup<'_>, offer: Offer) -> Result<Self::Domain, String> {
        let device = Device::new(setup.place.rank, setup.place.job.ranks(), &offer)?;
        device.open(&offer.resource()).map_err(|error| error.to_string())
    }
}
