//! Put and get by address: any memory of a rank, registered or not.
//!
//! | memory at the target | on the same node | over a network |
//! | --- | --- | --- |
//! | symmetric heap, symmetric static data, segment of [`World::segment`] | a store or load | the network's put or get |
//! | segment of other memory ([`World::segment_at`]) | cross-memory attach | the network's put or get |
//! | any other | cross-memory attach | a message, which the target serves when it makes progress |
//!
//! Where the kernel allows no cross-memory attach, a message takes its place. The network's puts and gets need no progress at
//! the target, if [`crate::transport::Attributes::needs_target_progress`] does not say otherwise. The log reports such a
//! message at level debug.

use std::sync::atomic::{AtomicI32, Ordering};

use super::World;
use super::segments::Carried;
use crate::engine::{ADDRESS, Attached};
use crate::error::{CalledAt, Error, Placed, Result};
use crate::memory::copy;
use crate::memory::outside::Direction;

/// Which counters ring when a transfer by address is done. `None` rings nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawBells<'a> {
    /// In this rank: of a put, when the source may be changed; of a get, when the data is here.
    pub local: Option<&'a AtomicI32>,
    /// Address of an `i32` at the target: of a put, when the data is visible there; of a get, when the memory there
    /// may be changed. In a segment it is rung at once, else when the target polls or waits.
    pub remote: Option<usize>,
}

impl World {
    /// Copies `source` to address `to` of `rank`, in the way that reaches that memory (table above the module): registered
    /// memory needs no progress at the target. Never waits for the target, except over a network if the target's table of
    /// segments is not known here yet. `source` may be changed on return. A remote bell over a network is a message.
    ///
    /// A put to registered memory does not poll, as [`Symmetric::put`](super::Symmetric::put) does not: a loop of such puts that also
    /// waits for messages calls [`World::poll`]. A put by a system call or a message polls. Quickest are 8 bytes to a symmetric
    /// heap that is mapped here; on processors other than x86-64 they are aligned.
    ///
    /// # Safety
    /// `to` and the remote bell are memory of `rank` that this program means to be written: from anything else the
    /// target may crash. Addresses that are not mapped there are an error, not a crash. `source` is not part of it.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; [`Error::BadAddress`]; [`Error::Misaligned`] for the remote bell;
    /// [`Error::PeerLost`]. Where a message does the work, a bad address is an error of a later call.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn put_address(&self, rank: usize, to: usize, source: &[u8], bells: RawBells<'_>) -> Result<()> {
        if let (Ok(bytes), None) = (<[u8; 8]>::try_from(source), bells.remote) {
            let value = u64::from_ne_bytes(bytes);
            let mut offset = to;
            if let Some(heap) = self.heaps.of(rank) {
                offset = heap.offset(to);
                if heap.put(offset, value) {
                    ring(bells.local);
                    return Ok(());
                }
            }
            // SAFETY: the caller's guarantees are the same, and the offset is that of `to`.
            return unsafe { self.put_word_by_route(rank, offset, value, bells.local) }
                .map_or(Ok(()), |error| Err(*error));
        }
        // SAFETY: the caller's guarantees are the same.
        unsafe { self.put_by_route(rank, to, source, bells) }.placed_here()
    }

    /// A put of a word to any other memory. `offset` counts from the start of the rank's mapped heap, or, if the rank's heap is not
    /// mapped, is the address. A loop of puts that kept the address beside the offset would take an instruction more. All arguments and
    /// the result fit in registers, so such a loop keeps nothing on the stack for this call.
    ///
    /// # Safety
    /// As [`World::put_address`], for the address at that offset.
    #[cold]
    #[inline(never)]
    #[track_caller]
    unsafe fn put_word_by_route(
        &self,
        rank: usize,
        offset: usize,
        value: u64,
        local: Option<&AtomicI32>,
    ) -> Option<Box<Error>> {
        let to = self.heaps.of(rank).map_or(offset, |heap| heap.address(offset));
        // SAFETY: the caller's guarantees are the same.
        unsafe { self.put_by_route(rank, to, &value.to_ne_bytes(), RawBells { local, remote: None }) }
            .placed()
            .err()
            .map(Box::new)
    }

    /// As [`World::put_address`], whatever the memory.
    ///
    /// # Safety
    /// As [`World::put_address`].
    unsafe fn put_by_route(&self, rank: usize, to: usize, source: &[u8], bells: RawBells<'_>) -> Result<()> {
        const NAME: &str = "put to an address";
        self.check_transfer(NAME, rank, to, source.len(), bells)?;
        // SAFETY: the caller's.
        let carried = unsafe { self.put_checked(NAME, rank, to, source, bells.remote) }?;
        if let Some(bell) = bells.remote
            && carried != Carried::Message
        {
            self.ring_address(rank, bell)?;
        }
        ring(bells.local);
        Ok(())
    }

    /// Puts to any memory. Tells how the bytes go; a message rings `bell`, too.
    ///
    /// # Safety
    /// As [`World::put_address`].
    unsafe fn put_checked(
        &self,
        name: &'static str,
        rank: usize,
        to: usize,
        source: &[u8],
        bell: Option<usize>,
    ) -> Result<Carried> {
        let len = source.len();
        if len == 0 {
            return Ok(Carried::Copied);
        }
        if self.is_remote(rank) {
            self.check_remote(name, rank, to, len)?;
            if let Some(offset) = self.registered(name, rank, to, len)? {
                return self.put_registered(name, rank, offset, source).map(|()| Carried::Network);
            }
            self.engine.poll()?;
        } else if let Some(target) = self.in_segment(rank, to, len) {
            // SAFETY: backed segment memory, as just found; the caller means it to be written.
            unsafe { copy::copy(target, source.as_ptr(), len) };
            return Ok(Carried::Copied);
        } else {
            self.engine.poll()?;
            let source_start = source.as_ptr().cast_mut();
            // SAFETY: only read when putting; the kernel checks the address at the target.
            if unsafe { self.attach(name, Direction::Put, rank, source_start, to, len) }? {
                return Ok(Carried::Copied);
            }
        }
        self.note_message_to(rank);
        self.messages.write_outside(rank, to, source, bell.unwrap_or(0))?;
        Ok(Carried::Message)
    }

    /// Bytes for `rank` go by message: a notification of a segment of mapped memory comes behind them.
    fn note_message_to(&self, rank: usize) {
        if !self.is_remote(rank) {
            self.engine.segments.mapped().note_message();
        }
    }

    /// As [`World::put_address`], without bells. Tells how the bytes go.
    ///
    /// # Safety
    /// As [`World::put_address`].
    pub(super) unsafe fn put_address_by(&self, rank: usize, to: usize, source: &[u8]) -> Result<Carried> {
        const NAME: &str = "put to an address";
        self.check_transfer(NAME, rank, to, source.len(), RawBells::default())?;
        // SAFETY: the caller's.
        let carried = unsafe { self.put_checked(NAME, rank, to, source, None) }?;
        if carried == Carried::Copied {
            self.engine.stored(rank);
        }
        Ok(carried)
    }

    /// As [`World::get_address`], unless the network reads the bytes: then the result is the offset that the network takes. This waits for
    /// bytes that come by message.
    ///
    /// # Safety
    /// `here` is valid for writing `len` bytes until this returns; only this, peers and copies of the runtime touch them. They may overlap
    /// the bytes that are read.
    pub(super) unsafe fn get_address_by(
        &self,
        rank: usize,
        from: usize,
        here: *mut u8,
        len: usize,
    ) -> Result<Option<usize>> {
        const NAME: &str = "get from an address";
        self.check_transfer(NAME, rank, from, len, RawBells::default())?;
        if len == 0 {
            return Ok(None);
        }
        if self.is_remote(rank) {
            self.check_remote(NAME, rank, from, len)?;
            if let Some(offset) = self.registered(NAME, rank, from, len)? {
                return Ok(Some(offset));
            }
        } else if let Some(source) = self.in_segment(rank, from, len) {
            // SAFETY: backed segment memory; the caller's for `here`.
            unsafe { copy::between(here, source, len) };
            return Ok(None);
        }
        self.engine.check_outside_handler(NAME)?;
        self.engine.poll()?;
        // SAFETY: the caller's for `here`; the kernel checks the address at the target.
        if self.is_remote(rank) || !unsafe { self.attach(NAME, Direction::Get, rank, here, from, len) }? {
            // SAFETY: the caller's.
            unsafe { self.get_by_pieces(NAME, rank, from, here, len) }?;
        }
        Ok(None)
    }

    /// Gets by messages, and waits for the answers.
    ///
    /// # Safety
    /// `here` is valid for writing `len` bytes until this returns.
    unsafe fn get_by_pieces(
        &self,
        operation: &'static str,
        rank: usize,
        from: usize,
        here: *mut u8,
        len: usize,
    ) -> Result<()> {
        // A handler writes them. Where the wait fails that may happen later, so they are then nobody's.
        let came: *mut (AtomicI32, Vec<u8>) = Box::into_raw(Box::new((AtomicI32::new(0), vec![0; len])));
        // SAFETY: just made, and only freed below, when the bell has rung.
        let (bell, bytes) = unsafe { (&(*came).0, (*came).1.as_mut_ptr() as usize) };
        // SAFETY: they stay until the bell has rung.
        unsafe { self.messages.read_outside(rank, from, len, bytes, std::ptr::from_ref(bell) as usize, 0) }?;
        // Acquire pairs with the Release of the handler that rings it.
        self.engine.wait_until(operation, None, || bell.load(Ordering::Acquire) > 0)?;
        // SAFETY: it has rung: nobody else uses them any more. The caller's for `here`.
        unsafe { copy::put(here, Box::from_raw(came).1.as_ptr(), len) };
        Ok(())
    }

    /// As [`World::put_address`], but does not wait for room: without room it does nothing. Data that the network does not take at once is copied
    /// and kept. Makes no progress: call [`World::poll`] before the next attempt. Over a network the first use of memory of a rank outside its
    /// symmetric heap reads that rank's table of segments, and waits for the table. A remote bell that only a message reaches is kept without room
    /// too, in some tens of bytes.
    ///
    /// # Safety
    /// As [`World::put_address`].
    ///
    /// # Errors
    /// As [`World::put_address`] (of a bell's address that cannot be reached after the put), and [`Error::WouldBlock`]: nothing was put or rung. [`Error::InvalidArgument`] for more bytes than go in one
    /// message, where they go by message.
    #[track_caller]
    pub unsafe fn try_put_address(&self, rank: usize, to: usize, source: &[u8], bells: RawBells<'_>) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.try_put_address_by(rank, to, source, bells) }.map(drop).placed_here()
    }

    /// As [`World::try_put_address`]. Tells how the bytes go.
    ///
    /// # Safety
    /// As [`World::put_address`].
    pub(super) unsafe fn try_put_address_by(
        &self,
        rank: usize,
        to: usize,
        source: &[u8],
        bells: RawBells<'_>,
    ) -> Result<Carried> {
        const NAME: &str = "try_put_address";
        self.check_transfer(NAME, rank, to, source.len(), bells)?;
        let len = source.len();
        let mut carried = Carried::Copied;
        if len == 0 {
        } else if self.is_remote(rank) {
            self.check_remote(NAME, rank, to, len)?;
            carried = match self.registered(NAME, rank, to, len)? {
                Some(offset) => {
                    self.engine.put_at_once(NAME, rank, len, || self.put_registered(NAME, rank, offset, source))?;
                    Carried::Network
                }
                None => Carried::Message,
            };
        } else if let Some(place) = self.in_segment(rank, to, len) {
            // SAFETY: backed segment memory, as just found; the caller means it to be written.
            unsafe { copy::copy(place, source.as_ptr(), source.len()) };
        } else {
            let start = source.as_ptr().cast_mut();
            // SAFETY: only read when putting; the kernel checks the address at the target.
            if !unsafe { self.attach(NAME, Direction::Put, rank, start, to, len) }? {
                carried = Carried::Message;
            }
        }
        if carried == Carried::Message {
            self.messages.check_one_piece(NAME, rank, len)?;
            let bell = bells.remote.unwrap_or(0);
            self.note_message_to(rank);
            self.engine.outbox.at_once(|| self.messages.write_outside(rank, to, source, bell))?;
        } else if let Some(bell) = bells.remote
            && !self.ring_directly(rank, bell)?
        {
            self.messages.ring_unasked(rank, bell)?;
        }
        ring(bells.local);
        Ok(carried)
    }

    /// Copies `len` bytes at address `from` of `rank` to `here`. Reaches memory as [`World::put_address`] does. Bytes that
    /// the network reads are here on return: the call waits for them. Bytes that come by message are here only when the
    /// local bell has rung; inside a handler, which may not wait, this holds for all memory over a network.
    ///
    /// # Safety
    /// `here` is valid for writing `len` bytes, does not overlap the bytes that are read, and is not touched until the
    /// local bell has rung; the remote bell is as in [`World::put_address`], and the local one lives until it has rung.
    ///
    /// # Errors
    /// As [`World::put_address`].
    #[track_caller]
    pub unsafe fn get_address(
        &self,
        rank: usize,
        from: usize,
        here: *mut u8,
        len: usize,
        bells: RawBells<'_>,
    ) -> Result<()> {
        (|| -> Result<()> {
            const NAME: &str = "get from an address";
            self.check_transfer(NAME, rank, from, len, bells)?;
            if len == 0 {
            } else if self.is_remote(rank) {
                self.check_remote(NAME, rank, from, len)?;
                if let Some(offset) = self.readable(NAME, rank, from, len)? {
                    // SAFETY: the caller's: `here` is valid for writing so many bytes.
                    let here = unsafe { std::slice::from_raw_parts_mut(here, len) };
                    self.get_registered(NAME, rank, offset, here)?;
                    if let Some(bell) = bells.remote {
                        self.ring_address(rank, bell)?;
                    }
                    ring(bells.local);
                    return Ok(());
                }
                self.engine.poll()?;
                let local = bells.local.map_or(0, |bell| std::ptr::from_ref(bell) as usize);
                // SAFETY: the caller guarantees `here` and the local bell.
                return unsafe {
                    self.messages.read_outside(rank, from, len, here as usize, local, bells.remote.unwrap_or(0))
                };
            } else if let Some(source) = self.in_segment(rank, from, len) {
                // SAFETY: backed segment memory; the caller guarantees `here`.
                unsafe { copy::copy(here, source, len) };
                // Before the remote bell says that the memory there may be changed, the copy is done.
                std::sync::atomic::fence(Ordering::SeqCst);
            } else {
                self.engine.poll()?;
                // SAFETY: the caller guarantees `here`; the kernel checks the address at the target.
                let done = unsafe { self.attach(NAME, Direction::Get, rank, here, from, len) }?;
                if !done {
                    let local = bells.local.map_or(0, |bell| std::ptr::from_ref(bell) as usize);
                    let remote = bells.remote.unwrap_or(0);
                    // SAFETY: the caller guarantees `here` and the local bell.
                    return unsafe { self.messages.read_outside(rank, from, len, here as usize, local, remote) };
                }
            }
            if let Some(bell) = bells.remote {
                self.ring_address(rank, bell)?;
            }
            ring(bells.local);
            Ok(())
        })()
        .placed_here()
    }

    /// Puts `source` to address `to` of `rank` without help of that rank, if a system call or a network that needs none reaches the memory.
    /// `source` may be changed on return. `Some(true)`: it is in effect. `Some(false)`: it is before any message that is sent there from now on.
    /// `None`: nothing was done. Memory that is mapped is for [`World::mapped`].
    ///
    /// # Safety
    /// As [`World::put_address`].
    ///
    /// # Errors
    /// [`Error::BadAddress`], [`Error::PeerLost`].
    pub(crate) unsafe fn put_one_sided(&self, rank: usize, to: usize, source: &[u8]) -> Result<Option<bool>> {
        const NAME: &str = "put to an address";
        if self.is_remote(rank) {
            let Some(offset) = self.readable(NAME, rank, to, source.len())? else { return Ok(None) };
            return self.put_registered(NAME, rank, offset, source).map(|()| Some(false));
        }
        // SAFETY: only read when putting; the kernel checks the address at the target.
        let done =
            unsafe { self.attach_real(NAME, Direction::Put, rank, source.as_ptr().cast_mut(), to, source.len()) };
        Ok(done?.then_some(true))
    }

    /// Gets from address `from` of `rank`; as [`World::put_one_sided`]. Whether it was done.
    ///
    /// # Safety
    /// As [`World::get_address`].
    ///
    /// # Errors
    /// As [`World::put_one_sided`].
    pub(crate) unsafe fn get_one_sided(&self, rank: usize, from: usize, here: &mut [u8]) -> Result<bool> {
        const NAME: &str = "get from an address";
        if self.is_remote(rank) {
            let Some(offset) = self.readable(NAME, rank, from, here.len())? else { return Ok(false) };
            return self.get_registered(NAME, rank, offset, here).map(|()| true);
        }
        // SAFETY: a place of that length; the kernel checks the address at the target.
        unsafe { self.attach_real(NAME, Direction::Get, rank, here.as_mut_ptr(), from, here.len()) }
    }

    /// As [`World::attach`], where ranks have not failed, and time is real.
    ///
    /// # Safety
    /// As [`crate::memory::outside::transfer`].
    unsafe fn attach_real(
        &self,
        operation: &'static str,
        direction: Direction,
        rank: usize,
        here: *mut u8,
        address: usize,
        length: usize,
    ) -> Result<bool> {
        if self.engine.networks.pace().is_some() {
            return Ok(false);
        }
        // The memory of a rank that has failed may have been freed.
        self.engine.check_alive(rank, operation)?;
        // SAFETY: the caller's.
        unsafe { self.attach(operation, direction, rank, here, address, length) }
    }

    /// Where `len` bytes at `address` of `rank` are mapped here: symmetric static data, or backed memory of a symmetric heap.
    #[inline]
    pub(crate) fn mapped(&self, rank: usize, address: usize, len: usize) -> Option<*mut u8> {
        let end = address.checked_add(len)?;
        // Mostly neither is there, and this is on the path of short puts.
        let maybe = self.engine.settings.static_data || self.among_slots(rank, end - 1);
        if maybe && self.is_mapped(rank) { self.in_segment(rank, address, len) } else { None }
    }

    /// Whether the memory of `rank` is mapped here.
    #[inline]
    pub(crate) fn is_mapped(&self, rank: usize) -> bool {
        self.engine.routes.is_mapped(rank)
    }

    fn check_transfer(
        &self,
        operation: &'static str,
        rank: usize,
        address: usize,
        length: usize,
        bells: RawBells<'_>,
    ) -> Result<()> {
        self.engine.check_rank(rank, operation)?;
        if length > 0 && (address == 0 || address.checked_add(length).is_none()) {
            return Err(Error::BadAddress { operation, rank, address, length });
        }
        match bells.remote {
            Some(bell) if bell == 0 || !bell.is_multiple_of(align_of::<AtomicI32>()) => Err(Error::Misaligned {
                operation: "a remote bell",
                rank,
                address: bell,
                alignment: 4,
                place: CalledAt::default(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether memory of `rank` is reached by its messages only.
    fn is_remote(&self, rank: usize) -> bool {
        !self.engine.routes.is_mapped(rank)
    }

    fn check_remote(&self, operation: &'static str, rank: usize, address: usize, length: usize) -> Result<()> {
        if self.engine.segments.mapped().is_closed_to_peers(rank, address, length) {
            return Err(Error::BadAddress { operation, rank, address, length });
        }
        Ok(())
    }

    /// The offset by which the network reaches `len` bytes at `address` of `rank`, if they are registered with it.
    fn registered(&self, doing: &'static str, rank: usize, address: usize, len: usize) -> Result<Option<usize>> {
        let place = match self.engine.segments.mapped().in_heaps(rank, address, len) {
            // Another rank's slot is that rank's network's.
            Some((slot, offset)) => (slot == rank).then_some(offset),
            None => self.engine.is_registered(doing, rank, address, len)?.then(|| ADDRESS + address),
        };
        if place.is_none() {
            tracing::debug!(rank, address, len, "memory that is not registered at its owner: goes by message");
        }
        Ok(place)
    }

    /// As [`World::registered`], for a get, which may wait for bytes that the network reads.
    fn readable(&self, doing: &'static str, rank: usize, address: usize, len: usize) -> Result<Option<usize>> {
        if self.engine.interface.delivering() || !self.engine.networks.reach_idle(rank) {
            return Ok(None);
        }
        self.registered(doing, rank, address, len)
    }

    /// Where `len` bytes at `address` of `rank` are here, if they are backed heap memory of one slot or symmetric static data.
    pub(super) fn in_segment(&self, rank: usize, address: usize, len: usize) -> Option<*mut u8> {
        let engine = &self.engine;
        if engine.settings.static_data
            && engine.routes.is_mapped(rank)
            && let Some(place) = engine.segments.mapped().in_statics(rank, address, len)
        {
            return Some(place);
        }
        let mapped = engine.segments.mapped();
        if let Some(place) = mapped.in_own_segments(rank, address, len) {
            return Some(place);
        }
        let (slot, offset) = mapped.in_heaps(rank, address, len)?;
        // SAFETY: an offset inside the slot.
        engine.node.has_slot(slot).then(|| unsafe { engine.node.slot(slot).add(offset) })
    }

    /// Whether `address` of `rank` lies in the mapped slots, backed or not.
    fn among_slots(&self, rank: usize, address: usize) -> bool {
        self.engine.segments.mapped().slot_of(rank, address).is_some()
    }

    /// Moves bytes by cross-memory attach. `false`: the kernel does not allow it.
    ///
    /// # Safety
    /// As [`crate::memory::outside::transfer`].
    pub(super) unsafe fn attach(
        &self,
        operation: &'static str,
        direction: Direction,
        rank: usize,
        here: *mut u8,
        address: usize,
        length: usize,
    ) -> Result<bool> {
        let (mapped, may_wait) = (self.engine.segments.mapped(), || self.engine.may_wait());
        // SAFETY: the caller's.
        match unsafe { mapped.attach(operation, direction, rank, here, (address, length), may_wait) }? {
            Attached::Done => Ok(true),
            Attached::NotAllowed => self.engine.check_alive(rank, operation).map(|()| false),
        }
    }

    /// Adds one to the counter at address `bell` of `rank`: directly in a segment, else by a message.
    fn ring_address(&self, rank: usize, bell: usize) -> Result<()> {
        if self.ring_directly(rank, bell)? { Ok(()) } else { self.messages.ring_outside(rank, bell) }
    }

    /// Adds one to the counter at address `bell` of `rank`, if that lies in a segment that is mapped here. `false`: only a message reaches it.
    fn ring_directly(&self, rank: usize, bell: usize) -> Result<bool> {
        if self.is_remote(rank) {
            self.check_remote("a remote bell", rank, bell, size_of::<AtomicI32>())?;
            return Ok(false);
        }
        match self.in_segment(rank, bell, size_of::<AtomicI32>()) {
            Some(word) => {
                // SAFETY: backed and aligned; the caller guarantees that a counter lies there. Release: a thread that
                // sees the ring sees the data.
                unsafe { AtomicI32::from_ptr(word.cast()) }.fetch_add(1, Ordering::Release);
                self.engine.wake_if_asleep(rank);
                // The counter may lie in the segment of yet another rank, seen from `rank`.
                let origin = self.engine.node.origin() as usize;
                let slot = (word as usize).wrapping_sub(origin) >> self.engine.node.stride_log2();
                if slot != rank {
                    self.engine.wake_if_asleep(slot);
                }
                Ok(true)
            }
            None if self.among_slots(rank, bell) => {
                Err(Error::BadAddress { operation: "a remote bell", rank, address: bell, length: 4 })
            }
            None => Ok(false),
        }
    }
}

fn ring(bell: Option<&AtomicI32>) {
    if let Some(bell) = bell {
        bell.fetch_add(1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fmt::Debug;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::time::Duration;

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use crate::{Completion, Result, Settings, Threads, Transport};

    /// Counts the messages that the log reports at level debug for memory that is not registered.
    struct Counting(Arc<AtomicUsize>);

    impl Subscriber for Counting {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::DEBUG
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            struct Text(String);
            impl Visit for Text {
                fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
                    self.0 += &format!("{value:?} ");
                }
            }
            let mut text = Text(String::new());
            event.record(&mut text);
            if text.0.contains("not registered at its owner") {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// The receipt says how memory is reached by address, and so does the log if it is by message.
    #[test]
    fn what_goes_by_message_is_told() {
        let row = |world: &crate::World, name: &str| {
            let receipt = world.receipt();
            receipt.into_iter().find(|(row, _)| *row == name).map(|(_, text)| text).expect("a row of this name")
        };
        for (transport, attach) in [(Transport::ShmContract, false), (Transport::Auto, false), (Transport::Auto, true)]
        {
            let settings = Settings { transport, cross_memory_attach: attach, ..Settings::default() };
            let job = Threads::new(2).settings(settings).deadline(Duration::from_secs(60));
            let ranks = job.run(|world| -> Result<()> {
                let (told, other, by_network) = (Arc::default(), 1 - world.rank(), transport == Transport::ShmContract);
                let progress = row(world, "needs target progress");
                assert_eq!(progress.contains("memory that is not registered"), by_network, "{progress}");
                let by_call = row(world, "by a system call");
                let is_told =
                    by_call.contains(if attach { "cross-memory attach" } else { "by a message to the owner" });
                assert!(is_told, "{by_call}");
                let (plain, own) = ([const { AtomicU64::new(0) }; 8], world.segment(64)?);
                let plain_there = world.exchange_addresses(plain.as_ptr())?[other];
                let own_there = world.exchange_addresses(own.as_ptr())?[other];
                tracing::subscriber::with_default(Counting(Arc::clone(&told)), || -> Result<()> {
                    for (to, messages) in [(own_there, 0), (plain_there, usize::from(by_network))] {
                        let done = Completion::new();
                        // SAFETY: bytes that no code reads.
                        unsafe { world.operation().effect(&done).put_address(other, to, &[7; 8]) }?;
                        world.wait_completion(&done)?;
                        assert_eq!(told.load(Ordering::Relaxed), messages, "{transport:?}");
                    }
                    Ok(())
                })?;
                world.barrier()?;
                assert_eq!(plain[0].load(Ordering::Relaxed), u64::from_ne_bytes([7; 8]));
                own.close()
            });
            ranks.expect("ranks start").into_iter().for_each(|rank| rank.expect("is well"));
        }
    }
}
