//! Devices, their ports and GIDs: which there are, which to use, and the one that is open.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

use rdma_core_sys::*;

use super::link::ReadFence;
use super::locality::shares_numa_node;
use crate::transport::attributes::{Capabilities, Locality, Protection, Resource};
use crate::transport::error::{Error, Result};
use crate::transport::key::{Opaque, RemoteKey};
use crate::transport::lock::Mutex;
use crate::transport::memory::{Pinned, Pinner};

/// The device's key in a key of its making.
#[inline(always)]
pub(super) fn rkey(key: &RemoteKey) -> u32 {
    key.device.as_number() as u32
}

/// The device's key in a descriptor of its making.
#[inline(always)]
pub(super) fn lkey(descriptor: Opaque) -> u32 {
    descriptor.as_number() as u32
}

/// A port of a device that could be used, and the GID to use it by.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// The device's name.
    pub device: String,
    /// Its port, from 1.
    pub port: u8,
    /// Index of the GID.
    pub gid_index: u8,
    /// The GID.
    pub gid: [u8; 16],
    /// Which kind of GID, for people.
    pub gid_kind: &'static str,
    /// Its local id; 0 on Ethernet.
    pub lid: u16,
    /// Largest packet, as verbs number it.
    pub mtu: u8,
    /// InfiniBand (1) or Ethernet (2).
    pub link_layer: u8,
    /// Bytes a second.
    pub bandwidth: f64,
    /// How far the GID reaches; less is better.
    rank: u32,
    /// On the NUMA node of this process's cores.
    shares_numa_node: bool,
    /// It does atomics, and may.
    has_atomics: bool,
}

impl Offer {
    /// The figures of the device and port: estimates for a present-day adapter.
    pub(super) fn resource(&self) -> Resource {
        // A message from a core that is not near the adapter crosses from one socket to the other.
        let crossing = if self.shares_numa_node { 0.0 } else { 0.5e-6 };
        Resource {
            transport: "verbs",
            device: format!("{}:{}", self.device, self.port),
            bandwidth: self.bandwidth,
            latency: 1.5e-6 + crossing,
            overhead: 150e-9,
            message_rate: 10e6,
            locality: Locality::Network,
            capabilities: Capabilities::PUT_BCOPY
                .and(Capabilities::PUT_ZCOPY)
                .and(Capabilities::GET_BCOPY)
                .and(Capabilities::GET_ZCOPY)
                .and(if self.has_atomics { Capabilities::ATOMIC_DEVICE } else { Capabilities::ATOMIC_CPU }),
            protection: Protection::Nothing,
        }
    }

    /// The same port, whose atomics the target's processor does.
    pub(super) fn without_atomics(self) -> Offer {
        Offer { has_atomics: false, ..self }
    }

    pub(super) fn has_atomics(&self) -> bool {
        self.has_atomics
    }

    /// The kind of device: devices of one kind reach each other, and all do atomics or none.
    pub(super) fn kind(&self) -> String {
        let (layer, atomics) = (self.layer(), if self.has_atomics { "" } else { " without atomics" });
        format!("RDMA over {layer}{atomics}")
    }

    fn layer(&self) -> &'static str {
        if self.link_layer == IBV_LINK_LAYER_ETHERNET { "Ethernet" } else { "InfiniBand" }
    }

    /// How far its GID reaches; less is better.
    pub(super) fn reach(&self) -> u32 {
        self.rank
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = std::net::Ipv6Addr::from(self.gid);
        let kind = self.layer();
        let (device, port, index, mtu) = (&self.device, self.port, self.gid_index, 128 << self.mtu);
        write!(f, "{device} port {port} ({kind}), GID {index} {gid} ({}), packets of {mtu} B", self.gid_kind)?;
        f.write_str(if self.shares_numa_node { "" } else { ", on another NUMA node than this process" })
    }
}

/// The ports that can be used, best first: by how far their GID reaches, whether the device is near this process's cores, and
/// bandwidth. Or why there is none.
///
/// `wanted` is a device's name, then optionally `:PORT` and `:GID-INDEX`; nothing else is offered then.
///
/// # Errors
/// A sentence for people. Absence is no fault: no library, no kernel support, no device, no usable port.
pub fn offers(wanted: Option<&str>) -> Result<Vec<Offer>, String> {
    let verbs = Verbs::load().map_err(|error| error.to_string())?;
    let list = verbs.device_list().map_err(|error| match is_no_kernel_support(&error) {
        true => "this kernel has no RDMA (ibv_get_device_list: ENOSYS)".to_owned(),
        false => format!("ibv_get_device_list: {error}"),
    })?;
    if list.is_empty() {
        return Err("there is no RDMA device".into());
    }
    let mut parts = wanted.unwrap_or("").split(':');
    let name = parts.next().filter(|name| !name.is_empty());
    let number = |part: Option<&str>| match part {
        None => Ok(None),
        Some(text) => text.parse::<u8>().map(Some).map_err(|_| {
            format!("BELLWETHER_VERBS_DEVICE={}: expected DEVICE[:PORT[:GID-INDEX]]", wanted.unwrap_or(""))
        }),
    };
    let (port, gid) = (number(parts.next())?, number(parts.next())?);
    let (mut found, mut why) = (Vec::new(), Vec::new());
    for device in list.iter() {
        // SAFETY: a device of the list.
        let own = unsafe { CStr::from_ptr(verbs.ibv_get_device_name(*device)) }.to_string_lossy().into_owned();
        if name.is_some_and(|name| name != own) {
            continue;
        }
        // SAFETY: as above; closed below.
        let context = unsafe { verbs.ibv_open_device(*device) };
        if context.is_null() {
            why.push(format!("{own} cannot be opened: {}", io::Error::last_os_error()));
            continue;
        }
        // SAFETY: an open device.
        unsafe {
            ports_of(verbs, context, &own, (port, gid), &mut found, &mut why);
            verbs.ibv_close_device(context);
        }
    }
    let nearer =
        |a: &Offer, b: &Offer| b.shares_numa_node.cmp(&a.shares_numa_node).then(b.bandwidth.total_cmp(&a.bandwidth));
    found.sort_by(|a, b| a.rank.cmp(&b.rank).then(nearer(a, b)));
    match (found.is_empty(), name) {
        (false, _) => Ok(found),
        (true, Some(name)) if why.is_empty() => Err(format!("there is no RDMA device {name}")),
        (true, _) => Err(why.join("; ")),
    }
}

/// # Safety
/// `context` is an open device.
unsafe fn ports_of(
    verbs: &Verbs,
    context: *mut ibv_context,
    device: &str,
    (wanted_port, wanted_gid): (Option<u8>, Option<u8>),
    found: &mut Vec<Offer>,
    why: &mut Vec<String>,
) {
    let shares_numa_node = shares_numa_node(device);
    let mut attributes = ibv_device_attr::default();
    // SAFETY: the caller's device.
    if unsafe { verbs.ibv_query_device(context, &raw mut attributes) } != 0 {
        why.push(format!("{device} does not answer"));
        return;
    }
    for port in 1..=attributes.phys_port_cnt {
        if wanted_port.is_some_and(|wanted| wanted != port) {
            continue;
        }
        let mut state = ibv_port_attr::default();
        // SAFETY: the caller's device.
        if unsafe { verbs.ibv_query_port(context, port, &raw mut state) } != 0 || state.state != IBV_PORT_ACTIVE {
            why.push(format!("{device} port {port} is not active"));
            continue;
        }
        let before = found.len();
        for index in 0..state.gid_tbl_len.clamp(0, 255) as u32 {
            if wanted_gid.is_some_and(|wanted| u32::from(wanted) != index) {
                continue;
            }
            let mut entry = ibv_gid_entry::default();
            // SAFETY: the caller's device.
            if unsafe { verbs.ibv_query_gid_ex(context, port.into(), index, &raw mut entry, 0) } != 0 {
                continue;
            }
            // SAFETY: both views are plain bytes.
            let gid = unsafe { entry.gid.raw };
            if gid == [0; 16] {
                continue;
            }
            let is_ipv4 = gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
            let is_local = gid[0] == 0xfe && gid[1] & 0xc0 == 0x80;
            // RoCE v2 over IPv4 passes routers and needs no neighbour discovery.
            let (gid_kind, rank) = match (entry.gid_type, is_ipv4, is_local) {
                (IBV_GID_TYPE_ROCE_V2, true, _) => ("RoCE v2, IPv4", 1),
                (IBV_GID_TYPE_ROCE_V2, _, false) => ("RoCE v2, IPv6", 2),
                (IBV_GID_TYPE_ROCE_V2, ..) => ("RoCE v2, link-local", 3),
                (IBV_GID_TYPE_ROCE_V1, ..) => ("RoCE v1", 4),
                _ => ("InfiniBand", 0),
            };
            found.push(Offer {
                device: device.into(),
                port,
                gid_index: index as u8,
                gid,
                gid_kind,
                lid: state.lid,
                mtu: state.active_mtu as u8,
                link_layer: if state.link_layer == IBV_LINK_LAYER_ETHERNET { 2 } else { 1 },
                bandwidth: bandwidth(&state),
                rank,
                shares_numa_node,
                has_atomics: attributes.atomic_cap != IBV_ATOMIC_NONE,
            });
        }
        if found.len() == before {
            why.push(format!("{device} port {port} has no GID; give its network interface an address"));
        }
    }
}

/// Bytes a second: lanes times the signalling rate of one.
fn bandwidth(port: &ibv_port_attr) -> f64 {
    let lanes = match port.active_width {
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => 1.0,
    };
    let gigabits = match port.active_speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        _ => 100.0,
    };
    lanes * gigabits * 1e9 / 8.0
}

/// The vendor that soft-RoCE reports: `RXE_VENDOR_ID` of Linux's drivers/infiniband/sw/rxe/rxe_param.h.
const SOFT_ROCE: u32 = 0xff_ffff;

/// An open device.
pub struct Nic {
    pub verbs: &'static Verbs,
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub offer: Offer,
    pub attributes: ibv_device_attr,
    /// Registrations that live, so that one range is not pinned twice.
    pinned: Mutex<HashMap<(usize, usize), Weak<MemoryRegion>>>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Nic {}
// SAFETY: as above.
unsafe impl Sync for Nic {}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nic({})", self.offer)
    }
}

impl Nic {
    /// Opens the device of `offer`.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn open(offer: &Offer) -> Result<Arc<Nic>, String> {
        let verbs = Verbs::load().map_err(|error| error.to_string())?;
        let list = verbs.device_list().map_err(|error| format!("ibv_get_device_list: {error}"))?;
        for device in list.iter() {
            // SAFETY: a device of the list.
            let name = unsafe { CStr::from_ptr(verbs.ibv_get_device_name(*device)) };
            if name.to_bytes() != offer.device.as_bytes() {
                continue;
            }
            let failed = |call: &str| format!("{}: {call}: {}", offer.device, io::Error::last_os_error());
            // SAFETY: as above; closed when the NIC is dropped.
            let context = unsafe { verbs.ibv_open_device(*device) };
            if context.is_null() {
                return Err(failed("ibv_open_device"));
            }
            // SAFETY: an open device.
            let pd = unsafe { verbs.ibv_alloc_pd(context) };
            let mut attributes = ibv_device_attr::default();
            // SAFETY: as above.
            if pd.is_null() || unsafe { verbs.ibv_query_device(context, &raw mut attributes) } != 0 {
                let error = failed("ibv_alloc_pd");
                // SAFETY: as above; no object was made from the context.
                unsafe { verbs.ibv_close_device(context) };
                return Err(error);
            }
            raise_memlock();
            let (offer, pinned) = (offer.clone(), Mutex::default());
            return Ok(Arc::new(Nic { verbs, context, pd, offer, attributes, pinned }));
        }
        Err(format!("the RDMA device {} is gone", offer.device))
    }

    /// Where requests after a fence wait.
    ///
    /// Soft-RoCE (Linux 6.1) cannot send a read or an atomic again that has `IBV_SEND_FENCE`: `rxe_wqe_is_fenced` compares
    /// `rd_atomic` with its maximum, and the request itself has taken one of these when it was sent first. So the request waits for itself,
    /// and requests that were posted later wait for ever, too.
    pub fn fences(&self) -> ReadFence {
        if self.attributes.vendor_id == SOFT_ROCE { ReadFence::ByWaiting } else { ReadFence::ByDevice }
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // SAFETY: every object that was made from these holds an `Arc` of the NIC.
        unsafe {
            self.verbs.ibv_dealloc_pd(self.pd);
            self.verbs.ibv_close_device(self.context);
        }
    }
}

/// Raises the limit on locked memory: pinned memory counts against it.
fn raise_memlock() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Memlock);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // If this is not permitted, a registration that does not fit reports that.
        let _ = setrlimit(Resource::Memlock, limit);
    }
}

/// Bytes that this process has pinned so far, as the kernel counts them; 0 where the kernel does not tell.
fn pinned_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmPin:")?.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0usize) << 10
}

/// Memory that the device knows.
#[derive(Debug)]
pub struct MemoryRegion {
    nic: Arc<Nic>,
    mr: *mut ibv_mr,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers for every access.
    ///
    /// # Errors
    /// [`Error::LockedMemory`] or [`Error::NoMemory`] if it may not be pinned, [`Error::Io`].
    ///
    /// # Safety
    /// The memory stays mapped while the value lives.
    pub unsafe fn new(nic: &Arc<Nic>, address: *mut u8, len: usize) -> Result<MemoryRegion> {
        let access =
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: an open NIC; the caller's memory.
        let mr = unsafe { nic.verbs.ibv_reg_mr(nic.pd, address.cast(), len, access) };
        if mr.is_null() {
            let error = io::Error::last_os_error();
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            tracing::error!(bytes = len, ?limit, %error, "the network device cannot pin memory; raise `ulimit -l`");
            let short = matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM));
            return Err(match limit {
                Some(limit) if short => {
                    let limit = limit as usize;
                    Error::LockedMemory { asked: len, free: limit.saturating_sub(pinned_bytes()), limit }
                }
                None if short => Error::NoMemory,
                _ => Error::Io("ibv_reg_mr failed"),
            });
        }
        Ok(MemoryRegion { nic: Arc::clone(nic), mr })
    }

    pub fn local_key(&self) -> u32 {
        // SAFETY: alive as long as self.
        unsafe { (*self.mr).lkey }
    }

    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: registered once.
        unsafe { self.nic.verbs.ibv_dereg_mr(self.mr) };
    }
}

/// A NIC as a [`Pinner`]: it registers memory.
pub struct NicPinner(pub Arc<Nic>);

impl Pinner for NicPinner {
    unsafe fn pin(&self, address: *mut u8, len: usize) -> Result<Pinned> {
        // Whole words, which atomics of four bytes need; the pages are the same.
        let start = address as usize / 8 * 8;
        let len = (address as usize + len).next_multiple_of(8) - start;
        let mut pinned = self.0.pinned.lock();
        let region = match pinned.get(&(start, len)).and_then(Weak::upgrade) {
            Some(region) => region,
            None => {
                // SAFETY: the caller guarantees it.
                let region = Arc::new(unsafe { MemoryRegion::new(&self.0, start as *mut u8, len) }?);
                pinned.retain(|_, region| region.strong_count() > 0);
                pinned.insert((start, len), Arc::downgrade(&region));
                region
            }
        };
        let [local, remote] = [region.local_key(), region.remote_key()].map(|key| Opaque::number(key.into()));
        Ok(Pinned { local, remote, hold: Box::new(region) })
    }
}
