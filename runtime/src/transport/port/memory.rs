//! Puts, gets and atomics of an endpoint: by the wire where it can, else over messages.

use std::sync::Arc;

use super::endpoint::{Endpoint, limit};
use super::flight::{Blocks, Sink as Landing};
use super::interface::Slot;
use crate::memory::copy::copy;
use crate::transport::atomic::{Atomic, AtomicOp, Word};
use crate::transport::attributes::Capabilities as Can;
use crate::transport::emulate::{Operation, Sink, Source};
use crate::transport::error::{Error, Posted, Result};
use crate::transport::iov::{self, Iov, Pieces};
use crate::transport::key::{MemoryKind, RemoteKey};
use crate::transport::wire::{Channel, Direction, Memory, Wire};
use crate::transport::{Completion, GetSink, NOTICES};

impl<W: Wire> Endpoint<W> {
    /// Checks that the range is inside the key's memory, and that the key is the peer's. Returns the agent that accesses the range.
    #[inline(always)]
    fn way(&self, slot: &Slot, len: usize, remote: u64, key: &RemoteKey) -> Result<Memory> {
        key.offset(remote, len)?;
        if key.owner != self.interface.wire.owner(slot.peer) {
            return Err(Error::InvalidParam("a key for memory of another peer"));
        }
        let memory = self.interface.memory;
        if memory == Memory::Emulated || !self.interface.wire.reaches(key) {
            return Ok(Memory::Emulated);
        }
        if slot.fence != 0 {
            self.pass_fence(slot)?;
        }
        Ok(memory)
    }

    /// Posts an operation whose end is reported with a ticket.
    pub(super) fn fly(
        &self,
        slot: &Slot,
        landing: Landing,
        completion: Option<&Completion>,
        post: impl FnOnce(u64) -> Result<()>,
    ) -> Result<Posted> {
        let ticket = self.interface.flights.borrow_mut().book(self.index, slot.peer, landing, completion);
        match post(ticket) {
            Ok(()) => Ok(Posted::InProgress),
            Err(error) => {
                self.interface.flights.borrow_mut().cancel(ticket);
                self.starved(error)
            }
        }
    }

    /// Starts a put or get of the user's own blocks.
    fn fly_blocks(
        &self,
        slot: &Slot,
        iov: &[Iov<'_>],
        (direction, len, remote, key): (Direction, usize, u64, &RemoteKey),
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        let interface = &self.interface;
        if !interface.wire.has_room(slot.peer, Channel::Request) {
            return self.starved(Error::NoResource);
        }
        let blocks = Blocks { pieces: Pieces::new(iov), len, direction, remote, key: *key };
        interface.flights.borrow_mut().start(self.index, slot.peer, blocks, completion);
        interface.advance();
        Ok(Posted::InProgress)
    }

    /// Whether an emulated operation may start.
    fn check_room(&self) -> Result<()> {
        if self.interface.client.borrow().has_room(self.index) { Ok(()) } else { self.starved(Error::NoResource) }
    }

    /// Starts an emulated operation and sends as many of its requests as there is room for.
    fn start(
        &self,
        slot: &Slot,
        operation: Operation,
        remote: u64,
        key: &RemoteKey,
        len: usize,
        completion: Option<&Completion>,
    ) -> Posted {
        let token = self.interface.client.borrow_mut().start(
            self.index,
            slot.peer,
            operation,
            key.id,
            remote,
            len,
            slot.fence_next,
        );
        if slot.fence_next {
            self.change(|slot| slot.fence_next = false);
        }
        self.interface.advance();
        match self.interface.client.borrow_mut().await_release(token, completion) {
            true => Posted::InProgress,
            false => Posted::Done,
        }
    }

    pub(super) fn do_put_short(&self, data: &[u8], remote: u64, key: &RemoteKey) -> Result<()> {
        let slot = self.ready(Can::PUT_SHORT, "short puts")?;
        limit("a short put", data.len(), self.interface.attributes.put.max_short)?;
        match self.way(&slot, data.len(), remote, key)? {
            Memory::Direct => {
                // SAFETY: the slice's bytes.
                return unsafe { self.interface.wire.put(slot.peer, key, remote, data.as_ptr(), data.len()) };
            }
            _ if data.is_empty() => return Ok(()),
            Memory::Posted => {
                let fill = |buffer: &mut [u8]| {
                    buffer.copy_from_slice(data);
                    data.len()
                };
                let outcome = self.interface.wire.post_packed(slot.peer, key, remote, data.len(), fill);
                return self.note_posted(slot.peer, outcome).map(drop);
            }
            Memory::Emulated => {}
        }
        self.check_room()?;
        let operation = Operation::Put(Source::Own(data.into()));
        let _done = self.start(&slot, operation, remote, key, data.len(), None);
        Ok(())
    }

    pub(super) fn do_put_notify(&self, data: &[u8], remote: u64, key: &RemoteKey, notice: u32) -> Result<()> {
        const WHAT: &str = "puts with a notice";
        let slot = self.ready(Can::PUT_SHORT, WHAT)?;
        limit(WHAT, data.len(), self.interface.attributes.max_notified.ok_or(Error::Unsupported(WHAT))?)?;
        if notice >= NOTICES {
            return Err(Error::InvalidParam("notices are below 2^26 - 1"));
        }
        if self.way(&slot, data.len(), remote, key)? != Memory::Posted {
            return Err(Error::Unsupported("puts with a notice to this memory"));
        }
        let outcome = self.interface.wire.post_notified(slot.peer, key, remote, data, notice);
        self.note_posted(slot.peer, outcome)
    }

    #[inline(always)]
    pub(super) fn do_put_bcopy(
        &self,
        len: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize> {
        let slot = self.ready(Can::PUT_BCOPY, "packed puts")?;
        limit("a packed put", len, self.interface.attributes.put.max_bcopy)?;
        let way = self.way(&slot, len, remote, key)?;
        match way {
            Memory::Posted if len > 0 => {
                let outcome = self.interface.wire.post_packed(slot.peer, key, remote, len, pack);
                return self.note_posted(slot.peer, outcome);
            }
            Memory::Emulated => self.check_room()?,
            _ => {}
        }
        let mut bounce = vec![0; len];
        let packed = pack(&mut bounce).min(len);
        bounce.truncate(packed);
        self.put_bounced(&slot, bounce, remote, key, way)?;
        Ok(packed)
    }

    #[inline(never)]
    fn put_bounced(&self, slot: &Slot, bounce: Vec<u8>, remote: u64, key: &RemoteKey, way: Memory) -> Result<()> {
        let packed = bounce.len();
        if way == Memory::Direct {
            // SAFETY: the buffer's bytes.
            unsafe { self.interface.wire.put(slot.peer, key, remote, bounce.as_ptr(), packed) }?;
        } else if packed > 0 {
            let _done = self.start(slot, Operation::Put(Source::Own(bounce)), remote, key, packed, None);
        }
        Ok(())
    }

    pub(super) unsafe fn do_put_zcopy(
        &self,
        iov: &[Iov<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        let slot = self.ready(Can::PUT_ZCOPY, "zero-copy puts")?;
        let limits = &self.interface.attributes.put;
        let len = iov::check(iov, limits.max_iov, self.interface.needs_region)?;
        limit("a zero-copy put", len, limits.max_zcopy)?;
        let way = self.way(&slot, len, remote, key)?;
        if way == Memory::Direct {
            let mut at = remote;
            for piece in iov::pieces(iov) {
                // SAFETY: the caller's memory, readable.
                unsafe { self.interface.wire.put(slot.peer, key, at, piece.pointer, piece.len) }?;
                at += piece.len as u64;
            }
            return Ok(Posted::Done);
        }
        if len == 0 {
            return Ok(Posted::Done);
        }
        if way == Memory::Posted {
            return self.fly_blocks(&slot, iov, (Direction::Put, len, remote, key), completion);
        }
        self.check_room()?;
        let operation = Operation::Put(Source::User(Pieces::new(iov)));
        Ok(self.start(&slot, operation, remote, key, len, completion))
    }

    pub(super) fn do_get_short(&self, to: &mut [u8], remote: u64, key: &RemoteKey) -> Result<()> {
        let slot = self.ready(Can::GET_SHORT, "short gets")?;
        limit("a short get", to.len(), self.interface.attributes.get.max_short)?;
        if self.way(&slot, to.len(), remote, key)? != Memory::Direct {
            return Err(Error::Unsupported("short gets of this memory"));
        }
        // SAFETY: the slice's bytes.
        unsafe { self.interface.wire.get(slot.peer, key, remote, to.as_mut_ptr(), to.len()) }
    }

    pub(super) fn do_get_bcopy(
        &self,
        len: usize,
        unpack: impl FnOnce(&[u8]) + 'static,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        let slot = self.ready(Can::GET_BCOPY, "packed gets")?;
        limit("a packed get", len, self.interface.attributes.get.max_bcopy)?;
        let way = self.way(&slot, len, remote, key)?;
        if way == Memory::Direct || len == 0 {
            let mut bounce = vec![0; len];
            // SAFETY: the buffer's bytes.
            unsafe { self.interface.wire.get(slot.peer, key, remote, bounce.as_mut_ptr(), len) }
                .or_else(|error| if len == 0 { Ok(()) } else { Err(error) })?;
            unpack(&bounce);
            return Ok(Posted::Done);
        }
        if way == Memory::Posted {
            let post = |ticket| self.interface.wire.post_fetch(slot.peer, key, remote, len, ticket);
            return self.fly(&slot, Landing::Unpack(Box::new(unpack)), completion, post);
        }
        self.check_room()?;
        let operation = Operation::Get(Sink::Unpack(vec![0; len], Box::new(unpack)));
        Ok(self.start(&slot, operation, remote, key, len, completion))
    }

    pub(super) fn do_get_to(
        &self,
        len: usize,
        sink: Arc<dyn GetSink>,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        let slot = self.ready(Can::GET_BCOPY, "packed gets")?;
        limit("a packed get", len, self.interface.attributes.get.max_bcopy)?;
        let way = self.way(&slot, len, remote, key)?;
        if len == 0 {
            return Ok(Posted::Done);
        }
        if way == Memory::Direct {
            // Short ones without an allocation.
            let mut bounce = smallvec::SmallVec::<[u8; 512]>::from_elem(0, len);
            // SAFETY: the buffer's bytes.
            unsafe { self.interface.wire.get(slot.peer, key, remote, bounce.as_mut_ptr(), len) }?;
            sink.take(0, &bounce);
            return Ok(Posted::Done);
        }
        if way == Memory::Posted {
            let post = |ticket| self.interface.wire.post_fetch(slot.peer, key, remote, len, ticket);
            return self.fly(&slot, Landing::Taker(sink), completion, post);
        }
        self.check_room()?;
        Ok(self.start(&slot, Operation::Get(Sink::Taker(sink)), remote, key, len, completion))
    }

    pub(super) unsafe fn do_get_zcopy(
        &self,
        iov: &[Iov<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        let slot = self.ready(Can::GET_ZCOPY, "zero-copy gets")?;
        let limits = &self.interface.attributes.get;
        let len = iov::check(iov, limits.max_iov, self.interface.needs_region)?;
        limit("a zero-copy get", len, limits.max_zcopy)?;
        let way = self.way(&slot, len, remote, key)?;
        if way == Memory::Direct {
            let mut at = remote;
            for piece in iov::pieces(iov) {
                // SAFETY: the caller's memory, writable.
                unsafe { self.interface.wire.get(slot.peer, key, at, piece.pointer, piece.len) }?;
                at += piece.len as u64;
            }
            return Ok(Posted::Done);
        }
        if len == 0 {
            return Ok(Posted::Done);
        }
        if way == Memory::Posted {
            return self.fly_blocks(&slot, iov, (Direction::Get, len, remote, key), completion);
        }
        self.check_room()?;
        let operation = Operation::Get(Sink::User(Pieces::new(iov)));
        Ok(self.start(&slot, operation, remote, key, len, completion))
    }

    /// The peer, and the agent that does atomics on the word at `remote`.
    #[inline(always)]
    fn ready_for_atomic<T: Word>(&self, remote: u64, key: &RemoteKey) -> Result<(Slot, Memory)> {
        let attributes = &self.interface.attributes;
        let agent = Can(attributes.capabilities.0 & Can::ATOMIC_DEVICE.0);
        let slot = self.ready(if agent == Can::NONE { Can::ATOMIC_CPU } else { agent }, "atomics")?;
        let width = T::WIDTH as usize;
        let way = self.way(&slot, width, remote, key)?;
        if !remote.is_multiple_of(width as u64) {
            return Err(Error::InvalidParam("the address of an atomic must be a multiple of its width"));
        }
        if key.memory == MemoryKind::Outside && attributes.atomics_on_allocated_only {
            return Err(Error::Unsupported("atomics on memory that the domain did not allocate"));
        }
        Ok((slot, if self.interface.atomics == Memory::Emulated { Memory::Emulated } else { way }))
    }

    #[inline(always)]
    pub(super) unsafe fn do_atomic_now<T: Word>(
        &self,
        op: AtomicOp,
        value: T,
        compare: T,
        remote: u64,
        key: &RemoteKey,
        later: impl FnOnce() -> (*mut T, Completion),
    ) -> Result<Option<T>> {
        let (slot, way) = self.ready_for_atomic::<T>(remote, key)?;
        if way != Memory::Posted {
            let (result, completion) = later();
            // SAFETY: the caller guarantees it; a completed operation has written its result.
            return unsafe {
                match self.do_atomic(op, value, compare, result, remote, key, Some(&completion))? {
                    Posted::Done => Ok(Some(result.read())),
                    Posted::InProgress => Ok(None),
                }
            };
        }
        let (interface, width) = (&self.interface, T::WIDTH);
        let atomic = Atomic { op, width, value: value.widen(), compare: compare.widen() };
        let mut booked = None;
        let outcome = interface.wire.atomic_now(slot.peer, key, remote, atomic, || {
            let (result, completion) = later();
            let landing = Landing::Word(result.cast(), width);
            *booked.insert(interface.flights.borrow_mut().book(self.index, slot.peer, landing, Some(&completion)))
        });
        if outcome.is_err() {
            booked.into_iter().for_each(|ticket| interface.flights.borrow_mut().cancel(ticket));
        }
        outcome.map(|found| found.map(T::narrow)).or_else(|error| self.starved(error))
    }

    #[expect(clippy::too_many_arguments, reason = "the union of what the atomics take")]
    pub(super) unsafe fn do_atomic<T: Word>(
        &self,
        op: AtomicOp,
        value: T,
        compare: T,
        result: *mut T,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Result<Posted> {
        let (slot, way) = self.ready_for_atomic::<T>(remote, key)?;
        let width = T::WIDTH;
        let atomic = Atomic { op, width, value: value.widen(), compare: compare.widen() };
        if way == Memory::Posted {
            let wire = &self.interface.wire;
            if result.is_null() && completion.is_none() {
                let outcome = wire.post_atomic(slot.peer, key, remote, atomic, None);
                return self.note_posted(slot.peer, outcome).map(|()| Posted::Done);
            }
            let landing = if result.is_null() { Landing::Nothing } else { Landing::Word(result.cast(), width) };
            let post = |ticket| wire.post_atomic(slot.peer, key, remote, atomic, Some(ticket));
            return self.fly(&slot, landing, completion, post);
        }
        if way == Memory::Direct {
            let before = self.interface.wire.atomic(slot.peer, key, remote, atomic)?;
            if !result.is_null() {
                // SAFETY: the caller's variable.
                unsafe { copy(result.cast(), before.to_le_bytes().as_ptr(), width as usize) };
            }
            return Ok(Posted::Done);
        }
        self.check_room()?;
        Ok(self.start(&slot, Operation::Atomic(atomic, result.cast()), remote, key, 1, completion))
    }
}
