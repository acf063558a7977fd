//! Arrays spread over ranks and indexed as one, in 1, 2 and 3 dimensions.
//!
//! | to | use |
//! | --- | --- |
//! | say where elements live | [`Layout`] |
//! | compute with the ranks of a row or column of a layout's grid | [`Layout::team_along`] |
//! | make an array | [`GlobalArray::new`], [`GlobalArray::from_fn`], [`GlobalArray::load_npy`] |
//! | compute on what is here | [`GlobalArray::local`], [`GlobalArray::local_mut`], [`GlobalArray::iter_mut`], in the phase [`Local`] |
//! | compute on it with all cores | [`GlobalArray::par_iter`], [`GlobalArray::par_iter_mut`], [`GlobalArray::par_zip_mut`], on a [`Pool`](crate::Pool) |
//! | reach any element | [`GlobalArray::get`], [`GlobalArray::put`], [`GlobalArray::fetch_add`], [`GlobalArray::accumulate`], in the phase [`Shared`] |
//! | move boxes | [`GlobalArray::get_patch`], [`GlobalArray::put_patch`], and their future forms |
//! | combine and reduce | [`GlobalArray::zip`], [`GlobalArray::map`], [`GlobalArray::zip_map`], [`GlobalArray::reduce`], [`GlobalArray::dot`] |
//! | change the layout | [`GlobalArray::relayout`], [`GlobalArray::transpose`] |
//! | deal out what one rank has, and bring it back there | [`GlobalArray::from_root`], [`GlobalArray::to_root`] |
//! | keep borders of the neighbours | [`Ghosts`], [`GlobalArray::start_exchange`] |
//! | read the same remote elements again and again | [`GatherPlan`] |
//! | order | [`GlobalArray::sort`], [`GlobalArray::prefix_sum`]; of more dimensions [`GlobalArray::sort_along`], [`GlobalArray::prefix_sum_along`] |
//! | a part as an array | [`GlobalArray::view`], [`GlobalArray::view_mut`]; copied: [`View::to_array`], [`ViewMut::assign`] |
//! | keep | [`GlobalArray::save_npy`] |
//!
//! # Phases
//! An array is in one of two phases, which is part of its type. In the phase [`Local`] each rank has its own part as a
//! slice, `&[T]` or `&mut [T]`, and no other rank can access it. In the phase [`Shared`] all ranks may put, get and change
//! elements atomically, and there is no slice. [`GlobalArray::share`] and [`GlobalArray::localize`] lead from one to the
//! other: they are collective, and take the array and give it back in its new phase, so that no slice and no pointer of
//! the old phase outlives it.
//!
//! Calls that take the world are collective, unless they say otherwise. All others are local or one-sided.

mod along;
mod compute;
mod flat;
mod gather;
mod ghost;
mod index;
mod irregular;
mod layout;
mod local;
#[cfg(feature = "ndarray")]
mod nd;
mod npy;
mod parallel;
mod patch;
mod phase;
mod posted;
mod relayout;
mod root;
mod scan;
mod shared;
mod sort;
mod tables;
mod teams;
mod threads;
mod transpose;
mod view;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;

use bellwether_runtime::{Error, OneThread, Pod, Result, Symmetric, World};

pub use self::gather::{GatherPlan, Gathering};
pub use self::ghost::{Ghosts, Pending};
pub use self::index::{Indices, Position, Region};
pub use self::layout::{Distribution, Layout, near_square};
pub use self::npy::NpyElement;
pub use self::parallel::PooledArray;
pub use self::phase::{Local, Phase, Shared};
pub use self::threads::ThreadGlobalArray;
pub use self::view::{View, ViewMut};

use self::index::{offset, volume};

/// A `D`-dimensional array of plain-old-data, spread over all ranks as its [`Layout`] says, in a [phase](self#phases).
///
/// Each rank holds its part, row by row, in symmetric memory; ranks whose part is smaller than the largest leave the
/// rest unused. Dropping an array is local; the memory is used again when every rank has dropped it.
///
/// # Examples
/// A distributed vector: fill what is here, then read anywhere.
/// ```
/// # fn main() -> bellwether::Result<()> {
/// # bellwether::threads(3, |world| {
/// use bellwether::array::{GlobalArray, Layout};
/// let squares = GlobalArray::from_fn(world, Layout::block([100], world.size())?, |[i]| (i * i) as u64)?;
/// assert_eq!(squares.sum(world)?, 328350);
/// let squares = squares.share(world)?;
/// assert_eq!(squares.get(70)?, 4900);
/// # Ok(()) })?.into_iter().collect() }
/// ```
/// In the local phase elements of other ranks cannot be reached:
/// ```compile_fail,E0599
/// # bellwether::threads(3, |world| {
/// # use bellwether::array::{GlobalArray, Layout};
/// let squares = GlobalArray::from_fn(world, Layout::block([100], world.size())?, |[i]| (i * i) as u64)?;
/// squares.get(70)?;
/// # Ok::<(), bellwether::Error>(()) });
/// ```
/// In the shared phase there is no slice:
/// ```compile_fail,E0599
/// # bellwether::threads(3, |world| {
/// # use bellwether::array::{GlobalArray, Layout};
/// let mut squares = GlobalArray::<u64, 1>::new(world, Layout::block([100], world.size())?)?.share(world)?;
/// squares.local_mut()[0] = 1;
/// # Ok::<(), bellwether::Error>(()) });
/// ```
/// What was shared is gone:
/// ```compile_fail,E0382
/// # bellwether::threads(3, |world| {
/// # use bellwether::array::{GlobalArray, Layout};
/// let mut squares = GlobalArray::<u64, 1>::new(world, Layout::block([100], world.size())?)?;
/// let shared = squares.share(world)?;
/// squares.local_mut()[0] = 1;
/// # Ok::<(), bellwether::Error>(()) });
/// ```
/// A slice does not outlive its phase:
/// ```compile_fail,E0505
/// # bellwether::threads(3, |world| {
/// # use bellwether::array::{GlobalArray, Layout};
/// let mut squares = GlobalArray::<u64, 1>::new(world, Layout::block([100], world.size())?)?;
/// let part = squares.local_mut();
/// let shared = squares.share(world)?;
/// part[0] = 1;
/// # Ok::<(), bellwether::Error>(()) });
/// ```
/// Nor does a slice that is only read:
/// ```compile_fail,E0505
/// # bellwether::threads(3, |world| {
/// # use bellwether::array::{GlobalArray, Layout};
/// let squares = GlobalArray::<u64, 1>::new(world, Layout::block([100], world.size())?)?;
/// let part = squares.local();
/// let shared = squares.share(world)?;
/// println!("{}", part[0]);
/// # Ok::<(), bellwether::Error>(()) });
/// ```
/// An array stays with the thread of its rank:
/// ```compile_fail,E0277
/// # bellwether::threads(3, |world| {
/// # use bellwether::array::{GlobalArray, Layout};
/// let squares = GlobalArray::<u64, 1>::new(world, Layout::block([100], world.size())?)?.share(world)?;
/// std::thread::scope(|scope| { scope.spawn(|| squares.get(3)); });
/// # Ok::<(), bellwether::Error>(()) });
/// ```
/// Elements are plain old data: no references, no padding.
/// ```compile_fail,E0277
/// # bellwether::threads(3, |world| {
/// # use bellwether::array::{GlobalArray, Layout};
/// let names = GlobalArray::<&str, 1>::new(world, Layout::block([100], world.size())?)?;
/// # Ok::<(), bellwether::Error>(()) });
/// ```
pub struct GlobalArray<T, const D: usize, P: Phase = Local> {
    memory: Symmetric<T>,
    layout: Layout<D>,
    rank: usize,
    /// Elements of others that are kept on each side, in each dimension.
    ghost: [usize; D],
    /// Extents of this rank's own elements.
    own: [usize; D],
    /// Short ways to elements: of one dimension; and of more, in the shared phase.
    flat: OneThread<flat::Flat, World>,
    tables: OneThread<tables::Tables<D>, World>,
    /// The state that exchanges ghost layers, if there are any.
    halo: Option<Box<ghost::Halo<T, D>>>,
    phase: PhantomData<P>,
}

/// Types of an array's elements: every type that is [`Pod`], and no other.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no element of a `GlobalArray`: elements are plain old data (`Pod`), all alike on every rank",
    label = "the type of the elements is taken to be `{Self}` here",
    note = "where nothing says what the elements are, name their type: `GlobalArray::<f64, 1>::new(...)`",
    note = "`bool`, `char` and enums are no plain old data: use `u8`, `u32` or the variant's number; strings and vectors, by key, \
            live in a `DistHashMap`",
    note = "a struct of numbers without padding becomes one by `#[derive(Clone, Copy, Pod, Zeroable)] #[repr(C)]`, of bytemuck"
)]
pub trait Element: Pod {}

#[diagnostic::do_not_recommend]
impl<T: Pod> Element for T {}

impl<T, const D: usize> GlobalArray<T, D> {
    /// An array of zeros, in the local phase. Collective: every rank gives the same layout. If the compiler cannot infer the type
    /// of the elements, name it, as in `GlobalArray::<f64, 1>::new(...)`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the layout is not for as many ranks as the world has; [`Error::RanksDiffer`] if it
    /// is not the same everywhere; as [`World::alloc`].
    #[track_caller]
    pub fn new(world: &World, layout: Layout<D>) -> Result<Self>
    where
        T: Element,
    {
        world.within("GlobalArray::new", || Self::with_widths(world, layout, [0; D]))
    }

    /// An array whose element at each index is the result of `value`, in the local phase. Collective as
    /// [`GlobalArray::new`]; each rank calls `value` for its own part, in the order of the elements in memory.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    #[track_caller]
    pub fn from_fn(world: &World, layout: Layout<D>, mut value: impl FnMut([usize; D]) -> T) -> Result<Self>
    where
        T: Element,
    {
        world.within("from_fn", || {
            let mut array = Self::new(world, layout)?;
            array.iter_mut().for_each(|(index, element)| *element = value(index));
            Ok(array)
        })
    }
}

impl<T: Pod, const D: usize> GlobalArray<T, D> {
    /// An array of zeros with ghost layers of `ghost` elements on each side.
    fn with_widths(world: &World, layout: Layout<D>, ghost: [usize; D]) -> Result<Self> {
        const OPERATION: &str = "making an array";
        const { assert!(size_of::<T>() > 0, "elements have at least one byte") };
        if layout.ranks() != world.size() {
            let why =
                format!("the layout is for {} ranks, and the world has {}: {layout}", layout.ranks(), world.size());
            return Err(Error::InvalidArgument { operation: OPERATION, why });
        }
        let shown = format!("{layout} with {ghost:?} ghost layers");
        check_alike(world, "the layout of an array", &(&layout, ghost), &shown)?;
        let longest = std::array::from_fn(|d| layout.axis(d).longest().saturating_add(2 * ghost[d]));
        let Some(len) = volume::<D>(&longest) else {
            let why = format!("{longest:?} elements at a rank exceed the address space");
            return Err(Error::InvalidArgument { operation: OPERATION, why });
        };
        let joins = D == 1 && flat::Flat::may_join::<T>(layout.axis(0), ghost[0]);
        let memory = if joins {
            world.alloc_withheld_aligned(len, bellwether_runtime::memory::limits::page_size())?
        } else {
            world.alloc_withheld(len)?
        };
        let (rank, own) = (world.rank(), layout.extents_at(world.rank()));
        let flat = if D == 1 { flat::Flat::new(&memory, layout.axis(0), ghost[0]) } else { flat::Flat::none() };
        let flat = OneThread::new(flat);
        let tables = OneThread::new(tables::Tables::none());
        Ok(GlobalArray { memory, layout, rank, ghost, own, flat, tables, halo: None, phase: PhantomData })
    }
}

impl<T: Pod, const D: usize, P: Phase> GlobalArray<T, D, P> {
    /// Where its elements live.
    pub fn layout(&self) -> &Layout<D> {
        &self.layout
    }

    /// Elements in each dimension.
    pub fn extents(&self) -> [usize; D] {
        self.layout.extents()
    }

    /// Elements in all.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Never: every extent is at least 1.
    pub fn is_empty(&self) -> bool {
        self.layout.is_empty()
    }

    /// Elements of this rank in each dimension, without ghost layers.
    pub fn own_extents(&self) -> [usize; D] {
        self.own
    }

    /// Elements of [`GlobalArray::local`] in each dimension: those of this rank, with ghost layers.
    pub fn local_extents(&self) -> [usize; D] {
        std::array::from_fn(|d| self.own[d] + 2 * self.ghost[d])
    }

    /// Where in the box of [`GlobalArray::local_extents`] this rank's own elements are.
    pub fn interior(&self) -> Region<D> {
        Region { start: self.ghost, extents: self.own }
    }

    /// The array's index of this rank's own element at `own`, counted without ghost layers; `None` if there is none.
    pub fn global(&self, own: impl Position<D>) -> Option<[usize; D]> {
        self.layout.global(self.rank, own)
    }

    /// The same array, as in another phase.
    fn in_phase<Q: Phase>(self) -> GlobalArray<T, D, Q> {
        let GlobalArray { memory, layout, rank, ghost, own, flat, tables, halo, .. } = self;
        GlobalArray { memory, layout, rank, ghost, own, flat, tables, halo, phase: PhantomData }
    }

    /// Where an element is: rank, and place in that rank's memory.
    #[inline(always)]
    fn locate(&self, index: [usize; D]) -> Option<(usize, usize)> {
        self.layout.place(index, &self.ghost)
    }

    /// The rank of these parts, and the place in its memory of the element at `local` in them.
    fn spot(&self, parts: [usize; D], local: [usize; D]) -> (usize, usize) {
        (0..D).fold((0, 0), |(rank, at), d| {
            let axis = self.layout.axis(d);
            let at = at * (axis.len(parts[d]) + 2 * self.ghost[d]) + local[d] + self.ghost[d];
            (rank * axis.parts() + parts[d], at)
        })
    }

    /// Place in this rank's memory of the element at `local` of the box of [`GlobalArray::local_extents`].
    fn place(&self, local: &[usize; D]) -> usize {
        offset(&self.local_extents(), local)
    }
}

/// # Errors
/// [`Error::RanksDiffer`] if `value` is not the same on all ranks, with the values of two ranks; `shown` is this rank's.
fn check_alike(world: &World, what: &'static str, value: &impl std::fmt::Debug, shown: &str) -> Result<()> {
    const SHOWN: usize = 256;
    let mut hasher = DefaultHasher::new();
    format!("{value:?}").hash(&mut hasher);
    let digests = world.allgather(&[hasher.finish()])?;
    let Some(rank) = digests.iter().position(|theirs| *theirs != digests[0]) else { return Ok(()) };
    let shown = &shown[..shown.floor_char_boundary(SHOWN)];
    let mut text = [0; SHOWN];
    text[..shown.len()].copy_from_slice(shown.as_bytes());
    let texts = world.allgather(&text)?;
    let text = |rank: usize| {
        let bytes = &texts[rank * SHOWN..(rank + 1) * SHOWN];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(SHOWN);
        // Long ones may be alike as far as they are shown.
        format!("{} (digest {:x})", String::from_utf8_lossy(&bytes[..end]), digests[rank])
    };
    let advice = "the call is collective: every rank must give the same";
    Err(Error::RanksDiffer { what, rank, reference: 0, theirs: text(rank), ours: text(0), advice })
}

impl<T: Pod, const D: usize, P: Phase> std::fmt::Debug for GlobalArray<T, D, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GlobalArray<{}>({}, {})", std::any::type_name::<T>(), P::NAME, self.layout)
    }
}
