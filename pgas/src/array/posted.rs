//! The shared phase in future form: posted when called, awaited later, many at a time.

use bellwether_runtime::{AtomicElement, Pod, Posted, Result};

use super::index::Position;
use super::{GlobalArray, Shared};

impl<T: Pod, const D: usize> GlobalArray<T, D, Shared> {
    /// The future form of [`GlobalArray::get`].
    ///
    /// # Errors
    /// [`bellwether_runtime::Error::InvalidArgument`] for an index outside, at once.
    ///
    /// # Examples
    /// ```
    /// use bellwether::array::{GlobalArray, Layout};
    /// # bellwether::threads(3, |world| {
    /// let array = GlobalArray::<u64, 1>::new(world, Layout::cyclic([9], world.size())?)?.share(world)?;
    /// let posted: Vec<_> = (0..9).map(|i| array.fetch_add_async(i, 1)).collect::<bellwether::Result<_>>()?;
    /// for add in posted {
    ///     assert!(add.wait()? < world.size() as u64);
    /// }
    /// world.barrier()?;
    /// assert_eq!(array.get_async([4])?.wait()?, world.size() as u64);
    /// world.barrier()
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    pub fn get_async(&self, index: impl Position<D>) -> Result<Posted<T>> {
        let (rank, at) = self.owner("get_async", index)?;
        Ok(self.memory.get_async(rank, at))
    }

    /// The future form of [`GlobalArray::put`]: ready when the element is visible at its owner.
    ///
    /// # Errors
    /// As [`GlobalArray::get_async`].
    pub fn put_async(&self, index: impl Position<D>, value: T) -> Result<Posted<()>> {
        let (rank, at) = self.owner("put_async", index)?;
        Ok(self.memory.put_async(rank, at, value))
    }

    fn owner(&self, operation: &'static str, index: impl Position<D>) -> Result<(usize, usize)> {
        let index = index.position();
        self.locate(index).ok_or_else(|| self.layout.outside(operation, index))
    }
}

macro_rules! atomics {
    ($($operation:ident, $future:ident;)*) => {
        impl<T: AtomicElement, const D: usize> GlobalArray<T, D, Shared> {
            $(#[doc = concat!("The future form of [`GlobalArray::", stringify!($operation), "`].")]
            ///
            /// # Errors
            /// As [`GlobalArray::get_async`].
            pub fn $future(&self, index: impl Position<D>, value: T) -> Result<Posted<T>> {
                let (rank, at) = self.owner(stringify!($future), index)?;
                Ok(self.memory.$future(rank, at, value))
            })*

            /// The future form of [`GlobalArray::compare_swap`].
            ///
            /// # Errors
            /// As [`GlobalArray::get_async`].
            pub fn compare_swap_async(&self, index: impl Position<D>, expected: T, new: T) -> Result<Posted<T>> {
                let (rank, at) = self.owner("compare_swap_async", index)?;
                Ok(self.memory.compare_swap_async(rank, at, expected, new))
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
