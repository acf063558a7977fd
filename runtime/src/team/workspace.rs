//! The workspace of all teams: the same range of every rank's slot.

use std::any::Any;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Engine;
use crate::error::Result;
use crate::memory::copy;

/// A range of symmetric memory. Offsets are bytes from its start; those of words are multiples of 8.
///
/// Words are counters that peers add to (signals), or belong to one rank. Everything else is written before a signal and read
/// after it.
pub(super) struct Workspace {
    engine: Rc<Engine>,
    /// Its start in the slot of rank 0.
    base: *mut u8,
    stride: usize,
    /// Its offset in every slot.
    offset: usize,
    len: usize,
    /// First of the ranks whose slots are written and read directly, and how many there are.
    stores: [usize; 2],
    /// Ranks whose words are changed by the processor's atomics: all, or none.
    atomics: usize,
    /// Keeps the memory.
    _memory: Box<dyn Any>,
}

impl Workspace {
    /// The range of `len` bytes at `offset` of every slot.
    ///
    /// # Safety
    /// It starts at a cache line, is zero, is used for nothing else, and is there as long as `memory` lives.
    pub(super) unsafe fn new(engine: &Rc<Engine>, offset: usize, len: usize, memory: Box<dyn Any>) -> Workspace {
        let stores = engine.routes.stores();
        Workspace {
            engine: Rc::clone(engine),
            base: engine.node.origin().wrapping_add(offset),
            stride: 1 << engine.node.stride_log2(),
            offset,
            len,
            stores: [stores.start, stores.len()],
            atomics: engine.routes.processor_atomics(),
            _memory: memory,
        }
    }

    #[inline]
    fn check(&self, at: usize, len: usize) {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes from {at} of a workspace of {}", self.len);
    }

    /// Where these bytes lie in this process, in the slot of `rank`, which is mapped.
    #[inline]
    fn at(&self, rank: usize, at: usize, len: usize) -> *mut u8 {
        self.check(at, len);
        // SAFETY: slots lie a stride apart, and the workspace at the same offset in each; in bounds, as just checked.
        unsafe { self.base.wrapping_byte_add(rank * self.stride).add(at) }
    }

    /// The word at `at` in the slot of `rank`, which is mapped.
    #[inline]
    fn word(&self, rank: usize, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(size_of::<u64>()), "a word at {at}");
        // SAFETY: in bounds and aligned; words are only accessed as atomics.
        unsafe { AtomicU64::from_ptr(self.at(rank, at, size_of::<u64>()).cast()) }
    }

    #[inline]
    fn is_stored(&self, rank: usize) -> bool {
        rank.wrapping_sub(self.stores[0]) < self.stores[1]
    }

    /// Writes `bytes` at a rank. The bytes are visible there before any later signal of this rank to it.
    ///
    /// # Errors
    /// Over a network [`crate::Error::PeerLost`].
    #[inline]
    pub(super) fn put(&self, rank: usize, at: usize, bytes: &[u8]) -> Result<()> {
        if !self.is_stored(rank) {
            self.check(at, bytes.len());
            return self.engine.remote_put(rank, self.offset + at, bytes);
        }
        // SAFETY: in bounds; `bytes` is private memory, so nothing overlaps.
        unsafe { copy::copy(self.at(rank, at, bytes.len()), bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Reads bytes of a rank.
    ///
    /// # Errors
    /// Over a network [`crate::Error::PeerLost`].
    #[inline]
    pub(super) fn get(&self, rank: usize, at: usize, bytes: &mut [u8]) -> Result<()> {
        if !self.is_stored(rank) {
            self.check(at, bytes.len());
            return self.engine.remote_get("a collective of a team", rank, self.offset + at, bytes);
        }
        // SAFETY: in bounds; `bytes` is private memory, so nothing overlaps.
        unsafe { copy::copy(bytes.as_mut_ptr(), self.at(rank, at, bytes.len()), bytes.len()) };
        Ok(())
    }

    /// Reads bytes of this rank.
    #[inline]
    pub(super) fn read(&self, at: usize, bytes: &mut [u8]) {
        // SAFETY: in bounds; `bytes` is private memory, so nothing overlaps.
        unsafe { copy::copy(bytes.as_mut_ptr(), self.at(self.engine.rank, at, bytes.len()), bytes.len()) };
    }

    /// A word of this rank's own.
    #[inline]
    pub(super) fn load(&self, at: usize) -> u64 {
        self.word(self.engine.rank, at).load(Ordering::Relaxed)
    }

    /// Writes a word of this rank's own.
    #[inline]
    pub(super) fn store(&self, at: usize, value: u64) {
        self.word(self.engine.rank, at).store(value, Ordering::Relaxed);
    }

    /// Adds one to a word of a rank, after everything that this rank has put there before.
    ///
    /// # Errors
    /// Over a network [`crate::Error::PeerLost`].
    #[inline]
    pub(super) fn signal(&self, rank: usize, at: usize) -> Result<()> {
        if rank >= self.atomics {
            return self.signal_remote(rank, at);
        }
        // Pairs with the Acquire load in `signals`.
        self.word(rank, at).fetch_add(1, Ordering::Release);
        self.engine.interface.wake_if_asleep(rank);
        Ok(())
    }

    /// Writes `value` to a word of a mapped rank, after everything that this rank has put there before.
    #[inline]
    pub(super) fn raise(&self, rank: usize, at: usize, value: u64) {
        debug_assert!(rank < self.atomics, "of mapped ranks only");
        // Pairs with the Acquire load in `signals`.
        self.word(rank, at).store(value, Ordering::Release);
        self.engine.interface.wake_if_asleep(rank);
    }

    #[cold]
    fn signal_remote(&self, rank: usize, at: usize) -> Result<()> {
        self.check(at, size_of::<u64>());
        self.engine.remote_ring(rank, self.offset + at)?;
        self.engine.settle_mapped(rank);
        Ok(())
    }

    /// The signals that a word of this rank has received, or the value that a peer has raised it to. A rank that sees the count sees all data put
    /// before it.
    #[inline]
    pub(super) fn signals(&self, at: usize) -> u64 {
        // Pairs with the Release in `signal`, in `raise`, or of the network.
        self.word(self.engine.rank, at).load(Ordering::Acquire)
    }

    /// The offset, in every slot, of this place in the workspace.
    #[inline]
    pub(super) fn in_slot(&self, at: usize) -> usize {
        self.check(at, size_of::<u64>());
        self.offset + at
    }
}
