//! The memory domain of a rank that registers parts of its own slot, as a rank does with any other network.

use std::rc::Rc;

use super::device::{Device, Place};
use super::wire::ShmWire;
use crate::transport::memory::{Allocation, Method, Region};
use crate::transport::port::{self, Device as _};
use crate::transport::{
    Domain, DomainAttributes, InterfaceOptions, PACKED_KEY_LEN, RemoteKey, Result, Transport, Worker, key,
};

/// A domain that only registers: all it registers lies in the rank's slot, which peers have mapped, and so it is as
/// good as memory that the domain gave out.
#[derive(Debug)]
pub(crate) struct SlotDomain {
    device: Device,
    domain: port::Domain<Device>,
}

impl SlotDomain {
    /// The domain of the rank at `place`.
    ///
    /// # Errors
    /// As [`Transport::open`].
    pub(crate) fn new(place: Place) -> Result<SlotDomain> {
        let device = Device::new(place, 0..0);
        let domain = Transport::open(&device, &device.resource())?;
        Ok(SlotDomain { device, domain })
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
        // SAFETY: the caller's word.
        unsafe { self.device.registry().register(self.device.owner(), key::Place::Allocated, address, len) }
    }

    fn pack_key(&self, region: &Region) -> [u8; PACKED_KEY_LEN] {
        self.domain.pack_key(region)
    }

    unsafe fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey> {
        // SAFETY: the caller's word.
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
}
