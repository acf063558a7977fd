//! Registered memory: the ranges that peers may reach, and their keys.

use std::alloc::Layout;
use std::collections::HashMap;
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::error::{Error, Result};
use super::key::{MemoryKind, Opaque, RemoteKey};
use super::lock::{Guard, Mutex};
use crate::memory::outside;

/// How memory may be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// From the memory domain itself.
    Domain,
    /// From the process's heap.
    Heap,
    /// Pages of their own from the kernel.
    Map,
    /// Huge pages from the kernel, of its default size. There are those that the administrator set aside.
    Huge,
}

/// Memory that a network device may reach, until this is dropped.
pub struct Pinned {
    /// The key that the device needs with local addresses.
    pub local: Opaque,
    /// The key that a peer's device needs with remote addresses.
    pub remote: Opaque,
    /// Undoes it.
    pub hold: Box<dyn Send>,
}

/// A network device that must know memory before it reaches it.
pub trait Pinner: Send + Sync {
    /// Makes `len` bytes at `address` known to the device.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if they cannot be kept in memory, [`Error::Io`].
    ///
    /// # Safety
    /// The memory stays mapped until the value is dropped.
    unsafe fn pin(&self, address: *mut u8, len: usize) -> Result<Pinned>;
}

/// The registrations of one owner, shared by its domain and the code that serves its memory to peers.
#[derive(Default)]
pub struct Registry {
    regions: Mutex<HashMap<u64, (usize, usize)>>,
    next: AtomicU64,
    pinner: Option<Box<dyn Pinner>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} regions)", self.len())
    }
}

impl Registry {
    /// A registry that makes all of its memory known to a device.
    pub fn with(pinner: impl Pinner + 'static) -> Registry {
        Registry { pinner: Some(Box::new(pinner)), ..Registry::default() }
    }

    fn lock(&self) -> Guard<'_, HashMap<u64, (usize, usize)>> {
        self.regions.lock()
    }

    /// Address of `len` bytes at `address` under registration `id`.
    ///
    /// # Errors
    /// [`Error::Rejected`] if there is no such registration, [`Error::OutOfRange`] if it does not cover all of it.
    pub fn resolve(&self, id: u64, address: u64, len: usize) -> Result<*mut u8> {
        let (start, bytes) = *self.lock().get(&id).ok_or(Error::Rejected)?;
        let offset = (address as usize).wrapping_sub(start);
        if offset > bytes || len > bytes - offset {
            return Err(Error::OutOfRange);
        }
        Ok(address as *mut u8)
    }

    /// As [`Registry::resolve`], for a thread other than the one that drops regions: the memory stays registered as long as `each`
    /// runs.
    ///
    /// # Errors
    /// As [`Registry::resolve`].
    pub fn access<R>(&self, id: u64, address: u64, len: usize, each: impl FnOnce(*mut u8) -> R) -> Result<R> {
        let regions = self.lock();
        let (start, bytes) = *regions.get(&id).ok_or(Error::Rejected)?;
        let offset = (address as usize).wrapping_sub(start);
        if offset > bytes || len > bytes - offset {
            return Err(Error::OutOfRange);
        }
        Ok(each(address as *mut u8))
    }

    /// Registrations there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Registers `len` bytes at `address`, for peers to reach as `owner`'s.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] for length 0, for a range that wraps around, and for memory that the program names
    /// ([`MemoryKind::Outside`]) if its first or last byte is not mapped.
    ///
    /// # Safety
    /// The memory is valid for reading and writing until the region is dropped, and meanwhile nothing but atomics,
    /// the runtime's copies, or accesses that the program's synchronisation separates from those of peers touch it.
    pub unsafe fn register(
        self: &Arc<Self>,
        owner: u32,
        memory: MemoryKind,
        address: *mut u8,
        len: usize,
    ) -> Result<Region> {
        if len == 0 || (address as usize).checked_add(len).is_none() || address.is_null() {
            return Err(Error::InvalidParam("memory to register must have an address and at least one byte"));
        }
        // The program may name a wrong address. A device checks it; on other wires the first access would kill the process.
        let ends = [address as usize, address as usize + (len - 1)];
        if memory == MemoryKind::Outside && !ends.into_iter().all(outside::readable) {
            return Err(Error::InvalidParam("memory to register must be mapped"));
        }
        // SAFETY: the caller guarantees it.
        let pinned = self.pinner.as_ref().map(|pinner| unsafe { pinner.pin(address, len) }).transpose()?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(id, (address as usize, len));
        let device = pinned.as_ref().map_or(Opaque::NONE, |pinned| pinned.remote);
        let key = RemoteKey { owner, memory, id, address: address as u64, len: len as u64, device };
        Ok(Region { registry: Arc::clone(self), key, pinned })
    }
}

/// A registration. Operations on it must be flushed before it is dropped: later operations of peers are refused where requests
/// are served, and not checked where a wire reaches the memory directly.
pub struct Region {
    registry: Arc<Registry>,
    key: RemoteKey,
    pinned: Option<Pinned>,
}

impl Region {
    /// The local device's name for the region.
    pub(super) fn descriptor(&self) -> Opaque {
        self.pinned.as_ref().map_or(Opaque::NONE, |pinned| pinned.local)
    }

    /// The first address.
    pub fn address(&self) -> *mut u8 {
        self.key.address as *mut u8
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.key.len as usize
    }

    /// Never: a registration has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The key by which a peer reaches the memory.
    pub fn key(&self) -> &RemoteKey {
        &self.key
    }

    /// Whether all `len` bytes at `address` are inside.
    pub fn covers(&self, address: usize, len: usize) -> bool {
        self.key.offset(address as u64, len).is_ok()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.registry.lock().remove(&self.key.id);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes at {:#x}, id {})", self.key.len, self.key.address, self.key.id)
    }
}

/// Bytes of the kernel's default huge page.
fn huge_page() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kibibytes.map(|kibibytes| kibibytes << 10).ok_or(Error::Unsupported("huge pages: the kernel has none"))
}

/// A function that gives memory back.
type GiveBack = Box<dyn FnOnce() + Send>;

/// Memory that was allocated, is registered, and reads as zero at first.
pub struct Allocation {
    region: Option<Region>,
    method: Method,
    give_back: Option<GiveBack>,
}

impl Allocation {
    /// Registered memory with its way back. For implementations.
    pub fn new(region: Region, method: Method, give_back: impl FnOnce() + Send + 'static) -> Allocation {
        Allocation { region: Some(region), method, give_back: Some(Box::new(give_back)) }
    }

    /// `len` zeroed bytes from the process's heap, or on pages of their own.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] for length 0; [`Error::NoMemory`], for [`Method::Huge`] also where the system has no huge
    /// pages free (`/proc/sys/vm/nr_hugepages`); [`Error::Unsupported`] for [`Method::Domain`].
    pub fn from_process(registry: &Arc<Registry>, owner: u32, len: usize, method: Method) -> Result<Allocation> {
        if len == 0 {
            return Err(Error::InvalidParam("an allocation of no bytes"));
        }
        match method {
            Method::Heap => Allocation::from_heap(registry, owner, len),
            Method::Map => Allocation::from_pages(registry, owner, len, (method, rustix::param::page_size())),
            Method::Huge => Allocation::from_pages(registry, owner, len, (method, huge_page()?)),
            Method::Domain => Err(Error::Unsupported("this method of allocation")),
        }
    }

    fn from_pages(
        registry: &Arc<Registry>,
        owner: u32,
        len: usize,
        (method, page): (Method, usize),
    ) -> Result<Allocation> {
        let whole = len.checked_next_multiple_of(page).ok_or(Error::NoMemory)?;
        let kind = if method == Method::Huge { MapFlags::HUGETLB } else { MapFlags::empty() };
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), whole, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | kind)
        };
        let address = memory.map_err(|_| Error::NoMemory)? as usize;
        let unmap = move || {
            // SAFETY: mapped above; unmapped once, after the region is gone.
            let _ = unsafe { rustix::mm::munmap(address as *mut _, whole) };
        };
        // SAFETY: ours until given back, which happens after the region is dropped.
        match unsafe { registry.register(owner, MemoryKind::Outside, address as *mut u8, len) } {
            Ok(region) => Ok(Allocation::new(region, method, unmap)),
            Err(error) => {
                unmap();
                Err(error)
            }
        }
    }

    fn from_heap(registry: &Arc<Registry>, owner: u32, len: usize) -> Result<Allocation> {
        let layout = Layout::from_size_align(len, 64).map_err(|_| Error::NoMemory)?;
        // SAFETY: the layout has at least one byte.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        if memory.is_null() {
            return Err(Error::NoMemory);
        }
        // SAFETY: ours until given back, which happens after the region is dropped.
        let region = unsafe { registry.register(owner, MemoryKind::Outside, memory, len) }?;
        let address = memory as usize;
        Ok(Allocation::new(region, Method::Heap, move || {
            // SAFETY: allocated above with this layout; given back once.
            unsafe { std::alloc::dealloc(address as *mut u8, layout) }
        }))
    }

    /// The registration.
    pub fn region(&self) -> &Region {
        self.region.as_ref().expect("taken only when dropped")
    }

    /// The first address.
    pub fn address(&self) -> *mut u8 {
        self.region().address()
    }

    /// How it was had.
    pub fn method(&self) -> Method {
        self.method
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.region = None;
        if let Some(give_back) = self.give_back.take() {
            give_back();
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allocation({:?}, {:?})", self.region, self.method)
    }
}
