//! Segments through contexts: the operations of a thread with a [`ThreadContext`].

use std::marker::PhantomData;
use std::sync::atomic::fence;
use std::time::Duration;

use super::operation::{apply, check_one_value};
use super::segment_atomics::ATOMIC;
use super::{AtomicElement, ThreadBell, ThreadContext};
use crate::engine::{BY_ADDRESS, Change, Identity, Locate, Stream};
use crate::error::{CalledAt, Error, Placed, Result, check_range};
use crate::transport::AtomicOp;

/// A [`Segment`](super::Segment) of this rank, for all its threads: the destination of gets by contexts. Made by
/// [`Segment::for_threads`](super::Segment::for_threads).
#[derive(Debug, Clone, Copy)]
pub struct ThreadSegment<'a> {
    start: usize,
    len: usize,
    rank: usize,
    identity: Identity,
    /// Only borrows the segment. The fields above are copies of all that a thread needs.
    segment: PhantomData<&'a ()>,
}

impl<'a> ThreadSegment<'a> {
    pub(super) fn new(start: usize, len: usize, rank: usize, identity: Identity) -> ThreadSegment<'a> {
        ThreadSegment { start, len, rank, identity, segment: PhantomData }
    }

    /// Length of the segment in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a segment has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The address in this segment to which a get of `stream` copies. `number`, the segment of the source or [`BY_ADDRESS`], is for errors.
    ///
    /// # Errors
    /// If this segment is of another world, [`Error::NoSegment`], or [`Error::InvalidArgument`] for a get by address; [`Error::OutOfBounds`].
    pub(super) fn destination(
        &self,
        operation: &'static str,
        stream: &Stream,
        number: u32,
        offset: usize,
        count: usize,
    ) -> Result<*mut u8> {
        if !stream.is_of(self.identity) {
            if number == BY_ADDRESS {
                return Err(Error::InvalidArgument {
                    operation,
                    why: "the segment to fill is of another world".into(),
                });
            }
            return Err(Error::NoSegment { operation, rank: stream.rank, number, place: CalledAt::default() });
        }
        self.at(operation, offset, count)
    }

    fn at(&self, operation: &'static str, offset: usize, count: usize) -> Result<*mut u8> {
        check_range(operation, self.rank, offset, count, self.len)?;
        Ok((self.start + offset) as *mut u8)
    }
}

/// On segments of ranks ([`World::segment`](super::World::segment)). Numbers, bounds and errors are those of
/// [`World::put_segment`](super::World::put_segment). If the segment lies in mapped memory, a call is a look-up, a bounds check and a store or
/// load, without a lock. The kernel copies to and from unmapped memory of a rank of this node; if it does not permit that, these calls fail,
/// and only the calls of [`World`](super::World) reach that memory.
impl ThreadContext {
    /// Copies `source` to `offset` of segment `number` of `rank`. `source` may be changed on return. The bytes are visible at `rank` when a
    /// flush returns, and to a thread there that sees a later [notification](ThreadContext::notify_segment) or ring of this context. Over a
    /// network, 256 KiB and more are not copied: the call waits until the network has read them, as [`ThreadContext::put_slice`].
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::NoSegment`], [`Error::OutOfBounds`]; as [`ThreadContext::put`].
    #[inline]
    #[track_caller]
    pub fn put_segment(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        let (stream, doing) = (self.stream(), "put to a segment");
        stream.put_segment(Stream::locate_segment, doing, (rank, number), offset, source).placed_here()
    }

    /// Stores `word` at byte `offset`, which must be aligned, of segment `number` of `rank`, after all earlier puts of this context to `rank`:
    /// a thread that loads the word with Acquire sees these puts. Wakes `rank` if it sleeps.
    ///
    /// # Errors
    /// As [`ThreadContext::put_segment`]; [`Error::Misaligned`].
    #[track_caller]
    pub fn notify_segment<T: AtomicElement>(&self, rank: usize, number: u32, offset: usize, word: T) -> Result<()> {
        let (word, doing) = (bytemuck::bytes_of(&word), "a notification in a segment");
        let put = self.stream().put_segment_after(Stream::locate_segment, doing, (rank, number), offset, word);
        put.placed_here()
    }

    /// As [`ThreadContext::put_segment`], then rings `bell` at `rank`.
    ///
    /// # Errors
    /// As [`ThreadContext::put_segment`]; then the bell is not rung.
    #[track_caller]
    pub fn put_segment_bell(
        &self,
        rank: usize,
        number: u32,
        offset: usize,
        source: &[u8],
        bell: &ThreadBell<'_>,
    ) -> Result<()> {
        self.put_segment(rank, number, offset, source).placed()?;
        self.ring(bell, rank)
    }

    /// Copies bytes from `offset` of segment `number` of `rank` to `into`. Blocks until the bytes have arrived.
    ///
    /// # Errors
    /// As [`ThreadContext::put_segment`].
    #[inline]
    #[track_caller]
    pub fn get_segment(&self, rank: usize, number: u32, offset: usize, into: &mut [u8]) -> Result<()> {
        let (stream, doing) = (self.stream(), "get from a segment");
        stream.get_segment(Stream::locate_segment, doing, (rank, number), offset, into).placed_here()
    }

    /// Copies `len` bytes from `offset` of segment `number` of `rank` to byte `at` of `into`. Does not wait for the bytes: they have arrived
    /// when [`ThreadContext::flush_all`] or, with `true`, [`ThreadContext::is_complete`] returns; from mapped memory, when this call returns.
    ///
    /// # Errors
    /// As [`ThreadContext::put_segment`], also for `into`; [`Error::NoSegment`] if `into` is of another world.
    #[track_caller]
    pub fn get_segment_into(
        &self,
        (rank, number, offset): (usize, u32, usize),
        into: &ThreadSegment<'_>,
        at: usize,
        len: usize,
    ) -> Result<()> {
        (|| -> Result<()> {
            const NAME: &str = "get from a segment";
            let to = into.destination(NAME, self.stream(), number, at, len)?;
            // SAFETY: bytes of an open segment of this rank; closing it waits for the operations that contexts have in flight.
            unsafe {
                self.stream().post_get_located(
                    Stream::locate_segment,
                    NAME,
                    (rank, number, offset),
                    to,
                    len,
                    Vec::new(),
                )
            }
        })()
        .placed_here()
    }

    /// Does an atomic with `value`, any but [`AtomicOp::CompareSwap`], on a word of a segment, and returns the word's former value. As
    /// [`World::fetch_segment`](super::World::fetch_segment).
    ///
    /// # Errors
    /// As [`ThreadContext::put_segment`]; [`Error::Misaligned`]; [`Error::InvalidArgument`] for a compare-and-swap, and if only the owner's
    /// program can change the word atomically: in unmapped memory of a rank of this node, and over a network without such atomics.
    #[track_caller]
    pub fn fetch_segment<T: AtomicElement>(
        &self,
        op: AtomicOp,
        rank: usize,
        number: u32,
        offset: usize,
        value: T,
    ) -> Result<T> {
        (|| -> Result<T> {
            check_one_value(op)?;
            let (at, values) = ((rank, number, offset), [value, T::zeroed()]);
            self.change_segment(Stream::locate_segment, ATOMIC, op, at, values)
        })()
        .placed_here()
    }

    /// Stores `new` in a word of a segment if the word is `expected`, and returns the word's former value.
    ///
    /// # Errors
    /// As [`ThreadContext::fetch_segment`].
    #[track_caller]
    pub fn compare_swap_segment<T: AtomicElement>(
        &self,
        rank: usize,
        number: u32,
        offset: usize,
        expected: T,
        new: T,
    ) -> Result<T> {
        let (op, at, values) = (AtomicOp::CompareSwap, (rank, number, offset), [new, expected]);
        self.change_segment(Stream::locate_segment, ATOMIC, op, at, values).placed_here()
    }

    /// Does an atomic on a word that `locate` finds and that the caller may change.
    ///
    /// # Errors
    /// As [`ThreadContext::fetch_segment`].
    pub(super) fn change_segment<T: AtomicElement>(
        &self,
        locate: Locate,
        doing: &'static str,
        op: AtomicOp,
        place: (usize, u32, usize),
        [value, compare]: [T; 2],
    ) -> Result<T> {
        let change = Change { op, width: T::WIDTH, value: value.widen(), compare: compare.widen() };
        // SAFETY: `at` is an aligned word of a segment that stays open during the call. Or it is a word of a reserved segment, or at an
        // address: then the maker of `ThreadReservedSegments`, or the caller of `fetch_address`, guarantees that it may be changed.
        let at_once = |at: *mut u8| unsafe { apply(op, at.cast::<T>(), value, compare) }.widen();
        self.stream().change_segment(locate, doing, place, change, at_once).map(T::narrow)
    }

    /// Whether nothing of this context is in flight, so that [`ThreadContext::flush_all`] does not wait. Makes progress.
    ///
    /// # Errors
    /// As [`ThreadContext::flush_all`].
    #[track_caller]
    pub fn is_complete(&self) -> Result<bool> {
        self.stream().is_complete("is_complete").placed_here()
    }

    /// As [`ThreadContext::flush_all`], for at most `limit`. After [`Error::TimedOut`] the operations continue, and may be waited for again.
    ///
    /// # Errors
    /// As [`ThreadContext::flush_all`]; [`Error::TimedOut`].
    #[track_caller]
    pub fn flush_all_for(&self, limit: Duration) -> Result<()> {
        fence(std::sync::atomic::Ordering::SeqCst);
        self.stream().wait_complete("flush_all", limit).placed_here()
    }
}
