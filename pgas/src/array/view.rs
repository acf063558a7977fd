//! A view: a rectangular region of an array, indexed from 0.

use bellwether_runtime::{Error, Placed, Pod, Posted, Result, World};

use super::index::{Position, Region};
use super::local::{indices, own_index};
use super::{Element, GlobalArray, Layout, Local, Phase, Shared};

/// A view: a rectangular region of an array, indexed from 0. It borrows the array; nothing is copied.
///
/// # Examples
/// ```
/// # fn main() -> bellwether::Result<()> {
/// # bellwether::threads(3, |world| {
/// use bellwether::array::{GlobalArray, Layout};
/// let plane = GlobalArray::from_fn(world, Layout::block([10, 10], world.size())?, |[i, j]| (10 * i + j) as u64)?;
/// let middle = plane.view([4..6, 4..6])?;
/// assert_eq!(middle.reduce(world, 0, |a, b| a + b, |a, b| a + b)?, 44 + 45 + 54 + 55);
/// let plane = plane.share(world)?;
/// let middle = plane.view([4..6, 4..6])?;
/// assert_eq!(middle.get([1, 0])?, 54);
/// assert_eq!(middle.view([0..2, 1..2])?.get_patch()?, [45, 55]);
/// # world.barrier()
/// # })?.into_iter().collect() }
/// ```
pub struct View<'a, T, const D: usize, P: Phase> {
    array: &'a GlobalArray<T, D, P>,
    region: Region<D>,
}

impl<T, const D: usize, P: Phase> Clone for View<'_, T, D, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const D: usize, P: Phase> Copy for View<'_, T, D, P> {}

impl<T: Pod, const D: usize, P: Phase> GlobalArray<T, D, P> {
    /// A view of a region of the array: `array.view([2..5, 0..3])`. Local.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], with both regions, for one that is not inside the array.
    #[track_caller]
    pub fn view(&self, region: impl Into<Region<D>>) -> Result<View<'_, T, D, P>> {
        (|| -> Result<View<'_, T, D, P>> {
            let region = region.into();
            region.check_inside(self.extents(), "view")?;
            Ok(View { array: self, region })
        })()
        .placed_here()
    }
}

impl<'a, T: Pod, const D: usize, P: Phase> View<'a, T, D, P> {
    /// The region of the array that it shows.
    pub fn region(&self) -> Region<D> {
        self.region
    }

    /// Elements in each dimension.
    pub fn extents(&self) -> [usize; D] {
        self.region.extents
    }

    /// Elements in all.
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// This rank's part of the view, as a region of its local elements ([`GlobalArray::local_extents`]); empty if it has none.
    pub fn interior(&self) -> Region<D> {
        self.array.part_of(self.region)
    }

    /// Copies the region to an array of its own, in the local phase, without ghost layers: a [`GlobalArray::relayout`] of a region.
    /// Collective: every rank gives the same region. Puts made before the first rank called this are included.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`], on all ranks, for regions that differ between ranks; [`Error::InvalidArgument`], with both
    /// sides, if the layout does not have the region's extents, as no layout has those of an empty region; as
    /// [`GlobalArray::new`].
    ///
    /// # Examples
    /// ```
    /// # fn main() -> bellwether::Result<()> {
    /// # bellwether::threads(3, |world| {
    /// use bellwether::array::{GlobalArray, Layout};
    /// let plane = GlobalArray::from_fn(world, Layout::block([10, 10], world.size())?, |[i, j]| (10 * i + j) as u64)?;
    /// // Redistribute a small region: otherwise few ranks own elements of it.
    /// let corner = plane.view([7..10, 5..10])?.to_array(world, Layout::rows([3, 5], world.size())?)?;
    /// assert!(corner.iter().all(|([i, j], element)| *element == (10 * (i + 7) + j + 5) as u64));
    /// # Ok(()) })?.into_iter().collect() }
    /// ```
    #[track_caller]
    pub fn to_array(&self, world: &World, layout: Layout<D>) -> Result<GlobalArray<T, D>> {
        world.within("to_array", || {
            world.check_own(&self.array.memory, "to_array")?;
            self.check_alike(world, "the region that is copied", self.array.layout(), self.region)?;
            self.check_extents("to_array", layout.extents())?;
            P::settle(world)?;
            let to = GlobalArray::new(world, layout)?;
            P::part(self.array, self.region).move_all(world, to)
        })
    }

    fn check_extents(&self, operation: &'static str, to: [usize; D]) -> Result<()> {
        if to == self.extents() {
            return Ok(());
        }
        let why = format!(
            "cannot copy a view with extents {:?} to a layout or view with extents {to:?}; extents must be equal",
            self.extents()
        );
        Err(Error::InvalidArgument { operation, why })
    }

    /// # Errors
    /// [`Error::RanksDiffer`] if this region, or the other one of an array of this layout, differs between ranks.
    fn check_alike(&self, world: &World, what: &'static str, layout: &Layout<D>, other: Region<D>) -> Result<()> {
        let shown = format!(
            "{:?} elements from {:?} of {}, {:?} elements from {:?} of {layout}",
            self.extents(),
            self.region.start,
            self.array.layout,
            other.extents,
            other.start
        );
        super::check_alike(world, what, &(&self.array.layout, self.region, layout, other), &shown)
    }

    /// A view of a region of this view.
    ///
    /// # Errors
    /// As [`GlobalArray::view`].
    #[track_caller]
    pub fn view(&self, region: impl Into<Region<D>>) -> Result<View<'a, T, D, P>> {
        (|| -> Result<View<'a, T, D, P>> {
        Ok(View { array: self.array, region: self.inner(region.into(), "view")? })
        })()
        .placed_here()
    }

    /// Converts an index of the view to one of the array, for operations on one element, such as
    /// `array.fetch_add(view.at([1, 0])?, 1)`. Local.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], with both sides, for an index outside the view.
    #[track_caller]
    pub fn at(&self, index: impl Position<D>) -> Result<[usize; D]> {
        self.index(index.position(), "at").placed_here()
    }

    /// A region of this view, as a region of the array.
    fn inner(&self, region: Region<D>, operation: &'static str) -> Result<Region<D>> {
        region.check_inside(self.extents(), operation)?;
        Ok(Region { start: std::array::from_fn(|d| self.region.start[d] + region.start[d]), ..region })
    }

    /// An index of this view, as one of the array.
    fn index(&self, index: [usize; D], operation: &'static str) -> Result<[usize; D]> {
        if (0..D).all(|d| index[d] < self.region.extents[d]) {
            return Ok(std::array::from_fn(|d| self.region.start[d] + index[d]));
        }
        let why = format!("index {index:?} is outside a view of {:?} elements", self.extents());
        Err(Error::InvalidArgument { operation, why })
    }
}

impl<T: Pod, const D: usize, P: Phase> GlobalArray<T, D, P> {
    /// This rank's part of a region, as a region of its local elements ([`GlobalArray::local_extents`]).
    fn part_of(&self, region: Region<D>) -> Region<D> {
        self.in_local_box(self.layout.locals(self.rank, region))
    }
}

/// A view whose elements this rank may change, where it owns them.
///
/// # Examples
/// ```
/// # fn main() -> bellwether::Result<()> {
/// # bellwether::threads(3, |world| {
/// use bellwether::array::{GlobalArray, Layout};
/// let mut plane = GlobalArray::<f64, 2>::new(world, Layout::block([10, 10], world.size())?)?;
/// plane.view_mut([4..6, 0..10])?.fill(1.0);
/// plane.view_mut([0..10, 4..6])?.update(|x| *x += 1.0);
/// assert_eq!(plane.sum(world)?, 20.0 + 20.0);
/// # Ok(()) })?.into_iter().collect() }
/// ```
pub struct ViewMut<'a, T, const D: usize> {
    array: &'a mut GlobalArray<T, D, Local>,
    region: Region<D>,
}

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// As [`GlobalArray::view`], to change elements. Local.
    ///
    /// # Errors
    /// As [`GlobalArray::view`].
    #[track_caller]
    pub fn view_mut(&mut self, region: impl Into<Region<D>>) -> Result<ViewMut<'_, T, D>> {
        (|| -> Result<ViewMut<'_, T, D>> {
            let region = region.into();
            region.check_inside(self.extents(), "view_mut")?;
            Ok(ViewMut { array: self, region })
        })()
        .placed_here()
    }
}

impl<T: Pod, const D: usize> ViewMut<'_, T, D> {
    /// As [`View::interior`].
    pub fn interior(&self) -> Region<D> {
        self.array.part_of(self.region)
    }

    /// The elements of the view that this rank owns, with their indices in the view. Time is proportional to these elements, not to
    /// the array.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = ([usize; D], &mut T)> {
        let (region, part) = (self.region, self.interior());
        let (layout, rank, ghost) = (self.array.layout.clone(), self.array.rank, self.array.ghost);
        self.array.lines_of_mut(part).flat_map(move |(local, line)| {
            let indices = indices(&layout, rank, own_index(local, ghost));
            line.iter_mut().zip(indices).map(move |(element, index)| (own_index(index, region.start), element))
        })
    }

    /// Changes every element of the view that this rank owns. Local.
    pub fn update(&mut self, mut change: impl FnMut(&mut T)) {
        let part = self.interior();
        self.array.lines_of_mut(part).for_each(|(_, line)| line.iter_mut().for_each(&mut change));
    }

    /// Sets every element of the view that this rank owns to `value`. Local.
    pub fn fill(&mut self, value: T) {
        let part = self.interior();
        self.array.lines_of_mut(part).for_each(|(_, line)| line.fill(value));
    }

    /// Copies a view of another array with equal extents into this one; layouts and phases may differ: `to[a..b] = from[c..d]`.
    /// Collective: every rank gives the same regions of the same arrays. Puts made before the first rank called this are
    /// included. Needs temporary memory for each rank's parts of both views.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`], on all ranks, for regions that differ between ranks; [`Error::InvalidArgument`], with both
    /// sides, for extents that differ: then nothing was changed. As [`World::alloc`] and [`World::barrier`]: then this rank's
    /// part of the view is unchanged.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> bellwether::Result<()> {
    /// # bellwether::threads(3, |world| {
    /// use bellwether::array::{GlobalArray, Layout};
    /// let small = GlobalArray::from_fn(world, Layout::cyclic([4, 4], world.size())?, |[i, j]| i * j)?;
    /// let mut large = GlobalArray::<usize, 2>::new(world, Layout::block([10, 12], world.size())?)?;
    /// large.view_mut([6..10, 2..5])?.assign(world, &small.view([0..4, 1..4])?)?;
    /// assert_eq!(large.sum(world)?, (1 + 2 + 3) * (1 + 2 + 3));
    /// # Ok(()) })?.into_iter().collect() }
    /// ```
    #[track_caller]
    pub fn assign<P: Phase>(&mut self, world: &World, from: &View<'_, T, D, P>) -> Result<()> {
        world.within("assign", || {
            world.check_own(&from.array.memory, "assign")?;
            world.check_own(&self.array.memory, "assign")?;
            from.check_alike(world, "the regions of an assignment", &self.array.layout, self.region)?;
            from.check_extents("assign", self.region.extents)?;
            P::settle(world)?;
            if self.region.is_empty() {
                return Ok(());
            }
            P::part(from.array, from.region).exchange(world, self.array, self.region)
        })
    }

    /// This rank's part of the view, without copying; see [`View::ndarray`].
    #[cfg(feature = "ndarray")]
    pub(super) fn parts(&mut self) -> (&mut GlobalArray<T, D>, Region<D>) {
        let part = self.interior();
        (self.array, part)
    }
}

impl<'a, T: Pod, const D: usize> View<'a, T, D, Local> {
    /// The elements of the view that this rank owns, with their indices in the view. Time is proportional to these elements, not to
    /// the array.
    pub fn iter(&self) -> impl Iterator<Item = ([usize; D], &'a T)> + use<'a, T, D> {
        let (array, region) = (self.array, self.region);
        array.lines_of(self.interior()).flat_map(move |(local, line)| {
            let indices = indices(&array.layout, array.rank, own_index(local, array.ghost));
            line.iter().zip(indices).map(move |(element, index)| (own_index(index, region.start), element))
        })
    }

    #[cfg(feature = "ndarray")]
    pub(super) fn array(&self) -> &'a GlobalArray<T, D> {
        self.array
    }

    /// Folds the elements of the view to one value; as [`GlobalArray::reduce`]. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::reduce`].
    #[track_caller]
    pub fn reduce<U: Element>(
        &self,
        world: &World,
        start: U,
        mut fold: impl FnMut(U, T) -> U,
        combine: impl Fn(U, U) -> U,
    ) -> Result<U> {
        world.within("reduce", || {
            let lines = self.array.lines_of(self.interior());
            let here = || lines.fold(start, |value, (_, line)| line.iter().copied().fold(value, &mut fold));
            self.array.reduce_from(world, here, combine)
        })
    }
}

impl<T: Pod, const D: usize> View<'_, T, D, Shared> {
    /// As [`GlobalArray::get`], by an index of the view.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    #[track_caller]
    pub fn get(&self, index: impl Position<D>) -> Result<T> {
        self.array.get(self.index(index.position(), "get").placed()?)
    }

    /// As [`GlobalArray::put`], by an index of the view.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    #[track_caller]
    pub fn put(&self, index: impl Position<D>, value: T) -> Result<()> {
        self.array.put(self.index(index.position(), "put").placed()?, value)
    }

    /// As [`GlobalArray::try_put`], by an index of the view.
    ///
    /// # Errors
    /// As [`GlobalArray::try_put`].
    #[track_caller]
    pub fn try_put(&self, index: impl Position<D>, value: T) -> Result<()> {
        self.array.try_put(self.index(index.position(), "try_put").placed()?, value)
    }

    /// Reads the whole view, row by row.
    ///
    /// # Errors
    /// As [`GlobalArray::get_patch`].
    #[track_caller]
    pub fn get_patch(&self) -> Result<Vec<T>> {
        self.array.get_patch(self.region).placed_here()
    }

    /// The future form of [`View::get_patch`]; see [`GlobalArray::get_patch_async`].
    ///
    /// # Errors
    /// As [`GlobalArray::get_patch_async`].
    #[track_caller]
    pub fn get_patch_async(&self) -> Result<Posted<Vec<T>>> {
        self.array.get_patch_async(self.region)
    }

    /// The future form of [`View::put_patch`]; see [`GlobalArray::put_patch_async`].
    ///
    /// # Errors
    /// As [`GlobalArray::put_patch_async`].
    #[track_caller]
    pub fn put_patch_async(&self, values: &[T]) -> Result<Posted<()>> {
        self.array.put_patch_async(self.region, values)
    }

    /// As [`View::put_patch`], but does not wait for room; see [`GlobalArray::try_put_patch`].
    ///
    /// # Errors
    /// As [`GlobalArray::try_put_patch`].
    #[track_caller]
    pub fn try_put_patch(&self, values: &[T]) -> Result<()> {
        self.array.try_put_patch(self.region, values)
    }

    /// Writes the whole view, row by row.
    ///
    /// # Errors
    /// As [`GlobalArray::put_patch`].
    #[track_caller]
    pub fn put_patch(&self, values: &[T]) -> Result<()> {
        self.array.put_patch(self.region, values).placed_here()
    }
}
