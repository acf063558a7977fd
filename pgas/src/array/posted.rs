//! The shared phase in future form: posted when called, awaited later, many at a time.

use std::ops::Add;

use bellwether_runtime::{AtomicElement, Placed, Pod, Posted, Result, Word};

use super::index::Position;
use super::{GlobalArray, Shared};

impl<T: Pod, const D: usize> GlobalArray<T, D, Shared> {
    /// The future form of [`GlobalArray::get`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an index outside, at once.
    ///
    /// # Examples
    /// ```
    /// use bellwether::array::{GlobalArray, Layout};
    /// # bellwether::threads(3, |world| {
    /// let array = GlobalArray::<u64, 1>::new(world, Layout::cyclic([9], world.size())?)?.share(world)?;
    /// let posted: Vec<_> = (0..9).map(|i| array.fetch_add_async(i, 1)).collect::<bellwether::Result<_>>()?;
    /// assert!(bellwether::Posted::wait_all(posted)?.into_iter().all(|before| before < world.size() as u64));
    /// world.barrier()?;
    /// assert_eq!(array.get_async([4])?.wait()?, world.size() as u64);
    /// world.barrier()
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn get_async(&self, index: impl Position<D>) -> Result<Posted<T>> {
        let (rank, at) = self.owner("get_async", index).placed()?;
        Ok(self.memory.get_async(rank, at))
    }

    /// The future form of [`GlobalArray::put`]: ready when the element is visible at its owner.
    ///
    /// # Errors
    /// As [`GlobalArray::get_async`].
    #[track_caller]
    pub fn put_async(&self, index: impl Position<D>, value: T) -> Result<Posted<()>> {
        let (rank, at) = self.owner("put_async", index).placed()?;
        Ok(self.memory.put_async(rank, at, value))
    }

    /// As [`GlobalArray::put_async`], but does not wait for room to post it: see
    /// [`Symmetric::try_put_async`](crate::Symmetric::try_put_async).
    ///
    /// # Errors
    /// As [`GlobalArray::get_async`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    #[track_caller]
    pub fn try_put_async(&self, index: impl Position<D>, value: T) -> Result<Posted<()>> {
        let (rank, at) = self.owner("try_put_async", index).placed()?;
        self.memory.try_put_async(rank, at, value)
    }

    fn owner(&self, operation: &'static str, index: impl Position<D>) -> Result<(usize, usize)> {
        let index = index.position();
        self.locate(index).ok_or_else(|| self.layout.outside(operation, index))
    }
}

impl<T: Word, const D: usize> GlobalArray<T, D, Shared> {
    /// The future form of [`GlobalArray::fetch_update`]. Over a network this call posts the read of the element, and each further
    /// step is made when the future is polled after the answer to the previous step. Many such futures are fast together if
    /// they are polled in turn, by [`Posted::wait_all`] or a join of futures. A future that is dropped before it is ready may have
    /// changed the element or not. On one node the update is done when this returns.
    ///
    /// # Errors
    /// As [`GlobalArray::get_async`].
    #[track_caller]
    pub fn fetch_update_async(
        &self,
        index: impl Position<D>,
        change: impl FnMut(T) -> T + 'static,
    ) -> Result<Posted<T>> {
        let (rank, at) = self.owner("fetch_update_async", index).placed()?;
        Ok(self.memory.fetch_update_async(rank, at, change))
    }

    /// The future form of [`GlobalArray::accumulate`]; see [`GlobalArray::fetch_update_async`].
    ///
    /// # Errors
    /// As [`GlobalArray::get_async`].
    ///
    /// # Examples
    /// ```
    /// use bellwether::array::{GlobalArray, Layout};
    /// # bellwether::threads(3, |world| {
    /// let sums = GlobalArray::<f64, 1>::new(world, Layout::cyclic([9], world.size())?)?.share(world)?;
    /// let posted = (0..9).map(|i| sums.accumulate_async(i, 0.5)).collect::<bellwether::Result<Vec<_>>>()?;
    /// // Not one after the other.
    /// bellwether::Posted::wait_all(posted)?;
    /// world.barrier()?;
    /// assert_eq!(sums.get([4])?, 0.5 * world.size() as f64);
    /// world.barrier()
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn accumulate_async(&self, index: impl Position<D>, value: T) -> Result<Posted<T>>
    where
        T: Add<Output = T>,
    {
        let (rank, at) = self.owner("accumulate_async", index).placed()?;
        Ok(self.memory.fetch_update_async(rank, at, move |element| element + value))
    }
}

macro_rules! atomics {
    ($($operation:ident, $future:ident;)*) => {
        impl<T: AtomicElement, const D: usize> GlobalArray<T, D, Shared> {
            $(#[doc = concat!("The future form of [`GlobalArray::", stringify!($operation), "`].")]
            ///
            /// # Errors
            /// As [`GlobalArray::get_async`].
            #[track_caller]
            pub fn $future(&self, index: impl Position<D>, value: T) -> Result<Posted<T>> {
                let (rank, at) = self.owner(stringify!($future), index).placed()?;
                Ok(self.memory.$future(rank, at, value))
            })*

            /// The future form of [`GlobalArray::compare_swap`].
            ///
            /// # Errors
            /// As [`GlobalArray::get_async`].
            #[track_caller]
            pub fn compare_swap_async(&self, index: impl Position<D>, expected: T, new: T) -> Result<Posted<T>> {
                let (rank, at) = self.owner("compare_swap_async", index).placed()?;
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
