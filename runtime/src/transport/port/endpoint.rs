//! An endpoint over a wire: messages, flush, fence and pending requests. Puts, gets and atomics are in `memory.rs`.

use std::rc::Rc;
use std::sync::Arc;

use super::flight::Sink;
use super::interface::{FlushWait, Interface, Slot, UNCONNECTED};
use crate::transport::attributes::{Capabilities as Can, Flush};
use crate::transport::error::{Error, Posted, Result};
use crate::transport::iov::{self, Iov, Piece, Pieces};
use crate::transport::pending::{Refused, Request};
use crate::transport::wire::{Channel, Straight, Wire};
use crate::transport::{AtomicOp, Completion, Confined, GetSink, MESSAGE_IDS, RemoteKey, Word};

/// An endpoint over a [`Wire`]. Dropping it drops its pending requests and forgets its operations in flight; flush before. Where a
/// device works on blocks of the user's memory, the drop waits for the device, and a peer that does not answer is lost then.
pub struct Endpoint<W: Wire> {
    pub(super) interface: Rc<Interface<W>>,
    pub(super) index: u32,
}

// SAFETY: an index and a share of the interface, which is confined itself.
unsafe impl<W: Wire + Send> Confined for Endpoint<W> {}

impl<W: Wire> Endpoint<W> {
    pub(super) fn new(interface: Rc<Interface<W>>, index: u32) -> Endpoint<W> {
        Endpoint { interface, index }
    }

    #[inline(always)]
    pub(super) fn slot(&self) -> Slot {
        self.interface.slots.borrow()[self.index as usize]
    }

    #[inline(always)]
    pub(super) fn change(&self, change: impl FnOnce(&mut Slot)) {
        change(&mut self.interface.slots.borrow_mut()[self.index as usize]);
    }

    /// The peer, if an operation that needs `capability` may start now.
    #[inline(always)]
    pub(super) fn ready(&self, capability: Can, what: &'static str) -> Result<Slot> {
        if !self.interface.attributes.capabilities.has(capability) {
            return Err(Error::Unsupported(what));
        }
        let slot = self.slot();
        if let Some(error) = slot.failed {
            return Err(error);
        }
        if slot.peer == UNCONNECTED {
            return self.not_connected();
        }
        if self.interface.queues.holds_back(self.index) || self.interface.flights.borrow().holds_back(self.index) {
            return Err(Error::NoResource);
        }
        Ok(slot)
    }

    #[cold]
    fn not_connected(&self) -> Result<Slot> {
        // The other end has not connected to this one yet.
        if self.interface.ends.peer(self.index).is_some() {
            return self.starved(Error::NoResource);
        }
        Err(Error::NotConnected)
    }

    /// As [`Endpoint::ready`], for a message: a fence may hold it back until earlier operations are answered.
    #[inline]
    fn ready_to_send(&self, capability: Can, what: &'static str, id: u8) -> Result<u32> {
        let slot = self.ready(capability, what)?;
        if id as usize >= MESSAGE_IDS {
            return Err(Error::InvalidParam("message ids are 0 to 31"));
        }
        if slot.fence != 0 {
            self.pass_fence(&slot)?;
        }
        Ok(slot.peer)
    }

    /// Whether messages and the wire's own operations may follow: all emulated operations before the last fence must be answered.
    #[cold]
    pub(super) fn pass_fence(&self, slot: &Slot) -> Result<()> {
        if self.interface.client.borrow().busy(self.index, slot.fence, true) {
            return self.starved(Error::NoResource);
        }
        self.change(|slot| slot.fence = 0);
        Ok(())
    }

    /// Makes sure that operations of this endpoint do not touch the user's memory any more. Operations of other endpoints
    /// to the same peer are not affected.
    fn abandon(&self) {
        let tickets = self.interface.flights.borrow().straight(self.index);
        if !tickets.is_empty() {
            self.interface.wire.abandon(self.slot().peer, &tickets);
        }
    }

    /// Notes the post that a flush has to wait for.
    #[inline(always)]
    pub(super) fn note_posted<T>(&self, peer: u32, outcome: Result<T>) -> Result<T> {
        match outcome {
            Ok(value) => {
                let posted = self.interface.wire.sent(peer);
                self.change(|slot| slot.posted = posted);
                Ok(value)
            }
            Err(error) => self.starved(error),
        }
    }

    /// Remembers that there was no room in this turn.
    pub(super) fn starved<T>(&self, error: Error) -> Result<T> {
        if error == Error::NoResource {
            let turn = self.interface.turn.get();
            self.change(|slot| slot.starved = turn);
        }
        Err(error)
    }
}

pub(super) fn limit(what: &'static str, length: usize, limit: usize) -> Result<()> {
    if length <= limit { Ok(()) } else { Err(Error::ExceedsLimit { what, length, limit }) }
}

impl<W: Wire> Drop for Endpoint<W> {
    fn drop(&mut self) {
        drop(self.interface.queues.purge(self.index));
        self.interface.client.borrow_mut().forget(self.index);
        self.abandon();
        self.interface.flights.borrow_mut().forget(self.index);
        self.interface.flushes.borrow_mut().retain(|wait| wait.endpoint != self.index);
        self.interface.ends.close(self.index);
        self.change(|slot| slot.used = false);
    }
}

impl<W: Wire> crate::transport::Endpoint for Endpoint<W> {
    fn index(&self) -> u32 {
        self.index
    }

    fn address(&self) -> Result<Vec<u8>> {
        if !self.interface.attributes.capabilities.has(Can::CONNECT_TO_EP) {
            return Err(Error::Unsupported("connecting to an endpoint"));
        }
        Ok(self.interface.ends.address(self.index).into())
    }

    fn connect_to_endpoint(&self, interface: &[u8], endpoint: &[u8]) -> Result<()> {
        if !self.interface.attributes.capabilities.has(Can::CONNECT_TO_EP) {
            return Err(Error::Unsupported("connecting to an endpoint"));
        }
        let (slot, own) = (self.slot(), &self.interface);
        if let Some(error) = slot.failed {
            return Err(error);
        }
        if slot.peer != UNCONNECTED || own.ends.peer(self.index).is_some() {
            return Err(Error::InvalidParam("the endpoint is connected already"));
        }
        let peer = own.wire.resolve(interface)?;
        if own.ends.connect(self.index, peer, endpoint).ok_or(Error::Unreachable)? {
            self.change(|slot| slot.peer = peer);
        }
        own.advance();
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let slot = self.slot();
        match slot.failed {
            Some(error) => Err(error),
            None if slot.peer == UNCONNECTED => {
                let peer = self.interface.ends.peer(self.index).ok_or(Error::NotConnected)?;
                self.interface.wire.loss(peer).map_or(Ok(()), Err)
            }
            None => self.interface.wire.loss(slot.peer).map_or(Ok(()), Err),
        }
    }

    fn put_short(&self, data: &[u8], remote: u64, key: &RemoteKey) -> Result<()> {
        self.do_put_short(data, remote, key)
    }

    fn put_notify(&self, data: &[u8], remote: u64, key: &RemoteKey, notice: u32) -> Result<()> {
        self.do_put_notify(data, remote, key, notice)
    }

    #[inline(always)]
    fn put_bcopy(
        &self,
        len: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize> {
        self.do_put_bcopy(len, pack, remote, key)
    }

    unsafe fn put_zcopy(
        &self,
        iov: &[Iov<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        // SAFETY: the caller guarantees it.
        unsafe { self.do_put_zcopy(iov, remote, key, completion) }
    }

    fn get_short(&self, to: &mut [u8], remote: u64, key: &RemoteKey) -> Result<()> {
        self.do_get_short(to, remote, key)
    }

    fn get_bcopy(
        &self,
        len: usize,
        unpack: impl FnOnce(&[u8]) + 'static,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        self.do_get_bcopy(len, unpack, remote, key, completion)
    }

    fn get_to(
        &self,
        len: usize,
        sink: Arc<dyn GetSink>,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        self.do_get_to(len, sink, remote, key, completion)
    }

    unsafe fn get_zcopy(
        &self,
        iov: &[Iov<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        // SAFETY: the caller guarantees it.
        unsafe { self.do_get_zcopy(iov, remote, key, completion) }
    }

    fn atomic_post<T: Word>(&self, op: AtomicOp, value: T, remote: u64, key: &RemoteKey) -> Result<()> {
        if 1 << op as u32 & AtomicOp::POST == 0 {
            return Err(Error::Unsupported("posting an atomic that is only of use with its result"));
        }
        // SAFETY: there is no result to write.
        unsafe { self.do_atomic::<T>(op, value, T::narrow(0), std::ptr::null_mut(), remote, key, None) }.map(drop)
    }

    unsafe fn atomic_fetch<T: Word>(
        &self,
        op: AtomicOp,
        value: T,
        result: *mut T,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        if op == AtomicOp::CompareSwap || result.is_null() {
            return Err(Error::InvalidParam("fetching needs a result, and compare-and-swap a comparand"));
        }
        // SAFETY: the caller guarantees it.
        unsafe { self.do_atomic(op, value, T::narrow(0), result, remote, key, completion) }
    }

    unsafe fn atomic_compare_swap<T: Word>(
        &self,
        compare: T,
        swap: T,
        result: *mut T,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        if result.is_null() {
            return Err(Error::InvalidParam("compare-and-swap needs a result"));
        }
        // SAFETY: the caller guarantees it.
        unsafe { self.do_atomic(AtomicOp::CompareSwap, swap, compare, result, remote, key, completion) }
    }

    #[inline(always)]
    unsafe fn atomic_now<T: Word>(
        &self,
        op: AtomicOp,
        value: T,
        compare: T,
        remote: u64,
        key: &RemoteKey,
        later: impl FnOnce() -> (*mut T, Completion),
    ) -> Result<Option<T>> {
        // SAFETY: the caller guarantees it.
        unsafe { self.do_atomic_now(op, value, compare, remote, key, later) }
    }

    #[inline]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<()> {
        let peer = self.ready_to_send(Can::AM_SHORT, "short messages", id)?;
        limit("a short message with its header", payload.len() + 8, self.interface.attributes.am.max_short)?;
        self.note_posted(peer, self.interface.wire.send_short(peer, id, header, payload))
    }

    fn am_bcopy(&self, id: u8, len: usize, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize> {
        let peer = self.ready_to_send(Can::AM_BCOPY, "packed messages", id)?;
        limit("a packed message", len, self.interface.attributes.am.max_bcopy)?;
        self.note_posted(peer, self.interface.wire.send(peer, Channel::Message, id, len, pack))
    }

    unsafe fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        iov: &[Iov<'_>],
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        let peer = self.ready_to_send(Can::AM_ZCOPY, "zero-copy messages", id)?;
        let limits = &self.interface.attributes.am;
        limit("the header of a zero-copy message", header.len(), limits.max_header)?;
        let len = iov::check(iov, limits.max_iov, self.interface.needs_region)?;
        limit("a zero-copy message", len, limits.max_zcopy)?;
        if let Straight::Posted { pieces: most, .. } = self.interface.straight
            && len > 0
        {
            let pieces: Vec<Piece> = iov::pieces(iov).collect();
            if pieces.len() <= most {
                let wire = &self.interface.wire;
                // SAFETY: the caller's memory, readable until the completion, which the ticket is for.
                let post = |ticket| unsafe { wire.post_message(peer, id, header, &pieces, ticket) };
                let outcome = self.fly(&self.slot(), Sink::Message, completion, post);
                return self.note_posted(peer, outcome);
            }
        }
        let fill = |buffer: &mut [u8]| {
            let (head, body) = buffer.split_at_mut(header.len());
            head.copy_from_slice(header);
            Pieces::new(iov).range(0, len, |piece, at| {
                let to = &mut body[at..at + piece.len];
                // SAFETY: the caller's memory, readable.
                unsafe { crate::memory::copy::copy(to.as_mut_ptr(), piece.pointer, piece.len) };
            });
            header.len() + len
        };
        // The one copy is into memory that the peer reads, or that the wire gathers blocks in: nothing is left to complete.
        let outcome = self.interface.wire.send(peer, Channel::Message, id, header.len() + len, fill);
        self.note_posted(peer, outcome).map(|_| Posted::Done)
    }

    fn flush(&self, flags: Flush, completion: Option<&Completion>) -> Result<Posted> {
        let slot = self.slot();
        if let Some(error) = slot.failed {
            return Err(error);
        }
        let interface = &self.interface;
        if flags.has(Flush::CANCEL) {
            self.change(|slot| slot.failed = Some(Error::Canceled));
            self.abandon();
            interface.end_operations(self.index, Error::Canceled);
            return Ok(Posted::Done);
        }
        if interface.queues.holds_back(self.index) {
            return Err(Error::NoResource);
        }
        if slot.peer == UNCONNECTED {
            return Ok(Posted::Done);
        }
        interface.advance();
        let remote = flags.has(Flush::REMOTE);
        if remote {
            interface.wire.fence_memory();
        }
        let before = interface.client.borrow().next_token();
        let sent = slot.posted;
        let before_posted = interface.flights.borrow().next_number();
        let busy = interface.client.borrow().busy(self.index, before, remote)
            || interface.flights.borrow().busy(self.index, before_posted)
            || (remote && !interface.wire.arrived(slot.peer, sent));
        if !busy {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            let completion = completion.clone();
            let wait = FlushWait { endpoint: self.index, before, before_posted, remote, sent, completion };
            interface.flushes.borrow_mut().push(wait);
        }
        Ok(Posted::InProgress)
    }

    fn had_arrived(&self) -> bool {
        let slot = self.slot();
        slot.failed.is_some_and(|error| error != Error::Canceled)
            && slot.peer != UNCONNECTED
            && !slot.was_busy
            && !self.interface.flights.borrow().has_lost(self.index)
            && self.interface.wire.had_arrived(slot.peer, slot.posted)
    }

    fn fence(&self) -> Result<()> {
        let slot = self.slot();
        if let Some(error) = slot.failed {
            return Err(error);
        }
        let interface = &self.interface;
        interface.wire.fence_memory();
        if slot.peer != UNCONNECTED {
            let fence = interface.client.borrow().fence(self.index);
            self.change(|slot| {
                slot.fence = fence;
                slot.fence_next = true;
            });
            interface.wire.fence(slot.peer);
        }
        Ok(())
    }

    fn pending_add(&self, request: Request) -> Result<(), Refused> {
        let interface = &self.interface;
        if !interface.attributes.capabilities.has(Can::PENDING) {
            return Err(Refused { error: Error::Unsupported("pending requests"), request });
        }
        let slot = self.slot();
        if let Some(error) = slot.failed {
            return Err(Refused { error, request });
        }
        let room = interface.queues.waiting(self.index) == 0
            && slot.starved != interface.turn.get()
            && slot.peer != UNCONNECTED
            && interface.wire.has_room(slot.peer, Channel::Message)
            && interface.client.borrow().has_room(self.index)
            && !interface.flights.borrow().holds_back(self.index);
        if room {
            return Err(Refused { error: Error::Busy, request });
        }
        interface.queues.add(self.index, request);
        Ok(())
    }

    fn pending_purge(&self, each: impl FnMut(Request)) {
        self.interface.queues.purge(self.index).into_iter().for_each(each);
    }
}
