//! The shared phase: any element, one-sided.

use std::ops::Add;

use bellwether_runtime::memory::copy;
use bellwether_runtime::{AtomicElement, Placed, Pod, Result, Word};

use super::index::Position;
use super::{GlobalArray, Shared};
use crate::pointer::GlobalPtr;

impl<T: Pod, const D: usize> GlobalArray<T, D, Shared> {
    /// Reads one element. On one node index arithmetic and a load; nothing is needed from its owner.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an index outside. Over a network as
    /// [`Symmetric::get`](crate::Symmetric::get).
    #[inline(always)]
    #[track_caller]
    pub fn get(&self, index: impl Position<D>) -> Result<T> {
        let index = index.position();
        if D == 1 {
            if let Some(at) = self.flat.straight(index[0]) {
                // SAFETY: as below.
                return Ok(unsafe { copy::load(at) });
            }
            // So that a loop has its registers for that alone.
            std::hint::cold_path();
        }
        if let Some(at) = self.address(index) {
            // SAFETY: an element of ours in mapped memory; in this phase it is only touched through `copy` and atomics.
            return Ok(unsafe { copy::load(at) });
        }
        self.get_apart(index)
    }

    /// Where an element is in mapped memory, if there is another short way to it.
    #[inline(always)]
    fn address(&self, index: [usize; D]) -> Option<*mut T> {
        if D == 1 { self.flat.address(index[0]) } else { self.tables.address(&index) }
    }

    /// Not inlined, so that the short path stays short.
    #[inline(never)]
    #[track_caller]
    fn get_apart(&self, index: [usize; D]) -> Result<T> {
        match self.locate(index) {
            Some((rank, at)) => self.memory.get(rank, at),
            None => Err(self.layout.outside("get", index)).placed(),
        }
    }

    /// Writes one element. On one node this is index arithmetic and a store. [`World::fence`](crate::World::fence) says when other
    /// ranks see it.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline(always)]
    #[track_caller]
    pub fn put(&self, index: impl Position<D>, value: T) -> Result<()> {
        let index = index.position();
        if D == 1 {
            if let Some(at) = self.flat.straight(index[0]) {
                // SAFETY: as in `get`.
                unsafe { copy::store(at, value) };
                return Ok(());
            }
            std::hint::cold_path();
        }
        if let Some(at) = self.address(index) {
            // SAFETY: as in `get`.
            unsafe { copy::store(at, value) };
            return Ok(());
        }
        self.put_apart(index, value)
    }

    #[inline(never)]
    #[track_caller]
    fn put_apart(&self, index: [usize; D], value: T) -> Result<()> {
        match self.locate(index) {
            Some((rank, at)) => self.memory.put(rank, at, value),
            None => Err(self.layout.outside("put", index)).placed(),
        }
    }

    /// As [`GlobalArray::put`], but does not wait for room: see [`Symmetric::try_put`](crate::Symmetric::try_put).
    ///
    /// # Errors
    /// As [`GlobalArray::put`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    #[track_caller]
    pub fn try_put(&self, index: impl Position<D>, value: T) -> Result<()> {
        let index = index.position();
        match self.locate(index) {
            Some((rank, at)) => self.memory.try_put(rank, at, value),
            None => Err(self.layout.outside("try_put", index)).placed(),
        }
    }

    /// A pointer to an element. It is stale once the array is in its local phase again, or dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an index outside.
    #[track_caller]
    pub fn pointer(&self, index: impl Position<D>) -> Result<GlobalPtr<T>> {
        match self.locate(index.position()) {
            Some((rank, at)) => GlobalPtr::to(&self.memory, rank, at),
            None => Err(self.layout.outside("a pointer", index.position())),
        }
        .placed_here()
    }
}

impl<T: Word, const D: usize> GlobalArray<T, D, Shared> {
    /// Replaces an element by the result of `change`, atomically, and returns its former value. This does any change of integers
    /// and floating-point numbers, such as the larger of two, by compare-and-swap. `change` is called again if another rank
    /// changed the element meanwhile.
    ///
    /// # Examples
    /// ```
    /// use bellwether::array::{GlobalArray, Layout};
    /// # bellwether::threads(3, |world| {
    /// let best = GlobalArray::<f64, 1>::new(world, Layout::block([10], world.size())?)?.share(world)?;
    /// let mine = 0.5 * world.rank() as f64;
    /// best.fetch_update(7, |best| best.max(mine))?;
    /// best.accumulate(8, 0.25)?;
    /// world.barrier()?;
    /// let all = world.size() as f64;
    /// assert_eq!((best.get(7)?, best.get(8)?), (0.5 * (all - 1.0), 0.25 * all));
    /// # world.barrier()
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[track_caller]
    pub fn fetch_update(&self, index: impl Position<D>, change: impl FnMut(T) -> T) -> Result<T> {
        self.updated("fetch_update", index.position(), change).placed_here()
    }

    /// Adds `value` to an element, and returns what it was before: [`GlobalArray::fetch_add`] for floating-point numbers too.
    /// The order of several ranks' additions is not fixed, and so the last bits of their sum are not; integers must not
    /// overflow. For many values [`GlobalArray::scatter_add`] is faster.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[track_caller]
    pub fn accumulate(&self, index: impl Position<D>, value: T) -> Result<T>
    where
        T: Add<Output = T>,
    {
        self.updated("accumulate", index.position(), |element| element + value).placed_here()
    }

    fn updated(&self, operation: &'static str, index: [usize; D], change: impl FnMut(T) -> T) -> Result<T> {
        match self.locate(index) {
            Some((rank, at)) => self.memory.fetch_update(rank, at, change),
            None => Err(self.layout.outside(operation, index)),
        }
    }
}

macro_rules! atomics {
    ($($(#[$doc:meta])* $operation:ident;)*) => {
        /// Atomic operations, on elements that have them. All ranks' operations on one element are atomic to each other.
        ///
        /// # Errors
        /// All of them as [`GlobalArray::get`].
        impl<T: AtomicElement, const D: usize> GlobalArray<T, D, Shared> {
            $($(#[$doc])*
            ///
            /// # Errors
            /// As [`GlobalArray::get`].
            #[inline(always)]
            #[track_caller]
            pub fn $operation(&self, index: impl Position<D>, value: T) -> Result<T> {
                match self.locate(index.position()) {
                    Some((rank, at)) => self.memory.$operation(rank, at, value),
                    None => Err(self.layout.outside(stringify!($operation), index.position())).placed(),
                }
            })*

            /// Stores `new` if the element is `expected`; returns what it was before.
            ///
            /// # Errors
            /// As [`GlobalArray::get`].
            #[inline(always)]
            #[track_caller]
            pub fn compare_swap(&self, index: impl Position<D>, expected: T, new: T) -> Result<T> {
                match self.locate(index.position()) {
                    Some((rank, at)) => self.memory.compare_swap(rank, at, expected, new),
                    None => Err(self.layout.outside("compare_swap", index.position())).placed(),
                }
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
