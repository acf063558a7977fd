//! [`Far`] over any transport, by the contract alone.

mod room;
mod segments;
mod window;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use self::window::{Handled, Load};
use super::dispatch::Arrival;
use super::far::{Answer, Apart, Far, Soon};
use super::operation::Change;
use super::pieces::{Connection, Piece, Place, Table};
use super::segments::ADDRESS;
use crate::error::Error;
use crate::memory::layout::{LINE, SlotLayout};
use crate::memory::node::NodeMemory;
use crate::transport::Sent;
use crate::transport::{
    AtomicOp, Capabilities, Completion, Confined, Directions, Domain, Endpoint, Events, Flush, Interface,
    InterfaceOptions, Iov, MESSAGE_IDS, NOTICES, Posted, Region, RemoteKey, Width, Word, Worker,
};
use crate::transport::{Error as NotNow, Result};

/// Sender and header of a message, before its payload.
const HEAD: usize = 16;
/// The message that only wakes.
const WAKE: u8 = MESSAGE_IDS as u8 - 1;
/// The message that returns room (see [`window`]); its header is a [`Load`].
const ROOM: u8 = WAKE - 1;
/// Set beside the sender's rank: the message takes room that the receiver returns.
const COUNTED: u64 = 1 << 63;
/// Bytes from which on a payload is kept where the network has it, if it can be; below this a copy is cheaper. Chosen.
const KEPT: usize = 1 << 10;
/// Longest sleep while something may come that the interface does not announce. Chosen: the latency that such an event may add.
const UNANNOUNCED: Duration = Duration::from_millis(1);

/// What a rank has before it opens a network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// The slots; that of `rank` is committed as `layout` says.
    pub(crate) node: &'a Arc<NodeMemory>,
    pub(crate) layout: SlotLayout,
}

/// One rank's interface, and its endpoints, made on first use.
pub(crate) struct Network<D: Domain> {
    rank: usize,
    /// Its number among this rank's networks.
    number: usize,
    name: &'static str,
    interface: Rc<D::Interface>,
    peers: RefCell<BTreeMap<usize, Known<D>>>,
    /// Those that were written to, and may have to be flushed: a flush looks at no others.
    written: RefCell<Vec<usize>>,
    /// The one that was used last. They stay as long as the network does.
    recent: Cell<Option<(usize, Known<D>)>>,
    /// Which rank an endpoint leads to.
    owners: Rc<RefCell<Vec<usize>>>,
    /// Messages that came, in order. Bounded: their senders have windows.
    arrived: Rc<RefCell<VecDeque<Arrival>>>,
    /// Room that peers returned.
    returned: Rc<RefCell<Vec<(usize, Load)>>>,
    handled: Handled,
    /// Messages of this interface take room that the receiver returns to it.
    windowed: bool,
    lost: Rc<RefCell<Vec<usize>>>,
    /// Operations whose answer is on its way.
    unanswered: Arc<AtomicUsize>,
    layout: SlotLayout,
    record: Connection,
    /// The registered pieces of this rank's slot, which others reach. Given back before the mapping.
    regions: RefCell<Vec<Region>>,
    /// Where the last of them ends.
    grown: Rc<Cell<usize>>,
    domain: Arc<D>,
    node: Arc<NodeMemory>,
}

type EndpointOf<D> = <<D as Domain>::Interface as Interface>::Endpoint;
type Known<D> = Rc<Peer<EndpointOf<D>>>;

struct Peer<E> {
    endpoint: E,
    table: RefCell<Table<RemoteKey>>,
    /// The part of the table that is on its way.
    fetch: RefCell<Option<Arc<Answer>>>,
    /// What is known of its segments.
    segments: RefCell<segments::Known>,
    /// Messages sent there for which no room has come back.
    load: Cell<Load>,
    /// It was asked for room and has not returned any since.
    asked: Cell<bool>,
    /// Something was put there since the last fence.
    unfenced: Cell<bool>,
    /// Something was put there since the last flush.
    unflushed: Cell<bool>,
    /// It is among those that were written to.
    listed: Cell<bool>,
}

impl<E: Endpoint> Peer<E> {
    fn fence(&self) -> Result<()> {
        if self.unfenced.get() {
            self.endpoint.fence()?;
            self.unfenced.set(false);
        }
        Ok(())
    }

    /// Whether all that was put there is in effect.
    fn settled(&self) -> Result<bool> {
        if !self.unflushed.get() {
            return Ok(true);
        }
        match self.endpoint.flush(Flush::REMOTE, None) {
            Ok(Posted::Done) => {
                self.unflushed.set(false);
                Ok(true)
            }
            Ok(Posted::InProgress) | Err(NotNow::NoResource) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl<D: Domain + Send + Sync> Network<D>
where
    Rc<D::Interface>: Confined,
    EndpointOf<D>: Confined,
{
    /// Opens an interface, registers the control area of this rank's slot, and shows both in the slot, as this rank's network
    /// `number`.
    pub(crate) fn open(
        number: usize,
        name: &'static str,
        domain: D,
        Surroundings { rank, ranks, node, layout }: Surroundings<'_>,
    ) -> Result<Network<D>, Error> {
        let failed = |error: NotNow| error.at("opening the network", rank);
        let (place, worker) = ((rank, node, layout), Worker::new());
        let interface = domain.open_interface(&worker, InterfaceOptions::default()).map_err(failed)?;
        let arrived: Rc<RefCell<VecDeque<Arrival>>> = Rc::default();
        let returned: Rc<RefCell<Vec<(usize, Load)>>> = Rc::default();
        let grown: Rc<Cell<usize>> = Rc::default();
        for id in 0..ROOM {
            let arrived = Rc::clone(&arrived);
            let handler = move |message: &crate::transport::Message<'_>| match message.short() {
                Some((from, bytes)) if from & !COUNTED < ranks as u64 && bytes.len() >= 8 => {
                    let room = if from & COUNTED != 0 { Some(bytes.len()) } else { None };
                    let from = (from & !COUNTED) as usize;
                    let kept = if bytes.len() >= KEPT { message.retain().ok() } else { None };
                    let arrival = match kept {
                        Some(kept) => Arrival::kept(from, id, kept, room),
                        None => Arrival::copied(from, id, bytes, room),
                    };
                    arrived.borrow_mut().push_back(arrival);
                }
                _ => tracing::warn!(rank, id, "a message that no rank of this job sends was dropped"),
            };
            interface.set_handler(id, Some(Box::new(handler))).map_err(failed)?;
        }
        interface.set_handler(WAKE, Some(Box::new(|_| {}))).map_err(failed)?;
        let returns = Rc::clone(&returned);
        let returning = move |message: &crate::transport::Message<'_>| match message.short() {
            Some((from, load)) if from < ranks as u64 && load.len() == 8 => {
                let load = Load::from_word(u64::from_ne_bytes(load.try_into().expect("eight bytes")));
                returns.borrow_mut().push((from as usize, load));
            }
            _ => tracing::warn!(rank, "room that no rank of this job returns was dropped"),
        };
        interface.set_handler(ROOM, Some(Box::new(returning))).map_err(failed)?;
        let (own, ends, heap) = (Arc::clone(node), Rc::clone(&grown), layout.heap);
        interface.set_notice_handler(Some(Box::new(move |notice| {
            let offset = heap + notice as usize * LINE;
            if offset + size_of::<u64>() <= ends.get() {
                // SAFETY: committed memory of this rank's slot; by the word given to `Far::notify` an atomic of its own.
                let word = unsafe { AtomicU64::from_ptr(own.slot(rank).add(offset).cast()) };
                // Pairs with the Acquire load of who looks at the bell; this thread alone writes it.
                word.store(word.load(Ordering::Relaxed) + 1, Ordering::Release);
            }
        })));
        let network = Network {
            arrived,
            returned,
            grown,
            windowed: true,
            ..Network::over(number, name, Arc::new(domain), interface, place)
        };
        network.grew(0, layout.control_len).map_err(failed)?;
        network.record.show_address(&network.interface.address()).map_err(failed)?;
        Ok(network)
    }
}

impl<D: Domain> Network<D> {
    /// Reaches others through `interface`. Nothing of this rank's is registered or shown for it.
    fn over(
        number: usize,
        name: &'static str,
        domain: Arc<D>,
        interface: Rc<D::Interface>,
        (rank, node, layout): (usize, &Arc<NodeMemory>, SlotLayout),
    ) -> Network<D> {
        let [lost, owners]: [Rc<RefCell<Vec<usize>>>; 2] = Default::default();
        let (gone, leads_to) = (Rc::clone(&lost), Rc::clone(&owners));
        interface.set_error_handler(Some(Box::new(move |endpoint, _| {
            gone.borrow_mut().extend(leads_to.borrow().get(endpoint as usize));
        })));
        interface.progress_enable(Directions::SEND.and(Directions::RECEIVE));
        Network {
            rank,
            number,
            name,
            interface,
            peers: RefCell::default(),
            written: RefCell::default(),
            recent: Cell::default(),
            owners,
            arrived: Rc::default(),
            returned: Rc::default(),
            handled: Handled::default(),
            windowed: false,
            lost,
            unanswered: Arc::default(),
            layout,
            record: Connection::new(node, layout, rank, number),
            regions: RefCell::default(),
            grown: Rc::default(),
            domain,
            node: Arc::clone(node),
        }
    }

    #[inline(always)]
    fn with<R>(&self, rank: usize, act: impl FnOnce(&Peer<EndpointOf<D>>) -> Result<R>) -> Result<R> {
        let peer = match self.recent.take() {
            Some((recent, peer)) if recent == rank => peer,
            _ => self.peer(rank)?,
        };
        let done = act(&peer);
        self.recent.set(Some((rank, peer)));
        done
    }

    #[inline(never)]
    fn peer(&self, rank: usize) -> Result<Known<D>> {
        let known = self.peers.borrow().get(&rank).cloned();
        if let Some(peer) = known {
            return Ok(peer);
        }
        let peer = Rc::new(self.connect(rank)?);
        self.peers.borrow_mut().insert(rank, Rc::clone(&peer));
        Ok(peer)
    }

    #[cold]
    fn connect(&self, rank: usize) -> Result<Peer<EndpointOf<D>>> {
        let record = Connection::new(&self.node, self.layout, rank, self.number);
        let (address, first) = (record.address(), record.first().ok_or(NotNow::NotConnected)?);
        let endpoint = self.interface.connect(&address)?;
        let mut table = Table::new(self.layout.pieces(self.number), self.interface.attributes().get.max_bcopy);
        table.add(&first, |key| self.unpack(key))?;
        let mut owners = self.owners.borrow_mut();
        let index = endpoint.index() as usize;
        if owners.len() <= index {
            owners.resize(index + 1, usize::MAX);
        }
        owners[index] = rank;
        let (table, fetch) = (RefCell::new(table), RefCell::default());
        let [asked, unfenced, unflushed, listed] = [false; 4].map(Cell::new);
        let segments = RefCell::default();
        let load = Cell::default();
        Ok(Peer { endpoint, table, fetch, segments, load, asked, unfenced, unflushed, listed })
    }

    fn unpack(&self, key: &[u8]) -> Result<RemoteKey> {
        // SAFETY: packed by `grew` at the peer, whose slot stays registered as long as it is in the job.
        unsafe { self.domain.unpack_key(key) }
    }

    /// Hands the piece that `offset` of the peer's slot lies in to `act`, or the segment in which address `offset - ADDRESS`
    /// lies. `None`, while the peer's table is fetched, or
    /// from `act`, is back-pressure.
    #[inline(always)]
    fn reach<R>(
        &self,
        peer: &Peer<EndpointOf<D>>,
        offset: usize,
        act: impl FnOnce(&Piece<RemoteKey>) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        if offset >= ADDRESS {
            return act(peer.segments.borrow_mut().find(offset).ok_or(NotNow::Rejected)?);
        }
        let mut table = peer.table.borrow_mut();
        if (peer.fetch.borrow().is_some() || !table.is_recent(offset)) && !self.find(peer, &mut table, offset)? {
            return Ok(None);
        }
        act(table.recent())
    }

    /// Makes the piece that `offset` lies in the recent one; `false` while the peer's table is fetched.
    #[inline(never)]
    fn find(&self, peer: &Peer<EndpointOf<D>>, table: &mut Table<RemoteKey>, offset: usize) -> Result<bool> {
        loop {
            let fetched = peer.fetch.borrow().as_ref().and_then(|answer| Some((answer.outcome()?, Arc::clone(answer))));
            if let Some((outcome, answer)) = fetched {
                *peer.fetch.borrow_mut() = None;
                if let Err(error) = outcome {
                    table.fail();
                    return Err(error);
                }
                let bytes = answer.bytes().expect("data comes before its completion");
                table.answer(bytes, |key| self.unpack(key))?;
            }
            let (from, len) = match table.find(offset) {
                Place::In(_) => return Ok(true),
                Place::Nowhere => return Err(NotNow::OutOfRange),
                Place::Wait => return Ok(false),
                Place::Ask { offset, len } => (offset, len),
            };
            // The table lies in the first piece, which is known from the start.
            let Place::In(control) = table.find(self.layout.connections) else { return Err(NotNow::OutOfRange) };
            let Some(answer) = self.read(peer, control, from, len)? else { return Ok(false) };
            table.ask();
            *peer.fetch.borrow_mut() = Some(answer);
        }
    }

    /// Asks for `len` bytes at `offset`, all in `piece`.
    fn read(
        &self,
        peer: &Peer<EndpointOf<D>>,
        piece: &Piece<RemoteKey>,
        offset: usize,
        len: usize,
    ) -> Result<Option<Arc<Answer>>> {
        self.asked(|answer, completion| {
            let into = Arc::clone(answer);
            let unpack = move |bytes: &[u8]| into.fill(bytes);
            peer.endpoint.get_bcopy(len, unpack, remote(piece, offset), &piece.key, Some(completion))
        })
    }

    /// An answer, and the completion that ends in it.
    fn answer(&self) -> (Arc<Answer>, Completion) {
        let answer = Arc::new(Answer::default());
        let (shared, unanswered) = (Arc::clone(&answer), Arc::clone(&self.unanswered));
        let completion = Completion::new(1, move |outcome| {
            unanswered.fetch_sub(1, Ordering::Relaxed);
            shared.finish(outcome);
        });
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        (answer, completion)
    }

    /// Posts what completes in an answer; `None` is back-pressure.
    fn asked(&self, post: impl FnOnce(&Arc<Answer>, &Completion) -> Result<Posted>) -> Result<Option<Arc<Answer>>> {
        let (answer, completion) = self.answer();
        let outcome = post(&answer, &completion);
        if outcome != Ok(Posted::InProgress) {
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
        }
        match outcome {
            Ok(Posted::InProgress) => Ok(Some(answer)),
            Ok(Posted::Done) => {
                answer.finish(Ok(()));
                Ok(Some(answer))
            }
            Err(NotNow::NoResource) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Does an atomic, and looks for its end a moment.
    #[inline(always)]
    fn now<T: Word>(
        &self,
        peer: &Peer<EndpointOf<D>>,
        piece: &Piece<RemoteKey>,
        offset: usize,
        wanted: Change,
    ) -> Result<Option<Soon>> {
        let mut late: Option<Arc<Answer>> = None;
        let later = || {
            let (answer, completion) = self.answer();
            // The low half of the word, on machines as little-endian as ours.
            let word = answer.word.as_ptr().cast::<T>();
            late = Some(answer);
            (word, completion)
        };
        let (value, compare) = (T::narrow(wanted.value), T::narrow(wanted.compare));
        // SAFETY: the completion holds the answer, and the network holds that as long as it may write the result.
        let outcome =
            unsafe { peer.endpoint.atomic_now(wanted.op, value, compare, remote(piece, offset), &piece.key, later) };
        if let (Ok(None), Some(answer)) = (outcome, &late) {
            return Ok(Some(Soon::Later(Arc::clone(answer))));
        }
        if late.is_some() {
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
        }
        posted(outcome).map(|found| found.flatten().map(|word| Soon::Now(word.widen())))
    }

    /// Whether something may come that the interface does not announce: the end of an operation of ours.
    fn awaits_unannounced(&self) -> bool {
        let events = self.interface.attributes().events;
        let settled = || {
            let peers = self.peers.borrow();
            self.written.borrow().iter().all(|rank| !matches!(peers[rank].settled(), Ok(false)))
        };
        !events.has(Events::SEND_COMPLETION) && (self.unanswered.load(Ordering::Relaxed) > 0 || !settled())
    }

    /// Notes that something was put at `rank`.
    fn wrote(&self, rank: usize, peer: &Peer<EndpointOf<D>>) {
        peer.unfenced.set(true);
        peer.unflushed.set(true);
        if !peer.listed.replace(true) {
            self.written.borrow_mut().push(rank);
        }
    }
}

/// Address of `offset`, which is in the piece, as its owner's network has it.
fn remote(piece: &Piece<RemoteKey>, offset: usize) -> u64 {
    piece.key.address() + piece.within(offset)
}

/// Back-pressure as a value.
fn posted<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(NotNow::NoResource) => Ok(None),
        Err(error) => Err(error),
    }
}

fn sent<T>(outcome: Option<T>) -> Sent {
    if outcome.is_some() { Sent::Done } else { Sent::NoRoom }
}

impl<D: Domain + Send + Sync> Far for Network<D>
where
    Rc<D::Interface>: Confined,
    EndpointOf<D>: Confined,
{
    fn apart(&self) -> Result<Apart> {
        let interface = self.domain.open_private()?;
        let place = (self.rank, &self.node, self.layout);
        let network = Network::over(self.number, self.name, Arc::clone(&self.domain), interface, place);
        // SAFETY:
        // - the interface was opened for it alone, and is confined, as are its endpoints;
        // - what else it holds without a lock is its own: the `Rc`s in the interface's handlers are its own ones;
        // - the domain is `Sync`, and completions hold nothing but an `Arc`.
        Ok(unsafe { Apart::new(Box::new(network)) })
    }

    fn reaches(&self, rank: usize) -> bool {
        let address = Connection::new(&self.node, self.layout, rank, self.number).address();
        !address.is_empty() && self.interface.is_reachable(&address)
    }

    fn order(&self) -> Result<()> {
        let peers = self.peers.borrow();
        self.written.borrow().iter().try_for_each(|rank| peers[rank].fence())
    }

    fn progress(&self) -> (usize, bool) {
        let done = self.interface.progress();
        self.take_room();
        self.handled.give_back(|from, load| self.return_room(from, load));
        (done, !self.arrived.borrow().is_empty() || !self.lost.borrow().is_empty())
    }

    fn arrival(&self) -> Option<Arrival> {
        self.arrived.borrow_mut().pop_front()
    }

    fn take_lost(&self) -> Vec<usize> {
        self.lost.take()
    }

    fn put(&self, rank: usize, offset: usize, bytes: &[u8]) -> Result<usize> {
        self.with(rank, |peer| {
            let done = self.reach(peer, offset, |piece| {
                let bytes = &bytes[..bytes.len().min(piece.left(offset))];
                let pack = |room: &mut [u8]| {
                    match (<&mut [u8; 8]>::try_from(&mut *room), bytes.try_into()) {
                        // A word takes no call.
                        (Ok(room), Ok(word)) => *room = word,
                        _ => room.copy_from_slice(bytes),
                    }
                    bytes.len()
                };
                posted(peer.endpoint.put_bcopy(bytes.len(), pack, remote(piece, offset), &piece.key))
            })?;
            if done.is_some() {
                self.wrote(rank, peer);
            }
            Ok(done.unwrap_or(0))
        })
    }

    fn put_own(&self, rank: usize, offset: usize, own: usize, len: usize) -> Result<usize> {
        // SAFETY: inside this rank's slot.
        let from = unsafe { self.node.slot(self.rank).add(own) };
        self.with(rank, |peer| {
            let done = self.reach(peer, offset, |piece| {
                let regions = self.regions.borrow();
                let left =
                    |region: &Region| region.len().checked_sub(from.addr().checked_sub(region.address().addr())?);
                let (region, left) = regions
                    .iter()
                    .find_map(|region| Some((region, left(region).filter(|left| *left > 0)?)))
                    .ok_or(NotNow::OutOfRange)?;
                let most = self.interface.attributes().put.max_zcopy;
                let length = len.min(left).min(piece.left(offset)).min(most);
                let iov = Iov { pointer: from, length, stride: length, count: 1, region: Some(region) };
                // SAFETY: mapped and registered as long as the network is; what changes meanwhile arrives as it then is.
                let put = unsafe { peer.endpoint.put_zcopy(&[iov], remote(piece, offset), &piece.key, None) };
                posted(put.map(|_| length))
            })?;
            if done.is_some() {
                self.wrote(rank, peer);
            }
            Ok(done.unwrap_or(0))
        })
    }

    fn ring(&self, rank: usize, offset: usize) -> Result<Sent> {
        self.with(rank, |peer| {
            peer.fence()?;
            let done = self.reach(peer, offset, |piece| {
                posted(peer.endpoint.atomic_post(AtomicOp::Add, 1u64, remote(piece, offset), &piece.key))
            })?;
            if done.is_some() {
                self.wrote(rank, peer);
            }
            Ok(sent(done))
        })
    }

    fn notify(&self, rank: usize, offset: usize, bytes: &[u8], bell: usize) -> Result<Sent> {
        let notice = (bell - self.layout.heap) / LINE;
        let largest = self.interface.attributes().max_notified;
        if largest.is_none_or(|largest| bytes.len() > largest) || notice >= NOTICES as usize {
            return Ok(Sent::NoRoom);
        }
        self.with(rank, |peer| {
            peer.fence()?;
            let done = self.reach(peer, offset, |piece| {
                if piece.left(offset) < bytes.len() {
                    return Ok(None);
                }
                posted(peer.endpoint.put_notify(bytes, remote(piece, offset), &piece.key, notice as u32))
            })?;
            if done.is_some() {
                self.wrote(rank, peer);
            }
            Ok(sent(done))
        })
    }

    fn notifies(&self) -> bool {
        self.interface.attributes().max_notified.is_some()
    }

    fn send(&self, to: usize, id: u8, ordered: bool, header: u64, payload: &[u8]) -> Result<Sent> {
        debug_assert!(id < ROOM, "the last two ids are the network's own");
        self.with(to, |peer| {
            if self.windowed && !peer.load.get().leaves_room(8 + payload.len()) {
                self.ask_for_room(peer);
                return Ok(Sent::NoRoom);
            }
            if ordered {
                peer.unfenced.set(true);
            }
            peer.fence()?;
            let len = HEAD + payload.len();
            let outcome = posted(peer.endpoint.am_bcopy(id, len, |room| {
                let sender = self.rank as u64 | if self.windowed { COUNTED } else { 0 };
                room[..8].copy_from_slice(&sender.to_ne_bytes());
                room[8..HEAD].copy_from_slice(&header.to_ne_bytes());
                room[HEAD..].copy_from_slice(payload);
                len
            }));
            if self.windowed && matches!(outcome, Ok(Some(_))) {
                peer.load.set(peer.load.get().with(8 + payload.len()));
            }
            outcome.map(sent)
        })
    }

    fn handled(&self, from: usize, len: usize) {
        if self.handled.note(from, len) {
            self.handled.give_back(|from, load| self.return_room(from, load));
        }
    }

    fn get(&self, rank: usize, offset: usize, len: usize) -> Result<Option<Arc<Answer>>> {
        self.with(rank, |peer| {
            peer.fence()?;
            self.reach(peer, offset, |piece| self.read(peer, piece, offset, len.min(piece.left(offset))))
        })
    }

    fn atomic(&self, rank: usize, offset: usize, wanted: Change) -> Result<Option<Arc<Answer>>> {
        self.with(rank, |peer| {
            peer.fence()?;
            self.reach(peer, offset, |piece| {
                self.asked(|answer, completion| match wanted.width {
                    Width::Four => post_atomic::<u32, _>(peer, piece, offset, wanted, answer, completion),
                    Width::Eight => post_atomic::<u64, _>(peer, piece, offset, wanted, answer, completion),
                })
            })
        })
    }

    fn atomic_now(&self, rank: usize, offset: usize, wanted: Change) -> Result<Option<Soon>> {
        self.with(rank, |peer| {
            peer.fence()?;
            self.reach(peer, offset, |piece| match wanted.width {
                Width::Four => self.now::<u32>(peer, piece, offset, wanted),
                Width::Eight => self.now::<u64>(peer, piece, offset, wanted),
            })
        })
    }

    fn is_answered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) == 0
    }

    fn flush_connection(&self, rank: usize, effect: bool) -> Result<Option<Arc<Answer>>> {
        let flags = if effect { Flush::REMOTE } else { Flush::LOCAL };
        self.with(rank, |peer| self.asked(|_, completion| peer.endpoint.flush(flags, Some(completion))))
    }

    fn flush(&self) -> std::result::Result<bool, (usize, NotNow)> {
        let peers = self.peers.borrow();
        let mut failed = None;
        let mut written = self.written.borrow_mut();
        written.retain(|rank| {
            let peer = &peers[rank];
            let unsettled = match peer.settled() {
                _ if failed.is_some() => true,
                Ok(settled) => !settled,
                Err(error) => {
                    // Told once: it will not get better.
                    peer.unflushed.set(false);
                    failed = Some((*rank, error));
                    false
                }
            };
            peer.listed.set(unsettled);
            unsettled
        });
        failed.map_or(Ok(written.is_empty()), Err)
    }

    fn grew(&self, from: usize, to: usize) -> Result<()> {
        // SAFETY: inside this rank's slot.
        let start = unsafe { self.node.slot(self.rank).add(from) };
        // SAFETY: the slot is mapped as long as the region lives: both are in the network. It is only touched through
        // atomics and the runtime's copies.
        let region = unsafe { self.domain.register(start, to - from) }?;
        self.record.add(from, to, self.domain.pack_key(&region))?;
        self.regions.borrow_mut().push(region);
        self.grown.set(self.grown.get().max(to));
        Ok(())
    }

    fn learns(&self, rank: usize) -> bool {
        self.peers.borrow().get(&rank).is_some_and(|peer| peer.fetch.borrow().is_some())
    }

    fn is_silent(&self) -> bool {
        !self.interface.attributes().emulated.has(Capabilities::PUT_BCOPY)
    }

    fn settled(&self, rank: usize) -> Result<bool> {
        // Nothing was put where there is no connection: it is not made for that.
        let recent = self.recent.take();
        let known = match &recent {
            Some((recent, peer)) if *recent == rank => Some(Rc::clone(peer)),
            _ => self.peers.borrow().get(&rank).cloned(),
        };
        self.recent.set(recent);
        known.map_or(Ok(true), |peer| peer.settled())
    }

    fn wake(&self, rank: usize) -> Result<Sent> {
        self.with(rank, |peer| {
            peer.fence()?;
            let head = |room: &mut [u8]| {
                room.copy_from_slice(&(self.rank as u64).to_ne_bytes());
                room.len()
            };
            posted(peer.endpoint.am_bcopy(WAKE, size_of::<u64>(), head)).map(sent)
        })
    }

    fn arm(&self) -> bool {
        let events = self.interface.attributes().events;
        let wanted = events.without(Events::DESCRIPTOR.and(Events::ASYNC_CALLBACK).and(Events::RECEIVE_SIGNALED));
        // Where nothing can be announced, naps are short.
        !events.has(Events::DESCRIPTOR) || self.interface.arm(wanted) != Err(NotNow::Busy)
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.interface.event_descriptor().ok()
    }

    fn longest_sleep(&self) -> Option<Duration> {
        (self.awaits_unannounced() || self.event().is_none()).then_some(UNANNOUNCED)
    }

    fn largest_message(&self) -> usize {
        self.interface.attributes().am.max_bcopy - HEAD + 8
    }

    fn largest_put(&self) -> usize {
        self.interface.attributes().put.max_bcopy
    }

    fn largest_get(&self) -> usize {
        self.interface.attributes().get.max_bcopy
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

fn post_atomic<T: Word, E: Endpoint>(
    peer: &Peer<E>,
    piece: &Piece<RemoteKey>,
    offset: usize,
    wanted: Change,
    answer: &Answer,
    completion: &Completion,
) -> Result<Posted> {
    // The low half of the word, on machines as little-endian as ours.
    let result = answer.word.as_ptr().cast::<T>();
    let value = T::narrow(wanted.value);
    let (endpoint, key, remote) = (&peer.endpoint, &piece.key, remote(piece, offset));
    // SAFETY: the completion holds the answer, and the network holds that as long as it may write the result.
    unsafe {
        match wanted.op {
            AtomicOp::CompareSwap => {
                let compare = T::narrow(wanted.compare);
                endpoint.atomic_compare_swap(compare, value, result, remote, key, Some(completion))
            }
            op => endpoint.atomic_fetch(op, value, result, remote, key, Some(completion)),
        }
    }
}
