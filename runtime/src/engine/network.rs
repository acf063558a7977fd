//! [`Far`] over any transport, by the contract alone.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use super::far::{Answer, Asked, Far, Pace};
use crate::error::Error;
use crate::memory::node::NodeMemory;
use crate::transport::shm::Sent;
use crate::transport::{
    AtomicOp, Completion, Directions, Domain, Endpoint, Flush, Interface, InterfaceOptions, MESSAGE_IDS, Posted,
    Region, RemoteKey, Width, Word, Worker,
};
use crate::transport::{Error as NotNow, Result};

/// Sender and header of a message, before its payload.
const HEAD: usize = 16;

/// Everyone's address and key, kept once for the ranks of a node.
#[derive(Debug)]
pub(crate) struct Directory(Vec<OnceLock<Entry>>);

#[derive(Debug)]
struct Entry {
    address: Vec<u8>,
    key: Vec<u8>,
}

impl Directory {
    pub(crate) fn new(ranks: usize) -> Directory {
        Directory((0..ranks).map(|_| OnceLock::new()).collect())
    }
}

type Message = (usize, u8, Vec<u8>);

/// One rank's interface, and its endpoints, made on first use.
pub(crate) struct Network<D: Domain> {
    rank: usize,
    name: &'static str,
    interface: Rc<D::Interface>,
    peers: RefCell<BTreeMap<usize, Peer<EndpointOf<D>>>>,
    /// Which rank an endpoint leads to.
    owners: Rc<RefCell<Vec<usize>>>,
    arrived: Rc<RefCell<VecDeque<Message>>>,
    lost: Rc<RefCell<Vec<usize>>>,
    directory: Arc<Directory>,
    pace: Box<dyn Pace>,
    /// This rank's slot, for the others.
    #[expect(dead_code, reason = "holds the registration")]
    region: Region,
    domain: D,
    #[expect(dead_code, reason = "holds the mapping that is registered")]
    node: Arc<NodeMemory>,
}

type EndpointOf<D> = <<D as Domain>::Interface as Interface>::Endpoint;

struct Peer<E> {
    endpoint: E,
    key: RemoteKey,
    /// Something was put there since the last fence.
    unfenced: Cell<bool>,
    /// Something was put there since the last flush.
    unflushed: Cell<bool>,
}

impl<E: Endpoint> Peer<E> {
    fn fence(&self) -> Result<()> {
        if self.unfenced.get() {
            self.endpoint.fence()?;
            self.unfenced.set(false);
        }
        Ok(())
    }

    fn wrote(&self) {
        self.unfenced.set(true);
        self.unflushed.set(true);
    }
}

impl<D: Domain> Network<D> {
    /// Registers the slot of `rank` with `domain`, opens an interface and enters both in the directory.
    pub(crate) fn open(
        rank: usize,
        name: &'static str,
        domain: D,
        node: &Arc<NodeMemory>,
        directory: &Arc<Directory>,
        pace: Box<dyn Pace>,
    ) -> Result<Network<D>, Error> {
        let failed = |error: NotNow| error.at("opening the network", rank);
        // SAFETY: the slot is mapped as long as the region lives: both are in the network. It is only touched through
        // atomics and the runtime's copies.
        let region = unsafe { domain.register(node.slot(rank), 1 << node.stride_log2()) }.map_err(failed)?;
        let worker = Worker::new();
        let interface = domain.open_interface(&worker, InterfaceOptions::default()).map_err(failed)?;
        let ranks = directory.0.len();
        let (arrived, lost, owners) = (Rc::default(), Rc::default(), Rc::default());
        for id in 0..MESSAGE_IDS as u8 {
            let arrived: Rc<RefCell<VecDeque<Message>>> = Rc::clone(&arrived);
            let handler = move |message: &crate::transport::Message<'_>| match message.short() {
                Some((from, bytes)) if from < ranks as u64 && bytes.len() >= 8 => {
                    arrived.borrow_mut().push_back((from as usize, id, bytes.to_vec()));
                }
                _ => tracing::warn!(rank, id, "a message that no rank of this job sends was dropped"),
            };
            interface.set_handler(id, Some(Box::new(handler))).map_err(failed)?;
        }
        let gone: Rc<RefCell<Vec<usize>>> = Rc::clone(&lost);
        let leads_to: Rc<RefCell<Vec<usize>>> = Rc::clone(&owners);
        interface.set_error_handler(Some(Box::new(move |endpoint, _| {
            gone.borrow_mut().extend(leads_to.borrow().get(endpoint as usize));
        })));
        interface.progress_enable(Directions::SEND.and(Directions::RECEIVE));
        let entry = Entry { address: interface.address(), key: domain.pack_key(&region).into() };
        directory.0[rank].set(entry).expect("a rank enters once");
        let directory = Arc::clone(directory);
        let (peers, node) = (RefCell::default(), Arc::clone(node));
        Ok(Network { rank, name, interface, peers, owners, arrived, lost, directory, pace, region, domain, node })
    }

    fn with<R>(&self, rank: usize, act: impl FnOnce(&Peer<EndpointOf<D>>) -> Result<R>) -> Result<R> {
        if !self.peers.borrow().contains_key(&rank) {
            let peer = self.connect(rank)?;
            self.peers.borrow_mut().insert(rank, peer);
        }
        act(&self.peers.borrow()[&rank])
    }

    fn connect(&self, rank: usize) -> Result<Peer<EndpointOf<D>>> {
        let entry = self.directory.0[rank].get().ok_or(NotNow::NotConnected)?;
        let endpoint = self.interface.connect(&entry.address)?;
        // SAFETY: packed by `open` at that rank; a slot stays registered as long as its rank is in the job.
        let key = unsafe { self.domain.unpack_key(&entry.key) }?;
        let mut owners = self.owners.borrow_mut();
        let index = endpoint.index() as usize;
        if owners.len() <= index {
            owners.resize(index + 1, usize::MAX);
        }
        owners[index] = rank;
        Ok(Peer { endpoint, key, unfenced: Cell::new(false), unflushed: Cell::new(false) })
    }
}

/// Back-pressure as a value.
fn sent<T>(outcome: Result<T>) -> Result<Sent> {
    match outcome {
        Ok(_) => Ok(Sent::Done),
        Err(NotNow::NoResource) => Ok(Sent::NoRoom),
        Err(error) => Err(error),
    }
}

/// Posts what completes in an answer; `None` is back-pressure.
fn asked(post: impl FnOnce(&Arc<Answer>, &Completion) -> Result<Posted>) -> Result<Option<Arc<Answer>>> {
    let answer = Arc::new(Answer::default());
    let shared = Arc::clone(&answer);
    let completion = Completion::new(1, move |outcome| shared.finish(outcome));
    match post(&answer, &completion) {
        Ok(Posted::InProgress) => Ok(Some(answer)),
        Ok(Posted::Done) => {
            answer.finish(Ok(()));
            Ok(Some(answer))
        }
        Err(NotNow::NoResource) => Ok(None),
        Err(error) => Err(error),
    }
}

impl<D: Domain> Far for Network<D> {
    fn progress(&self) -> usize {
        self.interface.progress()
    }

    fn arrival(&self) -> Option<Message> {
        self.arrived.borrow_mut().pop_front()
    }

    fn take_lost(&self) -> Vec<usize> {
        self.lost.take()
    }

    fn put(&self, rank: usize, offset: usize, bytes: &[u8]) -> Result<Sent> {
        self.with(rank, |peer| {
            let remote = peer.key.address + offset as u64;
            let pack = |room: &mut [u8]| {
                room.copy_from_slice(bytes);
                bytes.len()
            };
            let outcome = sent(peer.endpoint.put_bcopy(bytes.len(), pack, remote, &peer.key))?;
            if outcome == Sent::Done {
                peer.wrote();
            }
            Ok(outcome)
        })
    }

    fn ring(&self, rank: usize, offset: usize) -> Result<Sent> {
        self.with(rank, |peer| {
            peer.fence()?;
            let remote = peer.key.address + offset as u64;
            let outcome = sent(peer.endpoint.atomic_post(AtomicOp::Add, 1u64, remote, &peer.key))?;
            if outcome == Sent::Done {
                peer.wrote();
            }
            Ok(outcome)
        })
    }

    fn send(&self, to: usize, id: u8, ordered: bool, header: u64, payload: &[u8]) -> Result<Sent> {
        self.with(to, |peer| {
            if ordered {
                peer.unfenced.set(true);
            }
            peer.fence()?;
            let len = HEAD + payload.len();
            let outcome = sent(peer.endpoint.am_bcopy(id, len, |room| {
                room[..8].copy_from_slice(&(self.rank as u64).to_ne_bytes());
                room[8..HEAD].copy_from_slice(&header.to_ne_bytes());
                room[HEAD..].copy_from_slice(payload);
                len
            }))?;
            Ok(outcome)
        })
    }

    fn get(&self, rank: usize, offset: usize, len: usize) -> Result<Option<Arc<Answer>>> {
        self.with(rank, |peer| {
            peer.fence()?;
            let remote = peer.key.address + offset as u64;
            asked(|answer, completion| {
                let into = Arc::clone(answer);
                let unpack = move |bytes: &[u8]| into.fill(bytes);
                peer.endpoint.get_bcopy(len, unpack, remote, &peer.key, Some(completion))
            })
        })
    }

    fn atomic(&self, rank: usize, offset: usize, wanted: Asked) -> Result<Option<Arc<Answer>>> {
        self.with(rank, |peer| {
            peer.fence()?;
            match wanted.width {
                Width::Four => post_atomic::<u32, _>(peer, offset, wanted),
                Width::Eight => post_atomic::<u64, _>(peer, offset, wanted),
            }
        })
    }

    fn flush(&self) -> std::result::Result<bool, (usize, NotNow)> {
        let mut all = true;
        for (rank, peer) in self.peers.borrow().iter().filter(|(_, peer)| peer.unflushed.get()) {
            match peer.endpoint.flush(Flush::REMOTE, None) {
                Ok(Posted::Done) => peer.unflushed.set(false),
                Ok(Posted::InProgress) | Err(NotNow::NoResource) => all = false,
                Err(error) => {
                    // Told once: it will not get better.
                    peer.unflushed.set(false);
                    return Err((*rank, error));
                }
            }
        }
        Ok(all)
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

    fn pace(&self) -> &dyn Pace {
        &*self.pace
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

fn post_atomic<T: Word, E: Endpoint>(peer: &Peer<E>, offset: usize, wanted: Asked) -> Result<Option<Arc<Answer>>> {
    let remote = peer.key.address + offset as u64;
    asked(|answer, completion| {
        // The low half of the word, on machines as little-endian as ours.
        let result = answer.word.as_ptr().cast::<T>();
        let value = T::narrow(wanted.value);
        let (endpoint, key) = (&peer.endpoint, &peer.key);
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
    })
}
