//! The memory domain of a rank that registers parts of its own slot, as a rank does with any other network.

use std::ops::Range;
use std::rc::Rc;

use super::device::{self, Device, NodeRank};
use super::wire::ShmWire;
use crate::transport::memory::{Allocation, Method, Region};
use crate::transport::port::{self, Device as _};
use crate::transport::providers::{Provider, Setup};
use crate::transport::{
    Domain, DomainAttributes, InterfaceOptions, PACKED_KEY_LEN, RemoteKey, Resource, Result, Transport, Worker, key,
};

/// A domain that only registers. Peers have the rank's slot mapped, so memory in the slot counts as memory that the domain allocated.
#[derive(Debug)]
pub(crate) struct SlotDomain {
    device: Device,
    domain: port::Domain<Device>,
    /// Addresses of the rank's slot.
    slot: Range<usize>,
}

impl SlotDomain {
    /// The domain of the rank at `place`.
    ///
    /// # Errors
    /// As [`Transport::open`].
    pub(crate) fn new(place: NodeRank) -> Result<SlotDomain> {
        let start = place.node.slot(place.rank) as usize;
        let slot = start..start + (1 << place.node.stride_log2());
        let device = Device::new(place, 0..0);
        let domain = Transport::open(&device, &device.resource())?;
        Ok(SlotDomain { device, domain, slot })
    }
}

/// Shared memory as if it were a network. It reaches ranks of one node only.
pub(crate) struct Slots;

impl Provider for Slots {
    type Domain = SlotDomain;
    type Device = ();

    const NAME: &'static str = "shm-contract";
    const TITLE: &'static str = "shared memory by the contract";
    const NUMBER: usize = 0;

    fn find(_setup: Setup<'_>) -> std::result::Result<Vec<(Resource, ())>, String> {
        Ok(vec![(device::resource(), ())])
    }

    fn open(setup: Setup<'_>, _device: ()) -> std::result::Result<SlotDomain, String> {
        SlotDomain::new(setup.place.clone()).map_err(|error| error.to_string())
    }
}

impl Domain for SlotDomain {
    type Interface = port::Interface<ShmWire>;

    fn attributes(&self) -> DomainAttributes {
        self.domain.attributes()
    }

    fn allocate(&self, len: usize, methods: &[Method]) -> Result<Allocation> {
        self.domain.allocate(len, methods)
    }

    unsafe fn register(&self, address: *mut u8, len: usize) -> Result<Region> {
        let place = match self.slot.contains(&(address as usize)) {
            true => key::MemoryKind::Allocated,
            false => key::MemoryKind::Outside,
        };
        // SAFETY: the caller guarantees it.
        unsafe { self.device.registry().register(self.device.owner(), place, address, len) }
    }

    fn pack_key(&self, region: &Region) -> [u8; PACKED_KEY_LEN] {
        self.domain.pack_key(region)
    }

    unsafe fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey> {
        // SAFETY: the caller guarantees it.
        unsafe { self.domain.unpack_key(bytes) }
    }

    fn key_pointer(&self, key: &RemoteKey, remote: u64) -> Result<*mut u8> {
        self.domain.key_pointer(key, remote)
    }

    fn open_interface(
        &self,
        worker: &Worker<Self::Interface>,
        options: InterfaceOptions,
    ) -> Result<Rc<Self::Interface>> {
        self.domain.open_interface(worker, options)
    }

    fn open_private(&self) -> Result<Rc<Self::Interface>> {
        self.domain.open_private()
    }
}
