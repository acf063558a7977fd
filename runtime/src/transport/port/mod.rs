//! The whole contract on top of a [`Wire`]: handler table, pending queues, completions, flush, fence, retention, and
//! emulated puts, gets and atomics where the wire has none.

mod endpoint;
mod ends;
mod flight;
mod interface;
mod memory;

use std::rc::Rc;
use std::sync::Arc;

pub use self::endpoint::Endpoint;
pub use self::interface::Interface;

use super::error::{Error, Result};
use super::key::RemoteKey;
use super::memory::{Allocation, Method, Region, Registry};
use super::wire::Wire;
use super::{DomainAttributes, InterfaceOptions, Resource, Worker};

/// One rank's place on a network, from which its wires and memory domains are made.
pub trait Device: Clone + 'static {
    /// Its wires.
    type Wire: Wire;

    /// The description of the device, with figures.
    fn resource(&self) -> Resource;

    /// The number under which peers know this rank.
    fn owner(&self) -> u32;

    /// The registrations of this rank.
    fn registry(&self) -> &Arc<Registry>;

    /// Keys of allocated memory have a pointer here.
    fn has_key_pointer(&self) -> bool {
        false
    }

    /// Zero-copy memory must be registered.
    fn needs_region(&self) -> bool {
        false
    }

    /// Most bytes that [`Device::allocate`] gives.
    fn max_alloc(&self) -> usize {
        0
    }

    /// Allocates memory of the device's own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is none, [`Error::NoMemory`].
    fn allocate(&self, _len: usize) -> Result<Allocation> {
        Err(Error::Unsupported("memory of the domain's own"))
    }

    /// Whether a key of that owner can belong here.
    fn knows(&self, owner: u32) -> bool;

    /// Where this process has the peer's memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::OutOfRange`].
    fn key_pointer(&self, _key: &RemoteKey, _remote: u64) -> Result<*mut u8> {
        Err(Error::Unsupported("a pointer to remote memory"))
    }

    /// Opens the wire.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is open and there can be only one.
    fn open(&self) -> Result<Self::Wire>;

    /// Opens a further wire, to which peers only send answers: for [`super::Domain::open_private`].
    ///
    /// # Errors
    /// [`Error::Busy`] if there can be no more.
    fn open_private(&self) -> Result<Self::Wire> {
        self.open()
    }
}

impl<D: Device> super::Transport for D {
    type Domain = Domain<D>;

    fn resources(&self) -> Vec<Resource> {
        vec![self.resource()]
    }

    fn open(&self, resource: &Resource) -> Result<Domain<D>> {
        if *resource != self.resource() {
            return Err(Error::InvalidParam("a resource of another transport"));
        }
        Ok(Domain { device: self.clone() })
    }
}

/// The memory domain of a [`Device`].
#[derive(Debug)]
pub struct Domain<D> {
    device: D,
}

impl<D: Device> super::Domain for Domain<D> {
    type Interface = Interface<D::Wire>;

    fn attributes(&self) -> DomainAttributes {
        DomainAttributes {
            packed_key_len: super::PACKED_KEY_LEN,
            needs_region: self.device.needs_region(),
            key_pointer: self.device.has_key_pointer(),
            max_alloc: self.device.max_alloc(),
            max_register: isize::MAX as usize,
        }
    }

    fn allocate(&self, len: usize, methods: &[Method]) -> Result<Allocation> {
        if len == 0 {
            return Err(Error::InvalidParam("an allocation of no bytes"));
        }
        let mut outcome = Err(Error::InvalidParam("no method of allocation given"));
        for method in methods {
            outcome = match method {
                Method::Domain => self.device.allocate(len),
                _ => Allocation::from_process(self.device.registry(), self.device.owner(), len, *method),
            };
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    unsafe fn register(&self, address: *mut u8, len: usize) -> Result<Region> {
        // SAFETY: the caller guarantees it.
        unsafe { self.device.registry().register(self.device.owner(), super::key::MemoryKind::Outside, address, len) }
    }

    unsafe fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey> {
        let key = RemoteKey::decode(bytes)?;
        if !self.device.knows(key.owner) {
            return Err(Error::InvalidParam("a key of an owner that is not on this network"));
        }
        Ok(key)
    }

    fn key_pointer(&self, key: &RemoteKey, remote: u64) -> Result<*mut u8> {
        if key.offset(remote, 1).is_err() {
            return Err(Error::OutOfRange);
        }
        self.device.key_pointer(key, remote)
    }

    fn open_interface(
        &self,
        worker: &Worker<Self::Interface>,
        options: InterfaceOptions,
    ) -> Result<Rc<Self::Interface>> {
        let wire = self.device.open()?;
        let interface = Rc::new(Interface::new(wire, Arc::clone(self.device.registry()), options));
        worker.adopt(&interface);
        Ok(interface)
    }

    fn open_private(&self) -> Result<Rc<Self::Interface>> {
        let wire = self.device.open_private()?;
        Ok(Rc::new(Interface::new(wire, Arc::clone(self.device.registry()), InterfaceOptions::default())))
    }
}
