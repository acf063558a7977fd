//! Operations of a context on segments, with events.

use std::sync::Arc;

use super::{Fetched, ThreadOperation, apply, check_one_value, checked};
use crate::engine::{Change, Changing, Events, Found, Locate, Step, Stream};
use crate::error::{Error, Placed, Result};
use crate::transport::AtomicOp;
use crate::world::segment_atomics::ATOMIC;
use crate::world::{AtomicElement, ThreadReservedSegments, ThreadSegment};

/// # On segments
/// Numbers, bounds, and which memory needs progress of its rank, are as for
/// [`ThreadContext::put_segment`](crate::ThreadContext::put_segment).
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// use bellwether::{AtomicOp, Counter};
/// bellwether::threads(2, |world| {
///     let (own, back) = (world.segment_all(64)?, world.segment(64)?);
///     let (number, other) = (own.number(), 1 - world.rank());
///     let (context, into, done) = (world.context()?, back.for_threads(), Counter::new());
///     std::thread::scope(|scope| {
///         scope.spawn(move || -> bellwether::Result<()> {
///             context.operation().effect(&done).put_segment(other, number, 8, &[7; 8])?;
///             context.wait_counter(&done, 1)?;
///             // The bytes are in effect there. A get brings them back.
///             context.operation().effect(&done).get_segment((other, number, 8), &into, 0, 8)?;
///             context.wait_counter(&done, 2)?;
///             let ticket = context.operation().effect(&done).fetch_segment(AtomicOp::Add, other, number, 0, 1u64)?;
///             context.wait_counter(&done, 3)?;
///             assert_eq!(ticket.value(), Some(0));
///             Ok(())
///         }).join().expect("does not panic")
///     })?;
///     let mut came = [0; 8];
///     back.read(0, &mut came)?;
///     assert_eq!(came, [7; 8]);
///     world.barrier()?;
///     own.close()?;
///     back.close()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
impl ThreadOperation<'_> {
    /// Copies `source` to byte `offset` of segment `number` of `rank`, as
    /// [`ThreadContext::put_segment`](crate::ThreadContext::put_segment).
    ///
    /// # Errors
    /// As [`ThreadContext::put_segment`](crate::ThreadContext::put_segment); as [`ThreadOperation::put`].
    #[track_caller]
    pub fn put_segment(self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        (|| -> Result<()> {
            const DOING: &str = "put to a segment";
            let stream = self.context.stream();
            let events = checked(self.events, stream.identity())?;
            stream.put_segment(Stream::locate_segment, DOING, (rank, number), offset, source)?;
            stream.track_put(rank, DOING, events);
            Ok(())
        })()
        .placed_here()
    }

    /// Copies `len` bytes from a segment to byte `at` of `into`, a segment of this rank. `place` is the rank, the number and the first byte of
    /// the source. At the effect event the bytes are in `into`; where the kernel or the processor copies, that event comes before the call
    /// returns. Closing `into` waits for the bytes.
    ///
    /// # Errors
    /// As [`ThreadContext::get_segment_into`](crate::ThreadContext::get_segment_into); as [`ThreadOperation::put`].
    #[track_caller]
    pub fn get_segment(
        self,
        place: (usize, u32, usize),
        into: &ThreadSegment<'_>,
        at: usize,
        len: usize,
    ) -> Result<()> {
        self.get_located(Stream::locate_segment, "get from a segment", place, into, [at, len]).placed_here()
    }

    /// Does an atomic with `value`, not [`AtomicOp::CompareSwap`], on the word at byte `offset` of segment `number` of `rank`, as
    /// [`ThreadContext::fetch_segment`](crate::ThreadContext::fetch_segment). At the effect event the result has the former value.
    ///
    /// # Errors
    /// As [`ThreadContext::fetch_segment`](crate::ThreadContext::fetch_segment); as [`ThreadOperation::put`].
    #[track_caller]
    pub fn fetch_segment<T: AtomicElement>(
        self,
        op: AtomicOp,
        rank: usize,
        number: u32,
        offset: usize,
        value: T,
    ) -> Result<Fetched<T>> {
        (|| -> Result<Fetched<T>> {
            check_one_value(op)?;
            self.change_located(Stream::locate_segment, ATOMIC, op, (rank, number, offset), [value, T::zeroed()])
        })()
        .placed_here()
    }

    /// Stores `new` in the word at byte `offset` of segment `number` of `rank` if the word is `expected`. Otherwise as
    /// [`ThreadOperation::fetch_segment`].
    ///
    /// # Errors
    /// As [`ThreadOperation::fetch_segment`].
    #[track_caller]
    pub fn compare_swap_segment<T: AtomicElement>(
        self,
        rank: usize,
        number: u32,
        offset: usize,
        expected: T,
        new: T,
    ) -> Result<Fetched<T>> {
        let (at, values) = ((rank, number, offset), [new, expected]);
        self.change_located(Stream::locate_segment, ATOMIC, AtomicOp::CompareSwap, at, values).placed_here()
    }

    /// Copies `source` to byte `offset` of segment 0 or 1 of `rank`, as [`ThreadReservedSegments::put`].
    ///
    /// # Errors
    /// As [`ThreadReservedSegments::put`]; as [`ThreadOperation::put`]; [`Error::InvalidArgument`] if `reserved` is of another world.
    #[track_caller]
    pub fn put_reserved(
        self,
        reserved: &ThreadReservedSegments<'_>,
        rank: usize,
        number: u32,
        offset: usize,
        source: &[u8],
    ) -> Result<()> {
        (|| -> Result<()> {
            const DOING: &str = "put to a reserved segment";
            let stream = self.context.stream();
            reserved.check_of(stream)?;
            let events = checked(self.events, stream.identity())?;
            stream.put_segment(Stream::locate_reserved, DOING, (rank, number), offset, source)?;
            stream.tell_stored(rank);
            stream.track_put(rank, DOING, events);
            Ok(())
        })()
        .placed_here()
    }

    /// Copies `len` bytes from segment 0 or 1 of a rank to `into`, as [`ThreadOperation::get_segment`].
    ///
    /// # Errors
    /// As [`ThreadOperation::get_segment`]; as [`ThreadOperation::put_reserved`].
    #[track_caller]
    pub fn get_reserved(
        self,
        reserved: &ThreadReservedSegments<'_>,
        place: (usize, u32, usize),
        into: &ThreadSegment<'_>,
        at: usize,
        len: usize,
    ) -> Result<()> {
        (|| -> Result<()> {
            reserved.check_of(self.context.stream())?;
            self.get_located(Stream::locate_reserved, "get from a reserved segment", place, into, [at, len])
        })()
        .placed_here()
    }

    /// Does an atomic with `value`, not [`AtomicOp::CompareSwap`], on a word of segment 0 or 1, as [`ThreadReservedSegments::fetch`]. `place` is
    /// the rank, the number and the first byte of the word. At the effect event the result has the former value.
    ///
    /// # Errors
    /// As [`ThreadOperation::fetch_segment`]; as [`ThreadOperation::put_reserved`].
    #[track_caller]
    pub fn fetch_reserved<T: AtomicElement>(
        self,
        op: AtomicOp,
        reserved: &ThreadReservedSegments<'_>,
        place: (usize, u32, usize),
        value: T,
    ) -> Result<Fetched<T>> {
        (|| -> Result<Fetched<T>> {
            check_one_value(op)?;
            reserved.check_of(self.context.stream())?;
            self.change_located(Stream::locate_reserved, ATOMIC, op, place, [value, T::zeroed()])
        })()
        .placed_here()
    }

    /// Stores `new` in a word of segment 0 or 1 if the word is `expected`. Otherwise as [`ThreadOperation::fetch_reserved`].
    ///
    /// # Errors
    /// As [`ThreadOperation::fetch_reserved`].
    #[track_caller]
    pub fn compare_swap_reserved<T: AtomicElement>(
        self,
        reserved: &ThreadReservedSegments<'_>,
        place: (usize, u32, usize),
        expected: T,
        new: T,
    ) -> Result<Fetched<T>> {
        (|| -> Result<Fetched<T>> {
            reserved.check_of(self.context.stream())?;
            self.change_located(Stream::locate_reserved, ATOMIC, AtomicOp::CompareSwap, place, [new, expected])
        })()
        .placed_here()
    }

    pub(super) fn get_located(
        self,
        locate: Locate,
        doing: &'static str,
        place: (usize, u32, usize),
        into: &ThreadSegment<'_>,
        [at, len]: [usize; 2],
    ) -> Result<()> {
        let stream = self.context.stream();
        let to = into.destination(doing, stream, place.1, at, len)?;
        let Events { source, effect, handled } = checked(self.events, stream.identity())?;
        let all = source.into_iter().chain(effect).chain(handled).collect();
        // SAFETY: bytes of an open segment of this rank; closing it waits for the operations that contexts have in flight.
        unsafe { stream.post_get_located(locate, doing, place, to, len, all) }
    }

    pub(super) fn change_located<T: AtomicElement>(
        self,
        locate: Locate,
        doing: &'static str,
        op: AtomicOp,
        place: (usize, u32, usize),
        [value, compare]: [T; 2],
    ) -> Result<Fetched<T>> {
        let stream = self.context.stream();
        let Events { mut source, mut effect, mut handled } = checked(self.events, stream.identity())?;
        effect.append(&mut handled);
        let found: Arc<Found> = Arc::default();
        let fetched = Fetched { found: Arc::clone(&found), narrow: T::narrow };
        let change = Change { op, width: T::WIDTH, value: value.widen(), compare: compare.widen() };
        // SAFETY: an aligned word of an open segment, as long as the call lasts; or of a reserved one, or at an address, which may be
        // changed, as the maker of `ThreadReservedSegments`, or the caller of `fetch_address`, guarantees.
        let at_once = |at: *mut u8| unsafe { apply(op, at.cast::<T>(), value, compare) }.widen();
        match stream.begin_change_segment(locate, doing, place, change, at_once)? {
            Changing::Done(before) => {
                found.set(before);
                source.append(&mut effect);
            }
            Changing::Posted(atomic) => stream.track(place.0, doing, Step::Atomic { atomic, found }, effect),
        }
        stream.happened(source);
        Ok(fetched)
    }
}

impl ThreadReservedSegments<'_> {
    /// # Errors
    /// [`Error::InvalidArgument`] if it is of another world.
    pub(in crate::world) fn check_of(&self, stream: &Stream) -> Result<()> {
        if self.context.stream().identity() == stream.identity() {
            return Ok(());
        }
        let why = "the reserved segments are of another world".into();
        Err(Error::InvalidArgument { operation: "an operation with events", why })
    }
}
