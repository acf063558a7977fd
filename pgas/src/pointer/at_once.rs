//! Pointers and slices: puts that answer at once.

use bellwether_runtime::{Placed, Pod, Result, World};

use super::spread::check_pairs;
use super::{GlobalPtr, GlobalSlice};

impl<T: Pod> GlobalPtr<T> {
    /// As [`GlobalPtr::put`], but does not wait for room: see [`Symmetric::try_put`](crate::Symmetric::try_put).
    ///
    /// # Errors
    /// As [`GlobalPtr::put`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    ///
    /// # Examples
    /// ```
    /// use bellwether::{Error, GlobalPtr};
    /// # bellwether::threads(2, |world| {
    /// let numbers = world.alloc::<u64>(100)?;
    /// for i in 0..100 {
    ///     let pointer = GlobalPtr::to(&numbers, 1 - world.rank(), i)?;
    ///     while let Err(error) = pointer.try_put(world, 7) {
    ///         let Error::WouldBlock { .. } = error else { return Err(error) };
    ///         // Or something useful.
    ///         world.poll()?;
    ///     }
    /// }
    /// world.barrier()?;
    /// assert_eq!(numbers.load(99), 7);
    /// # world.barrier()
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn try_put(&self, world: &World, value: T) -> Result<()> {
        self.lend(world, "try_put").placed()?.try_put(self.rank(), self.index(), value)
    }
}

/// # Puts that answer at once
/// All elements are put, or none: see [`Symmetric::try_put`](crate::Symmetric::try_put).
impl<T: Pod> GlobalSlice<T> {
    /// As [`GlobalSlice::put`], but does not wait for room.
    ///
    /// # Errors
    /// As [`GlobalSlice::put`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    #[track_caller]
    pub fn try_put(&self, world: &World, values: &[T]) -> Result<()> {
        self.check_count("try_put", values.len()).placed()?;
        let start = self.start();
        start.lend(world, "try_put").placed()?.try_put_slice(start.rank(), start.index(), values)
    }

    /// As [`GlobalSlice::put_strided`], but does not wait for room.
    ///
    /// # Errors
    /// As [`GlobalSlice::put_strided`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    #[track_caller]
    pub fn try_put_strided(&self, world: &World, start: usize, stride: usize, values: &[T]) -> Result<()> {
        let array = self.strided(world, "try_put_strided", start, stride, values.len()).placed()?;
        array.try_put_pieces(&self.pieces((0..values.len()).map(|step| start + step * stride)), values)
    }

    /// As [`GlobalSlice::scatter`], but does not wait for room.
    ///
    /// # Errors
    /// As [`GlobalSlice::scatter`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    #[track_caller]
    pub fn try_scatter(&self, world: &World, indices: &[usize], values: &[T]) -> Result<()> {
        check_pairs("try_scatter", indices, values).placed()?;
        let array = self.indexed(world, "try_scatter", indices).placed()?;
        array.try_put_pieces(&self.pieces(indices.iter().copied()), values)
    }
}
