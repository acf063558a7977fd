//! Symmetric memory as every thread of a rank may use it.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::Symmetric;
use crate::error::{CalledAt, Error, Placed, Result};
use crate::memory::copy;
use crate::memory::joined::Joined;
use crate::memory::limits::page_size;

/// A [`Symmetric`] array whose parts are all mapped, for threads beside that of the world: puts and gets need no progress.
///
/// Which rings, waits or messages does not: that belongs to the world's thread.
#[derive(Debug)]
pub struct Mapped<'a, T> {
    base: *mut T,
    stride: usize,
    ranks: usize,
    len: usize,
    array: PhantomData<&'a T>,
}

impl<T> Clone for Mapped<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Mapped<'_, T> {}

// SAFETY: addresses of memory that outlives the borrow, touched through atomics and the runtime's copies alone, which any
// thread may do; elements are plain data.
unsafe impl<T: Pod> Send for Mapped<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Pod> Sync for Mapped<'_, T> {}

impl<T: Pod> Symmetric<T> {
    /// The array for all threads of this rank; `None` where ranks reach each other over a network.
    pub fn mapped(&self) -> Option<Mapped<'_, T>> {
        let engine = self.engine();
        let (base, stride) = (self.ptr(0)?, 1 << engine.node.stride_log2());
        let ranks = engine.routes.processor_atomics();
        (ranks > 0).then_some(Mapped { base, stride, ranks, len: self.len(), array: PhantomData })
    }

    /// All parts one after the other, in the order of the ranks, at addresses beside the usual ones; valid as long as this
    /// handle and the mapping are there. Where the parts are whole pages ([`World::alloc_aligned`](super::World::alloc_aligned))
    /// and all mapped; else `None`. `None` also where it would lose more than it gives: for more than 64 ranks, for huge pages
    /// (reserved ones, or transparent ones and parts of 2 MiB and more), and where this process has many such mappings.
    pub fn joined(&self) -> Option<Joined> {
        let (engine, bytes, page) = (self.engine(), self.len() * size_of::<T>(), page_size());
        let whole = bytes.is_multiple_of(page) && self.offset().is_multiple_of(page);
        (whole && engine.routes.processor_atomics() == engine.size)
            .then(|| engine.node.join(self.offset(), bytes))
            .flatten()
    }
}

impl<T: Pod> Mapped<'_, T> {
    /// Reads elements of `rank`, from `start`, into `values`.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::OutOfBounds`]; then `values` is as before.
    #[inline]
    #[track_caller]
    pub fn get_slice(&self, rank: usize, start: usize, values: &mut [T]) -> Result<()> {
        (|| -> Result<()> {
            let at = self.at("get_slice", rank, start, values.len())?;
            // SAFETY: in range, as just checked; `values` is private memory.
            unsafe { copy::copy(values.as_mut_ptr().cast(), at.cast(), size_of_val(values)) };
            Ok(())
        })()
        .placed_here()
    }

    /// Writes `values` at `rank`, from element `start`.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::OutOfBounds`]; then nothing was written.
    #[inline]
    #[track_caller]
    pub fn put_slice(&self, rank: usize, start: usize, values: &[T]) -> Result<()> {
        (|| -> Result<()> {
            let at = self.at("put_slice", rank, start, values.len())?;
            // SAFETY: as above.
            unsafe { copy::copy(at.cast(), values.as_ptr().cast(), size_of_val(values)) };
            Ok(())
        })()
        .placed_here()
    }

    /// Reads one element of `rank`.
    ///
    /// # Errors
    /// As [`Mapped::get_slice`].
    #[inline]
    #[track_caller]
    pub fn get(&self, rank: usize, index: usize) -> Result<T> {
        (|| -> Result<T> {
            let at = self.at("get", rank, index, 1)?;
            // SAFETY: in range, as just checked.
            Ok(unsafe { copy::load(at) })
        })()
        .placed_here()
    }

    #[inline]
    fn at(&self, operation: &'static str, rank: usize, start: usize, count: usize) -> Result<*mut T> {
        if rank >= self.ranks {
            return Err(Error::RankOutOfRange { operation, rank, size: self.ranks, place: CalledAt::default() });
        }
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
        // SAFETY: slots lie a stride apart, and the array at the same offset in each; in range, as just checked.
        Ok(unsafe { self.base.byte_add(rank * self.stride).add(start) })
    }
}
