//! TCP as a job finds it: the interfaces of this host.

use super::{Device, Offer, offer};
use crate::transport::providers::{Provider, Setup};
use crate::transport::{Resource, Transport as _, port};

/// The interfaces of this host.
pub(crate) struct Interfaces;

impl Provider for Interfaces {
    type Domain = port::Domain<Device>;
    type Device = Offer;

    const NAME: &'static str = "tcp";
    const TITLE: &'static str = "TCP";
    // Beside RDMA. Mapped memory treated as a network has this number, too, and is never used in a job on several hosts.
    const NUMBER: usize = 0;

    fn find(setup: Setup<'_>) -> Result<Vec<(Resource, Offer)>, String> {
        let settings = setup.settings;
        let offer = offer(settings.tcp_interface.as_deref())?;
        let offer = offer.with_stopped(settings.tcp_stopped).with_encryption(settings.encrypt);
        Ok(vec![(offer.resource(), offer)])
    }

    fn open(setup: Setup<'_>, offer: Offer) -> Result<Self::Domain, String> {
        let device = Device::new(setup.place.rank, &setup.place.job, &offer)?;
        device.open(&offer.resource()).map_err(|error| error.to_string())
    }
}
