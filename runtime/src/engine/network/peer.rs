//! The peers of a network: their endpoints, made on first use, and how their memory is found.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::segments;
use super::window::Load;
use super::{EndpointOf, Known, Network};
use crate::engine::pieces::{Connection, KeyTable, Registration, Search};
use crate::engine::remote_access::Answer;
use crate::engine::segments::ADDRESS;
use crate::transport::{Domain, Endpoint, Error as NotNow, Flush, Interface, Posted, RemoteKey, Result};

/// The state of a rank for one peer of a network.
pub(super) struct Peer<E> {
    pub(super) endpoint: E,
    pub(super) table: RefCell<KeyTable<RemoteKey>>,
    /// The part of the table that is on its way.
    pub(super) fetch: RefCell<Option<Arc<Answer>>>,
    /// The peer's segments that are known here.
    pub(super) segments: RefCell<segments::Known>,
    /// Messages sent there for which no room has come back.
    pub(super) load: Cell<Load>,
    /// It was asked for room and has not returned any since.
    pub(super) asked: Cell<bool>,
    /// Something was put there since the last fence.
    pub(super) unfenced: Cell<bool>,
    /// Something was put there since the last flush.
    pub(super) unflushed: Cell<bool>,
    /// It is among those that were written to.
    pub(super) listed: Cell<bool>,
}

impl<E: Endpoint> Peer<E> {
    pub(super) fn fence(&self) -> Result<()> {
        if self.unfenced.get() {
            self.endpoint.fence()?;
            self.unfenced.set(false);
        }
        Ok(())
    }

    /// Whether all that was put there is in effect.
    pub(super) fn settled(&self) -> Result<bool> {
        if !self.unflushed.get() {
            return Ok(true);
        }
        match self.endpoint.flush(Flush::REMOTE, None) {
            Ok(Posted::Done) => {
                self.unflushed.set(false);
                Ok(true)
            }
            Ok(Posted::InProgress) | Err(NotNow::NoResource) => Ok(false),
            Err(_) if self.endpoint.had_arrived() => {
                self.unflushed.set(false);
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

impl<D: Domain> Network<D> {
    #[inline(always)]
    pub(super) fn with<R>(&self, rank: usize, act: impl FnOnce(&Peer<EndpointOf<D>>) -> Result<R>) -> Result<R> {
        let peer = match self.recent.take() {
            Some((recent, peer)) if recent == rank => peer,
            _ => self.peer(rank)?,
        };
        let done = act(&peer);
        self.recent.set(Some((rank, peer)));
        done
    }

    #[inline(never)]
    pub(super) fn peer(&self, rank: usize) -> Result<Known<D>> {
        let known = self.peers.borrow().get(&rank).cloned();
        if let Some(peer) = known {
            return Ok(peer);
        }
        let peer = Rc::new(self.connect(rank)?);
        self.peers.borrow_mut().insert(rank, Rc::clone(&peer));
        Ok(peer)
    }

    #[cold]
    pub(super) fn connect(&self, rank: usize) -> Result<Peer<EndpointOf<D>>> {
        let record = Connection::new(&self.node, self.layout, rank, self.number);
        let (address, first) = (record.address(), record.first().ok_or(NotNow::NotConnected)?);
        let endpoint = self.interface.connect(&address)?;
        let mut table = KeyTable::new(self.layout.pieces(self.number), self.interface.attributes().get.max_bcopy);
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

    pub(super) fn unpack(&self, key: &[u8]) -> Result<RemoteKey> {
        // SAFETY: packed by `grew` at the peer, whose slot stays registered as long as it is in the job.
        unsafe { self.domain.unpack_key(key) }
    }

    /// Hands the piece that `offset` of the peer's slot lies in to `act`, or the segment in which address `offset - ADDRESS`
    /// lies. `None`, while the peer's table is fetched, or
    /// from `act`, is back-pressure.
    #[inline(always)]
    pub(super) fn with_piece<R>(
        &self,
        peer: &Peer<EndpointOf<D>>,
        offset: usize,
        act: impl FnOnce(&Registration<RemoteKey>) -> Result<Option<R>>,
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
    pub(super) fn find(
        &self,
        peer: &Peer<EndpointOf<D>>,
        table: &mut KeyTable<RemoteKey>,
        offset: usize,
    ) -> Result<bool> {
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
                Search::In(_) => return Ok(true),
                Search::Nowhere => return Err(NotNow::OutOfRange),
                Search::Wait => return Ok(false),
                Search::Ask { offset, len } => (offset, len),
            };
            // The table lies in the first piece, which is known from the start.
            let Search::In(control) = table.find(self.layout.connections) else { return Err(NotNow::OutOfRange) };
            let Some(answer) = self.read(peer, control, from, len)? else { return Ok(false) };
            table.ask();
            *peer.fetch.borrow_mut() = Some(answer);
        }
    }
}
