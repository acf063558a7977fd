//! The symmetric heap and the static data by the numbers of their segments.

use bytemuck::Pod;

use super::{Symmetric, World};
use crate::engine::STATICS;

impl World {
    /// Lets the calls that take the number of a segment take two more: 0, the symmetric heap, and 1, the symmetric static data
    /// ([`Builder::static_data`](crate::Builder::static_data)). Holds for this rank's calls on all ranks' segments, by the world, by
    /// [operations](World::operation) and by [contexts](World::context), from now on. Not collective; peers do nothing.
    ///
    /// [`Symmetric::segment_offset`] and [`World::static_offset`] give offsets in them, which are the same at all ranks. A put, get or
    /// atomic there is what it is on other segments; the network reaches both at all times, so none needs progress at the target. Atomics
    /// on the heap are atomic to those of [`Symmetric`].
    ///
    /// # Safety
    /// The caller guarantees for each access of this rank to segment 0 or 1, from now on, that all its bytes belong to one block of the
    /// heap that the target has allocated, or to one variable; that nobody holds a reference to what is written there, nor a
    /// unique one to what is read; and that what it writes is a valid value there. Memory that the library has allocated for
    /// itself, in bells for example, is not accessed.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::AtomicOp;
    /// bellwether::threads(2, |world| {
    ///     let numbers = world.alloc::<u64>(4)?;
    ///     // SAFETY: all accesses below are to `numbers`, of which any bits are valid.
    ///     unsafe { world.allow_reserved_segments() };
    ///     let other = 1 - world.rank();
    ///     world.put_segment(other, 0, numbers.segment_offset(2), &7u64.to_ne_bytes())?;
    ///     let before: u64 = world.fetch_segment(AtomicOp::Add, other, 0, numbers.segment_offset(2), 1)?;
    ///     assert_eq!(before, 7);
    ///     world.barrier()?;
    ///     assert_eq!(numbers.load(2), 8);
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    pub unsafe fn allow_reserved_segments(&self) {
        self.engine.mapped_segments.allow_reserved();
    }

    /// The offset of `variable`, which is static, in segment 1. `None` if static data is not symmetric here, or it lies elsewhere: on the
    /// stack, on the program's own heap, in a library, or in data that is read-only.
    pub fn static_offset<T>(&self, variable: *const T) -> Option<usize> {
        let (found, _) = self.engine.own_segment(STATICS)?;
        let offset = variable.addr().checked_sub(found.start)?;
        (offset <= found.len && size_of::<T>() <= found.len - offset).then_some(offset)
    }
}

impl<T: Pod> Symmetric<T> {
    /// The offset of element `index` in segment 0, the symmetric heap; the same at all ranks. See
    /// [`World::allow_reserved_segments`].
    ///
    /// # Panics
    /// If the index is beyond the length.
    #[track_caller]
    pub fn segment_offset(&self, index: usize) -> usize {
        assert!(index <= self.len(), "element {index} of {}", self.len());
        self.offset() - self.engine().layout.heap + index * size_of::<T>()
    }
}
