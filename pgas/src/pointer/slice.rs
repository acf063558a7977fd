//! Elements one after the other at one rank.

use std::ops::Range;

use bellwether_runtime::{CalledAt, Error, Lent, Placed, Pod, Result, World, Zeroable};
use serde::{Deserialize, Serialize};

use super::GlobalPtr;

/// A [`GlobalPtr`] and a number of elements: plain old data too.
///
/// # Examples
/// ```
/// # fn main() -> bellwether::Result<()> {
/// # bellwether::threads(2, |world| {
/// use bellwether::pointer::GlobalPtr;
/// let memory = world.alloc::<u32>(10)?;
/// let all = GlobalPtr::to(&memory, 1, 0)?.slice(10);
/// if world.rank() == 0 {
///     all.slice(2..5)?.put(world, &[7, 8, 9])?;
///     all.put_strided(world, 5, 2, &[1, 2, 3])?;
/// }
/// world.barrier()?;
/// assert_eq!(all.get(world)?, [0, 0, 7, 8, 9, 1, 0, 2, 0, 3]);
/// assert_eq!(all.gather(world, &[9, 2, 2])?, [3, 7, 7]);
/// # world.barrier()
/// # })?.into_iter().collect() }
/// ```
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
#[repr(C)]
pub struct GlobalSlice<T> {
    start: GlobalPtr<T>,
    len: u64,
}

impl<T> Clone for GlobalSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for GlobalSlice<T> {}

impl<T> PartialEq for GlobalSlice<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.start, self.len) == (other.start, other.len)
    }
}

impl<T> Eq for GlobalSlice<T> {}

// SAFETY: zeros are no elements at the null pointer.
unsafe impl<T: 'static> Zeroable for GlobalSlice<T> {}
// SAFETY: a pointer, which is plain old data, and an integer, without padding; checked at each access.
unsafe impl<T: 'static> Pod for GlobalSlice<T> {}

impl<T> GlobalSlice<T> {
    /// `len` elements from `start`.
    pub fn new(start: GlobalPtr<T>, len: usize) -> Self {
        GlobalSlice { start, len: len as u64 }
    }

    /// Where it begins.
    pub fn start(&self) -> GlobalPtr<T> {
        self.start
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of an element.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the slice has no such element.
    #[track_caller]
    pub fn at(&self, index: usize) -> Result<GlobalPtr<T>> {
        (|| -> Result<GlobalPtr<T>> {
            self.check("an element of a slice", index, 1)?;
            Ok(self.start.add(index))
        })()
        .placed_here()
    }

    /// Some of its elements.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if they are not all in the slice.
    #[track_caller]
    pub fn slice(&self, range: Range<usize>) -> Result<GlobalSlice<T>> {
        (|| -> Result<GlobalSlice<T>> {
            self.check("a slice of a slice", range.start, range.len())?;
            Ok(self.start.add(range.start).slice(range.len()))
        })()
        .placed_here()
    }

    /// The elements before `middle`, and the others.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the slice is shorter.
    #[track_caller]
    pub fn split_at(&self, middle: usize) -> Result<(GlobalSlice<T>, GlobalSlice<T>)> {
        (|| -> Result<(GlobalSlice<T>, GlobalSlice<T>)> {
            self.check("splitting a slice", middle, 0)?;
            Ok((self.start.slice(middle), self.start.add(middle).slice(self.len() - middle)))
        })()
        .placed_here()
    }

    pub(super) fn check(&self, operation: &'static str, start: usize, count: usize) -> Result<()> {
        if start <= self.len() && count <= self.len() - start {
            return Ok(());
        }
        Err(Error::OutOfBounds {
            operation,
            rank: self.start.rank(),
            start,
            count,
            available: self.len(),
            place: CalledAt::default(),
        })
    }
}

impl<T: Pod> GlobalSlice<T> {
    /// Reads all elements.
    ///
    /// # Errors
    /// As [`GlobalSlice::get_into`].
    #[track_caller]
    pub fn get(&self, world: &World) -> Result<Vec<T>> {
        let array = self.whole(world, "get").placed()?;
        let mut values = vec![T::zeroed(); self.len()];
        array.get_slice(self.start.rank(), self.start.index(), &mut values).placed()?;
        Ok(values)
    }

    /// Reads all elements into `values`, which are as many.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::OutOfBounds`] if they are not all inside the allocation; [`Error::InvalidArgument`]
    /// for another number of values. Over a network as [`Symmetric::get_slice`](crate::Symmetric::get_slice).
    #[track_caller]
    pub fn get_into(&self, world: &World, values: &mut [T]) -> Result<()> {
        self.check_count("get_into", values.len()).placed()?;
        self.start.lend(world, "get_into").placed()?.get_slice(self.start.rank(), self.start.index(), values)
    }

    /// Writes all elements.
    ///
    /// # Errors
    /// As [`GlobalSlice::get_into`]; then nothing was written, but over a network.
    #[track_caller]
    pub fn put(&self, world: &World, values: &[T]) -> Result<()> {
        self.check_count("put", values.len()).placed()?;
        self.start.lend(world, "put").placed()?.put_slice(self.start.rank(), self.start.index(), values)
    }

    /// A copy of all elements, if they are this rank's; then nothing is communicated.
    ///
    /// # Errors
    /// As [`GlobalSlice::get_into`].
    #[track_caller]
    pub fn local(&self, world: &World) -> Result<Option<Vec<T>>> {
        if self.start.rank() == world.rank() { self.get(world).map(Some) } else { Ok(None) }
    }

    /// The array that it points into, if the whole slice is inside.
    pub(super) fn whole<'w>(&self, world: &'w World, operation: &'static str) -> Result<Lent<'w, T>> {
        let array = self.start.lend(world, operation)?;
        let (rank, size) = (self.start.rank(), world.size());
        if rank >= size {
            return Err(Error::RankOutOfRange { operation, rank, size, place: CalledAt::default() });
        }
        let (start, count, available) = (self.start.index(), self.len(), array.len());
        if start > available || count > available - start {
            return Err(Error::OutOfBounds {
                operation,
                rank: self.start.rank(),
                start,
                count,
                available,
                place: CalledAt::default(),
            });
        }
        Ok(array)
    }

    pub(super) fn check_count(&self, operation: &'static str, count: usize) -> Result<()> {
        if count == self.len() {
            return Ok(());
        }
        let why = format!("{count} values for a slice of {} elements", self.len());
        Err(Error::InvalidArgument { operation, why })
    }
}

impl<T> std::fmt::Debug for GlobalSlice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GlobalSlice({} from {:?})", self.len, self.start)
    }
}
