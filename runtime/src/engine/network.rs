//! [`RemoteAccess`] over any transport, by the contract alone.

mod answers;
mod operations;
mod peer;
mod room;
mod segments;
mod window;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use self::peer::Peer;
use self::window::Handled;
pub(super) use self::window::Load;
use super::dispatch::{Arrival, Taken};
use super::pieces::{Connection, Registration};
use super::remote_access::{Answer, RemoteAccess};
use crate::error::Error;
use crate::memory::layout::{LINE, SlotLayout};
use crate::memory::node::NodeMemory;
use crate::transport::Sent;
use crate::transport::{
    Completion, Confined, Directions, Domain, Events, Interface, InterfaceOptions, MESSAGE_IDS, Protection, Region,
    RemoteKey, Worker,
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
/// Set beside the sender's rank: the message is of a context, and the receiver counts it when it is handled.
const OF_CONTEXT: u64 = 1 << 62;
/// Bytes from which on a payload is kept where the network has it, if it can be; below this a copy is cheaper. Chosen.
const KEPT: usize = 1 << 10;
/// Longest sleep while something may come that the interface does not announce. Chosen: the latency that such an event may add.
const UNANNOUNCED: Duration = Duration::from_millis(1);

/// The state of a rank from which it opens a network.
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
    /// Its number, the same on all ranks.
    number: usize,
    name: &'static str,
    /// How data on this network is protected.
    protection: Protection,
    interface: Rc<D::Interface>,
    peers: RefCell<BTreeMap<usize, Known<D>>>,
    /// Those that were written to, and may have to be flushed: a flush checks no others.
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
    /// Whether this is the rank's own interface, not a context's: its messages take room that the receiver returns by messages to this rank.
    windowed: bool,
    lost: Rc<RefCell<Vec<usize>>>,
    /// Operations whose answer is on its way.
    unanswered: Arc<AtomicUsize>,
    /// Answers to be used again, and their completions.
    spare: RefCell<Vec<(Arc<Answer>, Completion)>>,
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

impl<D: Domain + Send + Sync> Network<D>
where
    Rc<D::Interface>: Confined,
    EndpointOf<D>: Confined,
{
    /// Opens an interface, registers the control area of this rank's slot, and shows both in the slot, as network
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
                Some((word, bytes)) if word & !(COUNTED | OF_CONTEXT) < ranks as u64 && bytes.len() >= 8 => {
                    let room = match word & (COUNTED | OF_CONTEXT) {
                        0 => None,
                        COUNTED => Some(Taken::Window(bytes.len())),
                        _ => Some(Taken::OfContext(bytes.len())),
                    };
                    let from = (word & !(COUNTED | OF_CONTEXT)) as usize;
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
                // SAFETY: committed memory of this rank's slot; by the word given to `RemoteAccess::notify` an atomic of its own.
                let word = unsafe { AtomicU64::from_ptr(own.slot(rank).add(offset).cast()) };
                // Pairs with the Acquire load of the reader of the bell; this thread alone writes it.
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
    /// The same network, with the protection of data that the device reports.
    pub(crate) fn protected(self, protection: Protection) -> Network<D> {
        Network { protection, ..self }
    }

    /// A network that reaches others through `interface`. No memory of this rank is registered or published for `interface`.
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
            protection: Protection::Host,
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
            spare: RefCell::default(),
            layout,
            record: Connection::new(node, layout, rank, number),
            regions: RefCell::default(),
            grown: Rc::default(),
            domain,
            node: Arc::clone(node),
        }
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
fn remote(piece: &Registration<RemoteKey>, offset: usize) -> u64 {
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
