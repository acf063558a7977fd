//! Puts and rings of contexts that answer at once.

use bytemuck::cast_slice;

use super::context::Stage;
use super::operation::at_once::kept;
use super::operation::checked;
use super::{PlainData, ThreadArray, ThreadBell, ThreadContext, ThreadOperation, ThreadPosted};
use crate::error::{Error, Placed, Result};

/// # Puts and rings that answer at once
/// Each `try_` form does what the call without `try_` does, if there is room to begin now. Otherwise it fails with [`Error::WouldBlock`],
/// and nothing was put or rung; it has then made progress for this context, as [`ThreadContext::poll`] does. Where memory is mapped there
/// is always room, except that a ring may have to wait for network operations to the same rank. No form sleeps, but each waits while the
/// rank's own thread makes progress for this context, as that thread does in its waits.
///
/// Over a network a put that has begun happens whole: the data that the network does not take at once is copied and kept, however long it
/// is, and posted by later progress of the context. Until then nothing else of this context goes to that rank: calls that wait wait for it,
/// and `try_` forms find no room. A put of 256 KiB and more is copied, too. The first put to a rank may find no room while the network makes
/// the connection.
impl ThreadContext {
    /// As [`ThreadContext::put`], but does not wait for room.
    ///
    /// # Errors
    /// As [`ThreadContext::put`], and [`Error::WouldBlock`]: nothing was put.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::Error;
    /// bellwether::threads(2, |world| {
    ///     let numbers = world.alloc::<u64>(100)?;
    ///     let (context, array, other) = (world.context()?, numbers.for_threads(), 1 - world.rank());
    ///     for i in 0..100 {
    ///         while let Err(error) = context.try_put(&array, other, i, 7) {
    ///             let Error::WouldBlock { .. } = error else { return Err(error) };
    ///             // Or something useful.
    ///             world.poll()?;
    ///         }
    ///     }
    ///     context.flush(other)?;
    ///     world.barrier()?;
    ///     assert_eq!(numbers.load(99), 7);
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[inline]
    #[track_caller]
    pub fn try_put<T: PlainData>(&self, array: &ThreadArray<'_, T>, rank: usize, index: usize, value: T) -> Result<()> {
        match array.mapped(rank, index, 1) {
            Some(_) => self.put(array, rank, index, value),
            None => self.try_put_apart("try_put", array, rank, index, &[value], None).placed_here(),
        }
    }

    /// As [`ThreadContext::put_slice`], but does not wait.
    ///
    /// # Errors
    /// As [`ThreadContext::put_slice`], and [`Error::WouldBlock`]: nothing was put.
    #[inline]
    #[track_caller]
    pub fn try_put_slice<T: PlainData>(
        &self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: &[T],
    ) -> Result<()> {
        match array.mapped(rank, start, values.len()) {
            Some(_) => self.put_slice(array, rank, start, values),
            None => self.try_put_apart("try_put_slice", array, rank, start, values, None).placed_here(),
        }
    }

    /// As [`ThreadContext::put_bell`], but does not wait for room.
    ///
    /// # Errors
    /// As [`ThreadContext::put_bell`], and [`Error::WouldBlock`]: nothing was put, and nothing rung.
    #[track_caller]
    pub fn try_put_bell<T: PlainData>(
        &self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        index: usize,
        value: T,
        bell: &ThreadBell<'_>,
    ) -> Result<()> {
        self.try_put_apart("try_put_bell", array, rank, index, &[value], Some(bell)).placed_here()
    }

    /// As [`ThreadContext::put_slice_bell`], but does not wait.
    ///
    /// # Errors
    /// As [`ThreadContext::put_slice_bell`], and [`Error::WouldBlock`]: nothing was put, and nothing rung.
    #[track_caller]
    pub fn try_put_slice_bell<T: PlainData>(
        &self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: &[T],
        bell: &ThreadBell<'_>,
    ) -> Result<()> {
        self.try_put_apart("try_put_slice_bell", array, rank, start, values, Some(bell)).placed_here()
    }

    /// As [`ThreadContext::put_slice_async`], but does not wait for room to post it.
    ///
    /// # Errors
    /// As [`ThreadContext::try_put_slice`]. Later errors come from the returned value.
    #[track_caller]
    pub fn try_put_slice_async<'a, T: PlainData>(
        &self,
        array: &ThreadArray<'a, T>,
        rank: usize,
        start: usize,
        values: &[T],
    ) -> Result<ThreadPosted<'a, ()>> {
        self.try_put_apart("try_put_slice_async", array, rank, start, values, None).placed()?;
        Ok(self.posted("try_put_slice_async", Ok(Stage::Put(rank, || ()))))
    }

    /// As [`ThreadContext::ring`], but does not wait for room.
    ///
    /// # Errors
    /// As [`ThreadContext::ring`], and [`Error::WouldBlock`]: nothing was rung.
    #[track_caller]
    pub fn try_ring(&self, bell: &ThreadBell<'_>, rank: usize) -> Result<()> {
        const DOING: &str = "try_ring";
        (|| -> Result<()> {
            let words = bell.words(self.stream(), DOING, rank)?;
            self.stream().try_put(DOING, rank, None, Some(words))
        })()
        .placed_here()
    }

    /// As [`ThreadContext::put_segment`], but does not wait for room. Over a network the first use of a segment of a rank reads that rank's
    /// table of segments, and blocks until it is here.
    ///
    /// # Errors
    /// As [`ThreadContext::put_segment`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub fn try_put_segment(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        self.stream().try_put_segment("try_put_segment", (rank, number), offset, source, None).placed_here()
    }

    /// As [`ThreadContext::put_segment_bell`], but does not wait for room, as [`ThreadContext::try_put_segment`].
    ///
    /// # Errors
    /// As [`ThreadContext::put_segment_bell`], and [`Error::WouldBlock`]: nothing was put, and nothing rung.
    #[track_caller]
    pub fn try_put_segment_bell(
        &self,
        rank: usize,
        number: u32,
        offset: usize,
        source: &[u8],
        bell: &ThreadBell<'_>,
    ) -> Result<()> {
        const DOING: &str = "try_put_segment_bell";
        (|| -> Result<()> {
            let words = bell.words(self.stream(), DOING, rank)?;
            self.stream().try_put_segment(DOING, (rank, number), offset, source, Some(words))
        })()
        .placed_here()
    }

    fn try_put_apart<T: PlainData>(
        &self,
        operation: &'static str,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: &[T],
        bell: Option<&ThreadBell<'_>>,
    ) -> Result<()> {
        let stream = self.stream();
        let offset = array.range(stream, operation, rank, start, values.len())?;
        let words = bell.map(|bell| bell.words(stream, operation, rank)).transpose()?;
        stream.try_put(operation, rank, Some((offset, cast_slice(values))), words)
    }
}

impl ThreadOperation<'_> {
    /// As [`ThreadOperation::put`], but does not wait, as [`ThreadContext::try_put_slice`]. Without room the operation keeps its events, for
    /// another attempt; else they are gone with it, and what follows has those that are added to it then.
    ///
    /// # Errors
    /// As [`ThreadOperation::put`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub fn try_put<T: PlainData>(
        &mut self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: &[T],
    ) -> Result<()> {
        const DOING: &str = "try_put";
        let put = |context: &ThreadContext| context.try_put_apart(DOING, array, rank, start, values, None);
        self.at_once(rank, "put", put).placed()
    }

    /// As [`ThreadOperation::put_segment`], but does not wait, as [`ThreadContext::try_put_segment`], and keeps its events as
    /// [`ThreadOperation::try_put`] does.
    ///
    /// # Errors
    /// As [`ThreadOperation::put_segment`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub fn try_put_segment(&mut self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        let put = |context: &ThreadContext| {
            context.stream().try_put_segment("try_put_segment", (rank, number), offset, source, None)
        };
        self.at_once(rank, "put to a segment", put).placed_here()
    }

    /// Puts with `attempt`; then the events belong to the put. Without room the operation keeps the events.
    fn at_once(
        &mut self,
        rank: usize,
        doing: &'static str,
        attempt: impl FnOnce(&ThreadContext) -> Result<()>,
    ) -> Result<()> {
        let stream = self.context.stream();
        let events = checked(std::mem::take(&mut self.events), stream.identity())?;
        match attempt(self.context) {
            Ok(()) => {
                stream.track_put(rank, doing, events);
                Ok(())
            }
            Err(error) => {
                if let Error::WouldBlock { .. } = error {
                    self.events = kept(events);
                }
                Err(error)
            }
        }
    }
}
