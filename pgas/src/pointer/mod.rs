//! Global pointers: the address of an element anywhere, as a value that can itself be stored and sent.

mod at_once;
mod posted;
mod slice;
mod spread;

use std::marker::PhantomData;

use bellwether_runtime::{AtomicElement, CalledAt, Error, Lent, Placed, Pod, Result, Symmetric, World, Zeroable};
use serde::{Deserialize, Serialize};

pub use self::slice::GlobalSlice;
pub(crate) use self::spread::BATCH;

/// The address of an element of type `T` at some rank: rank, allocation, generation and index, 24 bytes.
///
/// A pointer is plain old data: it can be kept in global memory and sent to any rank, and means the same there.
/// Arithmetic is free and may leave the allocation; each access checks that the element is inside, and that this rank
/// still shares the allocation the pointer was made for. If the allocation was dropped here, even if another took its
/// place, or if the array is in its local phase again, the access fails with [`Error::Stale`]. Bits that never were a pointer
/// give an error too, or name an element of a [`World::alloc`] or a shared array: no bits reach the library's own data in the
/// same memory, such as bells, teams, maps and ghost layers' inboxes. On one node an access is these
/// checks and a load or store. The zeroed pointer is the null pointer: always stale.
///
/// # Examples
/// A list through the memory of all ranks.
/// ```
/// # fn main() -> bellwether::Result<()> {
/// # bellwether::threads(3, |world| {
/// use bellwether::pointer::GlobalPtr;
/// // Each rank has a node: a value, and a pointer to the next rank's.
/// let values = world.alloc::<u64>(1)?;
/// let nexts = world.alloc::<GlobalPtr<u64>>(1)?;
/// values.store(0, 10 * world.rank() as u64);
/// nexts.store(0, GlobalPtr::to(&values, (world.rank() + 1) % world.size(), 0)?);
/// world.barrier()?;
/// let next = nexts.get((world.rank() + 1) % world.size(), 0)?;
/// assert_eq!(next.get(world)?, 10 * ((world.rank() as u64 + 2) % 3));
/// world.barrier()?;
/// drop(values);
/// assert!(matches!(next.get(world), Err(bellwether::Error::Stale { .. })));
/// # Ok(()) })?.into_iter().collect() }
/// ```
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
#[repr(C)]
pub struct GlobalPtr<T> {
    rank: u32,
    /// Number of the allocation.
    block: u32,
    generation: u64,
    /// In elements. Wraps around, so that a pointer before the allocation is one far behind it.
    index: u64,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for GlobalPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for GlobalPtr<T> {}

impl<T> PartialEq for GlobalPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl<T> Eq for GlobalPtr<T> {}

// SAFETY: zeros are a pointer, the null one.
unsafe impl<T: 'static> Zeroable for GlobalPtr<T> {}
// SAFETY: integers without padding, of which any bits are allowed: what they say is checked at each access.
unsafe impl<T: 'static> Pod for GlobalPtr<T> {}

#[expect(clippy::should_implement_trait, reason = "the names that raw pointers have")]
impl<T> GlobalPtr<T> {
    fn words(&self) -> (u32, u32, u64, u64) {
        (self.rank, self.block, self.generation, self.index)
    }

    /// The pointer to nothing.
    pub fn null() -> Self {
        GlobalPtr { rank: 0, block: 0, generation: 0, index: 0, element: PhantomData }
    }

    /// Whether it is the pointer to nothing.
    pub fn is_null(&self) -> bool {
        self.generation == 0
    }

    /// The rank that it points to.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The element's number in the allocation at that rank.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// The pointer `count` elements further on, at the same rank.
    #[must_use]
    pub fn add(self, count: usize) -> Self {
        GlobalPtr { index: self.index.wrapping_add(count as u64), ..self }
    }

    /// The pointer `count` elements before, at the same rank.
    #[must_use]
    pub fn sub(self, count: usize) -> Self {
        GlobalPtr { index: self.index.wrapping_sub(count as u64), ..self }
    }

    /// The pointer `count` elements further on, or before if negative.
    #[must_use]
    pub fn offset(self, count: isize) -> Self {
        GlobalPtr { index: self.index.wrapping_add_signed(count as i64), ..self }
    }

    /// Elements from `origin` to here; `None` if they are not in one allocation at one rank.
    pub fn offset_from(&self, origin: GlobalPtr<T>) -> Option<isize> {
        let alike = (self.rank, self.block, self.generation) == (origin.rank, origin.block, origin.generation);
        alike.then(|| self.index.wrapping_sub(origin.index) as isize)
    }

    /// The `len` elements from here.
    pub fn slice(self, len: usize) -> GlobalSlice<T> {
        GlobalSlice::new(self, len)
    }
}

impl<T: Pod> GlobalPtr<T> {
    /// The address of an element of symmetric memory. It may be the one behind the last.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] for an element farther out; [`Error::InvalidArgument`] for a rank or allocation that no
    /// pointer can hold. A rank that does not exist is an error at access.
    #[track_caller]
    pub fn to(array: &Symmetric<T>, rank: usize, index: usize) -> Result<Self> {
        (|| -> Result<Self> {
            const { assert!(size_of::<T>() > 0, "elements have at least one byte") };
            const OPERATION: &str = "a pointer";
            if index > array.len() {
                return Err(Error::OutOfBounds {
                    operation: OPERATION,
                    rank,
                    start: index,
                    count: 1,
                    available: array.len(),
                    place: CalledAt::default(),
                });
            }
            let (block, generation) = array.identity();
            match (u32::try_from(rank), u32::try_from(block)) {
                (Ok(rank), Ok(block)) => {
                    Ok(GlobalPtr { rank, block, generation, index: index as u64, element: PhantomData })
                }
                _ => {
                    let why = format!("rank {rank} or allocation {block} is beyond {}", u32::MAX);
                    Err(Error::InvalidArgument { operation: OPERATION, why })
                }
            }
        })()
        .placed_here()
    }

    /// The array that it points into, for one call.
    #[inline(always)]
    fn lend<'w>(&self, world: &'w World, operation: &'static str) -> Result<Lent<'w, T>> {
        const { assert!(size_of::<T>() > 0, "elements have at least one byte") };
        // SAFETY: used for one access, in which this rank cannot change phases or drop what it needs.
        unsafe { world.lend(operation, self.rank as usize, self.block as usize, self.generation) }
    }

    /// Reads the element.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::OutOfBounds`]; over a network as [`Symmetric::get`].
    #[inline(always)]
    #[track_caller]
    pub fn get(&self, world: &World) -> Result<T> {
        self.lend(world, "get").placed()?.get(self.rank as usize, self.index as usize)
    }

    /// Writes the element. [`World::fence`] says when other ranks see it.
    ///
    /// # Errors
    /// As [`GlobalPtr::get`].
    #[inline(always)]
    #[track_caller]
    pub fn put(&self, world: &World, value: T) -> Result<()> {
        self.lend(world, "put").placed()?.put(self.rank as usize, self.index as usize, value)
    }

    /// The element, if it is this rank's; then nothing is communicated. A copy: shared memory gives no references.
    ///
    /// # Errors
    /// As [`GlobalPtr::get`].
    #[inline]
    #[track_caller]
    pub fn local(&self, world: &World) -> Result<Option<T>> {
        if self.rank as usize == world.rank() { self.get(world).map(Some) } else { Ok(None) }
    }
}

macro_rules! atomics {
    ($($(#[$doc:meta])* $operation:ident;)*) => {
        /// Atomic operations, on elements that have them; see [`Symmetric`].
        ///
        /// # Errors
        /// All of them as [`GlobalPtr::get`].
        impl<T: AtomicElement> GlobalPtr<T> {
            $($(#[$doc])*
            ///
            /// # Errors
            /// As [`GlobalPtr::get`].
            #[inline(always)]
            #[track_caller]
            pub fn $operation(&self, world: &World, value: T) -> Result<T> {
                self.lend(world, stringify!($operation)).placed()?.$operation(self.rank as usize, self.index as usize, value)
            })*

            /// Stores `new` if the element is `expected`; returns what it was before.
            ///
            /// # Errors
            /// As [`GlobalPtr::get`].
            #[inline(always)]
            #[track_caller]
            pub fn compare_swap(&self, world: &World, expected: T, new: T) -> Result<T> {
                let array = self.lend(world, "compare_swap").placed()?;
                array.compare_swap(self.rank as usize, self.index as usize, expected, new)
            }
        }
    };
}

atomics! {
    /// Adds `value` to the element, around the end; returns what it was before.
    fetch_add;
    /// Ands `value` into the element; returns what it was before.
    fetch_and;
    /// Ors `value` into the element; returns what it was before.
    fetch_or;
    /// Xors `value` into the element; returns what it was before.
    fetch_xor;
    /// Stores `value` in the element; returns what it was before.
    swap;
}

impl<T> std::fmt::Debug for GlobalPtr<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_null() {
            return f.write_str("GlobalPtr(null)");
        }
        let GlobalPtr { rank, block, generation, index, .. } = self;
        write!(f, "GlobalPtr(element {index} of allocation {block}, generation {generation:#x}, at rank {rank})")
    }
}
