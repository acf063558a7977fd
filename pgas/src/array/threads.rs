//! The shared phase for several threads of a rank, each with a context.

use bellwether_runtime::{AtomicElement, Placed, PlainData, Result, ThreadArray, ThreadContext};

use super::index::Position;
use super::layout::Layout;
use super::{GlobalArray, Shared};

impl<T: PlainData, const D: usize> GlobalArray<T, D, Shared> {
    /// The array for any thread of this rank, each with a [context](crate::World::context) of its own. Local. It borrows
    /// the array, which so stays in its shared phase.
    ///
    /// # Examples
    /// Each of two threads writes every other element.
    /// ```
    /// use bellwether::{GlobalArray, Layout};
    /// # bellwether::threads(2, |world| {
    /// let numbers = GlobalArray::<u64, 1>::new(world, Layout::block([100], world.size())?)?.share(world)?;
    /// if world.rank() == 0 {
    ///     let array = &numbers.for_threads();
    ///     let contexts = [world.context()?, world.context()?];
    ///     std::thread::scope(|scope| {
    ///         for (first, context) in contexts.into_iter().enumerate() {
    ///             scope.spawn(move || {
    ///                 (first..100).step_by(2).try_for_each(|i| array.put(&context, i, i as u64))?;
    ///                 context.flush_all()
    ///             });
    ///         }
    ///     });
    /// }
    /// let numbers = numbers.localize(world)?;
    /// assert!(numbers.iter().all(|([i], x)| *x == i as u64));
    /// # world.barrier()
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    pub fn for_threads(&self) -> ThreadGlobalArray<'_, T, D> {
        ThreadGlobalArray { memory: self.memory.for_threads(), layout: &self.layout, ghost: self.ghost }
    }
}

/// A [`GlobalArray`] in its shared phase for any thread of its rank: any element, by the thread's
/// [context](crate::World::context). Made by [`GlobalArray::for_threads`].
#[derive(Debug, Clone, Copy)]
pub struct ThreadGlobalArray<'a, T, const D: usize> {
    memory: ThreadArray<'a, T>,
    layout: &'a Layout<D>,
    ghost: [usize; D],
}

impl<T: PlainData, const D: usize> ThreadGlobalArray<'_, T, D> {
    /// Reads one element.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an index outside; as [`ThreadContext::get`].
    #[inline]
    #[track_caller]
    pub fn get(&self, context: &ThreadContext, index: impl Position<D>) -> Result<T> {
        let (rank, at) = self.locate("get", index.position()).placed()?;
        context.get(&self.memory, rank, at)
    }

    /// Writes one element. It is in effect there when [`ThreadContext::flush_all`] returns.
    ///
    /// # Errors
    /// As [`ThreadGlobalArray::get`].
    #[inline]
    #[track_caller]
    pub fn put(&self, context: &ThreadContext, index: impl Position<D>, value: T) -> Result<()> {
        let (rank, at) = self.locate("put", index.position()).placed()?;
        context.put(&self.memory, rank, at, value)
    }

    /// As [`ThreadGlobalArray::put`], but does not wait for room: see [`ThreadContext::try_put`].
    ///
    /// # Errors
    /// As [`ThreadGlobalArray::put`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    #[track_caller]
    pub fn try_put(&self, context: &ThreadContext, index: impl Position<D>, value: T) -> Result<()> {
        let (rank, at) = self.locate("try_put", index.position()).placed()?;
        context.try_put(&self.memory, rank, at, value)
    }

    #[inline(always)]
    fn locate(&self, operation: &'static str, index: [usize; D]) -> Result<(usize, usize)> {
        self.layout.place(index, &self.ghost).ok_or_else(|| self.layout.outside(operation, index))
    }
}

macro_rules! atomics {
    ($($(#[$doc:meta])* $operation:ident;)*) => {
        /// Atomic operations, as [those of arrays](GlobalArray::fetch_add).
        impl<T: AtomicElement, const D: usize> ThreadGlobalArray<'_, T, D> {
            $($(#[$doc])*
            ///
            /// # Errors
            /// As [`ThreadGlobalArray::get`].
            #[inline]
            #[track_caller]
            pub fn $operation(&self, context: &ThreadContext, index: impl Position<D>, value: T) -> Result<T> {
                let (rank, at) = self.locate(stringify!($operation), index.position()).placed()?;
                context.$operation(&self.memory, rank, at, value)
            })*

            /// Stores `new` if the element is `expected`; returns what it was before.
            ///
            /// # Errors
            /// As [`ThreadGlobalArray::get`].
            #[inline]
            #[track_caller]
            pub fn compare_swap(
                &self,
                context: &ThreadContext,
                index: impl Position<D>,
                expected: T,
                new: T,
            ) -> Result<T> {
                let (rank, at) = self.locate("compare_swap", index.position()).placed()?;
                context.compare_swap(&self.memory, rank, at, expected, new)
            }
        }
    };
}

atomics! {
    /// Adds `value` to an element, around the end; returns what it was before.
    fetch_add;
    /// Ands `value` into an element; returns what it was before.
    fetch_and;
    /// Ors `value` into an element; returns what it was before.
    fetch_or;
    /// Xors `value` into an element; returns what it was before.
    fetch_xor;
    /// Stores `value` in an element; returns what it was before.
    swap;
}
