//! Operations on global pointers and slices in future form: the call posts the operation, the program waits for many later.

use bellwether_runtime::{AtomicElement, Placed, Pod, Posted, Result, World};

use super::{GlobalPtr, GlobalSlice};

impl<T: Pod> GlobalPtr<T> {
    /// The future form of [`GlobalPtr::get`].
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale), from this call. All other errors come from the future.
    ///
    /// # Examples
    /// Reads that are posted together cost one round trip in all, not one each.
    /// ```
    /// use bellwether::GlobalPtr;
    /// # bellwether::threads(3, |world| {
    /// let array = world.alloc::<u64>(1)?;
    /// array.store(0, 10 * world.rank() as u64);
    /// world.barrier()?;
    /// let everywhere = (0..world.size()).map(|rank| GlobalPtr::to(&array, rank, 0)?.get_async(world));
    /// let posted = everywhere.collect::<bellwether::Result<Vec<_>>>()?;
    /// assert_eq!(bellwether::Posted::wait_all(posted)?, [0, 10, 20]);
    /// world.barrier()
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn get_async(&self, world: &World) -> Result<Posted<T>> {
        Ok(self.lend(world, "get_async").placed()?.get_async(self.rank(), self.index()))
    }

    /// The future form of [`GlobalPtr::put`]: ready when the element is visible at its rank.
    ///
    /// # Errors
    /// As [`GlobalPtr::get_async`].
    #[track_caller]
    pub fn put_async(&self, world: &World, value: T) -> Result<Posted<()>> {
        Ok(self.lend(world, "put_async").placed()?.put_async(self.rank(), self.index(), value))
    }
}

impl<T: Pod> GlobalSlice<T> {
    /// The future form of [`GlobalSlice::get`].
    ///
    /// # Errors
    /// As [`GlobalPtr::get_async`].
    #[track_caller]
    pub fn get_async(&self, world: &World) -> Result<Posted<Vec<T>>> {
        let start = self.start();
        Ok(start.lend(world, "get_async").placed()?.get_slice_async(start.rank(), start.index(), self.len()))
    }

    /// The future form of [`GlobalSlice::put`]: ready when the elements are visible at their rank. The caller may change
    /// `values` as soon as this returns.
    ///
    /// # Errors
    /// As [`GlobalSlice::put`] for a wrong number of values, and [`GlobalPtr::get_async`].
    #[track_caller]
    pub fn put_async(&self, world: &World, values: &[T]) -> Result<Posted<()>> {
        self.check_count("put_async", values.len()).placed()?;
        let start = self.start();
        Ok(start.lend(world, "put_async").placed()?.put_slice_async(start.rank(), start.index(), values))
    }
}

macro_rules! atomics {
    ($($operation:ident, $future:ident;)*) => {
        impl<T: AtomicElement> GlobalPtr<T> {
            $(#[doc = concat!("The future form of [`GlobalPtr::", stringify!($operation), "`].")]
            ///
            /// # Errors
            /// As [`GlobalPtr::get_async`].
            #[track_caller]
            pub fn $future(&self, world: &World, value: T) -> Result<Posted<T>> {
                Ok(self.lend(world, stringify!($future)).placed()?.$future(self.rank(), self.index(), value))
            })*

            /// The future form of [`GlobalPtr::compare_swap`].
            ///
            /// # Errors
            /// As [`GlobalPtr::get_async`].
            #[track_caller]
            pub fn compare_swap_async(&self, world: &World, expected: T, new: T) -> Result<Posted<T>> {
                let array = self.lend(world, "compare_swap_async").placed()?;
                Ok(array.compare_swap_async(self.rank(), self.index(), expected, new))
            }
        }
    };
}

atomics! {
    fetch_add, fetch_add_async;
    fetch_and, fetch_and_async;
    fetch_or, fetch_or_async;
    fetch_xor, fetch_xor_async;
    swap, swap_async;
}
