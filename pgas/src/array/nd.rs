//! Views of the local part for the crate `ndarray`.

use bellwether_runtime::Pod;
use ndarray::{ArrayView, ArrayViewMut, AxisDescription, Dim, Dimension, IntoDimension, Ix, Slice};

use super::index::Region;
use super::{GlobalArray, Local, View, ViewMut};

impl<T: Pod, const D: usize> GlobalArray<T, D, Local>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    /// This rank's own elements, without ghost layers, as a view of the crate `ndarray`. With the feature `ndarray`.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> bellwether::Result<()> {
    /// # bellwether::threads(2, |world| {
    /// use bellwether::array::{GlobalArray, Layout};
    /// let mut plane = GlobalArray::<f64, 2>::new(world, Layout::rows([8, 3], world.size())?)?;
    /// plane.ndarray_mut().column_mut(1).fill(2.0);
    /// assert_eq!(plane.ndarray().row(0).sum(), 2.0);
    /// assert_eq!(plane.sum(world)?, 16.0);
    /// # Ok(()) })?.into_iter().collect() }
    /// ```
    pub fn ndarray(&self) -> ArrayView<'_, T, Dim<[Ix; D]>> {
        let mut view = self.ndarray_with_ghosts();
        view.slice_each_axis_inplace(side(self.interior()));
        view
    }

    /// As [`GlobalArray::ndarray`], to be changed.
    pub fn ndarray_mut(&mut self) -> ArrayViewMut<'_, T, Dim<[Ix; D]>> {
        let interior = self.interior();
        let mut view = self.ndarray_with_ghosts_mut();
        view.slice_each_axis_inplace(side(interior));
        view
    }

    /// The elements of [`GlobalArray::local`], ghost layers included, as a view of the crate `ndarray`.
    pub fn ndarray_with_ghosts(&self) -> ArrayView<'_, T, Dim<[Ix; D]>> {
        ArrayView::from_shape(self.local_extents().into_dimension(), self.local())
            .expect("as many elements as the extents say")
    }

    /// As [`GlobalArray::ndarray_with_ghosts`], to be changed.
    pub fn ndarray_with_ghosts_mut(&mut self) -> ArrayViewMut<'_, T, Dim<[Ix; D]>> {
        let extents = self.local_extents().into_dimension();
        ArrayViewMut::from_shape(extents, self.local_mut()).expect("as many elements as the extents say")
    }
}

impl<'a, T: Pod, const D: usize> View<'a, T, D, Local>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    /// This rank's elements of the box, as a view of the crate `ndarray`; empty if it has none. It is a box in memory in every
    /// layout: [`View::interior`] says where, [`View::iter`] gives the indices in the same order. With the feature `ndarray`.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> bellwether::Result<()> {
    /// # bellwether::threads(2, |world| {
    /// use bellwether::array::{GlobalArray, Layout};
    /// let mut plane = GlobalArray::<f64, 2>::new(world, Layout::rows([8, 5], world.size())?)?;
    /// plane.view_mut([3..6, 1..4])?.ndarray_mut().column_mut(2).fill(2.0);
    /// // Row 3 is at the first rank, rows 4 and 5 at the other one.
    /// assert_eq!(plane.view([3..6, 1..4])?.ndarray().shape(), [1 + world.rank(), 3]);
    /// assert_eq!(plane.sum(world)?, 6.0);
    /// # Ok(()) })?.into_iter().collect() }
    /// ```
    pub fn ndarray(&self) -> ArrayView<'a, T, Dim<[Ix; D]>> {
        let mut view = self.array().ndarray_with_ghosts();
        view.slice_each_axis_inplace(side(self.interior()));
        view
    }
}

impl<T: Pod, const D: usize> ViewMut<'_, T, D>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    /// As [`View::ndarray`], to be changed.
    pub fn ndarray_mut(&mut self) -> ArrayViewMut<'_, T, Dim<[Ix; D]>> {
        let (array, interior) = self.parts();
        let mut view = array.ndarray_with_ghosts_mut();
        view.slice_each_axis_inplace(side(interior));
        view
    }
}

fn side<const D: usize>(region: Region<D>) -> impl FnMut(AxisDescription) -> Slice {
    move |side| Slice::from(region.range(side.axis.index()))
}

#[cfg(test)]
mod tests {
    use crate::array::{Ghosts, GlobalArray, Layout};

    #[test]
    fn views_of_boxes_have_what_is_here_of_them_in_every_layout() {
        use crate::array::Distribution::*;
        let outcomes = bellwether_runtime::threads(3, |world| {
            let value = |[i, j]: [usize; 2]| (100 * i + j) as i32;
            for kind in [Block, Cyclic, BlockCyclic(2), Uneven(vec![1.0, 0.0, 2.0]), Sizes(vec![0, 7, 3])] {
                let layout = Layout::on_grid([6, 10], [Block, kind], [1, 3], 3)?;
                let mut array = GlobalArray::from_fn(world, layout, value)?;
                for region in [[1..5, 3..8], [0..6, 9..10], [2..2, 3..8], [0..6, 0..10], [6..6, 10..10]] {
                    let view = array.view(region.clone())?;
                    assert!(view.ndarray().iter().eq(view.iter().map(|(_, element)| element)));
                    let (shape, interior) = (view.ndarray().shape().to_vec(), view.interior());
                    assert_eq!(shape, interior.extents);
                    if !interior.is_empty() {
                        assert_eq!(Some(view.ndarray()[[0, 0]]), array.global(interior.start).map(value));
                    }
                    array.view_mut(region.clone())?.ndarray_mut().fill(-1);
                    let inside = |[i, j]: [usize; 2]| region[0].contains(&i) && region[1].contains(&j);
                    assert!(array.iter().all(|(index, x)| *x == if inside(index) { -1 } else { value(index) }));
                    array.iter_mut().for_each(|(index, element)| *element = value(index));
                }
            }
            let ghosts = Ghosts::new([1, 2]);
            let mut array = GlobalArray::<i32, 2>::with_ghosts(world, Layout::rows([6, 8], world.size())?, ghosts)?;
            array.view_mut([1..5, 0..3])?.ndarray_mut().fill(1);
            assert_eq!(array.sum(world)?, 12);
            assert_eq!(array.local().iter().sum::<i32>(), array.view([1..5, 0..3])?.ndarray().sum());
            Ok(())
        });
        outcomes.expect("runs").into_iter().collect::<bellwether_runtime::Result<()>>().expect("runs");
    }

    #[test]
    fn views_have_what_is_here() {
        let outcomes = bellwether_runtime::threads(3, |world| {
            let layout = Layout::block([6, 5, 4], world.size())?;
            let value = |[i, j, k]: [usize; 3]| (100 * i + 10 * j + k) as i32;
            let mut array = GlobalArray::with_ghosts(world, layout, Ghosts::new([1, 0, 2]))?;
            array.ndarray_with_ghosts_mut().fill(-1);
            let first = array.global([0; 3]).expect("an own element");
            for ((i, j, k), element) in array.ndarray_mut().indexed_iter_mut() {
                *element = value([first[0] + i, first[1] + j, first[2] + k]);
            }
            assert!(array.iter().all(|(index, element)| *element == value(index)));
            assert_eq!(array.ndarray().shape(), array.own_extents());
            assert_eq!(array.ndarray_with_ghosts().shape(), array.local_extents());
            assert_eq!(array.ndarray_with_ghosts()[[0, 0, 0]], -1);
            let line = GlobalArray::from_fn(world, Layout::cyclic([7], world.size())?, |[i]| i)?;
            assert_eq!(line.ndarray().to_vec(), line.local());
            Ok(())
        });
        outcomes.expect("runs").into_iter().collect::<bellwether_runtime::Result<()>>().expect("runs");
    }
}
