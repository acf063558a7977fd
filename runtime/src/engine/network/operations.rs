//! The operations that the engine needs from a network.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::answers::post_atomic;
use super::{COUNTED, EndpointOf, HEAD, Network, OF_CONTEXT, ROOM, UNANNOUNCED, WAKE, posted, remote, sent};
use crate::engine::dispatch::Arrival;
use crate::engine::operation::Change;
use crate::engine::pieces::Connection;
use crate::engine::remote_access::{Answer, Apart, Fetched, Lent, RemoteAccess};
use crate::memory::layout::LINE;
use crate::transport::{
    AtomicOp, Capabilities, Confined, Domain, Endpoint, Error as NotNow, Events, Flush, Interface, Iov, NOTICES,
    Protection, Region, Result, Sent, Width,
};

impl<D: Domain + Send + Sync> RemoteAccess for Network<D>
where
    Rc<D::Interface>: Confined,
    EndpointOf<D>: Confined,
{
    fn apart(&self) -> Result<Apart> {
        let interface = self.domain.open_private()?;
        let place = (self.rank, &self.node, self.layout);
        let network = Network::over(self.number, self.name, Arc::clone(&self.domain), interface, place);
        let network = network.protected(self.protection);
        // SAFETY:
        // - the interface was opened for it alone, and is confined, as are its endpoints;
        // - what else it holds without a lock is its own: the `Rc`s in the interface's handlers are its own ones;
        // - the domain is `Sync`, and completions hold nothing but an `Arc`.
        Ok(unsafe { Apart::new(Box::new(network)) })
    }

    fn number(&self) -> usize {
        self.number
    }

    fn is_open_at(&self, rank: usize) -> bool {
        !Connection::new(&self.node, self.layout, rank, self.number).address().is_empty()
    }

    fn reaches(&self, rank: usize) -> bool {
        let address = Connection::new(&self.node, self.layout, rank, self.number).address();
        !address.is_empty() && self.interface.is_reachable(&address)
    }

    fn order(&self) -> Result<()> {
        let (peers, written) = (self.peers.borrow(), self.written.borrow());
        let mut unfenced =
            written.iter().map(|rank| &peers[rank].unfenced).filter(|unfenced| unfenced.get()).peekable();
        if unfenced.peek().is_some() {
            self.interface.fence()?;
            unfenced.for_each(|unfenced| unfenced.set(false));
        }
        Ok(())
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
            let done = self.with_piece(peer, offset, |piece| {
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

    fn put_after(&self, rank: usize, offset: usize, bytes: &[u8]) -> Result<usize> {
        self.with(rank, |peer| peer.fence())?;
        self.put(rank, offset, bytes)
    }

    fn put_own(&self, rank: usize, offset: usize, own: usize, len: usize) -> Result<usize> {
        // SAFETY: inside this rank's slot.
        let from = unsafe { self.node.slot(self.rank).add(own) };
        self.with(rank, |peer| {
            let done = self.with_piece(peer, offset, |piece| {
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
            let done = self.with_piece(peer, offset, |piece| {
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
            let done = self.with_piece(peer, offset, |piece| {
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
                let sender = self.rank as u64 | if self.windowed { COUNTED } else { OF_CONTEXT };
                room[..8].copy_from_slice(&sender.to_ne_bytes());
                room[8..HEAD].copy_from_slice(&header.to_ne_bytes());
                room[HEAD..].copy_from_slice(payload);
                len
            }));
            if self.windowed && matches!(outcome, Ok(Some(_))) {
                peer.load.set(peer.load.get().with(8 + payload.len()));
            }
            if !self.windowed && matches!(outcome, Ok(Some(_))) {
                // A flush of a context waits for its messages too: its interface must not close before.
                self.wrote(to, peer);
            }
            outcome.map(sent)
        })
    }

    fn has_room(&self, to: usize, len: usize) -> Result<bool> {
        self.with(to, |peer| {
            let has_room = !self.windowed || peer.load.get().leaves_room(8 + len);
            if !has_room {
                self.ask_for_room(peer);
            }
            Ok(has_room)
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
            self.with_piece(peer, offset, |piece| self.read(peer, piece, offset, len.min(piece.left(offset))))
        })
    }

    unsafe fn get_lent(&self, rank: usize, offset: usize, to: *mut u8, len: usize) -> Result<Option<(Lent, usize)>> {
        self.with(rank, |peer| {
            peer.fence()?;
            self.with_piece(peer, offset, |piece| {
                let len = len.min(piece.left(offset)).min(self.interface.attributes().get.max_bcopy);
                // SAFETY: the caller's.
                let lent = unsafe { self.read_lent(peer, piece, offset, to, len) }?;
                Ok(lent.map(|lent| (lent, len)))
            })
        })
    }

    fn atomic(&self, rank: usize, offset: usize, wanted: Change) -> Result<Option<Arc<Answer>>> {
        self.with(rank, |peer| {
            peer.fence()?;
            self.with_piece(peer, offset, |piece| {
                self.asked(|answer, completion| match wanted.width {
                    Width::Four => post_atomic::<u32, _>(peer, piece, offset, wanted, answer, completion),
                    Width::Eight => post_atomic::<u64, _>(peer, piece, offset, wanted, answer, completion),
                })
            })
        })
    }

    fn atomic_now(&self, rank: usize, offset: usize, wanted: Change) -> Result<Option<Fetched>> {
        self.with(rank, |peer| {
            peer.fence()?;
            self.with_piece(peer, offset, |piece| match wanted.width {
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

    fn cancel(&self, rank: usize) {
        if let Some(peer) = self.peers.borrow().get(&rank) {
            // A connection that has failed has nothing in flight.
            let _ = peer.endpoint.flush(Flush::CANCEL, None);
        }
    }

    fn disconnect(&self, rank: usize) -> bool {
        let mut peers = self.peers.borrow_mut();
        let Some(peer) = peers.get(&rank) else { return true };
        // A dropped endpoint leaves its answers without an end. Messages wait for room at the receiver, which a new endpoint would not know
        // of. A look-up whose answer has come and that no caller goes on with is dropped too.
        let is_idle = !self.windowed && self.is_answered() && matches!(peer.settled(), Ok(true));
        if is_idle {
            self.written.borrow_mut().retain(|other| *other != rank);
            let gone = (self.recent.take(), peers.remove(&rank));
            drop(peers);
            drop(gone);
        }
        is_idle
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

    fn arm(&self, wanted: Events) -> bool {
        let events = self.interface.attributes().events;
        // Of those that are wanted, the ones that it announces.
        let wanted = wanted.without(wanted.without(events));
        // Where nothing can be announced, naps are short.
        !events.has(Events::DESCRIPTOR) || self.interface.arm(wanted) != Err(NotNow::Busy)
    }

    fn announces_room(&self) -> bool {
        // A peer returns room for messages by a message.
        self.interface.announces_room()
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.interface.event_descriptor().ok()
    }

    fn longest_sleep(&self) -> Option<Duration> {
        (self.awaits_unannounced() || self.event().is_none()).then_some(UNANNOUNCED)
    }

    fn most_interfaces(&self) -> usize {
        self.interface.attributes().max_interfaces
    }

    fn largest_message(&self) -> usize {
        self.interface.attributes().am.max_bcopy.saturating_sub(HEAD) + 8
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

    fn protection(&self) -> Protection {
        self.protection
    }
}
