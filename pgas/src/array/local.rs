//! The local phase: this rank's part as a slice.

use bellwether_runtime::{Placed, Pod, Result, Symmetric};

use super::index::Region;
use super::layout::Layout;
use super::{GlobalArray, Local};

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// This rank's elements, row by row: a box of [`GlobalArray::local_extents`] elements, ghost layers included. Without
    /// ghost layers the box has only this rank's own elements.
    #[inline]
    pub fn local(&self) -> &[T] {
        // SAFETY: this rank's part of the allocation, as long as the handle lives; any bits are a `T`. In this phase
        // only `local_mut` writes it: every rank gave up its shared handle, and pointers are stale.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr_range().start, self.local_len()) }
    }

    /// As [`GlobalArray::local`], to be changed.
    #[inline]
    pub fn local_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `local`; and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr_range().start, self.local_len()) }
    }

    /// Elements of [`GlobalArray::local`]; at most as many as were allocated, which is the most of all ranks.
    fn local_len(&self) -> usize {
        let len = self.local_extents().into_iter().product();
        assert!(len <= self.memory.len(), "a part larger than its memory");
        len
    }

    /// This rank's own elements with their indices in the array, in the order of memory. Of two arrays: [`GlobalArray::zip`],
    /// since the standard library's `zip` joins elements of other indices where the layouts differ.
    pub fn iter(&self) -> impl Iterator<Item = ([usize; D], &T)> {
        self.lines().flat_map(|(local, line)| {
            line.iter().zip(indices(&self.layout, self.rank, own_index(local, self.ghost))).map(|(e, index)| (index, e))
        })
    }

    /// As [`GlobalArray::iter`], to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = ([usize; D], &mut T)> {
        let (layout, rank, ghost) = (self.layout.clone(), self.rank, self.ghost);
        self.lines_mut().flat_map(move |(local, line)| {
            let indices: Indices<D> = indices(&layout, rank, own_index(local, ghost));
            line.iter_mut().zip(indices).map(|(element, index)| (index, element))
        })
    }

    /// This rank's own elements of both arrays at each index: the index, ours, and theirs, in the order of memory. Local.
    ///
    /// # Examples
    /// ```
    /// use bellwether::array::{GlobalArray, Layout};
    /// # bellwether::threads(2, |world| {
    /// let heights = GlobalArray::from_fn(world, Layout::block([10], 2)?, |[i]| i as f64)?;
    /// let weights = GlobalArray::from_fn(world, Layout::block([10], 2)?, |[i]| 0.5 * i as f64)?;
    /// assert!(heights.zip(&weights)?.all(|(_, height, weight)| *height == 2.0 * weight));
    /// // As many on each rank, but others.
    /// let dealt = GlobalArray::from_fn(world, Layout::cyclic([10], 2)?, |[i]| i as f64)?;
    /// let error = heights.zip(&dealt).map(drop).unwrap_err().to_string();
    /// assert!(error.contains("block") && error.contains("cyclic"), "{error}");
    /// # Ok(()) })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument), with both layouts, if they are not equal; on all ranks,
    /// as every rank has the same ones.
    #[track_caller]
    pub fn zip<'a, U: Pod>(
        &'a self,
        other: &'a GlobalArray<U, D>,
    ) -> Result<impl Iterator<Item = ([usize; D], &'a T, &'a U)>> {
        self.layout.check_same(&other.layout, "zip").placed()?;
        let theirs = other.lines().flat_map(|(_, line)| line);
        Ok(self.iter().zip(theirs).map(|((index, ours), theirs)| (index, ours, theirs)))
    }

    /// As [`GlobalArray::zip`], this array's elements to be changed.
    ///
    /// # Errors
    /// As [`GlobalArray::zip`].
    #[track_caller]
    pub fn zip_mut<'a, U: Pod>(
        &'a mut self,
        other: &'a GlobalArray<U, D>,
    ) -> Result<impl Iterator<Item = ([usize; D], &'a mut T, &'a U)>> {
        self.layout.check_same(&other.layout, "zip_mut").placed()?;
        let theirs = other.lines().flat_map(|(_, line)| line);
        Ok(self.iter_mut().zip(theirs).map(|((index, ours), theirs)| (index, ours, theirs)))
    }

    /// This rank's own elements, line by line along the last dimension, and where each line begins in the local box.
    pub(super) fn lines(&self) -> impl Iterator<Item = ([usize; D], &[T])> {
        self.lines_of(self.interior())
    }

    /// The same of a box inside the local box.
    pub(super) fn lines_of(&self, region: Region<D>) -> impl Iterator<Item = ([usize; D], &[T])> {
        let (all, count) = (self.local(), region.extents[D - 1]);
        region.lines().map(move |line| {
            let at = self.place(&line);
            (line, &all[at..at + count])
        })
    }

    pub(super) fn lines_mut(&mut self) -> impl Iterator<Item = ([usize; D], &mut [T])> {
        self.lines_of_mut(self.interior())
    }

    /// Copies `count` elements of the local box of `rank`, which is mapped, from `there` on, to those of this one that begin at `here`. Other
    /// ranks may read other elements of this box meanwhile.
    ///
    /// # Panics
    /// If one of the ranges is not in its box.
    pub(super) fn copy_line(&mut self, here: [usize; D], count: usize, rank: usize, there: usize) {
        self.with_line(here, count, |memory, line| memory.get_slice(rank, there, line))
            .expect("mapped memory, and a range inside it");
    }

    /// Gives `change` the memory, and `count` elements of the local box that begin at `here`. Other ranks may read other elements of this box
    /// meanwhile.
    ///
    /// # Panics
    /// If they are not in the box.
    pub(super) fn with_line<R>(
        &mut self,
        here: [usize; D],
        count: usize,
        change: impl FnOnce(&Symmetric<T>, &mut [T]) -> R,
    ) -> R {
        let at = self.place(&here);
        assert!(at + count <= self.local_len(), "{count} elements from {at} on");
        // SAFETY: a part of the box, as just checked; exclusive as in `local_mut`.
        let line = unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr_range().start.add(at), count) };
        change(&self.memory, line)
    }

    pub(super) fn lines_of_mut(&mut self, region: Region<D>) -> impl Iterator<Item = ([usize; D], &mut [T])> {
        let (extents, count) = (self.local_extents(), region.extents[D - 1]);
        let (mut rest, mut done) = (self.local_mut(), 0);
        region.lines().map(move |line| {
            let at = super::offset(&extents, &line);
            let (_, from) = std::mem::take(&mut rest).split_at_mut(at - done);
            let (line_mut, after) = from.split_at_mut(count);
            (rest, done) = (after, at + count);
            (line, line_mut)
        })
    }
}

/// Where an element of the local box is among this rank's own.
pub(super) fn own_index<const D: usize>(local: [usize; D], ghost: [usize; D]) -> [usize; D] {
    std::array::from_fn(|d| local[d] - ghost[d])
}

/// Indices in the array of this rank's own elements, along the last dimension from `first` to the end.
pub(super) struct Indices<const D: usize> {
    layout: Layout<D>,
    index: [usize; D],
    part: usize,
    next: usize,
}

pub(super) fn indices<const D: usize>(layout: &Layout<D>, rank: usize, first: [usize; D]) -> Indices<D> {
    let place = layout.place_of(rank);
    let mut index = [0; D];
    (0..D - 1).for_each(|d| index[d] = layout.axis(d).global(place[d], first[d]));
    Indices { layout: layout.clone(), index, part: place[D - 1], next: first[D - 1] }
}

impl<const D: usize> Iterator for Indices<D> {
    type Item = [usize; D];

    #[inline]
    fn next(&mut self) -> Option<[usize; D]> {
        self.index[D - 1] = self.layout.axis(D - 1).global(self.part, self.next);
        self.next += 1;
        Some(self.index)
    }
}
