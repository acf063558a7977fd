//! Lists of elements anywhere, in bulk: the array side of [`crate::aggregate`].

use bellwether_runtime::{Pod, Result};

use super::{GlobalArray, Layout, Local, Phase};
use crate::aggregate::{Addend, Aggregator, Places};

/// An array's elements, numbered in the order of their indices, the last dimension fastest.
pub(super) struct Numbered<'a, const D: usize> {
    layout: &'a Layout<D>,
    ghost: [usize; D],
}

impl<'a, const D: usize> Numbered<'a, D> {
    pub(super) fn without_ghosts(layout: &'a Layout<D>) -> Numbered<'a, D> {
        Numbered { layout, ghost: [0; D] }
    }
}

impl<const D: usize> Places for Numbered<'_, D> {
    fn extent(&self) -> usize {
        self.layout.len()
    }

    #[inline(always)]
    fn place(&self, number: usize) -> (usize, usize) {
        let (mut index, mut rest) = ([0; D], number);
        for d in (1..D).rev() {
            let extent = self.layout.axis(d).extent();
            (index[d], rest) = (rest % extent, rest / extent);
        }
        index[0] = rest;
        // A number below the extent has a place; the caller refuses any other.
        self.layout.place(index, &self.ghost).unwrap_or((usize::MAX, 0))
    }

    fn run(&self, number: usize) -> usize {
        let axis = self.layout.axis(D - 1);
        let index = number % axis.extent();
        axis.runs(index..axis.extent()).next().map_or(1, |run| run.count)
    }
}

impl<T: Pod, const D: usize, P: Phase> GlobalArray<T, D, P> {
    /// Reads the elements with these numbers, in their order; elements are numbered in the order of their indices, the last
    /// dimension fastest. Collective: each rank with as many as it likes, also none. In the shared phase what others put
    /// meanwhile is seen or not.
    ///
    /// # Errors
    /// As [`Aggregator::gather`].
    #[track_caller]
    pub fn gather(&self, by: &mut Aggregator<'_, T>, numbers: &[usize]) -> Result<Vec<T>> {
        self.memory.progress().within("gather", || {
            by.gather(&self.memory, &Numbered { layout: &self.layout, ghost: self.ghost }, numbers)
        })
    }
}

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// Adds `values[i]` to the element with number `numbers[i]`, for all `i` of all ranks, wherever the elements are; numbers
    /// as in [`GlobalArray::gather`]. Collective. In the local phase, since it is the owners that add.
    ///
    /// # Examples
    /// ```
    /// use bellwether::aggregate::{Aggregator, Options};
    /// use bellwether::array::{GlobalArray, Layout};
    /// # bellwether::threads(3, |world| {
    /// let mut bins = GlobalArray::<u64, 1>::new(world, Layout::cyclic([10], world.size())?)?;
    /// let mut by = Aggregator::new(world, &Options::new(world))?;
    /// bins.scatter_add(&mut by, &[9, 0, 9], &[1, 1, 1])?;
    /// assert_eq!(bins.gather(&mut by, &[0, 9])?, [3, 6]);
    /// # Ok(())
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Aggregator::scatter_add`].
    #[track_caller]
    pub fn scatter_add(&mut self, by: &mut Aggregator<'_, T>, numbers: &[usize], values: &[T]) -> Result<()>
    where
        T: Addend,
    {
        self.memory.progress().within("scatter_add", || {
            let places = Numbered { layout: &self.layout, ghost: self.ghost };
            by.scatter_add(&mut self.memory, &places, numbers, values)
        })
    }

    /// As [`GlobalArray::scatter_add`], with another way to combine what is there with a value.
    ///
    /// # Errors
    /// As [`Aggregator::scatter_add`].
    #[track_caller]
    pub fn scatter_with(
        &mut self,
        by: &mut Aggregator<'_, T>,
        numbers: &[usize],
        values: &[T],
        combine: impl Fn(T, T) -> T,
    ) -> Result<()> {
        self.memory.progress().within("scatter_with", || {
            let places = Numbered { layout: &self.layout, ghost: self.ghost };
            by.scatter_with(&mut self.memory, &places, numbers, values, combine)
        })
    }

    /// As [`GlobalArray::scatter_add`], and returns what each element was just before its value was added.
    ///
    /// # Errors
    /// As [`Aggregator::scatter_add`].
    #[track_caller]
    pub fn fetch_add_all(&mut self, by: &mut Aggregator<'_, T>, numbers: &[usize], values: &[T]) -> Result<Vec<T>>
    where
        T: Addend,
    {
        self.memory.progress().within("fetch_add_all", || {
            let places = Numbered { layout: &self.layout, ghost: self.ghost };
            by.fetch_add(&mut self.memory, &places, numbers, values)
        })
    }
}
