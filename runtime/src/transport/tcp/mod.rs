//! TCP between any two processes that a network joins, also without RDMA. `README.md` in this folder has the states and races of
//! links and connections.
//!
//! A link (`link.rs`) leads from one interface to another. It carries numbered frames (`frame.rs`) over one connection after another,
//! so that nothing is lost or repeated when a connection breaks. A connection begins with a proof of the job's key
//! (`secret/handshake.rs`), and every frame has a tag that only the two ends can make, and may be encrypted (`secret/`). All of that is free of sockets and
//! clocks. `state.rs` and `calls.rs` add the sockets, `shared.rs` the thread that serves peers while the program computes or sleeps.

mod address;
mod calls;
mod core;
mod frame;
mod interfaces;
mod link;
#[cfg(test)]
mod namespace;
mod outbox;
mod peer;
mod provider;
mod shared;
mod sockets;
mod spread;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;
mod wire;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use self::interfaces::stack;
pub(crate) use self::provider::Interfaces;
pub use self::secret::KEY;
pub use self::wire::TcpWire;

use self::address::{Address, HOST_ADDRESSES};
#[cfg(test)]
use self::frame::SEGMENT;
use self::interfaces::Numbers;
use self::link::Limits;
use self::peer::{Times, Tuning};
use self::secret::JobKey;
use self::state::{Own, State};
use super::attributes::{Capabilities, Locality, Protection, Resource};
use super::error::{Error, Result};
#[cfg(test)]
use super::lock::Mutex;
use super::memory::Registry;
use super::port;
use super::stream::FlowLimits;
use crate::membership::JobMemory;
use crate::membership::interfaces::{self as host_interfaces, HostInterface};
use crate::secret::{self, handshake};

/// Feeds `bytes` to every decoder. Panics are the finding.
#[cfg(any(test, fuzzing))]
pub fn decode(bytes: &[u8]) {
    let _ = Address::decode(bytes);
    let _ = bytes.first_chunk().and_then(frame::Head::decode);
    let _ = bytes.first_chunk().and_then(handshake::Hello::decode);
    let _ = bytes.split_first().and_then(|(kind, body)| frame::Body::decode(*kind, body));
    let mut accepting = handshake::Accepting::new([3; handshake::NONCE]);
    for part in bytes.chunks(50) {
        let part = &part[..part.len().min(accepting.wanted())];
        let place = |_: &handshake::Hello| Some(handshake::Position { epoch: 1, received: 2 });
        if matches!(accepting.take(&JobKey::new([1; KEY]), part, place), handshake::Step::Refused) {
            break;
        }
    }
    let key = JobKey::new([1; KEY]);
    for key in [key.encrypting(), key] {
        let [ours, theirs] = [secret::End::Acceptor, secret::End::Dialer].map(|end| key.session(end, &[]));
        // As a stranger sends them, and as a peer does that has the keys.
        let framed = bytes.split_at_checked(frame::HEAD).filter(|(_, body)| body.len() <= frame::BODY_MAX);
        let framed = framed.map(|(head, body)| {
            let mut head: [u8; frame::HEAD] = head.try_into().expect("split there");
            head[2..4].fill(0);
            head[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
            head[8..16].fill(0);
            let mut out = outbox::Outbox::default();
            out.frame(&theirs, 0, &head, body, &[]);
            out.gather().iter().flat_map(|block| block.iter().copied()).collect::<Vec<u8>>()
        });
        let mut link = link::Link::new(TUNING.limits);
        let is_new = link.connect(handshake::Established { epoch: 1, received: 0, keys: ours }).is_ok();
        let mut all = [framed.as_deref().unwrap_or_default(), bytes].concat();
        let mut rest = &mut all[..];
        while is_new && matches!(link.next(&mut rest), Ok(Some(_))) {}
    }
}

/// How deep queues are. Chosen: a megabyte in flight keeps 10 Gbit/s busy over 0.8 ms.
const TUNING: Tuning = Tuning {
    flow: FlowLimits { slots: 16, credits: 128, fragment: 16 << 10, message: 4 << 20 },
    limits: Limits { frames: 256, bytes: 1 << 20, depth: 64, silent: 64 },
    times: Times {
        // As the time after which leaders give up a host.
        limit: Duration::from_secs(10),
        attempt: Duration::from_secs(3),
        stopped: Duration::from_secs(3600),
    },
};

/// Bytes for a connected peer with which nothing is in flight: its record, and room for the next frames. Not included: memory of the kernel
/// and of the queues of messages.
pub fn bytes_per_peer() -> usize {
    size_of::<peer::Peer>() + link::IDLE
}

/// A rank's access to TCP. Copies are the same device: each thread can have one.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    rank: u32,
    ranks: usize,
    key: JobKey,
    /// That of the job.
    roster: Option<Arc<JobMemory>>,
    /// Listen on this address only.
    only: Option<IpAddr>,
    addresses: Vec<IpAddr>,
    resource: Resource,
    stack: u64,
    tuning: Tuning,
    numbers: Arc<Numbers>,
    registry: Arc<Registry>,
    #[cfg(test)]
    open: Mutex<Vec<std::sync::Weak<shared::Shared>>>,
    /// The network namespace of its sockets and threads, if it is not this one.
    #[cfg(test)]
    namespace: Option<&'static str>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, rank {})", self.0.resource.device, self.0.rank)
    }
}

/// Interfaces by which others may reach this host.
#[derive(Debug, Clone)]
pub struct Offer {
    interfaces: Vec<HostInterface>,
    is_forced: bool,
    stopped: Duration,
    encrypts: bool,
}

/// The interfaces of this host: `wanted` only, if it is named.
///
/// # Errors
/// Why there is none: a sentence for people.
pub fn offer(wanted: Option<&str>) -> Result<Offer, String> {
    let all = host_interfaces::here();
    let plain = Offer { interfaces: Vec::new(), is_forced: true, stopped: TUNING.times.stopped, encrypts: false };
    let Some(wanted) = wanted else {
        return if all.is_empty() {
            Err("no network interface is up".into())
        } else {
            Ok(Offer { interfaces: all, is_forced: false, ..plain })
        };
    };
    let names = || all.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>().join(", ");
    match all.iter().find(|interface| interface.name == wanted) {
        Some(one) => Ok(Offer { interfaces: vec![one.clone()], ..plain }),
        None => Err(format!(
            "BELLWETHER_TCP_INTERFACE={wanted}, but no interface of that name is up; there are: {}",
            names()
        )),
    }
}

impl Offer {
    /// The addresses of these interfaces, in the order in which peers try them.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.interfaces.iter().flat_map(|interface| interface.addresses.iter().copied())
    }

    /// The same, with the time for which a peer may be stopped while its host answers.
    pub fn with_stopped(self, stopped: Duration) -> Offer {
        Offer { stopped, ..self }
    }

    /// The same, with frames that are encrypted, or only authenticated. Ranks that differ in this do not connect.
    pub fn with_encryption(self, encrypts: bool) -> Offer {
        Offer { encrypts, ..self }
    }

    fn resource(&self) -> Resource {
        let outward: Vec<&HostInterface> =
            self.interfaces.iter().filter(|interface| !interface.is_loopback()).collect();
        let shown: Vec<&HostInterface> = if outward.is_empty() { self.interfaces.iter().collect() } else { outward };
        let bandwidth = shown.iter().map(|interface| interface.bandwidth).fold(0.0, f64::max);
        let device = shown.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>().join("+");
        // As measured between two processes of one host, and a switch between hosts.
        let (latency, overhead, message_rate) = (20e-6, 3e-6, 1e6);
        let (transport, locality, capabilities) = ("tcp", Locality::Network, Capabilities::ATOMIC_CPU);
        let protection = if self.encrypts { Protection::Encrypted } else { Protection::Authenticated };
        Resource { transport, device, bandwidth, latency, overhead, message_rate, locality, capabilities, protection }
    }
}

impl Device {
    /// TCP for `rank` of `job`. An interface that closes waits for no rank that has ended by the roster.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn new(rank: usize, job: &Arc<JobMemory>, offer: &Offer) -> Result<Device, String> {
        let times = Times { stopped: offer.stopped, ..TUNING.times };
        let mut device = Device::with(rank, job.ranks(), job.key(), offer, Tuning { times, ..TUNING })?;
        Arc::get_mut(&mut device.0).expect("it was just made").roster = Some(Arc::clone(job));
        Ok(device)
    }

    /// TCP for `rank` of `ranks` ranks, which all know `key`.
    fn with(rank: usize, ranks: usize, key: [u8; KEY], offer: &Offer, tuning: Tuning) -> Result<Device, String> {
        if ranks > address::RANKS {
            return Err(format!("{ranks} ranks: over TCP there can be {}", address::RANKS));
        }
        let mut addresses: Vec<IpAddr> =
            offer.interfaces.iter().flat_map(|interface| interface.addresses.iter().copied()).collect();
        // Room for the loopback address is kept: it is the last.
        if let Some(loopback) = addresses.iter().position(IpAddr::is_loopback) {
            let loopback = addresses[loopback];
            addresses.retain(|address| !address.is_loopback());
            addresses.truncate(HOST_ADDRESSES - 1);
            addresses.push(loopback);
        }
        let only = if offer.is_forced { addresses.first().copied() } else { None };
        if let Some(only) = only {
            addresses = vec![only];
        }
        let key = JobKey::new(key);
        Ok(Device(Arc::new(Inner {
            rank: rank as u32,
            ranks,
            key: if offer.encrypts { key.encrypting() } else { key },
            roster: None,
            only,
            addresses,
            resource: offer.resource(),
            stack: interfaces::stack(),
            tuning,
            numbers: Arc::default(),
            registry: Arc::default(),
            #[cfg(test)]
            open: Mutex::default(),
            #[cfg(test)]
            namespace: None,
        })))
    }

    fn start(&self) -> std::io::Result<TcpWire> {
        let inner = &*self.0;
        let number = inner.numbers.take().map_err(std::io::Error::other)?;
        let (listener, port) = sockets::listen(inner.only)?;
        let mut nonce = [0; 8];
        rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty())?;
        let mut hosts = [[0; 16]; HOST_ADDRESSES];
        hosts.iter_mut().zip(&inner.addresses).for_each(|(host, address)| *host = address::octets(*address));
        let (rank, interface, nonce) = (inner.rank, number.number, u64::from_le_bytes(nonce));
        let address = Address { rank, interface, nonce, stack: inner.stack, port, hosts };
        let own = Own { address, number: address.peer() };
        let calls = calls::Calls::new(listener)?;
        let (registry, key, roster) = (Arc::clone(&inner.registry), inner.key.clone(), inner.roster.clone());
        let state = State::new(inner.tuning, registry, own, key, roster, calls)?;
        TcpWire::open(state, number)
    }

    /// As [`Device::new`], with shallow queues.
    #[cfg(test)]
    pub fn shallow(rank: usize, ranks: usize, encrypts: bool) -> Device {
        Device::shallow_in(None, rank, ranks, encrypts)
    }

    /// As [`Device::shallow`], in this network namespace: its sockets and threads are there.
    #[cfg(test)]
    pub fn shallow_in(namespace: Option<&'static str>, rank: usize, ranks: usize, encrypts: bool) -> Device {
        let flow = FlowLimits { slots: 4, credits: 4, fragment: 1 << 10, message: 16 << 10 };
        let limits = Limits { frames: 6, bytes: 2 * SEGMENT, depth: 4, silent: 2 };
        let make = || {
            let offer = offer(None).expect("an interface").with_encryption(encrypts);
            Device::with(rank, ranks, [0x5c; KEY], &offer, Tuning { flow, limits, ..TUNING }).expect("few ranks")
        };
        let mut device = namespace::within(namespace, make);
        Arc::get_mut(&mut device.0).expect("it was just made").namespace = namespace;
        device
    }

    /// Ends this rank as far as the network can tell.
    #[cfg(test)]
    pub fn kill(&self) {
        self.0.open.lock().iter().filter_map(std::sync::Weak::upgrade).for_each(|shared| shared.lock().silence());
    }
}

impl port::Device for Device {
    type Wire = TcpWire;

    fn resource(&self) -> Resource {
        self.0.resource.clone()
    }

    fn owner(&self) -> u32 {
        self.0.rank
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    fn knows(&self, owner: u32) -> bool {
        (owner as usize) < self.0.ranks
    }

    fn open(&self) -> Result<TcpWire> {
        #[cfg(test)]
        let started = namespace::within(self.0.namespace, || self.start());
        #[cfg(not(test))]
        let started = self.start();
        let wire = started.map_err(|error| {
            tracing::error!(%error, "a TCP interface cannot be opened");
            match error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => Error::Io("too many open files; see `ulimit -n`"),
                Some(_) => Error::Io("a socket or a thread cannot be had"),
                None => Error::Busy,
            }
        })?;
        #[cfg(test)]
        self.0.open.lock().push(Arc::downgrade(wire.shared()));
        Ok(wire)
    }
}
