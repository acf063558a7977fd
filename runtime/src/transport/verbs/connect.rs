//! Connections on first use: datagrams ask for them and answer, on a thread that sleeps until one comes.
//!
//! ```text
//! asker                                         asked
//! makes a queue pair ── ASK (its number) ──▶    makes one, connects it
//! connects its own   ◀── HERE (its number) ──
//! ```
//!
//! If both ask at once, each question is the other's answer. A question without an answer is asked again. A peer that asks
//! anew, from another queue pair, has given up the old connection. Askers and asked are interfaces: each has a number at
//! its rank, and a datagram says for which interface it is, so that an address reaches the interface that published it or none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdma_core_sys::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::address::{self, Address};
use super::interfaces::InterfaceNumber;
use super::nic::{MemoryRegion, Nic};
use super::queue::{Completions, Events, Pair, PairSpec, Route, Shared};
use crate::transport::lock::Mutex;

/// Key of our datagrams.
const KEY: u32 = 0x0b7e_11e7;
const MAGIC: u32 = u32::from_le_bytes(*b"bwc2");
/// Bytes of a datagram: magic, kind, the sender's queue pair, the asker's, the receiver's nonce, the sender's address.
const DATAGRAM: usize = FROM + address::LEN;
const FROM: usize = 24;
/// Bytes that stand before a datagram that came: room for a global route header.
const ROUTE_HEADER: usize = 40;
const BUFFER: usize = 128;
const RECEIVES: usize = 64;
const SENDS: usize = 16;
/// How long to wait for an answer before a question is repeated; doubles each time. Chosen: a write between two emulated
/// machines takes up to 20 ms.
const PATIENCE: Duration = Duration::from_millis(100);
/// Questions before a peer counts as unreachable: about six seconds.
const QUESTIONS: u32 = 6;

/// Requests in flight for each connection. Chosen: the device's queue has one place more, 12 KiB over soft-RoCE, and a peer that
/// answers in 1.5 us gets ten million requests a second.
pub const DEPTH: usize = 15;
/// Blocks of one request.
pub const PIECES: usize = 4;
/// Bytes inside a request.
pub const INLINE: usize = 220;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Asking,
    Ready,
    /// The peer does not answer, or the device refuses.
    Failed,
}

/// A connection, or one that is being made.
#[derive(Debug)]
pub struct Connection {
    pub pair: Arc<Pair>,
    /// Where the pair leads if to this interface itself.
    pub mirror: Option<Arc<Pair>>,
    pub stage: Stage,
    to: Address,
    route: Option<Route>,
    asked: u32,
    again: Instant,
}

/// State that the interface's thread and the connecting thread share.
#[derive(Debug)]
pub struct ConnectionTable {
    pub nic: Arc<Nic>,
    pub done: Completions,
    pub shared: Shared,
    pub address: Address,
    /// Bytes inside a request.
    pub inline: usize,
    /// By number of the peer.
    connections: Mutex<HashMap<u32, Connection>>,
    datagrams: Mutex<Datagrams>,
    /// Counts what changed in the connections, or at the port.
    changes: AtomicU64,
    stop: AtomicBool,
    /// Wakes the connecting thread.
    wake: OwnedFd,
    /// Becomes readable with every change.
    pub notice: OwnedFd,
    number: InterfaceNumber,
}

#[derive(Debug)]
struct Datagrams {
    // In the order in which they may be dropped.
    pair: Pair,
    done: Completions,
    events: Events,
    region: MemoryRegion,
    buffers: Box<[[u8; BUFFER]]>,
    sent: usize,
}

// SAFETY: the buffers are touched under the lock only, and by the device.
unsafe impl Send for Datagrams {}

/// The connection table, and its thread, which ends with it.
#[derive(Debug)]
pub struct Connector {
    pub board: Arc<ConnectionTable>,
    thread: Option<JoinHandle<()>>,
}

fn signal() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl Connector {
    /// Starts to answer for the interface of `rank` that has `number`. Connections complete into `done`, and take their
    /// buffers from `shared`.
    pub fn start(
        nic: &Arc<Nic>,
        rank: u32,
        number: InterfaceNumber,
        done: Completions,
        shared: Shared,
    ) -> io::Result<Connector> {
        let datagrams = Datagrams::new(nic)?;
        let offer = &nic.offer;
        let mut nonce = [0; 8];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
        let address = Address {
            rank,
            interface: number.number(),
            datagrams: datagrams.pair.number(),
            nonce: u64::from_ne_bytes(nonce),
            gid: offer.gid,
            lid: offer.lid,
            mtu: offer.mtu,
            link_layer: offer.link_layer,
        };
        let spec = |inline| PairSpec {
            kind: IBV_QPT_RC,
            done: &done,
            shared: Some(&shared),
            depth: DEPTH,
            pieces: PIECES,
            inline,
        };
        // How much the device takes inside a request is found by asking.
        let inline = Pair::new(nic, &spec(INLINE))?.1;
        // SAFETY: an open device's descriptor.
        let faults = unsafe { std::os::fd::BorrowedFd::borrow_raw((*nic.context).async_fd) };
        rustix::io::ioctl_fionbio(faults, true)?;
        let board = Arc::new(ConnectionTable {
            nic: Arc::clone(nic),
            done,
            shared,
            address,
            inline,
            connections: Mutex::default(),
            datagrams: Mutex::new(datagrams),
            changes: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            wake: signal()?,
            notice: signal()?,
            number,
        });
        board.number.attach(&board);
        let own = Arc::clone(&board);
        let thread = std::thread::Builder::new().name("connections".into()).spawn(move || own.run())?;
        Ok(Connector { board, thread: Some(thread) })
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.board.stop.store(true, Ordering::Release);
        ring(&self.board.wake);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by the thread.
            let _ = thread.join();
        }
        self.board.connections.lock().clear();
    }
}

fn ring(fd: &OwnedFd) {
    // Full means that it is readable.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Makes an eventfd unreadable.
pub fn quiet(fd: &OwnedFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(fd, &mut count);
}

impl Datagrams {
    fn new(nic: &Arc<Nic>) -> io::Result<Datagrams> {
        let events = Events::new(nic)?;
        let done = Completions::new(nic, RECEIVES + SENDS, &events)?;
        let spec = PairSpec { kind: IBV_QPT_UD, done: &done, shared: None, depth: RECEIVES, pieces: 1, inline: 0 };
        let pair = Pair::new(nic, &spec)?.0;
        pair.open_for_datagrams(KEY)?;
        let mut buffers = vec![[0; BUFFER]; RECEIVES + SENDS].into_boxed_slice();
        // SAFETY: the buffers live in the same value; the region is dropped after the queue pair, at the latest with it.
        let region = unsafe { MemoryRegion::new(nic, buffers.as_mut_ptr().cast(), buffers.len() * BUFFER) };
        let region = region.map_err(|error| io::Error::other(error.to_string()))?;
        let mut own = Datagrams { buffers, region, sent: 0, pair, done, events };
        (0..RECEIVES).try_for_each(|buffer| own.offer(buffer))?;
        own.done.notify(false);
        Ok(own)
    }

    fn offer(&mut self, buffer: usize) -> io::Result<()> {
        let address = self.buffers[buffer].as_mut_ptr() as u64;
        let mut sge = ibv_sge { addr: address, length: BUFFER as u32, lkey: self.region.local_key() };
        let mut wr =
            ibv_recv_wr { wr_id: buffer as u64, next: std::ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair; a buffer that is registered and not in use.
        match unsafe { ibv_post_recv(self.pair.raw, &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn send(&mut self, route: &Route, to: u32, datagram: &[u8; DATAGRAM]) {
        // Used in turn; one that is still in flight would only be sent as the newer one.
        let buffer = RECEIVES + self.sent % SENDS;
        self.sent += 1;
        self.buffers[buffer][..DATAGRAM].copy_from_slice(datagram);
        let address = self.buffers[buffer].as_mut_ptr() as u64;
        let mut sge = ibv_sge { addr: address, length: DATAGRAM as u32, lkey: self.region.local_key() };
        let mut wr = ibv_send_wr {
            wr_id: buffer as u64,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.ud = ibv_send_wr_ud { ah: route.raw, remote_qpn: to, remote_qkey: KEY };
        let mut bad = std::ptr::null_mut();
        // A datagram that is not sent now is sent when the question is asked again.
        // SAFETY: a live queue pair and route; a registered buffer.
        unsafe { ibv_post_send(self.pair.raw, &raw mut wr, &raw mut bad) };
    }

    /// The datagrams that came.
    fn take(&mut self) -> Vec<Datagram> {
        self.events.drain();
        self.done.notify(false);
        let mut taken = Vec::new();
        let mut room = [MaybeUninit::uninit(); 16];
        loop {
            let done = self.done.poll(&mut room).to_vec();
            if done.is_empty() {
                return taken;
            }
            for wc in done.iter().filter(|wc| (wc.wr_id as usize) < RECEIVES) {
                let buffer = wc.wr_id as usize;
                let len = wc.byte_len as usize;
                if wc.status == IBV_WC_SUCCESS && (ROUTE_HEADER..=BUFFER).contains(&len) {
                    taken.extend(Datagram::decode(&self.buffers[buffer][ROUTE_HEADER..len]));
                }
                // Fewer buffers only mean that questions are asked again.
                let _ = self.offer(buffer);
            }
        }
    }
}

const ASK: u32 = 1;
const HERE: u32 = 2;

/// A question or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Datagram {
    kind: u32,
    /// The sender's queue pair.
    pair: u32,
    /// In an answer: the asker's.
    asked: u32,
    /// The nonce of the interface that the datagram is for: numbers of queue pairs are used again.
    to: u64,
    from: Address,
}

impl Datagram {
    fn encode(&self) -> [u8; DATAGRAM] {
        let mut bytes = [0; DATAGRAM];
        for (at, word) in [MAGIC, self.kind, self.pair, self.asked].into_iter().enumerate() {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[16..FROM].copy_from_slice(&self.to.to_le_bytes());
        bytes[FROM..].copy_from_slice(&self.from.encode());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Datagram> {
        let bytes: &[u8; DATAGRAM] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let from = Address::decode(&bytes[FROM..]).ok()?;
        let kind = word(4);
        (word(0) == MAGIC && (kind == ASK || kind == HERE)).then(|| Datagram {
            kind,
            pair: word(8),
            asked: word(12),
            to: u64::from(word(16)) | u64::from(word(20)) << 32,
            from,
        })
    }
}

impl ConnectionTable {
    /// Changes whenever [`ConnectionTable::with_connection`] may answer otherwise.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether the device or its port is gone.
    pub fn is_broken(&self) -> bool {
        self.number.is_broken()
    }

    /// Tells the interface that a connection has changed.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        ring(&self.notice);
    }

    /// The connection to `peer` as it is now.
    pub fn with_connection<R>(&self, peer: u32, see: impl FnOnce(Option<&Connection>) -> R) -> R {
        see(self.connections.lock().get(&peer))
    }

    /// The peer that the queue pair `number` of this side leads to.
    pub fn peer_of(&self, number: u32) -> Option<u32> {
        let is_it = |pair: &Pair| pair.number() == number;
        let connections = self.connections.lock();
        let found = connections.iter().find(|(_, connection)| {
            is_it(&connection.pair) || connection.mirror.as_ref().is_some_and(|mirror| is_it(mirror))
        });
        found.map(|(peer, _)| *peer)
    }

    /// Asks for a connection, unless that was asked before.
    ///
    /// # Errors
    /// Of the device.
    pub fn ask(&self, to: &Address) -> io::Result<()> {
        let mut connections = self.connections.lock();
        if connections.contains_key(&to.peer()) {
            return Ok(());
        }
        let mut connection = self.make(to)?;
        if *to == self.address {
            let mirror = self.make(to)?.pair;
            connection.pair.connect(to, mirror.number())?;
            mirror.connect(to, connection.pair.number())?;
            (connection.mirror, connection.stage) = (Some(mirror), Stage::Ready);
        } else {
            self.question(&mut connection);
        }
        connections.insert(to.peer(), connection);
        drop(connections);
        self.changed();
        ring(&self.wake);
        Ok(())
    }

    /// Takes a connection out, to be made anew when it is asked for.
    pub fn forget(&self, peer: u32) -> Option<Connection> {
        self.connections.lock().remove(&peer)
    }

    /// Stops answering.
    #[cfg(test)]
    pub fn silence(&self) {
        self.stop.store(true, Ordering::Release);
        ring(&self.wake);
        for connection in self.connections.lock().values() {
            connection.pair.break_off();
        }
    }

    /// Drives the queue pair to `peer` to error, as a device does with one that it finds at fault.
    #[cfg(test)]
    pub fn fail(&self, peer: u32) {
        self.with_connection(peer, |connection| connection.expect("connected").pair.break_off());
    }

    fn make(&self, to: &Address) -> io::Result<Connection> {
        let spec = PairSpec {
            kind: IBV_QPT_RC,
            done: &self.done,
            shared: Some(&self.shared),
            depth: DEPTH,
            pieces: PIECES,
            inline: self.inline,
        };
        let pair = Arc::new(Pair::new(&self.nic, &spec)?.0);
        pair.prepare()?;
        let route = if *to == self.address { None } else { Some(Route::new(&self.nic, to)?) };
        let again = Instant::now();
        Ok(Connection { pair, mirror: None, stage: Stage::Asking, to: *to, route, asked: 0, again })
    }

    fn question(&self, connection: &mut Connection) {
        connection.again = Instant::now() + PATIENCE * (1 << connection.asked);
        connection.asked += 1;
        self.tell(connection, ASK, 0);
    }

    fn tell(&self, connection: &Connection, kind: u32, asked: u32) {
        let Some(route) = &connection.route else { return };
        let datagram =
            Datagram { kind, pair: connection.pair.number(), asked, to: connection.to.nonce, from: self.address };
        self.datagrams.lock().send(route, connection.to.datagrams, &datagram.encode());
    }

    /// Takes a question or an answer.
    fn hear(&self, datagram: &Datagram) -> io::Result<()> {
        let from = &datagram.from;
        let peer = from.peer();
        if datagram.to != self.address.nonce || peer == self.address.peer() {
            return Ok(());
        }
        let mut connections = self.connections.lock();
        // A question that waited while this side began to stop: the thread that stops this side ends the existing connections.
        if self.stop.load(Ordering::Acquire) {
            return Ok(());
        }
        if datagram.kind == ASK {
            // Another queue pair at the same peer: it has given up the connection there was.
            let stale = connections.get(&peer).is_some_and(|connection| {
                let other_pair =
                    || connection.stage != Stage::Asking && peer_of(&connection.pair) != Some(datagram.pair);
                connection.to.nonce != from.nonce || other_pair()
            });
            if stale && let Some(old) = connections.remove(&peer) {
                old.pair.break_off();
            }
            if let Entry::Vacant(place) = connections.entry(peer) {
                place.insert(self.make(from)?);
            }
        }
        let Some(connection) = connections.get_mut(&peer) else { return Ok(()) };
        if connection.to.nonce != from.nonce || (datagram.kind == HERE && datagram.asked != connection.pair.number()) {
            return Ok(());
        }
        let was = connection.stage;
        if was == Stage::Asking {
            connection.pair.connect(from, datagram.pair)?;
            connection.stage = Stage::Ready;
        }
        if datagram.kind == ASK {
            self.tell(connection, HERE, datagram.pair);
        }
        drop(connections);
        if was == Stage::Asking {
            self.changed();
        }
        Ok(())
    }

    /// Asks again where no answer came, and gives up where none will come. Returns when to look next.
    fn ask_again(&self) -> Option<Instant> {
        let mut connections = self.connections.lock();
        let (now, mut next, mut failed) = (Instant::now(), None, false);
        for connection in connections.values_mut().filter(|connection| connection.stage == Stage::Asking) {
            if connection.again <= now {
                if connection.asked >= QUESTIONS {
                    connection.stage = Stage::Failed;
                    failed = true;
                    continue;
                }
                self.question(connection);
            }
            next = Some(next.map_or(connection.again, |next: Instant| next.min(connection.again)));
        }
        drop(connections);
        if failed {
            self.changed();
        }
        next
    }

    /// Takes the asynchronous events of the device.
    fn hear_faults(&self) {
        let mut event = ibv_async_event::default();
        // SAFETY: an open device whose descriptor does not block; each event is acknowledged.
        while unsafe { self.nic.verbs.ibv_get_async_event(self.nic.context, &raw mut event) } == 0 {
            let kind = event.event_type;
            // SAFETY: as above.
            unsafe { self.nic.verbs.ibv_ack_async_event(&raw mut event) };
            self.hear_fault(kind);
        }
    }

    /// Takes one event of the device's.
    pub fn hear_fault(&self, kind: ibv_event_type) {
        match kind {
            IBV_EVENT_DEVICE_FATAL => {
                tracing::error!(nic = %self.nic.offer, "the network device failed or was removed");
                self.number.break_down();
            }
            IBV_EVENT_PORT_ERR => tracing::warn!(nic = %self.nic.offer, "the network port is down"),
            IBV_EVENT_PORT_ACTIVE => tracing::info!(nic = %self.nic.offer, "the network port is up"),
            kind => tracing::debug!(nic = %self.nic.offer, kind, "an event of the network device"),
        }
    }

    fn run(&self) {
        // SAFETY: open as long as the NIC is.
        let faults = unsafe { std::os::fd::BorrowedFd::borrow_raw((*self.nic.context).async_fd) };
        let came = match self.datagrams.lock().events.descriptor().try_clone_to_owned() {
            Ok(fd) => fd,
            Err(error) => return tracing::error!(%error, "nobody answers requests for connections"),
        };
        let mut fds = vec![self.wake.as_fd(), came.as_fd(), faults];
        while !self.stop.load(Ordering::Acquire) {
            let next = self.ask_again();
            let left = next.map(|next| next.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            // An interruption only means to look.
            let _ = rustix::event::poll(&mut polled, left.as_ref());
            let dead = polled.get(2).is_some_and(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::HUP));
            quiet(&self.wake);
            if fds.len() > 2 {
                self.hear_faults();
            }
            if dead {
                // It would be reported for ever.
                fds.truncate(2);
                self.number.break_down();
            }
            let datagrams = self.datagrams.lock().take();
            for datagram in &datagrams {
                if let Err(error) = self.hear(datagram) {
                    let Address { rank, interface, .. } = datagram.from;
                    tracing::error!(%error, rank, interface, "a connection cannot be made");
                }
            }
        }
    }
}

/// The queue pair at the other end.
fn peer_of(pair: &Pair) -> Option<u32> {
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: a live queue pair.
    let failed = unsafe {
        pair.nic.verbs.ibv_query_qp(pair.raw, &raw mut attr, IBV_QP_DEST_QPN as std::ffi::c_int, &raw mut init)
    };
    (failed == 0).then_some(attr.dest_qp_num)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_comes_back_and_other_bytes_are_refused() {
        let from =
            Address { rank: 1, interface: 6, datagrams: 2, nonce: 3, gid: [4; 16], lid: 5, mtu: 1, link_layer: 1 };
        let datagram = Datagram { kind: HERE, pair: 77, asked: 78, to: u64::MAX - 5, from };
        let bytes = datagram.encode();
        assert_eq!(Datagram::decode(&bytes), Some(datagram));
        assert_eq!(Datagram::decode(&bytes[1..]), None);
        for at in [0, 4, FROM] {
            let mut wrong = bytes;
            wrong[at] ^= 0x40;
            assert_eq!(Datagram::decode(&wrong), None);
        }
    }
}
