//! Puts, gets and atomics of an endpoint: by the wire where it can, else over messages.

use super::endpoint::{Endpoint, limit};
use super::interface::Slot;
use crate::memory::copy::copy;
use crate::transport::Completion;
use crate::transport::atomic::{Atomic, AtomicOp, Word};
use crate::transport::attributes::Capabilities as Can;
use crate::transport::emulate::{Operation, Sink, Source};
use crate::transport::error::{Error, Posted, Result};
use crate::transport::iov::{self, Iov, Pieces};
use crate::transport::key::{Place, RemoteKey};
use crate::transport::wire::Wire;

impl<W: Wire> Endpoint<W> {
    /// Checks that the range is the key's and the key the peer's; says whether the wire itself reaches it.
    fn native(&self, slot: &Slot, len: usize, remote: u64, key: &RemoteKey) -> Result<bool> {
        key.offset(remote, len)?;
        if key.owner != slot.peer {
            return Err(Error::InvalidParam("a key for memory of another peer"));
        }
        Ok(!self.interface.emulates() && self.interface.wire.reaches(key))
    }

    /// Whether an emulated operation may start.
    fn check_room(&self) -> Result<()> {
        if self.interface.client.borrow().has_room(self.index) { Ok(()) } else { self.starved(Error::NoResource) }
    }

    /// Starts an emulated operation and sends what can be sent of it.
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
        if self.native(&slot, data.len(), remote, key)? {
            // SAFETY: the slice's bytes.
            return unsafe { self.interface.wire.put(slot.peer, key, remote, data.as_ptr(), data.len()) };
        }
        if data.is_empty() {
            return Ok(());
        }
        self.check_room()?;
        let operation = Operation::Put(Source::Own(data.into()));
        let _done = self.start(&slot, operation, remote, key, data.len(), None);
        Ok(())
    }

    pub(super) fn do_put_bcopy(
        &self,
        len: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize> {
        let slot = self.ready(Can::PUT_BCOPY, "packed puts")?;
        limit("a packed put", len, self.interface.attributes.put.max_bcopy)?;
        let native = self.native(&slot, len, remote, key)?;
        if !native {
            self.check_room()?;
        }
        let mut bounce = vec![0; len];
        let packed = pack(&mut bounce).min(len);
        bounce.truncate(packed);
        if native {
            // SAFETY: the buffer's bytes.
            unsafe { self.interface.wire.put(slot.peer, key, remote, bounce.as_ptr(), packed) }?;
        } else if packed > 0 {
            let _done = self.start(&slot, Operation::Put(Source::Own(bounce)), remote, key, packed, None);
        }
        Ok(packed)
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
        if self.native(&slot, len, remote, key)? {
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
        self.check_room()?;
        let operation = Operation::Put(Source::User(Pieces::new(iov)));
        Ok(self.start(&slot, operation, remote, key, len, completion))
    }

    pub(super) fn do_get_short(&self, to: &mut [u8], remote: u64, key: &RemoteKey) -> Result<()> {
        let slot = self.ready(Can::GET_SHORT, "short gets")?;
        limit("a short get", to.len(), self.interface.attributes.get.max_short)?;
        if !self.native(&slot, to.len(), remote, key)? {
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
        let native = self.native(&slot, len, remote, key)?;
        if native || len == 0 {
            let mut bounce = vec![0; len];
            // SAFETY: the buffer's bytes.
            unsafe { self.interface.wire.get(slot.peer, key, remote, bounce.as_mut_ptr(), len) }
                .or_else(|error| if len == 0 { Ok(()) } else { Err(error) })?;
            unpack(&bounce);
            return Ok(Posted::Done);
        }
        self.check_room()?;
        let operation = Operation::Get(Sink::Unpack(vec![0; len], Box::new(unpack)));
        Ok(self.start(&slot, operation, remote, key, len, completion))
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
        if self.native(&slot, len, remote, key)? {
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
        self.check_room()?;
        let operation = Operation::Get(Sink::User(Pieces::new(iov)));
        Ok(self.start(&slot, operation, remote, key, len, completion))
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
        let slot = self.ready(Can::ATOMIC_CPU, "atomics")?;
        let width = T::WIDTH;
        let atomic = Atomic { op, width, value: value.widen(), compare: compare.widen() };
        let native = self.native(&slot, width as usize, remote, key)?;
        if !remote.is_multiple_of(width as u64) {
            return Err(Error::InvalidParam("the address of an atomic must be a multiple of its width"));
        }
        let outside = key.place == Place::Outside;
        if outside && self.interface.attributes.atomics_on_allocated_only {
            return Err(Error::Unsupported("atomics on memory that the domain did not allocate"));
        }
        if native {
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
