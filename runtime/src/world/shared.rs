//! Handles to symmetric memory and bells for any thread of a rank.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::{Bell, Symmetric};
use crate::engine::{Claim, Identity, Ring, Stream};
use crate::error::{CalledAt, Error, Result};

/// A [`Symmetric`] array for any thread of its rank, each with a [context](super::World::context) of its own. Copies are the same
/// array.
///
/// It borrows the array, so the memory stays where it is, and in the phase that it is in, as long as the handle is used.
#[derive(Debug)]
pub struct ThreadArray<'a, T> {
    /// The array in the slot of rank 0.
    base: *mut T,
    stride: usize,
    /// First of the ranks whose part is put to and read directly, and how many there are.
    mapped: [usize; 2],
    /// Ranks whose part is a pointer away, also to atomics: all, or none.
    reach: usize,
    len: usize,
    /// Offset in every slot.
    offset: usize,
    rank: Identity,
    array: PhantomData<&'a Symmetric<T>>,
}

impl<T> Clone for ThreadArray<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ThreadArray<'_, T> {}

// SAFETY:
// - the addresses are of memory that outlives the borrow, touched through atomics and the runtime's copies alone, which any
//   thread may do; elements are plain data.
unsafe impl<T: Pod> Send for ThreadArray<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Pod> Sync for ThreadArray<'_, T> {}

impl<T: Pod> Symmetric<T> {
    /// The array for any thread of this rank; see [`World::context`](super::World::context).
    pub fn for_threads(&self) -> ThreadArray<'_, T> {
        let engine = self.engine();
        let mapped = engine.routes.stores();
        ThreadArray {
            base: engine.node.origin().wrapping_add(self.offset()).cast(),
            stride: 1 << engine.node.stride_log2(),
            mapped: [mapped.start, mapped.len()],
            reach: engine.routes.processor_atomics(),
            len: self.len(),
            offset: self.offset(),
            rank: engine.identity(),
            array: PhantomData,
        }
    }
}

impl<T: Pod> ThreadArray<'_, T> {
    /// Elements at each rank.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where these elements are in mapped memory, if they exist and are put to and read directly.
    #[inline(always)]
    pub(super) fn mapped(&self, rank: usize, start: usize, count: usize) -> Option<*mut T> {
        let is_mapped = rank.wrapping_sub(self.mapped[0]) < self.mapped[1];
        // SAFETY: slots lie a stride apart, and the array at the same offset in each; in range, as just checked.
        (is_mapped && start <= self.len && count <= self.len - start)
            .then(|| unsafe { self.base.wrapping_byte_add(rank * self.stride).add(start) })
    }

    /// The element, if it exists and is a pointer away, also to atomics.
    #[inline(always)]
    pub(super) fn element(&self, rank: usize, index: usize) -> Option<*mut T> {
        // SAFETY: as in `mapped`.
        (rank < self.reach && index < self.len)
            .then(|| unsafe { self.base.wrapping_byte_add(rank * self.stride).add(index) })
    }

    /// Where these elements lie in the slot of `rank`, if they exist and the array is of the rank of `stream`.
    #[cold]
    pub(super) fn range(
        &self,
        stream: &Stream,
        operation: &'static str,
        rank: usize,
        start: usize,
        count: usize,
    ) -> Result<usize> {
        if !stream.is_of(self.rank) {
            return Err(foreign(operation));
        }
        stream.check_rank(operation, rank)?;
        if start > self.len || count > self.len - start {
            return Err(Error::OutOfBounds {
                operation,
                rank,
                start,
                count,
                available: self.len,
                place: CalledAt::default(),
            });
        }
        Ok(self.offset + start * size_of::<T>())
    }
}

#[cold]
fn foreign(operation: &'static str) -> Error {
    let why = "the handle is of another world, or of another rank, than the context".into();
    Error::InvalidArgument { operation, why }
}

/// A [`Bell`] for any thread of its rank, to be rung by a [context](super::World::context).
#[derive(Debug, Clone, Copy)]
pub struct ThreadBell<'a> {
    /// Offsets in every slot of the words that contexts add to: by the processor, and over a network.
    words: [usize; 2],
    claim: Claim,
    own: usize,
    rank: Identity,
    bell: PhantomData<&'a Bell>,
}

// SAFETY: offsets and numbers; rings are atomic. The bell itself is not touched.
unsafe impl Send for ThreadBell<'_> {}
// SAFETY: as above.
unsafe impl Sync for ThreadBell<'_> {}

impl Bell {
    /// The bell for any thread of this rank, to be rung with [`ThreadContext::ring`](super::ThreadContext::ring). Only the world's
    /// thread waits for it.
    pub fn for_threads(&self) -> ThreadBell<'_> {
        let engine = self.engine();
        let words = self.words.for_contexts(engine);
        ThreadBell { words, claim: self.claim(), own: engine.rank, rank: engine.identity(), bell: PhantomData }
    }
}

impl ThreadBell<'_> {
    /// A ring of this rank, and of which rank and world the bell is.
    pub(super) fn for_event(&self) -> (Ring, Identity) {
        (Ring { rank: self.own, words: self.words, claim: self.claim }, self.rank)
    }

    /// Rings at `rank`.
    #[inline]
    pub(super) fn ring(&self, stream: &Stream, operation: &'static str, rank: usize) -> Result<()> {
        let [mapped, remote] = self.words(stream, operation, rank)?;
        stream.ring(operation, rank, mapped, remote)
    }

    /// The words of it at `rank`, if that exists and the bell is of the rank of `stream`.
    #[inline]
    pub(super) fn words(&self, stream: &Stream, operation: &'static str, rank: usize) -> Result<[usize; 2]> {
        if !stream.is_of(self.rank) {
            return Err(foreign(operation));
        }
        stream.check_rank(operation, rank)?;
        Ok(self.words)
    }
}
