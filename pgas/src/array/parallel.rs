//! Arrays on the threads of a [`Pool`]: this rank's elements in parallel, and from each thread any element.

use std::ops::Range;
use std::sync::Arc;

use bellwether_runtime::{Error, Placed, Pod, Result};
use rayon::iter::plumbing::{Consumer, Producer, ProducerCallback, UnindexedConsumer, bridge};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};

use super::index::{Position, Region, offset};
use super::{GlobalArray, Layout, Local, Shared};
use crate::pool::{Pool, Pooled};

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// As [`GlobalArray::iter`], in parallel, for rayon: make it here, and run it on a [`Pool`]. Rayon's `zip` joins two such
    /// iterators by the places of elements in memory. If the layouts differ, it joins elements of different indices: join two arrays
    /// by [`GlobalArray::par_zip`] and [`GlobalArray::par_zip_mut`], which check the layouts.
    ///
    /// # Examples
    /// ```
    /// use bellwether::rayon::prelude::*;
    /// use bellwether::{GlobalArray, Layout, Pool};
    /// # fn main() -> bellwether::Result<()> {
    /// # bellwether::threads(2, |world| {
    /// let pool = Pool::new(world)?;
    /// let layout = Layout::block([30, 20], world.size())?;
    /// let mut heights = GlobalArray::<f64, 2>::new(world, layout.clone())?;
    /// let slopes = GlobalArray::from_fn(world, layout, |[i, _]| i as f64)?;
    /// let both = heights.par_zip_mut(&slopes)?;
    /// pool.install(|| both.for_each(|([_, j], height, slope)| *height = slope * j as f64));
    /// let here = heights.par_iter();
    /// let most = pool.install(|| here.map(|(_, height)| *height).reduce(|| 0.0, f64::max));
    /// let mut all = [most];
    /// world.allreduce(&mut all, f64::max)?;
    /// assert_eq!(all, [29.0 * 19.0]);
    /// # Ok(()) })?.into_iter().collect() }
    /// ```
    pub fn par_iter(&self) -> impl IndexedParallelIterator<Item = ([usize; D], &T)>
    where
        T: Sync,
    {
        Elements::new(self.shape(), self.local())
    }

    /// As [`GlobalArray::par_iter`], to be changed.
    pub fn par_iter_mut(&mut self) -> impl IndexedParallelIterator<Item = ([usize; D], &mut T)>
    where
        T: Send,
    {
        Elements::new(self.shape(), self.local_mut())
    }

    /// As [`GlobalArray::zip`], in parallel: the index, and the elements of both arrays there.
    ///
    /// # Errors
    /// As [`GlobalArray::zip`].
    #[track_caller]
    pub fn par_zip<'a, U: Pod + Sync>(
        &'a self,
        other: &'a GlobalArray<U, D>,
    ) -> Result<impl IndexedParallelIterator<Item = ([usize; D], &'a T, &'a U)>>
    where
        T: Sync,
    {
        self.layout.check_same(&other.layout, "par_zip").placed()?;
        Ok(self.par_iter().zip(other.par_iter()).map(|((index, ours), (_, theirs))| (index, ours, theirs)))
    }

    /// As [`GlobalArray::par_zip`], this array's elements to be changed.
    ///
    /// # Errors
    /// As [`GlobalArray::zip`].
    #[track_caller]
    pub fn par_zip_mut<'a, U: Pod + Sync>(
        &'a mut self,
        other: &'a GlobalArray<U, D>,
    ) -> Result<impl IndexedParallelIterator<Item = ([usize; D], &'a mut T, &'a U)>>
    where
        T: Send,
    {
        self.layout.check_same(&other.layout, "par_zip_mut").placed()?;
        Ok(self.par_iter_mut().zip(other.par_iter()).map(|((index, ours), (_, theirs))| (index, ours, theirs)))
    }

    fn shape(&self) -> Shape<D> {
        let (layout, local) = (self.layout.clone(), self.local_extents());
        Shape { place: layout.place_of(self.rank), layout, interior: self.interior(), local }
    }
}

/// Where a rank's own elements are.
struct Shape<const D: usize> {
    layout: Layout<D>,
    place: [usize; D],
    /// Own elements in the local box, and its extents.
    interior: Region<D>,
    local: [usize; D],
}

impl<const D: usize> Shape<D> {
    /// The index among the own elements of the one with this number.
    fn own(&self, number: usize) -> [usize; D] {
        let (mut own, mut rest) = ([0; D], number);
        for d in (1..D).rev() {
            (own[d], rest) = (rest % self.interior.extents[d], rest / self.interior.extents[d]);
        }
        own[0] = rest;
        own
    }

    fn global(&self, own: [usize; D]) -> [usize; D] {
        std::array::from_fn(|d| self.layout.axis(d).global(self.place[d], own[d]))
    }

    /// Where in the local box the own element with this number is.
    fn at(&self, number: usize) -> usize {
        let own = self.own(number);
        offset(&self.local, &std::array::from_fn(|d| own[d] + self.interior.start[d]))
    }

    /// Elements that are not own ones, between the one before this one and this one.
    fn gap(&self, number: usize) -> usize {
        self.at(number) - self.at(number - 1) - 1
    }
}

/// A slice, to be read or to be changed.
trait Piece: Sized + Send {
    type Item: Send;

    fn split(self, at: usize) -> (Self, Self);
    fn first(&mut self) -> Option<Self::Item>;
    fn last(&mut self) -> Option<Self::Item>;
    fn len(&self) -> usize;
}

impl<'a, T: Sync> Piece for &'a [T] {
    type Item = &'a T;

    fn split(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }

    #[inline]
    fn first(&mut self) -> Option<&'a T> {
        self.split_off_first()
    }

    fn last(&mut self) -> Option<&'a T> {
        self.split_off_last()
    }

    fn len(&self) -> usize {
        <[T]>::len(self)
    }
}

impl<'a, T: Send> Piece for &'a mut [T] {
    type Item = &'a mut T;

    fn split(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }

    #[inline]
    fn first(&mut self) -> Option<&'a mut T> {
        self.split_off_first_mut()
    }

    fn last(&mut self) -> Option<&'a mut T> {
        self.split_off_last_mut()
    }

    fn len(&self) -> usize {
        <[T]>::len(self)
    }
}

/// The own elements with these numbers. The piece begins with the first of them and ends with the last.
struct Elements<P, const D: usize> {
    shape: Arc<Shape<D>>,
    piece: P,
    numbers: Range<usize>,
}

impl<P: Piece, const D: usize> Elements<P, D> {
    fn new(shape: Shape<D>, all: P) -> Elements<P, D> {
        let numbers = 0..shape.interior.len();
        let ends = if numbers.is_empty() { [0, 0] } else { [shape.at(0), shape.at(numbers.end - 1) + 1] };
        let piece = all.split(ends[1]).0.split(ends[0]).1;
        Elements { shape: Arc::new(shape), piece, numbers }
    }
}

impl<P: Piece, const D: usize> ParallelIterator for Elements<P, D> {
    type Item = ([usize; D], P::Item);

    fn drive_unindexed<C: UnindexedConsumer<Self::Item>>(self, consumer: C) -> C::Result {
        bridge(self, consumer)
    }

    fn opt_len(&self) -> Option<usize> {
        Some(self.numbers.len())
    }
}

impl<P: Piece, const D: usize> IndexedParallelIterator for Elements<P, D> {
    fn len(&self) -> usize {
        self.numbers.len()
    }

    fn drive<C: Consumer<Self::Item>>(self, consumer: C) -> C::Result {
        bridge(self, consumer)
    }

    fn with_producer<C: ProducerCallback<Self::Item>>(self, callback: C) -> C::Output {
        callback.callback(self)
    }
}

impl<P: Piece, const D: usize> Producer for Elements<P, D> {
    type Item = ([usize; D], P::Item);
    type IntoIter = Sequence<P, D>;

    fn into_iter(self) -> Sequence<P, D> {
        let own = self.shape.own(self.numbers.start);
        Sequence { global: self.shape.global(own), own: own[D - 1], elements: self }
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        let Elements { shape, piece, numbers } = self;
        let middle = numbers.start + index;
        let (low, high) = if middle == numbers.start {
            piece.split(0)
        } else if middle == numbers.end {
            let all = piece.len();
            piece.split(all)
        } else {
            let (low, rest) = piece.split(shape.at(middle - 1) + 1 - shape.at(numbers.start));
            (low, rest.split(shape.gap(middle)).1)
        };
        let high = Elements { shape: Arc::clone(&shape), piece: high, numbers: middle..numbers.end };
        (Elements { shape, piece: low, numbers: numbers.start..middle }, high)
    }
}

/// The same one after the other.
struct Sequence<P, const D: usize> {
    elements: Elements<P, D>,
    /// The index of the next element in the array, and its place among the own elements of its line.
    global: [usize; D],
    own: usize,
}

impl<P: Piece, const D: usize> Iterator for Sequence<P, D> {
    type Item = ([usize; D], P::Item);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let element = self.elements.piece.first()?;
        let index = self.global;
        self.elements.numbers.start += 1;
        self.own += 1;
        if self.own < self.elements.shape.interior.extents[D - 1] {
            let shape = &self.elements.shape;
            self.global[D - 1] = shape.layout.axis(D - 1).global(shape.place[D - 1], self.own);
        } else {
            self.turn();
        }
        Some((index, element))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.elements.numbers.len(), Some(self.elements.numbers.len()))
    }
}

impl<P: Piece, const D: usize> Sequence<P, D> {
    /// On to the next line.
    fn turn(&mut self) {
        let Elements { shape, piece, numbers } = &mut self.elements;
        if piece.len() == 0 {
            return;
        }
        (0..shape.gap(numbers.start)).for_each(|_| drop(piece.first()));
        let own = shape.own(numbers.start);
        (self.global, self.own) = (shape.global(own), own[D - 1]);
    }
}

impl<P: Piece, const D: usize> DoubleEndedIterator for Sequence<P, D> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let Elements { shape, piece, numbers } = &mut self.elements;
        let element = piece.last()?;
        numbers.end -= 1;
        if piece.len() > 0 {
            (0..shape.gap(numbers.end)).for_each(|_| drop(piece.last()));
        }
        Some((shape.global(shape.own(numbers.end)), element))
    }
}

impl<P: Piece, const D: usize> ExactSizeIterator for Sequence<P, D> {}

impl<T: Pod + Send + Sync, const D: usize> GlobalArray<T, D, Shared> {
    /// The array for the threads of a pool. Local.
    pub fn pooled(&self, pool: &Pool) -> PooledArray<'_, T, D> {
        PooledArray { memory: pool.share(&self.memory), layout: self.layout.clone(), ghost: self.ghost }
    }
}

/// A [`GlobalArray`] in its shared phase, for the threads of a [`Pool`]: any element, from each of them. As [`Pooled`].
#[derive(Clone, Debug)]
pub struct PooledArray<'a, T, const D: usize> {
    memory: Pooled<'a, T>,
    layout: Layout<D>,
    ghost: [usize; D],
}

impl<T: Pod + Send + Sync, const D: usize> PooledArray<'_, T, D> {
    /// Reads one element.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[track_caller]
    pub fn get(&self, index: impl Position<D>) -> Result<T> {
        let (rank, at) = self.locate("get", index.position()).placed()?;
        self.memory.get(rank, at)
    }

    /// Writes one element. It is visible there when this returns.
    ///
    /// # Errors
    /// As [`GlobalArray::put`].
    #[track_caller]
    pub fn put(&self, index: impl Position<D>, value: T) -> Result<()> {
        let (rank, at) = self.locate("put", index.position()).placed()?;
        self.memory.put(rank, at, value)
    }

    fn locate(&self, operation: &'static str, index: [usize; D]) -> Result<(usize, usize)> {
        self.layout.place(index, &self.ghost).ok_or_else(|| self.layout.outside(operation, index))
    }
}

impl<const D: usize> Layout<D> {
    #[cold]
    pub(super) fn outside(&self, operation: &'static str, index: [usize; D]) -> Error {
        let why = format!("index {index:?} is outside an array of {:?} elements", self.extents());
        Error::InvalidArgument { operation, why }
    }
}
