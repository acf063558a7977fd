//! Elements of a slice that do not lie together: at a stride, or with given numbers.

use bellwether_runtime::{Error, Lent, Piece, Placed, Pod, Posted, Result, World};

use super::GlobalSlice;

/// Elements, or runs of them, that a blocking form takes at a time over a network, so that it needs little memory of its own.
pub(crate) const BATCH: usize = 4096;

/// Elements apart, at a stride or by their numbers. Over a network one request for each, or for neighbours together, many of
/// them under way at a time: all take about as long as one.
impl<T: Pod> GlobalSlice<T> {
    /// Reads every `stride`-th element from `start` on, `count` of them. With a stride of 0 all of them are the same element.
    ///
    /// # Errors
    /// As [`GlobalSlice::get_into`]; [`Error::OutOfBounds`] for elements that are not in the slice; [`Error::InvalidArgument`] if
    /// memory cannot hold `count` elements, which only a stride of 0 can ask for.
    #[track_caller]
    pub fn get_strided(&self, world: &World, start: usize, stride: usize, count: usize) -> Result<Vec<T>> {
        (|| -> Result<Vec<T>> {
            let array = self.strided(world, "get_strided", start, stride, count)?;
            check_room::<T>("get_strided", count)?;
            self.read(&array, (0..count).map(|step| start + step * stride))
        })()
        .placed_here()
    }

    /// The future form of [`GlobalSlice::get_strided`].
    ///
    /// # Errors
    /// As [`GlobalSlice::get_strided`] if the pointer is stale or an element is out of bounds, from this call. All other errors
    /// come from the future.
    #[track_caller]
    pub fn get_strided_async(
        &self,
        world: &World,
        start: usize,
        stride: usize,
        count: usize,
    ) -> Result<Posted<Vec<T>>> {
        let array = self.strided(world, "get_strided_async", start, stride, count).placed()?;
        check_room::<T>("get_strided_async", count).placed()?;
        Ok(array.get_pieces_async(&self.pieces((0..count).map(|step| start + step * stride))))
    }

    /// Writes every `stride`-th element from `start` on. With a stride of 0 any one of the values stays.
    ///
    /// # Errors
    /// As [`GlobalSlice::get_strided`]; then nothing was written, but over a network.
    #[track_caller]
    pub fn put_strided(&self, world: &World, start: usize, stride: usize, values: &[T]) -> Result<()> {
        (|| -> Result<()> {
            let array = self.strided(world, "put_strided", start, stride, values.len())?;
            self.write(&array, (0..values.len()).map(|step| start + step * stride), values)
        })()
        .placed_here()
    }

    /// The future form of [`GlobalSlice::put_strided`]: ready when the elements are visible at their rank. `values` may be
    /// changed when this returns.
    ///
    /// # Errors
    /// As [`GlobalSlice::get_strided_async`].
    #[track_caller]
    pub fn put_strided_async(&self, world: &World, start: usize, stride: usize, values: &[T]) -> Result<Posted<()>> {
        let array = self.strided(world, "put_strided_async", start, stride, values.len()).placed()?;
        Ok(array.put_pieces_async(&self.pieces((0..values.len()).map(|step| start + step * stride)), values))
    }

    /// Reads the elements of these numbers, in their order.
    ///
    /// # Errors
    /// As [`GlobalSlice::get_strided`].
    #[track_caller]
    pub fn gather(&self, world: &World, indices: &[usize]) -> Result<Vec<T>> {
        (|| -> Result<Vec<T>> {
            let array = self.indexed(world, "gather", indices)?;
            self.read(&array, indices.iter().copied())
        })()
        .placed_here()
    }

    /// The future form of [`GlobalSlice::gather`]. `indices` may be changed when this returns.
    ///
    /// # Errors
    /// As [`GlobalSlice::get_strided_async`].
    ///
    /// # Examples
    /// Two gathers of different ranks, and the time of one.
    /// ```
    /// use bellwether::GlobalPtr;
    /// # bellwether::threads(3, |world| {
    /// let squares = world.alloc::<u64>(10)?;
    /// (0..10).for_each(|i| squares.store(i, (i * i) as u64));
    /// world.barrier()?;
    /// let here = GlobalPtr::to(&squares, 0, 0)?.slice(10).gather_async(world, &[9, 2])?;
    /// let there = GlobalPtr::to(&squares, world.size() - 1, 0)?.slice(10).get_strided_async(world, 1, 3, 3)?;
    /// assert_eq!((here.wait()?, there.wait()?), (vec![81, 4], vec![1, 16, 49]));
    /// # world.barrier()
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn gather_async(&self, world: &World, indices: &[usize]) -> Result<Posted<Vec<T>>> {
        let array = self.indexed(world, "gather_async", indices).placed()?;
        Ok(array.get_pieces_async(&self.pieces(indices.iter().copied())))
    }

    /// Writes the elements of these numbers. Of several values for one element any one stays.
    ///
    /// # Errors
    /// As [`GlobalSlice::get_strided`]; [`Error::InvalidArgument`] if there are not as many values as numbers. Then
    /// nothing was written, but over a network.
    #[track_caller]
    pub fn scatter(&self, world: &World, indices: &[usize], values: &[T]) -> Result<()> {
        (|| -> Result<()> {
            check_pairs("scatter", indices, values)?;
            let array = self.indexed(world, "scatter", indices)?;
            self.write(&array, indices.iter().copied(), values)
        })()
        .placed_here()
    }

    /// The future form of [`GlobalSlice::scatter`]: ready when the elements are visible at their rank. `indices` and `values`
    /// may be changed when this returns.
    ///
    /// # Errors
    /// As [`GlobalSlice::scatter`] for a wrong number of values, and [`GlobalSlice::get_strided_async`].
    #[track_caller]
    pub fn scatter_async(&self, world: &World, indices: &[usize], values: &[T]) -> Result<Posted<()>> {
        check_pairs("scatter_async", indices, values).placed()?;
        let array = self.indexed(world, "scatter_async", indices).placed()?;
        Ok(array.put_pieces_async(&self.pieces(indices.iter().copied()), values))
    }

    /// The elements with these numbers, which all exist.
    fn read(&self, array: &Lent<'_, T>, mut numbers: impl Iterator<Item = usize>) -> Result<Vec<T>> {
        let (rank, first) = (self.start().rank(), self.start().index());
        if array.mapped().is_some() {
            return numbers.map(|number| array.get(rank, first + number)).collect();
        }
        let mut values = Vec::new();
        loop {
            let batch = self.pieces(numbers.by_ref().take(BATCH));
            if batch.is_empty() {
                return Ok(values);
            }
            let done = values.len();
            values.resize(done + batch.len(), T::zeroed());
            array.get_pieces(&batch, &mut values[done..])?;
        }
    }

    /// Writes the elements with these numbers, which all exist.
    fn write(&self, array: &Lent<'_, T>, mut numbers: impl Iterator<Item = usize>, values: &[T]) -> Result<()> {
        let (rank, first) = (self.start().rank(), self.start().index());
        if array.mapped().is_none() {
            let mut batches = values.chunks(BATCH);
            return batches
                .try_for_each(|values| array.put_pieces(&self.pieces(numbers.by_ref().take(values.len())), values));
        }
        numbers.zip(values).try_for_each(|(number, value)| array.put(rank, first + number, *value))
    }

    pub(super) fn pieces(&self, numbers: impl Iterator<Item = usize>) -> Vec<Piece> {
        let (rank, first) = (self.start().rank(), self.start().index());
        numbers.map(|number| Piece { rank, start: first + number, count: 1 }).collect()
    }

    pub(super) fn strided<'w>(
        &self,
        world: &'w World,
        operation: &'static str,
        start: usize,
        stride: usize,
        count: usize,
    ) -> Result<Lent<'w, T>> {
        if count > 0 {
            let span = stride.checked_mul(count - 1).and_then(|span| span.checked_add(1)).unwrap_or(usize::MAX);
            self.check(operation, start, span)?;
        }
        self.whole(world, operation)
    }

    pub(super) fn indexed<'w>(
        &self,
        world: &'w World,
        operation: &'static str,
        indices: &[usize],
    ) -> Result<Lent<'w, T>> {
        indices.iter().try_for_each(|index| self.check(operation, *index, 1))?;
        self.whole(world, operation)
    }
}

/// Whether this process can get the memory for `count` elements and for the requests that read them.
///
/// # Errors
/// [`Error::InvalidArgument`].
fn check_room<T>(operation: &'static str, count: usize) -> Result<()> {
    // A piece, and the request that it becomes.
    let each = size_of::<T>() + 4 * size_of::<Piece>();
    let has_room = |bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
    if count <= BATCH || count.checked_mul(each).is_some_and(has_room) {
        return Ok(());
    }
    let why = format!("memory has no room for {count} elements of {} bytes", size_of::<T>());
    Err(Error::InvalidArgument { operation, why })
}

pub(super) fn check_pairs<T>(operation: &'static str, indices: &[usize], values: &[T]) -> Result<()> {
    if indices.len() == values.len() {
        return Ok(());
    }
    let why = format!("{} values for {} elements", values.len(), indices.len());
    Err(Error::InvalidArgument { operation, why })
}
