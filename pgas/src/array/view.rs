//! A box of an array, with indices of its own.

use bellwether_runtime::{Error, Pod, Posted, Result, World};

use super::index::{Position, Region};
use super::{GlobalArray, Local, Phase, Shared};

/// A box of an array, whose indices begin at 0. It borrows the array; nothing is copied.
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
    /// A box of the array: `array.view([2..5, 0..3])`. Local.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], with both boxes, for one that is not inside.
    pub fn view(&self, region: impl Into<Region<D>>) -> Result<View<'_, T, D, P>> {
        let region = region.into();
        region.check_inside(self.extents(), "view")?;
        Ok(View { array: self, region })
    }
}

impl<'a, T: Pod, const D: usize, P: Phase> View<'a, T, D, P> {
    /// The box of the array that it shows.
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

    /// A box of the box.
    ///
    /// # Errors
    /// As [`GlobalArray::view`].
    pub fn view(&self, region: impl Into<Region<D>>) -> Result<View<'a, T, D, P>> {
        Ok(View { array: self.array, region: self.inner(region.into(), "view")? })
    }

    /// The index in the array of an element of the box: for all that an array does with one element, such as
    /// `array.fetch_add(view.at([1, 0])?, 1)`. Local.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], with both sides, for an index outside the box.
    pub fn at(&self, index: impl Position<D>) -> Result<[usize; D]> {
        self.index(index.position(), "at")
    }

    /// A box of this one, as a box of the array.
    fn inner(&self, region: Region<D>, operation: &'static str) -> Result<Region<D>> {
        region.check_inside(self.extents(), operation)?;
        Ok(Region { start: std::array::from_fn(|d| self.region.start[d] + region.start[d]), ..region })
    }

    /// An index of this box, as one of the array.
    fn index(&self, index: [usize; D], operation: &'static str) -> Result<[usize; D]> {
        if (0..D).all(|d| index[d] < self.region.extents[d]) {
            return Ok(std::array::from_fn(|d| self.region.start[d] + index[d]));
        }
        let why = format!("index {index:?} is outside a view of {:?} elements", self.extents());
        Err(Error::InvalidArgument { operation, why })
    }
}

/// An index of the array, as one of the box, if it is inside.
fn within<const D: usize>(region: Region<D>, index: [usize; D]) -> Option<[usize; D]> {
    let inside = (0..D).all(|d| region.range(d).contains(&index[d]));
    inside.then(|| std::array::from_fn(|d| index[d] - region.start[d]))
}

/// A box of an array whose elements this rank may change, where it has them.
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
    pub fn view_mut(&mut self, region: impl Into<Region<D>>) -> Result<ViewMut<'_, T, D>> {
        let region = region.into();
        region.check_inside(self.extents(), "view_mut")?;
        Ok(ViewMut { array: self, region })
    }
}

impl<T: Pod, const D: usize> ViewMut<'_, T, D> {
    /// What this rank has of the box, with indices of the box.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = ([usize; D], &mut T)> {
        let region = self.region;
        self.array.iter_mut().filter_map(move |(index, element)| Some((within(region, index)?, element)))
    }

    /// Changes every element of the box that this rank has. Local.
    pub fn update(&mut self, mut change: impl FnMut(&mut T)) {
        self.iter_mut().for_each(|(_, element)| change(element));
    }

    /// Gives every element of the box that this rank has this value. Local.
    pub fn fill(&mut self, value: T) {
        self.update(|element| *element = value);
    }
}

impl<'a, T: Pod, const D: usize> View<'a, T, D, Local> {
    /// What this rank has of the box, with indices of the box.
    pub fn iter(&self) -> impl Iterator<Item = ([usize; D], &'a T)> + use<'a, T, D> {
        let region = self.region;
        self.array.iter().filter_map(move |(index, element)| Some((within(region, index)?, element)))
    }

    /// Folds the elements of the box to one value; as [`GlobalArray::reduce`]. Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::reduce`].
    pub fn reduce<U: Pod>(
        &self,
        world: &World,
        start: U,
        mut fold: impl FnMut(U, T) -> U,
        combine: impl Fn(U, U) -> U,
    ) -> Result<U> {
        world.within("reduce", || {
            let here = || self.iter().fold(start, |value, (_, element)| fold(value, *element));
            self.array.reduce_from(world, here, combine)
        })
    }
}

impl<T: Pod, const D: usize> View<'_, T, D, Shared> {
    /// As [`GlobalArray::get`], by an index of the box.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn get(&self, index: impl Position<D>) -> Result<T> {
        self.array.get(self.index(index.position(), "get")?)
    }

    /// As [`GlobalArray::put`], by an index of the box.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn put(&self, index: impl Position<D>, value: T) -> Result<()> {
        self.array.put(self.index(index.position(), "put")?, value)
    }

    /// Reads the whole box, row by row.
    ///
    /// # Errors
    /// As [`GlobalArray::get_patch`].
    pub fn get_patch(&self) -> Result<Vec<T>> {
        self.array.get_patch(self.region)
    }

    /// The future form of [`View::get_patch`]; see [`GlobalArray::get_patch_async`].
    ///
    /// # Errors
    /// As [`GlobalArray::get_patch_async`].
    pub fn get_patch_async(&self) -> Result<Posted<Vec<T>>> {
        self.array.get_patch_async(self.region)
    }

    /// The future form of [`View::put_patch`]; see [`GlobalArray::put_patch_async`].
    ///
    /// # Errors
    /// As [`GlobalArray::put_patch_async`].
    pub fn put_patch_async(&self, values: &[T]) -> Result<Posted<()>> {
        self.array.put_patch_async(self.region, values)
    }

    /// Writes the whole box, row by row.
    ///
    /// # Errors
    /// As [`GlobalArray::put_patch`].
    pub fn put_patch(&self, values: &[T]) -> Result<()> {
        self.array.put_patch(self.region, values)
    }
}
