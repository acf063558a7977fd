//! Puts and rings of contexts that answer at once.

use std::ops::Range;

use bytemuck::cast_slice;

use super::context::Stage;
use super::operation::at_once::kept;
use super::operation::checked;
use super::returned::{Lender, Returned};
use super::{
    AtomicElement, PlainData, ThreadArray, ThreadBell, ThreadContext, ThreadOperation, ThreadPosted,
    ThreadReservedSegments,
};
use crate::engine::{BY_ADDRESS, Stream};
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
        let stream = self.stream();
        let put =
            stream.try_put_segment(Stream::locate_segment, "try_put_segment", (rank, number), offset, source, None);
        put.placed_here()
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
            let stream = self.stream();
            stream.try_put_segment(Stream::locate_segment, DOING, (rank, number), offset, source, Some(words))
        })()
        .placed_here()
    }

    /// As [`ThreadContext::notify_segment`], but does not wait for room, as [`ThreadContext::try_put_segment`].
    ///
    /// # Errors
    /// As [`ThreadContext::notify_segment`], and [`Error::WouldBlock`]: nothing was stored.
    #[track_caller]
    pub fn try_notify_segment<T: AtomicElement>(&self, rank: usize, number: u32, offset: usize, word: T) -> Result<()> {
        let (locate, word) = (Stream::locate_segment, bytemuck::bytes_of(&word));
        let put = self.stream().try_put_segment_after(locate, "try_notify_segment", (rank, number), offset, word);
        put.placed_here()
    }

    /// As [`ThreadContext::put_address`], but does not wait for room, as [`ThreadContext::try_put_segment`].
    ///
    /// # Safety
    /// As of [`World::put_address`](super::World::put_address).
    ///
    /// # Errors
    /// As [`ThreadContext::put_address`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub unsafe fn try_put_address(&self, rank: usize, to: usize, source: &[u8]) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.try_put_at(rank, to, source) }.placed_here()
    }

    fn try_put_reserved(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        let (stream, locate) = (self.stream(), Stream::locate_reserved);
        stream.try_put_segment(locate, "try_put_reserved", (rank, number), offset, source, None)?;
        stream.tell_stored(rank);
        Ok(())
    }

    /// # Safety
    /// As of [`World::put_address`](super::World::put_address).
    unsafe fn try_put_at(&self, rank: usize, to: usize, source: &[u8]) -> Result<()> {
        let (stream, locate) = (self.stream(), Stream::locate_address);
        stream.try_put_segment(locate, "try_put_address", (rank, BY_ADDRESS), to, source, None)?;
        stream.tell_stored(rank);
        Ok(())
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

impl ThreadReservedSegments<'_> {
    /// As [`ThreadReservedSegments::put`], but does not wait for room, as [`ThreadContext::try_put_segment`].
    ///
    /// # Errors
    /// As [`ThreadReservedSegments::put`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub fn try_put(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        self.context.try_put_reserved(rank, number, offset, source).placed_here()
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
            let locate = Stream::locate_segment;
            context.stream().try_put_segment(locate, "try_put_segment", (rank, number), offset, source, None)
        };
        self.at_once(rank, "put to a segment", put).placed_here()
    }

    /// As [`ThreadOperation::put_owned`], but does not wait, as [`ThreadContext::try_put_slice`], and keeps its events as
    /// [`ThreadOperation::try_put`] does. Takes the buffer out of `values`, and leaves it there without room. What the network does not take at
    /// once is copied, so the buffer is back on return.
    ///
    /// # Errors
    /// As [`ThreadOperation::put_owned`], and [`Error::WouldBlock`]: nothing was put. The buffer is left with every error.
    /// [`Error::InvalidArgument`] if there is none.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::{Completion, Error};
    /// bellwether::threads(2, |world| {
    ///     let plate = world.alloc::<f64>(1000)?;
    ///     let (context, array, done) = (world.context()?, plate.for_threads(), Completion::new());
    ///     let mut row = Some(vec![1.5; 1000]);
    ///     let mut put = context.operation().effect(&done);
    ///     let lent = loop {
    ///         match put.try_put_owned(&array, 1 - world.rank(), 0, &mut row) {
    ///             Err(Error::WouldBlock { .. }) => {
    ///                 // Or something useful.
    ///                 world.poll()?;
    ///             }
    ///             outcome => break outcome?,
    ///         }
    ///     };
    ///     assert!(row.is_none());
    ///     assert_eq!(context.wait_returned(&lent)?.len(), 1000);
    ///     context.wait_completion(&done)?;
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn try_put_owned<T: PlainData, B>(
        &mut self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: &mut Option<B>,
    ) -> Result<Returned<B>>
    where
        B: AsRef<[T]> + Send + 'static,
    {
        const DOING: &str = "try_put_owned";
        let Some(buffer) = values.take() else {
            let why = "there is no buffer: an attempt that put it has taken it".into();
            return Err(Error::InvalidArgument { operation: DOING, why });
        };
        let (lender, returned) = Lender::new(buffer, Some(self.context.stream()));
        let put =
            |context: &ThreadContext| context.try_put_apart(DOING, array, rank, start, lender.elements::<T>(), None);
        let outcome = self.at_once(rank, "put", put);
        drop(lender);
        match outcome {
            Ok(()) => Ok(returned),
            Err(error) => {
                *values = returned.take();
                Err(error).placed_here()
            }
        }
    }

    /// As [`ThreadOperation::put_from`], but does not wait, as [`ThreadContext::try_put_slice`], and keeps its events as
    /// [`ThreadOperation::try_put`] does. Over a network the elements are copied.
    ///
    /// # Errors
    /// As [`ThreadOperation::put_from`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub fn try_put_from<T: PlainData>(
        &mut self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        source: &ThreadArray<'_, T>,
        from: Range<usize>,
    ) -> Result<()> {
        const DOING: &str = "try_put_from";
        let put = |context: &ThreadContext| {
            let stream = context.stream();
            let own = source.range(stream, DOING, stream.rank, from.start, from.len())?;
            let (offset, len) = (array.range(stream, DOING, rank, start, from.len())?, from.len() * size_of::<T>());
            stream.try_put_own(DOING, [rank, offset, own, len])
        };
        self.at_once(rank, "put", put).placed_here()
    }

    /// As [`ThreadOperation::put_reserved`], but does not wait, as [`ThreadReservedSegments::try_put`], and keeps its events as
    /// [`ThreadOperation::try_put`] does.
    ///
    /// # Errors
    /// As [`ThreadOperation::put_reserved`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub fn try_put_reserved(
        &mut self,
        reserved: &ThreadReservedSegments<'_>,
        rank: usize,
        number: u32,
        offset: usize,
        source: &[u8],
    ) -> Result<()> {
        let put = |context: &ThreadContext| {
            reserved.check_of(context.stream())?;
            context.try_put_reserved(rank, number, offset, source)
        };
        self.at_once(rank, "put to a reserved segment", put).placed_here()
    }

    /// As [`ThreadOperation::put_address`], but does not wait, as [`ThreadContext::try_put_address`], and keeps its events as
    /// [`ThreadOperation::try_put`] does.
    ///
    /// # Safety
    /// As for [`World::put_address`](crate::World::put_address).
    ///
    /// # Errors
    /// As [`ThreadOperation::put_address`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub unsafe fn try_put_address(&mut self, rank: usize, to: usize, source: &[u8]) -> Result<()> {
        // SAFETY: the caller's.
        let put = |context: &ThreadContext| unsafe { context.try_put_at(rank, to, source) };
        self.at_once(rank, "put to an address", put).placed_here()
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
